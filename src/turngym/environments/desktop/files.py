"""Files inside a desktop, reached from outside without following any link made inside."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_libc = ctypes.CDLL(None)  # the two calls below change one thread, and Python has no others
MAX_FILE_BYTES = 16 << 20
MAX_ENTRIES = 2_000
MTIME_S = 1_767_225_600
"""Every file that we write was last changed then: 1 January 2026."""


def write_files(root: Path, home: str, files: Mapping[str, bytes | None]) -> None:
    """Write ``files`` by path below ``home`` of the file system at ``root``; None is a folder.

    They belong to whom the home belongs to, which is not us where we are root. The home must still
    be as we made it: nothing has run in it that makes links.
    """
    base = root / home.lstrip("/")
    with _as_owner_of(base):
        for name, data in files.items():
            path = base / name
            if data is None:
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for name in sorted(files, key=len, reverse=True):
            for path in (base / name, *(base / name).parents):
                if path == base:
                    break
                os.utime(path, (MTIME_S, MTIME_S))


@contextmanager
def _as_owner_of(path: Path) -> Iterator[None]:
    """Make files in this thread as the user that ``path`` belongs to, where we are root.

    Root itself is no user of the sandbox's, so the kernel lets it make no file there.
    """
    owner = path.stat()
    if os.geteuid() != 0:
        yield
        return
    _libc.setfsgid(owner.st_gid)
    _libc.setfsuid(owner.st_uid)
    try:
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(os.getegid())


def read_file(root: Path, home: str, path: str) -> bytes | None:
    """Return the file at ``path`` below ``home``; None when it is no plain file of sane size."""
    try:
        with _folder(root, f"{home}/{path}".rsplit("/", 1)[0]) as parent:
            return _read(parent, path.rsplit("/", 1)[-1])
    except OSError:
        return None


def read_tree(root: Path, home: str) -> dict[str, bytes | None]:
    """Return every file below ``home`` that is not hidden; folders, links and devices have None."""
    found: dict[str, bytes | None] = {}
    with _folder(root, home) as top:
        _collect(top, "", found)
    return found


def _collect(folder: int, prefix: str, found: dict[str, bytes | None]) -> None:
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith(".") or len(found) >= MAX_ENTRIES:
            continue
        path = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            found[path] = None
            below = os.open(entry.name, _FOLDER, dir_fd=folder)
            try:
                _collect(below, f"{path}/", found)
            finally:
                os.close(below)
        else:
            found[path] = _read(folder, entry.name)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _read(folder: int, name: str) -> bytes | None:
    try:
        file = os.open(name, _FILE, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(file, "rb") as stream:
        about = os.fstat(stream.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE_BYTES:
            return None
        return stream.read(MAX_FILE_BYTES + 1)


@contextmanager
def _folder(root: Path, path: str) -> Iterator[int]:
    """Open the folder at ``path`` below ``root``, one name at a time."""
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.strip("/").split("/"):
            if name in ("", "."):
                continue
            if name == "..":
                raise OSError("outside")
            below = os.open(name, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)
