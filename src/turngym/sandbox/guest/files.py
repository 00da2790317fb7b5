"""Read and write files as the sandbox sees them, so that no link in them leads to the host.

Paths are bytes: a name need not be text. Only regular files are read or written; a FIFO or device
is opened without waiting and then refused.
"""

import os
import stat

from turngym.sandbox.guest import wire

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
_MAX_PATH = 3500
"""Longer ones end below what the kernel takes once a name is added."""
PAGE_BYTES = 1 << 20
_ENTRY_BYTES = 40
_KINDS = {stat.S_IFREG: b"file", stat.S_IFDIR: b"dir", stat.S_IFLNK: b"link"}


def open_regular(path: bytes, flags: int, mode: int = 0) -> int:
    """Open ``path`` with these ``flags`` and ``mode``.

    Raises:
        OSError: It cannot be opened or is no regular file.
    """
    fd = os.open(path, flags, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(22, "not a regular file", path)
    return fd


def get(path: bytes, offset: int, length: int, follow: bool) -> "list[bytes]":
    """Return size, mode and ``length`` bytes from ``offset`` on; ``follow`` links or not."""
    fd = open_regular(path, _READ | (0 if follow else os.O_NOFOLLOW))
    try:
        found = os.fstat(fd)
        data = os.pread(fd, length, offset)
    finally:
        os.close(fd)
    return [wire.number(found.st_size), wire.number(found.st_mode & 0o777), data]


def put(path: bytes, offset: int, mode: int, data: bytes) -> "list[bytes]":
    """Write ``data``; at offset 0 the file starts anew with ``mode``, its folders are made."""
    if offset == 0:
        _make_folder(os.path.dirname(path))
    fd = open_regular(path, _WRITE | (os.O_TRUNC if offset == 0 else 0), mode)
    try:
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
    return []


def put_tree(root: bytes, entries: "list[bytes]") -> "list[bytes]":
    """Make ``entries`` below ``root``: kind, path, mode, content of folders, links, small files."""
    for at in range(0, len(entries), 4):
        kind, name, mode, content = entries[at : at + 4]
        path = os.path.join(root, name) if name else root
        if kind == b"dir":
            _make_folder(path)
            os.chmod(path, int(mode))
        elif kind == b"link":
            os.symlink(content, path)
        else:
            put(path, 0, int(mode), content)
    return []


def _make_folder(path: bytes) -> None:
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path.rstrip(b"/"))
    for one in reversed(missing):  # os.makedirs calls itself, and ends at a thousand folders
        os.mkdir(one)


def walk(root: bytes, max_entries: int, max_depth: int):  # type: ignore[no-untyped-def]  # an iterator of lists
    """Yield what is below ``root`` in pages: kind, path, mode, size and link target, repeated.

    Kinds are ``file``, ``dir``, ``link``, ``other`` (skipped by callers), ``deep`` (a folder below
    ``max_depth`` or that cannot be read; nothing in it is listed) and ``gone`` (it was there a
    moment ago). One entry more than ``max_entries`` says that there are more.
    """
    page: list[bytes] = []
    size = count = 0
    queue = [(b"", 0)]
    while queue:
        folder, depth = queue.pop()
        for entry in _entries(os.path.join(root, folder) if folder else root, not folder):
            name = folder + b"/" + entry if folder else entry
            found = _describe(os.path.join(root, name), depth < max_depth)
            if found[0] == b"dir":
                queue.append((name, depth + 1))
            page += [found[0], name, *found[1:]]
            size += len(name) + len(found[3]) + _ENTRY_BYTES
            count += 1
            if count > max_entries:
                yield page
                return
            if size > PAGE_BYTES:
                yield page
                page, size = [], 0
    if page:
        yield page


def _describe(path: bytes, is_near: bool) -> "tuple[bytes, bytes, bytes, bytes]":
    """Return kind, mode, size and link target of what is at ``path``."""
    target = b""
    try:
        info = os.lstat(path)
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), b"other")
        if kind == b"link":
            target = os.readlink(path)
    except OSError:
        return b"gone", b"0", b"0", b""
    if kind == b"dir" and not (
        is_near and len(path) < _MAX_PATH and os.access(path, os.R_OK | os.X_OK)
    ):
        kind = b"deep"
    size = info.st_size if kind == b"file" else 0
    return kind, wire.number(info.st_mode & 0o777), wire.number(size), target


def _entries(path: bytes, is_root: bool) -> "list[bytes]":
    try:
        return sorted(os.listdir(path))
    except OSError:
        if is_root:
            raise
        return []
