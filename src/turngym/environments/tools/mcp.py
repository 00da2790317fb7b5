"""An environment made of the tools of an MCP server (Model Context Protocol), ours or of others."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from turngym.environments.core.actions import Action, JsonTools, described_tool, function_tool
from turngym.environments.core.env import AsyncTurnEnv
from turngym.environments.core.episode import Outcome
from turngym.environments.core.tasks import AT_WORK, judged_score
from turngym.errors import ConfigError, EnvironmentFault
from turngym.plugins import importing_extra
from turngym.tasks.base import Task

ANSWER = "answer"
_ANSWER_TOOL = function_tool(
    ANSWER, "Say that you are done, and what the answer is.", {"text": {"type": "string"}}, ["text"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpCall:
    """One tool call and its answer."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    is_error: bool


Judge = Callable[[Task, str, Sequence[McpCall]], Awaitable[float | None] | float | None]
"""(task, answer, calls) -> success in [0, 1], None for not judged."""


class McpEnv(AsyncTurnEnv):
    """Tool calls to an MCP server, until the agent answers.

    Action: JSON tool calls: the server's tools, and ``answer``. Names that servers of models refuse
        (``files.read``) are written with ``_``.
    Observation: what the tool says, a resource that is a text too; pictures and other parts are
        named, not shown.
    Reward: the judge's verdict at the end, on "" where a limit comes before an answer; else 0.
    Start: a new connection; the task's instruction, else ``instruction``.
    End: ``answer``, or a limit.

    Args:
        server: Address of a server (``http://.../mcp``), the command line that starts one, as text
            or a list of words, or a server object of the ``mcp`` package.
        instruction: What is asked, for tasks without an instruction of their own.
        judge: Says how good an answer is, "" at a limit; None leaves episodes unscored.
        tools: Names of the tools that are offered; None for all.
    """

    name = "mcp"

    def __init__(
        self,
        server: Any,
        instruction: str = "",
        *,
        judge: Judge | None = None,
        tools: Collection[str] | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        if isinstance(server, str) and not server.startswith(("http://", "https://")):
            server = shlex.split(server)
        if not server:
            raise ConfigError("mcp: server: wanted http://.../mcp, or the command that starts one")
        self.rules = "You work with the tools of a server. Say answer when you are done."
        self.action_format = JsonTools([_ANSWER_TOOL])
        self._server = server
        self._instruction = instruction
        self._judge = judge
        self._offered = None if tools is None else set(tools)
        self._connection: _Connection | None = None
        self._calls: list[McpCall] = []
        self._score: float | None = None
        self._names: dict[str, str] = {}
        """Of the tools at the server, by what they are called here."""

    async def begin(self, task: Task) -> Outcome:
        """Connect anew and learn which tools there are.

        Raises:
            ConfigError: A tool is missing, or has the name of ours.
        """
        await self.close()
        self._calls, self._score = [], None if self._judge is None else 0.0
        self._connection = _Connection(self._server)
        found = await self._connection.open()
        known = {tool["function"]["name"] for tool in found}
        if self._offered is not None and not self._offered <= known:
            missing = sorted(self._offered - known)[0]
            raise ConfigError(f"mcp: the server has no tool {missing!r}; it has {sorted(known)}")
        usable = [t for t in found if self._offered is None or _name(t) in self._offered]
        if ANSWER in map(_name, usable):
            raise ConfigError(
                f"mcp: the server has a tool {ANSWER!r}, which ends the episode here; name the "
                "others in tools"
            )
        self._names = _usable_names([*map(_name, usable)])
        for shown, tool in zip(self._names, usable, strict=True):
            tool["function"]["name"] = shown
        self.action_format = JsonTools([*usable, _ANSWER_TOOL])
        return Outcome(text=task.prompt or self._instruction)

    async def turn(self, action: Action) -> Outcome:
        if action.name == ANSWER:
            outcome = await self._judged(str(action.arguments["text"]))
            outcome.terminated = True
            return outcome
        assert self._connection is not None
        call = await self._connection.call(self._names[action.name], action.arguments)
        self._calls.append(call)
        return Outcome(text=call.text, invalid_action=call.text if call.is_error else None)

    async def end_at_limit(self) -> Outcome | None:  # type: ignore[override]  # awaited
        return None if self._judge is None else await self._judged("")

    def score(self) -> float | None:
        """Return what the judge said; 0 before, and None without one."""
        return judged_score(self._score)

    async def _judged(self, answer: str) -> Outcome:
        if self._judge is not None:
            self._score = AT_WORK
            verdict = self._judge(self.current_task, answer, tuple(self._calls))
            self._score = await verdict if inspect.isawaitable(verdict) else verdict
        return Outcome(text="Done.", reward=float(self._score or 0.0))

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()


class _Connection:
    """A client that lives in a task of its own: it must be closed by the task that opened it."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._wanted: asyncio.Queue[tuple[str, Mapping[str, Any], asyncio.Future[McpCall]] | None]
        self._wanted = asyncio.Queue()
        self._tools: asyncio.Future[list[dict[str, Any]]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_free = False
        """The server has answered all that it was asked."""

    async def open(self) -> list[dict[str, Any]]:
        """Connect and return the tools, as OpenAI-style function descriptions."""
        self._tools = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(self._tools))
        return await self._tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> McpCall:
        """Call a tool and return what came of it.

        Raises:
            EnvironmentFault: The connection is gone.
        """
        assert self._task is not None
        answer: asyncio.Future[McpCall] = asyncio.get_running_loop().create_future()
        self._is_free = False
        await self._wanted.put((name, arguments, answer))
        either: set[asyncio.Future[Any]] = {answer, self._task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise EnvironmentFault("mcp: the connection is gone")
        return answer.result()

    async def close(self) -> None:
        """Disconnect, from a server that does not answer as well."""
        if self._task is not None and not self._task.done():
            if self._is_free:
                await self._wanted.put(None)
            else:
                self._task.cancel()
            await asyncio.wait({self._task})

    async def _live(self, tools: asyncio.Future[list[dict[str, Any]]]) -> None:
        try:
            async with _client(self._server) as client:
                client.session.validate_tool_result = _as_it_came
                found = {
                    one.name: described_tool(one.name, one.description, checkable(one.input_schema))
                    async for one in _listed(client)
                }
                self._is_free = True
                if not tools.done():  # else it came too late
                    tools.set_result([*found.values()])
                while (wanted := await self._wanted.get()) is not None:
                    name, arguments, answer = wanted
                    try:
                        call = await self._called(client, name, arguments)
                    except Exception as error:  # noqa: BLE001 - the waiting caller must hear of it
                        if not answer.done():
                            answer.set_exception(_fault(error))
                    else:
                        if not answer.done():
                            answer.set_result(call)
                    self._is_free = True
        except Exception as error:  # noqa: BLE001 - the waiting caller must hear of it
            if not tools.done():
                tools.set_exception(_fault(error))

    async def _called(self, client: Any, name: str, arguments: Mapping[str, Any]) -> McpCall:
        """Call a tool; an error that the server itself answered with is what the tool said."""
        from mcp import MCPError
        from mcp.types import INTERNAL_ERROR, INVALID_PARAMS

        said: dict[str, Any]
        try:
            result = await client.call_tool(name, dict(arguments))
        except MCPError as error:
            # At an address, an internal error is also what a proxy says of a server that is gone.
            is_its_own = error.code == INTERNAL_ERROR and not isinstance(self._server, str)
            if not (is_its_own or error.code == INVALID_PARAMS):
                raise
            said = {"text": error.message, "is_error": True}
        else:
            said = {"text": _text(result), "is_error": bool(result.is_error)}
        return McpCall(name=name, arguments=dict(arguments), **said)


async def _listed(client: Any) -> AsyncIterator[Any]:
    """Yield the tools of all pages; some servers name the last page as the next one for ever."""
    seen = set[str | None]()
    cursor: str | None = None
    while cursor not in seen:
        seen.add(cursor)
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            yield tool
        cursor = page.next_cursor or None


async def _as_it_came(name: str, result: Any) -> None:
    """Accept a result that is not what its tool promised: the agent sees what the server says."""


def checkable(schema: Any) -> Any:
    """Return a JSON Schema without patterns that only JavaScript reads; the server knows them."""
    if isinstance(schema, list):
        return [checkable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: checkable(value)
        for key, value in schema.items()
        if not (key == "pattern" and isinstance(value, str) and not _compiles(value))
    }


def _compiles(pattern: str) -> bool:
    with suppress(re.error):
        return bool(re.compile(pattern))
    return False


def _client(server: Any) -> Any:
    with importing_extra("an MCP server", "mcp"):
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client
    if isinstance(server, list | tuple):
        command, *arguments = server
        server = StdioServerParameters(command=command, args=arguments)
    if isinstance(server, StdioServerParameters):
        # By default what stderr was when that module was imported, which may be no file at all.
        server = stdio_client(server, errlog=sys.__stderr__ or sys.stderr)
    return Client(server)


def _fault(error: Exception) -> Exception:
    if isinstance(error, ConfigError):
        return error
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return EnvironmentFault(f"mcp: {type(error).__name__}: {error}")


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _usable_names(names: Sequence[str]) -> dict[str, str]:
    """Return names by what models call them: OpenAI and Anthropic take no dots and 64 letters."""
    fit = {name for name in names if re.fullmatch(r"[\w-]{1,64}", name, re.ASCII)}
    found, taken = dict[str, str](), {ANSWER, *fit}
    for name in names:
        short = name if name in fit else re.sub(r"[^\w-]", "_", name, flags=re.ASCII)[:64]
        others = (f"{short[:60]}_{number}" for number in count(2))
        shown = name if name in fit else next(n for n in chain([short], others) if n not in taken)
        taken.add(shown)
        found[shown] = name
    return found


def _text(result: Any) -> str:
    """Return texts, those of resources too, and of other parts what they are."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    parts = [(part, getattr(part, "resource", part)) for part in result.content]
    return "\n".join(getattr(whole, "text", f"[{part.type}]") for part, whole in parts)
