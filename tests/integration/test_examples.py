"""Every example runs as it is printed, and the names of the front door are there."""

import subprocess
import sys
from pathlib import Path

import pytest

import turngym
from helpers import warm

EXAMPLES = Path(__file__).parents[2] / "examples"
FEW = [
    "model.hidden=16 model.layers=1 model.heads=1 warm_start.episodes=8 warm_start.max_steps=3",
    "rollout.groups_per_step=2 rollout.group_size=2 run.steps=1 run.tensorboard=false",
    "evaluation.validation_tasks=1 evaluation.held_out_tasks=1",
]
SETTINGS = {name: " ".join(FEW).split() for name in ("04_train.py", "07_credit_method.py")}
SAYS = {
    "01_play.py": "terminated",
    "02_agent.py": "expert   100%",
    "03_agent_with_memory.py": "explorer",
    "04_train.py": "always the likeliest token",
    "05_environment.py": "expert   100%",
    "06_task.py": "pass",
    "07_credit_method.py": "no_circles",
    "08_evaluation.py": "terminated",
    "09_simulated_user.py": "1.0 ['white', 'scarf']",
    "10_agent_program.py": "score 1.0",
    "11_two_players.py": "wins 100%",
}


def test_each_example_is_tested() -> None:
    assert sorted(SAYS) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    if name in SETTINGS:  # these train
        done = warm.run(warm.script, EXAMPLES / name, *SETTINGS[name], cwd=tmp_path)
    else:
        command = [sys.executable, str(EXAMPLES / name)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout


@pytest.mark.parametrize("name", SAYS)
def test_an_example_fits_on_a_screen(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 60


def test_an_import_loads_what_registers_and_nothing_that_plays() -> None:
    code = (
        "import sys, turngym; rooms = {'asyncio', 'pydantic', 'turngym.config', 'turngym.sandbox',"
        " 'turngym.environments.core.env', 'turngym.tasks.problem'}\n"
        "assert not rooms & sys.modules.keys(), rooms & sys.modules.keys()\n"
        "turngym.make('text/maze').reset(seed=0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_torch_is_not() -> None:
    code = (
        "import sys, turngym; rooms = {'torch', 'turngym.trainers', 'turngym.rollouts.episode'}\n"
        "assert not rooms & sys.modules.keys()\nturngym.rollout\n"
        "assert rooms & sys.modules.keys() == {'turngym.rollouts.episode'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in turngym.__all__:
        assert getattr(turngym, name) is not None
        assert name in dir(turngym)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = turngym.nothing


async def test_verbs_work_where_an_event_loop_runs_already() -> None:
    assert turngym.evaluate("text/maze", "expert", episodes=2).solved == 2
