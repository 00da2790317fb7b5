import tarfile
import threading
from types import SimpleNamespace

import pytest

from turngym.environments.swe import packages
from turngym.environments.swe.project import Project, find_layout
from turngym.environments.swe.tasksets import sample_project
from turngym.environments.swe.test_runner import project_runner
from turngym.errors import ConfigError


def write(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


PLAIN = {"shop/__init__.py": "x = 1\n", "tests/test_shop.py": "def test(): pass\n", "setup.py": ""}


def test_a_layout_is_found_in_many_places():
    assert find_layout(PLAIN).packages == ("shop",)
    src = find_layout(["src/shop/__init__.py", "src/shop/a.py", "tests/test_a.py"])
    assert (src.roots, src.packages, src.tests) == (("src",), ("src/shop",), ("tests",))
    single = find_layout(["shop.py", "test_shop.py", "setup.py"])
    assert (single.packages, single.tests) == (("shop.py",), ("test_shop.py",))
    inside = find_layout(["shop/__init__.py", "shop/tests/test_a.py", "shop/tests/__init__.py"])
    assert inside.tests == ("shop/tests",)
    assert inside.is_code("shop/__init__.py")
    assert not inside.is_code("shop/tests/test_a.py")


def test_tests_may_be_named_by_their_end():
    files = {"shop/__init__.py": "x = 1\n", "tests/shop_test.py": "def test(): pass\n"}
    assert find_layout(files).tests == ("tests",)


def test_a_project_without_tests_or_without_code_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no tests found"):
        Project.read(write(tmp_path / "a", {"shop/__init__.py": ""}))
    with pytest.raises(ConfigError, match="no Python package"):
        Project.read(write(tmp_path / "b", {"tests/test_a.py": "", "docs/conf.py": ""}))
    with pytest.raises(ConfigError, match="no such folder"):
        Project.read(tmp_path / "none")


def test_a_source_distribution_is_read_like_its_folder(tmp_path):
    folder = write(tmp_path / "shop-2.0", {**PLAIN, "PKG-INFO": "Name: Shop\nVersion: 2.0\n\n"})
    archive = tmp_path / "shop-2.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "shop-2.0")
    one, other = Project.read(archive), Project.read(folder)
    assert one.digest == other.digest
    assert (one.name, one.version, one.key) == ("shop", "2.0", "shop-2.0")


def test_an_archive_shows_nothing_of_this_machine_by_links(tmp_path):
    outside = write(tmp_path / "outside", {**PLAIN, "shop/secret.py": "key = 1\n"})
    folder = write(tmp_path / "shop-2.0", PLAIN)
    (folder / "shop" / "linked.py").symlink_to(outside / "shop" / "secret.py")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(folder, "shop-2.0")
    assert "shop/linked.py" not in Project.read(tmp_path / "a.tar.gz").files
    (tmp_path / "top").symlink_to(outside)
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "top", "shop-2.0")
    with pytest.raises(ConfigError, match="wanted one folder"):
        Project.read(tmp_path / "b.tar.gz")


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        Project.read(tmp_path / "x.tar.gz")


def test_sources_that_are_no_utf8_are_named_and_make_no_tasks(tmp_path):
    latin = "# caf\u00e9\n".encode("latin-1")
    project = Project.read(write(tmp_path, {**PLAIN, "shop/old.py": latin}))
    assert project.unreadable() == ["shop/old.py"]
    assert list(project.sources()) == ["shop/__init__.py"]


@pytest.mark.parametrize(
    "path",
    ["tests/test_shop.py", "conftest.py", "shop/conftest.py", "pytest.ini", "setup.cfg", "x.pth",
     "sitecustomize.py", "shop/__pycache__/a.pyc", "shop/a.so"],
)  # fmt: skip
def test_what_the_judge_takes_from_the_original(path):
    assert find_layout(PLAIN).is_protected(path)
    assert not find_layout(PLAIN).is_protected("shop/new.py")


def test_the_sample_needs_nothing():
    project = sample_project()
    assert project.layout.packages == ("src/tally",)
    assert len(project.sources()) >= 9


async def test_what_tests_import_is_put_together_beside_the_event_loop(tmp_path, monkeypatch):
    threads = []

    def made(target, fill):
        threads.append(threading.get_ident())
        return target

    async def layer(name, write):
        return name

    monkeypatch.setattr(packages, "made_once", made)
    project = Project.read(write(tmp_path, PLAIN))
    await project_runner(SimpleNamespace(layer=layer), project)
    assert threads
    assert threading.get_ident() not in threads


def test_a_package_called_build_is_code_and_what_was_built_is_not(tmp_path):
    code = {"src/build/__init__.py": "", "build/lib/shop/__init__.py": "", "tests/test_a.py": ""}
    project = Project.read(write(tmp_path / "build-1", code))
    assert project.layout.packages == ("src/build",)
    assert set(project.files) == {"src/build/__init__.py", "tests/test_a.py"}


def test_a_package_inside_of_a_namespace_is_code():
    files = ["src/ns/a/__init__.py", "src/ns/a/b/__init__.py", "src/ns/a/tests/test_a.py"]
    assert find_layout([*files, "docs/ns/__init__.py"]).packages == ("src/ns/a",)
    assert find_layout(["ns/a/__init__.py", "tests/test_a.py"]).packages == ("ns/a",)
