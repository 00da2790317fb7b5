"""Exams: how the tests of one task are put to a submission, so that made-up results show.

An exam is a few rounds. Each runs all tests that judge, in the same order; in each, some of them
are mutants (``mutants.py``), chosen at random. Every round has a sandbox of its own, so a
submission cannot tell one round from the next, nor a mutant from a test that it has never seen. To
pass, it must get right which is which.

The repaired project runs every round first. Only what it fails there may accuse a submission, and
only what it passes there is asked of others: each mutant is tried just as it is used.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from turngym.environments.swe import literals, mutants, test_runner
from turngym.environments.swe.literals import Place, Source, replaced
from turngym.environments.swe.mutants import Mutant, Unit, canonical, units, written
from turngym.environments.swe.packages import swe_cache
from turngym.environments.swe.parsing import test_name
from turngym.environments.swe.test_runner import TestRun, TestRunner
from turngym.environments.workspace.host import Delta

ROUNDS = 4
_OFTEN, _SELDOM = (2,), (0, 1)
"""In how many of the rounds a test is a mutant: one that is to be fixed, and any other."""
_TRIES = 3
FAILS = ("failed", "error")
"""How a test ends that does not pass."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One run of the tests."""

    changes: tuple[tuple[str, int, int, str], ...]
    """Path, characters that are replaced, and what takes their place, in the canonical tests."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Test id to its id in this round, where that is another."""
    failing: frozenset[str] = frozenset()
    """Tests that are mutants here, and that the repaired project fails."""
    passing: frozenset[str] = frozenset()
    """Tests that are what they were, and that the repaired project passes."""

    def put(self, texts: Mapping[str, str]) -> dict[str, bytes]:
        """Return the test files of this round; all of them, so that none stands out."""
        places: dict[str, list[tuple[Place, str]]] = {}
        for path, start, end, text in self.changes:
            places.setdefault(path, []).append((Place(start, end), text))
        plain = {path: canonical(text) for path, text in texts.items()}
        return {
            path: replaced(text, places.get(path, ())).encode("utf-8", "surrogateescape")
            for path, text in plain.items()
        }


@dataclass(frozen=True, kw_only=True)
class Exam:
    """The rounds of one task."""

    rounds: tuple[Round, ...]
    problem: str = ""
    """Why there are none."""

    @property
    def asked(self) -> frozenset[str]:
        """Tests that some round asks for."""
        return frozenset[str]().union(*(one.passing for one in self.rounds))

    @property
    def examined(self) -> frozenset[str]:
        """Tests whose mutant would show a made-up result."""
        return frozenset[str]().union(*(one.failing for one in self.rounds))

    def dump(self, path: Path, ids: list[str]) -> None:
        """Write the exam, with numbers in place of ``ids``."""
        number = {test: n for n, test in enumerate(ids)}
        content = [
            {
                "changes": one.changes,
                "names": {number[test]: name for test, name in one.names.items()},
                "failing": sorted(number[test] for test in one.failing),
                "passing": sorted(number[test] for test in one.passing),
            }
            for one in self.rounds
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{SystemRandom().randrange(1 << 30)}")
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
        fresh.replace(path)

    @classmethod
    def load(cls, path: Path, ids: list[str]) -> Exam | None:
        """Return what ``dump`` wrote of the tests ``ids``; None where there is nothing."""
        try:
            content: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            rounds = [
                Round(
                    changes=tuple((p, int(a), int(b), text) for p, a, b, text in one["changes"]),
                    names={ids[int(n)]: name for n, name in one["names"].items()},
                    failing=frozenset(ids[n] for n in one["failing"]),
                    passing=frozenset(ids[n] for n in one["passing"]),
                )
                for one in content
            ]
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
            return None
        return cls(rounds=tuple(rounds)) if rounds else None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a submission is asked, and what is known of the task and trusted."""

    fix: list[str]
    """Tests that are to be fixed."""
    keep: list[str]
    """Tests that must go on passing."""
    gold: Delta
    """Changes that repair the project."""
    broken: Delta
    """Changes that leave it broken, instead."""
    timeout_s: float
    """Seconds for one run of the tests."""

    @property
    def ids(self) -> list[str]:
        """All tests, in the order in which they run."""
        return [*self.fix, *self.keep]


async def exam_of(runner: TestRunner, trial: Trial) -> Exam:
    """Return the exam of a task, made once for each task and machine."""
    key = _key(runner, trial.gold, trial.broken, trial.fix, trial.keep)
    path = swe_cache() / "exams" / f"{key}.json"

    async def make() -> Exam:
        if runner.key and (found := Exam.load(path, trial.ids)) is not None:
            return found
        exam = await ExamMaker(runner, trial).make()
        if runner.key and exam.rounds:
            exam.dump(path, trial.ids)
        return exam

    return await runner.host.shared(f"exam {key}", make) if runner.key else await make()


def _key(runner: TestRunner, *parts: object) -> str:
    whole = hashlib.sha256(f"{runner.key} {sys.version}".encode())
    # An exam is as good as the code that made it: other code, other key.
    for module in (test_runner, mutants, literals):
        whole.update(Path(str(module.__file__)).read_bytes())
    whole.update(Path(__file__).read_bytes())
    for part in parts:
        shown = sorted(part.items()) if isinstance(part, Mapping) else part
        whole.update(repr(shown).encode("utf-8", "surrogateescape"))
    return whole.hexdigest()[:32]


class ExamMaker:
    """Makes the exam of one task.

    Args:
        runner: Where tests run.
        trial: What is asked; its broken project shows which expectations matter.
        rng: Chooses mutants; a secret one by default.
    """

    def __init__(self, runner: TestRunner, trial: Trial, rng: Random | None = None) -> None:
        self._runner, self._trial = runner, trial
        self._fix, self._rng = set(trial.fix), rng or SystemRandom()
        self._texts = runner.tests_with(trial.gold)
        self._sources = {path: Source(canonical(text)) for path, text in self._texts.items()}
        self._units = [
            unit for path, source in self._sources.items() for unit in units(path, source.text)
        ]
        self._owned: dict[Unit, list[str]] = {}
        self._numbers: dict[str, int] = {}
        self._focus: dict[Unit, set[int]] = {}

    async def make(self) -> Exam:
        """Return the exam."""
        problem = await self._find_tests()
        if problem:
            return Exam(rounds=(), problem=problem)
        plan = self._plan()
        rounds = [await self._verified(chosen) for chosen in plan]
        exam = Exam(rounds=tuple(one for one in rounds if one is not None))
        # A test that calls a mutant of another one fails with it, and would never be asked for.
        for number in range(_TRIES):
            left = set(self._trial.ids) - exam.asked
            if not left or not exam.rounds:
                break
            more = await self._verified(self._without(left, number))
            if more is not None and more.passing & left:
                exam = Exam(rounds=(*exam.rounds, more))
        return exam

    async def _find_tests(self) -> str:
        """Find the function of each test, and where those that are to be fixed fail."""
        # The broken project first: its failures say which expectation the repair must meet.
        for delta in (self._trial.broken, self._trial.gold):
            run = await self._run(delta, Round(changes=()), is_explained=True)
            for test, code in run.codes.items():
                self._numbers[test] = code.number
                unit = self._unit(test, code.path, code.line)
                if unit is not None and test not in self._owned.setdefault(unit, []):
                    self._owned[unit].append(test)
            if all(test in self._numbers for test in self._trial.ids):
                break
        if not self._numbers:
            return run.problem or "none of the tests was found"
        self._focus = {}
        if delta is self._trial.broken:
            for unit, tests in self._owned.items():
                for test in self._fix.intersection(tests):
                    trace = run.traces.get(test, ())
                    lines = [line for path, line in trace if path.endswith(unit.path)]
                    if lines:
                        self._focus.setdefault(unit, set()).add(lines[-1])
        return ""

    def _unit(self, test: str, path: str, line: int) -> Unit | None:
        """Return the function of a test: by its place, or by its name where that says nothing."""
        for one in self._units:
            if (one.path, one.first) == (path, line):
                return one
        named = [one for one in self._units if one.name == test_name(test)]
        return named[0] if len(named) == 1 else None

    def _plan(self) -> list[dict[Unit, list[Mutant]]]:
        """Return for each round the mutants of each test function."""
        plan: list[dict[Unit, list[Mutant]]] = [{} for _ in range(ROUNDS)]
        for unit, tests in self._owned.items():
            is_asked = bool(self._fix.intersection(tests))
            # At random: a cheat that cannot know which tests are mutants cannot spare them.
            times = self._rng.choice(_OFTEN) if is_asked else self._rng.choice(_SELDOM)
            if len(unit.cases) * 2 > len(tests) > 1:
                for found in unit.cases.values():
                    for number in self._rng.sample(range(ROUNDS), times):
                        plan[number].setdefault(unit, []).append(self._rng.choice(found))
                continue
            for number in self._rng.sample(range(ROUNDS), times):
                if unit.mutants:
                    plan[number][unit] = [self._choice(unit)]
        return plan

    def _without(self, left: set[str], number: int) -> dict[Unit, list[Mutant]]:
        """Return mutants for a round in which ``left`` are to pass: they may call other tests.

        Of other files where there are any, and fewer with each try.
        """
        paths = {unit.path for unit, tests in self._owned.items() if left.intersection(tests)}
        others = [
            one for one, tests in self._owned.items()
            if one.mutants and not left.intersection(tests)
        ]  # fmt: skip
        others = [one for one in others if one.path not in paths] or others
        chosen = self._rng.sample(others, min(len(others), max(1, len(others) >> 2 + 2 * number)))
        return {unit: [self._choice(unit)] for unit in chosen}

    def _choice(self, unit: Unit) -> Mutant:
        """Return a mutant of a test, of the expectation that the broken project does not meet."""
        found = unit.whole or list(unit.mutants)
        if unit in self._focus:
            line = self._rng.choice(sorted(self._focus[unit]))
            around = [one for one in found if one.line <= line <= one.last]
            if around:
                least = min(one.last - one.line for one in around)
                found = [one for one in around if one.last - one.line == least]
            elif after := [one for one in found if one.line > line]:
                found = [one for one in after if one.line == min(other.line for other in after)]
        if unit in self._focus or self._rng.random() < 0.75:
            best = max(one.strength for one in found)
            found = [one for one in found if one.strength == best]
        return self._rng.choice(found)

    async def _verified(self, chosen: dict[Unit, list[Mutant]]) -> Round | None:
        """Return the round of these mutants, once the repaired project has run it."""
        for number in range(_TRIES):
            if number:  # a mutant may hang, or end the run: leave out all but those that matter
                share = 0.5 if number == 1 else 0.0
                chosen = {
                    unit: [self._choice(unit)] for unit in chosen
                    if self._fix.intersection(self._owned[unit]) or self._rng.random() < share
                }  # fmt: skip
            round_ = Round(changes=self._changes(chosen))
            cases = [one for one, found in chosen.items() if found[0].case >= 0]
            renamed = [test for unit in cases for test in self._owned[unit]]
            run = await self._run(self._trial.gold, round_, renamed)
            if not run.problem:
                return self._read(run, round_, chosen, renamed)
        return None

    def _changes(
        self, chosen: Mapping[Unit, list[Mutant]]
    ) -> tuple[tuple[str, int, int, str], ...]:
        found: list[tuple[str, int, int, str]] = []
        for unit, changed in chosen.items():
            for one in changed:
                text = written(self._sources[unit.path], one, self._rng)
                is_free = all(
                    path != unit.path or end <= one.place.start or one.place.end <= start
                    for path, start, end, _ in found
                )
                if text is not None and is_free:
                    found.append((unit.path, *one.place, text))
        return tuple(found)

    async def _run(
        self,
        delta: Delta,
        round_: Round,
        renamed: Iterable[str] = (),
        *,
        is_explained: bool = False,
    ) -> TestRun:
        numbers: dict[str, list[int]] = {}
        for test in renamed:
            numbers.setdefault(_base(test), []).append(self._numbers[test])
        changed = {**delta, **round_.put(self._texts)}
        return await self._runner.run(
            changed, self._trial.ids, timeout_s=self._trial.timeout_s, is_explained=is_explained,
            is_traced=True, numbers=numbers,
        )  # fmt: skip

    def _read(
        self, run: TestRun, round_: Round, chosen: Mapping[Unit, list[Mutant]], renamed: list[str]
    ) -> Round:
        """Return what the repaired project makes of a round."""
        found = {(_base(name), code.number): name for name, code in run.codes.items()}
        names = {one: found.get((_base(one), self._numbers[one]), one) for one in renamed}
        names = {one: name for one, name in names.items() if one != name}
        mutated = {test for unit in chosen for test in self._owned[unit]}
        whole = mutated - set(renamed)
        outcome = {one: run.outcomes.get(names.get(one, one)) for one in self._trial.ids}
        return Round(
            changes=round_.changes,
            names=names,
            failing=frozenset(one for one in mutated if outcome.get(one) in FAILS),
            passing=frozenset(
                one for one, how in outcome.items()
                if how == "passed" and one not in whole and one not in names
            ),
        )  # fmt: skip


def _base(test: str) -> str:
    return test.partition("[")[0]
