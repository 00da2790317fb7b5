"""What is published works: the wheel built from the sdist, installed where nothing else is.

The folder of packages holds what the wheel's own metadata asks for, as links to what the tests run
with, so that nothing is fetched and a requirement that is not declared is missing. With
TURNGYM_WHEEL=full pip installs the requirements themselves.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("TURNGYM_WHEEL") == "full"
FEW = [
    "model.hidden=16",
    "model.layers=1",
    "model.heads=1",
    "warm_start.episodes=8",
    "warm_start.max_steps=3",
    "rollout.groups_per_step=2",
    "rollout.group_size=4",
    "evaluation.validation_tasks=1",
    "evaluation.held_out_tasks=1",
    "run.steps=1",
]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Place:
    """An environment of Python that holds the wheel, and an empty folder to work in."""

    sdist: Path
    wheel: Path
    venv: Path
    work: Path

    def turngym(self, *arguments: str) -> str:
        """Run the installed program in the empty folder and return what it printed."""
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        variables = {key: value for key, value in os.environ.items() if key not in hidden}
        return run([str(self.venv / "bin" / "turngym"), *arguments], self.work, variables)

    def install(self, *extras: str) -> None:
        """Bring in what the wheel asks for, with ``extras``."""
        if FULL:
            wanted = f"{self.wheel}[{','.join(extras)}]" if extras else str(self.wheel)
            pip(self.venv, "-c", str(ROOT / "constraints.txt"), wanted)
            return
        target = next(self.venv.glob("lib/python*/site-packages"))
        for name in requirements(self.wheel, extras):
            link(name, target)


def run(command: list[str], cwd: Path, variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=variables, text=True, capture_output=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(venv: Path, *arguments: str) -> None:
    python = str(venv / "bin" / "python")
    run([sys.executable, "-m", "pip", "--python", python, "install", "-qq", *arguments], ROOT)


def requirements(wheel: Path, extras: tuple[str, ...]) -> set[str]:
    """Return every distribution that the wheel asks for, and that those ask for."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if re.fullmatch(r"turngym-[^/]*/METADATA", n))
        text = archive.read(metadata).decode()
    asked = re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)
    todo = [(Requirement(line), extras) for line in asked]
    found: set[str] = set()
    while todo:
        wanted, given = todo.pop()
        marker = wanted.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *given)):
            continue
        try:
            lines = distribution(wanted.name).requires or []
        except PackageNotFoundError:
            continue  # of another platform, or a part of CUDA; an import says so if it is neither
        if wanted.name not in found or wanted.extras:
            found.add(wanted.name)
            todo += [(Requirement(line), tuple(wanted.extras)) for line in lines]
    return found


def link(name: str, target: Path) -> None:
    """Make what distribution ``name`` installed importable from ``target``."""
    found = distribution(name)
    tops = {
        file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")
    }
    for top in tops:
        place = target / top
        if not place.exists():
            place.symlink_to(Path(str(found.locate_file(top))))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Build the sdist, unpack it, build the wheel of that, install it alone."""
    folder = tmp_path_factory.mktemp("published")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t"]
    run([*build, "sdist"], ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    run([*build, "wheel"], source)
    (wheel,) = folder.glob("*.whl")
    venv, work = folder / "venv", folder / "work"
    run([sys.executable, "-m", "venv", "--without-pip", str(venv)], folder)
    work.mkdir()
    pip(venv, "--no-deps", "--no-index", str(wheel))
    made = Place(sdist, wheel, venv, work)
    made.install()
    return made


def test_the_sdist_holds_what_git_holds(place: Place) -> None:
    with tarfile.open(place.sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "CONTRIBUTING.md", "mkdocs.yml", "scripts/bootstrap.py"} <= files
    assert {
        "benchmarks/credit/learning.py",
        "constraints.txt",
        ".ci/run",
        "tests/conftest.py",
    } <= files
    if (ROOT / ".git").exists():
        held = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True
        ).stdout.splitlines()
        assert {name for name in held if (ROOT / name).exists()} <= files


def test_the_wheel_holds_every_file_of_the_package(place: Place) -> None:
    with zipfile.ZipFile(place.wheel) as archive:
        inside = set(archive.namelist())
    source = ROOT / "src"
    wanted = {
        str(file.relative_to(source))
        for file in source.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert wanted <= inside
    assert sum(name.startswith("turngym/trainers/presets/") for name in wanted) >= 60


def test_without_extras_it_plays_and_shows_and_says_what_training_needs(place: Place) -> None:
    found = {
        check["name"]: check for check in json.loads(place.turngym("doctor", "--json"))["checks"]
    }
    assert found["core"]["status"] == "ok"
    assert found["train"]["fix"] == "pip install 'turngym[train]'"
    place.turngym("eval", "text/maze", "--agent", "expert", "--episodes", "3", "--out", "played")
    place.turngym("view", "played", "--html", "played.html")
    assert (place.work / "played.html").stat().st_size > 10_000


def test_with_the_extra_it_trains_by_name_and_the_model_is_evaluated_and_shown(
    place: Place,
) -> None:
    place.install("train")
    result = json.loads(place.turngym("train", "demo", *FEW, "--json"))
    assert result["updates"] == 1
    agent = "run:runs/demo"
    told = place.turngym("eval", "text/maze", "--agent", agent, "--episodes", "2", "--json")
    assert json.loads(told)["text/maze"]["episodes"] == 2
    place.turngym("view", "runs/demo", "--html", "run.html")
    assert (place.work / "run.html").stat().st_size > 10_000
    guess = place.turngym("config", "show", "configs/demo.toml", "algo=igpo", "env=text/guesscity")
    assert 'name = "igpo"' in guess
