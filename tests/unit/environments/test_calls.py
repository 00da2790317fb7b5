"""Several tool calls of one answer: one step of the environment, and several of its turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest

import turngym
from turngym.environments.core.actions import Action, JsonTools, calls_at_end, function_tool
from turngym.environments.core.env import AsyncTurnEnv, TurnEnv
from turngym.environments.core.episode import Outcome
from turngym.environments.core.limits import TurnLimit
from turngym.environments.core.spaces import info_problems
from turngym.environments.gym.wrappers import with_calls
from turngym.errors import ConfigError

FORMAT = JsonTools([function_tool("add", "Add.", {"n": {"type": "integer"}}, ["n"])])


class Adding(TurnEnv):
    """Sums numbers up to 10, and pays each."""

    action_format = FORMAT
    total = 0

    def begin(self, task):
        self.total = 0
        return Outcome(text="0")

    def turn(self, action: Action) -> Outcome:
        self.total += int(action.arguments["n"])
        parts = {} if self.total < 5 else {"reward_parts": {"much": 1.0, "little": 0.5}}
        return Outcome(
            text=str(self.total), reward=1.5 if parts else 1.0, terminated=self.total >= 10,
            info={**parts, "usage": {"sum": float(self.total)}},
        )  # fmt: skip

    def score(self):
        return min(1.0, self.total / 10)


class Waiting(AsyncTurnEnv):
    """The same, with coroutines."""

    action_format = FORMAT
    begin_, turn_, score = Adding.begin, Adding.turn, Adding.score

    async def begin(self, task):
        return self.begin_(task)

    async def turn(self, action):
        await asyncio.sleep(0)
        return self.turn_(action)


def calls(*numbers: object) -> str:
    return "\n".join(json.dumps({"name": "add", "arguments": {"n": n}}) for n in numbers)


def stepped(kind: type, *actions: str, most: int = 3) -> list[Any]:
    """Return what each action gives, by ``gymnasium``'s interface or by coroutines."""
    if kind is Adding:
        env = with_calls(Adding(), most)
        env.reset(seed=0)
        return [env.step(action) for action in actions]

    async def play() -> list[Any]:
        async with with_calls(Waiting(), most) as env:
            await env.reset(seed=0)
            return [await env.step(action) for action in actions]

    return asyncio.run(play())


@pytest.mark.parametrize("kind", [Adding, Waiting])
def test_the_calls_of_an_answer_are_one_step(kind: type) -> None:
    observation, reward, terminated, truncated, info = stepped(kind, calls(1, 2, 3))[0]
    assert (observation["text"], info["results"]) == ("1\n\n3\n\n6", ("1", "3", "6"))
    assert (reward, terminated, truncated) == (3.5, False, False)
    assert info["reward_parts"] == {"reward": 2.0, "much": 1.0, "little": 0.5}
    assert info["usage"] == {"sum": 6.0}
    assert info_problems(info, reward=reward) == []


@pytest.mark.parametrize("kind", [Adding, Waiting])
def test_what_cannot_be_carried_out_is_said_and_the_rest_is_carried_out(kind: type) -> None:
    first, second = stepped(kind, calls(1, "two", 3, 4), calls(5, 5, 5))
    wrong = "Tool 'add', n: 'two' is not of type 'integer'"
    assert first[4]["results"] == ("1", wrong, "4", "Not carried out: at most 3 calls an answer.")
    assert first[4]["invalid_action"] == f"call 2: {wrong}"
    assert second[4]["results"] == ("9", "14", "Not carried out: the episode is over.")
    assert second[1:4] == (3.0, True, False)
    assert (second[4]["stop_reason"], second[4]["score"]) == ("terminated", 1.0)
    assert info_problems(second[4], reward=3.0, over=True) == []


def test_one_call_or_none_is_a_step_as_ever() -> None:
    for action in (
        calls(2),
        "no call",
        f"{calls(9)}, no: {calls(2)}",
        f"<think>{calls(9)}</think>",
    ):
        alone, several = Adding(), with_calls(Adding(), 3)
        alone.reset(seed=0)
        several.reset(seed=0)
        assert alone.step(action) == several.step(action)


def test_each_call_is_a_turn_of_the_limits() -> None:
    env = with_calls(Adding(), 9)
    env.episode_limits.append(TurnLimit(4))
    env.reset(seed=0)
    env.step(calls(1, 1))
    _, reward, terminated, truncated, info = env.step(calls(1, 1, 1))
    assert (reward, terminated, truncated, info["stop_reason"]) == (
        2.0,
        False,
        True,
        "truncated_turns",
    )
    assert info["results"][2] == "Not carried out: the episode is over."


def test_snapshots_and_forks_stand_between_answers() -> None:
    env = with_calls(Adding(), 3)
    env.reset(seed=0)
    env.step(calls(1, 2))
    state = env.snapshot()
    first = env.step(calls(3, 1))
    env.restore(state)
    [child] = env.fork(1)
    assert first == env.step(calls(3, 1)) == child.step(calls(3, 1))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[{A}, {B}]", "AB"),
        ("{A}{B}", "AB"),
        ("<tool_call>\n{A}\n</tool_call>\n<tool_call>{B}</tool_call>", "AB"),
        ("```json\n{A}\n```\n```\n{B}\n```", "AB"),
        ("{A} or {B}", "B"),
        ('{A} {{"no": 1}} {B}', "B"),
        ("<think>{A}</think>{B}{A}", "BA"),
        ("nothing", ""),
    ],
)
def test_calls_stand_at_the_end_with_nothing_between_them(text: str, found: str) -> None:
    written = {letter: json.dumps({"name": letter, "arguments": {}}) for letter in "AB"}
    assert calls_at_end(text.format(**written)) == [written[letter] for letter in found]


def test_the_option_reaches_every_form_of_an_environment() -> None:
    def go(*ways: str) -> str:
        said: Sequence[str] = [
            json.dumps({"name": "go", "arguments": {"direction": w}}) for w in ways
        ]
        return "\n".join(said)

    options = {"action_style": "tools", "calls_per_turn": 2}
    env = gymnasium.make("turngym/Maze-v0", **options)
    _, info = env.reset(seed=0)
    line = "\nAn answer may hold up to 2 tool calls, each of them a turn."
    assert line in info["instructions"]
    assert info["rules"].endswith(line)
    again = gymnasium.make(env.spec)
    again.reset(seed=0)
    clone = env.unwrapped.clone()
    clone.reset(seed=0)
    found = [one.step(go("north", "east", "south"))[4]["results"] for one in (env, again, clone)]
    assert found[0] == found[1] == found[2]
    assert found[0][2] == "Not carried out: at most 2 calls an answer."


def test_what_has_no_calls_is_one_line() -> None:
    with pytest.raises(ConfigError, match="calls_per_turn=2, but its actions are no tool calls"):
        turngym.make("text/maze", calls_per_turn=2).reset(seed=0)
    with pytest.raises(ConfigError, match="calls_per_turn=0: wanted 1 or more"):
        turngym.make("text/maze", calls_per_turn=0)
    with pytest.raises(ConfigError, match=r"calls_per_turn: wanted a whole number, got 2\.5"):
        turngym.make("text/maze", calls_per_turn=2.5)
    with pytest.raises(ConfigError, match="it is no TurnEnv"):
        with_calls(gymnasium.make("FrozenLake-v1"), 2)
