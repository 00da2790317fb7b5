import subprocess
import sys

import pytest

from turngym.environments.text.toy_text import FrozenLakeEnv, TaxiEnv, shortest_plan
from turngym.errors import UnknownNameError


def taxi_at(row, column, passenger, destination, *, difficulty="easy"):
    env = TaxiEnv(difficulty=difficulty)
    env.reset(seed=0)
    inner = env.inner.unwrapped
    inner.s = env._observation = inner.encode(row, column, passenger, destination)
    env._inner_info = {"action_mask": inner.action_mask(inner.s)}
    return env


def test_taxi_tells_the_way_to_the_passenger_and_then_to_the_destination():
    env = taxi_at(1, 0, 0, 1)
    assert env.text() == "fetch red north 1. open south north east."
    said = [env.step(action)[0]["text"] for action in ("north", "pick up")]
    assert said == ["fetch red here. open south east.", "to green east 4. open south east."]


def test_taxi_pays_only_for_delivery():
    env = taxi_at(0, 0, 0, 2)
    actions = ["pick up", "south", "south", "south", "south", "drop off"]
    steps = [env.step(action) for action in actions]
    assert [step[1] for step in steps] == [0.0] * 5 + [1.0]
    assert steps[-1][0]["text"] == "delivered."
    assert [step[4]["inner_reward"] for step in steps] == [-1] * 5 + [20]
    assert steps[-1][4]["score"] == 1.0


def test_taxi_refuses_walls_and_empty_errands():
    env = taxi_at(0, 1, 0, 2)
    for action in ("north", "east", "pick up", "drop off"):
        _, reward, terminated, _, info = env.step(action)
        assert info["invalid_action"] == f"{action!r} is not possible here."
        assert (reward, terminated) == (0.0, False)
    assert env.legal_actions() == ["south", "west"]


def test_a_passenger_who_left_early_is_fetched_again():
    env = taxi_at(0, 0, 0, 2)
    env.step("pick up")
    for action in ("south", "south", "east", "east", "east", "east", "north", "north", "drop off"):
        observation = env.step(action)[0]
    assert observation["text"] == "fetch green here. open south west."
    assert env.expert_action() == "pick up"


def test_the_bare_taxi_has_the_map_in_its_rules():
    env = taxi_at(1, 0, 0, 1, difficulty="hard")
    assert env.text() == "taxi at row 1 column 0. passenger at red, to green."
    assert "|R: | : :G|" in env.rules
    assert "|Y| : |B: |" in env.rules


def test_easy_rides_are_short():
    env = TaxiEnv()
    for seed in range(40):
        env.reset(seed=seed)
        assert 5 <= len(env._plan()) <= 10


def lake_of(*rows, difficulty="easy"):
    env = FrozenLakeEnv(difficulty=difficulty)
    env.prepare = lambda seed: None
    env.accepts = lambda task: True
    env._lake = list(rows)
    env.inner = type(env.inner.unwrapped)(desc=list(rows), is_slippery=False)
    env.reset(seed=0)
    return env


def test_the_lake_tells_the_goal_and_what_is_safe():
    env = lake_of("SFF", "HFF", "FFG")
    assert env.text() == "goal south 2 east 2. safe east."
    assert env.step("east")[0]["text"] == "goal south 2 east 1. safe south east west."


def test_a_hole_ends_without_reward():
    observation, reward, terminated, _, info = lake_of("SFF", "HFF", "FFG").step("south")
    assert (observation["text"], reward, terminated) == ("in a hole.", 0.0, True)
    assert info["score"] == 0.0


def test_the_goal_pays():
    env = lake_of("SF", "HG")
    env.step("east")
    observation, reward, terminated, _, info = env.step("south")
    assert (observation["text"], reward, terminated) == ("at the goal.", 1.0, True)
    assert info["score"] == 1.0


def test_the_drawing_marks_the_player():
    env = lake_of("SFF", "HFF", "FFG", difficulty="medium")
    assert env.step("east")[0]["text"] == "S@F\nHFF\nFFG"


@pytest.mark.parametrize(("difficulty", "side"), [("easy", 4), ("medium", 6), ("hard", 8)])
def test_every_task_has_its_own_lake(difficulty, side):
    env = FrozenLakeEnv(difficulty=difficulty)
    lakes = set()
    for seed in range(10):
        env.reset(seed=seed)
        lakes.add(env.instance_key())
        assert len(env._lake) == side
    assert len(lakes) > 5


def test_plans_are_shortest_and_none_without_a_way():
    pay, ice, hole = (1.0, 2, 1.0, True), (1.0, 1, 0.0, False), (1.0, 3, 0.0, True)
    back = (1.0, 0, 0.0, False)
    table = {0: {0: [hole], 1: [ice]}, 1: {0: [back], 1: [pay]}, 2: {}, 3: {}}
    assert shortest_plan(table, 0) == [1, 1]
    assert shortest_plan({0: {0: [hole]}}, 0) is None


def test_an_unknown_difficulty_names_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'hard'"):
        TaxiEnv(difficulty="harder")


def test_nothing_here_needs_pygame():
    code = (
        "import sys; sys.modules['pygame'] = None\n"
        "import turngym\n"
        "for name in ('text/taxi', 'text/frozenlake'):\n"
        "    env = turngym.make(name)\n"
        "    env.reset(seed=0)\n"
        "    env.step(env.unwrapped.expert_action())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900)


@pytest.mark.extra("pygame")
def test_taxi_is_shown_as_gymnasium_draws_it():
    env = TaxiEnv(picture=True)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    after, *_ = env.step(env.expert_action())
    assert (after["image"] != observation["image"]).any()
    assert "house" in env.rules
