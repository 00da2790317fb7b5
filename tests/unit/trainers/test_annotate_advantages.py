from dataclasses import replace

import numpy as np

from helpers.trajectories import episode
from turngym.trainers.credit.base import Credit
from turngym.trainers.runs.annotate_advantages import most_instructive, with_advantages
from turngym.trainers.samples import per_token, to_samples
from turngym.trainers.selection.past import as_context


def batch(*tasks_and_values: tuple[str, float]) -> Credit:
    trajectories = tuple(
        episode([0.0, 1.0], member=i, task_id=task) for i, (task, _) in enumerate(tasks_and_values)
    )
    values = tuple(np.array([value, -value]) for _, value in tasks_and_values)
    samples = [
        sample
        for i, (trajectory, values_T) in enumerate(zip(trajectories, values, strict=True))
        for sample in to_samples(trajectory, per_token(trajectory, values_T), index=i)
    ]
    return Credit(samples=tuple(samples), trajectories=trajectories, advantages=values)


def test_the_group_with_the_largest_advantages_is_told_with_them():
    told = most_instructive(batch(("a", 0.1), ("b", 2.0), ("a", 0.3), ("b", -1.0)))
    assert [t.task_id for t in told] == ["b", "b"]
    assert [t.metadata["advantages"] for t in told] == [[2.0, -2.0], [-1.0, 1.0]]
    assert told[0].metadata["token_advantages"] == [[2.0, 2.0], [-2.0, -2.0]]


def test_an_attempt_that_late_ones_are_compared_with_is_told_once():
    """Each late attempt stands beside those that its group closed with, as context."""
    late = batch(("a", 1.0), ("a", -1.0), ("b", 3.0))
    sibling = episode([0.0, 1.0], member=7, task_id="a")
    sibling = replace(sibling, turns=as_context(sibling.turns))
    trajectories = (sibling, late.trajectories[0], sibling, *late.trajectories[1:])
    values = [np.array([value, -value]) for value in (1.5, 1.0, 1.5, -1.0, 3.0)]
    credit = replace(late, samples=(), trajectories=trajectories, advantages=(*values,))
    assert [t.member for t in most_instructive(credit)] == [7, 0, 1]


def test_a_batch_that_teaches_nothing_tells_nothing():
    assert most_instructive(Credit(samples=())) == []


def test_advantages_of_tokens_of_another_episode_are_not_told():
    credit = batch(("a", 1.0))
    other = episode([1.0, 0.0, 0.0])
    told = with_advantages(other, np.zeros(3), credit.samples)
    assert "token_advantages" not in told.metadata
    assert told.metadata["advantages"] == [0.0, 0.0, 0.0]
