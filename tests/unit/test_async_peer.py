"""The pure parts of benchmarks/engine/async_peer.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "engine"))

from async_peer import is_error, summary, told
from async_work import Measured, Order, counts_of, is_below, observation, order_of, score

PAGE = """# HELP vllm:generation_tokens_total Number of generation tokens processed.
vllm:generation_tokens_total{engine="0",model_name="policy"} 120.0
vllm:generation_tokens_total{engine="1",model_name="policy"} 3.0
vllm:prompt_tokens_total{engine="0",model_name="policy"} 7.0
vllm:prompt_tokens_cached_total{engine="0",model_name="policy"} 99.0
"""


def test_counts_of_a_server_are_sums_over_its_engines_and_of_nothing_else() -> None:
    assert counts_of(PAGE) == {"sampled": 123.0, "prompted": 7.0}


def test_an_order_survives_the_command_line() -> None:
    order = Order(model=Path("/m"), output=Path("/o.json"), steps=5, warm_up=2, url="http://x:1")
    assert order_of(order.words()) == order


def test_observations_are_the_words_of_the_task_in_turn() -> None:
    assert [observation("a b c", turn) for turn in range(3)] == ["a b c", "b c a", "c a b"]


def test_the_score_is_the_share_of_even_characters() -> None:
    assert score(["bb", "a"]) == pytest.approx(2 / 3)
    assert score([""]) == 0.0


def test_an_engine_is_found_below_the_process_that_started_it() -> None:
    parents = {9: 8, 8: 7, 7: 1, 6: 1}
    assert is_below(9, 7, parents)
    assert not is_below(6, 7, parents)
    assert not is_below(7, 7, parents)


def test_the_last_line_of_a_traceback_is_told() -> None:
    assert is_error("requests.exceptions.ConnectionError: refused")
    assert not is_error("INFO: no Error here")
    row = {
        "code": 1,
        "steps": 4,
        "wanted": 13,
        "after_kill_s": 6.4,
        "last_line": "OSError: x",
        "measured": None,
    }
    assert told(row) == "4 of 13 steps; exit code 1 6 s after the kill: OSError: x"


def test_shares_are_of_the_same_steps() -> None:
    runs = [
        Measured(
            side=side,
            step_s=[1.0, 3.0],
            waited_s=[0.5, 0.5],
            publish_s=[0.1, 0.1],
            trained=[30.0, 30.0],
            sampled=120.0,
            prompted=240.0,
        )
        for side in ("turngym", "TRL", "TRL, short queues")
    ]
    found = summary(runs)["TRL"]
    assert found["trained_tokens_per_s"] == 15.0
    assert found["sampled_tokens_per_s"] == 30.0
    assert found["trained_share"] == 0.5
    assert found["waiting_share"] == 0.25
    assert found["step_s"] == 2.0
