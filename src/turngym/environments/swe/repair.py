"""Problems in which a Python project is repaired, and how an expert does it."""

from __future__ import annotations

import difflib
import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping

from turngym.environments.core.actions import Action
from turngym.environments.workspace.host import Delta, SandboxHost
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import LayerRef
from turngym.tasks.problem import FileProblem

_CONTEXT = 3
_MOST_HUNKS = 10
"""With more of them a file is written anew: every edit costs a turn."""


class RepairProblem(FileProblem):
    """A project with a fault; hidden tests judge the agent's changes in fresh sandboxes."""

    limit_s = None
    base: Mapping[str, bytes | None]
    """Files at the start."""
    wanted: Delta
    """Files that the repair changes, as it leaves them."""
    test_targets: tuple[str, ...] = ()
    """Where the tests of the workspace are; empty where pytest finds them."""

    @abstractmethod
    async def start(self, host: SandboxHost, layer: LayerRef | None = None) -> GuestSandbox:
        """Start a sandbox of ``host`` on a snapshot, or on the project as it is before set-up."""

    def expert(self) -> list[Callable[[Delta], Action | None]]:
        """Return one function of the written files, which says the next call until all is done."""
        return [self._next_call]

    def _next_call(self, written: Delta) -> Action | None:
        for path, wanted in self.wanted.items():
            found = written.get(path, self.base.get(path))
            if found == wanted:
                continue
            if wanted is None:
                return Action(name="bash", arguments={"command": f"rm {shlex.quote(path)}"})
            return expert_edit(path, found, wanted)
        return None


def expert_edit(path: str, found: bytes | None, wanted: bytes) -> Action:
    """Return the call that brings the text ``found`` one hunk nearer to ``wanted``.

    A hunk is as in a diff: changes with at most ``2 * _CONTEXT`` equal lines in between. Lines
    around it are added until the text to replace occurs once. What cannot be edited, or only by
    very many edits, is written anew.
    """
    whole = Action(
        name="create", arguments={"path": path, "content": wanted.decode("utf-8", "replace")}
    )
    if found is None:
        return whole
    try:
        old, new = found.decode(), wanted.decode()
    except UnicodeDecodeError:
        return whole
    before, after = old.split("\n"), new.split("\n")
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    hunks = list(matcher.get_grouped_opcodes(_CONTEXT))
    if len(hunks) > _MOST_HUNKS:
        return whole
    changes = [code for code in hunks[0] if code[0] != "equal"]
    start, first = changes[0][1], changes[0][3]
    end, last = changes[-1][2], changes[-1][4]
    next_change = hunks[1][0][1] + _CONTEXT if len(hunks) > 1 else len(before)
    while True:
        piece, put = "\n".join(before[start:end]), "\n".join(after[first:last])
        if piece and put and old.count(piece) == 1 and "\r" not in piece + put:
            return Action(name="edit", arguments={"path": path, "old": piece, "new": put})
        can_grow = end < next_change
        if start == 0 and not can_grow:
            return whole
        if start > 0:
            start, first = start - 1, first - 1
        if can_grow:
            end, last = end + 1, last + 1
