"""The search benchmark measures what it says, at a size of a second."""

import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    for name in ("harness", "search_peers", "search_benchmark"):
        room = BENCHMARKS if name == "harness" else BENCHMARKS / "search"
        file = room / f"{name.removesuffix('_benchmark')}.py"
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    monkeypatch.setattr(module, "_WORLD_ARTICLES", 150)
    monkeypatch.setattr(module, "_QUERIES", 8)
    monkeypatch.setattr(module, "EPISODES", 4)
    return module


def test_every_engine_answers_the_same_queries(bench, tmp_path):
    place = tmp_path / "corpus"
    bench._write_corpus(place, 300)
    queries = json.loads((place / "queries.json").read_text())
    assert {kind: len(texts) for kind, texts in queries.items()} == {"name": 8, "question": 8}
    assert len((place / "corpus.jsonl").read_text().splitlines()) == 300
    for name in ("sqlite", "FTS5 alone"):
        built = bench._build(place, name, time.perf_counter)
        assert built["disk_mb"] > 0.05
        ask = bench._asker(place, name)
        assert all(ask(text) for text in queries["name"])
        record = bench._ask_all(place, name, time.thread_time)
        assert 0 < record["name_p50"] <= record["name_p95"]
        wanted = {"question_p50", "question_p95", "rss_mb", "private_mb", "speedup_2_threads"}
        assert wanted <= set(record)


def test_episodes_are_played_to_their_end(bench):
    from turngym.environments.search.world_env import WorldEnv

    envs = [WorldEnv(kind="2hop", difficulty="tiny") for _ in range(4)]
    for env in envs:
        env.reset(seed=0)
    assert bench._turns_per_second(envs, time.perf_counter) > 0
    assert all(env.score() == 1.0 for env in envs)


def test_the_report_tells_what_was_measured(bench):
    row = dict.fromkeys(
        ("name_p50", "name_p95", "question_p50", "question_p95", "speedup_2_threads"), 0.25
    )
    row |= {
        "size": 10_000,
        "engine": "x",
        "build_s": 1.0,
        "disk_mb": 2.0,
        "rss_mb": 3.0,
        "private_mb": 1.0,
    }
    text = bench.report(
        {
            "machine": {"cores": 2, "cpu": "C", "python": "3"},
            "clock": "wall",
            "repeats": 1,
            "versions": {"turngym": "1"},
            "load_average": [0.1, 0.2],
            "engines": [row],
            "episodes": {
                "turns_per_s": [1000.0, 3000.0],
                "rollout_turns_per_s": [500.0],
                "reset_ms": 2.0,
            },
        }
    )
    wanted = "| 10,000 | x | 1.0 | 2 | 3 | 1 | 0.250 | 0.250 | 0.250 | 0.250 | ×0.25 |"
    assert wanted in text.splitlines()
    assert "**2,000 environment turns per second**" in text
