import pytest

from turngym.environments.text.guess_number import GuessNumberEnv, NumberState


def env_at(state):
    env = GuessNumberEnv()
    env.reset(seed=0)
    env.state = state
    return env


def test_answers_narrow_the_range():
    env = env_at(NumberState(secret=7, low=3, high=12))
    said = [env.step(f"guess {number}")[0]["text"] for number in (5, 9, 40, 2)]
    assert said == [
        "higher. from 6 to 12.",
        "lower. from 6 to 8.",
        "lower. from 6 to 8.",
        "higher. from 6 to 8.",
    ]


def test_the_number_ends_the_game():
    observation, reward, terminated, _, info = env_at(NumberState(7, 3, 12)).step("guess 7")
    assert (observation["text"], reward, terminated) == ("right.", 1.0, True)
    assert info["score"] == 1.0


@pytest.mark.parametrize("number", [0, 51, -3])
def test_numbers_out_of_bounds_are_refused(number):
    observation, _, terminated, _, info = env_at(NumberState(7, 3, 12)).step(f"guess {number}")
    assert info["invalid_action"] == "guess a number from 1 to 50."
    assert observation["text"].endswith("from 3 to 12.")
    assert not terminated


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_ranges_lie_within_the_numbers_of_the_difficulty(difficulty):
    env = GuessNumberEnv(difficulty=difficulty)
    widths = set()
    for seed in range(50):
        env.reset(seed=seed)
        s = env.state
        assert 1 <= s.low <= s.secret <= s.high <= env.settings["largest"]
        widths.add(s.high - s.low + 1)
    assert env.settings["narrowest"] <= min(widths) < max(widths) <= env.settings["widest"]


def test_legal_numbers_speak_the_action_style():
    env = GuessNumberEnv(action_style="tools")
    env.reset(seed=0)
    assert env.legal_actions()[4] == '{"name": "guess", "arguments": {"number": 5}}'
    assert len(env.legal_actions()) == 50
