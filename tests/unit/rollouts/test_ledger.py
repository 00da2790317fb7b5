"""The ledger keeps what was committed, refuses who was shut out, and waits for a full disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helpers.scheduling import make_turn, open_group
from turngym.errors import ConfigError, RecordError
from turngym.rollouts.scheduler.audit import audit
from turngym.rollouts.scheduler.groups import SampleKey
from turngym.rollouts.scheduler.ledger import Ledger
from turngym.rollouts.scheduler.packing import pack_turn

KEY = SampleKey(0, 1)
PACKED = pack_turn(make_turn())


def commit(ledger: Ledger, turn: int, *, attempt: int = 0) -> int:
    return ledger.commit_turn(KEY, attempt, turn, PACKED, facts=(2, 0, ""))


def opened(ledger: Ledger) -> None:
    ledger.open_group(open_group(size=2), None)
    ledger.start(KEY, 0, start_version=0, seed=1, carry_from=None)


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(query).fetchall()


@pytest.mark.parametrize("threaded", [False, True])
async def test_what_was_committed_is_there_once(tmp_path: Path, threaded: bool) -> None:
    path = tmp_path / "ledger.sqlite"
    async with Ledger(path, threaded=threaded) as ledger:
        opened(ledger)
        commit(ledger, 0)
        await ledger.durable(commit(ledger, 0))
        assert rows(path, "SELECT turn FROM turns") == [(0,)]  # another connection sees it
    assert audit(path).tokens["open"] == 2


async def test_commits_are_grouped(tmp_path: Path) -> None:
    async with Ledger(tmp_path / "l", threaded=False) as ledger:
        batches: list[int] = []
        write = ledger._commit
        ledger._commit = lambda batch: (batches.append(len(batch)), write(batch))[1]  # type: ignore[method-assign,assignment]
        opened(ledger)
        for turn in range(50):
            commit(ledger, turn)
        await ledger.flush()
        assert len(batches) == 1


async def test_a_try_that_was_given_up_cannot_write_any_more(tmp_path: Path) -> None:
    path = tmp_path / "l"
    async with Ledger(path, threaded=False) as ledger:
        opened(ledger)
        commit(ledger, 0)
        ledger.start(KEY, 1, start_version=0, seed=2, carry_from=None)
        commit(ledger, 1, attempt=0)  # a zombie
        ledger.end(KEY, 0, "terminated", error=None, uncommitted_tokens=0, tail=b"{}")
        commit(ledger, 0, attempt=1)
    assert rows(path, "SELECT retry, turn FROM turns ORDER BY 1") == [(0, 0), (1, 0)]
    assert rows(path, "SELECT state, retry FROM samples WHERE member = 1") == [("running", 1)]
    assert audit(path).tokens["lost"] + audit(path).tokens["retried"] == 2


async def test_a_try_may_take_over_the_turns_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "l"
    async with Ledger(path, threaded=False) as ledger:
        opened(ledger)
        commit(ledger, 0)
        ledger.start(KEY, 1, start_version=0, seed=1, carry_from=0)
        commit(ledger, 1, attempt=1)
    assert rows(path, "SELECT retry, turn FROM turns ORDER BY 2") == [(1, 0), (1, 1)]


async def test_two_processes_cannot_have_it_open(tmp_path: Path) -> None:
    async with Ledger(tmp_path / "l", threaded=False):
        with pytest.raises(ConfigError, match="another process has this ledger open"):
            Ledger(tmp_path / "l")
    Ledger(tmp_path / "l").abandon()


def test_something_else_is_not_taken_for_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("hello " * 100)
    with pytest.raises(RecordError, match="is not a ledger"):
        Ledger(tmp_path / "l")


def test_a_newer_ledger_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path / "l").abandon()
    with closing(sqlite3.connect(tmp_path / "l")) as db, db:
        db.execute("UPDATE meta SET value = 'turngym.ledger 99' WHERE key = 'format'")
    with pytest.raises(RecordError, match="version 99 is newer than 1; upgrade turngym"):
        Ledger(tmp_path / "l")


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_full_disk_is_said_and_waited_for(
    tmp_path: Path, threaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngym.rollouts.scheduler.ledger._RETRY_S", 0.01)
    told: list[str | None] = []
    async with Ledger(tmp_path / "l", threaded=threaded) as ledger:
        ledger.on_trouble = told.append
        opened(ledger)
        await ledger.flush()
        pages = ledger.connection.execute("PRAGMA page_count").fetchone()[0]
        ledger.connection.execute(f"PRAGMA max_page_count = {pages}")
        big = pack_turn(make_turn(text="x" * 50_000))
        number = ledger.commit_turn(KEY, 0, 0, big, facts=(2, 0, ""))

        def make_room(trouble: str | None) -> None:
            told.append(trouble)
            ledger.connection.execute("PRAGMA max_page_count = 1000000")

        ledger.on_trouble = make_room
        await ledger.durable(number)
    assert told[0] is not None
    assert "full" in told[0]
    assert told[-1] is None
    assert rows(tmp_path / "l", "SELECT turn FROM turns") == [(0,)]
