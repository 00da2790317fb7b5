"""What a credit method needs of its environment is asked before anything starts."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.signals import register_for_a_while
from turngym import registry
from turngym.config import load_config, to_toml
from turngym.errors import ConfigError
from turngym.trainers.loop import train
from turngym.trainers.runs.needs import check_needs, provided
from turngym.trainers.settings.train import TrainConfig

BY_STATE = {"advantage": {"type": "group_relative", "terms": [{"group_by": "state"}]}}
POTENTIAL = {
    "rewards": [{"type": "potential"}],
    "advantage": {"type": "group_relative", "terms": [{"rewards": ["potential"]}]},
}
TRUTH = {
    "rewards": [{"type": "info_gain"}],
    "advantage": {"type": "gae", "rewards": ["info_gain"]},
}
EXPERT = {
    "advantage": {
        "type": "group_relative",
        "terms": [{"returns": "segmented", "group_by": "task_turn"}],
    }
}


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    register_for_a_while(monkeypatch)


def config(env: str, algo: dict[str, Any]) -> TrainConfig:
    return load_config(TrainConfig, [{"env": {"id": env}, "algo": {"name": "mine", **algo}}])


@pytest.mark.parametrize(
    ("env", "algo"),
    [
        ("text/maze", BY_STATE),
        ("text/taxi", POTENTIAL),
        ("turngym/Wordle-hard-v0", TRUTH),
        ("text/sokoban", {}),
        ("text/twcoin", BY_STATE),
    ],
)
def test_what_is_given_passes_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, env: str, algo: dict[str, Any]
) -> None:
    monkeypatch.setattr(
        "turngym.trainers.runs.needs.make", lambda *_, **__: pytest.fail("made one")
    )
    check_needs(config(env, algo))


CARRY = ["rollout.group.late=carry", "rollout.mode=overlap", "algo.loss.correction.weight=truncate"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["algo=dpo", *CARRY], "'prefer' compares: wanted late='drop'"),
        (["algo=tba", *CARRY], "'balance' compares: wanted late='drop'"),
        (["algo=vineppo", "agent.reflection=2"], "plays each episode on many times"),
    ],
)
def test_what_an_attempt_would_not_be_fairly_compared_with_is_refused(
    settings: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_needs(load_config(TrainConfig, ["env.id=text/maze", *settings]))


@pytest.mark.parametrize(
    ("idle", "switch"),
    [
        ("rollout.staleness=1", "rollout.mode=overlap"),
        ("rollout.admission=windowed", "rollout.mode=overlap"),
        ("rollout.interruption=drain", "rollout.mode=overlap"),
        ("rollout.workers.amount=2", "rollout.isolation=ray"),
        ("warm_start.min_score=0.5", "warm_start.trajectories=FOLDER"),
        ("algo.loss.imitation.successes_only=true", "algo.loss.imitation.weight=1"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused_where_its_switch_is_not_set(
    idle: str, switch: str
) -> None:
    name = idle.partition("=")[0].removesuffix(".amount")
    with pytest.raises(ConfigError, match=f"{name} counts only beside {switch}, and that is not"):
        check_needs(load_config(TrainConfig, ["demo", idle]))
    check_needs(load_config(TrainConfig, ["demo", idle, switch]))
    whole = tomllib.loads(to_toml(load_config(TrainConfig, ["demo"])))  # every setting is named
    check_needs(load_config(TrainConfig, [whole]))


def test_experts_are_replayed_where_an_engine_reports_them() -> None:
    replays = {"env": {"id": "text/maze"}, "learner": {"routing": "replay"}}
    servers = {"type": "vllm", "gpus": 1, "routing": True}
    for engine in ({}, {"engine": {**servers, "routing": False}}):
        with pytest.raises(ConfigError, match=r"wanted engine\.type=vllm and engine\.routing=true"):
            check_needs(load_config(TrainConfig, [replays, engine]))
    check_needs(load_config(TrainConfig, [replays, {"engine": servers}]))


@pytest.mark.parametrize(
    ("env", "algo", "need", "others"),
    [
        (
            "text/maze",
            TRUTH,
            "the true answer and its wording, info['ground_truth'] and info['answer']",
            "text/guesscity, text/guessnumber, text/orderform, text/twentyquestions, text/wordle",
        ),
        ("text/wordle", POTENTIAL, "how promising", "text/frozenlake, text/maze, text/taxi"),
        ("text/maze", EXPERT, "env.expert_match=true", "Any environment with an expert will do"),
    ],
)
def test_what_is_missing_is_named_with_those_that_give_it(
    env: str, algo: dict[str, Any], need: str, others: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_needs(config(env, algo))
    message = str(caught.value)
    assert message.startswith(f"env.id='{env}' does not give what algo 'mine' needs: ")
    assert need in message
    assert others in message
    assert "\n" not in message


def test_a_plug_in_that_declares_nothing_is_looked_at() -> None:
    number = "turngym.environments.text.guess_number:GuessNumberEnv"
    turngym.register("lab/Number-v0", number, family="lab", max_turns=4)
    check_needs(config("lab/number", TRUTH))
    check_needs(config("lab/number", BY_STATE))
    with pytest.raises(ConfigError, match="info\\['potential'\\]"):
        check_needs(config("lab/number", POTENTIAL))
    with pytest.raises(ConfigError, match="does not give"):
        check_needs(config("lab/signals", TRUTH))


def test_a_long_list_is_shortened() -> None:
    assert len(provided(registry.entries(), ["state_key"])) > 8
    number = "turngym.environments.text.guess_number:GuessNumberEnv"
    gives = ["ground_truth"]
    turngym.register("lab/NoKey-v0", number, family="lab", max_turns=4, provides=gives)
    with pytest.raises(ConfigError, match=r"These do: .* and \d+ more, see 'turngym envs'"):
        check_needs(config("lab/nokey", BY_STATE))


def test_training_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not give"):
        train(config("text/maze", TRUTH), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo=archer"], "wanted algo.advantage.critic.encoder=policy"),
        (["algo=archer", "algo.advantage.critic.encoder=policy"], ""),
        (["algo=spa"], ""),
        (["algo=spa", 'algo.rewards=[{"type": "progress", "body": "small"}]'], "body='policy'"),
        (["engine.type=vllm", "engine.server=turngym"], "is shown no pictures"),
    ],
)
def test_parts_that_see_nothing_are_refused_beside_a_model_that_sees(
    overrides: list[str], message: str
) -> None:
    settings = ["env.id=text/maze", "model.image_size=16", *overrides]
    config = load_config(TrainConfig, settings)
    if not message:
        check_needs(config)
        return
    with pytest.raises(ConfigError, match=message):
        check_needs(config)
    check_needs(load_config(TrainConfig, [*settings, "model.image_size=0"]))
