"""Episodes on somebody's OpenEnv server, as an environment of ours.

turngym eval turngym.environments.tools.openenv:OpenEnvEnv --env-option url=http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from turngym.environments.core.actions import Action, JsonTools, described_tool, function_tool
from turngym.environments.core.env import AsyncTurnEnv
from turngym.environments.core.episode import Outcome
from turngym.environments.tools.mcp import checkable
from turngym.errors import ConfigError, EnvironmentFault
from turngym.plugins import importing_extra
from turngym.tasks.base import Task

ACT = "act"
_NO_ACTION = "VALIDATION_ERROR"
_APART = ("done", "reward", "metadata")
_END = ("score", "judged_at_limit")
_CALL = "call_tool"
"""The type of an action that is a call of an MCP tool (OpenEnv's RFC 003)."""
_MOST_BYTES = 64 << 20
_met: set[str] = set()
"""Servers that have answered: one of them that is gone is a fault, and no wrong setting."""


class OpenEnvEnv(AsyncTurnEnv):
    """An environment behind OpenEnv's WebSocket, one session each.

    Action: the tool ``act``, whose arguments are the server's own action schema; of a server whose
        actions are calls of MCP tools, those tools.
    Observation: its ``text`` where that is all there is, what a tool says, else it as JSON.
    Reward: the server's; a step without one pays 0.
    Start: the server's reset, with the seed of the task.
    End: the server says ``done``, or a limit. An error of the server is a fault.

    Args:
        url: Address of the server, ``http://...``.
        reset: More arguments of each reset, for example ``{"split": "test"}``.
        timeout_s: Longest wait for an answer, in seconds.
    """

    name = "openenv"
    rules = "You act in an environment that is played on a server."

    def __init__(
        self,
        url: str,
        *,
        reset: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"openenv: url {url!r}: wanted http://HOST:PORT")
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self._reset, self._socket = dict(reset or {}), None
        self.action_format = JsonTools([_tool({})])  # until the server says its own
        self._calls_tools = False

    async def begin(self, task: Task) -> Outcome:
        """Connect, learn what an action is, and reset.

        Raises:
            ConfigError: There is no server, and was none, or it speaks no OpenEnv.
            EnvironmentFault: It cannot reset, or is gone.
        """
        if self._socket is None:
            self._socket = await self._connected()
            if self._calls_tools:
                self.action_format = JsonTools(await self._tools())
        seed = {"seed": task.seed % 2**31, "episode_id": task.id}
        found = await self._ask("reset", {**seed, **self._reset})
        if found["type"] != "observation":
            await self.close()  # the server may have closed it already
            raise EnvironmentFault(f"openenv: {self.url}: reset: {found.get('data')}")
        outcome = _outcome(found["data"])
        if outcome.terminated or outcome.truncated:
            raise EnvironmentFault(
                f"openenv: {self.url}: reset: over before it began: {outcome.text}"
            )
        return outcome

    async def turn(self, action: Action) -> Outcome:
        """Take a step.

        Raises:
            EnvironmentFault: The server broke, or is gone.
        """
        asked = dict(action.arguments)
        if self._calls_tools:
            asked = {"type": _CALL, "tool_name": action.name, "arguments": asked}
        found = await self._ask("step", asked)
        data = found.get("data") or {}
        if found["type"] == "observation":
            return _outcome(data)
        message = str(data.get("message"))
        if data.get("code") != _NO_ACTION:
            raise EnvironmentFault(f"openenv: {self.url}: step: {message}")
        return Outcome(text=message, invalid_action=message)

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _connected(self) -> Any:
        with importing_extra("an OpenEnv server", "serve"):
            from websockets.asyncio.client import connect
            from websockets.exceptions import WebSocketException
        try:
            schema = checkable(await asyncio.to_thread(self._schema))
            self.action_format = JsonTools([_tool(schema)])
            self._calls_tools = schema.get("properties", {}).get("type", {}).get("const") == _CALL
            place = f"ws{self.url.removeprefix('http')}/ws"
            found = await connect(place, open_timeout=self.timeout_s, max_size=_MOST_BYTES)
        except (OSError, ValueError, TimeoutError, WebSocketException) as error:
            kind = EnvironmentFault if self.url in _met else ConfigError
            raise kind(f"openenv: url {self.url!r}: no OpenEnv server: {error}") from error
        _met.add(self.url)
        return found

    async def _tools(self) -> list[dict[str, Any]]:
        found = await self._ask("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        try:
            return [
                described_tool(one["name"], one.get("description"), checkable(one["inputSchema"]))
                for one in found["data"]["result"]["tools"]
            ]
        except (KeyError, TypeError) as error:
            await self.close()  # the server may be full
            raise EnvironmentFault(f"openenv: {self.url}: lists no tools: {found}") from error

    def _schema(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/schema", timeout=self.timeout_s) as answer:
            found = json.load(answer)
        if not isinstance(found, dict) or not isinstance(found.get("action"), dict):
            raise ValueError("/schema names no action")
        action: dict[str, Any] = found["action"]
        return action

    async def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        assert self._socket is not None
        try:
            async with asyncio.timeout(self.timeout_s):
                with suppress(ConnectionClosed):  # why it was closed is still to be read
                    await self._socket.send(json.dumps({"type": kind, "data": data}))
                found = json.loads(await self._socket.recv())
        except asyncio.CancelledError:  # the answer that comes is none to the next question
            socket, self._socket = self._socket, None
            socket.transport.abort()
            raise
        except (OSError, ValueError, TimeoutError, WebSocketException) as error:
            await self.close()
            raise EnvironmentFault(f"openenv: {self.url}: {kind}: {error!r}") from error
        if not isinstance(found, dict) or "type" not in found:
            raise EnvironmentFault(f"openenv: {self.url}: {kind}: no message of OpenEnv: {found!r}")
        return found


def _tool(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool whose arguments are an action of the server."""
    properties = {
        name: value for name, value in schema.get("properties", {}).items() if name != "metadata"
    }
    required = [name for name in schema.get("required", ()) if name in properties]
    tool = function_tool(ACT, str(schema.get("description") or "Act."), properties, required)
    if definitions := schema.get("$defs"):
        tool["function"]["parameters"]["$defs"] = definitions
    return tool


def _outcome(data: Mapping[str, Any]) -> Outcome:
    seen = {
        name: one for name, one in (data.get("observation") or {}).items() if name not in _APART
    }
    metadata = data.get("metadata") or {}
    text, problem = _said(seen or metadata)
    wrong = metadata.get("invalid_action") or problem
    is_over, is_cut = bool(data.get("done")), bool(metadata.get("truncated"))
    return Outcome(
        text=text,
        reward=float(data.get("reward") or 0.0),
        terminated=is_over and not is_cut,
        truncated=is_over and is_cut,
        invalid_action=str(wrong) if wrong else None,
        # A server of ours says why it stopped, too; what another calls a score is its own affair.
        info={k: metadata[k] for k in _END if k in metadata} if "stop_reason" in metadata else None,
    )


def _said(seen: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return an observation as text, and why a call of a tool was none.

    Raises:
        EnvironmentFault: A tool could not be reached, or took too long.
    """
    if seen.keys() == {"text"}:
        return str(seen["text"]), None
    if seen.keys() == {"tool_name", "result", "error"}:
        if error := seen["error"]:
            kind, message = error.get("error_type"), str(error["message"])
            if kind in ("transport_error", "timeout"):
                raise EnvironmentFault(f"openenv: tool {seen['tool_name']!r}: {kind}: {message}")
            return message, None if kind == "execution_error" else message
        parts = (seen["result"] or {}).get("content") or []
        if parts and all(part.get("type") == "text" for part in parts):
            return "\n".join(part["text"] for part in parts), None
    return json.dumps(seen, ensure_ascii=False), None
