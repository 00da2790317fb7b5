"""The words that we do not say are found, in names too, and only become fewer."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def test_no_word_of_the_second_column_became_more_frequent() -> None:
    command = [sys.executable, str(SCRIPTS / "check_words.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_new_use_is_named_with_its_line_and_its_better_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import check_words

    line = ("src/turngym/x.py", 3, "_gave_orders = self._sabotage()")
    monkeypatch.setattr(check_words, "lines", lambda: [line])
    assert check_words.main() == 1
    assert "src/turngym/x.py:3: 'sabotage', say mutant" in capsys.readouterr().out
