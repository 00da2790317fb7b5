"""Files that are compared with what was written; lines that are written wholly or not at all."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from turngym.errors import RecordError
from turngym.records import GrowingFile, Manifest, file_digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "b.txt").write_text("grows")
    manifest = Manifest(tmp_path)
    assert manifest.is_new
    manifest.add(tmp_path / "a.jsonl")
    manifest.mark(tmp_path / "b.txt", 4)
    return tmp_path


def test_whole_files_and_files_that_grew_are_fine(folder: Path) -> None:
    with (folder / "b.txt").open("a") as file:
        file.write(" and grows")
    Manifest(folder).check(folder / "a.jsonl", folder / "b.txt", folder / "never entered")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"a": 1}\n', "a.jsonl: is cut off, 9 bytes of 18 in digests.json are left"),
        ("a.jsonl", '{"a": 1}\n{"a": 3}\n', "a.jsonl: differs from its SHA-256 in digests.json"),
        ("a.jsonl", '{"a": 1}\n{"a" 2}\n\n', "digests.json (line 2 is not JSON)"),
        ("a.jsonl", '{"a": 1}\n{"a": 2}\n\n', "a.jsonl: has 19 bytes, not 18 as in digests.json"),
        ("a.jsonl", None, "a.jsonl: is missing, although digests.json has it"),
        ("b.txt", "gro", "b.txt: is cut off, 3 bytes of 4 in digests.json are left"),
        ("b.txt", "Grows", "b.txt: differs from its SHA-256"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, name: str, content: str | None, words: str) -> None:
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(RecordError) as caught:
        Manifest(folder).check(folder / name, advice="do this")
    assert words in str(caught.value)
    assert str(caught.value).endswith("; do this")


def test_every_changed_byte_of_the_manifest_itself_is_noticed(folder: Path) -> None:
    file = folder / "digests.json"
    whole = file.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 4
        file.write_bytes(changed)
        if is_refused(folder):
            continue
        found = Manifest(folder)  # white space, or the version
        found.check(*found.files)
        assert set(found.files) == {folder / "a.jsonl", folder / "b.txt"}


def is_refused(folder: Path) -> bool:
    try:
        Manifest(folder)
    except RecordError as error:
        return str(error).startswith(f"{folder / 'digests.json'}: ")
    return False


def test_a_process_that_is_killed_while_it_writes_accuses_nothing(folder: Path) -> None:
    file = folder / "a.jsonl"
    with suppress(KeyboardInterrupt), Manifest(folder).writing(file):
        file.write_text("half of someth")
        raise KeyboardInterrupt
    Manifest(folder).check(file)


def test_a_line_without_room_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = GrowingFile(tmp_path / "lines")
    growing.append("one")

    class Full:
        """A disk with room for two bytes more."""

        def __init__(self, file: object) -> None:
            self.file, self.left = file, 2

        def write(self, content: bytes) -> int:
            if self.left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            written: int = self.file.write(content[: self.left])  # type: ignore[attr-defined]
            self.left -= written
            return written

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

    with monkeypatch.context() as patch:
        patch.setattr(growing, "_file", Full(growing._file))
        with pytest.raises(OSError, match="No space left"):
            growing.append("two")
    assert (tmp_path / "lines").read_text() == "one\n"
    growing.append("two")
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"
    assert growing.sha256 == file_digest(tmp_path / "lines")["sha256"]
    growing.close()


def test_half_a_line_is_cut_off_and_counted(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\ntw")
    growing = GrowingFile(tmp_path / "lines")
    assert (growing.cut, growing.size) == (2, 4)
    growing.append("three")
    growing.close()
    assert (tmp_path / "lines").read_text() == "one\nthree\n"
