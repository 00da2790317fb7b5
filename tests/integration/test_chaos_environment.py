"""Whatever environments, policies and judges raise: one try ends as a fault, and nothing is lost.

The full product of places, modes, admissions and interruptions is part of ``make proof PART=drill``
(TURNGYM_DRILL=full), which prints what it counted.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from helpers.chaos import IN_CHILDREN, IN_COROUTINES, KINDS, ChaosPolicy, Maker
from turngym.config import load_config
from turngym.rollouts.episode import EpisodeSpec
from turngym.rollouts.evaluation.evaluate import collect
from turngym.rollouts.scheduler.audit import AuditReport, audit
from turngym.rollouts.scheduler.config import Barrier, Interruption, SchedulerConfig
from turngym.rollouts.scheduler.groups import UniformSelection
from turngym.rollouts.scheduler.ledger import LEDGER_FILE, Ledger
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.rollouts.simulation.simulate import run_virtually
from turngym.tasks.base import Task

FULL = os.environ.get("TURNGYM_DRILL") == "full"
SIZE = 2
ADMISSIONS = ("in_order", "ready_first", "windowed", "capacity")
BARRIERS: Sequence[Barrier] = get_args(Barrier)
INTERRUPTIONS: Sequence[Interruption] = get_args(Interruption)
ENV_POINTS = ("reset", "step1", "step2", "score", "close")
POLICY_POINTS = ("start", "act1", "act2", "finish", "end")
UNSEEN = ("close", "finish", "end", "cancel")
"""Where an episode has its result, or nobody wants one any more."""


@dataclass(frozen=True)
class Place:
    """Where environments live."""

    isolation: Any
    wanted: Any
    kinds: Mapping[str, Any]
    points: tuple[str, ...] = (*ENV_POINTS, *POLICY_POINTS)
    is_virtual: bool = False
    spare: int = 1
    """Members of a group beyond those that are needed; the last one is cancelled."""


PLACES = {
    "inline": Place("inline", "plain", {**KINDS, **IN_COROUTINES}, is_virtual=True),
    "coroutines": Place(
        "inline",
        "async",
        {**KINDS, **IN_COROUTINES},
        (*ENV_POINTS, *POLICY_POINTS, "cancel"),
        is_virtual=True,
    ),
    "face": Place("inline", "face", KINDS, (*ENV_POINTS, "cancel")),
    "thread": Place("thread", "plain", KINDS, ENV_POINTS),
    "process": Place("process", "plain", {**KINDS, **IN_CHILDREN}, ENV_POINTS, spare=0),
}


@dataclass(frozen=True)
class Outcome:
    """What one run did."""

    report: AuditReport
    raised: Counter[str]
    """How many kinds were raised, by point."""
    episodes: int
    metrics: Mapping[str, float]


def troubles(points: Iterable[str], kinds: Iterable[str], *, always: bool) -> list[Task]:
    """Return one task for each thing that breaks, after some for environments that break in making.

    Without those, the first tasks would be quarantined for what they did not do.
    """
    kinds = tuple(kinds)
    names = [f"nowhere {number}" for number, _ in enumerate(kinds)]
    names += [f"{point} {kind}" for point, kind in product(points, kinds)]
    names += [f"{point} users-exit always" for point in points if always and point != "cancel"]
    return [Task(id=name, seed=0) for name in names]


async def train(
    folder: Path, place: Place, tasks: Sequence[Task], kinds: Sequence[str], settings: Any
) -> Mapping[str, float]:
    """Train on ``tasks`` until there are no more."""
    base = {
        "concurrency": 12,
        "groups_per_step": 3,
        "group": {"redundancy": place.spare},
        "failures": {"fraction": 1.0},
        "deadlines": {"close_s": 60.0},
    }
    config = load_config(SchedulerConfig, [base, settings])
    pool = EnvPool(
        Maker(folder, tuple(kinds), place.wanted),
        size=config.concurrency,
        isolation=place.isolation,
        deadlines=config.deadlines,
    )
    policy = ChaosPolicy(folder)
    selection = UniformSelection(tasks.__getitem__, group_size=SIZE, count=len(tasks))
    threaded = not place.is_virtual
    async with (
        Ledger(folder / LEDGER_FILE, threaded=threaded) as ledger,
        RolloutScheduler(
            pool, policy, selection, config, env_id="helpers/chaos", seed=1, ledger=ledger
        ) as scheduler,
    ):
        while (batch := await scheduler.take()) is not None:
            await asyncio.sleep(0)
            policy.version = batch.step + 1
            await scheduler.publish(batch.step + 1)
            scheduler.mark_checkpointed(batch.step + 1)
        return scheduler.metrics()


def play(
    folder: Path, place: Place, kinds: Sequence[str], points: Sequence[str], **settings: Any
) -> Outcome:
    """Train on everything that ``kinds`` and ``points`` give, and read the account."""
    tasks = troubles(points, kinds, always=place.isolation != "process")
    run = run_virtually if place.is_virtual else asyncio.run
    metrics = run(train(folder, place, tasks, kinds, settings))
    marks = [mark.name.split("+") for mark in folder.glob("*+*") if mark.name != "make+"]
    raised = Counter(point for point, *_ in marks)
    return Outcome(audit(folder), raised, len(tasks) * (SIZE + place.spare), metrics)


def check(found: Outcome, kinds: Sequence[str], points: Sequence[str], place: Place) -> None:
    """Everything was raised, and every episode was trained, retried or dropped for a name."""
    report = found.report
    assert report.problems == []
    assert report.is_clean
    assert set(report.episodes) <= {"checkpointed", "applied", "dropped"}, report.episodes
    assert report.episodes.total() == found.episodes
    assert all(report.drops), report.drops
    assert report.tokens["open"] == 0
    for point in points:
        always = place.isolation != "process" and point != "cancel"
        assert found.raised[point] == len(kinds) + always, (point, found.raised)
    quiet = {"cancels-itself"} & set(kinds)  # may come too late to change anything
    loud = [p for p in points if p not in UNSEEN]
    least = sum(found.raised[p] - len(quiet) - (p.startswith("act")) for p in loud)
    faults = sum(count for name, count in report.tries.items() if name.startswith("error_"))
    assert faults >= least + found.raised["make"] - len(quiet), (faults, least, report.tries)
    if "close" in points:
        assert found.metrics["pool/close_faults"] > 0


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "barrier", "admission"),
    [
        ("inline", "none", "in_order"),
        ("inline", "turn", "windowed"),
        ("coroutines", "none", "in_order"),
        ("coroutines", "batch", "capacity"),
        ("face", "none", "ready_first"),
        ("thread", "none", "in_order"),
    ],
)
def test_whatever_is_raised_costs_one_try(
    tmp_path: Path, name: str, barrier: Barrier, admission: str
) -> None:
    place = PLACES[name]
    kinds = list(place.kinds)
    assert len(kinds) >= 25
    found = play(
        tmp_path, place, kinds, place.points, barrier=barrier, admission={"type": admission}
    )
    check(found, kinds, place.points, place)


@pytest.mark.timeout(1200)
def test_whatever_happens_in_a_child_costs_one_try(tmp_path: Path) -> None:
    place, points = PLACES["process"], ("step1",)
    kinds = ["keyboard-interrupt", "exit", "cancelled", "unreadable", "segfault"]
    found = play(tmp_path, place, kinds, points, concurrency=4, groups_per_step=1)
    check(found, kinds, points, place)


@pytest.mark.parametrize("wanted", ["plain", "async", "face"])
async def test_episodes_in_turns_break_one_by_one(tmp_path: Path, wanted: Any) -> None:
    kinds = list(KINDS) + (list(IN_COROUTINES) if wanted != "face" else [])
    points = (*ENV_POINTS, *POLICY_POINTS)
    specs = [
        EpisodeSpec(env_id="helpers/chaos", task=task, env_seed=0, policy_seed=number)
        for number, task in enumerate(troubles(points, kinds, always=False))
    ]
    made = await collect(
        Maker(tmp_path, tuple(kinds), wanted), ChaosPolicy(tmp_path), specs, concurrency=5
    )
    assert [t.task_id for t in made] == [spec.task.id for spec in specs]
    for trajectory in made:
        point, kind = trajectory.task_id.split(" ")
        result = trajectory.stop_reason.is_error or trajectory.score is not None
        assert result, trajectory.task_id
        if (
            point not in UNSEEN
            and point != "nowhere"
            and kind not in ("cancels-itself", "overflow")
        ):
            assert trajectory.stop_reason.is_error, trajectory.task_id


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not FULL, reason="part of make proof PART=drill")
@pytest.mark.parametrize("name", PLACES)
def test_the_full_product(tmp_path: Path, name: str) -> None:
    place, counts = PLACES[name], Counter[str]()
    kinds = list(place.kinds)
    for number, (barrier, admission, interruption) in enumerate(
        product(BARRIERS, ADMISSIONS, INTERRUPTIONS)
    ):
        if place.isolation == "process" and number % 13:  # each barrier once: children are dear
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        # a step that never ends holds up a round, a barrier, and new weights that wait for it
        may_wait = barrier == "none" and interruption == "continue_partial"
        points = [p for p in place.points if may_wait or p != "cancel"]
        found = play(
            folder,
            place,
            kinds,
            points,
            barrier=barrier,
            admission={"type": admission, "staleness": 1},
            interruption=interruption,
        )
        check(found, kinds, points, place)
        counts["runs"] += 1
        counts["raised"] += found.raised.total()
        counts["episodes"] += found.episodes
        counts.update({f"tries {n}": c for n, c in found.report.tries.items()})
        counts.update({f"episodes {n}": c for n, c in found.report.episodes.items()})
        counts.update({f"dropped {n}": c for n, c in found.report.drops.items()})
    summary = dict(sorted(counts.items()))
    print(f"\n{name}: {len(kinds)} kinds, {len(place.points)} points: {summary}")
