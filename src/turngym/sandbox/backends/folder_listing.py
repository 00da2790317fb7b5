"""What a folder holds, for back ends that find out changes by comparing."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from turngym.sandbox.base import Change

Manifest = dict[str, tuple[int, str]]
"""Relative path to mode and, for a file or link, a digest of its contents."""


def manifest(folder: Path) -> Manifest:
    """Return paths, modes and digests of all below ``folder``; special files have no digest."""
    found: Manifest = {}
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(mode):
                content = Path(path).read_bytes()
            digest = hashlib.sha256(content).hexdigest() if content else ""
            found[os.path.relpath(path, folder)] = (mode, digest)
    return found


def difference(before: Manifest, now: Manifest) -> list[Change]:
    """Return what was written and deleted; a folder counts only when something in it does."""
    changes = [
        Change(path=path, kind="written")
        for path, entry in now.items()
        if before.get(path) != entry and not stat.S_ISDIR(entry[0])
    ]
    changes += [
        Change(path=path, kind="deleted")
        for path, entry in before.items()
        if path not in now and not stat.S_ISDIR(entry[0])
    ]
    return sorted(changes, key=lambda change: change.path)


def digest(found: Manifest) -> str:
    """Return SHA-256 over a manifest."""
    whole = hashlib.sha256()
    for path, (mode, content) in sorted(found.items()):
        for part in (os.fsencode(path), b"%o" % mode, content.encode()):
            whole.update(len(part).to_bytes(4, "big") + part)
    return whole.hexdigest()
