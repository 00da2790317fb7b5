import gzip
import io
import os
import subprocess
import tarfile
import zipfile

import pytest

from turngym.environments.workspace.base import stable_content


def tar_of(text, mtime, kind=tarfile.GNU_FORMAT):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=kind) as archive:
        for name in ("one.txt", "two.txt"):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(text), mtime
            archive.addfile(member, io.BytesIO(text))
    return made.getvalue()


def zip_of(text, year):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(zipfile.ZipInfo("one.txt", (year, 1, 1, 0, 0, 0)), text)
    return made.getvalue()


PACKED = {
    "gzip": lambda text, when: gzip.compress(text, mtime=when),
    "tar": tar_of,
    "tar with more headers": lambda text, when: tar_of(text, when + 0.25, tarfile.PAX_FORMAT),
    "tar.gz": lambda text, when: gzip.compress(tar_of(text, when), mtime=when),
    "zip": lambda text, when: zip_of(text, 1990 + when),
}


@pytest.mark.parametrize("kind", PACKED)
def test_an_archive_is_what_it_holds_whenever_it_was_made(kind):
    early, late, other = (PACKED[kind](*made) for made in ((b"a", 1), (b"a", 9), (b"b", 1)))
    assert early != late
    assert stable_content("x", early) == stable_content("x", late)
    assert stable_content("x", early) != stable_content("x", other)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b broken", b"PK\x03\x04 broken", b"x" * 257 + b"ustar" + b"9" * 300, b"text"],
)
def test_what_only_looks_like_an_archive_counts_as_it_is(data):
    assert stable_content("x", data) == data


@pytest.mark.extra("git")
def test_an_index_of_git_is_its_entries_without_times(tmp_path):
    def git(*words):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    def index():
        data = (tmp_path / ".git" / "index").read_bytes()
        return data, stable_content("folder/.git/index", data)

    git("init", "-q")
    for name in ("a.txt", "b.txt", "a name with blanks and ü.txt"):
        (tmp_path / name).write_text("old\n")
    git("add", ".")
    raw, before = index()
    assert before.count(b"\n") >= 2
    os.utime(tmp_path / "a.txt", (10**9, 10**9))
    git("update-index", "--refresh")
    later, after = index()
    assert raw != later
    assert before == after

    (tmp_path / "c.txt").write_text("new\n")
    git("add", "-N", "c.txt")  # version 3
    meant = index()[1]
    assert meant not in (before, None)
    git("add", "c.txt")
    assert index()[1] != meant
    assert stable_content(".git/index", raw[:40]) == raw[:40]  # cut short


def test_objects_and_compiled_files_do_not_count():
    assert stable_content(".git/objects/ab/cdef", b"x") is None
    assert stable_content("a/__pycache__/b.cpython-311.pyc", b"x") is None
    assert stable_content(".git/HEAD", b"ref: refs/heads/main\n") is not None
