import pytest

import turngym
from turngym.environments.text.mail_room import DayState, Letter, MailRoomEnv
from turngym.types import StopReason

LIGHT = Letter(is_heavy=False, is_fragile=False, is_packed=False)


def env_at(state, **options):
    env = MailRoomEnv(**options)
    env.reset(seed=0)
    env.state = state
    return env


@pytest.mark.parametrize(
    ("letter", "points", "best"),
    [
        (LIGHT, [3, 2, 1, 0], "rider"),
        (Letter(is_heavy=True, is_fragile=False, is_packed=True), [3, 0, 1, 0], "rider"),
        (Letter(is_heavy=False, is_fragile=True, is_packed=False), [0, 2, 1, 0], "pigeon"),
        (Letter(is_heavy=True, is_fragile=True, is_packed=False), [0, 0, 1, 0], "coach"),
        (Letter(is_heavy=True, is_fragile=True, is_packed=True), [3, 0, 1, 0], "rider"),
    ],
)
def test_letters_that_do_not_arrive_are_worth_nothing(letter, points, best):
    assert [letter.points(carrier) for carrier in ("rider", "pigeon", "coach", "barge")] == points
    assert letter.best == best


def test_nothing_is_said_of_points_before_the_last_letter():
    day = DayState((LIGHT,) * 8)
    best, worst = (env_at(day).step(f"send {carrier}") for carrier in ("rider", "barge"))
    assert best[:4] == worst[:4] == ({"text": "letter 2: light sturdy loose."}, 0.0, False, False)


@pytest.mark.parametrize(("points", "grade"), [(0, 3 / 19.2), (9, 12 / 19.2), (17, 1.0), (21, 1.0)])
def test_the_grade_is_the_share_of_the_points_that_are_asked_for(points, grade):
    env = env_at(DayState((LIGHT,) * 8, sent=7, points=points))
    observation, reward, terminated, _, info = env.step("send rider")
    assert observation["text"] == f"{points + 3} of 24 points."
    assert (reward, info["score"], terminated) == (pytest.approx(grade), pytest.approx(grade), True)


def test_a_day_that_a_limit_ends_is_graded_by_what_was_sent():
    env = turngym.make("text/mailroom")
    env.reset(seed=0)
    env.unwrapped.state = DayState((LIGHT,) * 8)
    env.step("send rider")
    steps = [env.step("hm") for _ in range(9)]
    assert (steps[-1][1], steps[-1][3]) == (pytest.approx(3 / 19.2), True)
    assert steps[-1][4]["stop_reason"] == StopReason.TRUNCATED_TURNS.value
    assert steps[-1][4]["score"] == pytest.approx(3 / 19.2)


def test_the_state_key_forgets_what_was_sent_how_and_keeps_what_it_was_worth():
    packed = Letter(is_heavy=False, is_fragile=False, is_packed=True)
    days = [DayState((first, LIGHT), sent=1, points=3) for first in (LIGHT, packed)]
    assert env_at(days[0]).state_key() == env_at(days[1]).state_key()
    poorer = DayState((LIGHT, LIGHT), sent=1, points=1)
    assert env_at(poorer).state_key() != env_at(days[0]).state_key()


@pytest.mark.parametrize(("difficulty", "count"), [("easy", 8), ("medium", 12), ("hard", 16)])
def test_harder_days_are_longer(difficulty, count):
    env = MailRoomEnv(difficulty=difficulty)
    env.reset(seed=0)
    assert len(env.state.letters) == count
