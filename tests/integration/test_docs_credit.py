"""docs/methods.md has every preset, docs/extending.md is run as it stands."""

from __future__ import annotations

import asyncio
import re
import shlex
from importlib.resources import files
from pathlib import Path

import pytest

from helpers.cli import TINY_RUN
from turngym.cli.main import main
from turngym.config import load_config, toml_files
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.run_folder import read_settings
from turngym.trainers.settings.algo import needs_of
from turngym.trainers.settings.train import TrainConfig

ROOT = Path(__file__).parents[2]
PRESETS = sorted(toml_files(files("turngym.trainers") / "presets"))
NEEDS = {"state key": "state_key", "truth": "ground_truth", "expert": "expert_match"}
"""Short word of the page to name in the code, where they differ."""


def rows() -> dict[str, list[str]]:
    """Return the cells of each preset's row, by name."""
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := re.match(r"\| `(\w+)` \|", line):
            assert match[1] not in found, f"{match[1]} has two rows"
            found[match[1]] = [cell.strip() for cell in line.strip("|").split(" |")]
    return found


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_every_preset_has_a_row_and_every_row_a_preset() -> None:
    assert sorted(rows()) == PRESETS


def test_the_command_lists_them_all_and_the_pages_count_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "presets"]) == 0
    listed = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in listed] == PRESETS
    assert {row[0]: row[1] for row in listed}["igpo"] == "ground_truth"
    count = len(PRESETS)
    for page, text in (
        ("docs/methods.md", f"lists all {count} with"),
        ("README.md", f"{count - 3} of {count} presets"),
        ("CHANGELOG.md", f"{count} presets"),
    ):
        assert text in (ROOT / page).read_text(encoding="utf-8"), page


def test_no_cell_is_empty() -> None:
    for name, cells in rows().items():
        assert len(cells) == 5, name
        assert all(cells), name


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_loads_and_needs_what_its_row_says(name: str) -> None:
    algo = load_config(TrainConfig, ["demo", f"algo={name}"]).algo
    assert algo.name == name
    said = [] if rows()[name][2] == "–" else rows()[name][2].split(", ")
    assert sorted(NEEDS.get(word, word) for word in said) == needs_of(algo.rewards, algo.advantage)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write what docs/extending.md shows to the files that it names."""
    for block in blocks("extending.md", "python"):
        name = re.match(r'"""(\w+\.py):', block)
        assert name is not None
        (tmp_path / name[1]).write_text(block, encoding="utf-8")
    for block in blocks("extending.md", "toml"):
        name = re.match(r"# (\w+\.toml)\n", block)
        assert name is not None
        (tmp_path / name[1]).write_text(block, encoding="utf-8")
    (tmp_path / "tiny.toml").write_text(TINY_RUN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_method_takes_one_function_and_one_file_of_thirty_lines() -> None:
    methods = blocks("extending.md", "python")[:2]
    assert [len(block.splitlines()) <= 30 for block in methods] == [True, True]


@pytest.mark.parametrize("algo", ["no_circles", "early"])
def test_the_methods_of_the_page_train(folder: Path, algo: str) -> None:
    command = ["train", "tiny.toml", f"algo={algo}.toml", "--out", algo]
    assert main(command) == 0
    trained = [
        row for row in read_metrics(folder / algo / "metrics.jsonl") if "rollout/turns_mean" in row
    ]
    assert len(trained) == 2


def test_the_judge_of_the_page_is_asked_about_every_turn(folder: Path) -> None:
    (folder / "grader.py").write_text(
        "ASKED = []\n"
        "async def grader(messages):\n"
        "    ASKED.append(messages[0]['content'])\n"
        "    return '7' if len(ASKED) % 2 else 'well done'\n",
        encoding="utf-8",
    )
    judge = f"algo.rewards.1.settings.judge={folder}/grader.py:grader"
    assert main(["train", "tiny.toml", "algo=judged.toml", judge, "--out", "run"]) == 0
    rows = read_metrics(folder / "run" / "metrics.jsonl")
    turns = sum(row["rollout/turns_mean"] * 4 for row in rows if "rollout/turns_mean" in row)
    from turngym.plugins import import_attribute

    asked = import_attribute("list", f"{folder}/grader.py:ASKED")
    assert len(asked) == turns > 0
    assert all(text.startswith("Grade the last answer from 0 to 10.") for text in asked)


def test_the_judge_of_the_page_has_no_grade_above_its_best(folder: Path) -> None:
    from helpers.trajectories import episode, turn
    from turngym.plugins import import_attribute
    from turngym.trainers.credit.base import TurnBatch
    from turngym.types import TrajectoryGroup

    (folder / "grader.py").write_text(
        "GRADES = ['0', '10', '99', '07', '-1']\n"
        "async def grader(messages):\n"
        "    return GRADES.pop(0)\n",
        encoding="utf-8",
    )
    group = TrajectoryGroup(group_id="g", trajectories=(episode([turn(0.0)] * 5, member=0),))
    judged = import_attribute("function", "my_judge:judged")
    found = asyncio.run(judged(TurnBatch.of([group]), judge=f"{folder}/grader.py:grader"))
    assert found.values_N.tolist() == [0, 1, 0, 0, 0]
    assert found.has_value_N.tolist() == [True, True, False, False, False]


def test_the_loss_and_the_sampler_of_the_page_train(folder: Path) -> None:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    [line] = [one for one in text.replace("\\\n", " ").splitlines() if "my_parts:praise" in one]
    _, _, recipe, *overrides = shlex.split(line)
    assert recipe == "demo"
    assert main(["train", "tiny.toml", *overrides, "--out", "run"]) == 0
    settings = read_settings(folder / "run")
    assert settings["selection"]["sampler"]["type"] == "custom"
    assert settings["algo"]["loss"]["surrogate"]["type"] == "custom"


def test_the_function_of_the_page_gives_no_credit_in_circles(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from helpers.credit import components_of
    from helpers.trajectories import episode, turn
    from turngym.plugins import import_attribute
    from turngym.trainers.credit.base import TurnBatch
    from turngym.trainers.settings.rewards import EnvReward
    from turngym.types import TrajectoryGroup

    there = [
        turn(0.0, state_key="a"),
        turn(0.0, state_key="b"),
        turn(0.0, state_key="a"),
        turn(1.0, state_key="c"),
    ]
    lost = [turn(0.0, state_key="a"), turn(0.0, state_key="a")]
    group = TrajectoryGroup(
        group_id="g", trajectories=(episode(there, member=0), episode(lost, member=1))
    )
    turns = TurnBatch.of([group])
    function = import_attribute("function", "my_credit:no_circles")
    values_N = function(turns, components_of(EnvReward(), turns), weight=3.0)
    mean = 4 / 6
    expected = [3 * (1 - mean), 3 * (1 - mean), 0, 3 * (1 - mean), -3 * mean, 0]
    assert np.allclose(values_N, expected)
    early = import_attribute("function", "my_reward:early")
    assert np.allclose(early(turns), [0.1, 0.05, 0.1 / 3, 0.025, 0.1, 0.05])
