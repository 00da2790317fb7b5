"""Tools of others, in environments of their own, play what is ours: ``make proof PART=interop``.

Each needs a python that the tool is installed for: ``TURNGYM_OPENENV``, ``TURNGYM_HARBOR``, and so
on. ``scripts/proof.sh`` makes them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.cli import SOURCE, server
from helpers.fake_server import chunk, fake_server, stream
from turngym.cli.main import main
from turngym.records import write_trajectories
from turngym.rollouts.stop_words import STOP_WORDS, Words
from turngym.seeding import derive_seed
from turngym.tasks.interop.harbor import export_harbor
from turngym.tasks.shell import GENERATORS, GROUPS, shell_tasks

TOOLS = ("openenv", "harbor", "verifiers", "inspect_ai", "trl")
PYTHON = {tool: os.environ.get(f"TURNGYM_{tool.upper()}", "") for tool in TOOLS}
"""The python that each is installed for."""


def marks(tool: str, *modules: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a test that runs a tool, and what it needs of this environment."""
    why = f"PART=interop installs {tool} and runs this"
    found = [pytest.mark.skipif(not PYTHON[tool], reason=why), pytest.mark.timeout(3600)]
    return [*found, pytest.mark.extra(*modules)] if modules else found


def needs(tool: str, *modules: str) -> Any:
    """Return what gives a test its ``marks``."""

    def marked(test: Any) -> Any:
        for mark in marks(tool, *modules):
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


def expert_episode(
    task: str = "maze-easy/test/2", seed: int = 3
) -> tuple[list[str], list[list[Any]]]:
    """Return what the expert says in a maze, and what comes of it."""
    env = turngym.make("text/maze")
    observation, _ = env.reset(seed=seed, options={"task": task})
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


@asynccontextmanager
async def served_by_openenv(app: str, folder: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Yield an environment on OpenEnv's own server, and what it showed first."""
    from turngym.agents.engine.vllm.children import free_port
    from turngym.environments.tools.openenv import OpenEnvEnv
    from turngym.errors import ConfigError

    port = str(free_port(0))
    words = [PYTHON["openenv"], "-m", "uvicorn", app, "--port", port]
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL)
    env = OpenEnvEnv(f"http://127.0.0.1:{port}")
    try:
        for _ in range(600):
            try:
                seen, _ = await env.reset(seed=1)
                break
            except ConfigError:  # it is not up yet
                await asyncio.sleep(1)
        yield env, seen
    finally:
        await env.close()
        process.terminate()
        process.wait(60)


@needs("openenv", "websockets")
async def test_a_server_of_openenv_is_an_environment_of_ours(tmp_path: Path) -> None:
    assert run("openenv", "openenv", "init", "my_env", cwd=tmp_path).returncode == 0
    async with served_by_openenv("server.app:app", tmp_path / "my_env") as (env, seen):
        assert json.loads(seen["text"])["echoed_message"] == "My Env environment ready!"
        call = json.dumps({"name": "act", "arguments": {"message": "hello"}})
        seen, reward, terminated, truncated, _ = await env.step(call)
        assert json.loads(seen["text"]) == {"echoed_message": "hello", "message_length": 5}
        assert (reward, terminated, truncated) == (0.5, False, False)
        _, _, _, _, info = await env.step('{"name": "act", "arguments": {"massage": "hello"}}')
        assert "'message' is a required property" in info["invalid_action"]


CALCULATOR = """
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State


class Calculator(MCPEnvironment):
    def __init__(self):
        tools = FastMCP("calculator")

        @tools.tool
        def add(a: int, b: int) -> int:
            "Add two integers."
            return a + b

        super().__init__(tools)

    def reset(self, seed=None, episode_id=None, **more):
        return Observation(done=False, reward=0.0, metadata={"message": "ready"})

    def _step_impl(self, action, timeout_s=None, **more):
        raise NotImplementedError

    @property
    def state(self):
        return State()


app = create_app(Calculator, CallToolAction, CallToolObservation, env_name="calculator")
"""


@needs("openenv", "websockets")
async def test_the_mcp_tools_of_a_server_of_openenv_are_those_of_the_agent(tmp_path: Path) -> None:
    (tmp_path / "calculator.py").write_text(CALCULATOR)
    async with served_by_openenv("calculator:app", tmp_path) as (env, seen):
        assert json.loads(seen["text"]) == {"message": "ready"}
        assert [tool["function"]["name"] for tool in env.action_format.tools()] == ["add"]
        seen, *_ = await env.step('{"name": "add", "arguments": {"a": 2, "b": 3}}')
        assert seen["text"] == "5"


# Harbor.

HELPERS = Path(__file__).parents[1]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TRAJECTORY = """
import json, sys
from harbor.models.trajectories import Trajectory

for path in sys.argv[1:]:
    found = Trajectory.model_validate_json(open(path).read())
    print(json.dumps([found.schema_version, len(found.steps)]))
"""
LOAD = """
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from harbor.models.task.task import Task

for path in sys.argv[1:]:
    task = Task(Path(path))
    print(task.name, task.config.verifier.environment_mode.value)
"""


@needs("harbor")
def test_harbor_reads_every_kind_of_task_that_is_exported(tmp_path: Path) -> None:
    folders = []
    for kind in GENERATORS:
        tasks = shell_tasks(kind=kind)
        folders.append(export_harbor(tasks, tasks.task("test", 0), tmp_path))
    done = run("harbor", "python", "-c", LOAD, *folders)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows == [[f"turngym/shell-{kind}-test-0", "separate"] for kind in GENERATORS]


CHEAT = "#!/bin/bash\nmkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt\n"


@needs("harbor", "bwrap")
@pytest.mark.parametrize("kind", [kind for kinds in GROUPS.values() for kind in kinds[:4]])
def test_harbor_run_gives_the_solution_1_and_idling_and_a_cheat_0(
    kind: str, tmp_path: Path
) -> None:
    tasks = shell_tasks(kind=kind)
    honest, forged = (
        export_harbor(tasks, tasks.task("test", 0), tmp_path / name) for name in ("a", "b")
    )
    (forged / "solution/solve.sh").write_text(CHEAT)
    for folder, agent, wanted in ((honest, "oracle", 1), (honest, "nop", 0), (forged, "oracle", 0)):
        jobs = tmp_path / f"jobs-{agent}-{wanted}"
        environment = {
            **os.environ, "PYTHONPATH": str(BENCHMARKS), "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }  # fmt: skip
        done = run(
            "harbor", "harbor", "run", "-p", folder, "-a", agent, "-o", jobs,
            "--environment-import-path", "soundness_peers:Bubblewrap", env=environment,
        )  # fmt: skip
        results = [json.loads(file.read_text()) for file in jobs.rglob("result.json")]
        rewards = [one["verifier_result"]["rewards"] for one in results if "task_name" in one]
        assert rewards == [{"reward": wanted}], (done.stdout[-500:], done.stderr[-500:])


@needs("harbor")
def test_harbor_accepts_our_episodes_as_trajectories(tmp_path: Path) -> None:
    from turngym.types import Message, StopReason, Trajectory, Turn

    said, rows = expert_episode()
    turns = tuple(
        Turn(
            observation=(Message(role="user", content=rows[number][0]),),
            action=Message(role="assistant", content=action), reward=rows[number + 1][1],
        )
        for number, action in enumerate(said)
    )  # fmt: skip
    episode = Trajectory(
        env_id="turngym/Maze-v0", task_id="maze-easy/test/2", env_seed=3, policy_seed=0,
        turns=turns, stop_reason=StopReason.TERMINATED, score=1.0,
    )  # fmt: skip
    write_trajectories(tmp_path / "run/trajectories.jsonl", [episode])
    out = tmp_path / "atif"
    assert main(["export", str(tmp_path / "run"), "--format", "atif", "--out", str(out)]) == 0
    done = run("harbor", "python", "-c", TRAJECTORY, out / "000000.json")
    assert json.loads(done.stdout) == ["ATIF-v1.8", len(said) + 1], done.stderr


# verifiers.


@needs("verifiers")
def test_vf_validate_finds_every_task_solvable_and_none_solved_by_doing_nothing(
    tmp_path: Path,
) -> None:
    assert main(["tasks", "export", "text/maze", str(tmp_path), "--format", "verifiers"]) == 0
    package = tmp_path / "turngym_text_maze"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, str(package)])}
    done = run(
        "verifiers", "vf-validate", "turngym_text_maze", "--taskset.count", "3",
        "--runtime.type", "subprocess", "-o", tmp_path / "out", "--no-rich",
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout[done.stdout.index("{") :])
    assert summary["checks"]["gold"]["valid"] == summary["checks"]["noop"]["valid"] == 3
    assert summary["valid_rate"] == 1


@needs("verifiers", "openai")
async def test_vf_eval_has_a_model_play_in_the_words_of_the_environment_alone(
    tmp_path: Path,
) -> None:
    task = "maze-easy/test/0"
    said, rows = expert_episode(task=task, seed=derive_seed(0, task, "env"))
    assert main(["tasks", "export", "text/maze", str(tmp_path), "--format", "verifiers"]) == 0
    places = [SOURCE, str(tmp_path / "turngym_text_maze")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "KEY": "x"}
    environment["PATH"] = f"{Path(PYTHON['verifiers']).parent}{os.pathsep}{os.environ['PATH']}"
    replies = [stream(chunk(text), chunk("", "stop")) for text in said]
    async with fake_server(*replies) as upstream:
        done = await asyncio.to_thread(
            run, "verifiers", "vf-eval", "turngym_text_maze", "-m", "tiny", "--push", "False",
            "--env.taskset.count", "1", "--env.player.runtime.type", "subprocess",
            "--client.base-url", upstream.url, "--client.api-key-var", "KEY", "-o", "out",
            env=environment, cwd=tmp_path,
        )  # fmt: skip
    assert "reward 1.00" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    last = upstream.bodies[-1]
    assert not last.get("tools")
    assert [row["role"] for row in last["messages"]] == ["user", "assistant"] * (len(said) - 1) + [
        "user"
    ]
    assert [row["content"] for row in last["messages"][2::2]] == [row[0] for row in rows[1:-1]]


# Inspect.

INSPECT = """
import json, sys
from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from turngym.api.inspect_ai import inspect_task

rows = []
for name, said in json.loads(sys.argv[1]):
    answers = [ModelOutput.from_content("mockllm", text) for text in said]
    for one in answers:
        one.usage = ModelUsage()  # else it would count tokens with a file from the network
    model = get_model("mockllm/model", custom_outputs=answers, memoize=False)
    task = inspect_task(name, count=1)
    (log,) = eval(task, model=model, log_dir=sys.argv[2], display="none", fail_on_error=False)
    (sample,) = log.samples
    scored = sample.scores["judged"] if sample.scores else None
    rows.append({
        "status": log.status, "messages": [one.text for one in sample.messages],
        "metadata": scored and scored.metadata, "value": scored and scored.value,
        "error": sample.error and sample.error.message,
        "mean": scored and log.results.scores[0].metrics["mean"].value,
    })
print(json.dumps(rows))
"""


@needs("inspect_ai")
def test_inspect_plays_an_environment_of_ours_and_scores_it_as_we_do(tmp_path: Path) -> None:
    said, seen = expert_episode(
        task="maze-easy/test/0", seed=derive_seed(0, "maze-easy/test/0", "env")
    )
    broken = "helpers.broken_envs:Crashes"
    plays = [("text/maze", said), ("text/maze", ["Hello."] * 100), (broken, ["up"] * 9)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, str(HELPERS)])}
    done = run("inspect_ai", "python", "-c", INSPECT, json.dumps(plays), tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    solved, idle, fault = json.loads(done.stdout.splitlines()[-1])
    shown = [row[0] for row in seen]
    assert solved["messages"][1:] == [
        text for pair in zip(shown, [*said, ""], strict=True) for text in pair
    ][:-1]  # fmt: skip
    assert (solved["value"], solved["mean"], solved["metadata"]["limit"]) == (1, 1, "")
    assert solved["metadata"]["return"] == pytest.approx(sum(row[1] or 0 for row in seen))
    assert (idle["value"], idle["mean"]) == (0, 0)
    assert idle["metadata"]["stop_reason"].startswith("truncated_")
    assert "KeyError" in fault["error"]
    assert fault["value"] is None, "a fault is no 0"


CUT = """
import json
from types import SimpleNamespace
import anyio
from helpers.envs import LadderEnv
from turngym.api.inspect_ai import _played
from turngym.rollouts.gateway.hosted import HostedEnv


class SlowLadder(LadderEnv):
    blocks = True  # so its judge is waited for


async def play(said):
    found = {}
    state = SimpleNamespace(sample_id="ladder/test/0", messages=[], completed=False,
                            store=SimpleNamespace(set=found.__setitem__), output=None)
    with anyio.CancelScope() as scope:  # as a limit of time ends a sample
        async def generate(state, tool_calls):
            state.output = SimpleNamespace(completion=next(said, None))
            if state.output.completion is None:
                scope.cancel()
                await anyio.sleep_forever()
            return state
        try:
            await _played(HostedEnv(SlowLadder(slip=0.0), env_id="ladder"), state, generate)
        except Exception as error:
            found["error"] = str(error)
    return found


for said in (["jump 3"], ["jump 3", "break value"]):
    print(json.dumps(anyio.run(play, iter(said))))
"""


@needs("inspect_ai")
def test_a_limit_of_time_of_inspect_leaves_a_score_and_a_fault_leaves_none() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, str(HELPERS)])}
    done = run("inspect_ai", "python", "-c", CUT, env=environment)
    assert done.returncode == 0, done.stderr
    cut, broken = map(json.loads, done.stdout.splitlines())
    assert cut["turngym"]["score"] == 0.5
    assert cut["turngym"]["stop_reason"] == "a limit of Inspect"
    assert list(broken) == ["error"]


# Words.

FIND = """
import importlib.util, json, pathlib, sys

(folder,) = importlib.util.find_spec(sys.argv[1]).submodule_search_locations
source = "".join(one.read_text() for one in pathlib.Path(folder).rglob("*.py"))
print(json.dumps([word for word in sys.argv[2:] if word not in source]))
"""


@pytest.mark.parametrize(
    "tool",
    [pytest.param(tool, marks=marks(tool)) for tool in Words._fields],
)
def test_each_stop_word_is_one_of_the_tool(tool: str) -> None:
    words = {getattr(words, tool) for words in STOP_WORDS.values()} - {""}
    forms = {"harbor": "class {}(", "verifiers": '{}"', "inspect_ai": '"{}"'}
    # verifiers makes "<stage>_timeout" and "<boundary>_error" of names
    made = {"agent_timeout": '"agent', "env_error": "class EnvErr", "harness_error":
            "class HarnessErr", "task_error": "class TaskErr"}  # fmt: skip
    wanted = [made.get(word, forms[tool].format(word)) for word in sorted(words)]
    done = run(tool, "python", "-c", FIND, tool, *wanted)
    assert json.loads(done.stdout) == [], done.stderr


# TRL.


@needs("trl", "torch", "transformers")
def test_a_grpo_step_of_trl_learns_from_an_environment_of_ours(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "helpers/trl_process.py"
    environment = {**os.environ, "PYTHONPATH": SOURCE, "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = run("trl", "python", script, tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["log"]) == 4
    assert all(row["tools/call_frequency"] > 0.5 for row in found["log"])
    assert all(row["tools/failure_frequency"] == 0 for row in found["log"])
    assert max(row["reward"] for row in found["log"]) > 0, "some number was right"
    assert found["changed"] == found["of"]
