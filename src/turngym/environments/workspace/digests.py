"""What of a file belongs to the state key of a workspace: its content, never when it was made.

Some files hold times, so that the same commands never write the same bytes twice. Of these:

| file | what counts |
| --- | --- |
| ``.git/index`` | mode, object, stage and path of each entry, as ``git ls-files -s`` lists them |
| ``.git/objects/`` | nothing: an object's name, which the index and the refs hold, is its content |
| gzip | what it holds |
| tar | names, modes, owners, contents |
| zip | names, sizes, checksums |
| ``*.pyc`` | nothing: it follows from its source, whose time it holds |
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

_INDEX_STAT = 40
"""Bytes of an index entry before its object: times, device, inode, mode, owner, size."""
_INDEX_MODE = slice(24, 28)
_TAR_BLOCK = 512
_TAR_TIMES = slice(136, 156)
"""Modification time and checksum in a header."""
_MAX_UNPACKED = 1 << 24


def stable_content(path: str, data: bytes) -> bytes | None:
    """Return what counts of the file at ``path``, or None where nothing does."""
    parts = path.split("/")
    if path.endswith(".pyc") or (".git" in parts and "objects" in parts):
        return None
    if parts[-2:] == [".git", "index"]:
        return _git_entries(data)
    if data.startswith(b"\x1f\x8b"):
        data = _unpacked(data)
    if data[257:262] == b"ustar":
        return _tar_without_times(data)
    return _zip_list(data) if data.startswith(b"PK\x03\x04") else data


def _git_entries(data: bytes) -> bytes:
    """Return the entries of an index of version 2 or 3; of another, the number of its version."""
    if len(data) < 12 or data[:4] != b"DIRC":
        return data
    version, count = struct.unpack(">II", data[4:12])
    if version not in (2, 3):
        return b"version %d" % version
    found, at = [], 12
    for _ in range(count):
        (flags,) = struct.unpack(">H", data[at + 60 : at + 62].ljust(2, b"\0"))
        start = at + (64 if flags & 0x4000 else 62)
        end = data.find(b"\0", start)
        if end < 0:
            return data
        mode, object_id = data[at:][_INDEX_MODE], data[at + _INDEX_STAT : at + 60]
        found.append(mode + object_id + b"%d " % (flags >> 12 & 3) + data[start:end])
        at += (end - at) // 8 * 8 + 8
    return b"\n".join(found)


def _unpacked(data: bytes) -> bytes:
    """Return what a gzip file holds, or the file where that is too much or broken."""
    unpack = zlib.decompressobj(wbits=31)
    try:
        held = unpack.decompress(data, _MAX_UNPACKED)
    except zlib.error:
        return data
    return held if unpack.eof and not unpack.unused_data else data


def _tar_without_times(data: bytes) -> bytes:
    found, at = bytearray(data), 0
    while at + _TAR_BLOCK <= len(data) and any(data[at : at + _TAR_BLOCK]):
        size = data[at + 124 : at + 136].strip(b"\0 ")
        if not size.isdigit():
            break
        found[at + _TAR_TIMES.start : at + _TAR_TIMES.stop] = bytes(20)
        inside = slice(at + _TAR_BLOCK, at + _TAR_BLOCK + int(size, 8))
        if data[at + 156 : at + 157] == b"x":  # more headers: ``28 mtime=1700000000.25``
            kept = [line for line in data[inside].split(b"\n") if b"time=" not in line]
            found[inside] = b"\n".join(kept).ljust(len(data[inside]), b"\0")
        at += _TAR_BLOCK * (1 + -(-int(size, 8) // _TAR_BLOCK))
    return bytes(found)


def _zip_list(data: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            rows = [(one.filename, one.file_size, one.CRC) for one in archive.infolist()]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        return data
    return repr(rows).encode()
