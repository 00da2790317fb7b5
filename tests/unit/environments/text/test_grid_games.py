"""Games that can be shown as a picture."""

import numpy as np
import pytest

import turngym

SHOWN = {
    "text/maze-easy": (9, 9),
    "text/sokoban-easy": (6, 6),
    "text/sokoban-medium": (7, 7),
    "text/frozenlake-easy": (4, 4),
    "text/frozenlake-hard": (8, 8),
}


@pytest.mark.parametrize(("env_id", "cells"), SHOWN.items())
def test_a_picture_shows_the_state_and_the_text_does_not(env_id: str, cells: tuple[int, int]):
    env, in_words = turngym.make(env_id, picture=True), turngym.make(env_id)
    texts, pictures = set(), set()
    for seed in range(5):
        observation, info = env.reset(seed=seed)
        said, own = in_words.reset(seed=seed)
        assert env.observation_space.contains(observation)
        assert info["instructions"] != own["instructions"]
        assert said["text"] not in observation["text"]
        texts.add(observation["text"])
        pictures.add(observation["image"].tobytes())
        assert observation["image"].shape == (cells[0] * 8, cells[1] * 8, 3)
        before = observation["image"]
        observation, *_ = env.step("nonsense")
        np.testing.assert_array_equal(observation["image"], before)
        action = env.unwrapped.expert_action()
        observation, *_ = env.step(action)
        assert not np.array_equal(observation["image"], before)
    assert (len(texts), len(pictures)) == (1, 5)


def test_the_key_is_seen_until_it_is_taken():
    env = turngym.make("text/maze-easy", picture=True)
    observation, _ = env.reset(seed=3)
    yellow, blue, green = (240, 200, 40), (30, 90, 220), (90, 170, 60)

    def seen(colour: tuple[int, int, int]) -> bool:
        return bool((observation["image"] == colour).all(-1).any())

    while not env.unwrapped.state.has_key:
        assert seen(yellow)
        observation, *_ = env.step(env.unwrapped.expert_action())
    assert not seen(yellow)
    assert seen(blue)
    assert seen(green)
