"""Files that sandboxes stand on: stores in memory, sealed layers, copies, digests, differences.

A store is a file system of its own, with a limit of bytes and inodes, that holds the upper folder
of one sandbox. Sealing a sandbox turns its store into a layer; the sandbox gets a new one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

AREAS = ("workspace", "home", "tmp", "run", "shm", "vartmp")
"""The writable places of a sandbox, one folder each in every layer."""
MAX_LAYERS = 60
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


def make_skeleton(folder: Path, owner: int) -> None:
    """Make the lowest layer of all: the writable places, empty, with their modes."""
    folder.mkdir(mode=0o755)
    os.chown(folder, owner, owner)
    for area in AREAS:
        (folder / area).mkdir()
        (folder / area).chmod(0o1777 if area in ("tmp", "shm", "vartmp") else 0o755)
        os.chown(folder / area, owner, owner)


def import_folder(source: Path, layer: Path, owner: int) -> None:
    """Copy a folder of the host into ``layer`` as its workspace, owned by the sandbox's user.

    Devices, sockets and FIFOs are left out; set-uid bits are dropped.

    Raises:
        OSError: Something cannot be read, or there is no space.
    """
    layer.mkdir(mode=0o755)
    os.chown(layer, owner, owner)
    shutil.copytree(source, layer / "workspace", symlinks=True, ignore=_special_files)
    for folder, folders, files in os.walk(layer / "workspace"):
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


def _special_files(folder: str, names: list[str]) -> list[str]:
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    kept = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name, mode in modes.items() if not any(test(mode) for test in kept)]


def copy_upper(source: str, target: str) -> None:
    """Copy an upper folder with everything an overlay keeps there: whiteouts and opaque marks.

    Raises:
        OSError: Something cannot be copied.
    """
    os.mkdir(target)
    _copy_marks(source, target)
    with os.scandir(source) as entries:
        for entry in entries:
            path = os.path.join(target, entry.name)
            if entry.is_dir(follow_symlinks=False):
                copy_upper(entry.path, path)
            else:
                _copy_entry(entry, path)


def _copy_entry(entry: os.DirEntry[str], path: str) -> None:
    found = entry.stat(follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(entry.path), path)
        os.lchown(path, found.st_uid, found.st_gid)
    elif stat.S_ISREG(found.st_mode):
        shutil.copyfile(entry.path, path, follow_symlinks=False)
        _copy_marks(entry.path, path)
    elif is_whiteout(found) or stat.S_ISFIFO(found.st_mode):
        os.mknod(path, found.st_mode, 0)
    # Sockets have no life without their process.


def _copy_marks(source: str, target: str) -> None:
    found = os.lstat(source)
    os.chown(target, found.st_uid, found.st_gid)
    os.chmod(target, stat.S_IMODE(found.st_mode))
    for name in os.listxattr(source, follow_symlinks=False):
        if ".overlay." in name:
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def merge(layers: list[str], target: str) -> None:
    """Write into ``target`` what the stacked ``layers`` (topmost first) amount to as one layer.

    Raises:
        OSError: Something cannot be copied.
    """
    os.mkdir(target)
    for layer in reversed(layers):
        _merge_into(layer, target)


def _merge_into(source: str, target: str) -> None:
    if is_opaque(source):
        shutil.rmtree(target)
        os.mkdir(target)
    _copy_marks(source, target)
    with os.scandir(source) as entries:
        for entry in entries:
            path = os.path.join(target, entry.name)
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and os.path.isdir(path) and not os.path.islink(path):
                _merge_into(entry.path, path)
                continue
            was_there = os.path.lexists(path)
            if was_there:
                _remove(path)
            if is_folder:
                copy_upper(entry.path, path)
            else:
                _copy_entry(entry, path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def is_whiteout(found: os.stat_result) -> bool:
    """Say whether an entry of an upper folder stands for a deletion."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def is_opaque(folder: str) -> bool:
    """Say whether a folder of an upper hides what lies below it."""
    for name in _OPAQUE:
        try:
            if os.getxattr(folder, name) == b"y":
                return True
        except OSError:
            continue
    return False


def changes(upper: str, limit: int) -> list[tuple[str, str]]:
    """Return path and ``written`` or ``deleted`` for what an upper's workspace holds.

    A folder counts when it is new or replaced; one that only leads to a change does not.
    """
    root = os.path.join(upper, "workspace")
    found: list[tuple[str, str]] = []
    queue = [""]
    while queue and len(found) < limit:
        folder = queue.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, folder)), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            name = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                queue.append(name)
                if is_opaque(entry.path):
                    found.append((name, "written"))
            else:
                kind = "deleted" if is_whiteout(entry.stat(follow_symlinks=False)) else "written"
                found.append((name, kind))
    return sorted(found)


def digest(layer: str, below: str) -> str:
    """Return SHA-256 over ``below``, the digest of what lies under it, and all of ``layer``."""
    whole = hashlib.sha256(below.encode())
    queue = [""]
    while queue:
        folder = queue.pop()
        path = os.path.join(layer, folder)
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            found = entry.stat(follow_symlinks=False)
            name = os.path.join(folder, entry.name)
            content = b""
            if stat.S_ISDIR(found.st_mode):
                queue.append(name)
                content = b"opaque" if is_opaque(entry.path) else b""
            elif stat.S_ISREG(found.st_mode):
                with open(entry.path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            elif stat.S_ISLNK(found.st_mode):
                content = os.fsencode(os.readlink(entry.path))
            for part in (os.fsencode(name), b"%o" % found.st_mode, content):
                whole.update(len(part).to_bytes(4, "big") + part)
    return whole.hexdigest()


def usage(store: str) -> tuple[int, int]:
    """Return bytes and inodes used in a store."""
    found = os.statvfs(store)
    used_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
    return used_bytes, found.f_files - found.f_ffree
