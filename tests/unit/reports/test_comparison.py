"""Runs side by side: curves, areas, differences by seed, episodes to the reference's end."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from helpers.runs import write_run
from turngym.errors import ConfigError, UnknownNameError
from turngym.reports.comparison import rank
from turngym.reports.runs import Protocol, find_runs, read_protocol, read_run

SLOW = [(0.0, 0.1, 0.2, 0.3, 0.4), (0.0, 0.2, 0.3, 0.4, 0.6)]
QUICK = [(0.0, 0.4, 0.6, 0.7, 0.8), (0.0, 0.6, 0.8, 0.9, 0.9)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for seed in range(2):
        write_run(tmp_path / f"slow-{seed}", SLOW[seed], algo="grpo", seed=seed)
        write_run(tmp_path / f"quick-{seed}", QUICK[seed], algo="quick", seed=seed)
    return tmp_path


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", QUICK[0], algo="quick", seed=3, drawn_by_credit=500))
    assert (run.env, run.algo, run.seed) == ("text/maze", "quick", 3)
    assert run.episodes_P.tolist() == [0, 100, 200, 300, 400]
    assert run.tokens_P.tolist() == [0, 1500, 3000, 4500, 6000]
    assert run.success_P.tolist() == list(QUICK[0])
    assert run.credit_share == pytest.approx(0.2)


@pytest.mark.parametrize("env", ["mine.py", "text/maze + mine.py"])
def test_a_run_is_read_where_the_file_of_its_environment_is_not(tmp_path: Path, env: str) -> None:
    folder = write_run(tmp_path / "a", SLOW[0], algo="grpo", seed=0)
    summary = json.loads((folder / "summary.json").read_text()) | {"env": env}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert read_run(folder).env == env


def test_the_better_algorithm_stands_first_with_its_numbers(place: Path) -> None:
    [ranking] = rank(find_runs([place])[0])
    assert (ranking.env, ranking.budget, ranking.reference) == ("text/maze", 400.0, "grpo")
    quick, slow = ranking.entries
    assert (quick.algo, slow.algo) == ("quick", "grpo")
    assert quick.validation.mean == pytest.approx(0.85)
    # Areas: quick (0.525, 0.6875), slow (0.2, 0.3), each by trapezoids of width 100.
    assert quick.area.mean == pytest.approx((0.525 + 0.6875) / 2)
    assert slow.area.mean == pytest.approx((0.2 + 0.3) / 2)
    assert quick.area_gain is not None
    assert quick.area_gain.mean == pytest.approx((0.325 + 0.3875) / 2)
    assert quick.area_gain.low == pytest.approx(0.325)
    assert slow.area_gain is None


def test_episodes_until_the_reference_is_reached(place: Path) -> None:
    [ranking] = rank(find_runs([place])[0])
    quick, slow = (entry.reach for entry in ranking.entries)
    # The reference ends at 0.5; quick's mean goes 0, 0.5, so it is there after 100 of 400.
    assert quick.level == pytest.approx(0.5)
    assert quick.episodes == pytest.approx(100)
    assert slow.episodes == pytest.approx(400)
    # Seeds alone: 0.4 -> 0.6 passes 0.5 at 150; 0 -> 0.6 passes it at 83.3.
    assert quick.per_seed.mean == pytest.approx((150 + 100 * 0.5 / 0.6) / 2)
    assert (quick.seeds_reached, slow.seeds_reached) == (2, 1)
    # Resampled with the reference by seed: seed 0 alone 0.4 at 100; seed 1 alone 0.6 at 100.
    assert (quick.low, quick.high) == (pytest.approx(100), pytest.approx(100))
    # The slow one never is above its own end, but for seed 1 counts its budget.
    assert slow.per_seed.mean == pytest.approx((400 + 350) / 2)


def test_what_is_never_reached_is_none_and_open(place: Path) -> None:
    [ranking] = rank(find_runs([place])[0], reference="quick")
    slow = ranking.entries[1].reach
    assert slow.episodes is None
    assert slow.high == math.inf
    assert slow.seeds_reached == 0
    assert slow.per_seed.mean == 400
    assert ranking.to_json()["algos"][1]["reach"]["high"] is None


def test_curves_are_cut_where_the_shortest_run_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "a", (0.0, 0.5, 1.0), algo="grpo", seed=0, episodes_per_step=100)
    write_run(tmp_path / "b", (0.0, 1.0, 1.0), algo="quick", seed=0, episodes_per_step=75)
    [ranking] = rank(find_runs([tmp_path])[0])
    assert ranking.budget == 150
    by_name = {entry.algo: entry for entry in ranking.entries}
    assert by_name["grpo"].validation.mean == pytest.approx(0.75)
    assert by_name["grpo"].by_episodes.x_P.tolist() == [0, 100, 150]
    assert by_name["quick"].by_tokens.x_P.tolist() == [0, 1000, 2000]


def test_differences_use_the_seeds_that_both_have(tmp_path: Path) -> None:
    write_run(tmp_path / "a", (0.0, 0.2), algo="grpo", seed=0)
    write_run(tmp_path / "b", (0.0, 0.9), algo="quick", seed=1)
    write_run(tmp_path / "c", (0.0, 0.6), algo="quick", seed=0)
    [ranking] = rank(find_runs([tmp_path])[0])
    quick = ranking.entries[0]
    assert quick.seeds == (0, 1)
    assert quick.held_out_gain is not None
    assert quick.held_out_gain.mean == pytest.approx(0.4)
    assert quick.held_out_gain.low is None


def test_bands_hold_the_mean(place: Path) -> None:
    [ranking] = rank(find_runs([place])[0])
    for entry in ranking.entries:
        curve = entry.by_episodes
        assert np.all(curve.low_P <= curve.mean_P + 1e-12)
        assert np.all(curve.mean_P <= curve.high_P + 1e-12)


def test_unfinished_runs_and_shared_starts_are_set_apart(place: Path) -> None:
    write_run(place / "half", SLOW[0], algo="half", seed=0, finished=False)
    write_run(place / "warm-start", SLOW[0], algo="grpo", seed=9)
    done, left_out = find_runs([place, place])
    assert len(done) == 4
    assert left_out == [f"not finished, left out: {place / 'half'}"]


def test_the_same_run_twice_is_refused(place: Path) -> None:
    write_run(place / "again", SLOW[0], algo="grpo", seed=0)
    with pytest.raises(ConfigError, match="same environment, algorithm and seed as"):
        rank(find_runs([place])[0])


def test_a_reference_without_runs_is_refused_with_the_nearest(place: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'quick'"):
        rank(find_runs([place])[0], reference="quikc")


def test_runs_that_trained_nothing_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", (0.5,), algo="grpo", seed=0)
    with pytest.raises(ConfigError, match="nothing to compare"):
        rank(find_runs([tmp_path])[0])


def test_a_folder_without_runs_and_a_broken_run_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no training run and no evaluation in here"):
        find_runs([tmp_path])
    with pytest.raises(ConfigError, match="no such folder"):
        find_runs([tmp_path / "gone"])
    folder = write_run(tmp_path / "a", SLOW[0], algo="grpo", seed=0)
    (folder / "metrics.jsonl").write_text("{]\n")
    with pytest.raises(ConfigError, match="cannot be read as a finished run"):
        find_runs([tmp_path])


def test_a_fair_and_whole_comparison_needs_no_remark(place: Path) -> None:
    [ranking] = rank(find_runs([place])[0], protocol=Protocol(seeds=frozenset((0, 1))))
    assert ranking.remarks == ()


def test_what_is_unfair_or_missing_is_said(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", (0.0, 0.5), algo="grpo", seed=seed)
    write_run(tmp_path / "b", (0.0, 0.6), algo="quick", seed=1, episodes_per_step=120)
    write_run(tmp_path / "tuning" / "c", (0.0, 0.6), algo="quick~0", seed=0)
    tuning = {"seeds": [0, 1], "episodes_each": 800, "tried": {"grpo": [1, 2], "quick": [1]}}
    protocol = Protocol(seeds=frozenset((0, 1, 2, 3)), tuning=tuning)
    [ranking] = rank(find_runs([tmp_path])[0], protocol=protocol)
    assert [remark.split(";")[0] for remark in ranking.remarks] == [
        "grpo: 3 of 4 seeds, without 3",
        "quick: 1 of 4 seeds, without 0, 2, 3",
        "budgets differ: grpo 100, quick 120 episodes",
        "settings: 1 or 2 of each algorithm were tried on seeds 0, 1, 800 episodes each that are "
        "not counted here",
        "search budgets differ: some algorithms had more tries than others",
        "seeds 0, 1 chose the settings and are among those reported: what they say is too good",
    ]


def test_two_comparisons_together_keep_both_searches(tmp_path: Path) -> None:
    for name, seeds, chosen in (("grpo", [2, 3], True), ("quick", [2, 4], False)):
        (tmp_path / name).mkdir()
        tuning = {"seeds": [0], "episodes_each": 800, "tried": {name: [{"chosen": chosen}]}}
        content = {"settings": {name: ["learner.lr=1"]}, "seeds": seeds, "tuning": tuning}
        (tmp_path / name / "comparison.json").write_text(json.dumps(content))
    found = read_protocol([tmp_path / "grpo", tmp_path / "quick", tmp_path])
    assert found.seeds == {2, 3, 4}
    assert found.tuning["seeds"] == [0]
    assert found.tuning["tried"] == {"grpo": [{"chosen": True}], "quick": [{"chosen": False}]}


def test_settings_that_differ_are_shown_for_every_algorithm(tmp_path: Path) -> None:
    for name, steps in (("grpo", 2), ("quick", 1)):
        folder = write_run(tmp_path / name, (0.0, 0.5), algo=name, seed=0)
        learner = {"lr": 0.001, "num_minibatches": steps}
        learner |= (
            {"later": True} if name == "quick" else {}
        )  # grpo ran before there was such a one
        config = {"learner": learner, "run": {"seed": steps}, "rollout": {"group_size": 8}}
        (folder / "config.json").write_text(json.dumps({"config": config}))
    own = {"quick": ["learner.num_minibatches=1"]}
    [ranking] = rank(find_runs([tmp_path])[0], protocol=Protocol(settings=own))
    found = {entry.algo: (entry.settings, entry.other_settings) for entry in ranking.entries}
    assert found == {
        "grpo": ((), ("learner.num_minibatches=2",)),
        "quick": (("learner.num_minibatches=1",), ()),
    }
