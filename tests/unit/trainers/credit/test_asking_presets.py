"""The presets that ask the policy or learn a model: the papers' numbers, and real episodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import turngym
from helpers import models
from helpers.rendered import batch, context
from helpers.trajectories import episode, turn
from turngym.config import load_config
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.trainers.credit.base import RewardComponent, TurnBatch
from turngym.trainers.credit.critics.gae import gae, on_last_token
from turngym.trainers.credit.group.group_relative import turn_advantages
from turngym.trainers.credit.sources.reward_sources import RewardSources
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import GroupRelative
from turngym.trainers.settings.train import TrainConfig
from turngym.types import TrajectoryGroup

ENV = "text/twentyquestions"
LENGTHS = ([2, 1, 2], [1, 2, 1])


def preset(name: str) -> AlgoConfig:
    return load_config(TrainConfig, [f"env.id={ENV}", f"algo={name}"]).algo


def fixture(*returns: float) -> TurnBatch:
    """Return two attempts of three turns with drawn tokens as in ``LENGTHS``."""
    attempts = []
    for attempt, (total, lengths) in enumerate(zip(returns, LENGTHS, strict=True)):
        turns = [turn(drawn=(3,) * n) for n in lengths]
        turns[-1] = replace(turns[-1], reward=total)
        attempts.append(episode(turns, member=attempt))
    return batch(attempts)


def component(values: list[float], *, has_value: list[bool]) -> RewardComponent:
    return RewardComponent(values_N=np.array(values), has_value_N=np.array(has_value))


def test_igpo_worked_example() -> None:
    advantage = preset("igpo").advantage
    assert isinstance(advantage, GroupRelative)
    components = {
        "outcome": component([0, 0, 1, 0, 0, 0], has_value=[False, False, True] * 2),
        "info_gain": component([0.5, 0.5, 0, -0.1, 0.4, 0], has_value=[True, True, False] * 2),
    }
    found = turn_advantages(fixture(1, 0), components, advantage)
    np.testing.assert_allclose(found, [2.4070, 1.7035, 1.0, -2.4070, -0.6985, -1.0], atol=5e-4)


@pytest.mark.parametrize(
    ("returns", "wanted"),
    [
        ((1.0, 0.0), [0.8085, 0.7216, 0.7071, -0.8664, -0.7361, -0.7071]),
        ((0.0, 0.0), [0.2592, 0.0370, 0.0, -0.4072, -0.0740, 0.0]),
    ],
)
def test_infopo_worked_example(returns: tuple[float, float], wanted: list[float]) -> None:
    advantage = preset("infopo").advantage
    assert isinstance(advantage, GroupRelative)
    turns = fixture(*returns)
    components = {
        "env": component(turns.reward_N.tolist(), has_value=[True] * 6),
        "feedback_gain": component([1.0, 0.3, 0, -0.1, 0.4, 0], has_value=[True, True, False] * 2),
    }
    found = turn_advantages(turns, components, advantage)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_spa_worked_example() -> None:
    advantage: Any = preset("spa").advantage
    assert (advantage.level, advantage.rewards) == ("token", ("progress",))
    rewards = on_last_token(np.array([0.7, 0.8, 0.9]), np.array(LENGTHS[0]))
    found = gae(rewards, np.full(5, 0.5), 0.0, gamma=advantage.gamma, lam=advantage.lam)
    np.testing.assert_allclose(found, [1.6607, 1.7710, 1.1441, 0.3712, 0.4], atol=1e-4)


def test_sweet_ranks_turns_and_keeps_the_outcome() -> None:
    advantage = preset("sweet").advantage
    assert isinstance(advantage, GroupRelative)
    turns = fixture(1, 0)
    scores = [0.3, -0.1, 0.05, 0.2, 0.0, -0.2]
    components = {
        "env": component(turns.reward_N.tolist(), has_value=[True] * 6),
        "privileged": component(scores, has_value=[True] * 6),
    }
    found = turn_advantages(turns, components, advantage)
    outcome = np.repeat([1, -1], 3) * 0.7071
    wanted = outcome + (np.array(scores) - np.mean(scores)) / np.std(scores, ddof=1)
    np.testing.assert_allclose(found, wanted, atol=1e-3)


@pytest.fixture(scope="module")
def played() -> TurnBatch:
    """Return three groups of real episodes of an untrained model."""
    acting = models.policy(max_new_tokens=4)
    env = turngym.make(ENV)
    groups = []
    for number in range(3):
        specs = group_specs(ENV, env.unwrapped.task("train", number), seed=1, group_size=3)
        made = asyncio.run(collect(lambda: turngym.make(ENV), acting, specs, concurrency=3))
        groups.append(TrajectoryGroup(group_id=str(number), trajectories=tuple(made)))
    return TurnBatch.of(groups)


@pytest.mark.parametrize("name", ["igpo", "infopo", "spa", "sweet"])
def test_real_episodes_have_values_wherever_they_should(played: TurnBatch, name: str) -> None:
    algo = preset(name)
    shorter = {"steps_per_update": 1, "warmup_updates": 0}
    rewards = [
        one.model_copy(update=shorter) if hasattr(one, "warmup_updates") else one
        for one in algo.rewards
    ]
    given = context(models.model(context=1024), max_tokens=8192)
    components = RewardSources(rewards, algo.gate, given)
    assert components.is_ready
    found = components.read(played)
    own = found[
        {"igpo": "info_gain", "infopo": "feedback_gain", "spa": "progress"}.get(name, "privileged")
    ]
    expected = (
        ~played.is_last_N if name in ("igpo", "infopo") else np.ones(played.turn_N.shape, bool)
    )
    np.testing.assert_array_equal(own.has_value_N, expected)
    assert np.isfinite(own.values_N).all()
    fallbacks = [v for key, v in components.metrics().items() if key.endswith("_fallbacks")]
    assert not any(fallbacks)
    if name in ("igpo", "infopo"):
        assert own.values_N.any()
