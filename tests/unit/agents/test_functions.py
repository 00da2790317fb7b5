"""Functions as agents: side by side, awaited, given up on by name. No test measures time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.cli import turngym as program
from turngym.agents.scripted import FunctionPolicy, is_coroutine_function
from turngym.errors import ConfigError
from turngym.rollouts.episode import EpisodeSpec, group_specs, rollout
from turngym.rollouts.evaluation.evaluate import collect
from turngym.types import StopReason, Trajectory

MANY = 24
DEADLINE_S = 120.0


def specs(count: int) -> list[EpisodeSpec]:
    task = turngym.make("text/maze").unwrapped.task("test", 0)
    return group_specs("text/maze", task, seed=1, group_size=count)


def play(act: Any, count: int, concurrency: int, **limits: Any) -> list[Trajectory]:
    def make_env() -> Any:
        return turngym.make("text/maze", max_turns=2)

    work = collect(make_env, FunctionPolicy(act), specs(count), concurrency=concurrency, **limits)
    return asyncio.run(work)


def test_as_many_plain_calls_run_at_once_as_episodes() -> None:
    inside = threading.Barrier(MANY)  # opens when all are in

    def act(observation: Any, info: Any) -> str:
        inside.wait(DEADLINE_S)
        return "go north"

    played = play(act, MANY, MANY)
    assert [t.stop_reason for t in played] == [StopReason.TRUNCATED_TURNS] * MANY
    assert not inside.broken


def test_as_many_coroutines_run_at_once_as_episodes() -> None:
    waiting, everybody = 0, asyncio.Event()

    async def act(observation: Any, info: Any) -> str:
        nonlocal waiting
        waiting += 1
        if waiting == MANY:
            everybody.set()
        async with asyncio.timeout(DEADLINE_S):
            await everybody.wait()
        return "go north"

    played = play(act, MANY, MANY)
    assert {t.stop_reason for t in played} == {StopReason.TRUNCATED_TURNS}


def test_an_object_whose_call_is_a_coroutine_is_awaited() -> None:
    class Agent:
        async def __call__(self, observation: Any, info: Any) -> str:
            return "go north"

    assert is_coroutine_function(Agent())
    assert play(Agent(), 1, 1)[0].turns[0].action.content == "go north"


def test_a_coroutine_that_a_plain_function_returns_is_awaited() -> None:
    async def act(observation: Any, info: Any) -> str:
        return "go north"

    assert play(lambda *seen: act(*seen), 1, 1)[0].turns[0].action.content == "go north"


def test_half_of_a_unicode_pair_is_said_as_it_is_recorded() -> None:
    [played] = play(lambda *_: "go \ud83e", 1, 1)
    assert played.turns[0].action.content == "go ?"
    assert played.turns[0].invalid_action is not None
    assert "'go ?'" in played.turns[0].invalid_action


async def one(policy: FunctionPolicy, **limits: Any) -> Trajectory:
    return await rollout(turngym.make("text/maze"), policy, specs(1)[0], **limits)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        ({"timeout_s": 0.05}, StopReason.TRUNCATED_TIME),
        ({"act_timeout_s": 0.05}, StopReason.ERROR_POLICY),
    ],
)
async def test_a_limit_holds_where_an_agent_keeps_the_cancellation_to_itself(
    limits: dict[str, float], stop: StopReason
) -> None:
    asked = 0

    async def act(observation: Any, info: Any) -> str:
        nonlocal asked
        asked += 1
        try:
            await asyncio.sleep(60)
        except:  # noqa: E722 - what people write
            return "go north"
        return "go south"

    played = await one(FunctionPolicy(act), **limits)
    assert (played.stop_reason, played.turns, asked) == (stop, (), 1)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        ({"timeout_s": 0.05}, StopReason.TRUNCATED_TIME),
        ({"act_timeout_s": 0.05}, StopReason.ERROR_POLICY),
    ],
)
async def test_a_call_that_hangs_ends_its_episode_by_name_and_is_counted(
    limits: dict[str, float], stop: StopReason
) -> None:
    release = threading.Event()

    def act(observation: Any, info: Any) -> str:
        release.wait(DEADLINE_S)
        return "go north"

    policy = FunctionPolicy(act)
    trajectory = await one(policy, **limits)
    assert trajectory.stop_reason is stop
    assert policy.abandoned == 1
    release.set()
    async with asyncio.timeout(DEADLINE_S):
        while policy.abandoned:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (StopIteration("end"), "StopIteration"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
async def test_whatever_a_plain_function_raises_ends_one_episode(
    raised: BaseException, said: str
) -> None:
    def act(observation: Any, info: Any) -> str:
        raise raised

    trajectory = await one(FunctionPolicy(act))
    assert trajectory.stop_reason is StopReason.ERROR_POLICY
    assert said in str(trajectory.error)


async def test_an_answer_that_is_no_text_is_wrong_input() -> None:
    with pytest.raises(ConfigError, match="an action is a str, got int"):
        await one(FunctionPolicy(lambda seen, info: 7))  # type: ignore[arg-type,return-value]


async def test_a_thread_is_used_again() -> None:
    names = []

    def act(observation: Any, info: Any) -> str:
        names.append(threading.get_ident())
        return info["legal_actions"][0]

    await one(FunctionPolicy(act))
    assert len(names) > 3
    assert len(set(names)) == 1
    assert names[0] != threading.get_ident()


AGENTS = """
import threading, asyncio

def hangs(observation, info):
    threading.Event().wait()

async def acts(observation, info):
    await asyncio.sleep(0)
    return info["legal_actions"][0]
"""


def test_eval_ends_although_a_call_hangs(tmp_path: Path) -> None:
    (tmp_path / "own_agents.py").write_text(AGENTS)
    words = ["eval", "text/maze", "--episodes", "3", "--json"]
    done = program(*words, "--agent", "own_agents.py:hangs", "--timeout", "0.2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"truncated": 3' in done.stdout
    assert "3 calls of the agent never came back" in done.stderr
    done = program(*words, "--agent", "own_agents:acts", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
