"""What the guest lists of a folder that changes at the same time."""

import os
import subprocess
from pathlib import Path

import pytest

from turngym.sandbox.guest import files


def listed(root: Path, most: int = 1000) -> list[tuple[bytes, bytes]]:
    """Return kind and name of all that is listed."""
    fields = [field for page in files.walk(os.fsencode(root), most, 9) for field in page]
    return sorted(zip(fields[::5], fields[1::5], strict=True))


@pytest.mark.parametrize("call", ["readlink", "lstat"])
def test_what_vanishes_while_it_is_listed_only_leaves_itself_out(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    real = getattr(os, call)

    def vanishing(path: bytes) -> object:
        if os.fsdecode(path).endswith("link"):
            (tmp_path / "link").unlink()
        return real(path)

    monkeypatch.setattr(files.os, call, vanishing)  # type: ignore[attr-defined]  # not exported
    assert listed(tmp_path) == [(b"file", b"file"), (b"gone", b"link")]


def test_pages_are_small_and_hold_everything(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / ("n" * 200 + str(number))).touch()
    (tmp_path / "link").symlink_to("t" * 3000)
    whole = listed(tmp_path)
    assert len(whole) == 41
    files_page, files.PAGE_BYTES = files.PAGE_BYTES, 2000
    try:
        pages = list(files.walk(os.fsencode(tmp_path), 1000, 9))
        assert len(pages) > 4
        assert listed(tmp_path) == whole
        assert max(sum(map(len, page)) for page in pages) < 6000
    finally:
        files.PAGE_BYTES = files_page
    assert len(listed(tmp_path, most=10)) == 11, "one more says that there are more"


def test_a_file_may_lie_deeper_than_python_calls_itself(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/d" * 1_500 + b"/file"
    try:
        for data in (b"1", b"2"):
            files.put(path, 0, 0o600, data)
            assert files.get(path, 0, 9, True)[2] == data
        with pytest.raises(FileExistsError):
            files.put(path + b"/below", 0, 0o600, b"")
    finally:  # shutil.rmtree calls itself, too
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)
