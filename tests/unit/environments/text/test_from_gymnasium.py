import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from turngym.environments.text.from_gymnasium import from_gymnasium, readable
from turngym.errors import ConfigError
from turngym.types import StopReason


class Corridor(gymnasium.Env):
    """Walk from a random cell to the right end of seven; the left end hurts."""

    def __init__(self, *, masked=False, start=0):
        self.observation_space = spaces.Discrete(7)
        self.action_space = spaces.Discrete(2, start=start)
        self.masked = masked
        self.at = 3

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(1, 5))
        return self.at, self.info()

    def step(self, action):
        self.at += 1 if action - self.action_space.start else -1
        over = self.at in (0, 6)
        return self.at, 9.0 if self.at == 6 else -0.5, over, False, self.info()

    def info(self):
        return {"action_mask": np.array([self.at > 1, True])} if self.masked else {}


NAMES = ("step left", "step right")


def corridor(**kwargs):
    return from_gymnasium(
        lambda: Corridor(**kwargs),
        describe=lambda at, _: f"cell {at}.",
        actions=NAMES,
        name="corridor",
        success=lambda total, _: total > 0,
    )


def walk(env, actions):
    return [env.step(action) for action in actions]


def test_gymnasium_finds_nothing_wrong():
    check_env(corridor(), skip_render_check=True)


class DrawnCorridor(Corridor):
    """Draws where you are."""

    def __init__(self, *, drawn=None, **kwargs):
        super().__init__(**kwargs)
        self.render_mode = "rgb_array"
        self.drawn = drawn

    def render(self):
        if self.drawn is not None:
            return self.drawn
        picture = np.zeros((4, 7, 3), np.uint8)
        picture[:, self.at] = 255
        return picture


def test_what_the_inner_environment_draws_is_shown():
    env = from_gymnasium(DrawnCorridor, actions=NAMES, picture=True)
    check_env(env, skip_render_check=True)
    observation, _ = env.reset(seed=0)
    assert observation["text"] == "Look at the picture."
    assert env.observation_space.contains(observation)
    at = env.inner.at
    assert observation["image"][0, :, 0].nonzero()[0].tolist() == [at]
    [(after, *_)] = walk(env, ["step right"])
    assert after["image"][0, :, 0].nonzero()[0].tolist() == [at + 1]
    both = from_gymnasium(
        DrawnCorridor, actions=NAMES, picture=True, describe=lambda at, _: f"cell {at}."
    )
    assert both.reset(seed=0)[0]["text"] == f"cell {at}."
    assert "image" not in from_gymnasium(DrawnCorridor, actions=NAMES).reset(seed=0)[0]


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (lambda: DrawnCorridor(drawn=np.zeros((4, 7), np.uint8)), r"returned \(4, 7\), wanted"),
        (lambda: DrawnCorridor(drawn="...|"), "returned str, wanted uint8"),
    ],
)
def test_what_is_no_picture_is_refused(inner, message):
    with pytest.raises(ConfigError, match=message):
        from_gymnasium(inner, actions=NAMES, picture=True)


def test_actions_go_by_their_names_in_either_style():
    env = corridor()
    env.reset(seed=0)
    at = env.inner.at
    assert env.legal_actions() == ["step left", "step right"]
    assert env.step("step right")[0]["text"] == f"cell {at + 1}."
    tools = from_gymnasium(Corridor, actions=NAMES, action_style="tools")
    _, info = tools.reset(seed=0)
    assert [tool["function"]["name"] for tool in info["tools"]] == ["step_left", "step_right"]
    assert tools.step('{"name": "step_right", "arguments": {}}')[4].get("invalid_action") is None


def test_an_action_space_that_starts_elsewhere_is_shifted():
    env = corridor(start=5)
    env.reset(seed=0)
    at = env.inner.at
    assert env.step("step left")[0]["text"] == f"cell {at - 1}."


def test_inner_rewards_and_score_come_through():
    env = corridor()
    env.reset(seed=0)
    steps = walk(env, ["step right"] * (6 - env.inner.at))
    assert [step[1] for step in steps] == [-0.5] * (len(steps) - 1) + [9.0]
    assert steps[-1][2]
    assert steps[-1][4]["score"] == 1.0
    assert steps[-1][4]["stop_reason"] == StopReason.TERMINATED


def test_without_success_there_is_no_score():
    env = from_gymnasium(Corridor, actions=NAMES)
    env.reset(seed=0)
    steps = walk(env, ["step right"] * (6 - env.inner.at))
    assert steps[-1][4]["score"] is None


def test_masked_actions_are_refused_without_a_step():
    env = corridor(masked=True)
    env.reset(seed=0)
    walk(env, ["step left"] * (env.inner.at - 1))
    observation, reward, terminated, _, info = env.step("step left")
    assert info["invalid_action"] == "'step left' is not possible here."
    assert observation["text"] == "'step left' is not possible here. cell 1."
    assert (reward, terminated, env.inner.at) == (0.0, False, 1)
    assert info["legal_actions"] == ["step right"]


def test_a_mask_that_leaves_no_action_is_no_mask():
    inner = Corridor()
    inner.info = lambda: {"action_mask": np.zeros(2, np.int8)}
    env = from_gymnasium(lambda: inner, actions=NAMES)
    _, info = env.reset(seed=0)
    assert info["legal_actions"] == [*NAMES]
    before = inner.at
    assert "invalid_action" not in env.step("step right")[4]
    assert inner.at == before + 1


def test_a_time_limit_of_the_inner_environment_truncates():
    env = from_gymnasium(
        lambda: gymnasium.wrappers.TimeLimit(Corridor(), 2), actions=NAMES, success=lambda *_: False
    )
    env.reset(seed=0)
    _, _, terminated, truncated, info = walk(env, ["step right", "step left"])[-1]
    assert (terminated, truncated) == (False, True)
    assert info["stop_reason"] == StopReason.TRUNCATED_ENV


def test_an_instance_is_copied_and_forks_are_independent():
    inner = Corridor()
    env = from_gymnasium(inner, actions=NAMES)
    env.reset(seed=0)
    left, right = env.fork(2)
    walk(left, ["step right"])
    assert inner.at == 3
    assert right.inner.at == env.inner.at == left.inner.at - 1


def test_an_instance_that_cannot_be_copied_asks_for_a_function():
    inner = Corridor()
    inner.handle = (n for n in range(3))
    with pytest.raises(ConfigError, match="pass a function"):
        from_gymnasium(inner, actions=NAMES)


class GameOfSeveral:
    """Has agents, as games of other libraries do, and is no ``gymnasium.Env``."""

    agents = ("first", "second")


@pytest.mark.parametrize("made", [GameOfSeveral(), GameOfSeveral])
def test_what_is_no_gymnasium_environment_is_refused(made):
    with pytest.raises(ConfigError, match=r"GameOfSeveral is no gymnasium\.Env; write a TurnEnv"):
        from_gymnasium(made, actions=NAMES)


def test_ids_of_gymnasium_work_with_a_readable_default():
    env = from_gymnasium("Blackjack-v1", actions=("stick", "hit"))
    observation, info = env.reset(seed=0)
    assert re.fullmatch(r"\d+, \d+, [01]", observation["text"])
    assert info["task_id"].startswith("blackjack-v1/train/")
    assert env.find_task(info["task_id"]) == env.current_task


@pytest.mark.parametrize(
    "actions", [("left",), ("a", "b", "c"), ("same", "same"), ("+1", "-1"), ("+", "go")]
)
def test_wrong_names_are_refused(actions):
    with pytest.raises(ConfigError, match="wanted 2 names that differ in letters or digits, found"):
        from_gymnasium(Corridor, actions=actions)


def test_other_action_spaces_are_refused():
    env = Corridor()
    env.action_space = spaces.Box(-1, 1, (2,))
    with pytest.raises(ConfigError, match="wanted a Discrete one"):
        from_gymnasium(env, actions=NAMES)


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        (4, "4"),
        (np.array([0.5, 2.0]), "[0.5 2. ]"),
        ((1, np.int64(2)), "1, 2"),
        ({"hand": (20, 3), "ace": 0}, "hand 20, 3. ace 0"),
    ],
)
def test_observations_become_short_text(observation, text):
    assert readable(observation, {}) == text
