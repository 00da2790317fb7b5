"""How actions in words are read when a model dresses them up: one rule for all families.

The exact form of a command always keeps its meaning. Where there is none, the line is read again

- without ``**``, ``*``, ``__``, ``_``, backticks or quotes around all of it, and without a lead;
- without the full stop at its end;
- without the quotes around single arguments.

An argument loses one pair of quotes around the whole of it, unless the same quotes stand inside:
``answer "45.50"`` answers 45.50, and ``answer "a" or "b"`` keeps its quotes. To mean quotes, give
them twice: ``answer ""45.50""``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019"}
"""Opening to closing."""
LEAD = re.compile(r"^(?:[*_]*action\s*:[*_]*|>|\$)\s*", re.IGNORECASE)
_MARKS = ("**", "__", "*", "_", "`")
_QUOTED_WORDS = re.compile(r"(?<!\S)(?:\"([^\"]+)\"|'([^']+)'|\u201c([^\u201d]+)\u201d)(?!\S)")
_FULL_STOP = re.compile(r"(?<=\w)\.$")


def readings(line: str) -> Iterator[str]:
    """Yield ``line`` and what else it may mean, the most literal first."""
    yield line
    bare = _bare(line)
    ended = _bare(bare[:-1].rstrip()) if bare.endswith(".") else bare
    seen = {line}
    for one in (bare, ended, *(_QUOTED_WORDS.sub(_inside, form) for form in (line, bare, ended))):
        if one and one not in seen:
            seen.add(one)
            yield one


def unquoted(text: str, quotes: str = "".join(QUOTES)) -> str:
    """Return ``text`` without one pair of ``quotes`` around it, if it stands in one."""
    if not _is_quoted(text, quotes):
        return text
    inner = text[1:-1]
    has_same = text[0] in inner or text[-1] in inner
    return text if has_same and not _is_quoted(inner, quotes) else inner


def quoted(text: str, quotes: str = "".join(QUOTES)) -> str:
    """Return ``text`` in quotes, so that ``unquoted`` gives it back; as it is where none do."""
    forms = (f"{mark}{text}{QUOTES[mark]}" for mark in quotes)
    return next((form for form in forms if unquoted(form, quotes) == text), text)


def without_full_stop(text: str) -> str:
    """Return ``text`` without a full stop behind its last word."""
    return _FULL_STOP.sub("", text)


def _is_quoted(text: str, quotes: str) -> bool:
    return len(text) >= 2 and text[0] in quotes and QUOTES[text[0]] == text[-1]


def _inside(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _unwrapped(line: str) -> str:
    """Return ``line`` without quotes around all of it; those around its words may be the same."""
    is_wrapped = _is_quoted(line, "".join(QUOTES))
    between = _QUOTED_WORDS.sub("", line[1:-1]) if is_wrapped else ""
    has_same = line[:1] in between or line[-1:] in between
    return line[1:-1] if is_wrapped and not has_same else unquoted(line)


def _bare(line: str) -> str:
    """Return ``line`` without what stands around all of it."""
    while True:
        inner = LEAD.sub("", _unwrapped(line)).strip()
        for mark in _MARKS:
            if inner.startswith(mark) and inner.endswith(mark) and len(inner) > 2 * len(mark):
                inner = inner[len(mark) : -len(mark)].strip()
                break
        if inner == line:
            return line
        line = inner
