"""How a run's settings make its environments."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.runs.episode_runner import EpisodeRunner
from turngym.trainers.runs.needs import check_needs
from turngym.trainers.settings.train import TrainConfig


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, ["env.id=text/maze", *overrides])


def test_an_expert_pays_when_the_settings_say_so() -> None:
    runner = EpisodeRunner(config("env.expert_match=true"))
    env = runner.make_env[runner.env_id]()
    env.reset(seed=1)
    expert = env.get_wrapper_attr("expert_action")()
    _, reward, *_, info = env.step(expert)
    assert reward == 1.0
    assert info["reward_parts"] == {"expert_match": 1.0}
    runner.close()


def test_without_it_the_environment_pays_itself() -> None:
    runner = EpisodeRunner(config())
    env = runner.make_env[runner.env_id]()
    env.reset(seed=1)
    _, reward, *_ = env.step(env.get_wrapper_attr("expert_action")())
    assert reward == 0.0
    runner.close()


@pytest.mark.parametrize("matched", ["false", "true"])
def test_a_process_that_makes_an_environment_loads_no_trainer_and_no_scheduler(
    matched: str,
) -> None:
    runner = EpisodeRunner(config(f"env.expert_match={matched}"))
    code = (
        "import pickle, sys; env = pickle.load(sys.stdin.buffer)(); env.reset(seed=1)\n"
        "rooms = ('turngym.trainers', 'turngym.rollouts', 'turngym.agents')\n"
        "assert not [name for name in sys.modules if name.startswith(rooms)]; env.close()"
    )
    sent = pickle.dumps(runner.make_env[runner.env_id])
    subprocess.run([sys.executable, "-c", code], input=sent, check=True)
    runner.close()


MIX = {"mix": [{"id": "text/maze", "weight": 2.0}, {"id": "text/guesscity", "from_step": 1}]}


@pytest.mark.parametrize(
    "rollout", [{"groups_per_step": 6}, {"groups_per_step": 3, "oversampling": 2.0}]
)
def test_a_mix_deals_groups_out_by_weight_and_step(rollout: dict[str, object]) -> None:
    settings = {"env": MIX, "rollout": rollout, "evaluation": {"validation_tasks": 5}}
    runner = EpisodeRunner(load_config(TrainConfig, [settings]))
    tasks = [runner.pool.task(place) for place in range(12)]
    names = [task.env_id.split("/")[1].split("-")[0] for task in tasks]
    assert names[:6] == ["Maze"] * 6
    assert (names[6:].count("Maze"), names[6:].count("GuessCity")) == (4, 2)
    assert [runner.pool.task(place) for place in range(12)] == tasks
    assert len({task.id for task in tasks}) == 12
    runner.close()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"id": "text/maze", **MIX}, "either id or"),
        ({}, "either id or"),
        (MIX | {"id": "text/maze"}, "env.id= takes away a recipe's id"),
        ({"mix": [{"weight": 2.0}]}, "every environment needs an id"),
        ({"mix": [{"id": "text/maze", "from_step": 2, "to_step": 2}]}, "to_step above from_step"),
        ({**MIX, "expert_match": True}, "belong to its entries"),
        ({"mix": [{"id": "text/maze", "to_step": 2}]}, "no environment is in the mix at update 2"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(env: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(TrainConfig, [{"env": env}])


def test_an_environment_is_in_a_mix_with_one_set_of_options() -> None:
    """Episodes know the id of their environment alone, so all were played with the last options."""
    easy = {"id": "text/maze", "options": {"difficulty": "easy"}}
    check_needs(load_config(TrainConfig, [{"env": {"mix": [easy, easy | {"weight": 2.0}]}}]))
    check_needs(load_config(TrainConfig, [{"env": {"mix": ["text/maze-easy", "text/maze-hard"]}}]))
    for other in ({"options": {"difficulty": "hard"}}, {"expert_match": True}):
        mix = {"mix": [easy, {**easy, "id": "turngym/Maze-v0", **other}]}
        with pytest.raises(ConfigError, match="there twice, and not with the same options"):
            check_needs(load_config(TrainConfig, [{"env": mix}]))


def test_a_recipe_with_options_gives_way_to_a_mix() -> None:
    loaded = load_config(TrainConfig, ["miniwob", {"env": MIX}, "env.id=", "env.options=null"])
    assert [part.id for part in loaded.env.parts] == ["text/maze", "text/guesscity"]
    assert load_config(TrainConfig, ["miniwob", "env.options=null"]).env.options == {}


def test_credit_by_agreement_needs_the_expert() -> None:
    check_needs(config("algo=ui_s1"))
    with pytest.raises(ConfigError, match=r"env\.expert_match=true pays for"):
        check_needs(config("algo=ui_s1", "env.expert_match=false"))


@pytest.mark.parametrize(
    ("overrides", "unseen"),
    [
        ([], []),
        (["env.options.picture=true"], ["turngym/Maze-v0"]),
        (["env.options.picture=true", "model.image_size=24"], []),
    ],
)
def test_pictures_that_nobody_sees_are_known(overrides: list[str], unseen: list[str]) -> None:
    runner = EpisodeRunner(config(*overrides))
    assert runner.unseen == unseen
    assert (runner.pictures is None) == ("model.image_size=24" not in overrides)
    runner.close()
