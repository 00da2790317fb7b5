"""``turngym serve gateway``: an outside agent's model, with everything it says recorded.

For the agent, under ``/episodes/NAME``:

    POST /v1/chat/completions    POST /v1/responses    GET /v1/models    /mcp

``/v1/...`` without an episode is the episode ``default``. For whoever runs the agent, with the
control key as bearer token:

    POST /episodes                   open one: {"task", "name", "env", "attempt"} -> addresses
    POST /episodes/NAME/reward       {"reward": 0.5}
    POST /episodes/NAME/end          {"score": 1.0, "reward": 1.0} -> where the trajectory is
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from turngym.agents.base import ContextOverflow
from turngym.agents.remote.endpoint import Endpoint, HalfAnswer
from turngym.agents.remote.wire import (
    ASK_CHAT_TOKENS,
    drawn_of,
    first_choice,
    prompt_ids_of,
)
from turngym.agents.serving.requests import BadRequest, messages_of
from turngym.errors import (
    ConfigError,
    EnvironmentFault,
    PolicyFault,
    TurnGymError,
    missing_extra,
)
from turngym.rollouts.gateway.chunks import ChunkCollector, without_ours
from turngym.rollouts.gateway.episodes import Episode, Episodes
from turngym.rollouts.gateway.hosted import ToolAnswer
from turngym.rollouts.gateway.responses import ResponseWriter, answer_row, chat_request
from turngym.types import StopReason

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

Json = dict[str, Any]
Tokens = Literal["auto", "yes", "no"]
"""Ask upstream for token ids: and do without when it refuses; and insist; or do not ask."""

DEFAULT_EPISODE = "default"
_DONE = b"data: [DONE]\n\n"


class Gateway:
    """Passes calls on to one upstream server and records them.

    Args:
        endpoint: The upstream server; its model answers whatever model the agent names.
        episodes: Where the calls are recorded.
        control_key: Opens and ends episodes; an agent must not have it.
        tokens: Whether to ask for token ids.
        serves_tools: Offer the tools of hosted environments over MCP.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        episodes: Episodes,
        *,
        control_key: str,
        tokens: Tokens = "auto",
        serves_tools: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._episodes = episodes
        self._control_key = control_key
        self._tokens: Tokens = tokens
        self._serves_tools = serves_tools
        episodes.scrubber.add(control_key)

    def app(self) -> Starlette:
        """Return the ASGI application.

        Raises:
            MissingExtraError: The extra ``serve``, or ``mcp`` where it is wanted, is not installed.
        """
        try:
            from starlette.applications import Starlette
            from starlette.routing import Mount, Route
        except ImportError as error:
            raise missing_extra("a server", "serve") from error
        routes: list[Any] = [
            Route("/health", self._health),
            Route("/episodes", self._open, methods=["POST"]),
            Route("/episodes/{name}/reward", self._reward, methods=["POST"]),
            Route("/episodes/{name}/end", self._end, methods=["POST"]),
        ]
        for prefix in ("/episodes/{name}", ""):
            routes += [
                Route(f"{prefix}/v1/models", self._models),
                Route(f"{prefix}/v1/chat/completions", self._chat, methods=["POST"]),
                Route(f"{prefix}/v1/responses", self._responses, methods=["POST"]),
            ]
        tools = None
        if self._serves_tools:
            from turngym.rollouts.gateway.mcp_server import mcp_app

            tools = mcp_app(self._find_open, self.call_tool)
            routes.append(Mount("/", app=tools))

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self._endpoint.enter()
            try:
                if tools is None:
                    yield
                else:
                    async with tools.router.lifespan_context(tools):
                        yield
            finally:
                await self._episodes.end_all()
                await self._endpoint.leave()

        return Starlette(
            routes=routes,
            lifespan=lifespan,
            exception_handlers={BadRequest: _refused, TurnGymError: _failed},
        )

    # For the agent.

    async def _models(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        name = self._endpoint.config.model
        model = {"id": name, "object": "model", "created": 0, "owned_by": "turngym-gateway"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        from starlette.responses import JSONResponse, StreamingResponse

        episode = await self._episode(request)
        asked = await _body(request)
        if asked.get("stream"):
            stream = self._chat_stream(episode, asked)
            return StreamingResponse(stream, media_type="text/event-stream")
        return JSONResponse(without_ours(await self._ask(episode, asked), asked))

    async def _responses(self, request: Request) -> Response:
        from starlette.responses import JSONResponse, StreamingResponse

        episode = await self._episode(request)
        body = await _body(request)
        before = body.get("previous_response_id")
        if before is not None and before not in episode.responses:
            raise BadRequest(f"previous_response_id: no response {before!r}", status=404)
        asked = chat_request(body, episode.responses[before] if before else [])
        writer = ResponseWriter(body)
        if asked.get("stream"):
            stream = self._response_stream(episode, asked, writer)
            return StreamingResponse(stream, media_type="text/event-stream")
        answer = await self._ask(episode, asked)
        episode.responses[writer.id] = [*asked["messages"], answer_row(answer)]
        return JSONResponse(writer.whole(answer))

    async def _ask(self, episode: Episode, asked: Json) -> Json:
        """Return the whole answer to a chat request, recorded."""
        try:
            reply = await self._endpoint.post(
                "/chat/completions", self._upstream(asked), check=_check
            )
        except PolicyFault as fault:
            if self._may_do_without(fault):
                return await self._ask(episode, asked)
            episode.recorder.fault(str(fault))
            raise
        except ContextOverflow as error:
            episode.recorder.fault(str(error))
            raise BadRequest(str(error), code="context_length_exceeded") from error
        await self._record(episode, asked, reply.body, reply.usage)
        return reply.body

    async def _chat_stream(self, episode: Episode, asked: Json) -> AsyncIterator[bytes]:
        collector = ChunkCollector()
        held: list[bytes] = []  # an agent may leave, or act, as soon as it has seen the end
        try:
            async for chunk in self._chunks(asked):
                collector.add(chunk)
                if not collector.is_whole:
                    yield _event(without_ours(chunk, asked))
                elif chunk.get("choices") or _wants_usage(asked):
                    held.append(_event(without_ours(chunk, asked)))
            await self._record_stream(episode, asked, collector)
            for event in held:
                yield event
            yield _DONE
        except (ConfigError, ContextOverflow, HalfAnswer, PolicyFault) as error:
            episode.recorder.fault(f"a stream failed: {error}")
            yield _event({"error": {"message": str(error), "type": "upstream_error"}})

    async def _response_stream(
        self, episode: Episode, asked: Json, writer: ResponseWriter
    ) -> AsyncIterator[bytes]:
        collector = ChunkCollector()
        try:
            for event in writer.opening():
                yield event
            async for chunk in self._chunks(asked):
                for event in writer.text(collector.add(chunk)):
                    yield event
            answer = await self._record_stream(episode, asked, collector)
            episode.responses[writer.id] = [*asked["messages"], answer_row(answer)]
            for event in writer.closing(answer):
                yield event
        except (ConfigError, ContextOverflow, HalfAnswer, PolicyFault) as error:
            episode.recorder.fault(f"a stream failed: {error}")
            told = {"type": "error", "code": "upstream_error", "message": str(error), "param": None}
            yield b"event: error\n" + _event(told)

    async def _chunks(self, asked: Json) -> AsyncIterator[Json]:
        """Yield the chunks of the upstream answer, without token ids where it knows none."""
        try:
            async for chunk in self._endpoint.stream("/chat/completions", self._upstream(asked)):
                yield chunk
        except PolicyFault as fault:
            if not self._may_do_without(fault):
                raise
            async for chunk in self._endpoint.stream("/chat/completions", self._upstream(asked)):
                yield chunk

    def _upstream(self, asked: Json) -> Json:
        """Return the request as it goes upstream."""
        body = {**asked, "model": self._endpoint.config.model, **self._endpoint.config.extra}
        if self._tokens != "no":
            body |= ASK_CHAT_TOKENS
        if asked.get("stream"):
            body["stream_options"] = {**(asked.get("stream_options") or {}), "include_usage": True}
        return body

    def _may_do_without(self, fault: PolicyFault) -> bool:
        """Stop asking for token ids when the upstream server refuses the question."""
        text = str(fault)
        refused = "refused (400)" in text or "refused (422)" in text
        if self._tokens != "auto" or not refused:
            return False
        if "return_token_ids" not in text and "logprobs" not in text:
            return False
        logger.warning("upstream tells no token ids; episodes are recorded without (%s)", text)
        self._tokens = "no"
        return True

    async def _record_stream(
        self, episode: Episode, asked: Json, collector: ChunkCollector
    ) -> Json:
        if not collector.is_whole:
            raise HalfAnswer("the answer broke off before its end")
        answer = collector.answer()
        told = answer.get("usage") or {}
        usage = {
            "prompt_tokens": float(told.get("prompt_tokens") or 0),
            "completion_tokens": float(told.get("completion_tokens") or 0),
            "requests": 1.0,
        }
        await self._record(episode, asked, answer, usage)
        return answer

    async def _record(
        self, episode: Episode, asked: Json, answer: Json, usage: Mapping[str, float]
    ) -> None:
        if episode.is_over:
            return  # a call that came after the end is answered, and belongs to nothing
        prompt_ids, drawn = prompt_ids_of(answer), drawn_of(answer)
        if self._tokens == "yes" and (prompt_ids is None or drawn is None):
            raise ConfigError("upstream tells no token ids with log-probs, and tokens=yes asks for")
        async with episode.lock:
            episode.recorder.call(
                messages_of(_without_images(asked["messages"])),
                messages_of([first_choice(answer)["message"]])[0],
                prompt_ids=prompt_ids,
                drawn=drawn,
                usage=usage,
            )

    async def call_tool(self, episode: Episode, name: str, arguments: Json) -> ToolAnswer:
        """Carry out a tool call in a hosted environment and record what it earned.

        Raises:
            EnvironmentFault: The environment broke; the episode is over.
        """
        assert episode.hosted is not None
        async with episode.lock:
            try:
                answer = await episode.hosted.call(name, arguments)
            except EnvironmentFault as fault:
                await self._episodes.end(episode, StopReason.ERROR_ENV, error=str(fault))
                raise
            episode.recorder.reward(answer.reward, invalid_action=answer.invalid_action)
            episode.recorder.observe(answer.text)
            if answer.stop_reason is not None:
                await self._episodes.end(episode, answer.stop_reason, score=answer.score)
        return answer

    # For whoever runs the agent.

    async def _health(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse({"status": "ok", "finished": len(self._episodes.finished)})

    async def _open(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        self._check_control(request)
        body = await _body(request)
        episode = await self._episodes.open(
            body.get("name"),
            task_id=body.get("task"),
            env_id=body.get("env"),
            attempt=int(body.get("attempt") or 0),
        )
        root = f"{str(request.base_url).rstrip('/')}/episodes/{episode.name}"
        found: Json = {
            "episode": episode.name,
            "task": episode.recorder.task_id,
            "base_url": f"{root}/v1",
        }
        if episode.hosted is not None:
            found |= {
                "instructions": episode.hosted.instructions,
                "observation": episode.hosted.observation,
                "tools": episode.hosted.tools,
            }
            if self._serves_tools:
                found["mcp_url"] = f"{root}/mcp"
        return JSONResponse(found)

    async def _reward(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        self._check_control(request)
        episode = self._named(request)
        episode.recorder.reward(_number(await _body(request), "reward"))
        return JSONResponse({"turns": episode.recorder.num_turns})

    async def _end(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        self._check_control(request)
        episode, body = self._named(request), await _body(request)
        if "reward" in body:
            episode.recorder.reward(_number(body, "reward"))
        score = None if body.get("score") is None else _number(body, "score")
        if score is not None and not 0 <= score <= 1:
            raise BadRequest(f"score must lie in [0, 1], got {score}")
        if score is None and episode.hosted is not None:
            score = episode.hosted.score()
        error = body.get("error")
        stop = StopReason.TERMINATED if error is None else StopReason.ERROR_POLICY
        if error is None and episode.hosted is not None:
            stop = StopReason.TRUNCATED_ENV  # the environment had not come to an end of its own
        trajectory = await self._episodes.end(
            episode, stop, score=score, error=None if error is None else str(error)
        )
        segments = 1 + sum(turn.starts_segment for turn in trajectory.turns)
        return JSONResponse(
            {
                "episode": episode.name,
                "turns": len(trajectory.turns),
                "segments": segments,
                "sampled_tokens": trajectory.num_sampled_tokens,
                "return": trajectory.episode_return,
                "score": trajectory.score,
            }
        )

    async def _episode(self, request: Request) -> Episode:
        """Return the episode of an agent's call; the default one is opened when first spoken to."""
        self._learn_secret(request)
        name = request.path_params.get("name")
        if name is not None:
            return self._named(request)
        found = self._find_open(DEFAULT_EPISODE)
        return found or await self._episodes.open(DEFAULT_EPISODE)

    def _learn_secret(self, request: Request) -> None:
        """Whatever key the agent sends is a secret of somebody."""
        for header in ("authorization", "x-api-key", "api-key"):
            self._episodes.scrubber.add(request.headers.get(header, "").split(" ")[-1])

    def _find_open(self, name: str) -> Episode | None:
        try:
            return self._episodes.find(name)
        except KeyError:
            return None

    def _named(self, request: Request) -> Episode:
        name = request.path_params["name"]
        found = self._find_open(name)
        if found is None:
            raise BadRequest(f"episode {name!r} is not open", status=404, code="no_episode")
        return found

    def _check_control(self, request: Request) -> None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(sent.encode(), self._control_key.encode()):
            raise BadRequest("the control key is wrong", status=401, code="invalid_control_key")


def _check(answer: Mapping[str, Any]) -> None:
    choice = first_choice(answer)
    if not isinstance(choice.get("message"), Mapping) or choice.get("finish_reason") is None:
        raise HalfAnswer("the answer broke off")


def _wants_usage(asked: Json) -> bool:
    return bool((asked.get("stream_options") or {}).get("include_usage"))


def _without_images(rows: list[Json]) -> list[Json]:
    """Return chat messages with each picture as a word: trajectories hold text."""
    return [
        {**row, "content": [_part(part) for part in row["content"]]}
        if isinstance(row.get("content"), list)
        else row
        for row in rows
    ]


def _part(part: Any) -> Json:
    if isinstance(part, Mapping) and part.get("type") in ("text", "input_text", "output_text"):
        return dict(part)
    kind = part.get("type", "part") if isinstance(part, Mapping) else "part"
    return {"type": "text", "text": f"[{kind}]"}


async def _body(request: Request) -> Json:
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object")
    return body


def _number(body: Json, name: str) -> float:
    value = body.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadRequest(f"{name}: wanted a number, got {value!r}")
    return float(value)


def _event(body: Json) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _refused(request: Request, error: Exception) -> Response:
    from starlette.responses import JSONResponse

    assert isinstance(error, BadRequest)
    content = {"message": error.message, "type": "invalid_request_error", "code": error.code}
    return JSONResponse({"error": content}, status_code=error.status)


def _failed(request: Request, error: Exception) -> Response:
    from starlette.responses import JSONResponse

    status = 400 if isinstance(error, ConfigError) else 502
    content = {"message": str(error), "type": "upstream_error"}
    return JSONResponse({"error": content}, status_code=status)
