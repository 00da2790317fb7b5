"""Pointing: what is asked, what is shown, and that a screen is taken once for all episodes."""

from __future__ import annotations

import numpy as np
import pytest

from turngym.environments.desktop.observation import Element, View, marked
from turngym.errors import ConfigError, UnknownNameError

pytest.importorskip("Xlib", reason="needs Xlib: make extras")
pytest.importorskip("jeepney", reason="needs jeepney: make extras")

from turngym.environments.desktop import grounding
from turngym.environments.desktop.grounding import (
    FOLDERS,
    GroundingEnv,
    ScreenCapture,
    folder_names,
    folder_of,
)
from turngym.tasks.base import split_of


@pytest.fixture
def taken(monkeypatch):
    """Screens of made-up elements in place of real ones, and which were taken."""
    found = []

    def take(_app, folder, size):
        found.append(folder)
        names = folder_names(*folder)
        elements = [
            Element(role="cell", name=name, mark=1, x=10, y=25 * i, width=90, height=20)
            for i, name in enumerate(names)
        ]
        pixels = np.zeros((size[1], size[0], 3), np.uint8)
        return ScreenCapture(
            view=View(active="Files", elements=marked(elements, *size)), pixels=pixels
        )

    monkeypatch.setattr(grounding, "_take", take)
    monkeypatch.setattr(grounding, "_taken", {})
    monkeypatch.setattr(grounding, "require_desktop", lambda: None)
    return found


async def test_each_screen_is_taken_once_for_every_environment_of_the_process(taken):
    for _ in range(2):
        env = GroundingEnv(app="files")
        for seed in range(30):
            await env.reset(seed=seed)
        await env.close()
    assert sorted(number for _, number in taken) == list(range(FOLDERS["train"]))


async def test_a_shorter_list_names_the_target_and_belongs_to_a_split(taken):
    env = GroundingEnv(app="files", choices=6)
    for split in ("train", "test"):
        for seed in range(20):
            observation, info = await env.reset(seed=seed, options={"split": split})
            *lines, goal = observation["text"].splitlines()
            names = [line.rsplit(" ", 1)[0] for line in lines]
            marks = [int(line.rsplit(" ", 1)[1]) for line in lines]
            assert len(marks) == 6
            assert marks == sorted(marks)
            wanted = goal.removeprefix("click ")
            assert split_of(" ".join([*names, wanted])) == split
            assert env.expert_action() == f"click {marks[names.index(wanted)]}"
            assert info["legal_actions"] == [f"click {mark}" for mark in marks]
            _, reward, terminated, _, info = await env.step(env.expert_action())
            assert (reward, terminated, info["score"]) == (1.0, True, 1.0)
    await env.reset(seed=0)
    wrong = next(one for one in env.legal_actions() if one != env.expert_action())
    assert (await env.step(wrong))[1] == 0.0
    await env.close()


async def test_a_mark_that_is_not_listed_is_told_and_the_episode_goes_on(taken):
    env = GroundingEnv(app="files", choices=6)
    await env.reset(seed=0)
    _, reward, terminated, _, info = await env.step("click 99")
    assert (reward, terminated) == (0.0, False)
    assert "no element [99]" in info["invalid_action"]
    await env.close()


def test_a_scene_belongs_to_a_split():
    assert folder_of("files", "test", 9) == ("test", 1)
    assert folder_of("sheet", "test", 9) is None
    train = {name for i in range(FOLDERS["train"]) for name in folder_names("train", i)}
    test = {name for i in range(FOLDERS["test"]) for name in folder_names("test", i)}
    assert not train & test
    assert len(test) > 60


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"app": "fils"}, UnknownNameError, "files"),
        ({"app": "files", "reward": "hits"}, UnknownNameError, "hit"),
        ({"app": "files", "choices": 1}, ConfigError, "choices is 1"),
        ({"app": "files", "choices": 4, "shows_tree": False}, ConfigError, "shows_tree is False"),
        ({"app": "files", "scale": 3.0}, ConfigError, "scale is 3"),
        ({"app": "files", "colour": 1}, TypeError, "unexpected keyword argument 'colour'"),
    ],
)
def test_wrong_arguments_are_one_line(taken, arguments, error, words):
    with pytest.raises(error, match=words):
        GroundingEnv(**arguments)
