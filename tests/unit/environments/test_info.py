import math

import pytest

from turngym.environments.core.spaces import info_problems
from turngym.types import StopReason

GOOD = {"task_id": "maze/train/0", "legal_actions": ["up"], "state_key": "a", "free": object()}
END = {"task_id": "maze/train/0", "legal_actions": [], "stop_reason": "terminated", "score": 1.0}


def test_a_good_info_has_no_problems():
    assert info_problems(GOOD) == []
    assert info_problems({"task_id": "x"}) == []
    assert info_problems(END, over=True) == []
    assert info_problems({**END, "score": None}, over=True) == []
    parts = {**GOOD, "reward_parts": {"a": 1.0, "b": -0.5}, "usage": {"seconds": 0.1, "calls": 3}}
    assert info_problems(parts, reward=0.5) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task_id": 3}, "task_id must be a str, got 3"),
        ({"task_id": None}, "task_id must be a str, got None"),
        ({"state_key": ("a", 1)}, "state_key must be a str when present"),
        ({"invalid_action": True}, "invalid_action must be a str when present"),
        ({"instructions": None}, "instructions must be a str when present"),
        ({"messages": [{"role": "user"}]}, "messages must be a tuple of Message"),
        ({"legal_actions": ("up",)}, "legal_actions must be a list of str"),
        ({"legal_actions": [1]}, "legal_actions must be a list of str"),
        ({"legal_actions": []}, "legal_actions must not be empty while the episode goes on"),
        ({"reward_parts": [1.0]}, "reward_parts must map names to numbers"),
        ({"reward_parts": {"a": "1"}}, "reward_parts must map names to numbers"),
        ({"reward_parts": {"a": 0.5}}, "reward_parts sum to 0.5, not to the reward 0.0"),
        ({"reward_parts": {"a": math.nan}}, "reward_parts sum to nan"),
        ({"usage": {"seconds": None}}, "usage must map names to numbers"),
        ({"stop_reason": "terminated"}, "stop_reason is set on a step that does not end"),
    ],
)
def test_a_problem_is_named(changes, problem):
    (found,) = info_problems({**GOOD, **changes})
    assert problem in found


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_a_problem(reward):
    assert info_problems(GOOD, reward=reward) == [f"the reward must be finite, got {reward}"]


@pytest.mark.parametrize(
    ("changes", "truncated", "problem"),
    [
        ({"stop_reason": None}, False, "stop_reason must be a StopReason value, got None"),
        ({"stop_reason": "bored"}, False, "stop_reason must be a StopReason value, got 'bored'"),
        ({"stop_reason": "truncated_turns"}, False, "contradicts truncated=False"),
        ({"stop_reason": "terminated"}, True, "contradicts truncated=True"),
        ({"score": 1.5}, False, "score must lie in [0, 1] or be None, got 1.5"),
        ({"score": "1"}, False, "score must lie in [0, 1]"),
        ({"score": math.nan}, False, "score must lie in [0, 1]"),
        ({"legal_actions": ["up"]}, False, "legal_actions must be empty when the episode is over"),
    ],
)
def test_a_problem_of_the_last_step_is_named(changes, truncated, problem):
    (found,) = info_problems({**END, **changes}, over=True, truncated=truncated)
    assert problem in found


def test_a_missing_score_at_the_end_is_a_problem():
    info = {key: value for key, value in END.items() if key != "score"}
    assert info_problems(info, over=True) != []


@pytest.mark.parametrize("reason", [r.value for r in StopReason if r.is_error])
@pytest.mark.parametrize("truncated", [True, False])
def test_a_fault_reported_as_a_step_is_a_problem(reason, truncated):
    found = info_problems({**END, "stop_reason": reason}, over=True, truncated=truncated)
    assert found == [f"stop_reason {reason!r}: a fault is raised, it is not a step"]
