import pytest

import turngym
from turngym.environments.text.mail_room import Letter, MailRoomEnv, ShiftState
from turngym.types import StopReason


def letters(count, district="hill"):
    return tuple(Letter(district, is_heavy=False, is_express=False) for _ in range(count))


def env_at(state, **options):
    env = MailRoomEnv(**options)
    env.reset(seed=0)
    env.state = state
    return env


@pytest.mark.parametrize(
    ("district", "is_heavy", "is_express", "bag"),
    [
        ("hill", False, False, "north"),
        ("hill", True, False, "east"),
        ("hill", True, True, "north"),
        ("bay", False, True, "west"),
        ("bay", True, False, "north"),
        ("dunes", True, False, "south"),
    ],
)
def test_heavy_letters_go_into_the_next_bag_unless_they_are_express(
    district, is_heavy, is_express, bag
):
    assert Letter(district, is_heavy, is_express).bag == bag


def test_nothing_is_said_of_right_or_wrong_before_the_last_letter():
    right, wrong = (env_at(ShiftState(letters(8))).step(f"put {bag}") for bag in ("north", "south"))
    assert right[:4] == wrong[:4] == ({"text": "letter 2: hill light plain."}, 0.0, False, False)


@pytest.mark.parametrize(("right", "grade"), [(0, 1 / 6), (2, 0.5), (5, 1.0), (7, 1.0)])
def test_the_grade_is_the_share_of_the_right_ones_that_are_asked_for(right, grade):
    env = env_at(ShiftState(letters(8), sorted=7, right=right))
    observation, reward, terminated, _, info = env.step("put north")
    assert observation["text"] == f"{right + 1} of 8 right."
    assert (reward, info["score"], terminated) == (pytest.approx(grade), pytest.approx(grade), True)


def test_a_shift_that_a_limit_ends_is_graded_by_what_was_sorted():
    env = turngym.make("text/mailroom")
    env.reset(seed=0)
    env.step(env.unwrapped.expert_action())
    steps = [env.step("hm") for _ in range(9)]
    assert (steps[-1][1], steps[-1][3]) == (pytest.approx(1 / 6), True)
    assert steps[-1][4]["stop_reason"] == StopReason.TRUNCATED_TURNS.value
    assert steps[-1][4]["score"] == pytest.approx(1 / 6)


def test_the_state_key_forgets_which_letters_were_right():
    hill, bay = letters(3), letters(1, "bay") + letters(2)
    before = [ShiftState(all_, sorted=1, right=1) for all_ in (hill, bay)]
    assert env_at(before[0]).state_key() == env_at(before[1]).state_key()
    other = ShiftState(hill, sorted=1, right=0)
    assert env_at(other).state_key() != env_at(before[0]).state_key()


@pytest.mark.parametrize(("difficulty", "count", "names"), [("medium", 12, 8), ("hard", 16, 12)])
def test_harder_shifts_are_longer_and_name_more_districts(difficulty, count, names):
    env = MailRoomEnv(difficulty=difficulty)
    seen = set()
    for seed in range(40):
        env.reset(seed=seed)
        assert len(env.state.letters) == count
        seen |= {letter.district for letter in env.state.letters}
    assert len(seen) == names
    assert all(name in env.rules for name in seen)
