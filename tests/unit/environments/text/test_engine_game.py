"""The boundary around foreign engines, with an engine that breaks on demand."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from typing import ClassVar

import gymnasium
import pytest

from turngym import registry
from turngym.agents.scripted import FunctionPolicy
from turngym.environments.core.actions import Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text import base
from turngym.environments.text.base import EngineGame
from turngym.errors import ConfigError, EnvironmentFault, MissingExtraError, UnknownNameError
from turngym.rollouts.episode import EpisodeSpec, rollout
from turngym.tasks.base import Task, procedural_task, split_of
from turngym.types import StopReason


class LampEnv(EngineGame):
    """A lamp with one switch; the engine breaks when it is hit."""

    name = "lamp"
    extra = "babyai"
    modules = ("json",)
    commands = Commands({"press": "press {thing...}", "hit": "hit {thing...}"})
    difficulties: ClassVar[dict[str, dict[str, object]]] = {"easy": {}, "broken": {"broken": True}}

    is_on = False

    def start(self, task: Task) -> str:
        if self.settings.get("broken"):
            raise OSError("no bulb")
        self.is_on = False
        return "It is dark."

    def possible_commands(self) -> dict[str, str]:
        return {"press switch": "press Switch", "hit lamp": "hit Lamp"}

    def play(self, command: str) -> Outcome:
        if command == "hit Lamp":
            raise ValueError("glass everywhere")
        assert command == "press Switch"
        self.is_on = True
        return Outcome(text="It is bright.", reward=1.0, terminated=True)

    def expert_command(self) -> str:
        return "press switch"

    def score(self) -> float:
        return float(self.is_on)


def started(**kwargs: str) -> LampEnv:
    env = LampEnv(**kwargs)
    env.reset(seed=0)
    return env


def test_a_possible_command_reaches_the_engine_as_the_engine_writes_it() -> None:
    observation, reward, terminated, _, _ = started().step("I try:\n> PRESS  switch")
    assert (observation["text"], reward, terminated) == ("It is bright.", 1.0, True)


def test_an_impossible_command_is_refused_and_never_reaches_the_engine() -> None:
    env = started()
    observation, reward, terminated, _, info = env.step("press button")
    assert observation["text"] == info["invalid_action"] == "You cannot press button now."
    assert (reward, terminated, env.is_on) == (0.0, False, False)


def test_an_engine_that_breaks_in_a_step_is_a_fault_with_place_and_cause() -> None:
    env = started()
    with pytest.raises(
        EnvironmentFault, match=r"lamp-easy: step 'hit lamp': ValueError: glass"
    ) as caught:
        env.step("hit lamp")
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_engine_that_breaks_in_a_reset_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match=r"lamp-broken: reset to lamp-broken/train/\d+: OSE"):
        started(difficulty="broken")


def test_a_broken_engine_has_no_score_rather_than_0() -> None:
    env = LampEnv()
    spec = EpisodeSpec(
        env_id="lamp", task=procedural_task(env.name, "test", 0), env_seed=0, policy_seed=0
    )
    policy = FunctionPolicy(lambda _observation, _info: "hit lamp")
    episode = asyncio.run(rollout(env, policy, spec))
    assert episode.stop_reason is StopReason.ERROR_ENV
    assert episode.score is None
    assert "glass everywhere" in str(episode.error)


def test_errors_of_ours_pass_the_boundary_as_they_are() -> None:
    with pytest.raises(ConfigError, match="settings"), LampEnv()._boundary("step"):
        raise ConfigError("settings")


def test_legal_and_expert_actions_follow_the_action_style() -> None:
    env = started(action_style="tools")
    press = '{"name": "press", "arguments": {"thing": "switch"}}'
    assert env.expert_action() == env.legal_actions()[0] == press
    assert env.step(press)[2]


def test_unknown_difficulty_and_style_name_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'broken'"):
        LampEnv(difficulty="broke")
    with pytest.raises(UnknownNameError, match="Did you mean 'commands'"):
        LampEnv(action_style="command")  # type: ignore[arg-type]


def test_a_missing_engine_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LampEnv, "modules", ("no_such_engine",))
    with pytest.raises(MissingExtraError, match=r"pip install 'turngym\[babyai\]'") as caught:
        LampEnv()
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ImportError)


@pytest.mark.parametrize(
    "entry",
    [e for e in registry.entries() if e.extra and e.family == "text"],
    ids=lambda entry: entry.short_name,
)
def test_every_extra_game_is_known_without_its_engine_and_says_what_to_install(
    entry: registry.EnvEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = base.importlib.util.find_spec
    monkeypatch.setattr(
        base.importlib.util,
        "find_spec",
        lambda name, *rest: None if name in entry.modules else found(name, *rest),
    )
    with pytest.raises(MissingExtraError, match=rf"pip install 'turngym\[{entry.extra}\]'"):
        gymnasium.make(entry.id)


def test_registering_imports_no_engine() -> None:
    code = """
import sys, turngym
from turngym import registry
assert registry.find("text/household").extra == "alfworld"
engines = {"textworld", "alfworld", "fast_downward", "scienceworld", "py4j", "textarena"}
print(sorted(engines & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900
    )
    assert done.stdout.strip() == "[]"


def test_about_a_fifth_of_all_problems_is_held_out() -> None:
    held_out = sum(split_of(f"problem {number}") == "test" for number in range(2000))
    assert 320 < held_out < 480
    assert split_of("problem 1") == split_of("problem 1")
