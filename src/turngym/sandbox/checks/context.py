"""What a check of a sandbox works with, what attacks aim at, and how one is judged."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from turngym.check_report import Broken
from turngym.sandbox.backends.runtime import MOUNT, command, runtime_folder
from turngym.sandbox.base import Backend, Capabilities, Limits, Sandbox, SandboxSpec
from turngym.sandbox.checks.attack_programs import HEAD
from turngym.sandbox.processes import ExecResult

CHECK_TIMEOUT_S = 120.0


class CheckContext:
    """What a check works with: a back end, what it claims, and sandboxes on demand."""

    def __init__(
        self,
        backend: Backend,
        capabilities: Capabilities,
        make: Callable[[], Backend],
        options: Mapping[str, Any],
    ) -> None:
        self.backend = backend
        self.capabilities = capabilities
        self.make = make
        """Makes one more back end of the same kind."""
        self.options = options
        self._open: list[Sandbox] = []

    @property
    def is_isolating(self) -> bool:
        """True unless the back end says that it isolates nothing."""
        return self.capabilities.isolation != "none"

    def spec(self, **limits: Any) -> SandboxSpec:  # fields of Limits
        """Return a small spec with limits that this back end can hold."""
        exact = all(how == "exact" for how in self.capabilities.limits.values())
        small: dict[str, Any] = {
            "memory_bytes": 256 << 20, "pids": 64, "disk_bytes": 64 << 20, "inodes": 5000,
            "enforce": "strict" if exact else "best_effort",
        }  # fmt: skip
        return SandboxSpec(limits=Limits(**{**small, **limits}))

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Start a sandbox that is closed after the check.

        Raises:
            Broken: It does not isolate as the back end says.
        """
        sandbox = await self.backend.start(spec or self.spec())
        self._open.append(sandbox)
        want(sandbox.isolation == self.capabilities.isolation, f"isolation {sandbox.isolation}")
        return sandbox

    async def fork(self, sandbox: Sandbox, n: int = 1) -> list[Sandbox]:
        """Return ``n`` forks that are closed after the check."""
        forks: list[Sandbox] = []
        for outcome in await sandbox.fork(n):
            if isinstance(outcome, Exception):
                raise outcome
            forks.append(outcome)
        self._open += forks
        return forks

    async def run(self, check: Check) -> None:
        """Carry out a check and close what it started.

        Raises:
            Broken: It was not done in time.
        """
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                wanted = inspect.signature(check).parameters
                given: dict[str, Any] = {"context": self}  # by name
                if "sandbox" in wanted:
                    given["sandbox"] = await self.start()
                await check(**{name: given[name] for name in wanted})
        except TimeoutError:
            raise Broken(f"not done within {CHECK_TIMEOUT_S:g} s") from None
        finally:
            sandboxes, self._open = self._open, []
            for sandbox in sandboxes:
                await sandbox.close()


def want(condition: bool, text: str) -> None:
    """Raise `Broken` with ``text`` unless ``condition`` holds.

    Raises:
        Broken: It does not.
    """
    if not condition:
        raise Broken(text)


def said(result: ExecResult) -> str:
    """Return how a command ended and the start of what it wrote."""
    text = (result.stdout + result.stderr)[:300].decode("utf-8", "replace").strip()
    end = f"signal {result.signal}" if result.exit_code is None else f"exit {result.exit_code}"
    late = ", timed out" if result.timed_out else ""
    return f"{end}{late}: {text!r}"


async def output(sandbox: Sandbox, command: list[str] | str, **arguments: Any) -> str:  # of exec
    """Run a command that must succeed and return what it wrote, stripped.

    Raises:
        Broken: It failed.
    """
    result = await sandbox.exec(command, **{"timeout_s": 60.0, **arguments})
    want(result.ok, f"{command!r}: {said(result)}")
    return result.stdout.decode("utf-8", "replace").strip()


async def raises(kind: type[Exception], action: Awaitable[object], what: str) -> Exception:
    """Return the error of ``kind`` that ``action``, named ``what``, must raise.

    Raises:
        Broken: It raised none.
    """
    try:
        await action
    except kind as error:
        return error
    raise Broken(f"{what}: wanted {kind.__name__}, nothing was raised")


Check = Callable[..., Awaitable[None]]
"""One promise; raises `Broken` or `NotRun`. Its name says what is promised.

Its parameters are ``context``, the `CheckContext`, and ``sandbox``, a small one that was started.
"""


def checks_of(*modules: ModuleType) -> list[Check]:
    """Return the checks of some modules: their public coroutine functions, as they stand there."""
    return [
        check
        for module in modules
        for name, check in vars(module).items()
        if inspect.iscoroutinefunction(check)
        and check.__module__ == module.__name__
        and not name.startswith("_")
    ]


class Targets:
    """Canaries: a secret file, a process that knows a secret, three kinds of listening socket.

    They are gone after the block.
    """

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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


def program(sandbox: Sandbox, code: str, *arguments: object) -> list[str]:
    """Return the command that runs ``code``, after `HEAD`, with the guest's own interpreter."""
    mount = MOUNT if isolates(sandbox) else str(runtime_folder())
    *python, _ = command("", mount)
    return [*python, HEAD + code, *map(str, arguments)]


def isolates(sandbox: Sandbox) -> bool:
    """Return True unless its back end says that it isolates nothing."""
    return sandbox.isolation != "none"


def judge(sandbox: Sandbox, through: Iterable[str], *, control: bool = True) -> None:
    """Raise `Broken` when an attack gets through, or a ``control`` did not without isolation."""
    found = [line for line in through if line]
    if isolates(sandbox):
        want(not found, f"got through: {'; '.join(found)[:500]}")
    elif control:
        want(bool(found), "the attack does not bite: it got nothing where nothing holds it")


async def attack(sandbox: Sandbox, code: str, *arguments: object) -> list[str]:
    """Run the attack ``code`` and return the lines it printed."""
    result = await sandbox.exec(program(sandbox, code, *arguments), timeout_s=60.0)
    want(b"Traceback" not in result.stderr, f"the attack itself broke: {said(result)}")
    return result.stdout.decode("utf-8", "replace").splitlines()
