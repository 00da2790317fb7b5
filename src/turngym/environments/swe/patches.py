"""What an agent changed: collected as files, shown as a diff."""

from __future__ import annotations

import difflib
import io
import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath

from turngym.environments.swe.project import Layout
from turngym.environments.workspace.host import Delta
from turngym.environments.workspace.world import LARGE
from turngym.errors import ConfigError

_GIT_LINE = re.compile(
    r'(diff --git "?a/|new file mode |deleted file mode |(?:rename|copy) (?:from|to) )(.*?)\r?\n?\Z'
)
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
MAX_FILE_BYTES, MAX_PATCH_BYTES = 1 << 20, 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Changes to a project that a judge can apply."""

    files: Delta = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    """``path: reason`` for each change that is no part of it."""


def collect_patch(changed: Delta, base: Mapping[str, bytes], layout: Layout) -> Patch:
    """Return the patch of a submission, which makes ``changed`` of ``base``.

    Tests and what Python or pytest load by themselves are left out, binary files too, and what is
    larger than ``MAX_FILE_BYTES``, or ``MAX_PATCH_BYTES`` in all; files of git are no part of it.
    Of a folder that is gone, or was replaced, ``changed`` has the folder alone, and what is there
    now.
    """
    hidden = [
        path for path in base if any(str(one) in changed for one in PurePosixPath(path).parents)
    ]
    changed = {**dict.fromkeys(hidden), **changed}
    files: dict[str, bytes | None] = {}
    left_out: list[str] = []
    total = 0
    # Code first: what else an agent leaves behind may take all the room.
    for path in sorted(changed, key=lambda one: (not layout.is_code(one), one)):
        data = changed[path]
        if data == base.get(path) or path.startswith(".git/"):
            continue
        reason = ""
        if layout.is_protected(path):
            reason = "tests and configuration are taken from the original"
        elif data is not None and (data.startswith(LARGE) or len(data) > MAX_FILE_BYTES):
            reason = f"larger than {MAX_FILE_BYTES} bytes"
        elif data is not None and b"\0" in data:
            reason = "a binary file"
        elif data is not None and total + len(data) > MAX_PATCH_BYTES:
            reason = f"the patch is larger than {MAX_PATCH_BYTES} bytes"
        if reason:
            left_out.append(f"{path}: {reason}")
            continue
        files[path] = data
        total += len(data or b"")
    return Patch(files=files, left_out=tuple(left_out))


def diff_text(files: Delta, base: Mapping[str, bytes]) -> str:
    """Return a unified diff in git's form, from ``base`` to ``files``."""
    parts = []
    for path, data in sorted(files.items()):
        before = base.get(path)
        if before == data:
            continue
        old = [] if before is None else _lines(before)
        new = [] if data is None else _lines(data)
        head = [f"diff --git a/{path} b/{path}\n"]
        if before is None:
            head.append("new file mode 100644\n")
        if data is None:
            head.append("deleted file mode 100644\n")
        source = "/dev/null" if before is None else f"a/{path}"
        target = "/dev/null" if data is None else f"b/{path}"
        body = list(difflib.unified_diff(old, new, source, target))
        parts.append("".join(head + [_ended(line) for line in body]))
    return "".join(parts)


def apply_diff(diff: str, base: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Return the files that a unified diff makes of ``base``.

    Raises:
        ConfigError: It is binary, malformed, or does not fit; the message names file and line.
    """
    if "GIT binary patch" in diff or "\nBinary files " in f"\n{diff}":
        raise ConfigError("patch: it holds a binary file; only text can be applied")
    changed: dict[str, bytes | None] = {}
    # A series of patches goes on from what it has made.
    now: ChainMap[str, bytes | None] = ChainMap(changed, dict(base))
    lines = _split(diff)
    number, git = 0, _GitHead()
    while number < len(lines):
        if not lines[number].startswith("--- "):
            changed |= git.said(lines[number], now)
            number += 1
            continue
        if number + 1 >= len(lines) or not lines[number + 1].startswith("+++ "):
            raise ConfigError(f"patch, line {number + 2}: wanted '+++ <file>'")
        source, target = (_place(lines[number + k]) for k in (0, 1))
        end = _end_of_hunks(lines, number + 2)
        hunks = lines[number + 2 : end]
        path = target or source
        if path is None:
            raise ConfigError(f"patch, line {number + 1}: names no file")
        before = b"" if source is None else now.get(source)
        if before is None:  # moved or deleted by the lines above
            before = git.before
        if before is None:
            raise ConfigError(f"patch: {source!r} is not in the project")
        if source not in (None, path, git.copied):
            changed[source] = None
        after = _apply_hunks(path, _lines(before), hunks, number + 3)
        changed[path] = after if target is not None else None
        number = end
    if not changed:
        raise ConfigError("patch: it changes nothing; wanted a unified diff")
    return changed


class _GitHead:
    """What git says of a file before its hunks, or of one without any: an empty or a moved one."""

    def __init__(self) -> None:
        self._path = self._source = self.copied = ""
        self.before: bytes | None = None
        """What a file held that was moved, copied or deleted."""

    def said(self, line: str, now: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
        """Return what the next ``line`` makes of the files that are there ``now``.

        Raises:
            ConfigError: It moves a file that is not there, or not named, or leads out of all.
        """
        found = _GIT_LINE.match(line)
        what, path = (found[1], _inside(_unquoted(found[2]))) if found else ("", "")
        needed = self._source if what.endswith(" to ") else self._path
        if what.endswith((" to ", "file mode ")) and not needed:
            raise ConfigError(f"patch: {line.strip()!r} without the line of git that comes before")
        if what.startswith("diff"):  # the same name twice, where it matters
            quote = what[11:-2]
            half = path[: (len(path) - 3 - 3 * len(quote)) // 2]
            self._path, self.before = _unquoted(f"{quote}{half}{quote}"), None
        elif what.endswith("file mode "):
            self.before = now.get(self._path)
            return {self._path: b"" if what.startswith("new") else None}
        elif what.endswith(" from "):
            if now.get(path) is None:
                raise ConfigError(f"patch: {path!r} is not in the project")
            self._source, self.before = path, now[path]
            self.copied = path if what.startswith("copy") else ""
            return {} if self.copied else {path: None}
        elif what:
            return {path: self.before}
        return {}


def _end_of_hunks(lines: list[str], at: int) -> int:
    """Return where the hunks of a file end, which begin ``at`` a line.

    No line that a hunk counts is the head of a file, whatever it looks like, and ``--`` behind the
    last one is where a patch that was sent by mail is signed.
    """
    old = new = 0
    while at < len(lines) and not lines[at].startswith("diff --git "):
        line, after = lines[at], lines[at + 1 : at + 2]
        if found := _HUNK.match(line):
            old, new = (int(one or 1) for one in found.groups())
        elif old > 0 or new > 0:
            old, new = old - (line[0] in "- \n"), new - (line[0] in "+ \n")
        elif line.rstrip() == "--" or (line[:4] == "--- " and after and after[0][:4] == "+++ "):
            break
        at += 1
    return at


def named_files(diff: str) -> list[str]:
    """Return the files that a unified diff begins with."""
    moved = [
        _unquoted(found[2])
        for found in map(_GIT_LINE.match, _split(diff))
        if found and "from" in found[1]
    ]
    heads = [
        line
        for line, after in pairwise(_split(diff))
        if line.startswith("--- ") and after.startswith("+++ ")
    ]
    return moved + [path for path in map(_place, heads) if path is not None]


def _apply_hunks(path: str, old: list[str], hunks: list[str], first: int) -> bytes:
    new: list[str] = []
    at, is_inside, last = 0, False, ""
    for number, line in enumerate(hunks, start=first):
        mark, text, before, last = line[:1], line[1:], last, line[:1]
        if line.startswith("@@"):
            begin, is_inside = _start_of(line, number), True
            if begin < at or begin > len(old):
                raise ConfigError(f"patch, line {number}: no such lines in {path!r}")
            new += old[at:begin]
            at = begin
        elif not is_inside:
            continue
        elif mark == "\\":
            if new and before in "+ ":
                new[-1] = new[-1].rstrip("\n")
        elif mark == "+":
            new.append(text)
        elif mark in "- \n":
            found = old[at] if at < len(old) else ""
            wanted = text if mark != "\n" else "\n"
            if found.rstrip("\r\n") != wanted.rstrip("\r\n"):
                raise ConfigError(
                    f"patch, line {number}: does not apply to {path!r}, line {at + 1}: "
                    f"wanted {wanted.strip()[:60]!r}, found {found.strip()[:60]!r}"
                )
            if mark != "-":
                new.append(found)
            at += 1
    return "".join(new + old[at:]).encode("utf-8", "surrogateescape")


def _start_of(line: str, number: int) -> int:
    """Return how many lines come before a hunk, whose first is named, or of none the one before."""
    try:
        start, _, count = line.split("-")[1].split(" ")[0].partition(",")
        return int(start) - (count != "0")
    except (IndexError, ValueError):
        raise ConfigError(f"patch, line {number}: malformed {line.strip()[:60]!r}") from None


def _place(line: str) -> str | None:
    path = _unquoted(line[4:].split("\t")[0].strip())
    if path == "/dev/null":
        return None
    return _inside(path[2:] if path.startswith(("a/", "b/")) else path)


def _unquoted(path: str) -> str:
    """Return a path as it is that git put in quotes, as it does where one is not all ASCII."""
    if path[:1] != '"':
        return path
    held = path[1:-1].encode("utf-8", "surrogateescape").decode("unicode_escape", "replace")
    return held.encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigError(f"patch: {path!r} lies outside of the project")
    return path


def _lines(data: bytes) -> list[str]:
    return _split(data.decode("utf-8", "surrogateescape"))


def _split(text: str) -> list[str]:
    """Return the lines of ``text`` with their ends, as git has them: no form feed ends one."""
    return [*io.StringIO(text, newline="\n")]


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
