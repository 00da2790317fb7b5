"""A repair as calls of the ``edit`` tool, one hunk at a time."""

from __future__ import annotations

import difflib

from turngym.environments.core.actions import Action

_CONTEXT = 3
_MOST_HUNKS = 10
"""With more of them a file is written anew: every edit costs a turn."""


def next_edit(path: str, found: bytes | None, wanted: bytes) -> Action:
    """Return the call that brings a file one hunk nearer to ``wanted``.

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
