"""What TRL's trainer gets: tools with types and words, rewards, and none where an episode broke."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Iterator
from typing import Any, Literal

import pytest

import turngym
from helpers.envs import LadderEnv
from turngym import registry
from turngym.api.trl import trl_environment, trl_rows
from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.own import add_class
from turngym.errors import ConfigError, EnvironmentFault
from turngym.tasks.base import Task

ROW = {"prompt": [], "task": "maze-easy/train/3"}


class Judged(LadderEnv):
    """Pays at its end what it has reached, and breaks on request."""

    name = "judged"

    def begin(self, task: Task) -> Outcome:
        if task.id.endswith("/7"):
            raise OSError("no ladder")
        return super().begin(task)

    def turn(self, action: Action) -> Outcome:
        if action.name == "up":
            return Outcome(text="up", reward=math.nan)
        return super().turn(action)

    def end_at_limit(self) -> Outcome:
        return Outcome(text="", reward=self.score())


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    import gymnasium

    games = dict(gymnasium.registry)
    add_class(Judged, "local/Judged-v0")
    yield "local/Judged-v0"
    gymnasium.registry.clear()
    gymnasium.registry.update(games)


def test_actions_are_tools_with_types_and_words() -> None:
    made = trl_environment("text/maze")
    named = [name for name, _ in inspect.getmembers(made, inspect.isfunction) if name[0] != "_"]
    assert named == ["get_reward", "go", "reset"]
    go = made().go  # type: ignore[attr-defined]
    assert list(inspect.signature(go).parameters) == ["direction"]
    hints = typing.get_type_hints(go)
    assert hints["direction"] == Literal["north", "east", "south", "west"]
    assert "Args:\n    direction: " in go.__doc__


def test_rows_of_one_task_begin_alike_and_others_do_not() -> None:
    made = trl_environment("text/maze")
    rows = trl_rows("text/maze", 4)
    assert "maze of rooms" in rows[0]["prompt"][0]["content"]
    openings = [(made().reset(**row), made().reset(**row)) for row in rows]
    assert all(one == other for one, other in openings)
    assert len({one for one, _ in openings}) > 1
    with pytest.raises(ConfigError, match="column 'task'"):
        made().reset(prompt=[])
    with pytest.raises(ConfigError, match="unknown split 'tst'"):
        trl_rows("text/maze", 4, split="tst")  # type: ignore[arg-type]


def test_the_experts_calls_earn_what_the_episode_pays() -> None:
    far: Any = trl_environment("text/maze", seed=5)()
    from turngym.seeding import derive_seed

    env = turngym.make("text/maze")
    here, _ = env.reset(
        seed=derive_seed(5, ROW["task"], "env"), options={"task": ROW["task"]}
    )  # fmt: skip
    assert far.reset(**ROW) == here["text"]
    is_over, paid = False, 0.0
    while not is_over:
        said = env.unwrapped.expert_action()
        here, reward, is_over, _, _ = env.step(said)
        paid += float(reward)
        assert far.go(direction=said.split()[-1]) == here["text"]
    assert far.get_reward() == paid > 0
    assert "over" in far.go(direction="north")
    env.close()


def test_a_conversation_that_ends_before_its_episode_is_judged(judged: str) -> None:
    one: Any = trl_environment(judged, slip=0.0)()
    one.reset(task="judged/train/0")
    one.jump(rungs=3)
    assert one.get_reward() == 0.5
    assert one.get_reward() == 0.5, "asking twice changes nothing"


def test_an_episode_that_broke_has_no_reward(judged: str) -> None:
    one: Any = trl_environment(judged)()
    one.reset(task="judged/train/0")
    with pytest.raises(EnvironmentFault):
        getattr(one, "break")(how="value")
    assert one.get_reward() is None
    one.reset(task="judged/train/0")
    assert one.get_reward() == 0.0


def test_nor_has_one_that_could_not_begin_or_paid_no_number(judged: str) -> None:
    one: Any = trl_environment(judged)()
    with pytest.raises(EnvironmentFault, match="no ladder"):
        one.reset(task="judged/train/7")
    assert one.get_reward() is None
    one.reset(task="judged/train/0")
    with pytest.raises(EnvironmentFault, match="must be finite, got nan"):
        one.up()
    assert one.get_reward() is None
