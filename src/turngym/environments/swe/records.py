"""Tasks as records: recipes, never sources. One JSON file holds a project and its tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from turngym.environments.swe.operators import Edit, apply_edits
from turngym.environments.swe.parsing import test_file, test_name
from turngym.environments.swe.project import Layout, Project
from turngym.environments.workspace.outputs import normalise
from turngym.errors import ConfigError
from turngym.records import replacing
from turngym.tasks.base import SPLITS, Split

FORMAT = 1
_TESTS = ("fail_to_pass", "shown", "also_failing")
"""Fields of a task that list tests; a file has their numbers among all tests of the project."""
Kind = Literal["bug", "body", "release"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweRecord:
    """One task: how the project is broken, and which tests tell."""

    id: str
    """Project, version and a digest of the edits, for example ``tally-1.0/5f1c0a2b``."""
    kind: Kind
    edits: tuple[Edit, ...] = ()
    """What breaks the project; none for ``release``, where the older release is broken."""
    fail_to_pass: tuple[str, ...]
    shown: tuple[str, ...]
    """Those of ``fail_to_pass`` that the workspace holds; the others are hidden."""
    also_failing: tuple[str, ...] = ()
    """Tests that fail too but are not judged."""
    symptom: str
    """What the first shown test complains of."""

    @property
    def hidden(self) -> list[str]:
        """Names of the test functions that the workspace lacks."""
        shown = {test_name(one) for one in self.shown}
        return sorted({test_name(one) for one in self.fail_to_pass} - shown)


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """The tasks of one project."""

    name: str
    version: str
    digest: str
    """Of the project's files; see ``Project.digest``."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Where the project comes from: ``requirement`` and ``sha256`` of a source distribution,
    ``sample``, or ``path``; with ``before_`` in front, the release before it, if it is needed."""
    layout: Layout
    split: Split
    suite_s: float
    """Seconds that all tests took."""
    tests: tuple[str, ...]
    """Tests that passed every time."""
    tasks: tuple[SweRecord, ...] = ()

    def pass_to_pass(self, record: SweRecord) -> list[str]:
        """Return the tests that must go on passing."""
        gone = {*record.fail_to_pass, *record.also_failing}
        return [one for one in self.tests if one not in gone]

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, **_ADAPTER.dump_python(self, mode="json")}
        content |= {"suite_s": round(self.suite_s, 2), "tests": _pack(self.tests)}
        places = {test: number for number, test in enumerate(self.tests)}
        for task, name in product(content["tasks"], _TESTS):
            task[name] = [places.get(test, test) for test in task[name]]
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        with replacing(path) as fresh:
            fresh.write_text(text.replace('{"id":', '\n{"id":') + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> TaskFile:
        """Return what ``write`` wrote.

        Raises:
            ConfigError: It cannot be read, or is of another format.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format", None) != FORMAT:
                raise ConfigError(f"{path}: wanted task format {FORMAT}")
            tests = content["tests"] = [
                f"{file}::{name}" for file, names in content["tests"].items() for name in names
            ]
            for task, name in product(content["tasks"], _TESTS):
                task[name] = [tests[n] if isinstance(n, int) else n for n in task[name]]
            return _ADAPTER.validate_python(content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path}: no file of tasks: {error!s:.200}") from None


_ADAPTER = TypeAdapter(TaskFile)


def _pack(tests: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the tests by file, in order of appearance."""
    found: dict[str, list[str]] = {}
    for test in tests:
        file, _, name = test.partition("::")
        found.setdefault(file, []).append(name)
    return found


def broken_files(
    project: Project, record: SweRecord, before: Project | None = None
) -> dict[str, bytes | None]:
    """Return the files that differ in the broken project; None for one that it lacks.

    Args:
        project: The repaired one.
        record: What breaks it.
        before: The release before it, for a record of kind ``release``.

    Raises:
        ConfigError: The recipe does not fit the project.
    """
    if record.kind == "release":
        if before is None:
            raise ConfigError(f"task {record.id}: needs the release before {project.key}")
        return older_code(project, before)
    changed = apply_edits(project.sources(), list(record.edits))
    return {path: text.encode() for path, text in changed.items()}


def older_code(project: Project, before: Project) -> dict[str, bytes | None]:
    """Return the code of ``before`` where it differs from that of ``project``."""
    layout, old, new = project.layout, before.files, project.files
    return {
        path: old.get(path)
        for path in sorted({*new, *old})
        if path.endswith(".py") and layout.is_code(path) and not layout.is_protected(path)
        if old.get(path) != new.get(path)
    }


def split_of(name: str) -> Split:
    """Return the split of a project that does not say: three of four train."""
    return SPLITS[0] if sum(name.encode()) % 4 else SPLITS[1]


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
    found: list[str] = []
    for path, repaired in after.items():
        old = {line.strip() for line in before.get(path, "").splitlines()}
        for line in map(str.strip, repaired.splitlines()):
            short = _squeeze(line)
            if line not in old and len(short) >= _MIN_LEAK_CHARS and short in squeezed:
                found.append(line)
    return found


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text)
