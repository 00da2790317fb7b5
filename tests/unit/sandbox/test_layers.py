"""What lies on top hides what lies below, also after copies and merges."""

import os
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
    layers.copy_upper(made, str(tmp_path / "two"))
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
