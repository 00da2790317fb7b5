"""The back ends of this process, each shared by all environments with a workspace on it.

``lease`` gives one, ``release`` gives it back; the last release closes every sandbox and layer.
Folders are imported once and shared by all that start from them. May be used from several event
loops; a sandbox belongs to the loop that started it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

from turngym.environments.folders import OwnedFolder
from turngym.errors import EnvironmentFault, SandboxRefused
from turngym.sandbox.backends.bubblewrap import BubblewrapBackend
from turngym.sandbox.backends.docker import DockerBackend
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef, Limits, ReadOnlyMount, SandboxSpec
from turngym.shared_resource import SharedResource
from turngym.tasks.problem import Machine

T = TypeVar("T")
Delta = Mapping[str, bytes | None]
"""Changes to a workspace: path to new contents, None where a file is removed."""
BackendName = Literal["bubblewrap", "docker"]
TOOLS = "/opt/tools"
"""Where a sandbox sees the folder of Python packages that it is given."""
LIMITS = Limits(
    memory_bytes=1 << 30, pids=128, cpus=1.0, disk_bytes=256 << 20, inodes=50_000,
    enforce="best_effort",
)  # fmt: skip
"""Of every workspace; held exactly where there is a cgroup, watched elsewhere."""
ENV = {"LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "TZ": "UTC"}


async def put_delta(sandbox: GuestSandbox, delta: Delta) -> None:
    """Make the changes of ``delta``.

    Raises:
        EnvironmentFault: A file cannot be removed.
    """
    gone = [path for path, data in delta.items() if data is None]
    folders = {str(folder) for path in gone for folder in PurePosixPath(path).parents}
    gone += [path for path, data in delta.items() if data is not None and path in folders]
    if gone:
        result = await sandbox.exec(["/usr/bin/rm", "-rf", "--", *gone], timeout_s=30.0)
        if not result.ok:
            raise EnvironmentFault(f"cannot remove {gone[0]!r} in a fresh sandbox")
    for path, data in delta.items():
        if data is not None:
            await sandbox.write_file(path, data)


@asynccontextmanager
async def closed_on_failure(sandbox: GuestSandbox) -> AsyncIterator[None]:
    """Close the sandbox where the block that fills it fails or is cancelled."""
    try:
        yield
    except BaseException:
        await sandbox.close()
        raise


class _StoppedError(Exception):
    """Who made what others wait for was cancelled."""


class SandboxHost(SharedResource):
    """One back end of this process and what was imported into it.

    Raises:
        MissingExtraError: The back end needs what is not installed.
    """

    def __init__(self, name: BackendName) -> None:
        self._backend = BubblewrapBackend() if name == "bubblewrap" else DockerBackend()
        self._claims = threading.Lock()
        self._made: dict[str, Future[Any]] = {}
        self._mounts: dict[str, OwnedFolder] = {}

    async def release(self) -> None:
        """Give a lease back; the last one ends everything."""
        if not self._end_lease():
            return
        try:
            await self._backend.close()
        finally:
            for folder in self._mounts.values():
                await asyncio.to_thread(folder.remove)

    async def start(
        self,
        layer: LayerRef | None,
        *,
        limits: Limits = LIMITS,
        tools: Path | None = None,
        paths: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        machine: Machine | None = None,
    ) -> GuestSandbox:
        """Start a sandbox.

        Args:
            layer: What its workspace holds; None for nothing.
            limits: What it may use.
            tools: Folder of Python packages to import.
            paths: Folders of the workspace that Python imports from, before ``tools``.
            env: More variables of every command.
            machine: What its problem needs besides.
        """
        mounts: Sequence[ReadOnlyMount] = ()
        machine = machine or Machine()
        env = {**ENV, **(env or {}), **machine.env}
        if tools is not None:
            folder = await asyncio.to_thread(self._mountable, tools)
            mounts = [ReadOnlyMount(source=folder, target=TOOLS)]
            env["PYTHONPATH"] = ":".join([*paths, TOOLS])
            env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # half of the time of a small suite
        sizes = {name: getattr(machine, name) for name in ("memory_bytes", "disk_bytes", "cpus")}
        limits = replace(limits, **{name: size for name, size in sizes.items() if size})
        spec = SandboxSpec(
            workspace=layer, limits=limits, env=env, mounts=mounts, links=machine.links
        )
        return await self._backend.start(spec)

    async def layer(self, key: str, fill: Callable[[Path], None]) -> LayerRef:
        """Return the layer called ``key``, made from what ``fill`` writes when there is none."""
        return await self.shared(key, lambda: self._import(fill))

    async def image_layer(self, image: str, folder: str) -> LayerRef:
        """Return the layer whose workspace is what ``folder`` of an image holds; ``docker`` only.

        Raises:
            SandboxRefused: There is no engine, no such image, or no such folder in it.
        """
        backend = self._backend
        assert isinstance(backend, DockerBackend)
        return await self.shared(f"{image} {folder}", lambda: backend.adopt(image, folder))

    async def shared(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return what is called ``key``; the first caller makes it, the others wait.

        Where the first is cancelled, the next one makes it.

        Args:
            key: Names it for the life of the host.
            make: Makes it, in the event loop of the caller.
        """
        made: Future[T] = Future()
        while (found := self._claim(key, made)) is not None:
            try:
                return await asyncio.wrap_future(found)
            except _StoppedError:
                continue
        try:
            result = await make()
        except BaseException as error:
            with self._claims:
                self._made.pop(key, None)
            made.set_exception(error if isinstance(error, Exception) else _StoppedError(key))
            made.exception()  # retrieved, should no one else wait
            raise
        made.set_result(result)
        return result

    def _claim(self, key: str, made: Future[Any]) -> Future[Any] | None:
        """Return what is made for ``key`` already; None where ``made`` takes the place."""
        with self._claims:
            found = self._made.setdefault(key, made)
        return None if found is made else found

    async def drop(self, layer: LayerRef) -> None:
        """Forget a snapshot."""
        await self._backend.drop(layer)

    async def _import(self, fill: Callable[[Path], None]) -> LayerRef:
        with tempfile.TemporaryDirectory(prefix="turngym-work-") as name:
            await asyncio.to_thread(fill, Path(name))
            return await self._backend.import_folder(Path(name))

    def _mountable(self, folder: Path) -> Path:
        """Return a copy of ``folder`` that the sandbox's user can reach: a home may be closed."""
        with self._claims:
            if str(folder) not in self._mounts:
                self._mounts[str(folder)] = _copied(folder)
            return self._mounts[str(folder)].path


def _copied(folder: Path) -> OwnedFolder:
    copy = OwnedFolder("tools")
    try:
        shutil.copytree(folder, copy.path, dirs_exist_ok=True)
        copy.path.chmod(0o755)
    except OSError as error:
        copy.remove()
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        place = str(copy.path.parent)
        raise SandboxRefused(
            f"{str(folder)!r} cannot be copied", str(reason)[:200],
            f"Free some space in {place!r}, or set TMPDIR",
        ) from None  # fmt: skip
    return copy
