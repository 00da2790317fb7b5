"""The workspace of an environment as its problem sees it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from turngym.environments.workspace.host import SandboxHost
from turngym.errors import SandboxFileError, TaskFault
from turngym.sandbox.backends.bubblewrap_command import WRITABLE
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.tasks.problem import Keep, Ran

_PREPARE_S = 30.0
_MOST_OUTPUT = 1 << 18
_MOST_BYTES, _MOST_FILES = 64 << 20, 10_000
"""Of what is collected."""
_PLACES = [place for _, place in WRITABLE]
Files = Mapping[str, bytes | None]
LARGE = b"\0too large: "
_CLEAR = """exec 2> /dev/null
find "$@" -type d ! -perm -700 -exec chmod u+rwx {} ';'
find "$@" -mindepth "$0" -delete
find "$@" -mindepth "$0" -print -quit"""
"""Prints one of what is left of its arguments, which is nothing."""
_SUM_S = 10
_SUM = ("/usr/bin/bash", "-c", f'stat -c %s -- "$0"; timeout {_SUM_S} sha256sum < "$0"')


async def summed(sandbox: GuestSandbox, path: str) -> bytes:
    """Return what stands for a file that is too large to be read: ``LARGE``, size and SHA-256.

    The digest is missing where the file seems to hold more than can be read in ten seconds.
    """
    ran = await sandbox.exec([*_SUM, path], timeout_s=2 * _SUM_S, max_output=1_000)
    return LARGE + ran.stdout


class StartWorld:
    """The workspace while its problem is set up; a ``FileWorld``.

    Args:
        sandbox: Where the agent will act.
    """

    answer: str | None = None

    def __init__(self, sandbox: GuestSandbox) -> None:
        self.sandbox = sandbox

    async def files(self) -> Mapping[str, bytes]:
        """Return what was written so far."""
        changes = await self.sandbox.diff()
        found = {change.path: await self.read(change.path) for change in changes}
        return {path: data for path, data in found.items() if data is not None}

    async def changes(self) -> Files:
        """Return nothing: the episode has not begun."""
        return {}

    async def read(self, path: str) -> bytes | None:
        """Return a regular file, None where there is none."""
        try:
            return await self.sandbox.read_file(path, max_bytes=_MOST_BYTES)
        except SandboxFileError:
            return None

    async def write(self, path: str, data: bytes) -> None:
        """Write a file."""
        await self.sandbox.write_file(path, data)

    async def run(
        self,
        command: str,
        *,
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        keep: Keep = "everything",
    ) -> Ran:
        """Run a command where the agent will act; collect and keep as in ``FileWorld.run``."""
        for path, data in (files or {}).items():
            await self.sandbox.write_file(path, data, mode=0o755)
        result = await self.sandbox.exec(
            command, timeout_s=timeout_s, env=env, max_output=_MOST_OUTPUT
        )
        return Ran(
            exit_code=result.exit_code,
            output=result.stdout.decode("utf-8", "replace"),
            errors=result.stderr.decode("utf-8", "replace"),
            files=await _collected(self.sandbox, collect),
            timed_out=result.timed_out,
        )


class EndWorld(StartWorld):
    """The workspace as a judge sees it: files as they are, commands in a sandbox of their own.

    Args:
        sandbox: Where the agent acted; nothing runs there any more.
        host: Makes sandboxes of the judge's own.
        found: Regular files that are there, as far as they were ever written; None where one is
            gone.
        before: The same at the start of the episode.
        open_copy: Starts a sandbox on a copy of the agent's files, or on none.
        private: Places that are emptied first.
    """

    def __init__(
        self,
        sandbox: GuestSandbox,
        *,
        host: SandboxHost,
        found: Files,
        before: Files,
        open_copy: Callable[[Keep], Awaitable[GuestSandbox]],
        private: Sequence[str] = (),
    ) -> None:
        super().__init__(sandbox)
        self.host, self.found = host, found
        self._private, self._before, self._open_copy = private, before, open_copy

    @cached_property
    def _changes(self) -> Files:
        paths = {*self.found, *self._before}
        pairs = {path: (self.found.get(path), self._before.get(path)) for path in paths}
        return {path: now for path, (now, then) in pairs.items() if now != then}

    async def files(self) -> Mapping[str, bytes]:
        return {path: data for path, data in self.found.items() if data is not None}

    async def changes(self) -> Files:
        return self._changes

    async def write(self, path: str, data: bytes) -> None:
        """Refuse: a judge changes nothing.

        Raises:
            TaskFault: Always.
        """
        raise TaskFault(f"a judge writes {path!r}; give it to 'run' as one of its files")

    async def run(
        self,
        command: str,
        *,
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        keep: Keep = "folder",
    ) -> Ran:
        """Run a command where the agent has never been.

        Of the agent's there are files only, as ``keep`` says, and no process.
        """
        sandbox = await self._open_copy(keep)
        try:
            if keep == "folder":
                places = [place for place in _PLACES if place != "/workspace"]
                await _clear(sandbox, places, is_inside=True)
            # What the agent put in the way of the judge's own files is no part of its work.
            await _clear(sandbox, [*self._private, *(files or {})])
            return await StartWorld(sandbox).run(
                command, files=files, collect=collect, env=env, timeout_s=timeout_s
            )
        finally:
            await sandbox.close()


async def _clear(sandbox: GuestSandbox, paths: Sequence[str], *, is_inside: bool = False) -> None:
    """Remove what is at ``paths``, or inside of them, whatever modes it was given."""
    if not paths:
        return
    parents = [one for path in paths for one in reversed(PurePosixPath(path).parents)]
    above = dict.fromkeys(map(str, parents))
    await sandbox.exec(["/usr/bin/chmod", "u+rwx", "--", *above], timeout_s=_PREPARE_S)
    names = [path if path.startswith("/") else f"./{path}" for path in paths]
    script = ["/usr/bin/bash", "-c", _CLEAR, str(int(is_inside)), *names]
    ran = await sandbox.exec(script, timeout_s=_PREPARE_S)
    if ran.timed_out or ran.stdout:
        left = ran.stdout.decode("utf-8", "replace").strip() or "too much"
        raise RuntimeError(f"what the agent left where the judge works cannot be removed: {left}")


async def _collected(sandbox: GuestSandbox, paths: Sequence[str]) -> dict[str, bytes]:
    """Return the files at ``paths``, of a folder all below it, by their paths there."""
    found: dict[str, bytes] = {}
    for path in paths:
        kind = await sandbox.exec(f"test -d {shlex.quote(path)}", timeout_s=_PREPARE_S)
        if kind.exit_code != 0:
            data = await StartWorld(sandbox).read(path)
            found |= {} if data is None else {path: data}
            continue
        tree = await tree_of(sandbox, path, max_bytes=_MOST_BYTES, max_files=_MOST_FILES)
        found |= {f"{path.rstrip('/')}/{name}": data for name, data in tree.items()}
    return found


async def tree_of(
    sandbox: GuestSandbox, path: str, *, max_bytes: int, max_files: int
) -> dict[str, bytes]:
    """Return the regular files below a folder by their paths in it."""
    with TemporaryDirectory(prefix="turngym-collected-") as folder:
        target = Path(folder, "tree")
        await sandbox.get_tree(path, target, max_bytes=max_bytes, max_files=max_files)
        return await asyncio.to_thread(_regular_files, target)


def _regular_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
