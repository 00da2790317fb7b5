"""Posteriors, samplers and budgets do what their formulas say."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.rollouts.evaluation.statistics import half_width
from turngym.trainers.selection.policy import (
    attempts_for,
    rounded,
    variance_shares,
)
from turngym.trainers.selection.samplers import (
    BanditSampler,
    Difficulty,
    SampledTasks,
    ThompsonSampler,
    UniformSampler,
    advantage_size,
    informative,
    probabilities,
)
from turngym.trainers.settings.selection import (
    Bandit,
    ConfidenceBudget,
    FixedBudget,
    Thompson,
    Uniform,
    VarianceBudget,
)


def tasks(
    size: int,
    difficulty: Difficulty | None = None,
    *,
    group_size: int = 4,
    category: Callable[[int], str] = str,
) -> SampledTasks:
    """Return tasks whose only parameter is their category."""
    return SampledTasks(
        size=size,
        difficulty=difficulty or Difficulty(decay=0.2, drift=0.0),
        group_size=group_size,
        parameter=lambda task, _: category(task),
    )


@pytest.mark.parametrize(
    ("attempts", "chances"),
    [
        (4, [0.0776, 0.3438, 0.8750, 0.3438]),
        (8, [0.1492, 0.5695, 0.9922, 0.5695]),
        (16, [0.2762, 0.8147, 1.0, 0.8147]),
    ],
)
def test_chance_that_a_group_is_informative(attempts: int, chances: list[float]) -> None:
    found = informative(np.array([0.02, 0.1, 0.5, 0.9]), attempts)
    assert found.tolist() == pytest.approx(chances, abs=5e-5)


def test_a_group_updates_the_posterior_of_its_task() -> None:
    """Sixteen attempts, a quarter of them successes, from Beta(1, 1)."""
    found = Difficulty(decay=0.2, drift=0.0)
    found.observe(3, [1.0] * 4 + [0.0] * 12, step=0)
    alpha, beta = found.parameters([3, 4], step=9)
    assert (alpha.tolist(), beta.tolist()) == ([5.0, 1.0], [13.0, 1.0])
    assert found.success([3], step=9)[0] == pytest.approx(0.2778, abs=1e-4)
    assert found.attempts([3, 4]) == [16, 0]


def test_posteriors_fade_with_time_and_survive_a_checkpoint() -> None:
    found = Difficulty(decay=0.2, drift=0.1)
    found.observe(0, [1.0] * 8, step=5)
    now, later = (found.success([0], step=step)[0] for step in (5, 40))
    assert now == pytest.approx(0.9)
    assert 0.5 < later < 0.6
    again = Difficulty(decay=0.2, drift=0.1)
    again.load_state(json.loads(json.dumps(found.state())))
    assert again.success([0], step=7)[0] == found.success([0], step=7)[0]


def test_thompson_sampling_prefers_tasks_between_easy_and_hard() -> None:
    difficulty = Difficulty(decay=0.0, drift=0.0)
    for task, share in enumerate([0.0, 1.0, 0.5, 0.0, 1.0, 0.5]):
        difficulty.observe(task, [share] * 40, step=0)
    for score in ("informative", "variance"):
        config = Thompson.model_validate({"type": "thompson", "score": score})
        sampler = ThompsonSampler(config, tasks(6, difficulty, group_size=4))
        for seed in range(20):
            chosen = sampler.choose(0, 2, step=0, rng=np.random.default_rng(seed))
            assert set(chosen) == {2, 5}
    assert len(set(sampler.choose(0, 6, step=0, rng=np.random.default_rng(0)))) == 6


def test_an_unknown_task_is_tried_sooner_or_later() -> None:
    difficulty = Difficulty(decay=0.0, drift=0.0)
    difficulty.observe(0, [0.5] * 40, step=0)
    config = Thompson(type="thompson")
    sampler = ThompsonSampler(config, tasks(2, difficulty, group_size=2))
    first = {sampler.choose(0, 1, step=0, rng=np.random.default_rng(i))[0] for i in range(50)}
    assert first == {0, 1}


def test_arms_are_paid_and_drawn_by_their_value() -> None:
    config = Bandit(type="bandit", by="name", rate=0.5, temperature=0.4)
    sampler = BanditSampler(config, tasks(3, category=str))
    sampler._arms = {0: "0", 1: "1", 2: "2"}
    for arm, paid in ((0, 0.8), (1, 0.2), (2, 0.5), (0, 0.6)):
        old = sampler.values.get(str(arm), 0.0)
        sampler.values[str(arm)] = 0.5 * paid + 0.5 * old
    assert sampler.values == pytest.approx({"0": 0.5, "1": 0.1, "2": 0.25})
    shares = probabilities([sampler.values[arm] for arm in "012"], config)
    assert shares.tolist() == pytest.approx([0.525447, 0.193301, 0.281252], abs=1e-6)
    rng = np.random.default_rng(0)
    drawn = np.bincount([sampler.choose(0, 1, step=0, rng=rng)[0] for _ in range(4000)]) / 4000
    assert drawn.tolist() == pytest.approx(shares.tolist(), abs=0.03)


def test_an_arm_earns_the_size_of_its_advantages() -> None:
    assert advantage_size([1, 1, 1, 1]) == 0.0
    assert advantage_size([1, 0, 0, 0, 0, 0, 0, 0]) == pytest.approx(
        (2.474874 + 7 * 0.353553) / 8, abs=1e-5
    )
    config = Bandit(type="bandit", by="name", rate=1.0)
    sampler = BanditSampler(config, tasks(2, category=lambda _: "all"))
    sampler.choose(0, 2, step=0, rng=np.random.default_rng(0))
    task = next(iter(sampler._arms))
    sampler.observe(task, [1.0, 0.0])
    assert sampler.values == {"all": pytest.approx(advantage_size([1.0, 0.0]))}
    sampler.observe(99, [1.0, 0.0])  # drawn by nobody
    assert len(sampler.values) == 1
    again = BanditSampler(config, tasks(2, category=lambda _: "all"))
    again.load_state(json.loads(json.dumps(sampler.state())))
    assert again.values == sampler.values


def test_uniform_tasks_come_in_turn() -> None:
    rng = np.random.default_rng(0)
    assert UniformSampler(Uniform(), tasks(3)).choose(6, 3, step=2, rng=rng) == [6, 7, 8]


def test_attempts_in_proportion_to_the_deviation() -> None:
    found = variance_shares(np.array([0.01, 0.09, 0.25]), mean=8)
    assert found.tolist() == pytest.approx([8 / 3, 8.0, 40 / 3])
    assert rounded(found, total=24, least=2, most=32) == [3, 8, 13]
    assert variance_shares(np.zeros(3), mean=8).tolist() == [8.0] * 3


def test_half_an_interval() -> None:
    assert half_width(4, 0.5) == pytest.approx(0.795612, abs=1e-6)
    assert half_width(8, 0.5) == pytest.approx(0.418010, abs=1e-6)
    assert half_width(8, 0.0) == 0.0
    assert half_width(1, 0.5) == float("inf")


def test_confidence_gives_attempts_to_what_is_unclear_or_new() -> None:
    config = ConfidenceBudget(type="confidence", least=2, most=20, bonus=0.0)
    success = np.array([0.5, 0.5, 0.98, 0.02])
    found = attempts_for(success, [10, 10, 10, 10], mean=6, config=config)
    assert sum(found) == 24
    assert min(found[:2]) > max(found[2:])
    curious = ConfidenceBudget(type="confidence", least=2, most=20, bonus=10.0)
    same = np.full(3, 0.5)
    found = attempts_for(same, [0, 100, 100], mean=6, config=curious)
    assert found[0] == max(found) > found[1]


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.integers(2, 9),
    st.sampled_from(["fixed", "variance", "confidence"]),
    st.integers(0, 1 << 16),
)
def test_the_budget_is_kept_whoever_gets_it(
    success: list[float], mean: int, kind: str, seed: int
) -> None:
    config = {
        "fixed": FixedBudget(),
        "variance": VarianceBudget(type="variance", least=2, most=10),
        "confidence": ConfidenceBudget(type="confidence", least=2, most=10),
    }[kind]
    seen = np.random.default_rng(seed).integers(0, 50, len(success)).tolist()
    found = attempts_for(np.array(success), seen, mean=mean, config=config)
    assert sum(found) == mean * len(success)
    assert all(2 <= count <= 10 for count in found)
