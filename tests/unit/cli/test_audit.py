"""``turngym audit`` proves an account, and finds what is wrong with one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from helpers.scheduling import run_audited, scenario
from turngym.cli.main import main


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run = scenario(
        steps=3,
        profile={"raise_share": 0.05},
        scheduler={"failures": {"fraction": 1.0}, "group": {"redundancy": 1}, "concurrency": 15},
    )
    run_audited(run, folder / "ledger.sqlite")
    return folder


def tampered(account: Path, tmp_path: Path, *statements: str) -> Path:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes((account / "ledger.sqlite").read_bytes())
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            assert db.execute(statement).rowcount > 0
    return tmp_path


def test_a_clean_run_is_said_to_be_clean(account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(account), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["clean"]
    assert report["steps"] == {"checkpointed": 3}
    tokens = report["tokens"]
    assert tokens.pop("generated") == sum(tokens.values()) > 0
    assert main(["audit", str(account)]) == 0
    table = capsys.readouterr().out
    assert "clean: every episode was used once" in table
    assert "generated = " in table


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (
            ["INSERT INTO uses SELECT 2, 99, kind, grp, member, retry, first, last, tokens "
             "FROM uses WHERE step = 0 AND place = 0"],
            "was consumed by 2 updates",
        ),
        (["DELETE FROM uses WHERE step = 1 AND place = 0"], "counts as used, but no update has it"),
        (["UPDATE samples SET reason = NULL WHERE state = 'dropped'"], "without a reason"),
        (["UPDATE turns SET tokens = tokens + 1 WHERE turn = 0"], "holds 8 tokens, not 9"),
        (["UPDATE turns SET crc = 1 WHERE turn = 0"], "the packed turn is damaged"),
        (["DELETE FROM turns WHERE turn = 0 AND grp = 0"], "no turn before turn 1"),
        (["DELETE FROM steps WHERE step = 1"], "not numbered without a gap"),
        (
            ["UPDATE samples SET state = 'ready' WHERE state = 'checkpointed'"],
            "but its state is 'ready'",
        ),
        (
            ["UPDATE tries SET outcome = 'error_env' WHERE outcome = 'terminated'"],
            "was trained on although it ended by error_env",
        ),
    ],
)  # fmt: skip
def test_every_kind_of_wrong_account_is_found(
    account: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    statements: list[str],
    words: str,
) -> None:
    assert main(["audit", str(tampered(account, tmp_path, *statements))]) == 1
    assert words in capsys.readouterr().out


def test_a_folder_without_a_ledger_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(tmp_path)]) == 2
    assert "holds no ledger.sqlite" in capsys.readouterr().err
    assert main(["audit", str(tmp_path / "gone")]) == 2
    assert "gone: there is no such folder or file" in capsys.readouterr().err
    (tmp_path / "ledger.sqlite").write_text("x" * 5000)
    assert main(["audit", str(tmp_path)]) == 2
    assert "is not a readable ledger" in capsys.readouterr().err
