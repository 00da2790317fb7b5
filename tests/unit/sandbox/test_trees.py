"""What a tar may put into a folder, on every Python that is supported."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from turngym.sandbox.trees import unpack

Entry = tuple[str, bytes, str]
"""Name, kind as ``tarfile`` has it, and where a link leads."""


@pytest.fixture(params=["this Python", "3.11.2"], autouse=True)
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the Python of Debian 12 does not have."""
    if request.param == "3.11.2":
        whole = tarfile.TarFile.extractall
        monkeypatch.setattr(
            tarfile.TarFile, "extractall", lambda tar, path, members: whole(tar, path, members)
        )


def pack(place: Path, *entries: Entry) -> Path:
    with tarfile.open(place, "w") as tar:
        for name, kind, link in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, 0o4777
            info.size = 2 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"hi"))
    return place


def test_files_folders_and_links_are_unpacked_and_devices_are_not(tmp_path):
    archive = pack(
        tmp_path / "a.tar",
        ("/top", tarfile.DIRTYPE, ""),
        ("top/one", tarfile.REGTYPE, ""),
        ("top/same", tarfile.LNKTYPE, "top/one"),
        ("top/soft", tarfile.SYMTYPE, "/anywhere"),
        ("top/pipe", tarfile.FIFOTYPE, ""),
    )
    (root := tmp_path / "root").mkdir()
    unpack(archive, root)
    assert sorted(one.name for one in (root / "top").iterdir()) == ["one", "same", "soft"]
    assert (root / "top/same").read_text() == "hi"
    assert (root / "top/one").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "entries",
    [
        [("../out", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, ".."), ("link/out", tarfile.REGTYPE, "")],
        [("out", tarfile.LNKTYPE, "../secret")],
        [("link", tarfile.SYMTYPE, "../secret"), ("link", tarfile.REGTYPE, "")],
    ],
)
def test_what_leads_out_of_the_folder_is_refused(tmp_path, entries):
    (tmp_path / "secret").write_text("kept")
    (root := tmp_path / "root").mkdir()
    with pytest.raises(tarfile.TarError, match="leads out of the folder"):
        unpack(pack(tmp_path / "a.tar", *entries), root)
    assert (tmp_path / "secret").read_text() == "kept"
    assert not (tmp_path / "out").exists()
