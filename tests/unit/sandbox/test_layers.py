"""What lies on top hides what lies below, also after copies and merges."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from turngym.sandbox.launcher import layers

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root makes whiteouts outside a namespace"
)


def layer(root: Path, files: dict[str, str | None], opaque: tuple[str, ...] = ()) -> str:
    """Make an upper folder; None stands for a deletion."""
    for name, text in files.items():
        path = root / "workspace" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            os.mknod(path, 0o020000, 0)
        else:
            path.write_text(text)
    for name in opaque:
        os.setxattr(root / "workspace" / name, "trusted.overlay.opaque", b"y")
    return str(root)


def test_a_merge_is_what_the_stack_amounts_to(tmp_path: Path) -> None:
    low = layer(tmp_path / "low", {"a": "1", "b": "1", "d/x": "1", "e/y": "1", "f": "1"})
    high = layer(
        tmp_path / "high", {"a": "2", "b": None, "d/z": "2", "f/inner": "2", "never": None}, ("d",)
    )
    layers.merge([high, low], str(tmp_path / "merged"))
    merged = tmp_path / "merged" / "workspace"
    assert (merged / "a").read_text() == "2"
    assert layers.is_whiteout((merged / "b").lstat()), "the base may hold it, too"
    assert layers.is_whiteout((merged / "never").lstat())
    assert sorted(p.name for p in (merged / "d").iterdir()) == ["z"]
    assert layers.is_opaque(str(merged / "d"))
    assert (merged / "e" / "y").read_text() == "1"
    assert (merged / "f" / "inner").read_text() == "2"


def test_a_copy_has_the_same_digest_and_any_change_another(tmp_path: Path) -> None:
    made = layer(tmp_path / "one", {"a": "1", "gone": None, "d/b": "2"}, ("d",))
    layers.merge([made], str(tmp_path / "two"))
    first = layers.digest(made, "")
    assert layers.digest(str(tmp_path / "two"), "") == first
    assert layers.digest(made, "below") != first
    seen = {first}
    for change in ("echo x >> a", "chmod 600 a", "rm gone", "mv d e", "ln -s a l"):
        assert os.system(f"cd {tmp_path}/two/workspace && {change}") == 0
        seen.add(layers.digest(str(tmp_path / "two"), ""))
    assert len(seen) == 6


def test_changes_are_files_and_deletions(tmp_path: Path) -> None:
    made = layer(tmp_path / "one", {"a": "1", "gone": None, "d/b": "2", "n/c": "3"}, ("d",))
    assert layers.changes(made, 100) == [
        ("a", "written"),
        ("d", "written"),
        ("d/b", "written"),
        ("gone", "deleted"),
        ("n/c", "written"),
    ]


def test_an_attribute_that_a_command_can_set_hides_nothing(tmp_path: Path) -> None:
    made = layer(tmp_path / "one", {"d/b": "2"})
    os.setxattr(tmp_path / "one/workspace/d", "user.overlay.opaque", b"y")
    assert layers.changes(made, 100) == [("d/b", "written")]
    assert layers.changes(made, 100, layers.USER) == [("d", "written"), ("d/b", "written")]


def sparse(path: Path, size: int, *parts: tuple[int, bytes]) -> None:
    """Make a file of ``size`` bytes that holds ``parts`` only."""
    with path.open("wb") as file:
        file.truncate(size)
        for at, data in parts:
            os.pwrite(file.fileno(), data, at)


def test_a_file_of_exabytes_is_read_and_copied_for_what_it_holds(shared_memory: Path) -> None:
    size = 7 << 60
    made = layer(shared_memory / "one", {"a": "1"})
    inside = shared_memory / "one" / "workspace"
    sparse(inside / "huge", size, (0, b"start"), (1 << 40, b"middle"), (size - 3, b"end"))
    layers.merge([made], str(shared_memory / "two"))
    copy = shared_memory / "two" / "workspace" / "huge"
    assert copy.stat().st_size == size
    assert copy.stat().st_blocks == (inside / "huge").stat().st_blocks <= 64
    with copy.open("rb") as file:
        for at, data in ((0, b"start"), (1 << 40, b"middle"), (size - 3, b"end")):
            assert os.pread(file.fileno(), len(data), at) == data
    assert layers.digest(made, "") == layers.digest(str(shared_memory / "two"), "")


def test_reading_all_of_a_file_of_exabytes_does_not_end(shared_memory: Path) -> None:
    """The control: what reads a file from its start to its end is still at it afterwards."""
    made = layer(shared_memory / "one", {"a": "1"})
    sparse(shared_memory / "one" / "workspace" / "huge", 7 << 60)
    code = "import hashlib, sys; hashlib.file_digest(open(sys.argv[1], 'rb'), 'sha256')"
    argv = [sys.executable, "-c", code, str(shared_memory / "one" / "workspace" / "huge")]
    with subprocess.Popen(argv) as naive:
        layers.digest(made, "")
        assert naive.poll() is None
        naive.kill()


def test_a_hole_and_as_many_zeros_have_one_digest_and_a_shift_another(shared_memory: Path) -> None:
    block, digests = b"x" * 4096, []
    for number, parts in enumerate(
        (
            [(0, block), (8192, block)],
            [(0, block + bytes(4096) + block)],
            [(0, block), (12288, block)],
            [(0, block + block)],
            [(0, block), (8192, b"y" * 4096)],
        )
    ):
        made = layer(shared_memory / str(number), {"a": "1"})
        sparse(Path(made, "workspace", "f"), 65536, *parts)
        digests.append(layers.digest(made, ""))
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """Give a folder on a file system in memory, as stores are."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="turngym-layers-"))
    yield folder
    shutil.rmtree(folder)


def test_folders_deeper_than_any_path_are_copied_counted_and_told(tmp_path: Path) -> None:
    made = layer(tmp_path / "one", {"top/a": "1"})
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path / "one" / "workspace" / "top")
        for _ in range(60):
            Path("d" * 100).mkdir()
            os.chdir("d" * 100)
        Path("bottom").write_text("1")
    finally:
        os.fchdir(here)
        os.close(here)
    layers.merge([made], str(tmp_path / "two"))
    first = layers.digest(made, "")
    assert layers.digest(str(tmp_path / "two"), "") == first
    [(told, kind), other] = sorted(layers.changes(made, 100), reverse=True)
    assert (other, kind) == (("top/a", "written"), "written")
    assert told.startswith("top/ddd")
    assert len(told) > layers.MAX_CHANGE_PATH
    layers.merge([str(tmp_path / "two"), made], str(tmp_path / "three"))
    assert layers.digest(str(tmp_path / "three"), "") == first
    hidden = layer(tmp_path / "four", {"top": "a file now"})
    layers.merge([hidden, made], str(tmp_path / "five"))
    assert (tmp_path / "five" / "workspace" / "top").read_text() == "a file now"
    for name in ("one", "two", "three"):  # Python's own rmtree would not get that deep
        subprocess.run(["rm", "-rf", tmp_path / name], check=True)


def test_more_changes_than_allowed_are_an_error_and_not_cut(tmp_path: Path) -> None:
    made = layer(tmp_path / "one", {f"{folder}/{n}": "" for folder in "abc" for n in range(9)})
    assert len(layers.changes(made, 27)) == 27
    with pytest.raises(layers.TooManyChanges):
        layers.changes(made, 26)


def test_an_import_drops_what_is_no_file_and_what_gives_rights(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "tool").write_text("x")
    (source / "tool").chmod(0o6755)
    (source / "closed").mkdir(mode=0o000)
    os.mkfifo(source / "fifo")
    (source / "link").symlink_to("/etc/shadow")
    layers.import_folder(source, tmp_path / "layer", 4242)
    copy = tmp_path / "layer" / "workspace"
    assert sorted(path.name for path in copy.iterdir()) == ["closed", "link", "tool"]
    assert (copy / "tool").stat().st_mode & 0o7777 == 0o755
    assert {os.lstat(path).st_uid for path in copy.iterdir()} == {4242}
    assert os.lstat("/etc/shadow").st_uid == 0, "a link is handed over, not what it leads to"
