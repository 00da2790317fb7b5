"""A repair as calls of the ``edit`` tool, one change at a time."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from turngym.environments.actions import Action


def next_edit(path: str, found: bytes | None, wanted: bytes) -> Action:
    """Return the call that brings a file one change nearer to ``wanted``.

    Lines around the change are added until the text to replace occurs once. What cannot be edited
    is written anew.
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
    changes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    _, start, end, first, last = changes[0]
    while True:
        piece, put = "\n".join(before[start:end]), "\n".join(after[first:last])
        if piece and put and old.count(piece) == 1 and "\r" not in piece + put:
            return Action(name="edit", arguments={"path": path, "old": piece, "new": put})
        can_grow = end < len(before) and _is_alone(changes, end)
        if start == 0 and not can_grow:
            return whole
        if start > 0:
            start, first = start - 1, first - 1
        if can_grow:
            end, last = end + 1, last + 1


def _is_alone(changes: Sequence[tuple[str, int, int, int, int]], end: int) -> bool:
    """Say whether the line after ``end`` is the same in both texts."""
    return len(changes) < 2 or end < changes[1][1]
