"""``turngym serve openenv``: an environment for clients of OpenEnv, over WebSocket and HTTP.

    WS   /ws                      one environment each: {"type": "reset"|"step"|"state"|"close"}
    POST /reset, /step, /mcp      one environment that all of them share
    GET  /state, /schema, /metadata, /health, /openapi.json

A reset takes ``seed``, ``split`` with ``index``, or ``task``, an id. An action is ``{"text": what
the agent says}`` or a call, ``{"name": ..., "arguments": {...}}``. Score, stop reason and what was
wrong with an action are in ``metadata``. A fault is an error message, never a reward.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from turngym.agents.serving.http import (
    Access,
    BadRequest,
    Json,
    guarded_app,
    json_object,
    json_response,
)
from turngym.agents.serving.requests import checked
from turngym.errors import ConfigError, TurnGymError
from turngym.pictures import data_url
from turngym.plugins import importing_extra
from turngym.rollouts.gateway.hosted import HostedEnv, ToolAnswer
from turngym.seeding import derive_seed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

T = TypeVar("T")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ResetBody(_Body):
    """What a reset may say."""

    seed: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)
    split: Literal["train", "test"] | None = None
    index: int | None = Field(default=None, ge=0)
    task: str | None = None


class ActionBody(_Body):
    """What an agent does: ``text``, or a call of the tool ``name``."""

    text: str | None = None
    name: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Of no effect; OpenEnv's own clients send it."""


class Session:
    """One client's episodes.

    Args:
        hosted: The environment.
        seed: Root of seeds where a reset gives none.
    """

    def __init__(self, hosted: HostedEnv, seed: int) -> None:
        self.hosted, self._seed = hosted, seed
        self._number = itertools.count()
        self._episode_id: str | None = None
        self._turns = 0
        self._lock = asyncio.Lock()

    async def reset(self, data: Json) -> Json:
        """Begin an episode.

        Raises:
            BadRequest: A key is unknown, or a value is wrong.
            TurnGymError: There is no such task, or the environment broke.
        """
        asked = checked(ResetBody, data)
        if asked.task is not None and asked.index is not None:
            raise BadRequest("reset: wanted task or index, not both")
        number = next(self._number)
        seed = derive_seed(self._seed, number) if asked.seed is None else asked.seed
        chosen = asked.task if asked.task is not None else asked.index
        task = None if chosen is None else self.hosted.task(chosen, asked.split)
        if task is not None and asked.split not in (None, task.split):
            raise BadRequest(f"reset: task {task.id!r} is of split {task.split!r}")
        async with self._lock:
            answer = await self.hosted.reset(task, seed=seed, split=asked.split)
            self._episode_id, self._turns = asked.episode_id or f"episode-{number}", 0
        more = {"instructions": self.hosted.instructions_in_text, "tools": self.hosted.tools}
        return {**self._shown(answer, more), "reward": None}

    async def step(self, data: Json) -> Json:
        """Carry out an action.

        Raises:
            BadRequest: It is none, or there is no episode.
            TurnGymError: The environment broke.
        """
        asked = checked(ActionBody, data)
        if (asked.text is None) == (asked.name is None):
            raise BadRequest('action: wanted {"text": ...} or {"name": ..., "arguments": {...}}')
        async with self._lock:
            if self.hosted.is_over:
                raise BadRequest("there is no episode, or it is over: reset first")
            if asked.name is None:
                answer = await self.hosted.say(asked.text or "")
            else:
                answer = await self.hosted.call(asked.name, asked.arguments)
            self._turns += 1
        return self._shown(answer, {})

    def state(self) -> Json:
        """Return how far the episode is."""
        return {
            "episode_id": self._episode_id,
            "step_count": self._turns,
            "task_id": self.hosted.task_id,
        }

    def _shown(self, answer: ToolAnswer, more: Json) -> Json:
        observation = {"text": answer.text, **more}
        if answer.legal_actions is not None:
            observation["legal_actions"] = list(answer.legal_actions)
        if answer.image is not None:
            observation["image"] = data_url(answer.image)
        stop = answer.stop_reason
        metadata: Json = {"task_id": self.hosted.task_id}
        if answer.invalid_action is not None:
            metadata["invalid_action"] = answer.invalid_action
        if stop is not None:
            metadata |= {"stop_reason": stop.value, "truncated": stop.is_truncated}
            metadata["score"] = answer.score
            if answer.judged_at_limit:
                metadata["judged_at_limit"] = True
        return {
            "observation": observation,
            "reward": answer.reward,
            "done": stop is not None,
            "metadata": metadata,
        }


class OpenEnvServer:
    """Serves environments of one id.

    Args:
        open_env: Makes one for each session.
        env_id: Its name.
        seed: Root of seeds where a reset gives none.
        most: Sessions at a time, the one over HTTP aside.
        access: Which requests are read at all; None for those of this machine.
    """

    def __init__(
        self,
        open_env: Callable[[], HostedEnv],
        *,
        env_id: str,
        seed: int = 0,
        most: int = 16,
        access: Access | None = None,
    ) -> None:
        self._open_env, self._env_id, self._seed, self._most = open_env, env_id, seed, most
        self._access = access or Access()
        self._number, self._open = itertools.count(), 0
        self._over_http: Session | None = None

    def app(self) -> Starlette:
        """Return the ASGI application.

        Raises:
            MissingExtraError: The extra ``serve`` is not installed.
        """
        with importing_extra("a server", "serve"):
            import websockets  # noqa: F401  (what uvicorn speaks WebSocket with)
            from starlette.routing import WebSocketRoute
        answers: dict[str, tuple[str, Callable[[Json], Any]]] = {
            "/reset": ("POST", lambda body: self._http().reset(body)),
            "/step": ("POST", self._http_step),
            "/mcp": ("POST", self._mcp),
            "/state": ("GET", lambda _: self._http().state()),
            "/schema": ("GET", lambda _: self._schema()),
            "/metadata": ("GET", lambda _: self._metadata()),
            "/health": ("GET", lambda _: {"status": "healthy"}),
        }
        paths: Json = {
            path: {kind.lower(): {"responses": {}}} for path, (kind, _) in answers.items()
        }
        info = {"title": self._env_id, "version": "1.0.0"}
        openapi = {"openapi": "3.1.0", "info": info, "paths": paths}
        answers["/openapi.json"] = ("GET", lambda _: openapi)
        routes = [(kind, path, _endpoint(answer)) for path, (kind, answer) in answers.items()]

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            yield
            if self._over_http is not None:
                await self._over_http.hosted.close()

        socket = WebSocketRoute("/ws", self._talk)
        return guarded_app(routes, self._access, others=[socket], lifespan=lifespan)

    def _session(self) -> Session:
        number = next(self._number)
        return Session(self._open_env(), derive_seed(self._seed, "openenv", number))

    # Over WebSocket.

    async def _talk(self, socket: WebSocket) -> None:
        from starlette.websockets import WebSocketDisconnect

        await socket.accept()
        if self._open >= self._most:
            await socket.send_text(
                _error(
                    "CAPACITY_REACHED", f"{self._most} sessions are open; --sessions allows more"
                )
            )
            await socket.close()
            return
        self._open += 1
        try:
            session = self._session()
            try:
                await _serve(session, socket)
                await socket.close()
            finally:
                await session.hosted.close()
        except WebSocketDisconnect:
            pass
        except TurnGymError as error:
            await socket.send_text(_error("FACTORY_ERROR", str(error)))
            await socket.close()
        finally:
            self._open -= 1

    # Over HTTP.

    def _http(self) -> Session:
        if self._over_http is None:
            self._over_http = self._session()
        return self._over_http

    async def _http_step(self, body: Json) -> Json:
        action = body.get("action")
        if not isinstance(action, dict):
            raise BadRequest('the body: wanted {"action": {...}}', status=422)
        return await self._http().step(action)

    async def _mcp(self, body: Json) -> Json:
        """Answer MCP's calls for tools as JSON-RPC."""
        answer: Json = {"jsonrpc": "2.0", "id": body.get("id")}
        method, params = body.get("method"), body.get("params")
        params = params if isinstance(params, dict) else {}
        if method == "tools/list":
            tools = [tool["function"] for tool in self._http().hosted.tools]
            listed = [
                {"name": one["name"], "description": one.get("description", ""),
                 "inputSchema": one["parameters"]} for one in tools
            ]  # fmt: skip
            return {**answer, "result": {"tools": listed}}
        if method != "tools/call":
            code = -32601 if isinstance(method, str) else -32600
            return {**answer, "error": {"code": code, "message": "wanted tools/list or tools/call"}}
        call = {"name": params.get("name"), "arguments": params.get("arguments") or {}}
        try:
            found = await self._http_step({"action": call})
        except (BadRequest, TurnGymError) as error:
            text, is_error = str(error), True
        else:
            text, is_error = found["observation"]["text"], "invalid_action" in found["metadata"]
        content = [{"type": "text", "text": text}]
        return {**answer, "result": {"content": content, "isError": is_error}}

    def _schema(self) -> Json:
        text = {"type": "string"}
        action = {
            "title": "TextAction", "type": "object", "required": ["text"],
            "properties": {"text": {**text, "description": "What the agent says."}},
        }  # fmt: skip
        names = {"text": text, "image": text, "legal_actions": {"type": "array", "items": text}}
        seen = {"title": "Observation", "type": "object", "required": ["text"], "properties": names}
        first = {**names, "instructions": text, "tools": {"type": "array"}}
        state = {"episode_id": text, "step_count": {"type": "integer"}, "task_id": text}
        return {
            "action": action,
            "observation": seen,
            "reset_observation": {**seen, "properties": first},
            "state": {"title": "State", "type": "object", "properties": state},
        }

    def _metadata(self) -> Json:
        rules = self._http().hosted.instructions
        return {"name": self._env_id, "description": rules}


async def _serve(session: Session, socket: WebSocket) -> None:
    """Answer a client's messages until it ends its session."""
    heard = asyncio.ensure_future(_received(socket))
    try:
        while True:
            body = await heard
            heard = asyncio.ensure_future(_received(socket))
            if (said := await _unless_gone(_said(session, body), heard)) is None:
                return
            await socket.send_text(said)
    finally:
        await _cancelled(heard)


async def _unless_gone(work: Coroutine[Any, Any, T], heard: asyncio.Future[bytes]) -> T:
    """Return what ``work`` returns; it is cancelled where the client goes away meanwhile.

    Args:
        work: Its answer.
        heard: Its next message, which raises where it has gone.
    """
    task = asyncio.ensure_future(work)
    both: set[asyncio.Future[Any]] = {task, heard}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            heard.result()
        return await task
    finally:
        await _cancelled(task)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _received(socket: WebSocket) -> bytes:
    """Return the next message, of text or of bytes."""
    from starlette.websockets import WebSocketDisconnect

    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    return message.get("bytes") or (message.get("text") or "").encode()


async def _said(session: Session, body: bytes) -> str | None:
    """Return the answer to one message; None where it ends the session."""
    try:
        message = json_object(body)
    except BadRequest as error:
        return _error("INVALID_JSON", error.message)
    kind, data = message.get("type"), message.get("data", {})
    if kind == "close":
        return None
    if kind == "state":
        return json.dumps({"type": "state", "data": session.state()})
    if kind not in ("reset", "step") or not isinstance(data, dict):
        return _error("UNKNOWN_TYPE", f"type {kind!r}: wanted reset, step, state or close")
    try:
        found = await (session.reset(data) if kind == "reset" else session.step(data))
    except (BadRequest, ConfigError) as error:
        return _error("VALIDATION_ERROR", str(error))
    except TurnGymError as error:
        return _error("EXECUTION_ERROR", str(error))
    return json.dumps({"type": "observation", "data": found})


def _error(code: str, message: str) -> str:
    return json.dumps({"type": "error", "data": {"code": code, "message": message}})


def _endpoint(answer: Callable[[Json], Any]) -> Callable[[Request], Any]:
    """Return what answers a request with the JSON that ``answer`` makes of its body."""

    async def endpoint(request: Request) -> Response:
        try:
            found = answer(json_object(await request.body()))
            found = await found if asyncio.iscoroutine(found) else found
        except ConfigError as error:
            raise BadRequest(str(error)) from error
        except TurnGymError as error:
            raise BadRequest(str(error), status=500) from error
        return json_response(found)

    return endpoint
