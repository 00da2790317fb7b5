"""Run untrusted commands: sandboxes with honest guarantees that fork in milliseconds.

    async with await open_backend("bubblewrap").start(SandboxSpec()) as sandbox:
        result = await sandbox.exec("make test", timeout_s=60)
        one, two = await sandbox.fork(2)

The contract is in `turngym.sandbox.base`; `docs/security.md` says what each back end guarantees.
"""

from turngym.sandbox.backends.catalogue import backend_names, open_backend
from turngym.sandbox.base import (
    Backend,
    Capabilities,
    Change,
    LayerRef,
    Limits,
    Quota,
    ReadOnlyMount,
    Sandbox,
    SandboxSpec,
    Stats,
    TreeReport,
)
from turngym.sandbox.checks.check import check_sandbox
from turngym.sandbox.pool import SandboxPool
from turngym.sandbox.processes import ExecResult

__all__ = [
    "Backend", "Capabilities", "Change", "ExecResult", "LayerRef", "Limits", "Quota",
    "ReadOnlyMount", "Sandbox", "SandboxPool", "SandboxSpec", "Stats", "TreeReport",
    "backend_names", "check_sandbox", "open_backend",
]  # fmt: skip
