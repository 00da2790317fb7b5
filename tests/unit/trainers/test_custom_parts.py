"""Losses, samplers, histories and prompts that users write: functions and classes by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.cli import TINY_RUN
from turngym.agents.build import with_parts
from turngym.agents.chat.prompting import OwnHistory, OwnPrompting
from turngym.agents.config import CustomPrompt, PartsConfig
from turngym.api.verbs import rollout
from turngym.config import load_config
from turngym.coroutines import finished
from turngym.errors import ConfigError, TrainingError, TurnGymError
from turngym.records import read_trajectories
from turngym.trainers.loop import train
from turngym.trainers.losses.surrogates import SurrogateInputs, surrogate_losses
from turngym.trainers.runs.needs import check_needs
from turngym.trainers.selection.samplers import Difficulty, OwnSampler, SampledTasks
from turngym.trainers.settings.selection import CustomSampler
from turngym.trainers.settings.surrogates import CustomSurrogate, PolicyGradient
from turngym.trainers.settings.train import TrainConfig

HERE = "helpers.custom_parts"
TASKS = {"env": {"num_train_tasks": 12}}


def own(function: str, **settings: Any) -> dict[str, Any]:
    return {"type": "custom", "function": f"{HERE}:{function}", "settings": settings}


def config(tmp_path: Path, **blocks: Any) -> TrainConfig:
    (tmp_path / "tiny.toml").write_text(TINY_RUN)
    return load_config(TrainConfig, [tmp_path / "tiny.toml", TASKS, blocks])


def surrogate(part: dict[str, Any]) -> dict[str, Any]:
    return {"name": "mine", "loss": {"surrogate": part}}


def inputs() -> SurrogateInputs:
    logprobs = torch.tensor([-1.0, -0.5, -2.0], requires_grad=True)
    old = torch.tensor([-1.1, -0.5, -1.9])
    return SurrogateInputs(
        log_ratios=logprobs - old,
        policy_logprobs=logprobs,
        old_logprobs=old,
        advantages=torch.tensor([1.0, -3.0, 0.5]),
    )


def custom_loss(function: str, **settings: Any) -> CustomSurrogate:
    return CustomSurrogate.model_validate(own(function, **settings))


def test_a_loss_of_ones_own_is_the_shipped_one_that_it_says_it_is() -> None:
    shipped, own_one = inputs(), inputs()
    for given, config in (
        (shipped, PolicyGradient(type="pg")),
        (own_one, custom_loss("reinforce", scale=1.0)),
    ):
        losses_N, bounded_N = surrogate_losses(given, config)
        assert losses_N.tolist() == [1.0, -1.5, 1.0]
        assert not bounded_N.any()
        losses_N.sum().backward()
    assert torch.equal(shipped.policy_logprobs.grad, own_one.policy_logprobs.grad)  # type: ignore[arg-type]


def test_a_loss_says_which_tokens_it_bounds() -> None:
    losses_N, bounded_N = surrogate_losses(inputs(), custom_loss("bounded", most=2.0))
    assert losses_N.tolist() == [1.0, 0.0, 1.0]
    assert bounded_N.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("summed", r"wrong_loss': returned shape \(\), wanted one value per token, \(3,\)"),
        ("detached", r"wrong_loss': its losses have no gradient: make them of inputs\.policy_log"),
        ("array", "wrong_loss': the function gave a ndarray, wanted a Tensor"),
        ("infinite", "wrong_loss': returned a loss that is not finite"),
        ("breaks", r"custom loss 'helpers.*': RuntimeError: .* \(custom_parts\.py:\d+ in"),
    ],
)
def test_what_is_no_loss_is_one_line(how: str, message: str) -> None:
    with pytest.raises(TurnGymError, match=message):
        surrogate_losses(inputs(), custom_loss("wrong_loss", how=how))


def test_a_loss_that_waits_is_refused() -> None:
    with pytest.raises(ConfigError, match="late_loss': wanted a plain function, found an 'async"):
        custom_loss("late_loss").imported()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (own("WrongSampler", how="few"), r"choose gave \[0\], wanted 2 places of tasks"),
        (own("WrongSampler", how="below"), r"choose gave \[-1, -1\], wanted 2 places"),
        (own("WrongSampler", how="half"), r"choose gave \[0\.5, 0\.5\], wanted 2 places"),
        (own("WrongSampler", how="keys"), "state is not the same after writing and reading it as"),
        (own("WrongSampler", how="object"), "TypeError: Object of type object is not JSON"),
        (own("NoSampler"), r"lacks choose, observe, state, load_state of turngym\.trainers\.selec"),
    ],
)
def test_what_is_no_sampler_is_one_line(part: Any, message: str) -> None:
    tasks = SampledTasks(
        size=6,
        difficulty=Difficulty(decay=0.2, drift=0.0),
        group_size=4,
        parameter=lambda place, name: "",
    )
    rng = np.random.default_rng(0)

    def use() -> None:
        sampler = OwnSampler(CustomSampler.model_validate(part), tasks)
        sampler.choose(0, 2, step=0, rng=rng)
        sampler.state()

    with pytest.raises(TurnGymError, match=message):
        use()


@pytest.mark.parametrize(
    "blocks",
    [
        {"algo": surrogate(own("reinforze"))},
        {"selection": {"sampler": own("Stridin")}},
        {"agent": {"history": own("LastOnli")}},
        {"agent": {"prompt": {"function": f"{HERE}:Ters"}}, "warm_start": {"episodes": 0}},
    ],
)
def test_what_is_not_there_is_refused_before_anything_starts(tmp_path: Path, blocks: Any) -> None:
    with pytest.raises(ConfigError, match=f"custom [a-z]+ .*Did you mean '{HERE}:"):
        check_needs(config(tmp_path, **blocks))


def test_settings_that_a_part_does_not_take_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"custom loss .*, settings: .* argument 'sale'"):
        check_needs(config(tmp_path, algo=surrogate(own("reinforce", sale=1))))


def test_history_and_prompt_of_ones_own_are_played_and_kept_with_the_model(tmp_path: Path) -> None:
    agent = {
        "history": own("LastOnly"),
        "prompt": own("Terse", words=12),
    }
    settings = config(tmp_path, agent=agent, warm_start={"episodes": 0})
    train(settings, tmp_path / "run")
    files = (tmp_path / "run" / "trajectories").glob("best-*.jsonl")
    trained = [t for file in files for t in read_trajectories(file)]
    played = rollout("text/maze", f"run:{tmp_path / 'run'}", episodes=2)
    for episodes in (trained, played):
        assert any(len(t.turns) > 2 for t in episodes)
        for episode in episodes:
            assert episode.turns[0].observation[0].content == "Be brief."
            assert {turn.segment_reason for turn in episode.turns[1:]} <= {"last only"}
            said = [m.content for turn in episode.turns for m in turn.observation]
            assert all(len(text.split()) <= 12 for text in said)


def test_what_is_no_history_or_prompt_is_one_line() -> None:
    history = OwnHistory(f"{HERE}:LastOnly", {"wrong": True})
    with pytest.raises(ConfigError, match="LastOnly': fit gave a list, wanted a Rewritten"):
        finished(history.fit([], tokens=0.0, ask=None))  # type: ignore[arg-type]
    prompt = OwnPrompting(CustomPrompt(function=f"{HERE}:SaysText"), PartsConfig())
    with pytest.raises(ConfigError, match="SaysText': observation gave a str, wanted a ChatMess"):
        prompt.observation({"text": "x"}, {})
    with pytest.raises(ConfigError, match="NoSampler': lacks opening, observation of turngym"):
        with_parts(None, PartsConfig(prompt=CustomPrompt(function=f"{HERE}:NoSampler")))  # type: ignore[type-var]
    with pytest.raises(TrainingError, match="Terse': AttributeError"):
        OwnPrompting(CustomPrompt(function=f"{HERE}:Terse", settings={"words": 1}), None)  # type: ignore[arg-type]
