"""What commands print: aligned records, numbers with intervals, progress that fits the stream."""

import errno
import io
import sys
from pathlib import Path

import pytest

from turngym.cli import output
from turngym.errors import ConfigError
from turngym.records import writable_folder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_aligns_its_columns_and_leaves_no_trailing_blanks() -> None:
    text = output.table(["NAME", "N"], [["a", "10"], ["longer", "2"]])
    assert text == "NAME    N\na       10\nlonger  2"


def test_json_keeps_unicode_readable(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"name": "Zürich"})
    assert '"Zürich"' in capsys.readouterr().out


def test_short_work_says_nothing_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with output.progress("maze", 3) as advance:
        for done in (1, 2, 3):
            advance(done, "")
    assert capsys.readouterr() == ("", "")


def test_long_work_says_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.0, 1.0, 16.0, 16.0, 20.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(seconds))
    with output.progress("maze", 9) as advance:
        for done in (1, 2, 3):
            advance(done, f"{done} solved")
    assert capsys.readouterr().err == "maze: 2/9 2 solved\n"


def test_a_terminal_gets_a_bar_that_disappears(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress("maze [x]", 2) as advance:
        advance(1, "1/1 solved")
        advance(2, "1/2 solved")
    assert "maze [x]" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased
    assert capsys.readouterr().out == ""


def test_a_folder_that_can_be_written_is_made(tmp_path: Path) -> None:
    folder = writable_folder(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert list(folder.iterdir()) == []


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--out .*file/x: cannot be written to"):
        writable_folder(tmp_path / "file" / "x")


@pytest.mark.parametrize(
    ("where", "said"), [((), "the disk is full"), (("a.html",), "a.html: the disk is full")]
)
def test_a_full_disk_is_said_in_words_with_what_to_do(where: tuple[str, ...], said: str) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", *where)
    assert output.lines(error) == [f"{said}; free some space, then run the same command again"]
