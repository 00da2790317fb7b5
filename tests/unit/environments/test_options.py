"""Every option of every environment is listed with its default, and ``max_turns`` can be set."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import load_env_creator

import turngym
from helpers.envs import LadderEnv, registered
from turngym import registry
from turngym.environments.core.env import clone, fork
from turngym.environments.gym.registration import declared, known_options, options_of
from turngym.errors import ConfigError, UnknownNameError

READY = [entry for entry in registry.entries() if not entry.missing()]
GAMES = {str(entry.entry_point): entry for entry in READY}
"""One environment of each kind that runs here."""


@pytest.mark.parametrize("entry", GAMES.values(), ids=lambda entry: entry.short_name)
def test_every_option_is_listed_with_its_default_and_a_line_of_help(
    entry: registry.EnvEntry,
) -> None:
    options = {option.name: option for option in options_of(entry)}
    assert options["max_turns"].default == entry.max_turns
    for name, value in entry.kwargs.items():
        assert options[name].default == value
    assert [name for name, option in options.items() if not option.help] == []


def turns_until_cut(env: gymnasium.Env) -> int:
    env.reset(seed=0)
    for turns in range(1, 100):
        _, _, terminated, truncated, info = env.step("look around")
        if terminated or truncated:
            assert info["stop_reason"] == "truncated_turns"
            return turns
    raise AssertionError("never cut")


def test_max_turns_can_be_set_by_every_way_of_making() -> None:
    assert turns_until_cut(turngym.make("text/maze", max_turns=3)) == 3
    env = gymnasium.make("turngym/Maze-v0", max_turns=20)
    assert turns_until_cut(env) == 20  # more than the registered 14
    assert turns_until_cut(gymnasium.make(pickle.loads(pickle.dumps(env.spec)))) == 20
    assert turns_until_cut(clone(env)) == 20
    env.reset(seed=0)
    assert fork(env, 1)[0].get_wrapper_attr("episode_limits")[0].max_turns == 20
    assert turns_until_cut(gymnasium.make("turngym/Maze-v0")) == 14


def test_max_turns_of_an_environment_made_of_coroutines_can_be_set() -> None:
    with registered("lab/Rungs-v0", "helpers.envs:AsyncLadderEnv"):
        env = turngym.make("lab/Rungs-v0", max_turns=2)
        assert turns_until_cut(env) == 2
        env.close()


@pytest.mark.parametrize("wrong", [0, -1, "many", 2.5, True])
def test_a_wrong_max_turns_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="max_turns"):
        turngym.make("text/maze", max_turns=wrong)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match=r"option of text/maze 'dificulty'\. Did you mean 'dif"
    ):
        turngym.make("text/maze", dificulty="hard")


class TallLadderEnv(LadderEnv):
    """Has a height that must be given, and hands it on."""

    def __init__(self, height: int, *, colour: str, **options: Any) -> None:
        super().__init__(**options)


@pytest.mark.parametrize("entry", GAMES.values(), ids=lambda entry: entry.short_name)
def test_what_ours_are_registered_with_is_what_their_classes_have(
    entry: registry.EnvEntry,
) -> None:
    assert declared(entry) == (entry.snapshot_kind, entry.provides)
    plain = replace(entry, snapshot_kind="replay", provides=frozenset())
    if isinstance(load_env_creator(entry.entry_point), type):
        assert declared(plain) == declared(entry)


def test_an_option_that_has_to_be_given_is_named_with_where_it_is_given() -> None:
    with registered("lab/TallLadder-v0", f"{__name__}:TallLadderEnv", family="lab"):
        with pytest.raises(ConfigError) as found:
            turngym.make("lab/tallladder", colour="red")
        with pytest.raises(ConfigError, match="has to be given colour"):
            turngym.make("lab/tallladder", height=3)
    assert str(found.value) == (
        "environment 'lab/tallladder' has to be given height: --env-option height=..., "
        "[env.options] of a run, or make(ENV, height=...)"
    )


def test_a_bug_of_a_constructor_that_reads_alike_is_left_as_it_is() -> None:
    entry = registry.find("text/maze")
    bug = TypeError("f() missing 1 required positional argument: 'x'")
    with pytest.raises(TypeError) as found, known_options(entry, {}):
        raise bug
    assert found.value is bug


@pytest.mark.parametrize(
    "name",
    [
        "text/maze",
        "search/world-2hop",
        "swe/bugs-sample",
        "swe/bugs-mini",
        "terminal/shell-text",
        "web/miniwob-click-button",
        "web/forum-lock",
        "desktop/notes-create",
        "phone/contact-add",
    ],
)
def test_max_turns_can_be_set_in_every_family(name: str) -> None:
    if registry.find(name).missing():
        pytest.skip("needs what is not installed")
    for env in (turngym.make(name, max_turns=2), turngym.make_async(name, max_turns=2)):
        limits: Any = env.get_wrapper_attr("episode_limits")  # type: ignore[union-attr]
        assert [limit.max_turns for limit in limits] == [2]


@pytest.mark.parametrize(
    ("name", "listed", "absent"),
    [
        ("web/miniwob-click-button", {"max_chars", "screenshot"}, {"settings"}),
        ("desktop/calc-sum", {"scale", "max_chars", "keep"}, {"image_hw"}),
        ("text/taxi", {"difficulty", "action_style"}, {"env_or_id", "actions"}),
    ],
)
def test_what_a_class_passes_on_is_listed_and_nothing_else(
    name: str, listed: set[str], absent: set[str]
) -> None:
    entry = registry.find(name)
    if entry.missing():
        pytest.skip("needs more than is here")
    names = {option.name for option in options_of(entry)}
    assert listed <= names
    assert not absent & names


@pytest.mark.parametrize("first_line", ["", "from __future__ import annotations\n"])
def test_a_file_may_say_what_its_class_passes_on(first_line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"{first_line}"
        "from typing import TypedDict, Unpack\n"
        "from turngym.environments.text.maze import MazeEnv\n"
        "class Options(TypedDict, total=False):\n"
        "    difficulty: str\n"
        "class Mine(MazeEnv):\n"
        "    def __init__(self, **options: Unpack[Options]) -> None:\n"
        "        super().__init__(**options)\n"
    )
    names = {option.name for option in options_of(registry.find(f"{tmp_path / 'mine.py'}:Mine"))}
    assert "difficulty" in names
    assert "picture" not in names
