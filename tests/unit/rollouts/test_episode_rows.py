from dataclasses import replace
from pathlib import Path

import pytest

from helpers.trajectories import episode, turn
from turngym.errors import RecordError
from turngym.rollouts.evaluation.rows import (
    EpisodeRow,
    open_rows,
    read_rows,
    row_of,
    summarize_rows,
    to_line,
    write_rows,
)
from turngym.types import StopReason


def row(task: int = 0, member: int = 0, **changes) -> EpisodeRow:
    made = episode([0.5, turn(0.5, invalid=True)], member=member, score=1.0, task_id=f"t/{task}")
    return replace(row_of(made, env="lab/made", seconds=0.25), **changes)


def fault(task: int, kind: str = "error_env") -> EpisodeRow:
    return row(task, stop_reason=StopReason(kind), score=None, error="gone")


def test_a_row_holds_the_numbers_of_its_episode():
    found = row()
    assert (found.episode_return, found.turns, found.invalid_actions) == (1.0, 2, 1)
    assert (found.prompt_tokens, found.completion_tokens) == (4, 4)
    assert (found.cost_usd, found.seconds) == (None, 0.25)
    assert found.key == ("lab/made", "t/0", 0)


def test_what_the_policy_says_it_spent_counts_more_than_what_it_kept():
    spent = {"prompt_tokens": 100.0, "completion_tokens": 7.0, "cost_usd": 0.01}
    told = replace(turn(), usage=spent)
    found = row_of(episode([told, told]), env="lab/made", seconds=1.0)
    assert (found.prompt_tokens, found.completion_tokens) == (200, 14)
    assert found.cost_usd == pytest.approx(0.02)


def test_a_policy_without_tokens_has_none_rather_than_zero():
    silent = replace(turn(), spans=())
    found = row_of(episode([silent]), env="lab/made", seconds=1.0)
    assert (found.prompt_tokens, found.completion_tokens) == (None, None)


def test_rows_survive_the_file_and_a_half_line_at_its_end(tmp_path: Path):
    file = tmp_path / "episodes.jsonl"
    with open_rows(file) as rows:
        rows.write(to_line(row(0)))
        rows.write(to_line(fault(1)))
        rows.write(to_line(row(2))[:40])
    assert list(read_rows(file)) == [row(0), fault(1)]
    write_rows(file, [row(5)])
    assert list(read_rows(file)) == [row(5)]


def test_a_broken_line_is_named(tmp_path: Path):
    file = tmp_path / "episodes.jsonl"
    write_rows(file, [row()])
    with file.open("a") as rows:
        rows.write('{"env": 3}\n')
    with pytest.raises(RecordError, match=r"episodes\.jsonl:3: not a row"):
        list(read_rows(file))
    with pytest.raises(RecordError, match="cannot be read"):
        list(read_rows(tmp_path / "nothing.jsonl"))
    file.write_text('{"format": "something"}\n')
    with pytest.raises(RecordError, match=r"jsonl:1"):
        list(read_rows(file))


def test_a_fault_is_counted_by_kind_and_in_no_mean():
    rows = [row(0), row(1, score=0.0, episode_return=0.0), fault(2), fault(3, "error_policy")]
    found = summarize_rows(rows)
    assert (found.episodes, found.tasks, found.faults, found.solved) == (4, 4, 2, 1)
    assert found.success is not None
    assert found.success.value == 0.5  # not 0.25
    assert found.episode_return is not None
    assert found.episode_return.value == 0.5
    assert {k: m.value for k, m in found.faults_by_kind.items()} == {
        "error_env": 0.25,
        "error_policy": 0.25,
    }
    assert all(m.interval is not None for m in found.faults_by_kind.values())


def test_an_episode_that_was_not_judged_is_in_the_means_but_not_in_success():
    found = summarize_rows([row(0), row(1, score=None)])
    assert (found.unscored, found.solved) == (1, 1)
    assert found.success is not None
    assert found.success.value == 1.0
    assert found.turns is not None
    assert found.turns.value == 2.0


def test_attempts_give_pass_at_every_k():
    rows = [
        row(task, attempt, score=float(attempt == 0)) for task in range(4) for attempt in (0, 1)
    ]
    found = summarize_rows(rows)
    assert {k: m.value for k, m in found.pass_at.items()} == {1: 0.5, 2: 1.0}
    assert found.success is not None
    assert found.success.value == found.pass_at[1].value


def test_no_rows_say_nothing():
    found = summarize_rows([]).to_json()
    assert (found["episodes"], found["success"], found["pass_at"]) == (0, None, {})


def test_what_a_clock_decided_is_apart():
    one, other = [summarize_rows([row(0, seconds=s)]).to_json() for s in (1.0, 2.0)]
    assert one.pop("time") != other.pop("time")
    assert one == other
