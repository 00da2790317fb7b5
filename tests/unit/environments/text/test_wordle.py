from itertools import pairwise

import numpy as np
import pytest

from turngym.environments.text.wordle import WordleEnv, WordleState, feedback, words_up_to


@pytest.mark.parametrize(
    ("guess", "secret", "expected"),
    [
        ("crane", "crane", [2, 2, 2, 2, 2]),
        ("crane", "moldy", [0, 0, 0, 0, 0]),
        ("speed", "abide", [0, 0, 1, 0, 1]),  # one e in the secret: only the first is yellow
        ("speed", "erase", [1, 0, 1, 1, 0]),  # two e in the secret: both are yellow
        ("allee", "hello", [0, 1, 2, 1, 0]),  # green takes its l before yellow does
        ("geese", "these", [0, 0, 2, 2, 2]),  # both e of the secret are green already
    ],
)
def test_feedback_counts_every_letter_of_the_secret_once(guess, secret, expected):
    code = feedback(guess, secret)
    assert [code // 3**place % 3 for place in range(5)] == expected


def test_feedback_agrees_with_a_slow_count():
    rng = np.random.default_rng(0)
    words = words_up_to(60)
    for _ in range(300):
        guess, secret = (words[int(i)] for i in rng.integers(len(words), size=2))
        assert feedback(guess, secret) == slow_feedback(guess, secret)


def slow_feedback(guess, secret):
    digits = [2 if g == s else 0 for g, s in zip(guess, secret, strict=True)]
    rest = [s for g, s in zip(guess, secret, strict=True) if g != s]
    for place, letter in enumerate(guess):
        if digits[place] == 0 and letter in rest:
            digits[place] = 1
            rest.remove(letter)
    return sum(digit * 3**place for place, digit in enumerate(digits))


def test_lists_grow_with_rarity_and_hold_plain_words():
    lists = [words_up_to(rarity) for rarity in (10, 20, 35, 60)]
    assert [len(words) for words in lists] == [600, 1364, 3436, 4990]
    for smaller, larger in pairwise(lists):
        assert set(smaller) < set(larger)
    assert all(len(w) == 5 and w.isascii() and w.isalpha() and w.islower() for w in lists[-1])


@pytest.mark.parametrize("difficulty", ["easy", "medium"])
def test_expert_finds_every_word_within_six_guesses(difficulty):
    env = WordleEnv(difficulty=difficulty)
    env.reset(seed=0)
    for secret in words_up_to(env.settings["rarity"])[::3]:
        env.state = WordleState(secret)
        for _ in range(6):
            guess = env.expert_action().removeprefix("guess ")
            env.state = WordleState(secret, (*env.state.guesses, guess))
        assert env.score() == 1.0, secret


def play(secret, *guesses):
    env = WordleEnv()
    env.reset(seed=0)
    env.state = WordleState(secret)
    return [env.step(f"guess {guess}") for guess in guesses]


def test_colours_and_guesses_left_are_told():
    ((observation, reward, terminated, _, _),) = play("react", "trace")
    assert observation["text"] == "t yellow r yellow a green c green e yellow. 5 left."
    assert (reward, terminated) == (0.0, False)


def test_the_sixth_wrong_guess_loses_without_naming_the_secret():
    steps = play("crane", *["about"] * 6)
    assert [step[2] for step in steps] == [False] * 5 + [True]
    assert steps[-1][4]["score"] == 0.0
    assert "crane" not in steps[-1][0]["text"]


def test_a_word_that_is_none_costs_no_guess():
    steps = play("crane", "zzzzz", "about")
    assert steps[0][4]["invalid_action"] == "zzzzz is not in the word list."
    assert steps[0][0]["text"].endswith("6 left.")
    assert steps[1][0]["text"].endswith("5 left.")


def test_rarer_words_than_the_secrets_are_taken():
    rare = min(set(words_up_to(60)) - set(words_up_to(10)))
    (step,) = play("crane", rare)
    assert "invalid_action" not in step[4]
