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
from turngym.errors import MissingExtraError, SandboxRefused, unknown_name
from turngym.sandbox.backends.catalogue import open_backend
from turngym.sandbox.base import Backend
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

    Raises:
        ConfigError: No check has a name that holds ``only``.
    """
    report = CheckReport(target if isinstance(target, str) else getattr(target, "__name__", "?"))
    prefixed = [("", PROMISES), ("attack: ", ATTACKS if attacks else [])]
    named = [(prefix + c.__name__.replace("_", " "), c) for prefix, some in prefixed for c in some]
    chosen = {name: check for name, check in named if only in name}
    if not chosen:
        hint = "Without it all are carried out, and named."
        raise unknown_name("check, by a part of its name,", only, dict(named), hint=hint)

    def make() -> Backend:
        return open_backend(target, **options) if isinstance(target, str) else target()

    def work() -> None:
        found: list[CheckContext] = []

        def can_start() -> None:
            try:
                backend = make()
                capabilities = asyncio.run(backend.probe())
            except (SandboxRefused, MissingExtraError) as refusal:
                raise NotRun(str(refusal)) from None
            found.append(CheckContext(backend, capabilities, make, options))

        if not report.run("a sandbox can be started", can_start):
            return
        [context] = found
        try:
            for name, check in chosen.items():
                on_result(name)
                report.run(name, lambda check=check: asyncio.run(context.run(check)))  # type: ignore[misc]  # binds early
        finally:
            asyncio.run(context.backend.close())

    # A thread of its own, so that it works inside an event loop as well.
    thread = threading.Thread(target=work, name="check-sandbox")
    thread.start()
    thread.join()
    return report
