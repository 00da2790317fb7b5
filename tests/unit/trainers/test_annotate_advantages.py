import numpy as np

from helpers.trajectories import episode
from turngym.trainers.credit.base import Credit
from turngym.trainers.runs.annotate_advantages import most_instructive, with_advantages
from turngym.trainers.samples import per_token, to_samples


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


def test_a_batch_that_teaches_nothing_tells_nothing():
    assert most_instructive(Credit(samples=())) == []


def test_advantages_of_tokens_of_another_episode_are_not_told():
    credit = batch(("a", 1.0))
    other = episode([1.0, 0.0, 0.0])
    told = with_advantages(other, np.zeros(3), credit.samples)
    assert "token_advantages" not in told.metadata
    assert told.metadata["advantages"] == [0.0, 0.0, 0.0]
