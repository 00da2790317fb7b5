"""No isolation at all: commands run as the user of turngym, with all that implies.

For machines where nothing else works and for commands one would run by hand. It exists under its
full name only, asks for the risk to be accepted in words, and says ``isolation="none"``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import uuid
from contextlib import AsyncExitStack

from turngym.errors import SandboxRefused
from turngym.sandbox.backends.channel import SocketStream
from turngym.sandbox.backends.machine import ENFORCED, Machine, MachineBackend, guest_command
from turngym.sandbox.backends.runtime import runtime_folder
from turngym.sandbox.base import Capabilities, Quota, SandboxSpec

RISK = "commands can do to this machine whatever I can"
"""What `UnsafeLocalBackend` wants to be given as ``accept_risk``."""


class UnsafeLocalBackend(MachineBackend):
    """Runs commands in a temporary folder of the host, and nothing more."""

    name = "unsafe-local"

    def __init__(self, *, accept_risk: str = "", quota: Quota | None = None) -> None:
        """Make the back end, for who passes the words of `RISK` as ``accept_risk``.

        Raises:
            SandboxRefused: The risk was not accepted.
        """
        if accept_risk != RISK:
            raise SandboxRefused(
                "'unsafe-local' isolates nothing",
                f"accept_risk is {accept_risk!r}",
                f"Use 'bubblewrap' or 'docker', or pass accept_risk={RISK!r}",
            )
        super().__init__(isolation="none", quota=quota)

    async def probe(self) -> Capabilities:
        return Capabilities(
            isolation=self.isolation, limits=ENFORCED, mounts=False, pause="signals",
            evidence=["no isolation"],
        )  # fmt: skip

    def _refuse(self, spec: SandboxSpec) -> None:
        if spec.image != "host" or spec.mounts or spec.links:
            raise SandboxRefused(
                "'unsafe-local' has no root of its own", f"image {spec.image!r}", "Use 'bubblewrap'"
            )

    async def machine(self, spec: SandboxSpec, undo: AsyncExitStack) -> Machine:
        folder = self._root / uuid.uuid4().hex[:12]
        runtime = str(await asyncio.to_thread(runtime_folder))
        folder.mkdir(mode=0o700)
        for name in ("workspace", "home"):
            (folder / name).mkdir()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(
                    guest_command(spec, runtime), stdin=theirs.fileno(), stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL, cwd=folder / "workspace", start_new_session=True,
                    env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise

        def wait() -> None:
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            shutil.rmtree(folder, ignore_errors=True)

        undo.push_async_callback(asyncio.to_thread, wait)
        return Machine(id=folder.name, folder=str(folder), stream=SocketStream(ours))
