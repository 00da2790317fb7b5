"""What the attacks aim at on the host, and how one is carried out and judged."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from turngym.sandbox.backends.runtime import MOUNT, command, runtime_folder
from turngym.sandbox.base import Sandbox
from turngym.sandbox.checks.context import CheckContext, said, want


class Targets:
    """Canaries: a secret file, a process that knows a secret, three kinds of listening socket."""

    def __init__(self) -> None:
        self.secret = "canary-" + secrets.token_hex(12)
        self.folder = Path(tempfile.mkdtemp(prefix="turngym-canary-"))
        self.file = self.folder / "secret"
        self.file.write_text(self.secret)
        self.file.chmod(0o600)
        self.process = subprocess.Popen(["sleep", "600"], env={"SECRET": self.secret})
        self.abstract = self.secret
        self.socket_path = str(self.folder / "s")
        self._sockets = [socket.socket(), *(socket.socket(socket.AF_UNIX) for _ in range(2))]
        self._sockets[0].bind(("127.0.0.1", 0))
        self._sockets[1].bind("\0" + self.abstract)
        self._sockets[2].bind(self.socket_path)
        os.chmod(self.socket_path, 0o777)
        for listener in self._sockets:
            listener.listen()
            threading.Thread(target=_accept_all, args=(listener,), daemon=True).start()
        self.port = int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Take everything down."""
        for listener in self._sockets:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _accept_all(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


@contextlib.contextmanager
def targets() -> Iterator[Targets]:
    """Yield canaries that are gone afterwards."""
    made = Targets()
    try:
        yield made
    finally:
        made.close()


def program(sandbox: Sandbox, code: str, *arguments: object) -> list[str]:
    """Return the command that runs ``code`` with the guest's own interpreter."""
    mount = MOUNT if sandbox.isolation != "none" else str(runtime_folder())
    *python, _ = command("", mount)
    return [*python, code, *map(str, arguments)]


def judge(context: CheckContext, through: Iterable[str], *, control: bool = True) -> None:
    """Raise `Broken` when an attack got through, or, where nothing isolates, when none did."""
    found = [line for line in through if line]
    if context.is_isolating:
        want(not found, f"got through: {'; '.join(found)[:500]}")
    elif control:
        want(bool(found), "the attack does not bite: it got nothing where nothing holds it")


async def attack(sandbox: Sandbox, code: str, *arguments: object) -> list[str]:
    """Run an attack and return the lines it printed."""
    result = await sandbox.exec(program(sandbox, code, *arguments), timeout_s=60.0)
    want(b"Traceback" not in result.stderr, f"the attack itself broke: {said(result)}")
    return result.stdout.decode("utf-8", "replace").splitlines()
