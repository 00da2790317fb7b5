"""ScienceWorld's Java process: started once, replaced when it dies, never left behind."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from turngym.environments.text.scienceworld import ScienceWorldEnv, process_of
from turngym.errors import EnvironmentFault

pytestmark = pytest.mark.extra("scienceworld", "java")


@pytest.fixture
def env() -> Iterator[ScienceWorldEnv]:
    made = ScienceWorldEnv()
    yield made
    made.close()


def pid_of(env: ScienceWorldEnv) -> int | None:
    return None if env._engine is None else int(process_of(env._engine).pid)


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def command_line(process_id: int) -> str:
    return Path(f"/proc/{process_id}/environ").read_text(errors="replace")


def test_one_process_serves_all_episodes_and_ends_with_close(env: ScienceWorldEnv) -> None:
    assert pid_of(env) is None, "nothing is started before the first reset"
    env.reset(seed=0)
    first = pid_of(env)
    env.reset(seed=1)
    assert first is not None
    assert pid_of(env) == first
    assert is_alive(first)
    env.close()
    env.close()
    assert pid_of(env) is None
    assert not is_alive(first)


def test_the_memory_is_limited_and_the_environment_variable_restored(
    env: ScienceWorldEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dmine=1")
    env.reset(seed=0)
    assert pid_of(env) is not None
    assert "JAVA_TOOL_OPTIONS=-Dmine=1 -Xmx512m" in command_line(pid_of(env))
    assert os.environ["JAVA_TOOL_OPTIONS"] == "-Dmine=1"


def test_a_forgotten_environment_leaves_no_process() -> None:
    env = ScienceWorldEnv()
    env.reset(seed=0)
    process_id = pid_of(env)
    assert process_id is not None
    del env
    gc.collect()
    assert not is_alive(process_id)


def test_the_death_of_the_process_is_a_fault_and_the_next_reset_replaces_it(
    env: ScienceWorldEnv,
) -> None:
    env.reset(seed=0)
    dead = pid_of(env)
    assert dead is not None
    os.kill(dead, signal.SIGKILL)
    process_of(env._engine).wait(10)
    with pytest.raises(EnvironmentFault, match="step 'look around'"):
        env.step("look around")
    observation, _ = env.reset(seed=0)
    assert "Your task is to" in observation["text"]
    assert pid_of(env) != dead


def test_closing_after_the_process_died_is_quiet(env: ScienceWorldEnv) -> None:
    env.reset(seed=0)
    os.kill(pid_of(env) or 0, signal.SIGKILL)
    time.sleep(0.2)
    env.close()
    assert pid_of(env) is None


def test_splits_are_the_variations_of_scienceworld(env: ScienceWorldEnv) -> None:
    seen: dict[str, set[tuple[str, int]]] = {"train": set(), "test": set()}
    for split, found in seen.items():
        for index in range(8):
            env.reset(options={"task": env.task(split, index)})  # type: ignore[arg-type]
            found.add(env._variation)
        for name, variation in found:
            assert variation in env._variations_of(name)[split]
    assert not seen["train"] & seen["test"]


def test_the_expert_may_be_asked_late_and_goes_on_after_a_look_around(
    env: ScienceWorldEnv,
) -> None:
    env.reset(options={"task": env.task("test", 0)})
    for _ in range(3):
        env.step("look around")
    before = env.state_key()
    env.expert_action()
    assert env.state_key() == before, "finding the gold path must come back to the same place"
    total = 0.0
    for turn in range(40):
        if turn == 1:
            env.step("inventory")
        _, reward, terminated, _, info = env.step(env.expert_action())
        total += reward
        if terminated:
            break
    assert info["score"] == 1.0


def test_a_wrong_focus_loses_all_points(env: ScienceWorldEnv) -> None:
    index = 0
    env.reset(options={"task": env.task("test", index)})
    while env._variation[0] != "find-animal":
        index += 1
        env.reset(options={"task": env.task("test", index)})
    points = env.score()
    _, reward, terminated, _, info = env.step("focus on air")
    assert terminated
    assert (reward, info["score"]) == (-points, 0.0)


def test_what_the_simulator_does_not_know_is_an_invalid_action(env: ScienceWorldEnv) -> None:
    env.reset(seed=0)
    for nonsense in ("dance with the fridge", "\x00", "go " * 500, "\ud83d"):
        observation, reward, terminated, _, info = env.step(nonsense)
        assert info["invalid_action"]
        assert observation["text"]
        assert (reward, terminated) == (0.0, False)
    assert "invalid_action" not in env.step("look around")[4]


def test_what_the_start_fulfils_already_is_worth_nothing() -> None:
    env = ScienceWorldEnv(difficulty="medium")
    try:
        free = []
        for number in range(6):
            env.reset(options={"task": env.task("test", number)})
            free.append(env._free)
            assert env.score() == 0
        assert any(free)
    finally:
        env.close()
