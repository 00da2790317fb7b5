"""Run a command as a plain user who can still reach this interpreter, this package and a cache.

Root's interpreter often lives below /root, which nobody else may enter. So the command gets a mount
namespace in which such a folder is replaced by one that holds only what is needed.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

UID = 65534


def command(argv: list[str], cache: str | None = None, *, before: str = ":") -> list[str]:
    """Return what runs ``argv`` as a plain user; call it as root.

    Args:
        argv: The command; its first word may be ``sys.executable``.
        cache: Folder for TURNGYM_CACHE, made and handed over; None for a new one, which goes with
            this process.
        before: Shell commands that run first, still as root, in the mount namespace.
    """
    if cache is None:
        cache = tempfile.mkdtemp(prefix="turngym-plain-")
        atexit.register(shutil.rmtree, cache, ignore_errors=True)
    source = Path(__file__).resolve().parents[2]
    steps = ["set -e", f"mkdir -p {cache}", f"chown -R {UID}:{UID} {cache}", *_openings(source)]
    environment = ["env", f"TURNGYM_CACHE={cache}", f"HOME={cache}", f"PYTHONPATH={source}/src"]
    environment += ["PYTHONDONTWRITEBYTECODE=1", "XDG_RUNTIME_DIR="]
    drop = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--bounding-set=-all"]
    steps += [before, f"cd {cache}", f"exec {shlex.join([*drop, *environment, *argv])}"]
    return ["unshare", "--mount", "bash", "-c", "\n".join(steps)]


def _openings(source: Path) -> list[str]:
    """Return shell commands that make closed folders above what is needed enterable."""
    needed = {Path(sys.base_prefix), Path(sys.prefix), source}
    closed: dict[Path, set[Path]] = {}
    for path in needed:
        for parent in [*path.parents][::-1]:
            if not parent.stat().st_mode & 0o001:
                closed.setdefault(parent, set()).add(path)
                break
    steps = []
    for number, (folder, inside) in enumerate(closed.items()):
        aside = f"/run/turngym-aside-{os.getpid()}-{number}"
        steps += [f"mkdir -p {aside}", f"mount --bind {folder} {aside}"]
        steps += [f"mount -t tmpfs -o mode=755 none {folder}"]
        for path in inside:
            steps += [f"mkdir -p {path}", f"mount --bind {aside}/{path.relative_to(folder)} {path}"]
        steps += [f"umount {aside}", f"rmdir {aside}"]
    return steps
