"""An MCP server's tools as an environment."""

from __future__ import annotations

from typing import Any

import pytest

from turngym.environments.core.spaces import info_problems
from turngym.environments.tools.mcp import McpEnv
from turngym.errors import ConfigError, EnvironmentFault
from turngym.tasks.base import Task

pytestmark = pytest.mark.extra("mcp")

TASK = Task(id="mcp/train/0", seed=0, prompt="How much is 2 + 3?")


def server() -> Any:
    from mcp.server import MCPServer

    made = MCPServer("sums")

    @made.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @made.tool()
    def fail() -> str:
        """Break."""
        raise ValueError("out of order")

    return made


async def test_agent_calls_tools_and_is_judged_by_its_answer() -> None:
    env = McpEnv(server(), judge=lambda task, text, calls: float(text == calls[0].text))
    observation, info = await env.reset(seed=0, options={"task": TASK})
    assert observation["text"] == "How much is 2 + 3?"
    assert [t["function"]["name"] for t in info["tools"]] == ["add", "fail", "answer"]
    observation, _, _, _, info = await env.step('{"name": "add", "arguments": {"a": 2, "b": 3}}')
    assert observation["text"] == "5"
    observation, _, _, _, info = await env.step('{"name": "fail", "arguments": {}}')
    assert info["invalid_action"] == "Error executing tool fail"
    _, reward, over, _, info = await env.step('{"name": "answer", "arguments": {"text": "5"}}')
    assert (reward, over, info["score"]) == (1.0, True, 1.0)
    assert not info_problems(info, reward=reward, over=True)
    await env.close()
    await env.close()


async def test_only_offered_tools_can_be_called() -> None:
    env = McpEnv(server(), tools=["add"])
    await env.reset(seed=0, options={"task": TASK})
    _, _, _, _, info = await env.step('{"name": "fail", "arguments": {}}')
    assert info["invalid_action"].startswith("Unknown tool 'fail'")
    await env.close()
    with pytest.raises(ConfigError, match="the server has no tool 'subtract'"):
        await McpEnv(server(), tools=["subtract"]).reset(seed=0, options={"task": TASK})


async def test_server_that_is_not_there_is_a_fault_of_the_episode() -> None:
    env = McpEnv(["no-such-program-anywhere"])
    with pytest.raises(EnvironmentFault, match="mcp: "):
        await env.reset(seed=0, options={"task": TASK})
    await env.close()
