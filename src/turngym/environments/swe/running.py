"""The tool that runs tests of the workspace; what it shows is no judgement."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from turngym.environments.workspace import actions
from turngym.environments.workspace.tools import Parameter, Tool
from turngym.sandbox.backends.guest_sandbox import GuestSandbox

RUN_TESTS = Tool(
    name="run_tests",
    help="runs tests of the workspace: all, a file, or file::test",
    parameters=(Parameter(name="target", kind="rest", is_optional=True),),
)


async def run_pytest(
    sandbox: GuestSandbox, target: str, everything: Sequence[str], *, timeout_s: float
) -> actions.Done:
    """Run the tests that ``target`` names, all of them where it is empty."""
    targets = target.split(" ") if target and "[" not in target else [target] if target else []
    if any(one.startswith("-") for one in targets):
        return actions.Done(text="Give files or tests, no options.", problem="an option")
    command = [
        "python3", "-B", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
        "-o", "addopts=", *(targets or everything),
    ]  # fmt: skip
    return await actions.bash(sandbox, shlex.join(command), timeout_s=timeout_s)
