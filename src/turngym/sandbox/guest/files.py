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
_KINDS = {stat.S_IFREG: b"file", stat.S_IFDIR: b"dir", stat.S_IFLNK: b"link"}


def open_regular(path: bytes, flags: int, mode: int = 0) -> int:
    """Open ``path``.

    Raises:
        OSError: It cannot be opened or is no regular file.
    """
    fd = os.open(path, flags, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(22, "not a regular file", path)
    return fd


def get(path: bytes, offset: int, length: int, follow: bool) -> "list[bytes]":
    """Return size, mode and ``length`` bytes of a file from ``offset`` on."""
    fd = open_regular(path, _READ | (0 if follow else os.O_NOFOLLOW))
    try:
        found = os.fstat(fd)
        data = os.pread(fd, length, offset)
    finally:
        os.close(fd)
    return [wire.number(found.st_size), wire.number(found.st_mode & 0o777), data]


def put(path: bytes, offset: int, mode: int, data: bytes) -> "list[bytes]":
    """Write ``data`` into a file; at offset 0 the file starts anew and its folders are made."""
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
    """Make folders, links and small files below ``root``: kind, path, mode, content, repeated."""
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
    if path:
        os.makedirs(path, exist_ok=True)


def walk(root: bytes, max_entries: int, max_depth: int) -> "list[bytes]":
    """Return what is below ``root``: kind, path, mode, size and link target, repeated.

    Kinds are ``file``, ``dir``, ``link``, ``other`` (skipped by callers) and ``deep`` (a folder
    below ``max_depth`` or that cannot be read; nothing in it is listed). One entry more than
    ``max_entries`` says that there are more.
    """
    found: list[bytes] = []
    queue = [(b"", 0)]
    while queue:
        folder, depth = queue.pop()
        for entry in _entries(os.path.join(root, folder) if folder else root, not folder):
            name = folder + b"/" + entry if folder else entry
            path = os.path.join(root, name)
            try:
                info = os.lstat(path)
            except OSError:
                continue  # gone since it was listed
            kind = _KINDS.get(stat.S_IFMT(info.st_mode), b"other")
            is_near = depth < max_depth and len(path) < _MAX_PATH
            if kind == b"dir" and is_near and os.access(path, os.R_OK | os.X_OK):
                queue.append((name, depth + 1))
            elif kind == b"dir":
                kind = b"deep"
            target = os.readlink(path) if kind == b"link" else b""
            size = info.st_size if kind == b"file" else 0
            found += [kind, name, wire.number(info.st_mode & 0o777), wire.number(size), target]
            if len(found) > 5 * max_entries:
                return found
    return found


def _entries(path: bytes, is_root: bool) -> "list[bytes]":
    try:
        return sorted(os.listdir(path))
    except OSError:
        if is_root:
            raise
        return []
