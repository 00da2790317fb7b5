"""A search for settings: as many tries for all, on seeds that report nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.runs import write_run
from turngym.api import jobs
from turngym.api.tuning import candidates, with_controls
from turngym.cli.main import main
from turngym.errors import ConfigError
from turngym.trainers.runs.comparison import ComparedAlgo, PlannedRun
from turngym.trainers.runs.run_folder import FORMAT_VERSION

Captured = pytest.CaptureFixture[str]
GRPO = ComparedAlgo(name="grpo", algo="grpo", settings=("learner.lr=1e-3",))
RLOO = ComparedAlgo(name="rloo", algo="rloo")
READY = ('model={"type": "pretrained", "path": "some/model"}', "warm_start.episodes=0")
COMMAND = ("compare", "env.id=text/maze", "--env", "text/maze", *READY, "--budget-episodes", "2000")


class Curves:
    """Stands for the processes: a run that is better the larger its learning rate is."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.begun: list[str] = []

    async def __call__(self, run: PlannedRun) -> int:
        self.begun.append(f"{run.folder.parents[2].name} {run.seed} {run.name}")
        if run.name in self.failing:
            run.log_file.write_text("error: the loss is not finite\n")
            return 1
        share = 100 * run.config.learner.lr
        success, steps = (0.0, share, 2 * share), run.config.run.steps
        write_run(run.folder, success, algo=run.name, seed=run.seed, updates=steps)
        settings = {"format": FORMAT_VERSION, "config": run.config.model_dump(mode="json")}
        (run.folder / "config.json").write_text(json.dumps(settings))
        return 0


def test_each_algorithm_has_itself_and_its_tries() -> None:
    tries = {"grpo": [("learner.lr=2e-3",)], "rloo": [("rollout.group_size=4",)]}
    found = candidates([GRPO, RLOO], tries)
    assert [(c.name, c.settings) for c in found["grpo"]] == [
        ("grpo~0", ("learner.lr=1e-3",)),
        ("grpo~1", ("learner.lr=1e-3", "learner.lr=2e-3")),
    ]
    assert [c.settings for c in found["rloo"]] == [(), ("rollout.group_size=4",)]


def test_unequal_budgets_of_search_are_refused() -> None:
    with pytest.raises(ConfigError, match="--try: grpo 1, rloo 0; every algorithm gets the same"):
        candidates([GRPO, RLOO], {"grpo": [("learner.lr=2e-3",)]})


def test_a_control_has_the_settings_of_its_method() -> None:
    found = {one.name: one.settings for one in with_controls([GRPO, RLOO], ["grpo"])}
    assert found == {
        "grpo": ("learner.lr=1e-3",),
        "grpo-shuffled": ("learner.lr=1e-3", "algo.control=shuffled"),
        "grpo-constant": ("learner.lr=1e-3", "algo.control=constant"),
        "rloo": (),
    }


def test_settings_are_chosen_on_two_seeds_and_reported_on_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    training = Curves("rloo~2")
    monkeypatch.setattr(jobs, "_train", training)
    command = [*COMMAND, "--out", str(tmp_path), "--algos", "grpo,rloo", "--seeds", "2"]
    command += ["--set", "rloo:learner.num_minibatches=1", "--controls", "grpo"]
    command += ["--try", "*:learner.lr=4e-4", "--try", "grpo:learner.lr=2e-3 learner.grad_clip=2"]
    command += ["--try", "rloo:learner.lr=3e-3"]
    assert main([*command, "learner.lr=1e-3"]) == 0
    names = ("grpo~0", "grpo~1", "grpo~2", "rloo~0", "rloo~1", "rloo~2")
    tuned = [f"tuning {seed} {name}" for seed in (0, 1) for name in names]
    arms = ("grpo", "grpo-shuffled", "grpo-constant", "rloo")
    place = tmp_path.name
    assert training.begun == tuned + [f"{place} {seed} {arm}" for seed in (2, 3) for arm in arms]

    written = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert written["seeds"] == [2, 3]
    assert written["settings"]["grpo"] == ["learner.lr=2e-3", "learner.grad_clip=2"]
    # The largest rate failed, so the first of rloo is chosen. Area: (0 + 2 * 0.1 + 0.2) / 4.
    first, second, third = written["tuning"]["tried"]["rloo"]
    assert (first["chosen"], second["chosen"], third["chosen"]) == (True, False, False)
    assert first["area"] == pytest.approx(0.1)
    assert (second["area"], third["area"]) == (pytest.approx(0.04), None)

    said = capsys.readouterr().out
    assert "- settings: 3 of each algorithm were tried on seeds 0, 1, 11520 episodes each" in said
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "- grpo: `learner.lr=2e-3 learner.grad_clip=2`" in page
    assert "| rloo~0" not in page

    # The same command runs nothing more but what failed; a report made again is the same.
    training.begun.clear()
    assert main([*command, "learner.lr=1e-3"]) == 0
    assert training.begun == ["tuning 0 rloo~2", "tuning 1 rloo~2"]
    again = capsys.readouterr().out
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == again == said


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--try", "grpo:learner.lr=1", "--first-seed", "1"], "--first-seed 1: the seeds below 2"),
        (["--try", "grpo:learner.lr=1"], "--try: grpo 1, rloo 0; every algorithm gets the same"),
        (["--try", "gpro:learner.lr=1"], "unknown algorithm in --try 'gpro:learner.lr=1', 'gpro'"),
        (["--try", "*:lr"], "--try '*:lr': wanted NAME:key.path=value"),
        (["--try", "*:learner.lrr=1"], "learner.lrr: unknown key. Did you mean 'lr'?"),
        (["--controls", "gigpo"], "unknown --controls 'gigpo'"),
        (["--reference", "grpo-shuffled"], "unknown --reference 'grpo-shuffled'"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_starts(
    tmp_path: Path, capsys: Captured, arguments: list[str], line: str
) -> None:
    out = tmp_path / "out"
    command = [*COMMAND, "--algos", "grpo,rloo", "--set", "rloo:learner.num_minibatches=1"]
    assert main([*command, "--out", str(out), *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert line in said[0]
    assert not out.exists()
