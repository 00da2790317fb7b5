"""How a run's settings make its environments."""

from __future__ import annotations

import pytest

from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.runs.arena import Arena
from turngym.trainers.runs.needs import check_needs
from turngym.trainers.settings.train import TrainConfig


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, ["env.id=text/maze", *overrides])


def test_an_expert_pays_when_the_settings_say_so() -> None:
    arena = Arena(config("env.expert_match=true"))
    env = arena.make_env()
    env.reset(seed=1)
    expert = env.get_wrapper_attr("expert_action")()
    _, reward, *_, info = env.step(expert)
    assert reward == 1.0
    assert info["reward_parts"] == {"expert_match": 1.0}
    arena.close()


def test_without_it_the_environment_pays_itself() -> None:
    arena = Arena(config())
    env = arena.make_env()
    env.reset(seed=1)
    _, reward, *_ = env.step(env.get_wrapper_attr("expert_action")())
    assert reward == 0.0
    arena.close()


def test_credit_by_agreement_needs_the_expert() -> None:
    check_needs(config("algo=ui_s1", "env.expert_match=true"))
    with pytest.raises(ConfigError, match=r"env\.expert_match=true pays for"):
        check_needs(config("algo=ui_s1"))
