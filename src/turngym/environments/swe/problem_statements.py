"""Problem statements: a symptom, a failing test, or an issue. Never the change itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from turngym.environments.swe.parsing import test_file, test_name
from turngym.environments.swe.records import SweRecord
from turngym.environments.workspace.outputs import normalise

Style = Literal["symptom", "failing", "issue"]
STYLES: tuple[Style, ...] = ("symptom", "failing", "issue")
_MIN_LEAK_CHARS = 12
_MAX_SYMPTOM_CHARS = 300


def problem_statement(record: SweRecord, name: str, version: str, style: Style) -> str:
    """Return what is asked in ``record``.

    Args:
        record: The task.
        name: Of the project.
        version: Of the project.
        style: ``"symptom"`` says what goes wrong, ``"failing"`` names a failing test besides,
            ``"issue"`` is a report by a user.
    """
    test = record.shown[0]
    number = len(record.fail_to_pass)
    more = f" {number} tests that judge your work fail now, most of them hidden." if number else ""
    ask = f"The workspace holds {name} {version}. Find the cause and mend it; do not touch tests."
    if record.kind == "body":
        missing = ", ".join(f"`{edit.function}` in {edit.path}" for edit in record.edits)
        ask = (
            f"The workspace holds {name} {version}, where {missing} was emptied. Write it again, "
            "as its docstring, its callers and the tests want it."
        )
    if style == "failing":
        return f"{ask}\nThis test fails: {test}\n{record.symptom}\n{more.strip()}"
    if style == "issue":
        what = test_name(test).removeprefix("test_").replace("_", " ")
        title = f"{name}: {what} does not work"
        return (
            f"# {title}\n\nWith {name} {version} I get\n\n    {record.symptom}\n\nwhere I expected "
            f"what `{test_file(test)}` asks for ({what}). Other uses seem to be affected "
            f"too.\n\n{ask}"
        )
    return f"{ask}\nUsers report: {record.symptom}\n{more.strip()}"


def symptom_of(message: str) -> str:
    """Return the first line of what a test complained of, in one form for every run."""
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    text = re.sub(r"\s+", " ", normalise(first))
    return text[:_MAX_SYMPTOM_CHARS] or "wrong results"


def leaks(text: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the lines of the repaired files, changed by the repair, that ``text`` holds.

    Args:
        text: A statement.
        before: Broken files.
        after: The same files, repaired.
    """
    squeezed = _squeeze(text)
    return [line for line in _changed_lines(before, after) if _squeeze(line) in squeezed]


def _changed_lines(before: Mapping[str, str], after: Mapping[str, str]) -> Iterable[str]:
    for path, repaired in after.items():
        old = {line.strip() for line in before.get(path, "").splitlines()}
        for line in repaired.splitlines():
            if line.strip() not in old and len(_squeeze(line)) >= _MIN_LEAK_CHARS:
                yield line.strip()


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text)
