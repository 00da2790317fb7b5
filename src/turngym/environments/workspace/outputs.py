"""What an agent sees of a command: cut by a stated rule, and the same on every run.

Of a long output the first and the last part are kept, in whole lines where possible, and the gap
says how much is left out. What differs from run to run though nothing differs is put in one form:

| what | becomes |
| --- | --- |
| durations such as ``0.12s`` or ``3.1 seconds`` | ``N.NNs`` |
| addresses of objects, ``0x7f3a...`` with nine digits or more | ``0xADDR`` |
| dates with times, times of day, ``ls -l`` dates of files written now | ``TIME`` |
| names made by ``tempfile`` and pytest below ``/tmp`` | ``/tmp/NAME`` |
| colours and other control sequences | nothing |

Only the output of commands is treated so; files are shown as they are.
"""

from __future__ import annotations

import re

MAX_CHARS = 6_000
_HEAD_SHARE = 0.6

_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])"
)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NAME = "[A-Z][a-z]{2}"
"""Of a day or a month."""
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\b\d+\.\d+ ?(?:s|sec|secs|seconds|ms)\b", "N.NNs"),
        (r"\b0x[0-9a-fA-F]{9,16}\b", "0xADDR"),
        (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[+-]\d{4}|Z)?", "TIME"),
        (rf"\b(?:{_NAME} )?{_NAME} [ \d]\d \d\d:\d\d(?::\d\d)?(?: [A-Z]{{3}} \d{{4}})?", "TIME"),
        (r"\b\d\d:\d\d:\d\d\b", "TIME"),
        (r"/tmp/pytest-of-[\w-]+/pytest-\d+", "/tmp/NAME"),
        (r"/tmp/tmp[\w-]{6,}", "/tmp/NAME"),
    )
)  # fmt: skip


def normalise(text: str) -> str:
    """Return ``text`` without what differs from run to run; see the table above."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _UNPRINTABLE.sub("", _CONTROL.sub("", text))
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def cut(text: str, max_chars: int = MAX_CHARS, *, gone: int = 0) -> str:
    """Return the first 3/5 and the last 2/5 of a text of more than ``max_chars`` characters.

    Of the middle of ``text`` so many bytes are ``gone`` already.
    """
    if len(text) <= max_chars:
        return f"{text}\n[... {gone} bytes left out ...]" if gone else text
    head = text[: int(max_chars * _HEAD_SHARE)]
    tail = text[len(text) - (max_chars - len(head)) :]
    if "\n" in head:
        head = head[: head.rindex("\n") + 1]
    if "\n" in tail[:-1]:
        tail = tail[tail.index("\n") + 1 :]
    left_out = text[len(head) : len(text) - len(tail)]
    lines = left_out.count("\n")
    more = f" and {gone} bytes more" if gone else ""
    gap = f"[... {lines} lines, {len(left_out)} characters{more} left out ...]"
    return f"{head.rstrip()}\n{gap}\n{tail}"


def decode(data: bytes) -> str:
    """Return bytes of a command as text; what is no UTF-8 becomes a replacement character."""
    return data.decode("utf-8", "replace")
