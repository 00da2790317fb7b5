"""Tables and plots from runs written by hand."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from helpers.runs import write_run
from turngym.reports.comparison import Ranking, rank
from turngym.reports.runs import Protocol, find_runs
from turngym.reports.tables import label_heights, write_report


@pytest.fixture
def rankings(tmp_path: Path) -> list[Ranking]:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", (0.1, 0.2, 0.3 + seed / 10), algo="grpo", seed=seed)
        write_run(tmp_path / f"b{seed}", (0.1, 0.6, 0.8), algo="quick", seed=seed)
    write_run(tmp_path / "c", (0.0, 0.5), algo="grpo", seed=0, env="turngym/Taxi-v0")
    protocol = Protocol(presets={"quick": "rloo"}, settings={"quick": ["learner.lr=0.01"]})
    return rank(find_runs([tmp_path])[0], protocol=protocol)


def test_a_report_holds_table_numbers_and_plots(tmp_path: Path, rankings: list[Ranking]) -> None:
    out = tmp_path / "report"
    out.mkdir()
    page = write_report(rankings, out, notes=["failed: something"]).read_text(encoding="utf-8")
    assert {path.name for path in out.iterdir()} == {
        "report.md",
        "report.csv",
        "report.json",
        "text-maze.png",
        "text-maze.svg",
        "text-taxi.png",
        "text-taxi.svg",
    }
    assert "- failed: something" in page
    assert "- quick: preset `rloo`, `learner.lr=0.01`" in page
    assert "- grpo: as its preset" in page
    assert "200 training episodes for each run" in page
    [quick] = [line for line in page.splitlines() if line.startswith("| quick")]
    cells = [cell.strip() for cell in quick.strip("|").split("|")]
    assert cells[:3] == ["quick", "2", "80.0 % [80.0, 80.0]"]
    # Area: (0.35 + 0.7) / 2 = 52.5 %. The reference ends at 35 %, half way to the first point.
    assert cells[5] == "52.5 % [52.5, 52.5]"
    assert cells[7].startswith("50 (25 %) [")
    assert cells[8] == "2 of 2"
    assert cells[10:] == ["2.0", "20.0 %"]


def test_the_spreadsheet_and_the_json_say_the_same(tmp_path: Path, rankings: list[Ranking]) -> None:
    write_report(rankings, tmp_path)
    text = (tmp_path / "report.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert [(row["env"], row["algo"]) for row in rows] == [
        ("text/maze", "quick"),
        ("text/maze", "grpo"),
        ("text/taxi", "grpo"),
    ]
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    [first, *_] = content["envs"][0]["algos"]
    assert float(rows[0]["area"]) == pytest.approx(first["area"][0])
    assert float(rows[0]["area_gain_low"]) == pytest.approx(first["area_gain"][1])
    assert rows[1]["area_gain"] == ""
    assert rows[2]["held_out_low"] == ""  # one seed has no interval
    assert first["by_episodes"]["x_P"] == [0, 100, 200]


def test_plots_name_their_lines(tmp_path: Path, rankings: list[Ranking]) -> None:
    write_report(rankings, tmp_path)
    texts = {
        "".join(node.itertext())
        for node in ET.parse(tmp_path / "text-maze.svg").iter("{http://www.w3.org/2000/svg}text")
    }
    assert {"grpo", "quick", "training episodes", "tokens sampled for training"} <= texts
    assert (tmp_path / "text-maze.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_runs_give_the_same_bytes(tmp_path: Path, rankings: list[Ranking]) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_report(rankings, tmp_path / name)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name


def test_names_beside_lines_keep_their_order_and_distance() -> None:
    heights = label_heights([0.5, 0.51, 0.9, 0.5], gap=0.05)
    assert heights[0] < heights[3] < heights[1] < heights[2]
    assert heights[2] == pytest.approx(0.9)
    assert heights[3] == pytest.approx((0.5 + 0.5 + 0.51) / 3)
    assert heights[3] - heights[0] == pytest.approx(0.05)
    assert label_heights([0.1, 0.9]) == pytest.approx([0.1, 0.9])
