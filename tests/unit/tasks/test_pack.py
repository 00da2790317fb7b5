"""A pack of tasks: the same bytes for the same content, and no byte of it can be changed unseen."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import ConfigError
from turngym.tasks.pack import (
    PackedTask,
    PackManifest,
    digest,
    read_folder,
    read_pack,
    report_of,
    write_pack,
)

FOLDERS = {
    "b": {"task.toml": (b'schema_version = "1.4"\n', False), "tests/test.sh": (b"true\n", True)},
    "a": {"task.toml": (b"", False)},
}


def manifest(folders: dict[str, dict[str, tuple[bytes, bool]]]) -> PackManifest:
    tasks = [PackedTask(id=id, sha256=digest(files)) for id, files in folders.items()]
    return PackManifest(tasks=tuple(tasks))


def write(path: Path) -> bytes:
    write_pack(path, manifest(FOLDERS), FOLDERS)
    return path.read_bytes()


def test_the_same_content_is_the_same_file_and_comes_back(tmp_path: Path) -> None:
    first = write(tmp_path / "one.tasks")
    turned = {id: dict(reversed(files.items())) for id, files in reversed(FOLDERS.items())}
    write_pack(tmp_path / "two.tasks", manifest(FOLDERS), turned)
    assert (tmp_path / "two.tasks").read_bytes() == first == write(tmp_path / "one.tasks")
    pack = read_pack(tmp_path / "one.tasks")
    assert pack.folders["b"]["tests/test.sh"] == (b"true\n", True)
    assert pack.manifest == manifest(FOLDERS)
    assert pack.sha256 == hashlib.sha256(first.partition(b"\n")[2]).hexdigest()


with TemporaryDirectory() as place:
    WHOLE = write(Path(place) / "whole.tasks")


@settings(max_examples=60)
@given(place=st.integers(0, len(WHOLE) - 1), bits=st.integers(1, 255))
def test_any_byte_that_is_changed_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, place: int, bits: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.tasks"
    path.write_bytes(WHOLE[:place] + bytes([WHOLE[place] ^ bits]) + WHOLE[place + 1 :])
    with pytest.raises(ConfigError) as error:
        read_pack(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def forged(path: Path, files: dict[str, bytes]) -> None:
    """Write a pack with a digest that fits, whatever it holds."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    body = buffer.getvalue()
    sha256 = hashlib.sha256(body).hexdigest()
    path.write_bytes(f"turngym tasks 1 sha256 {sha256}\n".encode() + body)


GOOD = manifest({"a": {"task.toml": (b"", False)}}).model_dump_json().encode()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"manifest.json": GOOD, "a/task.toml": b"x"}, "task a: was altered: its SHA-256"),
        ({"manifest.json": GOOD, "a/../x": b""}, "which is no place in a task"),
        ({"manifest.json": GOOD, "/etc/x": b""}, "which is no place in a task folder"),
        ({"manifest.json": GOOD, "c/x": b""}, "c/x belongs to no task of the manifest"),
        ({"manifest.json": GOOD.replace(b'"version":1', b'"version":2')}, "of this version"),
        ({"manifest.json": GOOD.replace(b'"id":"a"', b'"id":".."')}, "is no name of a folder"),
        ({}, "of this version"),
    ],
)
def test_what_was_put_together_otherwise_is_one_line(
    tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    forged(tmp_path / "x.tasks", files)
    with pytest.raises(ConfigError, match=says) as error:
        read_pack(tmp_path / "x.tasks")
    assert "\n" not in str(error.value)


def test_what_is_no_pack_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_pack(tmp_path / "none.tasks")
    (tmp_path / "x.tasks").write_bytes(b"PK and so on")
    with pytest.raises(ConfigError, match="is no pack of tasks"):
        read_pack(tmp_path / "x.tasks")
    with pytest.raises(ConfigError, match=r"a pack is called NAME\.tasks"):
        write_pack(tmp_path / "x.zip", manifest(FOLDERS), FOLDERS)
    with pytest.raises(ConfigError, match="is there already, with other content"):
        write_pack(tmp_path / "x.tasks", manifest(FOLDERS), FOLDERS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link").symlink_to("/etc/passwd")
    (tmp_path / "empty/folder").mkdir(parents=True)
    for name in ("folder", "empty"):
        with pytest.raises(ConfigError, match="is no plain file or empty"):
            read_folder(tmp_path / name)
    (tmp_path / "odd").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd/\xff.txt")).touch()
    with pytest.raises(ConfigError, match="is not in UTF-8"):
        read_folder(tmp_path / "odd")
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(ConfigError, match="as a report"):
        report_of(tmp_path / "report.json")


def test_a_folder_that_was_changed_after_it_was_unpacked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "one.tasks")
    place = read_pack(tmp_path / "one.tasks").unpacked()
    assert read_folder(place / "b") == FOLDERS["b"]
    assert read_pack(tmp_path / "one.tasks").unpacked() == place
    (place / "b/tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    with pytest.raises(ConfigError, match="was changed since it was unpacked; remove it"):
        read_pack(tmp_path / "one.tasks").unpacked()
