"""Environments give credit methods exactly what their entries declare.

Checked on the first observation and after one turn. Of a game in several difficulties, which are
one class, the one with the shortest name is looked at. Games whose engine is a program of its own
are left to ``make proof PART=conformance``.
"""

import os

import pytest

import turngym
from turngym.environments.core.spaces import Info
from turngym.registry import EnvEntry, entries

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"


def one_of_each_game() -> list[object]:
    ours = [entry for entry in entries() if entry.id.startswith("turngym/")]
    ours = [entry for entry in ours if IS_FULL or not entry.programs]
    games = {e.entry_point: e for e in sorted(ours, key=lambda e: -len(e.short_name))}
    return [
        pytest.param(
            entry,
            id=entry.short_name,
            marks=[pytest.mark.extra(*entry.modules, *entry.programs)] if entry.extra else [],
        )
        for entry in games.values()
    ]


def given(info: Info) -> set[str]:
    found = {key for key in ("state_key", "potential") if key in info}
    if "ground_truth" in info:
        assert isinstance(info["ground_truth"], str | int | float)
        assert info.get("answer"), "a ground truth whose wording is not told helps no method"
        found.add("ground_truth")
    return found


@pytest.mark.parametrize("entry", one_of_each_game())
def test_an_environment_gives_what_its_entry_declares(entry: EnvEntry) -> None:
    env = turngym.make(entry.id)
    try:
        _, info = env.reset(seed=1)
        assert given(info) == entry.provides
        _, _, _, _, after = env.step(info["legal_actions"][0] if "legal_actions" in info else "?")
        # A state keeps its key and its promise; what is true is told once.
        assert given(after) == entry.provides - {"ground_truth"}
    finally:
        env.close()


@pytest.mark.parametrize("entry", one_of_each_game())
def test_the_answer_to_a_ground_truth_wins(entry: EnvEntry) -> None:
    if "ground_truth" not in entry.provides:
        assert entry.provides <= {"state_key", "potential"}
        return
    env = turngym.make(entry.id)
    _, info = env.reset(seed=2)
    _, _, terminated, _, last = env.step(info["answer"])
    if entry.short_name == "text/orderform":  # what is written is still to be submitted
        assert not terminated
        _, _, terminated, _, last = env.step("submit")
    env.close()
    assert terminated
    assert last["score"] == 1.0


def test_all_difficulties_of_a_game_declare_the_same() -> None:
    declared: dict[str, set[frozenset[str]]] = {}
    for entry in entries():
        if entry.entry_point.endswith(":play_pack"):  # sets that another test opened, of any kind
            continue
        declared.setdefault(entry.entry_point, set()).add(entry.provides)
    assert {point for point, kinds in declared.items() if len(kinds) > 1} == set()
