"""Tasks and results in SWE-bench's form: instances and predictions.

An instance is a row of its schema. Its tests run in an image of its own, through the back end
``docker``; of ours, ``image`` is empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from turngym.environments.swe.patches import diff_text
from turngym.environments.swe.project import Project
from turngym.environments.swe.records import Style, SweRecord, TaskFile, problem_statement
from turngym.environments.swe.tasksets import broken_of
from turngym.errors import ConfigError
from turngym.tasks.questions import read_rows

_NEEDED = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One task in SWE-bench's schema."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    """The repair, as a unified diff."""
    test_patch: str
    """What the judge does to the tests."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    version: str = ""
    image: str = ""
    """Image that holds repository and packages; "" where our own sandbox does."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other columns, kept as they are."""

    def to_json(self) -> dict[str, Any]:
        """Return the row, test lists as JSON texts as SWE-bench has them."""
        row = {name: getattr(self, name) for name in (*_NEEDED, "version")}
        row["FAIL_TO_PASS"] = json.dumps(list(self.fail_to_pass))
        row["PASS_TO_PASS"] = json.dumps(list(self.pass_to_pass))
        if self.image:
            row["image_name"] = self.image
        return {**row, **self.more}

    @classmethod
    def from_json(cls, row: Mapping[str, Any], where: str = "instance ") -> Self:
        """Return the instance of a row; test lists may be lists or JSON texts.

        Args:
            row: By SWE-bench's names of columns.
            where: What messages begin with.

        Raises:
            ConfigError: A column is missing, or a list of tests is none.
        """
        missing = [name for name in (*_NEEDED, "FAIL_TO_PASS", "PASS_TO_PASS") if name not in row]
        where += str(row.get("instance_id", "?"))
        if missing:
            raise ConfigError(f"{where}: column {missing[0]!r} is missing")
        known = {*_NEEDED, "FAIL_TO_PASS", "PASS_TO_PASS", "version", "image_name"}
        return cls(
            **{name: str(row[name]) for name in _NEEDED},
            fail_to_pass=_tests(row["FAIL_TO_PASS"], f"{where}: FAIL_TO_PASS"),
            pass_to_pass=_tests(row["PASS_TO_PASS"], f"{where}: PASS_TO_PASS"),
            version=str(row.get("version") or ""),
            image=str(row.get("image_name") or ""),
            more={name: value for name, value in row.items() if name not in known},
        )


def _tests(value: Any, where: str) -> tuple[str, ...]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{where}: wanted a list of test ids, got {str(value)[:60]!r}")
    return tuple(found)


def read_instances(path: Path) -> list[Instance]:
    """Return the instances of a file of JSON lines, CSV or Parquet.

    Raises:
        ConfigError: A row is no instance; the message names it.
    """
    return [Instance.from_json(row, f"{where}: instance ") for where, row in read_rows(path)]


def as_instance(
    file: TaskFile, record: SweRecord, project: Project, style: Style = "issue"
) -> Instance:
    """Return one of our tasks as an instance in this ``style``."""
    broken = broken_of(file, record, project)
    base = {**project.files, **{path: data for path, data in broken.items() if data is not None}}
    return Instance(
        instance_id=record.id.replace("/", "__"), repo=file.name, base_commit=file.digest,
        problem_statement=problem_statement(record, file.name, file.version, style),
        patch=diff_text({path: project.files.get(path) for path in broken}, base), test_patch="",
        fail_to_pass=record.fail_to_pass, pass_to_pass=tuple(file.pass_to_pass(record)),
        version=file.version,
    )  # fmt: skip


def write_predictions(path: Path, model: str, patches: Iterable[tuple[str, str]]) -> int:
    """Write predictions in SWE-bench's format; return their number.

    Args:
        path: File of JSON lines.
        model: Name of who made them.
        patches: Instance id and unified diff of each.
    """
    rows = [
        {"instance_id": instance, "model_name_or_path": model, "model_patch": patch}
        for instance, patch in patches
    ]
    fresh = path.with_name(path.name + ".partial")
    fresh.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    fresh.replace(path)
    return len(rows)
