"""A shell that remembers, without a shell that could hang.

Each command runs in a fresh bash that first takes up the state the last one left: directory,
variables, functions, aliases. So no input can get the session out of step: a command that waits
for input gets end-of-file, an open quote is an error message, ``exec`` and ``exit`` end that one
command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from turngym.sandbox.base import ExecResult

if TYPE_CHECKING:
    from turngym.sandbox.guest_sandbox import GuestSandbox

_WRAPPER = r"""
shopt -s expand_aliases
. /dev/fd/8 2>/dev/null
exec 8<&-
__turngym_keep() {
  { printf 'cd -- %q\n' "$PWD"; declare -p; declare -f; alias; } >&9 2>/dev/null
}
trap __turngym_keep EXIT
eval "$__turngym_script"
"""
"""A command with its own EXIT trap and an explicit exit keeps its state to itself."""


class Session:
    """A sequence of commands in one sandbox, each seeing what the one before it set.

    Belongs to one sandbox; `carried_to` continues it in a fork. One command at a time.
    """

    def __init__(self, sandbox: GuestSandbox, state: bytes = b"") -> None:
        self._sandbox = sandbox
        self._state = state

    async def run(
        self,
        script: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output: int = 1 << 20,
        idle_timeout_s: float | None = None,
        keep_background: bool = False,
    ) -> ExecResult:
        """Run a script as the next command; the arguments are those of `Sandbox.exec`.

        A command that is killed leaves the state as it was before it.
        """
        result, state = await self._sandbox.run_with_state(
            _WRAPPER,
            script,
            self._state,
            timeout_s=timeout_s,
            env=env,
            max_output=max_output,
            idle_timeout_s=idle_timeout_s,
            keep_background=keep_background,
        )
        self._state = _without_own_names(state) or self._state
        return result

    def carried_to(self, sandbox: GuestSandbox) -> Session:
        """Return a session of a fork of this one's sandbox, starting from the same state."""
        return Session(sandbox, self._state)


def _without_own_names(state: bytes) -> bytes:
    """Drop what would trouble the next shell: our own names and what bash does not let be set."""
    lines = [
        line
        for line in state.split(b"\n")
        if not (
            line.startswith((b"declare -r BASH", b"declare -ar BASH", b"declare -ir "))
            or line.startswith((b"declare -x __turngym_script", b"declare -- BASH"))
        )
    ]
    return b"\n".join(lines)
