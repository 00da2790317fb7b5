"""Agents that no one here wrote, run unchanged through the gateway: ``make proof PART=outside``.

They are installed from the registry into a virtual environment of their own, and started as their
own programs. The model is a real one with random weights, so that every log-prob is true of it, or
it says what a script tells it to, so that an agent comes to the end of its task.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.models import policy, policy_on, tokenizer
from helpers.outside import CONTROL, bench, segments_match
from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import build_tiny_model
from turngym.agents.engine.protocol import Generation, OnToken, Sampling
from turngym.agents.rendering import Renderer
from turngym.environments.core.limits import TurnLimit
from turngym.rollouts.episode import EpisodeSpec, rollout
from turngym.rollouts.gateway.program import ProgramEnv
from turngym.trainers.samples import to_samples
from turngym.types import Trajectory

PYTHON = os.environ.get("TURNGYM_OUTSIDE", "")
"""The python that the agents are installed for."""

NODE = Path(PYTHON).parent.parent / "node" / "node_modules" / ".bin"
"""Programs that npm has installed."""

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="PART=outside installs the agents and runs this"),
    pytest.mark.extra("openai", "starlette", "uvicorn"),
]

OPENAI_AGENTS = """
import asyncio, os
from agents import Agent, Runner, function_tool, set_tracing_disabled
set_tracing_disabled(True)

@function_tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

agent = Agent(name="adder", instructions="Use the tool.", tools=[add], model="tiny")
print(Runner.run_sync(agent, "What is 19 + 23?", max_turns=4).final_output)
"""


class ScriptedEngine:
    """Says one text after the other, in tokens with log-probs, as an engine would draw them."""

    def __init__(self, renderer: Renderer, texts: Sequence[str]) -> None:
        self.context, self.version, self.free_sessions = 1 << 20, 0, 8
        self._renderer = renderer
        self._texts = iter(texts)

    def open(self, seed: int) -> ScriptedEngine:
        return self

    async def generate(
        self, new_ids: Sequence[int], sampling: Sampling, *, on_token: OnToken | None = None
    ) -> Generation:
        ids = self._renderer.action(next(self._texts))
        logprobs = tuple(-0.01 * (token % 97) for token in ids)
        for token, logprob in zip(ids, logprobs, strict=True):
            if on_token is not None:
                on_token(token, logprob, 0)
        return Generation(token_ids=ids, logprobs=logprobs, versions=(0,) * len(ids), finish="end")

    def reseed(self, seed: int) -> None:
        return None

    def close(self) -> None:
        return None


def call(tool: str, arguments: str) -> str:
    return f'{{"name": "{tool}", "arguments": {arguments}}}'


MINI_SWE = [
    "I write the file first.\n" + call("bash", '{"command": "echo hello > note.txt"}'),
    "Now I look.\n" + call("bash", '{"command": "cat note.txt"}'),
    call("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}'),
]
SMOL = [
    "Thought: multiply.\n<code>\nprint(6 * 7)\n</code>",
    'Thought: done.\n<code>\nfinal_answer("forty-two")\n</code>',
]
ADDER = [call("add", '{"a": 19, "b": 23}'), "It is 42."]


CODEX = [call("exec_command", '{"cmd": "echo hello > note.txt"}'), "It is written."]
CLAUDE = [
    call("Bash", '{"command": "echo hello > note.txt", "description": "Write it."}'),
    "It is written.",
]


def command(
    agent: str, url: str, key: str, *, task: str = "Write hello to note.txt", tools: str = ""
) -> list[str]:
    """Return the command line that starts an agent; ``tools`` is the address of an MCP server."""
    programs = Path(PYTHON).parent
    if agent == "codex":
        here = f'{{name="here", base_url="{url}", wire_api="responses", env_key="OPENAI_API_KEY"}}'
        set_up = ["-c", 'model="tiny"', "-c", 'model_provider="here"']
        set_up += ["-c", f"model_providers.here={here}"]
        if tools:
            set_up += ["-c", f'mcp_servers.game.url="{tools}"']
        free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return [str(NODE / "codex"), "exec", *free, *set_up, task]
    if agent == "claude-code":
        free = ["--dangerously-skip-permissions", "--model", "tiny"]
        server = f'{{"mcpServers":{{"game":{{"type":"http","url":"{tools}"}}}}}}'
        given = ["--strict-mcp-config", "--mcp-config", server] if tools else []
        return [str(NODE / "claude"), "-p", task, *free, *given]
    if agent == "mini-swe-agent":
        mini = ["-m", "openai/tiny", "-y", "--exit-immediately", "-t", task, "-o", "run.json"]
        return [str(programs / "mini"), *mini]
    if agent == "smolagents":
        model = ["--model-type", "OpenAIModel", "--model-id", "tiny"]
        where = ["--api-base", url, "--api-key", key]
        return [str(programs / "smolagent"), "What is six times seven?", *model, *where, "--tools"]
    return [PYTHON, "-c", OPENAI_AGENTS]


def variables(folder: Path) -> dict[str, str]:
    """Return what keeps the agents to themselves."""
    quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}
    home = {"HOME": str(folder), "PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
    alone = {"MSWEA_GLOBAL_CONFIG_DIR": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    claude = {"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return {**home, **quiet, **alone, **claude}


async def run_agent(agent: str, url: str, folder: Path) -> str:
    """Run an agent's program to its end and return what it said."""
    key = "sk-some-agent-key-4242"
    places = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": key}
    places |= {"ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_API_KEY": key}
    process = await asyncio.create_subprocess_exec(
        *command(agent, url, key),
        cwd=folder,
        env={**variables(folder), **places},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace")


def as_environment(agent: str, folder: Path, inner: str = "") -> ProgramEnv:
    """Return an agent as the environment of its own model, with the tools of ``inner``."""
    given = {"task": "$TURNGYM_PROMPT", "tools": "$TURNGYM_MCP_URL"} if inner else {}
    words = command(agent, "$OPENAI_BASE_URL", "$OPENAI_API_KEY", **given)
    line = " ".join(
        f'"{word.replace(chr(34), chr(92) + chr(34))}"' if "$" in word else shlex.quote(word)
        for word in words
    )
    return ProgramEnv(
        ["sh", "-c", f"exec {line}"], folder=str(folder), variables=variables(folder), inner=inner
    )


@cache
def random_model() -> tuple[LocalEngine, Renderer]:
    """Return a small model with random weights that reads long prompts."""
    config = TinyModelConfig(hidden=32, layers=2, heads=2, context=16384)
    model = build_tiny_model(config, tokenizer(), seed=5)
    return LocalEngine(model, tokenizer()), Renderer(tokenizer())


async def record(agent: str, folder: Path, engine: Any, renderer: Any) -> tuple[Trajectory, str]:
    """Run one agent in one episode; check it against the server's own record."""
    import openai

    async with bench(engine, renderer, folder / "out", max_new_tokens=48) as found:
        speaker = openai.AsyncOpenAI(base_url=found.url, api_key=CONTROL)
        async with speaker:
            opened: Any = await speaker.post("/episodes", body={"env": agent}, cast_to=object)
            said = await run_agent(agent, opened["base_url"], folder)
            end = f"/episodes/{opened['episode']}/end"
            await speaker.post(end, body={"score": 1.0}, cast_to=object)
        (trajectory,) = found.episodes.finished
        assert trajectory.turns, said[-3000:]
        segments_match(trajectory, found.served)
    return trajectory, said


def check_trainable(trajectory: Trajectory) -> None:
    """Assert that the trainer takes the episode, with a mask on exactly the drawn tokens."""
    advantages_M = np.ones(trajectory.num_sampled_tokens, dtype=np.float32)
    samples = to_samples(trajectory, advantages_M, index=0)
    drawn = [span for span in trajectory.spans if span.sampled]
    masked = [int(i) for s in samples for i in s.token_ids[s.loss_mask]]
    assert masked == [i for span in drawn for i in span.token_ids]
    logprobs = [float(x) for s in samples for x in s.behaviour_logprobs[s.loss_mask]]
    assert logprobs == pytest.approx([x for span in drawn for x in span.logprobs])


@pytest.mark.parametrize("agent", ["mini-swe-agent", "smolagents", "openai-agents"])
async def test_agent_with_a_random_model_gives_trainable_trajectories(
    agent: str, tmp_path: Path
) -> None:
    engine, renderer = random_model()
    trajectory, _ = await record(agent, tmp_path, engine, renderer)
    check_trainable(trajectory)


WANTS_NPM = pytest.mark.skipif(not (NODE / "codex").exists(), reason="PART=outside, from npm")
ENDS = [
    ("mini-swe-agent", MINI_SWE, "hello"),
    ("smolagents", SMOL, "forty-two"),
    ("openai-agents", ADDER, "It is 42."),
    pytest.param("codex", CODEX, "It is written.", marks=WANTS_NPM),
    pytest.param("claude-code", CLAUDE, "It is written.", marks=WANTS_NPM),
]
WRITERS = ("mini-swe-agent", "codex", "claude-code")
"""Write a file."""


@pytest.mark.parametrize(("agent", "texts", "sign"), ENDS)
async def test_agent_is_the_environment_of_its_own_model(
    agent: str, texts: list[str], sign: str, tmp_path: Path
) -> None:
    env = as_environment(agent, tmp_path)
    await env.reset(seed=0)
    steps = [await env.step(text) for text in texts]
    assert [terminated for _, _, terminated, _, _ in steps] == [False] * len(steps[1:]) + [True]
    # smolagents adds the call of its interpreter to what its model said.
    assert ["rewritten" in info for *_, info in steps[:-1]] == [agent == "smolagents"] * (
        len(texts) - 1
    )
    if agent in WRITERS:
        assert (tmp_path / "note.txt").read_text() == "hello\n"
    if agent in ("codex", "claude-code"):  # their prompts are long for a random model
        await env.close()
        return
    engine, renderer = random_model()
    sampler = policy_on(engine, renderer, sampling=Sampling(max_new_tokens=48))
    env.episode_limits = [TurnLimit(4)]
    spec = EpisodeSpec(env_id=agent, task=env.task("train", 0), env_seed=1, policy_seed=2)
    check_trainable(await rollout(env, sampler, spec))
    await env.close()


@WANTS_NPM
@pytest.mark.parametrize("agent", ["codex", "claude-code"])
async def test_agent_plays_any_environment_by_its_tools(agent: str, tmp_path: Path) -> None:
    env = as_environment(agent, tmp_path, "text/maze")
    _, info = await env.reset(seed=0)
    assert "mcp__game__go" in [tool["function"]["name"] for tool in info["tools"]]
    is_over = False
    while not is_over:
        way = env.expert_action().split()[-1]
        said = call("mcp__game__go", json.dumps({"direction": way}))
        _, reward, is_over, _, info = await env.step(said)
        assert "rewritten" not in info
    assert (reward, info["score"]) == (1.0, 1.0)
    await env.close()


@pytest.mark.parametrize(("agent", "texts", "sign"), ENDS)
async def test_agent_comes_to_the_end_of_its_task(
    agent: str, texts: list[str], sign: str, tmp_path: Path
) -> None:
    renderer = policy().model.renderer
    trajectory, said = await record(agent, tmp_path, ScriptedEngine(renderer, texts), renderer)
    check_trainable(trajectory)
    assert len(trajectory.turns) == len(texts)
    assert sign in said, said[-3000:]
    if agent in WRITERS:
        assert (tmp_path / "note.txt").read_text() == "hello\n"
    reasons = [turn.segment_reason for turn in trajectory.turns if turn.starts_segment]
    print(f"\n{agent}: {len(trajectory.turns)} turns, segments opened: {reasons or 'none'}")
