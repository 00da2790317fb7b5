"""What the published speed tables stand on: fair order, paired ratios, honest goals."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def _load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _load("harness", monkeypatch)


@pytest.fixture
def spine(harness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    assert sys.modules["harness"] is harness
    return _load("spine", monkeypatch)


def test_every_case_goes_first_once_and_the_warmup_is_dropped(harness: ModuleType) -> None:
    calls: list[str] = []

    def case(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    values = harness.interleaved(
        {name: lambda name=name: case(name) for name in "abc"}, repeats=2, warmup=1
    )

    assert "".join(calls) == "abc" + "bca" + "cab"
    assert values == {"a": (6.0, 8.0), "b": (4.0, 9.0), "c": (5.0, 7.0)}


def test_a_ratio_pairs_the_rounds(harness: ModuleType) -> None:
    # The machine was three times slower in the last round: the medians' ratio would be 6 / 2.
    goal = harness.ratio_goal("x", [4.0, 6.0, 12.0], [2.0, 2.0, 6.0], at_least=2.5)

    assert goal.value == 2.0
    assert not goal.met
    assert goal.spread == (2.0, 2.5)


def test_a_limit_is_met_up_to_itself(harness: ModuleType) -> None:
    assert harness.limit_goal("x", 1.0, at_most=1.0).met
    assert not harness.limit_goal("x", 1.001, at_most=1.0).met


def test_quartiles_of_one_value_are_that_value(harness: ModuleType) -> None:
    assert harness.quartiles([3.0]) == (3.0, 3.0)
    assert harness.quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)


def test_the_tables_say_what_was_missed_and_what_did_not_run(
    harness: ModuleType, spine: ModuleType
) -> None:
    result = harness.PartResult(
        part="a",
        title="Turns",
        settings={"repeats": 2, "clock": "wall"},
        load_average=[1.5, 1.0],
        measurements=[harness.Measurement(name="bare", unit="us", values=(1.0, 3.0))],
        goals=[harness.limit_goal("seconds", 2.0, at_most=1.0)],
        not_run=[harness.NotRun(name="GEM", reason="not installed", remedy="setup.sh gem")],
    )
    here = dict.fromkeys(("cpu", "cores", "memory_gib", "system", "python", "commit"), "?")

    text = spine.as_markdown([{"date": "2026-01-01", "machine": here, **result.to_json()}])

    assert text.startswith("### a. Turns\n\n2026-01-01, ?")

    assert "| seconds | at most 1 | 2 |  | **missed** |" in text
    assert "| bare | 2 | 1.5 to 2.5 | us |" in text
    assert "NOT RUN: GEM: not installed. To run it: `setup.sh gem`" in text
    assert "**the machine was busy**" in text


def test_publishing_a_part_keeps_the_others(spine: ModuleType) -> None:
    old = [{"part": "a", "n": 1}, {"part": "c", "n": 1}]

    merged = spine._merged(old, [{"part": "b", "n": 2}, {"part": "c", "n": 2}])

    assert [(record["part"], record["n"]) for record in merged] == [("a", 1), ("b", 2), ("c", 2)]


@pytest.mark.parametrize("arguments", [["--only", "a,x"], ["--repeats", "0"]])
def test_a_wrong_argument_ends_with_2(spine: ModuleType, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        spine.main(arguments)

    assert stopped.value.code == 2


def test_a_section_replaces_what_stands_between_its_marks_and_nothing_else(
    harness: ModuleType, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    begin, end = "<!-- speed: begin -->", "<!-- speed: end -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")

    harness.put_section(page, "speed", "new")

    assert page.read_text() == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"


def test_a_section_that_is_not_there_comes_last(harness: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n")

    harness.put_section(page, "speed", "new")

    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- speed: begin -->\n\nnew\n\n<!-- speed: end -->\n")


@pytest.mark.parametrize(
    ("page", "section"), [("benchmarks", "results"), ("search", "speed"), ("security", "speed")]
)
def test_a_published_page_has_one_place_for_its_tables(page: str, section: str) -> None:
    text = (BENCHMARKS.parent / "docs" / f"{page}.md").read_text()

    assert [text.count(f"<!-- {section}: {mark} -->") for mark in ("begin", "end")] == [1, 1]


def test_before_and_after_are_paired_by_round_and_a_rate_is_a_cost_the_other_way(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = _load("before_after", monkeypatch).row
    times = {"before": [{"x": 1.0}, {"x": 4.0}], "after": [{"x": 2.0}, {"x": 8.0}]}
    assert row(times, "x", "a turn", "us").endswith("| 2.5 | 5 | 2.00 (2.00 to 2.00) | **worse** |")
    assert "0.50 (0.50 to 0.50) | better" in row(times, "x", "turns", "turns/s")
    assert row(times, "x", "*peer:* GEM", "us").endswith("2.00 (2.00 to 2.00) |  |")
    near = {"before": [{"x": 1.0}], "after": [{"x": 1.05}]}
    assert row(near, "x", "a turn", "us").endswith("| same |")
    apart = {"before": [{"x": 1.0}] * 3, "after": [{"x": 3.0}, {"x": 1.5}, {"x": 0.5}]}
    assert row(apart, "x", "a turn", "us").endswith("| unclear |")


def test_what_is_timed_samples_as_many_tokens_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from turngym.agents.engine.models import load_model_dir, save_model_dir

    episodes = _load("episodes", monkeypatch)
    wanted = episodes.make_episodes(32, turns=(2, 4), opening=(3, 5), observation=(1, 3), seed=1)
    # In a folder a model has a card, with its end token.
    save_model_dir(episodes.make_model("96x3"), episodes.make_tokenizer(), tmp_path)
    engine = episodes.make_engine(load_model_dir(tmp_path)[0])

    for episode, played in zip(
        wanted, episodes.play_with_engine(engine, wanted, action=8), strict=True
    ):
        assert sum(played.action_mask) == 8 * len(episode)
