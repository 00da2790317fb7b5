"""Containers of Docker Engine, or of Podman through its compatible socket.

The guest is process 1 of the container and talks through the one attached connection: a command
costs what it costs in bubblewrap, not a call of the engine. When the owner is gone so is that
connection, and the container ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from turngym.errors import (
    SandboxClosed,
    SandboxDied,
    SandboxFileTooLarge,
    SandboxRefused,
    SandboxUnavailable,
    SnapshotError,
)
from turngym.plugins import import_extra
from turngym.sandbox.backends import docker_engine, refusals
from turngym.sandbox.backends.channel import Channel, SocketStream
from turngym.sandbox.backends.docker_engine import OWNER_LABEL, UID, Client, creation, held_limits
from turngym.sandbox.backends.guest_sandbox import GuestSandbox, layer_of, settled
from turngym.sandbox.base import (
    Capabilities,
    Change,
    Enforcement,
    Isolation,
    LayerRef,
    Limits,
    Quota,
    SandboxSpec,
)
from turngym.sandbox.launcher import cgroups
from turngym.sandbox.trees import digest, manifest

MAX_PARALLEL_CALLS = 8
"""An engine saturates from a few dozen calls at once; more wait here."""
_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
_T = TypeVar("_T")


class FramedStream(SocketStream):
    """The attached connection of a container: what it sends comes in frames with a header."""

    def __init__(self, attached: Any) -> None:  # the client's, which keeps its response open
        super().__init__(attached._sock)
        self._attached = attached
        self._payload = bytearray()

    async def read_exactly(self, size: int) -> bytes:
        while len(self._payload) < size:
            header = await super().read_exactly(8)
            data = await super().read_exactly(int.from_bytes(header[4:], "big"))
            if header[0] == 1:  # standard error is not for us
                self._payload += data
        taken = bytes(self._payload[:size])
        del self._payload[:size]
        return taken

    def close(self) -> None:
        super().close()
        self._attached.close()


def _let_go(attached: Any) -> None:  # see FramedStream
    attached._sock.close()
    attached.close()


class DockerBackend:
    """Makes containers of a local engine. May be used from several event loops."""

    name = "docker"
    isolation: Isolation = "standard"

    def __init__(self, *, base_url: str = "", quota: Quota | None = None) -> None:
        """Make the back end; the engine is asked when first needed.

        Its socket is ``base_url``, or else that of DOCKER_HOST or in the usual places.

        Raises:
            MissingExtraError: The client library is not installed.
        """
        self._docker = import_extra("docker", "sandbox 'docker'", "docker")
        self.base_url = base_url or os.environ.get("DOCKER_HOST") or _default_socket()
        self.quota = quota or Quota()
        self._client: Client = None
        self._traits: dict[str, bool] = {}
        """What `creation` must know of the engine."""
        self._gate = asyncio.Semaphore(MAX_PARALLEL_CALLS)
        self._images: dict[str, str] = {}
        self._layers: set[str] = set()
        self._adopted: set[str] = set()
        self._garbage: set[str] = set()
        self._open: set[DockerSandbox] = set()
        self._is_closed = False
        self._capabilities: Capabilities | None = None

    async def call(self, act: Callable[[], _T]) -> _T:
        """Run a blocking call of the engine's client in a thread.

        Raises:
            SandboxUnavailable: The engine failed.
        """
        try:
            return await asyncio.to_thread(act)
        except (self._docker.errors.DockerException, OSError) as error:
            text = str(error)
            text = text if len(text) < 600 else f"{text[:300]} ... {text[-200:]}"
            raise SandboxUnavailable(f"the engine at {self.base_url}: {text}") from None

    async def client(self) -> Client:
        """Return the connected client.

        Raises:
            SandboxRefused: No engine answers.
            SandboxClosed: The back end was closed.
        """
        if self._is_closed:
            raise SandboxClosed("back end 'docker' is closed")
        if self._client is None:
            if not self.base_url.startswith("unix://"):
                raise SandboxRefused(
                    "'docker' needs an engine on this machine", f"found {self.base_url!r}",
                    "Set DOCKER_HOST=unix:///path/of/its/socket",
                )  # fmt: skip
            try:
                self._client, self._traits = await asyncio.to_thread(self._connect)
            except (self._docker.errors.DockerException, OSError) as error:
                raise SandboxRefused(
                    "no container engine answers", f"{self.base_url}: {error}"[:300],
                    "Start Docker, or Podman with 'podman system service', and set DOCKER_HOST",
                ) from None  # fmt: skip
        return self._client

    def _connect(self) -> tuple[Client, dict[str, bool]]:
        # Tried first without the client, which leaves a socket open when no engine answers.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(self.base_url.removeprefix("unix://"))
        client = self._docker.DockerClient(base_url=self.base_url, timeout=120, max_pool_size=64)
        components = client.version().get("Components") or [{}]
        security = str(client.info().get("SecurityOptions"))
        return client, {
            "podman": "podman" in str(components[0].get("Name", "")).lower(),
            # Without the host's root only newer kernels let an engine set limits of System V.
            "system_v": "rootless" not in security and "userns" not in security,
        }

    async def probe(self) -> Capabilities:
        """See `Backend.probe`. Found out once."""
        if self._capabilities is None:
            sandbox = await self.start(SandboxSpec(limits=Limits(enforce="best_effort")))
            self._capabilities = Capabilities(
                isolation=self.isolation,
                limits=sandbox.enforced,
                gaps=frozenset(("command line", "deep folders", "spared commands")),
                evidence=sandbox.evidence,
            )
            await sandbox.close()
        return self._capabilities

    async def start(self, spec: SandboxSpec) -> DockerSandbox:
        if spec.links:
            raise SandboxRefused(
                "'docker' makes no links", f"{sorted(spec.links)}", "Use 'bubblewrap'"
            )
        layer = layer_of(spec, self._layers)
        return await self.start_on(spec, layer or await self._image(spec.image))

    async def _image(self, name: str) -> str:
        client = await self.client()
        if name not in self._images:
            self._images[name] = await self.call(lambda: docker_engine.prepared(client, name))
        return self._images[name]

    async def start_on(self, spec: SandboxSpec, image: str) -> DockerSandbox:
        """Start a container of an image that has a workspace."""
        client = await self.client()
        give_back = self.quota.take(spec.limits)
        container: Any = None  # of the client
        creating = asyncio.ensure_future(self._create(client, spec, image))
        try:
            container = await asyncio.shield(creating)
            sandbox = await self._started(client, spec, container)
        except BaseException:
            await asyncio.shield(self._undo(creating))
            give_back()
            raise
        self._open.add(sandbox)
        sandbox.when_closed += [give_back, lambda: self._open.discard(sandbox)]
        return sandbox

    async def _create(self, client: Client, spec: SandboxSpec, image: str) -> Any:
        async with self._gate:
            return await self.call(
                lambda: client.containers.create(
                    image, **creation(spec, self._docker.types.Ulimit, **self._traits)
                )
            )

    async def _undo(self, creating: asyncio.Future[Any]) -> None:
        with contextlib.suppress(SandboxUnavailable):
            await self.remove(await creating)

    async def _started(self, client: Client, spec: SandboxSpec, container: Any) -> DockerSandbox:
        async with self._gate:
            attached = await self._attach_and_start(client, container)
        channel = Channel(FramedStream(attached), container.id[:12])
        try:
            facts = await channel.open()
        except SandboxDied as error:
            raise SandboxUnavailable(
                f"container {container.id[:12]} did not come up: {error}"
            ) from None
        try:
            await self.call(container.reload)
            evidence = refusals.check_greeting(
                facts, spec, host_uid=UID, wanted_uid=UID, own_user=False,
                system_v=self._traits["system_v"],
            )  # fmt: skip
            enforced, oom_file = held_limits(int(container.attrs["State"]["Pid"]), spec.limits)
            missing = [name for name, how in enforced.items() if how != "exact"]
            if missing and spec.limits.enforce == "strict":
                raise SandboxRefused(
                    f"the limits cannot be held here: {', '.join(missing)}",
                    "an engine does not bound what a container writes",
                    "Set Limits(enforce='best_effort') and see Sandbox.enforced, or use "
                    "'bubblewrap'",
                )
            return DockerSandbox(self, spec, container, channel, enforced, oom_file, evidence)
        except BaseException:
            await channel.close()
            raise

    async def _attach_and_start(self, client: Client, container: Any) -> Any:
        """Return the connection of a container that runs; none is left open when it does not."""

        def work() -> Any:
            parameters = {"stdin": 1, "stdout": 1, "stream": 1}
            attached = client.api.attach_socket(container.id, parameters)
            try:
                container.start()
            except BaseException:
                _let_go(attached)
                raise
            return attached

        starting = asyncio.ensure_future(self.call(work))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])  # a thread cannot be stopped
            if starting.exception() is None:
                _let_go(starting.result())
            raise

    async def remove(self, container: Any) -> None:
        """Remove a container, also one that is just being removed or will not die at once."""
        not_found = self._docker.errors.NotFound
        for attempt in range(5):
            try:
                await asyncio.to_thread(container.remove, force=True, v=True)
                break
            except not_found:
                break
            except (self._docker.errors.APIError, OSError):
                await asyncio.sleep(0.2 * (attempt + 1))
        await self._collect()

    async def commit(self, container: Any) -> str:
        """Return the id of an image with the files of a container."""
        async with self._gate:
            return str((await self.call(lambda: container.commit(pause=True))).id)

    async def layer_ref(self, image: str) -> LayerRef:
        """Return the handle of a committed image; its layers' digests say what is in it."""
        client = await self.client()
        layers = await self.call(lambda: client.images.get(image).attrs["RootFS"]["Layers"])
        self._layers.add(image)
        return LayerRef(id=image, backend=self.name, digest=layers[-1])

    async def import_folder(self, folder: Path) -> LayerRef:
        """See `Backend.import_folder`."""
        client, image = await self.client(), await self._image("host")

        def work() -> tuple[str, str]:
            if not folder.is_dir():
                raise SnapshotError(f"import_folder: not a folder: {str(folder)!r}")
            archive = docker_engine.folder_archive(folder)
            made = docker_engine.commit_with(client, image, {"/workspace": archive})
            return made, digest(manifest(folder))

        made, found = await self.call(work)
        self._layers.add(made)
        return LayerRef(id=made, backend=self.name, digest=found)

    async def adopt(self, image: str, folder: str) -> LayerRef:
        """Return the layer whose workspace is what ``folder`` of an image holds.

        It is made once and kept by the engine, as images are.

        Raises:
            SandboxRefused: There is no such image, or no such folder in it.
        """
        client = await self.client()
        made = await self.call(lambda: docker_engine.adopted(client, image, folder))
        layer = await self.layer_ref(made)
        self._adopted.add(made)
        return layer

    async def drop(self, layer: LayerRef) -> None:
        await self.forget(layer.id)

    async def forget(self, image: str) -> None:
        """Remove an image as soon as no container needs it."""
        self._layers.discard(image)
        if image not in self._adopted:
            self._garbage.add(image)
        await self._collect()

    async def _collect(self) -> None:
        if self._client is None:
            return
        for image in list(self._garbage):
            try:
                await asyncio.to_thread(self._client.images.remove, image, noprune=True)
            except self._docker.errors.NotFound:
                pass
            except (self._docker.errors.APIError, OSError):
                continue  # a container still stands on it
            self._garbage.discard(image)

    async def sweep(self) -> int:
        """See `Backend.sweep`. Containers carry their owner as a label."""
        client = await self.client()
        found = await self.call(
            lambda: client.containers.list(all=True, filters={"label": OWNER_LABEL})
        )
        count = 0
        for container in found:
            if cgroups.is_gone(container.labels.get(OWNER_LABEL, "")):
                await self.remove(container)
                count += 1
        return count

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)))
        self._garbage |= self._layers - self._adopted
        await self._collect()
        self._is_closed = True
        if self._client is not None:
            await asyncio.to_thread(self._client.close)


class DockerSandbox(GuestSandbox):
    """One container. Snapshots are images committed from it; its processes go on."""

    isolation: Isolation = "standard"

    def __init__(
        self,
        backend: DockerBackend,
        spec: SandboxSpec,
        container: Any,
        channel: Channel,
        enforced: dict[str, Enforcement],
        oom_file: str,
        evidence: list[str],
    ) -> None:
        super().__init__(channel, spec, id=container.id[:12], enforced=enforced)
        self._backend = backend
        self._container = container
        self._oom_file = oom_file
        self.evidence = evidence

    def _oom_kills(self) -> int:
        return cgroups.oom_kills(self._oom_file)

    async def _freeze(self, frozen: bool) -> None:
        act = self._container.pause if frozen else self._container.unpause
        await self._backend.call(act)

    async def diff(self) -> list[Change]:
        """See `Sandbox.diff`.

        Raises:
            SandboxFileTooLarge: A path is longer than an engine can tell.
        """
        async with self._lock.exclusive():
            await self._settled()
            try:
                found = await self._backend.call(self._container.diff) or []
            except SandboxUnavailable as error:
                if "file name too long" in str(error):
                    raise SandboxFileTooLarge(
                        "diff: longer paths than an engine can tell"
                    ) from None
                raise
        kinds = {entry["Path"]: entry["Kind"] for entry in found}
        folders = {str(parent) for path in kinds for parent in Path(path).parents}
        prefix = self.workspace + "/"
        return [
            Change(path=path.removeprefix(prefix), kind="deleted" if kind == 2 else "written")
            for path, kind in sorted(kinds.items())
            if path.startswith(prefix) and path not in folders
        ]

    async def snapshot(self) -> LayerRef:
        return await self._backend.layer_ref(await self._commit())

    async def _commit(self) -> str:
        # One at a time: the first that is done would let the processes go on under the next.
        async with self._lock.exclusive():
            await self._settled()
            return await self._backend.commit(self._container)

    async def _fork(self, n: int) -> list[GuestSandbox | Exception]:
        image = await self._commit()
        starts = (self._backend.start_on(self.spec, image) for _ in range(n))
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        await self._backend.forget(image)
        return settled(outcomes)

    async def _release(self) -> None:
        await self._backend.remove(self._container)


def _default_socket() -> str:
    own = f"{os.environ.get('XDG_RUNTIME_DIR', '/nowhere')}/podman/podman.sock"
    found = next((path for path in (*_SOCKETS, own) if os.path.exists(path)), _SOCKETS[0])
    return f"unix://{found}"
