"""Tools of others, in environments of their own, play what is ours: ``make proof PART=interop``.

Each needs a python that the tool is installed for: ``TURNGYM_OPENENV``, ``TURNGYM_HARBOR``, and so
on. ``scripts/proof.sh`` makes them.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.cli import server

TOOLS = ("openenv", "harbor", "verifiers", "trl")
PYTHON = {tool: os.environ.get(f"TURNGYM_{tool.upper()}", "") for tool in TOOLS}
"""The python that each is installed for."""


def needs(tool: str, *modules: str) -> Any:
    """Return the marks of a test that runs a tool, and what it needs of this environment."""
    why = f"PART=interop installs {tool} and runs this"
    marks = [pytest.mark.skipif(not PYTHON[tool], reason=why), pytest.mark.timeout(3600)]
    if PYTHON[tool] and modules:
        marks.append(pytest.mark.extra(*modules))

    def marked(test: Any) -> Any:
        for mark in marks:
            test = mark(test)
        return test

    return marked


def run(tool: str, *words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of a tool's environment; ``python`` first stands for its interpreter."""
    program, *rest = map(str, words)
    place = PYTHON[tool] if program == "python" else str(Path(PYTHON[tool]).parent / program)
    return subprocess.run(
        [place, *rest], capture_output=True, text=True, timeout=1800, check=False, **options
    )


# OpenEnv.

CLIENT = """
import json, sys
from openenv import GenericEnvClient

with GenericEnvClient(base_url=sys.argv[1]).sync() as env:
    found = env.reset(seed=3, split="test", index=2)
    rows = [[found.observation["text"], found.reward, found.done]]
    for action in json.loads(sys.argv[2]):
        found = env.step({"text": action})
        rows.append([found.observation["text"], found.reward, found.done])
    print(json.dumps({"rows": rows, "metadata": found.metadata, "state": env.state()}))
"""


def expert_episode() -> tuple[list[str], list[list[Any]]]:
    """Return what the expert says in a maze, and what comes of it."""
    env = turngym.make("text/maze")
    observation, _ = env.reset(seed=3, options={"task": "maze-easy/test/2"})
    said, rows, terminated = [], [[observation["text"], None, False]], False
    while not terminated:
        said.append(env.unwrapped.expert_action())
        observation, reward, terminated, _, _ = env.step(said[-1])
        rows.append([observation["text"], reward, terminated])
    env.close()
    return said, rows


@needs("openenv", "starlette", "uvicorn", "websockets")
def test_the_client_of_openenv_plays_an_environment_of_ours_to_its_end() -> None:
    said, rows = expert_episode()
    with server("openenv", "text/maze", "--port", "0") as (_, served):
        done = run("openenv", "python", "-c", CLIENT, served["url"], json.dumps(said))
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == rows
    assert found["metadata"]["score"] == 1
    assert found["state"]["step_count"] == len(said)


@needs("openenv", "starlette", "uvicorn", "websockets")
def test_openenv_validate_finds_nothing_amiss() -> None:
    with server("openenv", "text/maze", "--port", "0") as (_, served):
        done = run("openenv", "openenv", "validate", "--url", served["url"], "--timeout", "60",
                   "--json")  # fmt: skip
    found = json.loads(done.stdout)
    assert [one["id"] for one in found["criteria"] if not one["passed"]] == []
    assert len(found["criteria"]) == 6
    assert done.returncode == 0
