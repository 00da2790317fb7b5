import shutil
import subprocess

import pytest

from turngym.environments.swe.patches import (
    MAX_FILE_BYTES,
    apply_diff,
    collect_patch,
    diff_text,
    named_files,
)
from turngym.environments.swe.project import Layout
from turngym.errors import ConfigError

LAYOUT = Layout(roots=("src",), packages=("src/shop",), tests=("tests",))
BASE = {
    "src/shop/a.py": b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n",
    "src/shop/b.py": b"x = 1\n",
    "tests/test_a.py": b"def test(): pass\n",
}
CHANGED = {
    "src/shop/a.py": b"one\nTWO\nthree\nfour\nfive\nsix\nseven\n8",
    "src/shop/b.py": None,
    "src/shop/c.py": b"new\n",
}


def test_a_diff_can_be_applied_again():
    assert apply_diff(diff_text(CHANGED, BASE), BASE) == CHANGED


OF_GIT = """diff --git a/src/__init__.py b/src/__init__.py
new file mode 100644
index 0000000..e69de29
diff --git a/empty.py b/empty.py
deleted file mode 100644
diff --git a/old.py b/src/new.py
similarity index 100%
rename from old.py
rename to src/new.py
diff --git a/src/shop/b.py b/copy.py
copy from src/shop/b.py
copy to copy.py
--- a/src/shop/b.py
+++ b/copy.py
@@ -1,3 +1,3 @@
--- of sql
+x\x0cy\u2028z
 x = 1
-\x1c
"""


def test_empty_and_moved_files_and_odd_characters_of_a_git_diff_are_applied():
    base = {"empty.py": b"", "old.py": b"a\x0c\n", "src/shop/b.py": b"-- of sql\nx = 1\n\x1c\n"}
    assert set(named_files(OF_GIT)) == {"old.py", "src/shop/b.py"}
    changed = apply_diff(OF_GIT, base)
    assert changed == {
        "src/__init__.py": b"",
        "empty.py": None,
        "old.py": None,
        "src/new.py": b"a\x0c\n",
        "copy.py": "x\x0cy\u2028z\nx = 1\n".encode(),
    }
    assert apply_diff(diff_text(changed, base), base) == changed


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
def test_other_programs_read_the_diff(tmp_path):
    for path, data in BASE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    subprocess.run(
        ["patch", "-p1", "-s"], input=diff_text(CHANGED, BASE).encode(), cwd=tmp_path, check=True
    )
    assert (tmp_path / "src/shop/a.py").read_bytes() == CHANGED["src/shop/a.py"]
    assert (tmp_path / "src/shop/c.py").read_bytes() == b"new\n"
    assert not (tmp_path / "src/shop/b.py").exists()


@pytest.mark.parametrize(
    ("diff", "reason"),
    [
        ("", "changes nothing"),
        ("GIT binary patch\nliteral 3\n", "binary"),
        ("--- a/src/shop/a.py\nnothing\n", r"wanted '\+\+\+"),
        ("--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n", "not in the project"),
        ("--- a/src/shop/b.py\n+++ b/src/shop/b.py\n@@ -1 +1 @@\n-y\n+z\n", "does not apply"),
        ("--- a/src/shop/b.py\n+++ b/src/shop/b.py\n@@ -9 +9 @@\n-y\n+z\n", "no such lines"),
        ("--- a/src/shop/b.py\n+++ b/src/shop/b.py\n@@ what @@\n-y\n", "malformed"),
        ("rename from ../a\nrename to b\n", "outside"),
        ("rename from a\nrename to b\n", "not in the project"),
        ("rename to b\n", "'rename to b' without the line"),
        ("new file mode 100644\n", "'new file mode 100644' without the line"),
        ("--- /dev/null\n+++ b/../out.py\n@@ -0,0 +1 @@\n+x\n", "outside"),
    ],
)
def test_a_patch_that_cannot_be_applied_is_told_why(diff, reason):
    with pytest.raises(ConfigError, match=reason):
        apply_diff(diff, BASE)


SERIES = """From 1 Mon Sep 17 00:00:00 2001
Subject: [PATCH 1/2] First

---
 src/shop/a.py | 2 +-

diff --git a/src/shop/a.py b/src/shop/a.py
--- a/src/shop/a.py
+++ b/src/shop/a.py
@@ -1,2 +1,2 @@
-one
+ONE
 two
diff --git a/src/shop/q.sql b/src/shop/q.sql
new file mode 100644
--- /dev/null
+++ b/src/shop/q.sql
@@ -0,0 +1 @@
+-- note
-- 
2.39.2

From 2 Mon Sep 17 00:00:00 2001
Subject: [PATCH 2/2] Second

diff --git a/src/shop/a.py b/src/shop/d.py
rename from src/shop/a.py
rename to src/shop/d.py
--- a/src/shop/a.py
+++ b/src/shop/d.py
@@ -7,2 +7,2 @@
 seven
-eight
+8
diff --git a/src/shop/q.sql b/src/shop/q.sql
--- a/src/shop/q.sql
+++ b/src/shop/q.sql
@@ -1 +1 @@
--- note
+++ note
-- 
2.39.2
"""


def test_a_series_of_patches_that_was_sent_by_mail_is_applied_one_after_the_other():
    assert apply_diff(SERIES, BASE) == {
        "src/shop/a.py": None,
        "src/shop/d.py": b"ONE\ntwo\nthree\nfour\nfive\nsix\nseven\n8\n",
        "src/shop/q.sql": b"++ note\n",
    }


def test_tests_configuration_binaries_and_giants_are_left_out_by_name():
    patch = collect_patch(
        {
            "src/shop/b.py": b"x = 2\n",
            "tests/test_a.py": b"",
            "conftest.py": b"import os\n",
            "src/sitecustomize.py": b"",
            "src/shop/fast.so": b"\x7fELF",
            "src/shop/data.bin": b"a\0b",
            "src/shop/big.txt": b"\0too large\0",
            "src/shop/long.txt": b"x" * (MAX_FILE_BYTES + 1),
            "src/shop/a.py": BASE["src/shop/a.py"],
        },
        BASE,
        LAYOUT,
    )
    assert dict(patch.files) == {"src/shop/b.py": b"x = 2\n"}
    told = "\n".join(patch.left_out)
    for path in (
        "tests/test_a.py",
        "conftest.py",
        "sitecustomize",
        "fast.so",
        "data.bin",
        "big.txt",
    ):
        assert path in told
    assert "a binary file" in told
    assert "larger than" in told


def test_what_git_or_a_virtual_environment_leaves_behind_costs_no_code_its_place():
    left = {f".env/{n}.py": b"x" * MAX_FILE_BYTES for n in range(9)}
    changed = {".git/objects/ab/cd": b"x", ".git/index": b"\0", "src/shop/b.py": b"x = 2\n", **left}
    patch = collect_patch(changed, BASE, LAYOUT)
    assert patch.files["src/shop/b.py"] == b"x = 2\n"
    assert not any(".git/" in one for one in (*patch.files, *patch.left_out))
    assert len(patch.left_out) == 2


def test_a_folder_that_is_gone_or_replaced_takes_its_files_along():
    changed = {"src/shop": None, "src/shop/a.py": b"kept\n", "tests": b"a file\n"}
    patch = collect_patch(changed, BASE, LAYOUT)
    assert patch.files == {"src/shop/a.py": b"kept\n", "src/shop/b.py": None}
    assert "tests/test_a.py" in str(patch.left_out)


def test_text_that_is_no_utf8_travels_as_it_is():
    base = {"src/shop/a.py": "# caf\u00e9\nx = 1\n".encode("latin-1")}
    changed = {"src/shop/a.py": "# caf\u00e9\nx = 2\n".encode("latin-1")}
    assert dict(collect_patch(changed, base, LAYOUT).files) == changed
    assert apply_diff(diff_text(changed, base), base) == changed


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("options", [["-U0"], ["-U3"], ["-M"], ["--no-renames"]])
def test_what_git_says_of_any_change_of_files_with_any_name_is_applied(tmp_path, options):
    names = ["b/b.py", "a/b.py", "naïve/ü.py", 'quo"te\\n.py', "two words.py", "😀.py"]
    before = dict.fromkeys(names, b"one\ntwo\nthree\n") | {
        "empty é.py": b"",
        "old é.py": b"1\n2\n",
    }
    after = dict.fromkeys(names, b"one\ntwo\nadded\nthree\n") | {"new/é.py": b"1\n2\n3\n"}
    after["b/ü.py"] = b""

    def git(*arguments):
        command = ["git", "-c", "core.quotepath=true", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout

    git("init", "-q")
    trees = []
    for files in (before, after):
        for path in before:
            (tmp_path / path).unlink(missing_ok=True)
        for path, data in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(data)
        git("add", "-A")
        trees.append(git("write-tree").decode().strip())
    diff = git("diff", *options, *trees).decode()
    base = {path: before[path] for path in named_files(diff) if path in before}
    changed = apply_diff(diff, base)
    found = {path: data for path, data in {**before, **changed}.items() if data is not None}
    assert found == after
