"""BabyAI in words."""

from __future__ import annotations

import copy
import sys

import pytest

from turngym.environments.text.babyai import MOVES, BabyAIEnv, _key

pytestmark = pytest.mark.extra("minigrid")


def room(mission: str = "go to the red ball") -> BabyAIEnv:
    """Return an 8 x 8 room without things; the player stands at (1, 4) and looks right."""
    from minigrid.core.grid import Grid

    env = BabyAIEnv()
    env.reset(options={"task": env.task("train", 0)})
    world = env.state.world
    world.grid = Grid(8, 8)
    world.grid.wall_rect(0, 0, 8, 8)
    world.agent_pos, world.agent_dir, world.carrying, world.mission = (1, 4), 0, None, mission
    return env


def test_things_are_told_by_steps_ahead_and_to_the_side() -> None:
    from minigrid.core.world_object import Ball, Box, Door, Key

    env = room()
    grid = env.state.world.grid
    grid.set(3, 4, Ball("red"))
    grid.set(1, 3, Key("blue"))
    grid.set(4, 6, Box("green"))
    grid.set(7, 2, Door("grey", is_locked=True))
    assert env.describe() == (
        "Task: go to the red ball. You see blue key 1 left, red ball 2 ahead, "
        "green box 3 ahead 2 right, locked grey door 6 ahead 2 left. "
        "Walls: 6 ahead, 3 right. You carry nothing."
    )


def test_what_is_carried_is_told() -> None:
    from minigrid.core.world_object import Key

    env = room()
    env.state.world.grid.set(2, 4, Key("blue"))
    observation = env.step("pick up")[0]
    assert observation["text"].endswith("You carry blue key.")


def test_a_move_without_effect_says_so_and_is_no_invalid_action() -> None:
    env = room()
    env.step("turn left")
    env.step("turn left")
    observation, _, _, _, info = env.step("go forward")
    assert observation["text"].startswith("You go forward: nothing changes. Task:")
    assert "invalid_action" not in info


@pytest.mark.parametrize("level", list(BabyAIEnv.difficulties))
def test_every_level_is_solved_in_the_number_of_moves_that_it_declares(level: str) -> None:
    env = BabyAIEnv(difficulty=level)
    fewest, most = env.settings["moves"]
    for index in range(5):
        env.reset(options={"task": env.task("test", index)})
        made, terminated = 0, False
        while not terminated and made < most:
            _, reward, terminated, _, info = env.step(env.expert_action())
            made += 1
        assert (reward, info["score"]) == (1.0, 1.0)
        assert fewest <= made <= most


def test_the_bot_finds_back_after_a_detour() -> None:
    env = BabyAIEnv(difficulty="PickupLoc")
    env.reset(options={"task": env.task("test", 2)})
    env.expert_action()
    for move in ("turn left", "go forward", "turn left", "go forward"):
        env.step(move)
    for _ in range(40):
        _, _, terminated, _, info = env.step(env.expert_action())
        if terminated:
            break
    assert info["score"] == 1.0


def test_an_expert_that_gives_up_is_no_fault_of_the_environment() -> None:
    """BabyAI's bot raises when a box was opened, which destroys it."""
    from minigrid.core.world_object import Box

    env = room()
    env.expert_action()
    env.state.world.grid.set(2, 4, Box("green"))
    _, _, _, _, info = env.step("toggle")
    assert "invalid_action" not in info
    assert env.expert_action() in MOVES


def test_a_snapshot_holds_the_world_and_the_bot_together() -> None:
    env = BabyAIEnv(difficulty="UnlockLocal")
    env.reset(options={"task": env.task("test", 0)})
    for _ in range(4):
        env.step(env.expert_action())
    child = env.fork(1)[0]
    assert child.state.bot.mission is child.state.world
    assert child.state.world is not env.state.world
    before = _key(env.state.world)
    while not child.step(child.expert_action())[2]:
        pass
    assert _key(env.state.world) == before


def test_the_splits_share_no_level(capsys: pytest.CaptureFixture[str]) -> None:
    env = BabyAIEnv(difficulty="GoToLocal")
    keys: dict[str, set[str]] = {"train": set(), "test": set()}
    for split, found in keys.items():
        for index in range(40):
            env.reset(options={"task": env.task(split, index)})  # type: ignore[arg-type]
            found.add(copy.copy(_key(env.state.world)))
    assert not keys["train"] & keys["test"]
    assert len(keys["test"]) == 40
    assert capsys.readouterr().out == "", "minigrid prints what it rejects; we do not"


def test_what_minigrid_rejects_is_not_printed_and_standard_output_stays_in_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel

    validate, places = RoomGridLevel.validate_instrs, list[object]()

    def reject_once(self: RoomGridLevel, instruction: object) -> None:
        places.append(sys.stdout)
        if len(places) == 1:
            raise RejectSampling("the first one")
        validate(self, instruction)

    monkeypatch.setattr(RoomGridLevel, "validate_instrs", reject_once)
    env = BabyAIEnv()
    env.reset(options={"task": env.task("train", 0)})
    assert len(places) > 1
    assert set(places) == {sys.stdout}  # it belongs to other threads as well
    assert capsys.readouterr().out == ""


def test_what_is_in_view_is_shown_as_a_picture() -> None:
    env, words = BabyAIEnv(picture=True), BabyAIEnv()
    task = env.task("train", 0)
    observation, info = env.reset(options={"task": task})
    said, own = words.reset(options={"task": task})
    assert env.observation_space.contains(observation)
    mission = said["text"].partition(" You see")[0]
    assert observation["text"] == f"{mission} Look at the picture. You carry nothing."
    assert "7 x 7 cells" in info["instructions"]
    assert "steps ahead" in own["instructions"]
    before = env.get_state()
    after = env.step("turn left")[0]
    assert (after["image"] != observation["image"]).any()
    env.set_state(before)
    assert (env.step("turn left")[0]["image"] == after["image"]).all()
