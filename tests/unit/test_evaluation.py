"""What episodes say about a policy, and how sure that is."""

from __future__ import annotations

import json

import pytest

import turngym
from helpers.trajectories import episode
from turngym.agents.scripted import ExpertPolicy, NoopPolicy
from turngym.rollouts.evaluation.evaluate import evaluate
from turngym.rollouts.evaluation.statistics import (
    Evaluation,
    Measure,
    summarize,
    wilson_interval,
)
from turngym.tasks.base import procedural_task
from turngym.types import StopReason


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0), (5, 10, 0.236593, 0.763407),
     (81, 263, 0.255266, 0.366186), (1, 1, 0.206549, 1.0)],
)  # fmt: skip
def test_wilson_intervals_match_published_values(
    successes: int, trials: int, low: float, high: float
) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (3, 2), (-1, 2)])
def test_wilson_refuses_impossible_counts(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(successes, trials)


def test_the_interval_of_a_mean_never_passes_the_values() -> None:
    few = Measure.mean([[0.0], [1.0], [1.0], [0.0]])
    assert few == Measure(value=0.5, interval=(0.0, 1.0))  # 1.96 errors would be -0.07 to 1.07
    assert Measure.mean([[1.0]]) == Measure(value=1.0)


def test_more_attempts_that_end_alike_make_no_interval_narrower() -> None:
    once = [
        episode([reward], score=reward, task_id=f"t{n}") for n, reward in enumerate((0, 0, 1, 0))
    ]
    found = summarize(once * 8)
    assert found.success_ci95 == summarize(once).success_ci95 == wilson_interval(1, 4)
    assert found.mean_return_ci95 == summarize(once).mean_return_ci95


def test_faults_and_unjudged_episodes_are_no_failures() -> None:
    found = summarize(
        [
            episode([1.0, 1.0], score=1.0),
            episode([0.0], member=1, score=0.5, stop=StopReason.TRUNCATED_TURNS),
            episode([0.5], member=2),
            episode([9.0], member=3, error="broke"),
        ]
    )
    assert (found.episodes, found.faults, found.unscored, found.solved) == (4, 1, 1, 1)
    assert found.solved_share == 1 / 3
    assert found.success == 0.5
    assert found.mean_score == 0.75
    assert found.mean_return == pytest.approx(2.5 / 3)
    assert found.mean_turns == pytest.approx(4 / 3)
    assert found.truncated == 1


def test_nothing_judged_gives_no_numbers_instead_of_zeros() -> None:
    found = summarize([episode([0.0], error="broke")])
    assert (found.success, found.success_ci95, found.mean_return, found.mean_turns) == (None,) * 4


def test_an_evaluation_survives_json() -> None:
    for found in (summarize([]), summarize([episode([1.0], score=1.0)] * 2)):
        assert Evaluation.from_json(json.loads(json.dumps(found.to_json()))) == found


async def test_the_expert_solves_what_silence_does_not() -> None:
    tasks = [procedural_task("maze-easy", "test", index) for index in range(6)]
    results = {}
    for policy in (ExpertPolicy(), NoopPolicy()):
        trajectories = await evaluate(
            lambda: turngym.make("text/maze"),  # type: ignore[arg-type, return-value]
            policy,
            tasks,
            env_id="text/maze",
            seed=3,
            concurrency=2,
            attempts=2,
        )
        assert [t.task_id for t in trajectories] == [task.id for task in tasks for _ in range(2)]
        results[type(policy)] = summarize(trajectories)
    assert results[ExpertPolicy].success == 1.0
    assert results[NoopPolicy].success == 0.0
    assert results[NoopPolicy].invalid_actions > 0
