"""The check of tasks tells sound ones from those with a planted defect.

The suite plays a sample of the corpus, each defect of the sample once; ``make proof PART=tasks``
plays all of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from turngym import registry

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def soundness():
    """Return the benchmark as a module."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import soundness

        yield soundness
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_corpus_is_what_it_says(soundness):
    items = soundness.soundness_corpus.items()
    folders = soundness.soundness_folders.folders()
    defects = {one.defect for one in items if one.defect} | {d for _, d in folders.values() if d}
    sound = sum(not one.defect for one in items) + sum(not d for _, d in folders.values())
    total = len(items) + len(folders)
    assert len({one.name for one in items}) == len(items)
    for base in {one.base for one in items if "/" in one.base and one.family != "project"}:
        registry.find(base)  # else it would be refused, which is no detection
    assert total >= 120
    assert len(defects) >= 20
    assert 0.35 <= sound / total <= 0.65


def find(soundness, name: str):
    items = soundness.soundness_corpus.items()
    folders = soundness.soundness_folders.folders().values()
    items += [soundness.Item(f"folder-{base.name}", defect, "folder") for base, defect in folders]
    return next(one for one in items if one.name == name)


@pytest.mark.parametrize("name", ["quiz-3", "search/world-2hop-easy"])
def test_a_sound_task_passes(name, soundness):
    found = soundness.look(find(soundness, name))
    assert found["failed"] == [], found


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("text/wordle--always paid", "semantic.floor_gap"),
        ("text/maze-easy--time bomb", "portability.clock"),
        ("text/wordle--order of hashes", "semantic.verifier_portability"),
        ("text/wordle--won once, won for ever", "runtime.episode_isolation"),
        ("text/wordle--score out of range", "runtime.reward_well_formed"),
        ("quiz-0--taken for a pattern", "statistical.adversarial_floor"),
        ("quiz-0--not a number is near", "statistical.adversarial_floor"),
        ("quiz-0--answer in the prompt", "semantic.no_solution_leakage"),
        ("quiz-0--one answer is always right", "set.constant_answer"),
        ("quiz-0--reworded between splits", "set.disjoint"),
    ],
)
def test_a_planted_defect_is_found(name, by, soundness):
    found = soundness.look(find(soundness, name))
    assert found["failed"], found
    assert not by or by in found["failed"]


@pytest.mark.slow
@pytest.mark.extra("bwrap")
@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("shell-sum_column", ""),
        ("shell-sum_column--tests of the workspace", "statistical.adversarial_floor"),
        ("shell-json_field--first line only", "mutation.solution"),
        ("shell-sum_column--answer in the history", "runtime.oracle_containment"),
        ("shell-sum_column--answer in a hidden file", "runtime.oracle_containment"),
        ("shell-sum_column--date in a script of the judge", "portability.clock"),
    ],
)
def test_shell_tasks_and_folders(name, by, soundness):
    item = find(soundness, name)
    found = soundness.look(item)
    assert bool(found["failed"]) == bool(item.defect), found
    assert not by or by in found["failed"]
