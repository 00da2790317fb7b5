"""Numbers that add up over pieces, and files that hold nothing but them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.credit import algo, credit_of
from helpers.trajectories import episode, group, turn
from turngym.rollouts.evaluation.statistics import summarize
from turngym.trainers.metrics import (
    JsonLinesLogger,
    MetricSums,
    evaluation_metrics,
    log_scalars,
    read_metrics,
    rollout_metrics,
)
from turngym.trainers.runs.run_log import draw_curve
from turngym.types import StopReason


def test_means_weigh_pieces_by_their_counts() -> None:
    sums = MetricSums()
    sums.add_mean("a", total=10.0, count=10)
    sums.add_mean("a", total=8.0, count=2)
    sums.add_max("b", -3.0)
    sums.add_max("b", -7.0)
    sums.add_mean("never", total=0.0, count=0)
    assert sums.result() == {"a": 1.5, "b": -3.0}


def test_a_maximum_does_not_hide_a_nan() -> None:
    sums = MetricSums()
    for value in (1.0, math.nan, 2.0):
        sums.add_max("gap", value)
    assert math.isnan(sums.result()["gap"])


def test_a_line_is_a_step_and_its_finite_numbers(tmp_path: Path) -> None:
    logger = JsonLinesLogger(tmp_path / "m.jsonl")
    logger.log(3, {"train/loss": 0.5, "train/odd": math.nan, "train/big": math.inf})
    logger.close()
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {"step": 3, "train/loss": 0.5}


def test_what_was_written_after_the_offset_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    logger = JsonLinesLogger(path)
    logger.log(0, {"a": 1.0})
    offset = logger.offset
    logger.log(1, {"a": 2.0})
    logger.close()
    again = JsonLinesLogger(path, offset=offset)
    again.log(1, {"a": 3.0})
    again.close()
    assert [row["a"] for row in read_metrics(path)] == [1.0, 3.0]


def test_a_line_that_was_cut_off_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 0, "a": 1.0}\n{"step": 1, "a')
    assert read_metrics(path) == [{"step": 0, "a": 1.0}]


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(tmp_path))
    log_scalars(writer, 4, {"train/loss": 0.25, "train/odd": math.nan})
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/loss"]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(4, 0.25)]


def test_a_step_says_what_was_played_and_what_was_dropped() -> None:
    groups = [
        group(
            episode([1.0], member=0, score=1.0),
            episode([0.0, 0.0], member=1, score=0.0, stop=StopReason.TRUNCATED_TURNS),
            episode([0.0], member=2, error="broke"),
        ),
        group(episode([0.0], score=0.0), episode([0.0], member=1, score=0.0)),
        group(episode([1.0], score=1.0)),
    ]
    credit = credit_of(algo("grpo"), *groups)
    found = rollout_metrics(groups, advantages=credit.advantages, dropped=credit.dropped)
    assert found["rollout/episodes"] == 6
    assert found["rollout/faults"] == found["rollout/dropped_error_env"] == 1
    assert found["rollout/success"] == 2 / 5
    assert found["rollout/truncated_fraction"] == 1 / 5
    assert found["rollout/tokens"] == 12
    assert [found[f"rollout/groups_{k}"] for k in ("used", "zero_spread", "too_small")] == [1] * 3
    assert found["rollout/advantage_abs_mean"] == pytest.approx(0.707106, abs=1e-5)


def test_invalid_actions_are_a_share_of_the_turns_of_the_policy() -> None:
    turns = [replace(turn(invalid=player == "x"), player=player) for player in ("x", "o", "o")]
    found = rollout_metrics([group(replace(episode(turns), player="x"))])
    assert found["rollout/invalid_action_fraction"] == 1.0


def test_a_step_in_which_everything_broke_has_no_invented_means() -> None:
    groups = [group(episode([0.0], error="broke"))]
    credit = credit_of(algo("grpo"), *groups)
    found = rollout_metrics(groups, advantages=credit.advantages, dropped=credit.dropped)
    assert "rollout/success" not in found
    assert all(np.isfinite(value) for value in found.values())


def test_an_evaluation_is_logged_with_its_interval() -> None:
    four = [episode([1.0], score=1.0, task_id=f"made/train/{n}") for n in range(4)]
    found = evaluation_metrics("validation", summarize(four))
    assert found["validation/success"] == 1.0
    assert found["validation/success_low"] == pytest.approx(0.5101, abs=1e-4)
    assert evaluation_metrics("x", summarize([])) == {"x/faults": 0.0}


def test_a_curve_is_drawn_from_what_is_there(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "rollout/success": 0.2},
        {"step": 0, "validation/success": 0.2, "validation/success_low": 0.1,
         "validation/success_high": 0.3},
        {"step": 1, "rollout/success": 0.4},
    ]  # fmt: skip
    held_out = {0: summarize([episode([1.0], score=1.0)] * 4), 1: summarize([])}
    for number, content in enumerate(([], rows)):
        path = tmp_path / f"{number}.png"
        draw_curve(path, content, title="maze", held_out=held_out if content else None)
        assert path.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "1.png").stat().st_size > (tmp_path / "0.png").stat().st_size
