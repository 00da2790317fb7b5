"""Our credit and losses give what their authors' functions gave, or differ as it is explained."""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

AUTHORS = Path(__file__).resolve().parents[2] / "benchmarks" / "authors"


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(AUTHORS)
        yield importlib.import_module("compare")
        for name in ("compare", "ours"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def findings(bench):
    return [bench.compare(each) for each in (*bench.CREDIT, *bench.LOSSES)]


def test_every_method_is_equal_or_explained(findings):
    unsound = [f"{f.comparison.method}: {f.verdict} ({f.difference:g})" for f in findings]
    assert [text for f, text in zip(findings, unsound, strict=True) if not f.is_sound] == []


def test_every_file_is_compared_and_names_its_source(bench, findings):
    files = {path.stem for path in bench.VECTORS.glob("*.json")}
    compared = {f.comparison.vectors for f in findings}
    assert {name for name in files if not name.startswith("inputs_")} == compared
    for name in compared:
        theirs = bench.read(name)
        assert re.fullmatch(r"[0-9a-f]{40}", theirs["source"]["commit"])
        assert set(theirs["source"]) == {"repository", "read_in", "commit", "file", "functions"}
        assert f"inputs_{theirs['inputs']}" in files


def test_the_page_shows_what_is_found(bench, findings):
    page = bench.PAGE.read_text(encoding="utf-8").partition(bench.BEGIN)[2]

    def without_numbers(text):
        return [re.sub(r"\| [^|]+ (?=\|[^|]+\|$)", "", row) for row in text.splitlines()]

    shown = without_numbers(page.partition(bench.END)[0])
    rows = without_numbers(bench.table(findings))[2:]
    assert [row for row in rows if row not in shown] == []


def test_a_method_that_drifts_is_found(bench, tmp_path, monkeypatch, capsys):
    (row,) = (each for each in bench.CREDIT if each.method == "trloo")
    drifted = replace(row, ours=lambda case: row.explained(case) * 1.001)
    assert bench.compare(drifted).is_sound, "it still differs as explained"
    drifted = replace(row, explained=drifted.ours)
    assert "differs also with" in bench.compare(drifted).verdict
    equal = replace(row, ours=row.explained)
    assert bench.compare(equal).verdict.startswith("NOT EXPLAINED: equal")
    plain = replace(row, reason="", setting="", explained=None)
    assert bench.compare(plain).verdict == "NOT EXPLAINED: differs"
    nothing = replace(plain, ours=lambda case: row.explained(case) * float("nan"))
    assert not bench.compare(nothing).is_sound
    monkeypatch.setattr(bench, "CREDIT", [plain])
    monkeypatch.setattr(bench, "LOSSES", [])
    assert bench.main([]) == 1
    monkeypatch.setattr(bench, "CREDIT", [row])
    assert bench.main([]) == 0
    assert "differs: a turn that one attempt alone reached" in capsys.readouterr().out


def test_other_lengths_are_an_error_that_says_where(bench, tmp_path, monkeypatch):
    (row,) = (each for each in bench.CREDIT if each.method == "grpo")
    for name in ("grpo", "inputs_groups"):
        (tmp_path / f"{name}.json").write_text(json.dumps(bench.read(name)))
    monkeypatch.setattr(bench, "VECTORS", tmp_path)
    assert bench.compare(row).is_sound
    cut = bench.read("grpo")
    cut["outputs"][3].pop()
    (tmp_path / "grpo.json").write_text(json.dumps(cut))
    with pytest.raises(ValueError, match=r"grpo\.json, case 3: we give"):
        bench.compare(row)
