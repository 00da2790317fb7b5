"""Files inside a desktop are read without following what was put there."""

from __future__ import annotations

import os

from turngym.environments.desktop.files import MTIME_S, read_file, read_tree, write_files


def test_a_tree_is_written_and_read_back(tmp_path):
    (tmp_path / "home/agent").mkdir(parents=True)
    files = {"a.txt": b"a", "docs/b.txt": b"b", "docs": None, "empty": None}
    write_files(tmp_path, "/home/agent", files)
    assert read_tree(tmp_path, "/home/agent") == files
    assert read_file(tmp_path, "/home/agent", "docs/b.txt") == b"b"
    assert (tmp_path / "home/agent/docs").stat().st_mtime == MTIME_S


def test_links_pipes_and_paths_outside_are_not_read(tmp_path):
    home = tmp_path / "home/agent"
    home.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (home / "link").symlink_to(tmp_path / "secret")
    (home / "folder").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")
    assert read_tree(tmp_path, "/home/agent") == {"folder": None, "link": None, "pipe": None}
    for path in ("link", "folder/secret", "../../secret", "pipe", "none"):
        assert read_file(tmp_path, "/home/agent", path) is None


def test_hidden_files_are_no_part_of_the_tree(tmp_path):
    (tmp_path / "home").mkdir()
    write_files(tmp_path, "/home", {".config/x": b"1", "y": b"2"})
    assert read_tree(tmp_path, "/home") == {"y": b"2"}
    assert read_file(tmp_path, "/home", ".config/x") == b"1"
