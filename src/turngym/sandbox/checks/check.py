"""Does a sandbox keep its promises? For its author, its tests and ``turngym check sandbox``.

`check_sandbox` asks for everything that `turngym.sandbox.base` promises and then attacks. Each trap
that was ever found has its check. A check that cannot be carried out is not run, never passed.

    def test_my_back_end_keeps_its_promises():
        check_sandbox(MyBackend).raise_on_failure()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from turngym.check_report import Broken, CheckReport, NotRun
from turngym.errors import MissingExtraError, SandboxRefused
from turngym.sandbox.backends.catalogue import open_backend
from turngym.sandbox.base import Backend, Capabilities, ExecResult, Limits, Sandbox, SandboxSpec

CHECK_TIMEOUT_S = 120.0


class Check(Protocol):
    """One promise; raises `Broken` or `NotRun`."""

    __name__: str

    def __call__(self, bench: Bench) -> Awaitable[None]:
        """Carry the check out."""
        ...


class Bench:
    """What a check works with: a back end, what it claims, and sandboxes on demand."""

    def __init__(self, backend: Backend, capabilities: Capabilities, make: Callable[[], Backend]):
        self.backend = backend
        self.capabilities = capabilities
        self.make = make
        """Makes one more back end of the same kind."""
        self.options: dict[str, Any] = {}
        self._open: list[Sandbox] = []

    @property
    def is_isolating(self) -> bool:
        """True unless the back end says that it isolates nothing."""
        return self.capabilities.isolation != "none"

    def spec(self, **limits: Any) -> SandboxSpec:  # fields of Limits
        """Return a small spec with limits that this back end can hold."""
        exact = all(how == "exact" for how in self.capabilities.limits.values())
        small: dict[str, Any] = {
            "memory_bytes": 256 << 20,
            "pids": 64,
            "disk_bytes": 64 << 20,
            "inodes": 5000,
            "enforce": "strict" if exact else "best_effort",
        }
        return SandboxSpec(limits=Limits(**{**small, **limits}))

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Start a sandbox that is closed after the check."""
        sandbox = await self.backend.start(spec or self.spec())
        self._open.append(sandbox)
        return sandbox

    async def fork(self, sandbox: Sandbox, n: int = 1) -> list[Sandbox]:
        """Return forks that are closed after the check."""
        forks: list[Sandbox] = []
        for outcome in await sandbox.fork(n):
            if isinstance(outcome, Exception):
                raise outcome
            forks.append(outcome)
        self._open += forks
        return forks

    async def run(self, check: Check) -> None:
        """Carry out a check and close what it started."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await check(self)
        except TimeoutError:
            raise Broken(f"not done within {CHECK_TIMEOUT_S:g} s") from None
        finally:
            sandboxes, self._open = self._open, []
            for sandbox in sandboxes:
                await sandbox.close()


def check_sandbox(
    target: str | Callable[[], Backend],
    *,
    attacks: bool = True,
    only: str = "",
    on_result: Callable[[str], None] = lambda name: None,
    **options: Any,  # of the back end's constructor
) -> CheckReport:
    """Check what every sandbox promises, and attack it.

    Args:
        target: Name of a back end, or a function that makes one.
        attacks: Carry out the attacks, too.
        only: Carry out only checks whose name holds this.
        on_result: Called with the name of each check before it starts.
        options: For the constructor of the back end.

    Returns:
        A report with one result per check, in order.
    """
    report = CheckReport(target if isinstance(target, str) else getattr(target, "__name__", "?"))

    def make() -> Backend:
        return open_backend(target, **options) if isinstance(target, str) else target()

    def work() -> None:
        _check_all(report, make, options, attacks=attacks, only=only, on_result=on_result)

    # A thread of its own, so that it works inside an event loop as well.
    thread = threading.Thread(target=work, name="check-sandbox")
    thread.start()
    thread.join()
    return report


def _check_all(
    report: CheckReport,
    make: Callable[[], Backend],
    options: dict[str, Any],
    *,
    attacks: bool,
    only: str,
    on_result: Callable[[str], None],
) -> None:
    from turngym.sandbox.checks import attacks as attack_checks
    from turngym.sandbox.checks import conformance as conformance_checks

    found: list[tuple[Backend, Capabilities]] = []

    def can_start() -> None:
        try:
            backend = make()
            found.append((backend, asyncio.run(backend.probe())))
        except (SandboxRefused, MissingExtraError) as refusal:
            raise NotRun(str(refusal)) from None

    if not report.run("a sandbox can be started", can_start):
        return
    [(backend, capabilities)] = found
    bench = Bench(backend, capabilities, make)
    bench.options = options
    suites = [("", conformance_checks.CHECKS)]
    if attacks:
        suites.append(("attack: ", attack_checks.CHECKS))
    try:
        for prefix, checks in suites:
            for check in checks:
                name = prefix + check.__name__.replace("_", " ")
                if only in name:
                    on_result(name)
                    report.run(name, lambda check=check: asyncio.run(bench.run(check)))  # type: ignore[misc]  # binds early
    finally:
        asyncio.run(backend.close())


def want(condition: bool, text: str) -> None:
    """Raise `Broken` with ``text`` unless ``condition`` holds."""
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
    """Return the error of ``kind`` that ``action`` must raise.

    Raises:
        Broken: It raised none.
    """
    try:
        await action
    except kind as error:
        return error
    raise Broken(f"{what}: wanted {kind.__name__}, nothing was raised")


def smaller(spec: SandboxSpec, **limits: Any) -> SandboxSpec:  # fields of Limits
    """Return ``spec`` with other limits."""
    return replace(spec, limits=replace(spec.limits, **limits))
