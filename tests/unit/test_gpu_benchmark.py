"""What a GPU gave stands in the docs as it is stored, and its benchmark plays on a CPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "gpu"


def test_the_page_says_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER.parent), *sys.path])
    spec = importlib.util.spec_from_file_location("gpu_page", FOLDER / "page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = (ROOT / "docs" / "gpu_results.md").read_text(encoding="utf-8")
    for name, table in page.TABLES.items():
        rows = json.loads((page.FOLDER / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        assert rows
        assert "\n".join(table(rows)) in text, f"{name}: python benchmarks/gpu/page.py"


def test_the_learner_plays_on_a_cpu_and_says_that_it_is_no_measurement(tmp_path: Path) -> None:
    line = [sys.executable, str(FOLDER / "h200.py"), "learner", "--dry", "--out", str(tmp_path)]
    subprocess.run(line, check=True, capture_output=True, timeout=120)
    found = json.loads((tmp_path / "learner.json").read_text(encoding="utf-8"))
    assert found["is_dry"]
    assert [row["mfu"] for row in found["rows"]] == [None]
    assert found["rows"][0]["tokens_per_s"] > 0
