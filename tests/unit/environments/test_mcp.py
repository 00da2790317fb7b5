"""An MCP server's tools as an environment."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import pytest

from turngym.api.trl import trl_environment
from turngym.environments.core.limits import TurnLimit
from turngym.environments.core.spaces import info_problems
from turngym.environments.gym.face import as_gym
from turngym.environments.gym.wrappers import limited
from turngym.environments.tools.mcp import McpEnv
from turngym.errors import ConfigError, EnvironmentFault
from turngym.rollouts.gateway.hosted import HostedEnv
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


async def test_an_episode_that_a_limit_ends_is_judged_as_well() -> None:
    def judge(task: Any, answer: str, calls: Any) -> float:
        return 1.0 if answer == "5" else 0.25 * len(calls)

    env = limited(McpEnv(server(), judge=judge), TurnLimit(2))
    await env.reset(seed=0, options={"task": TASK})
    assert env.score() == 0.0
    call = '{"name": "add", "arguments": {"a": 2, "b": 3}}'
    await env.step(call)
    _, reward, over, truncated, info = await env.step(call)
    assert (reward, over, truncated, info["score"]) == (0.5, False, True, 0.5)
    assert env.score() == 0.5  # which a gateway asks for
    await env.close()


async def test_only_offered_tools_can_be_called() -> None:
    env = McpEnv(server(), tools=["add"])
    await env.reset(seed=0, options={"task": TASK})
    assert await env.end_at_limit() is None  # who has no judge judges nothing
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


SUMS = """
from mcp.server import MCPServer
sums = MCPServer("sums")
@sums.tool()
def add(a: int, b: int) -> int:
    return a + b
sums.run()
"""


async def test_a_server_starts_where_stderr_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, or in a test that captures it: the package keeps what it was at import."""
    from mcp.client import stdio

    wrapped = stdio.stdio_client.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(wrapped, "__defaults__", (io.StringIO(),))
    env = McpEnv([sys.executable, "-c", SUMS])
    _, info = await env.reset(seed=0, options={"task": TASK})
    assert [t["function"]["name"] for t in info["tools"]] == ["add", "answer"]
    await env.close()


async def test_the_command_line_of_a_server_may_be_text() -> None:
    env = McpEnv(f"{sys.executable} -c 'raise SystemExit'")
    with pytest.raises(EnvironmentFault, match="Connection closed"):
        await env.reset(seed=0, options={"task": TASK})
    with pytest.raises(ConfigError, match="the command that starts one"):
        McpEnv("")


async def test_a_tool_that_would_end_the_episode_is_refused_unless_it_is_left_out() -> None:
    made = server()

    @made.tool()  # type: ignore[untyped-decorator]
    def answer(text: str) -> str:
        return text

    with pytest.raises(ConfigError, match="has a tool 'answer'"):
        await McpEnv(made).reset(seed=0, options={"task": TASK})
    env = McpEnv(made, tools=["add"])
    _, info = await env.reset(seed=0, options={"task": TASK})
    assert [t["function"]["name"] for t in info["tools"]] == ["add", "answer"]
    await env.close()


async def test_tools_of_all_pages_are_offered() -> None:
    from mcp.server import Server
    from mcp.types import ListToolsResult, Tool

    async def listed(context: Any, params: Any) -> Any:
        page = int(params.cursor or 0)
        tool = Tool(name=f"tool{page}", input_schema={"type": "object", "properties": {}})
        return ListToolsResult(tools=[tool], next_cursor=str(page + 1) if page < 2 else None)

    env = McpEnv(Server("pages", on_list_tools=listed), tools=["tool0", "tool2"])
    _, info = await env.reset(seed=0, options={"task": TASK})
    assert [t["function"]["name"] for t in info["tools"]] == ["tool0", "tool2", "answer"]
    await env.close()


async def test_a_last_page_that_names_itself_as_the_next_is_read_no_further() -> None:
    from mcp.server import Server
    from mcp.types import ListToolsResult, Tool

    asked = []

    async def listed(context: Any, params: Any) -> Any:
        asked.append(params.cursor)
        assert len(asked) < 9  # else it would go on for ever
        tool = Tool(name="ask", input_schema={"type": "object"})
        return ListToolsResult(tools=[tool], next_cursor="same")

    env = McpEnv(Server("pages", on_list_tools=listed))
    _, info = await env.reset(seed=0, options={"task": TASK})
    assert [t["function"]["name"] for t in info["tools"]] == ["ask", "answer"]
    await env.close()


async def test_tools_work_whose_server_breaks_its_promise_or_has_patterns_of_javascript() -> None:
    from mcp.server import Server
    from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

    patterns = {"name": {"type": "string", "pattern": r"^\p{L}+$"}, "pattern": {"pattern": "^a"}}
    tool = Tool(
        name="ask",
        input_schema={"type": "object", "properties": patterns},
        output_schema={"type": "object", "required": ["found"]},
    )

    async def listed(context: Any, params: Any) -> Any:
        return ListToolsResult(tools=[tool])

    async def called(context: Any, params: Any) -> Any:
        return CallToolResult(content=[TextContent(text="nothing")])

    env = McpEnv(Server("promises", on_list_tools=listed, on_call_tool=called))
    await env.reset(seed=0, options={"task": TASK})
    seen = []
    for arguments in ('{"name": "Ada", "pattern": "a"}', '{"pattern": "b"}'):
        observation, *_ = await env.step(f'{{"name": "ask", "arguments": {arguments}}}')
        seen.append(observation["text"])
    assert seen == ["nothing", "Tool 'ask', pattern: 'b' does not match '^a'"]
    await env.close()


async def test_names_that_servers_of_models_refuse_are_written_otherwise() -> None:
    """MCP allows dots and 128 letters, OpenAI and Anthropic neither."""
    from mcp.server import Server
    from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

    long = "x" * 70
    schema = {"type": "object"}
    names = ["files.read", "files_read", "files/read", long, f"{long}y", "list-all", "Öl"]

    async def listed(context: Any, params: Any) -> Any:
        return ListToolsResult(tools=[Tool(name=one, input_schema=schema) for one in names])

    async def called(context: Any, params: Any) -> Any:
        return CallToolResult(content=[TextContent(text=params.name)])

    judged: list[str] = []

    def judge(task: Any, answer: str, calls: Any) -> float:
        judged.extend(call.name for call in calls)
        return 1.0

    server = Server("names", on_list_tools=listed, on_call_tool=called)
    env = McpEnv(server, judge=judge)
    _, info = await env.reset(seed=0, options={"task": TASK})
    *shown, _ = [tool["function"]["name"] for tool in info["tools"]]
    assert shown[:4] == ["files_read_2", "files_read", "files_read_3", "x" * 64]
    assert shown[4:] == [f"{'x' * 60}_2", "list-all", "_l"]
    for name, own in zip(shown, names, strict=True):
        observation, *_ = await env.step(f'{{"name": "{name}", "arguments": {{}}}}')
        assert observation["text"] == own
    await env.step('{"name": "answer", "arguments": {"text": ""}}')
    assert judged == names
    await env.close()


async def test_what_a_server_says_of_a_call_is_seen_in_whatever_form_it_comes() -> None:
    from mcp import MCPError
    from mcp.server import Server
    from mcp.types import (
        CONNECTION_CLOSED,
        INTERNAL_ERROR,
        INVALID_PARAMS,
        CallToolResult,
        EmbeddedResource,
        ImageContent,
        ListToolsResult,
        TextResourceContents,
        Tool,
    )

    text = TextResourceContents(uri="repo://a", text="the file")
    results: list[Any] = [
        CallToolResult(content=[], structured_content={"found": ["é"]}),
        CallToolResult(
            content=[
                EmbeddedResource(resource=text),
                ImageContent(data="", mime_type="image/png"),
            ]
        ),
        MCPError(INVALID_PARAMS, "no such table: t"),
        MCPError(INTERNAL_ERROR, "syntax error"),
        MCPError(CONNECTION_CLOSED, "gone"),
    ]

    async def listed(context: Any, params: Any) -> Any:
        return ListToolsResult(tools=[Tool(name="ask", input_schema={"type": "object"})])

    async def called(context: Any, params: Any) -> Any:
        result = results.pop(0)
        if isinstance(result, MCPError):
            raise result
        return result

    env = McpEnv(Server("forms", on_list_tools=listed, on_call_tool=called))
    await env.reset(seed=0, options={"task": TASK})
    seen = []
    for _ in range(4):
        observation, _, _, _, info = await env.step('{"name": "ask", "arguments": {}}')
        seen.append((observation["text"], info.get("invalid_action")))
    assert seen == [
        ('{"found": ["é"]}', None),
        ("the file\n[image]", None),
        ("no such table: t",) * 2,
        ("syntax error",) * 2,
    ]
    with pytest.raises(EnvironmentFault, match="gone"):
        await env.step('{"name": "ask", "arguments": {}}')
    await env.close()


async def test_a_tool_that_never_answers_holds_up_no_close() -> None:
    made, called = server(), asyncio.Event()

    @made.tool()  # type: ignore[untyped-decorator]
    async def wait() -> str:
        called.set()
        await asyncio.Event().wait()
        return ""

    env = McpEnv(made)
    await env.reset(seed=0, options={"task": TASK})
    step = asyncio.create_task(env.step('{"name": "wait", "arguments": {}}'))
    await called.wait()
    step.cancel()
    async with asyncio.timeout(60):  # else it hangs
        await env.close()


class Sums(McpEnv):
    def __init__(self) -> None:
        super().__init__(server(), "How much is 2 + 3?")


async def test_programs_of_others_see_the_tools_that_an_episode_begins_with() -> None:
    hosted = HostedEnv(Sums(), env_id="sums")
    await hosted.reset(None, seed=0)
    assert [tool["function"]["name"] for tool in hosted.tools] == ["add", "fail", "answer"]
    assert (await hosted.call("add", {"a": 2, "b": 3})).text == "5"
    await hosted.close()


def test_trl_which_asks_before_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngym.api.trl.make", lambda name: as_gym(Sums()))
    env = trl_environment("sums")()
    with pytest.raises(ConfigError, match="the tool 'add' is known only once"):
        env.reset(task="mcp/train/0")
