"""TextWorld games: the view and the expert on hand-made facts, then the games themselves."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest

from turngym.environments.text.textworld import (
    CoinEnv,
    CookingEnv,
    TreasureEnv,
    WorldView,
    fetch,
    go_to,
)
from turngym.errors import ConfigError, EnvironmentFault

needs_textworld = pytest.mark.extra("textworld")


def view_of(*facts: str) -> WorldView:
    """Return the view of facts such as ``"at k gold_key hall"``; kinds are the first letters."""
    rows = [fact.split() for fact in facts]
    names = {name for _, *arguments in rows for name in arguments}
    infos = {
        name: SimpleNamespace(name=name.replace("_", " ").removeprefix("x"), type=name[0])
        for name in names
    }
    propositions = [
        SimpleNamespace(
            name=predicate, arguments=[SimpleNamespace(name=name) for name in arguments]
        )
        for predicate, *arguments in rows
    ]
    return WorldView(SimpleNamespace(infos=infos), propositions)


HALL_AND_CELL = (
    "at P r_hall",
    "north_of r_cell r_hall",
    "south_of r_hall r_cell",
    "link r_hall d_gate r_cell",
    "link r_cell d_gate r_hall",
    "at o_coin r_cell",
)


def test_the_expert_fetches_the_key_opens_its_box_and_the_gate() -> None:
    view = view_of(
        *HALL_AND_CELL,
        "locked d_gate",
        "match k_key d_gate",
        "at c_box r_hall",
        "closed c_box",
        "in k_key c_box",
    )
    assert fetch(view, "o_coin") == "open c box"
    view = view_of(*HALL_AND_CELL, "locked d_gate", "match k_key d_gate", "in k_key I")
    assert fetch(view, "o_coin") == "unlock d gate with k key"
    view = view_of(*HALL_AND_CELL, "closed d_gate")
    assert fetch(view, "o_coin") == "open d gate"
    view = view_of(*HALL_AND_CELL, "open d_gate")
    assert fetch(view, "o_coin") == "go north"


def test_the_expert_goes_round_a_locked_door_whose_key_is_far() -> None:
    """Through the gate it is one room; the long way is three, still shorter than via the key."""
    view = view_of(
        *HALL_AND_CELL,
        "locked d_gate",
        "match k_key d_gate",
        "west_of r_a r_hall",
        "north_of r_b r_a",
        "east_of r_cell r_b",
        "east_of r_c r_hall",
        "east_of r_d r_c",
        "at k_key r_d",
    )
    assert fetch(view, "o_coin") == "go west"
    assert go_to(view, "r_d") == "go east"
    assert go_to(view, "r_hall") is None


def test_without_any_way_the_expert_says_so() -> None:
    with pytest.raises(ConfigError, match="sees no way"):
        fetch(view_of(*HALL_AND_CELL, "locked d_gate"), "o_coin")


def test_the_description_shows_lids_contents_exits_and_hands() -> None:
    view = view_of(
        *HALL_AND_CELL,
        "closed d_gate",
        "at c_box r_hall",
        "open c_box",
        "in k_key c_box",
        "at c_safe r_hall",
        "locked c_safe",
        "in o_gem c_safe",
        "in f_egg I",
        "fried f_egg",
        "sliced f_egg",
    )
    assert view.describe() == (
        "You are in the r hall.\n"
        "You see: c box (open) with k key; c safe (locked).\n"
        "Exits: north (closed d gate).\n"
        "You carry: f egg (sliced fried)."
    )


@needs_textworld
def test_a_seed_gives_the_same_game_whatever_the_hash_seed() -> None:
    code = """
from turngym.environments.text.textworld import CoinEnv, CookingEnv, TreasureEnv
for game in (CoinEnv, TreasureEnv, CookingEnv):
    env = game(difficulty="medium")
    for index in range(3):
        print(env.reset(options={"task": env.task("test", index)}))
        for _ in range(4):
            print(env.step(env.expert_action()))
            if env._over:
                break
"""
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
            timeout=900,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(said) == 1


@needs_textworld
def test_coin_maps_and_floor_plans_of_the_splits_are_disjoint() -> None:
    from turngym.environments.text.textworld_worlds import _map_from_start

    env = CoinEnv()
    maps: dict[str, set[str]] = {"train": set(), "test": set()}
    for split, found in maps.items():
        for index in range(60):
            env.reset(options={"task": env.task(split, index)})  # type: ignore[arg-type]
            found.add(_map_from_start(env.game))
    assert not maps["train"] & maps["test"]
    assert min(map(len, maps.values())) > 20


@needs_textworld
def test_recipes_of_the_splits_share_no_preparation() -> None:
    env = CookingEnv(difficulty="medium")
    asked: dict[str, set[tuple[str, ...]]] = {"train": set(), "test": set()}
    for split, found in asked.items():
        for index in range(40):
            env.reset(options={"task": env.task(split, index)})  # type: ignore[arg-type]
            found |= {tuple(ingredient) for ingredient in env.game.metadata["ingredients"]}
    assert not asked["train"] & asked["test"]


@needs_textworld
def test_the_meal_cannot_be_prepared_before_its_ingredients_are() -> None:
    env = CookingEnv(difficulty="medium")
    env.reset(options={"task": env.task("test", 0)})
    refused = []
    for _ in range(40):
        observation, _, terminated, _, info = env.step("prepare meal")
        if "invalid_action" not in info:
            break
        refused.append(observation["text"])
        assert not terminated
        env.step(env.expert_action())
    assert "Something still needs to be cooked." in refused
    assert env.expert_action() == "eat meal"


@needs_textworld
def test_the_cook_reads_the_recipe_first_and_is_told_it() -> None:
    env = CookingEnv()
    env.reset(options={"task": env.task("test", 0)})
    assert env.expert_action() == "examine cookbook"
    text = env.step("examine cookbook")[0]["text"]
    assert "Ingredients:" in text
    assert "Directions:" in text
    assert env.expert_action() != "examine cookbook"


@needs_textworld
def test_points_add_up_to_one_and_a_spoilt_meal_loses() -> None:
    env = CookingEnv()
    env.reset(options={"task": env.task("test", 1)})
    rewards = []
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(env.expert_action())
        rewards.append(reward)
    assert sum(rewards) == pytest.approx(1.0)
    assert info["score"] == 1.0

    env.reset(options={"task": env.task("test", 1)})
    for _ in range(30):
        cooking = [action for action in env.legal_actions() if action.startswith("cook ")]
        action = cooking[0] if cooking else env.expert_action()
        observation, _, terminated, _, info = env.step(action)
        if terminated:
            break
    assert "You lost." in observation["text"]
    assert info["score"] < 1.0


@needs_textworld
def test_the_trap_of_a_treasure_hunt_loses() -> None:
    env = TreasureEnv()
    env.reset(options={"task": env.task("test", 0)})
    (event,) = env.game.quests[0].fail_events
    (wrong,) = (f.arguments[0].name for f in event.condition.preconditions if f.name == "in")
    terminated = False
    for _ in range(20):
        command = fetch(env.view, wrong)
        assert command is not None
        observation, reward, terminated, _, info = env.step(command)
        if terminated:
            break
    assert "You lost." in observation["text"]
    assert (reward, info["score"]) == (0.0, 0.0)


@needs_textworld
def test_a_pickled_snapshot_goes_on_in_another_environment() -> None:
    env, other = TreasureEnv(difficulty="medium"), TreasureEnv(difficulty="medium")
    env.reset(options={"task": env.task("test", 3)})
    env.step(env.expert_action())
    other.restore(pickle.loads(pickle.dumps(env.snapshot())))
    while True:
        action = env.expert_action()
        assert other.expert_action() == action
        ours, theirs = env.step(action), other.step(action)
        assert ours[:4] == theirs[:4]
        if ours[2]:
            break


@needs_textworld
def test_generation_leaves_textworld_as_it_was() -> None:
    from textworld import GameMaker
    from textworld.generator.data import KnowledgeBase

    load, record = KnowledgeBase.__dict__["load"], GameMaker.set_walkthrough
    env = CoinEnv()
    env.reset(options={"task": env.task("train", 99)})
    assert KnowledgeBase.__dict__["load"] is load
    assert GameMaker.set_walkthrough is record


@needs_textworld
def test_a_generator_that_breaks_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from textworld.challenges.tw_coin_collector import coin_collector

    def broken(*_: object) -> None:
        raise RuntimeError("no more rooms")

    monkeypatch.setattr(coin_collector, "make_game", broken)
    env = CoinEnv()
    with pytest.raises(EnvironmentFault, match="no more rooms"):
        env.reset(options={"task": env.task("train", 123_456)})
