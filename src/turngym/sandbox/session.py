"""A shell that remembers, without a shell that could hang.

Each command runs in a fresh bash that first restores the state the last one left: directory,
variables, functions, aliases. So no input can get the session out of step: a command that waits
for input gets end-of-file, an open quote is an error message, ``exec`` and ``exit`` end that one
command. Functions named like commands that this needs itself (eval, unset, declare, ...) are not
kept, and neither is a state of more than 8 MB.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from turngym.sandbox.processes import ExecResult

_BEGIN, _END = "# state of the shell", "# complete"
_OWN_NAMES = (
    "builtin command declare alias eval exec exit export printf readonly return set shift shopt "
    "source trap unset . :"
)
_WRAPPER = rf"""
__turngym_plain() {{ unset -f {_OWN_NAMES}; }}
__turngym_keep() {{
  POSIXLY_CORRECT=1
  \__turngym_plain
  \unset -v POSIXLY_CORRECT
  \exec >&9
  \printf '\n{_BEGIN}\ncd -- %q\n' "$PWD"
  \declare -p; \declare -f; \alias
  \printf '{_END}\n'
}}
. /dev/fd/8 2>/dev/null
POSIXLY_CORRECT=1
\unset -f {_OWN_NAMES} 2>/dev/null
\unset -v POSIXLY_CORRECT
\exec 8<&-
\shopt -s expand_aliases
\trap '__turngym_keep 2>/dev/null' EXIT
\eval "\set --"$'\n'"$1"
"""
"""What a session runs in a fresh bash. In POSIX mode, for which an assignment is enough, nothing
is called in place of ``unset``, and then nothing in place of the rest. The script is an argument,
which no ``readonly`` reaches. A command with its own EXIT trap and an explicit exit keeps its state
to itself."""


class StatefulRunner(Protocol):
    """What a session needs of a sandbox."""

    @property
    def run_with_state(self) -> Callable[..., Awaitable[tuple[ExecResult, bytes]]]:
        """Run one command; return its result and the state after it."""


class Session:
    """A sequence of commands in one sandbox, each seeing what the one before it set.

    Belongs to one sandbox; `carried_to` continues it in a fork. One command at a time.
    """

    def __init__(self, sandbox: StatefulRunner, state: bytes = b"") -> None:
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
            _WRAPPER, script, self._state, timeout_s=timeout_s, env=env, max_output=max_output,
            idle_timeout_s=idle_timeout_s, keep_background=keep_background,
        )  # fmt: skip
        self._state = _read_state(state) or self._state
        return result

    def carried_to(self, sandbox: StatefulRunner) -> Session:
        """Return a session of a fork of this one's sandbox, starting from the same state."""
        return Session(sandbox, self._state)


def _read_state(state: bytes) -> bytes:
    """Return the state that the next shell can restore, b"" when the state did not come whole.

    Dropped are our own names and what bash does not let be set.
    """
    _, begin, state = state.partition(b"\n" + _BEGIN.encode() + b"\n")
    if not begin or not state.endswith(_END.encode() + b"\n"):
        return b""
    return b"\n".join(line for line in state.split(b"\n") if not _OURS.match(line))


_OURS = re.compile(
    rb"declare -[a-zA-Z]*r[a-zA-Z]* (BASH|POSIXLY_CORRECT|SHELLOPTS|EUID|PPID|UID|__turngym)"
    rb"|declare -- BASH|declare -[a-zA-Z-]+ POSIXLY_CORRECT"
)
