"""Every kind of task makes problems that differ, repeat, and are not solved at the start."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from turngym import registry
from turngym.environments.desktop.names import FILES, GROUNDING_APPS, PACKAGES, TASK_TYPES
from turngym.environments.desktop.problems import full_tree
from turngym.errors import ConfigError

pytest.importorskip("Xlib", reason="needs Xlib: make extras")
pytest.importorskip("jeepney", reason="needs jeepney: make extras")

from turngym.environments.desktop import display, tasks
from turngym.environments.desktop.grounding import APPS
from turngym.environments.desktop.x11 import keysym_of


def test_there_are_at_least_forty_kinds_over_five_programs_and_all_are_registered():
    names = {entry.short_name for entry in registry.match("desktop/*")}
    assert set(TASK_TYPES) == set(tasks.GENERATORS)
    assert set(GROUNDING_APPS) == set(APPS)
    assert names >= {f"desktop/{kind}" for kind in TASK_TYPES}
    assert len(TASK_TYPES) >= 40
    programs = {
        command[0] for kind in TASK_TYPES for command in first(tasks.desktop_tasks(kind)).launch
    }
    assert len(programs) >= 5
    assert programs <= set(PACKAGES)


def first(every):
    return every.problem(every.task("train", 0))


def test_no_word_to_replace_stands_in_another_and_names_have_one_order():
    for seed in range(2000):
        problem = tasks.GENERATORS["notes-replace"](Random(seed))
        (text,) = problem.files.values()
        old = problem.prompt.split('"')[1]
        assert text.count(old) == text.split().count(old)
        names = tasks.GENERATORS["across-list-files"](Random(seed)).wanted["list.txt"].split()
        assert names == sorted(names, key=lambda name: (name.split("-")[0], len(name), name))


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_a_seed_names_a_problem_and_splits_share_none(kind):
    def goals(split):
        every = tasks.desktop_tasks(kind)
        problems = [every.problem(every.task(split, index)) for index in range(12)]
        return [
            (problem.prompt, str(sorted(full_tree(problem.files).items(), key=str)))
            for problem in problems
        ]

    train, test = goals("train"), goals("test")
    assert train == goals("train")
    assert len(set(train)) > 3
    assert not set(train) & set(test)


def test_missing_programs_are_one_line_with_their_packages(monkeypatch):
    monkeypatch.setattr(display.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"apt-get install .*galculator.*xvfb"):
        display.require_desktop()
    with pytest.raises(ConfigError, match=r"desktop/notes-append.*: apt-get install \w+$"):
        registry.find("desktop/notes-append").require()
    assert set(display.missing_packages()) >= set(PACKAGES.values())
    assert set(FILES.values()) == {
        "adwaita-icon-theme", "at-spi2-core", "fonts-dejavu-core", "libatk-adaptor",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "keysym"),
    [("a", 0x61), ("enter", 0xFF0D), ("F2", 0xFFBF), ("é", 0xE9), ("€", 0x10020AC)],
)
def test_keys_have_keysyms(key, keysym):
    assert keysym_of(key) == keysym


@pytest.mark.parametrize("key", ["", "nothing", "\x00", "ctrl+s"])
def test_what_is_no_key_has_none(key):
    assert keysym_of(key) == 0


def test_a_number_is_answered_in_any_of_its_forms():
    problem = first(tasks.desktop_tasks("calc-difference"))
    wanted = int(problem.truth)

    def counts(answer):
        return problem.is_done(SimpleNamespace(answer=answer))

    assert all(map(counts, (f"{wanted}", f"{wanted:,}", f"{wanted}.0", f" {wanted}. ")))
    assert not any(map(counts, (f"{wanted + 1}", f"{wanted} or {wanted + 1}", "", None)))
