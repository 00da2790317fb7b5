"""Damage to the files of a ledger, as a killed process leaves them, is found and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.scheduling import make_turn, open_group
from turngym.errors import RecordError
from turngym.records import Manifest
from turngym.rollouts.scheduler.audit import audit
from turngym.rollouts.scheduler.groups import SampleKey
from turngym.rollouts.scheduler.ledger import LEDGER_FILE, Ledger
from turngym.rollouts.scheduler.ledger_files import log_damage, log_of
from turngym.rollouts.scheduler.packing import pack_turn
from turngym.rollouts.scheduler.recovery import recover


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """A folder copied while its ledger was open: what SIGKILL leaves."""
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / LEDGER_FILE
    async with Ledger(path, threaded=False, manifest=Manifest(path.parent)) as ledger:
        ledger.open_group(open_group(size=2), None)
        ledger.start(SampleKey(0, 1), 0, start_version=0, seed=1, carry_from=None)
        ledger.mark_checkpointed(0)
        await ledger.flush()
        for turn in range(6):
            packed = pack_turn(make_turn())
            ledger.commit_turn(SampleKey(0, 1), 0, turn, packed, facts=(2, 0, ""))
            await ledger.flush()
        shutil.copytree(path.parent, tmp_path / "killed")
    return tmp_path / "killed" / LEDGER_FILE


def what_the_audit_says(path: Path) -> str:
    try:
        return "; ".join(audit(path.parent).problems)
    except RecordError as error:
        return str(error)


async def reopen(path: Path) -> None:
    async with Ledger(path, threaded=False, manifest=Manifest(path.parent)) as ledger:
        recover(ledger, 0, seed=lambda index: index)


async def test_a_killed_ledger_is_whole_and_so_is_it_after_its_end(killed: Path) -> None:
    assert log_of(killed).stat().st_size > 0
    assert log_damage(killed) is None
    await reopen(killed)
    await reopen(killed)
    assert audit(killed.parent).problems == []


async def test_a_folder_may_have_any_name(killed: Path) -> None:
    folder = killed.parent.rename(killed.parent.with_name("lr#1?%41"))
    assert audit(folder).problems == []
    assert sorted(path.name for path in folder.parent.iterdir()) == ["lr#1?%41", "run"]


@pytest.mark.parametrize("share", [i / 10 for i in range(10)])
async def test_a_changed_bit_in_the_database_or_in_the_middle_of_its_log_is_named(
    killed: Path, share: float
) -> None:
    for file in (killed, log_of(killed)):
        whole = file.read_bytes()
        last = 2 * 4120 if file != killed else 0  # the last commit may be half written
        content = bytearray(whole)
        content[int((len(content) - last - 1) * share)] ^= 1
        file.write_bytes(content)
        with pytest.raises(RecordError) as caught:
            await reopen(killed)
        assert str(caught.value).startswith(f"{file}: ")
        assert str(file) in what_the_audit_says(killed)
        file.write_bytes(whole)


async def test_a_ledger_that_was_there_is_not_replaced_silently(killed: Path) -> None:
    for file in (killed, log_of(killed)):
        file.rename(killed.with_name("aside"))
        with pytest.raises(RecordError, match=r"is missing, although digests\.json has it"):
            await reopen(killed)
        killed.with_name("aside").rename(file)


async def test_a_log_that_is_cut_off_is_what_an_earlier_kill_leaves(killed: Path) -> None:
    log, whole = log_of(killed), log_of(killed).read_bytes()
    log.write_bytes(whole[: len(whole) * 2 // 3])
    assert log_damage(killed) is None
    await reopen(killed)
    assert audit(killed.parent).problems == []


async def test_a_full_disk_at_the_resumption_is_one_line(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from turngym.errors import TrainingError

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("turngym.rollouts.scheduler.recovery._roll", full)
    with pytest.raises(TrainingError, match=r"ledger\.sqlite: cannot be written .*free some space"):
        await reopen(killed)
