"""Start one bubblewrap as the user of sandboxes: the way in for what the launcher does not keep.

A program of its own that turns into bubblewrap, so the owner's threads never change who they are.
Root's caches may lie below folders that only root enters; so they are shown to the other user in a
mount namespace that ends with the sandbox.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from turngym.sandbox.launcher import mounts

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
"""All that a sandbox can tell about the host's environment."""


def become(command: list[str], owner: int | None) -> None:
    """Turn this process into ``command``, without a privilege or a way to gain one.

    ``owner`` is the host user to become, None to stay who we are.

    Raises:
        OSError: The kernel refuses, or there is no such program.
    """
    if owner is not None:
        os.setgroups([])
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)
    mounts.forbid_new_privileges()
    os.chdir("/")
    os.execvpe(command[0], command, ENVIRONMENT)


def show(base: str, folders: dict[str, str]) -> None:
    """Mount ``folders`` (name: source) below ``base``, for this process and its children only.

    Raises:
        OSError: The kernel refuses.
    """
    Path(base).mkdir(parents=True, exist_ok=True, mode=0o755)
    mounts.enter_private_namespace(as_root=True)
    mounts.mount_tmpfs(base, num_bytes=1 << 20, inodes=64)
    for name, source in folders.items():
        os.mkdir(f"{base}/{name}")
        mounts.bind_read_only(source, f"{base}/{name}")


def main() -> None:
    """Start what the last argument asks for, as JSON."""
    settings = json.loads(sys.argv[-1])
    try:
        if settings["owner"] is not None:
            show(settings["base"], settings["folders"])
        become(settings["command"], settings["owner"])
    except OSError as error:
        sys.stderr.write(f"cannot start bwrap: {error}\n")
        os._exit(1)
