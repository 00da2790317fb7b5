"""Does a sandbox keep its promises? For its author, its tests and ``turngym check sandbox``.

`check_sandbox` asks for everything that `turngym.sandbox.base` promises and then attacks. Each trap
that was ever found has its check. A check that cannot be carried out is not run, never passed.

    def test_my_back_end_keeps_its_promises():
        check_sandbox(MyBackend).raise_on_failure()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from turngym.check_report import CheckReport, NotRun
from turngym.errors import MissingExtraError, SandboxRefused
from turngym.sandbox.backends.catalogue import open_backend
from turngym.sandbox.base import Backend, Capabilities
from turngym.sandbox.checks import conformance, files, host_attacks, self_attacks
from turngym.sandbox.checks.context import CheckContext, checks_of

PROMISES = checks_of(files, conformance)
ATTACKS = checks_of(self_attacks, host_attacks)


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
    context = CheckContext(backend, capabilities, make)
    context.options = options
    suites = [("", PROMISES), ("attack: ", ATTACKS if attacks else [])]
    try:
        for prefix, checks in suites:
            for check in checks:
                name = prefix + check.__name__.replace("_", " ")
                if only in name:
                    on_result(name)
                    report.run(name, lambda check=check: asyncio.run(context.run(check)))  # type: ignore[misc]  # binds early
    finally:
        asyncio.run(backend.close())
