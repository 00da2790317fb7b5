"""Files that sandboxes stand on: stores in memory, committed layers, copies, digests, differences.

A store is a file system of its own, with a limit of bytes and inodes, that holds the upper folder
of one sandbox. Committing a sandbox turns its store into a layer; the sandbox gets a new one.

What lies in a store was chosen by an untrusted command: files of exabytes that hold nothing,
folders deeper than any path reaches, names of any bytes. So trees are walked folder by folder
through descriptors, and of a file only what it holds is read.

Files belong to host users. What the kernel counts for each user (inotify instances, memory of
pipes, passed descriptors) is shared by all sandboxes of one user. So each that starts from nothing,
and each folder of the host that others start on, gets a user of its own. Snapshots and forks have
that of what they stand on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

AREAS = ("workspace", "home", "tmp", "run", "shm", "vartmp")
"""The writable places of a sandbox, one folder each in every layer."""
MAX_LAYERS = 60
MAX_CHANGE_PATH = 4000
"""In bytes; a longer path cannot be opened. What lies deeper is one change of its folder."""
TRUSTED, USER = "trusted.overlay.", "user.overlay."
"""What marks of root's overlay begin with, and of a plain user's. In root's any command can set
attributes like the other's."""
_BLOCK, _PIECE = 4096, 1 << 20
_ZEROS = bytes(_BLOCK)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class TooManyChanges(ValueError):
    """A difference holds more than may be reported."""


def make_skeleton(folder: Path, owner: int) -> None:
    """Make the lowest layer of all: the ``owner``'s writable places, empty, with their modes."""
    folder.mkdir(mode=0o755)
    os.chown(folder, owner, owner)
    make_areas(str(folder), owner)


def make_areas(folder: str, owner: int) -> None:
    """Make the writable places of ``owner``, who finds those of another below."""
    for area in AREAS:
        os.mkdir(f"{folder}/{area}")
        os.chmod(f"{folder}/{area}", 0o1777 if area in ("tmp", "shm", "vartmp") else 0o755)
        os.chown(f"{folder}/{area}", owner, owner)


def import_folder(source: Path, target: str, owner: int) -> None:
    """Copy a folder of the host into the layer ``target`` as the workspace of its ``owner``.

    Devices, sockets and FIFOs are left out; set-uid bits are dropped.

    Raises:
        OSError: Something cannot be read, or there is no space.
    """
    make_skeleton(Path(target), owner)
    workspace = Path(target, "workspace")
    shutil.copytree(source, workspace, symlinks=True, ignore=special_files, dirs_exist_ok=True)
    for folder, folders, files in os.walk(workspace):
        os.chown(folder, owner, owner)
        os.chmod(folder, (os.stat(folder).st_mode & 0o755) | 0o700)
        for name in files:
            path = os.path.join(folder, name)
            os.lchown(path, owner, owner)
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & 0o755)
        for name in folders:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                os.lchown(path, owner, owner)


def special_files(folder: str, names: list[str]) -> list[str]:
    """Return which of the ``names`` in a folder are no file, folder or link, for `copytree`."""
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    kept = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name, mode in modes.items() if not any(test(mode) for test in kept)]


def _walk(root: str) -> Iterator[tuple[int, str, os.stat_result | None]]:
    """Yield descriptor of the folder, name and status of all below ``root``, folders first.

    Behind a folder's contents it comes again, without a status. No path is ever built, so any depth
    will do; of all folders only one is open.
    """
    folder = os.open(root, _FOLDER)
    above: list[tuple[str, Iterator[str]]] = []
    names = iter(sorted(os.listdir(folder)))
    try:
        while True:
            for name in names:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                yield folder, name, found
                if stat.S_ISDIR(found.st_mode):
                    above.append((name, names))
                    folder = _moved(folder, name)
                    names = iter(sorted(os.listdir(folder)))
                    break
            else:
                if not above:
                    return
                folder = _moved(folder, "..")
                name, names = above.pop()
                yield folder, name, None
    finally:
        os.close(folder)


def _moved(folder: int, name: str) -> int:
    """Return a descriptor of a neighbour of ``folder``, which is closed."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    finally:
        os.close(folder)


def _path(folder: int, name: str) -> str:
    """Return a path for calls that take no descriptor of a folder."""
    return f"/proc/self/fd/{folder}/{name}"


def merge(layers: list[str], target: str, marks: str = TRUSTED) -> None:
    """Write what stacked layers, topmost first, amount to as the new folder ``target``.

    The overlay's ``marks`` begin with `TRUSTED` or `USER`.

    Raises:
        OSError: Something cannot be copied.
    """
    os.mkdir(target)
    for layer in reversed(layers):  # from below, so that each replaces what it hides
        _copy_marks(layer, target, marks)
        folder = os.open(target, _FOLDER)
        try:
            for inside, name, found in _walk(layer):
                if found is None:
                    folder = _moved(folder, "..")
                    continue
                _make_room(folder, name, found, is_opaque(_path(inside, name), marks))
                _copy_entry(inside, name, found, folder, marks)
                if stat.S_ISDIR(found.st_mode):
                    folder = _moved(folder, name)
        finally:
            os.close(folder)


def _make_room(folder: int, name: str, coming: os.stat_result, is_opaque: bool) -> None:
    """Remove what an entry replaces; two folders become one unless the new one hides the old."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=folder)
    elif is_opaque or not stat.S_ISDIR(coming.st_mode):
        for inside, inner, status in _walk(_path(folder, name) + "/."):
            if status is None:
                os.rmdir(inner, dir_fd=inside)
            elif not stat.S_ISDIR(status.st_mode):
                os.unlink(inner, dir_fd=inside)
        os.rmdir(name, dir_fd=folder)


def _copy_entry(inside: int, name: str, found: os.stat_result, folder: int, marks: str) -> None:
    source, target = _path(inside, name), _path(folder, name)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(source), target)
        os.lchown(target, found.st_uid, found.st_gid)
        return
    if stat.S_ISDIR(found.st_mode):
        if not os.path.lexists(target):
            os.mkdir(target)
    elif stat.S_ISREG(found.st_mode):
        _copy_file(source, target)
    elif is_whiteout(found) or stat.S_ISFIFO(found.st_mode):
        os.mknod(target, found.st_mode, 0)
        return
    else:  # Sockets have no life without their process.
        return
    _copy_marks(source, target, marks)


def _copy_file(source: str, target: str) -> None:
    """Copy what a file holds; what it does not hold is not there in the copy either."""
    with open(source, "rb", buffering=0) as old, open(target, "xb", buffering=0) as new:
        os.truncate(new.fileno(), os.fstat(old.fileno()).st_size)
        for at, data in _held(old.fileno()):
            while data:
                written = os.pwrite(new.fileno(), data, at)
                data, at = data[written:], at + written


def _held(file: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of what a file holds, in pieces; holes are jumped over."""
    at, end = 0, os.fstat(file).st_size
    while at < end:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
        except OSError:
            return  # nothing but a hole is left
        stop = os.lseek(file, at, os.SEEK_HOLE)
        while at < stop:
            data = os.pread(file, min(_PIECE, stop - at), at)
            if not data:
                return
            yield at, data
            at += len(data)


def _copy_marks(source: str, target: str, marks: str) -> None:
    found = os.lstat(source)
    os.chown(target, found.st_uid, found.st_gid)
    os.chmod(target, stat.S_IMODE(found.st_mode))
    for name in os.listxattr(source, follow_symlinks=False):
        if name.startswith(marks):
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def is_whiteout(found: os.stat_result) -> bool:
    """Say whether an entry of an upper folder stands for a deletion."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def is_opaque(folder: str, marks: str = TRUSTED) -> bool:
    """Say whether the ``marks`` of an upper's folder hide what lies below it."""
    try:
        return os.getxattr(folder, marks + "opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


def changes(upper: str, limit: int, marks: str = TRUSTED) -> list[tuple[str, str]]:
    """Return path and ``written`` or ``deleted`` for an upper's workspace, read by its ``marks``.

    A folder counts when it is new or replaced; one that only leads to a change does not. Of one
    whose path is longer than `MAX_CHANGE_PATH` only the folder is reported.

    Raises:
        TooManyChanges: There are more than ``limit``; a long path counts as several.
    """
    found: list[tuple[str, str]] = []
    path, deep, count = "", 0, 0
    root = os.path.join(upper, "workspace")
    for folder, name, status in _walk(root) if os.path.isdir(root) else ():
        if status is None:
            deep, path = max(0, deep - 1), path if deep else path.rpartition("/")[0]
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        if deep:
            deep += is_folder
            continue
        place = f"{path}/{name}"
        is_far = is_folder and len(os.fsencode(place)) > MAX_CHANGE_PATH
        if not is_folder or is_far or is_opaque(_path(folder, name), marks):
            found.append((place[1:], "deleted" if is_whiteout(status) else "written"))
            count += 1 + len(place) // 200
        if count > limit:
            raise TooManyChanges(f"more than {limit} changes")
        if is_far:
            deep = 1
        elif is_folder:
            path = place
    return sorted(found)


def digest(layer: str, below: str, marks: str = TRUSTED) -> str:
    """Return SHA-256 over ``below``, the digest under it, and ``layer`` with its ``marks``."""
    whole = hashlib.sha256(below.encode())
    for folder, name, found in _walk(layer):
        content = b""
        if found is None:
            name, mode = "", b"end"
        else:
            mode = b"%o" % found.st_mode
            if stat.S_ISDIR(found.st_mode):
                content = b"opaque" if is_opaque(_path(folder, name), marks) else b""
            elif stat.S_ISREG(found.st_mode):
                content = _file_digest(_path(folder, name))
            elif stat.S_ISLNK(found.st_mode):
                content = os.fsencode(os.readlink(name, dir_fd=folder))
        for part in (os.fsencode(name), mode, content):
            whole.update(len(part).to_bytes(4, "big") + part)
    return whole.hexdigest()


def _file_digest(path: str) -> bytes:
    """Return SHA-256 over a file's size, where it holds blocks other than zeros, and those.

    So a hole and as many zeros give the same, and nothing has to be read to skip a hole.
    """
    data, places = hashlib.sha256(), hashlib.sha256()
    end = -1
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for start, piece in _held(file.fileno()):
            for at in range(0, len(piece), _BLOCK):
                block = piece[at : at + _BLOCK]
                if _ZEROS.startswith(block):
                    continue
                if start + at != end:
                    places.update(b"%d %d," % (end, start + at))
                end = start + at + len(block)
                data.update(block)
    return hashlib.sha256(b"%d " % size + places.digest() + data.digest()).digest()


def usage(store: str) -> tuple[int, int]:
    """Return bytes and inodes used in a store."""
    found = os.statvfs(store)
    used_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
    return used_bytes, found.f_files - found.f_ffree


FIRST = 1 << 30
"""Beyond the ranges that distributions hand out. The users of a launcher follow from its process
id, so no two that run at a time share one."""
EACH = 256
