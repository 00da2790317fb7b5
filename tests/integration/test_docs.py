"""What the documentation shows is run."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import turngym
from helpers import warm
from helpers.cli import turngym as program
from turngym.environments.checks.check import check_fork, check_turn_env

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def new_game(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Import the game of docs/new_game.md from a file of its own."""
    path = tmp_path_factory.mktemp("mine") / "bulls_and_cows.py"
    path.write_text(blocks("docs/new_game.md")[0], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("bulls_and_cows", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bulls_and_cows"] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def test_new_game_fits_in_forty_lines() -> None:
    assert len(blocks("docs/new_game.md")[0].splitlines()) <= 40


def test_new_game_passes_the_shipped_checks(new_game: ModuleType) -> None:
    check_turn_env("mine/BullsAndCows-v0").raise_on_failure()
    check_fork("mine/BullsAndCows-v0").raise_on_failure()


def test_new_game_is_won_by_its_expert_and_not_by_chance(new_game: ModuleType) -> None:
    import asyncio

    from turngym.agents.scripted import ExpertPolicy, RandomPolicy
    from turngym.rollouts.evaluation.evaluate import evaluate
    from turngym.rollouts.evaluation.statistics import summarize

    tasks = [turngym.make("mine/bullsandcows").unwrapped.task("test", i) for i in range(100)]
    solved = {}
    for policy in (ExpertPolicy(), RandomPolicy()):
        played = asyncio.run(
            evaluate(
                lambda: turngym.make("mine/bullsandcows"),
                policy,
                tasks,
                env_id="mine/bullsandcows",
                seed=0,
            )
        )
        solved[type(policy).__name__] = summarize(played).solved
    assert solved["ExpertPolicy"] == 100
    assert solved["RandomPolicy"] < 20


COMMANDS = re.findall(
    r"^turngym (.*?)(?: +#.*)?$", (ROOT / "docs/new_game.md").read_text(), re.MULTILINE
)
FEW = [
    "model.hidden=16 model.layers=1 model.heads=1 warm_start.episodes=8 warm_start.max_steps=3",
    "rollout.groups_per_step=2 rollout.group_size=2 run.steps=1 run.tensorboard=false",
    "evaluation.validation_tasks=1 evaluation.held_out_tasks=1",
]
"""What makes a training run short."""


def test_the_page_has_a_command_for_each_use() -> None:
    assert [line.split()[0] for line in COMMANDS] == [
        *("eval", "play", "envs", "train"),
        *("eval", "eval", "train", "train"),  # of two players
    ]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page_work_as_printed(line: str, tmp_path: Path) -> None:
    page = blocks("docs/new_game.md")
    [nim] = [block for block in page if "class Nim" in block]
    for name, block in (("bulls_and_cows.py", page[0]), ("nim.py", nim)):
        (tmp_path / name).write_text(block, encoding="utf-8")
    if line.startswith("train"):
        done = warm.turngym(*line.split(), *" ".join(FEW).split(), cwd=tmp_path)
    else:
        done = program(*line.split(), cwd=tmp_path, stdin="guess 123\n")
    assert done.returncode == 0, done.stderr


def test_the_game_of_two_players_is_that_of_the_examples() -> None:
    [nim] = [block for block in blocks("docs/new_game.md") if "class Nim" in block]
    example = (ROOT / "examples/11_two_players.py").read_text(encoding="utf-8")
    assert nim[nim.index("class Nim") :].strip() in example


def test_other_blocks_of_the_page_run(
    new_game: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert new_game.__file__ is not None
    monkeypatch.chdir(Path(new_game.__file__).parent)
    for block in blocks("docs/new_game.md")[1:]:
        exec(compile(block, "docs/new_game.md", "exec"), {})


def test_every_path_of_the_tour_is_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert len(paths) > 40
    rooms = [ROOT, ROOT / "src/turngym", *(ROOT / "src/turngym").glob("*/")]
    assert [path for path in paths if not any((room / path).exists() for room in rooms)] == []


def test_blocks_of_the_python_api_run() -> None:
    for block in blocks("docs/python.md"):
        exec(compile(block, "docs/python.md", "exec"), {})


def test_the_page_on_training_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few, train = " ".join(FEW).replace("run.steps=1 ", "").split(), turngym.train
    monkeypatch.setattr(turngym, "train", lambda *a, **k: train(*a, *few, **k))
    for block in blocks("docs/training.md"):
        exec(compile(block, "docs/training.md", "exec"), {})
    assert (tmp_path / "runs/two/summary.json").exists()


def test_readme_blocks_run() -> None:
    found = blocks("README.md")
    assert found
    for block in found:
        exec(compile(block, "README.md", "exec"), {})


def test_every_proof_is_listed_once_and_is_there() -> None:
    script = (ROOT / "scripts/proof.sh").read_text(encoding="utf-8")
    listed = re.findall(r"^(\w+) {2,}\S", script.split("'")[1], re.MULTILINE)
    cases = re.findall(r"^(\w+)\)", script, re.MULTILINE)
    assert sorted(cases) == sorted(listed)
    assert len(set(listed)) == len(listed)
    named = {
        name
        for place in ("README.md", "CHANGELOG.md", "Makefile", "docs", "tests", "benchmarks", "src")
        for file in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
        if file.suffix in (".md", ".py", ".sh", "") and file.is_file()
        for name in re.findall(r"PART=([a-z]+)", file.read_text(encoding="utf-8", errors="replace"))
    }
    assert named <= set(listed)


@pytest.mark.extra("zensical", "mkdocstrings")
def test_the_documentation_builds_with_a_place_for_every_public_name(tmp_path: Path) -> None:
    settings = (ROOT / "mkdocs.yml").read_text().replace("paths: [src]", f"paths: [{ROOT / 'src'}]")
    (tmp_path / "mkdocs.yml").write_text(settings)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    command = [sys.executable, "-m", "zensical", "build", "--clean"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    said = built.stdout + built.stderr
    assert built.returncode == 0, said
    assert "griffe:" not in said  # a docstring that names what is not there
    public = {f"turngym.{name}" for name in turngym.__all__ if name != "__version__"}
    for page in sorted((ROOT / "docs/api").glob("*.md")):
        html = (tmp_path / "site/api" / page.stem / "index.html").read_text(encoding="utf-8")
        wanted = set(re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE))
        wanted |= public if wanted == {"turngym"} else set()
        assert wanted - set(re.findall(r'id="([^"]+)"', html)) == set(), page.name
