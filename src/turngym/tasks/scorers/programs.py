"""Scorers that run something: a script, queries, pytest; in a sandbox that the agent never saw."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from turngym.tasks.problem import FileWorld, JudgeResult
from turngym.tasks.scorers.files import passed

_PLACE = "/run/judge"
"""Where tests of the judge's own are put."""
_FAILS = {"failure", "error", "skipped"}
"""What a report says of a test that did not pass, beside its properties."""
_QUERIES = """import json, sqlite3, sys
from pathlib import Path
try:
    c = sqlite3.connect(Path(sys.argv[1]).resolve().as_uri() + "?mode=ro", uri=True)
    print(json.dumps([c.execute(one).fetchall() for one in sys.argv[2:]]))
except sqlite3.Error as error:
    print(json.dumps(str(error)))
"""
_TESTS = """import os, sys, pytest
sys.path.append(os.getcwd())
os.environ["PYTHONPATH"] += os.pathsep + os.getcwd()
sys.exit(pytest.main(sys.argv[1:]))
"""
"""Last on the path: nothing of the workspace shall stand in for pytest or the library."""


def rewards_of(as_json: bytes | None, as_text: bytes | None) -> dict[str, float]:
    """Return the rewards of a file: a number, or numbers by name.

    Args:
        as_json: Contents of ``reward.json``, which comes first; None where there is none.
        as_text: Contents of ``reward.txt``.

    Raises:
        FileNotFoundError: There is neither.
        ValueError: It holds no finite numbers.
    """
    if as_json is None and as_text is None:
        raise FileNotFoundError("no reward file was written")
    try:
        found = json.loads(as_json) if as_json is not None else float(as_text or b"")
    except ValueError as error:
        raise ValueError(f"the reward file holds no number: {str(error)[:200]}") from None
    parts = found if isinstance(found, dict) else {"reward": found}
    if not parts or not all(
        isinstance(one, int | float) and math.isfinite(one) for one in parts.values()
    ):
        raise ValueError(f"wanted finite numbers as rewards, got {found!r:.200}")
    return {name: float(one) for name, one in parts.items()}


def result_of(rewards: Mapping[str, float], evidence: str) -> JudgeResult:
    """Return what rewards say: the one called ``reward``, else their mean."""
    score = rewards.get("reward", sum(rewards.values()) / len(rewards))
    parts = {} if rewards.keys() == {"reward"} else rewards
    return JudgeResult(score=score, parts=parts, evidence="" if score == 1 else evidence)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script decides by its exit code, or by the reward file that it writes.

    Raises:
        FileNotFoundError: It wrote no reward file; a broken judge is no 0.
        TimeoutError: It took too long.
    """

    command: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the judge's own, by path."""
    reward: str = ""
    """File that it writes: a number, or JSON when it ends in ``.json``. "": the exit code decides,
    0 for all that was asked."""
    timeout_s: float = 60.0

    async def __call__(self, world: FileWorld) -> JudgeResult:
        collect = [self.reward] if self.reward else []
        ran = await world.run(
            self.command, files=self.files, collect=collect, timeout_s=self.timeout_s
        )
        if ran.timed_out:
            raise TimeoutError(f"the judge's script took more than {self.timeout_s:g} s")
        said = " | ".join((ran.output + ran.errors).strip().splitlines()[-3:])
        if not self.reward:
            return passed(ran.exit_code == 0, said or f"it ended with {ran.exit_code}")
        data = ran.files.get(self.reward)
        is_json = self.reward.endswith(".json")
        return result_of(rewards_of(data if is_json else None, None if is_json else data), said)


@dataclass(frozen=True, kw_only=True)
class SqlState:
    """A SQLite database of the agent's answers queries as wanted."""

    database: str
    wanted: Mapping[str, Sequence[Sequence[object]]]
    """Query to its rows."""
    timeout_s: float = 30.0

    async def __call__(self, world: FileWorld) -> JudgeResult:
        """Ask; what cannot be asked is not as wanted."""
        words = ["python3", "-I", "-c", _QUERIES, self.database, *self.wanted]
        place = f"{_PLACE}/rows.json"  # what a program says is cut where it is long
        command = f"{shlex.join(words)} > {place}"
        ran = await world.run(
            command, files={place: b""}, collect=[place], timeout_s=self.timeout_s
        )
        try:
            found = json.loads(ran.files.get(place, b""))
        except ValueError:
            found = "it cannot be read"
        if isinstance(found, str):
            return passed(False, f"{self.database}: {found}")
        for (query, rows), answer in zip(self.wanted.items(), found, strict=True):
            if answer != [list(row) for row in rows]:
                return passed(False, f"{self.database}: {query[:60]!r} gives {str(answer)[:80]}")
        return passed(True, "")


@dataclass(frozen=True, kw_only=True)
class Pytest:
    """Tests of the judge's own pass on what the agent left; the problem's machine needs pytest.

    Submitted code that tests import shares their interpreter: what ends it early fails them all,
    but only the exam of SWE tasks finds one that makes results up.
    """

    files: Mapping[str, bytes]
    """Tests by file name, such as ``test_end.py``; they start in the workspace, and import from it
    what neither the library nor pytest has."""
    partial: bool = False
    """The share of tests that pass, in place of all or nothing."""
    timeout_s: float = 60.0

    async def __call__(self, world: FileWorld) -> JudgeResult:
        report = f"{_PLACE}/report.xml"
        names = " ".join(shlex.quote(f"{_PLACE}/{name}") for name in self.files)
        ran = await world.run(
            f"PYTHONPATH=/opt/tools python3 -P -c {shlex.quote(_TESTS)} -q --noconftest "
            f"-p no:cacheprovider -c /dev/null --rootdir {_PLACE} --tb=no --junitxml {report} "
            f"{names}",
            files={f"{_PLACE}/{name}": data for name, data in self.files.items()},
            collect=[report], timeout_s=self.timeout_s,
        )  # fmt: skip
        # A line of ! says that they were interrupted; submitted code may choose the exit code.
        if (data := ran.files.get(report)) is None or "\n!" in f"\n{ran.output}":
            return passed(False, f"the tests did not end: {ran.output.strip()[-200:]}")
        cases = list(ElementTree.fromstring(data).iter("testcase"))
        if not cases:
            raise ValueError(f"no test was found: {ran.output.strip()[-200:]}")
        failed = [case.get("name", "") for case in cases if _FAILS & {one.tag for one in case}]
        share = 1 - len(failed) / len(cases)
        evidence = f"failed: {', '.join(failed[:5])}" if failed else ""
        return JudgeResult(score=share if self.partial else share == 1, evidence=evidence)
