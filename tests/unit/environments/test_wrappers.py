import json
import pickle

import gymnasium
import pytest
from gymnasium.wrappers import OrderEnforcing

import turngym
from helpers.broken_envs import Switch
from helpers.envs import LadderEnv, registered
from turngym.environments.core.actions import Commands
from turngym.environments.core.limits import (
    InvalidActionLimit,
    TokenLimit,
    ToolCallLimit,
    TurnLimit,
    WallClockLimit,
)
from turngym.environments.core.spaces import info_problems
from turngym.environments.gym.wrappers import ExpertMatch, limited
from turngym.errors import ConfigError


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def count_words(text: str) -> int:
    """Count words, for tokens."""
    return len(text.split())


def ladder(**options):
    return LadderEnv(**{"top": 99, "slip": 0.0, **options})


def ends(env, actions):
    """Return the number of the turn that ended the episode and its info."""
    for number, action in enumerate(actions, start=1):
        _, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        assert info_problems(info, reward=reward, over=over, truncated=truncated) == []
        if over:
            assert truncated
            assert not terminated
            return number, info
    return None


def spent(env):
    """Return what the first limit counted."""
    return env.get_wrapper_attr("episode_limits")[0].spent


def test_a_turn_limit_truncates_at_the_last_turn():
    env = limited(ladder(), TurnLimit(3))
    env.reset(seed=1)
    number, info = ends(env, ["up"] * 9)
    assert number == spent(env) == 3
    assert info["stop_reason"] == "truncated_turns"
    assert info["score"] == 3 / 99
    assert info["legal_actions"] == []


def test_a_reset_starts_the_count_anew():
    env = limited(ladder(), TurnLimit(3))
    for _ in range(2):
        env.reset(seed=1)
        assert ends(env, ["up"] * 9)[0] == 3


def test_an_end_of_the_environment_wins_over_a_limit_on_the_same_turn():
    env = limited(ladder(top=3), TurnLimit(3))
    env.reset(seed=1)
    env.step("up")
    env.step("up")
    _, _, terminated, truncated, info = env.step("up")
    assert (terminated, truncated, info["stop_reason"]) == (True, False, "terminated")


def test_a_wall_clock_limit_truncates_at_the_first_step_after_the_time():
    clock = Clock()
    env = limited(ladder(), WallClockLimit(10.0, clock=clock))
    env.reset(seed=1)
    clock.now += 9.9
    assert ends(env, ["up"] * 3) is None
    clock.now += 0.1
    assert ends(env, ["up"])[1]["stop_reason"] == "truncated_time"
    env.reset(seed=1)
    assert ends(env, ["up"]) is None


def test_a_wall_clock_limit_uses_real_time_by_default():
    env = limited(ladder(), WallClockLimit(1e-9))
    env.reset(seed=1)
    assert ends(env, ["up"])[0] == 1


def test_a_token_limit_counts_the_whole_dialogue():
    env = limited(ladder(), TokenLimit(17, count_words))
    opening = count_words(env.reset(seed=1)[0]["text"])
    assert (opening, spent(env)) == (6, 6)  # "ladder <number>: rung 0 of 99"
    number, info = ends(env, ["up"] * 9)  # 1 + 6 words a turn
    assert (number, spent(env)) == (2, 20)
    assert info["stop_reason"] == "truncated_tokens"


def test_a_token_limit_can_count_actions_only():
    env = limited(ladder(), TokenLimit(4, count_words, actions_only=True))
    env.reset(seed=1)
    assert spent(env) == 0
    assert ends(env, ["jump 1", "up", "up", "up"])[0] == 3


def test_a_tool_call_limit_counts_what_can_be_parsed():
    env = limited(ladder(), ToolCallLimit(3))
    env.reset(seed=1)
    number, info = ends(env, ["up", "nonsense", "jump 9", "", "jump 2", "up"])
    assert (number, spent(env)) == (5, 3)
    assert info["stop_reason"] == "truncated_tool_calls"


def test_a_tool_call_limit_can_count_one_tool():
    env = limited(ladder(), ToolCallLimit(5), ToolCallLimit(2, tool="jump"))
    env.reset(seed=1)
    assert ends(env, ["up", "jump 1", "up", "jump 1", "up"])[0] == 4
    env.reset(seed=1)
    assert ends(env, ["up"] * 9)[0] == 5


def test_a_tool_call_limit_needs_an_action_format():
    with pytest.raises(ConfigError, match="no action_format"):
        limited(gymnasium.make("CartPole-v1"), ToolCallLimit(3))


def test_an_invalid_action_limit_counts_all_invalid_actions():
    env = limited(ladder(), InvalidActionLimit(3))
    env.reset(seed=1)
    number, info = ends(env, ["x", "up", "jump 9", "up", "up", "", "x"])
    assert number == 6
    assert info["stop_reason"] == "truncated_invalid"


def test_an_invalid_action_limit_can_count_those_in_a_row():
    env = limited(ladder(), InvalidActionLimit(2, consecutive=True))
    env.reset(seed=1)
    assert ends(env, ["x", "up", "x", "up", "x", "jump 9", "x"])[0] == 6


LIMITS = {
    "TurnLimit": (TurnLimit, {"max_turns": 0}),
    "WallClockLimit": (WallClockLimit, {"max_seconds": -1.0}),
    "TokenLimit": (TokenLimit, {"max_tokens": 0, "count_tokens": count_words}),
    "ToolCallLimit": (ToolCallLimit, {"max_calls": 0}),
    "InvalidActionLimit": (InvalidActionLimit, {"max_invalid": 0}),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_of_nothing_is_refused(name):
    kind, arguments = LIMITS[name]
    with pytest.raises(ConfigError, match=rf"{name}: max_\w+ must be more than 0, got"):
        kind(**arguments)


def test_limits_stack_and_the_first_that_is_reached_names_the_reason():
    env = limited(ladder(), InvalidActionLimit(2), TurnLimit(3))
    env.reset(seed=1)
    assert ends(env, ["x", "x"])[1]["stop_reason"] == "truncated_invalid"
    env.reset(seed=1)
    assert ends(env, ["x", "up", "up"])[1]["stop_reason"] == "truncated_turns"


def test_an_environment_that_cannot_judge_gives_no_score():
    class Unjudged(LadderEnv):
        def score(self):
            return None

    env = limited(Unjudged(), TurnLimit(1))
    env.reset(seed=1)
    assert env.step("x")[-1]["score"] is None


def test_a_limit_around_any_gymnasium_environment_truncates_without_a_score():
    env = limited(gymnasium.make("CartPole-v1"), TurnLimit(1))
    env.reset(seed=1)
    *_, truncated, info = env.step(0)
    assert truncated
    assert info["score"] is None


def wrapped(env):
    """Return ``env`` in every limit that has plain arguments."""
    return limited(
        limited(env, TurnLimit(9), WallClockLimit(60.0)),
        ToolCallLimit(7, tool="jump"),
        InvalidActionLimit(3, consecutive=True),
    )


def test_limits_are_rebuilt_from_the_spec():
    with registered("helpers/Ladder-v0", "helpers.envs:LadderEnv", max_turns=5) as id:
        env = limited(wrapped(gymnasium.make(id)), TokenLimit(50, count_words))
        again = gymnasium.make(pickle.loads(pickle.dumps(env.spec)))
    assert str(again) == str(env)
    assert again.spec == env.spec
    for limit in (again, env):
        limit.reset(seed=1)
    assert [again.step("x")[-1] for _ in range(3)] == [env.step("x")[-1] for _ in range(3)]


def test_a_spec_with_limits_can_be_written_as_json():
    with registered("helpers/Ladder-v0", "helpers.envs:LadderEnv") as id:
        env = wrapped(gymnasium.make(id))
        again = gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())
        assert json.loads(env.spec.to_json())["id"] == id
        assert gymnasium.make(again).spec == env.spec


def test_a_limit_passes_on_what_the_environment_has():
    env = wrapped(OrderEnforcing(ladder()))
    env.reset(seed=1)
    assert env.get_wrapper_attr("legal_actions")() == ["up", "jump 2", "jump 3"]
    assert spent(env) == 0
    assert env.unwrapped.closed == 0
    env.close()
    assert env.unwrapped.closed == 1


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        *(("jump 3", 1.0), ("Jump  3", 1.0), ("jump 2", 0.55), ("up", 0.19), ("fly", 0), ("", 0)),
        *(("<think>fly</think>jump 3", 1.0), ("<think>jump 3</think>up", 0.19)),
    ],
)
def test_an_action_is_paid_for_its_agreement_with_the_expert(action, reward):
    """The ladder's expert always jumps three rungs."""
    env = ExpertMatch(ladder())
    env.reset(seed=1)
    _, found, *ends_, info = env.step(action)
    assert found == pytest.approx(reward)
    assert info["reward_parts"] == {"expert_match": found}
    assert info_problems(info, reward=found, over=any(ends_), truncated=False) == []


def test_the_same_action_is_paid_exactly_one():
    env = ExpertMatch(ladder())
    env.reset(seed=1)
    assert env.step("jump 3")[1] == 1.0


def test_the_expert_is_asked_before_the_step():
    env = ExpertMatch(ladder(top=6))
    height = []
    inner = env.unwrapped
    inner.expert_action = lambda: height.append(inner.ladder.height) or "jump 3"
    env.reset(seed=1)
    env.step("jump 3")
    env.step("up")
    assert height == [0, 3]


def test_expert_match_judges_at_a_limit_and_pays_nothing():
    env = ExpertMatch(Switch())
    env.reset(seed=0)
    env.step("press")
    end = env.end_at_limit()
    assert (end.reward, env.get_wrapper_attr("score")()) == (0.0, 1.0)
    assert end.info["judged_at_limit"] is False
    env = ExpertMatch(limited(Switch(), TurnLimit(1)))
    env.reset(seed=0)
    *_, info = env.step("press")
    assert (info["stop_reason"], info["score"]) == ("truncated_turns", 1.0)
    assert "judged_at_limit" not in info
    env = ExpertMatch(ladder())
    env.reset(seed=0)
    assert env.end_at_limit() is None
    env = ExpertMatch(Foreign())
    assert env.end_at_limit() is None


class Foreign(gymnasium.Env):
    """An environment of somebody else, with what ``ExpertMatch`` needs and no more."""

    action_format = Commands({"stop": "stop"})

    def expert_action(self):
        return "stop"


def test_agreement_is_paid_and_success_is_still_the_environments():
    env = ExpertMatch(limited(ladder(), TurnLimit(2)))
    env.reset(seed=1)
    env.step("up")
    _, reward, terminated, truncated, info = env.step("up")
    assert (reward, terminated, truncated) == (pytest.approx(0.19), False, True)
    assert info["score"] == 2 / 99
    assert info["stop_reason"] == "truncated_turns"


def test_of_several_calls_the_first_is_compared_with_the_expert():
    made = turngym.make("text/maze-easy", action_style="tools", calls_per_turn=2)
    with ExpertMatch(made) as env:
        env.reset(seed=0)
        right = env.get_wrapper_attr("expert_action")()
        wrong = right.replace("north", "west").replace("south", "north").replace("east", "south")
        assert wrong != right
        assert env.agreement(f"{right}\n{wrong}", right) == 1.0
        assert env.agreement(f"{wrong}\n{right}", right) < 1.0


def test_agreement_is_all_that_is_paid_in_a_game_of_two():
    env = ExpertMatch(turngym.make("text/tictactoe"))
    env.reset(seed=1)
    *_, info = env.step("no move")  # loses, which pays the other
    assert info["scores"]
    assert "other_rewards" not in info


def test_an_environment_whose_actions_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="has no action_format"):
        ExpertMatch(gymnasium.make("CartPole-v1"))


def test_an_expert_match_is_rebuilt_from_the_spec():
    with registered("helpers/Ladder-v0", "helpers.envs:LadderEnv", max_turns=5) as id:
        env = ExpertMatch(gymnasium.make(id))
        again = gymnasium.make(pickle.loads(pickle.dumps(env.spec)))
    assert str(again) == str(env)
    again.reset(seed=1)
    assert again.step("jump 2")[1] == pytest.approx(0.55)
