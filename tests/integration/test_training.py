"""The whole stack learns: sampled success rises on tasks it never saw, and only when it may learn.

The game has two lights with three answers each, so chance is 1 in 9. The warm start imitates an
expert that is wrong 40 % of the time.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers import signals
from helpers.signals import SIGNALS, register_for_a_while
from helpers.tools import template
from helpers.tools import tokenizer as tools_tokenizer
from turngym.agents.chat.prompting import SummaryHistory
from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.models import build_tiny_model, save_model_dir
from turngym.agents.tool_calls import action_text
from turngym.config import load_config
from turngym.environments.gym.hosts import EnvHost
from turngym.errors import MissingExtraError, TrainingError, UnknownNameError
from turngym.records import read_trajectories
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.policies import load_policy
from turngym.trainers.settings.train import TrainConfig

CHANCE = 1 / 9
SETTINGS: dict[str, Any] = {
    "env": {"id": SIGNALS},
    "model": {"hidden": 32, "layers": 1, "heads": 2, "context": 64, "vocab_size": 280},
    "warm_start": {
        "episodes": 128,
        "expert_noise": 0.6,
        "max_steps": 200,
        "evaluate_every": 100,
        "lr": 3e-3,
        "target_success": 1.0,
    },
    "learner": {"lr": 4e-3},
    "regularizer": {"entropy_coefficient": 0.01},
    "rollout": {"groups_per_step": 16, "group_size": 8, "max_new_tokens": 6},
    "evaluation": {
        "every": 5,
        "validation_tasks": 32,
        "held_out_tasks": 128,
        "target_success": 0.95,
    },
    "run": {"steps": 25, "seed": 2, "tensorboard": False},
}
SMALL: dict[str, Any] = {
    **SETTINGS,
    "warm_start": {"episodes": 32, "max_steps": 3, "evaluate_every": 3},
    "rollout": {"groups_per_step": 4, "group_size": 4, "max_new_tokens": 6},
    "evaluation": {"every": 2, "validation_tasks": 6, "held_out_tasks": 6},
    "run": {"steps": 2, "tensorboard": False},
}


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    register_for_a_while(monkeypatch)


def config(settings: dict[str, Any], *overrides: str) -> TrainConfig:
    return load_config(TrainConfig, [settings, *overrides])


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["grpo", "trloo"])
def test_sampled_success_rises_on_held_out_tasks(tmp_path: Path, algo: str) -> None:
    result = train(config(SETTINGS, f"algo={algo}"), tmp_path)
    before, after = result.before.sampled, result.after.sampled
    assert before.success is not None
    assert after.success is not None
    assert before.success < 0.5
    assert after.success > 0.8
    assert before.success_ci95 is not None
    assert after.success_ci95 is not None
    assert after.success_ci95[0] > before.success_ci95[1]
    assert result.after.greedy.success is not None
    assert result.after.greedy.success > 0.9
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert max(row.get("train/behaviour_gap_max", 0.0) for row in rows) < 1e-3


def test_without_a_learning_rate_nothing_rises(tmp_path: Path) -> None:
    """The control: same tasks and draws, so the result must not move at all."""
    settings = {**SETTINGS, "warm_start": {**SETTINGS["warm_start"], "max_steps": 100}}
    result = train(config(settings, "algo=grpo", "learner.lr=0", "run.steps=3"), tmp_path)
    assert result.after == result.before
    assert result.before.sampled.success is not None
    assert result.before.sampled.success < 0.5


def test_a_run_leaves_everything_a_person_wants_to_look_at(tmp_path: Path) -> None:
    result = train(config(SMALL, "algo=rloo", "run.tensorboard=true"), tmp_path)
    names = {p.name for p in tmp_path.iterdir()}
    assert names >= {
        "config.json",
        "metrics.jsonl",
        "timings.jsonl",
        "summary.json",
        "curve.png",
        "checkpoints",
        "trajectories",
        "tensorboard",
    }
    assert list((tmp_path / "tensorboard").glob("events.*"))
    kept = {p.name for p in (tmp_path / "trajectories").iterdir()}
    assert kept >= {
        f"{which}-{step}.jsonl"
        for which in ("best", "median", "worst")
        for step in ("000000", "000002", "held_out-000000", "held_out-000002")
    }
    [best] = read_trajectories(tmp_path / "trajectories" / "best-000002.jsonl")
    assert {span.policy_version for span in best.spans if span.sampled} == {2}
    assert best.task_id.startswith("signals-easy/train/")
    [unseen] = read_trajectories(tmp_path / "trajectories" / "best-held_out-000002.jsonl")
    assert unseen.task_id.startswith("signals-easy/test/")
    assert (result.updates, result.episodes, result.algo) == (2, 32, "rloo")
    assert json.loads((tmp_path / "summary.json").read_text())["after"] == result.after.to_json()


def test_training_stops_when_the_validation_target_is_reached(tmp_path: Path) -> None:
    """Nothing is reached before a first step was taken, and 1 success in 32 is soon."""
    settings = {**SETTINGS, "warm_start": {**SETTINGS["warm_start"], "max_steps": 60}}
    overrides = ["algo=grpo", "evaluation.target_success=0.03", "evaluation.held_out_tasks=4"]
    result = train(config(settings, *overrides), tmp_path)
    assert result.reached_target
    assert result.updates < 25


def test_no_task_serves_two_purposes(tmp_path: Path) -> None:
    train(config(SMALL, "algo=grpo"), tmp_path)
    expert = {t.task_id for t in read_trajectories(tmp_path / "trajectories" / "expert.jsonl")}
    [validation] = read_trajectories(tmp_path / "trajectories" / "best-000000.jsonl")
    assert len(expert) == 32
    assert expert == {f"signals-easy/train/{i}" for i in range(6, 38)}
    assert validation.task_id in {f"signals-easy/train/{i}" for i in range(6)}


@pytest.mark.parametrize(("updates", "is_said"), [(1, True), (2, False)])
def test_a_run_whose_policy_never_changed_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, updates: int, is_said: bool
) -> None:
    sizes = ["algo.advantage.critic.warmup_updates=1", f"run.steps={updates}"]
    train(config(SMALL, "algo=turn_ppo", *sizes), tmp_path)
    said = "none of 1 updates changed the policy: no group was left to train on"
    assert (said in caplog.text) is is_said


def test_a_weak_warm_start_is_said_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train(config(SMALL, "algo=grpo", "run.steps=0"), tmp_path)
    assert "the warm start reached 0% sampled success, below 15%" in caplog.text
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["warm_start/failed"] for row in rows if "warm_start/failed" in row] == [1.0]


def test_without_expert_episodes_reinforcement_starts_at_once(tmp_path: Path) -> None:
    result = train(config(SMALL, "algo=grpo", "warm_start.episodes=0"), tmp_path)
    assert (result.warm_start_steps, result.warm_start_success) == (0, None)
    assert result.updates == 2


def test_a_warm_start_without_a_target_ends_at_its_first_evaluation(tmp_path: Path) -> None:
    start = {"warm_start": {"target_success": 0.0, "evaluate_every": 2}, "run": {"steps": 0}}
    result = train(load_config(TrainConfig, [SMALL, start]), tmp_path)
    assert result.warm_start_steps == 2
    assert result.warm_start_success is not None


@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_a_mix_of_environments_trains_and_evaluates(tmp_path: Path, mode: str) -> None:
    others = [{"id": "text/guessnumber", "weight": 2.0}, {"id": "text/frozenlake", "from_step": 1}]
    settings = {**SMALL, "env": {"mix": [{"id": SIGNALS}, *others]}, "algo": "grpo"}
    result = train(config(settings, f"rollout.mode={mode}", "model.context=256"), tmp_path)
    assert result.updates == 2
    assert result.env == f"{SIGNALS} + text/guessnumber + text/frozenlake"
    rows = read_metrics(tmp_path / "metrics.jsonl")
    names = {name for row in rows for name in row}
    assert len([name for name in names if name.startswith("held_out/sampled/success/")]) == 3
    assert len([name for name in names if name.startswith("validation/success/")]) == 3
    expert = read_trajectories(tmp_path / "trajectories" / "expert.jsonl")
    assert len({episode.env_id for episode in expert}) == 3


def test_all_phases_hold_back_calls_to_environments_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, call = 0, 0, EnvHost._call

    async def counted(host: EnvHost, name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal running, most
        is_played = name in ("reset", "step")
        running += is_played
        most = max(most, running)
        try:
            return await call(host, name, *args, **kwargs)
        finally:
            running -= is_played

    monkeypatch.setattr(EnvHost, "_call", counted)
    overrides = ["rollout.isolation=thread", "rollout.calls_at_once=3", "algo=grpo"]
    assert train(config(SMALL, *overrides), tmp_path).updates == 2
    assert most == 3


def test_broken_episodes_are_masked_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = ["env.id=lab/brokensignals", "rollout.failures.fraction=0.9", "algo=grpo"]
    result = train(config(SMALL, *overrides), tmp_path)
    assert 0 < result.faults < result.episodes
    rows = [r for r in read_metrics(tmp_path / "metrics.jsonl") if "rollout/faults" in r]
    assert sum(r["rollout/dropped_error_env"] for r in rows) == result.faults
    held_out = result.after.sampled
    assert held_out.faults > 0
    assert held_out.success_ci95 is not None
    said = f"held-out tasks: {held_out.faults} of {held_out.episodes} episodes broke and are not"
    assert f"{said} counted; the first: reset: OSError: the lamp blew" in caplog.text


def test_where_all_episodes_of_the_expert_break_nothing_is_kept_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blow(env: object, task: object) -> None:
        raise OSError("the lamp blew")

    overrides = ["rollout.failures.fraction=1", "algo=grpo", "run.steps=0"]
    with monkeypatch.context() as broken:
        broken.setattr(signals.SignalsEnv, "begin", blow)
        with pytest.raises(TrainingError, match=r"expert's 32 episodes broke, .* the lamp"):
            train(config(SMALL, *overrides), tmp_path)
    assert train(config(SMALL, *overrides), tmp_path).before.sampled.faults == 0


def test_too_many_broken_episodes_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        train(config(SMALL, "env.id=lab/brokensignals", "algo=grpo"), tmp_path)
    assert "tries ended by a fault, more than failures.fraction=0.2" in str(caught.value)
    assert re.search(
        r"\d  error_env: reset: OSError: the lamp blew \(signals\.py:\d+ in begin\)",
        str(caught.value),
    )


def test_instructions_can_open_every_conversation(tmp_path: Path) -> None:
    overrides = ["agent.instructions=true", "model.context=160", "algo=grpo", "run.steps=1"]
    train(config(SMALL, *overrides), tmp_path)
    [kept] = read_trajectories(tmp_path / "trajectories" / "best-000000.jsonl")
    assert kept.turns[0].observation[0].role == "system"
    assert "Answer each light." in kept.turns[0].observation[0].content


def test_what_is_put_around_the_model_is_trained_with_it(tmp_path: Path) -> None:
    parts = ["agent.history.type=summary", "agent.history.max_tokens=30", "agent.history.keep=1"]
    more = ["model.context=1024", "agent.system=Look twice.", "algo=grpo", "run.steps=1"]
    result = train(config(SMALL, *parts, *more), tmp_path)
    assert result.faults == 0
    [kept] = read_trajectories(tmp_path / "trajectories" / "worst-000000.jsonl")
    assert kept.turns[0].observation[0].content == "Look twice."
    assert any(turn.starts_segment for turn in kept.turns)
    loaded = load_policy(tmp_path)
    assert loaded.prompting.opening("", (), native_tools=False) == "Look twice."
    assert isinstance(loaded.history, SummaryHistory)


@pytest.mark.slow
def test_a_model_learns_to_call_tools_as_its_template_does(tmp_path: Path) -> None:
    calls = [action_text(answer, {}) for answer in signals.MEANING.values()]
    texts = [*calls, *(f"light {colour}." for colour in signals.MEANING)]
    made = tools_tokenizer(template("object"), texts=texts * 9, size=320)
    shape = TinyModelConfig(hidden=48, layers=1, heads=2, context=512, vocab_size=len(made))
    save_model_dir(build_tiny_model(shape, made, seed=0), made, tmp_path / "model")
    settings = SETTINGS | {
        "env": {"id": SIGNALS, "options": {"action_style": "tools"}},
        "model": {"type": "pretrained", "path": str(tmp_path / "model"), "context": 512},
        "agent": {"tool_calls": True},
        "rollout": {"groups_per_step": 2, "group_size": 2, "max_new_tokens": 24},
        "warm_start": {"episodes": 64, "max_steps": 80, "lr": 5e-3, "expert_noise": 0.0},
        "evaluation": {"validation_tasks": 6, "held_out_tasks": 16},
    }
    result = train(config(settings, "run.steps=1"), tmp_path / "run")
    played = result.before.sampled
    assert played.invalid_actions < 0.2 * played.episodes * played.mean_turns
    file = next((tmp_path / "run" / "trajectories").glob("best-*.jsonl"))
    first, second = next(read_trajectories(file)).turns
    assert [message.role for message in second.observation] == ["tool"]
    assert first.action.tool_calls
    assert '"name": "wait"' in made.decode(first.spans[0].token_ids)
    assert made.decode(first.spans[-1].token_ids).startswith("<tool_call>")


def test_a_conversation_that_outgrows_the_context_is_truncated_not_broken(tmp_path: Path) -> None:
    result = train(config(SMALL, "model.context=16", "algo=grpo", "run.steps=1"), tmp_path)
    assert result.faults == 0
    assert result.after.sampled.truncated > 0


def test_a_context_without_room_for_an_answer_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"warm_start": {"episodes": 0}, "evaluation": {"held_out_tasks": 4}}
    settings = SETTINGS | small | {"agent": {"system": "Answer. " * 9}}
    with pytest.raises(
        TrainingError, match=r"no conversation has room .* model\.context=18 tokens"
    ):
        train(config(settings, "model.context=18", "run.steps=1"), tmp_path / "none")
    train(config(SETTINGS | small, "model.context=18", "run.steps=0"), tmp_path / "some")
    assert "4 of 4 episodes were cut at model.context=18 tokens" in caplog.text


def test_an_unknown_environment_is_named_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'lab/signals'"):
        train(config(SMALL, "env.id=lab/signal"), tmp_path / "run")


def test_a_missing_game_engine_is_an_install_line(tmp_path: Path) -> None:
    turngym.register(
        "lab/Gone-v0",
        "helpers.signals:SignalsEnv",
        family="lab",
        max_turns=4,
        extra="babyai",
        modules=["no_such_engine"],
    )
    with pytest.raises(MissingExtraError, match=r"pip install 'turngym\[babyai\]'"):
        train(config(SMALL, "env.id=lab/gone"), tmp_path / "run")


def test_the_warm_start_is_not_evaluated_before_it_should_be(tmp_path: Path) -> None:
    warm_start = {
        "episodes": 8,
        "max_steps": 5,
        "evaluate_every": 1,
        "evaluate_from": 3,
        "target_success": 1.0,
    }
    train(config({**SMALL, "warm_start": warm_start}), tmp_path)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if "warm_start/success" in row] == [3, 4, 5]
