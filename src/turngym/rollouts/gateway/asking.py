"""How a program that is played speaks to its model: as HTTP, one episode at a time.

Under ``/episodes/KEY``, KEY being the episode's own:

    POST /v1/chat/completions    POST /v1/responses    POST /v1/messages    GET /v1/models    /mcp
    GET /task     what is to be done, with the first picture of the inner environment
    POST /act     {"action": "go north"}, or {"name": "go", "arguments": {...}} -> what is seen
    POST /end     {"score": 1.0, "reward": 1.0}, of a program with an environment of its own;
                  {"error": TEXT} where it broke, so that the episode does not count
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from turngym.agents.serving.answers import before_stop, split_tool_calls, tool_call_rows
from turngym.agents.serving.http import (
    DONE,
    Access,
    BadRequest,
    EventStream,
    Json,
    error_response,
    event,
    guarded_app,
    json_object,
    json_response,
    while_connected,
)
from turngym.agents.serving.requests import ChatRequest, checked, messages_of, parse
from turngym.environments.core.env import Outcome
from turngym.errors import EnvironmentFault
from turngym.faults import Boundary
from turngym.pictures import data_url, pixels_in
from turngym.rollouts.gateway import anthropic
from turngym.rollouts.gateway.bodies import EndBody
from turngym.rollouts.gateway.calls import mcp_app
from turngym.rollouts.gateway.hosted import HostedEnv, ToolAnswer
from turngym.rollouts.gateway.responses import ResponseWriter, chat_request
from turngym.types import Message

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Writer = ResponseWriter | anthropic.MessageWriter
_OVER = "the episode is over"
_COUNT = ("POST", "v1/messages/count_tokens", anthropic.count_tokens)
_MODEL = {"id": "policy", "object": "model", "created": 0, "owned_by": "turngym"}


@dataclass(slots=True, kw_only=True)
class Asking:
    """A question of the program to its model, which waits for the answer."""

    messages: Sequence[Message]
    """The whole conversation."""
    files: Mapping[int, bytes]
    """Image files that some of the messages show, by their place."""
    tools: Sequence[Json]
    stops: Sequence[str]
    answer: asyncio.Future[Message] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class ProgramSide:
    """What a program has asked and done in one episode.

    Args:
        hosted: The environment that it acts on, where it has none of its own.
        task: What the program is to do.
        shows_pictures: It may ask about pictures.
    """

    def __init__(
        self, hosted: HostedEnv | None, task: Json, *, shows_pictures: bool = False
    ) -> None:
        self.task = task
        self._shows_pictures = shows_pictures
        self.key = secrets.token_urlsafe(16)
        self.hosted = hosted
        self.questions: asyncio.Queue[Asking] = asyncio.Queue()
        self.asked: Asking | None = None
        """The question that is shown, until it is answered."""
        self.score: float | None = None
        self.error: str | None = None
        """Why the episode does not count, by the program's own word."""
        self.responses: dict[str, list[Json]] = {}
        """Chat messages of each response, which later ones may go on from."""
        self.is_over = False
        self._said: list[Message] = []
        """The conversation up to and with the last answer."""
        self._uncut = ""
        """The last answer, behind a stop text as well."""
        self._files: Mapping[int, bytes] = {}
        """What it shows."""
        self._tools: Sequence[Json] = ()
        """What it may call."""
        self._reward = 0.0

    def shown(self, asked: Asking) -> Outcome:
        """Return a question as what is seen: what is new, or all of it where it was rewritten.

        Raises:
            EnvironmentFault: An image cannot be read.
        """
        said, files, whole = self._said, self._files, asked.messages
        has_other_tools = asked.tools != self._tools
        self.asked, self._files, self._tools = asked, asked.files, asked.tools
        kept, info = 0, dict[str, Any]()
        for n, (one, other) in enumerate(zip(said, whole, strict=False)):
            # Some put the stop text back that ended the last answer.
            uncut = replace(one, content=self._uncut) if n == len(said) - 1 else one
            is_same = _same(one, other) or _same(uncut, other)
            if not is_same or files.get(n) != asked.files.get(n):
                break
            kept += 1
        if said and not kept == len(said) < len(whole):
            info["rewritten"] = f"history was rewritten from message {kept} of {len(said)} on"
        elif said and has_other_tools:
            info["rewritten"] = "the tools are others"
        kept = 0 if "rewritten" in info else kept
        info |= {"messages": tuple(whole[kept:]), "tools": list(asked.tools)}
        text, last = "\n\n".join(message.content for message in info["messages"]), None
        if new := {n - kept: file for n, file in asked.files.items() if n >= kept}:
            with Boundary("a question about an image", EnvironmentFault):
                info["pictures"] = {place: pixels_in(file) for place, file in new.items()}
            last = info["pictures"][max(new)]
        return Outcome(text=text, reward=self.take_reward(), info=info, image=last)

    def answer(self, text: str) -> None:
        """Answer the question that is shown, up to the first of its stop texts."""
        asked, self.asked = self.asked, None
        if asked is not None:
            message = split_tool_calls(before_stop(text, asked.stops), asked.tools)
            self._said, self._uncut = [*asked.messages, message], text
            if not asked.answer.done():
                asked.answer.set_result(message)

    def take_reward(self) -> float:
        """Return what was paid since the last call."""
        reward, self._reward = self._reward, 0.0
        return reward

    async def ask(self, request: ChatRequest) -> Json:
        """Return the model's answer, as the body of a chat completion.

        Raises:
            BadRequest: It asks for what no model here does, or the episode is over.
        """
        request.sampling(1)  # refuses what would change the answer
        for name in ("logprobs", "return_token_ids"):
            if getattr(request, name):
                raise BadRequest(f"{name}: they are of the policy's own; leave it out")
        tools, images = request.usable_tools, _Images()
        show = images.show if self._shows_pictures else None
        messages, files = images.taken(messages_of(request.messages, show))
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        asked = Asking(messages=messages, files=files, tools=tools, stops=[*filter(None, stops)])
        if self.is_over:
            raise BadRequest(_OVER, status=410)
        await self.questions.put(asked)
        try:
            return _completion(request.model, messages, await asked.answer)
        except asyncio.CancelledError:
            if not self.is_over:  # the program has gone, and with it the question
                raise
            raise BadRequest(_OVER, status=410) from None

    async def next_question(self) -> Asking:
        """Return the next question that the program still waits for."""
        while (asked := await self.questions.get()).answer.done():
            pass
        return asked

    def said_before(self, response: str | None) -> list[Json]:
        """Return the chat messages up to and with a response, by its id.

        Raises:
            BadRequest: There is none.
        """
        if response is not None and response not in self.responses:
            raise BadRequest(f"previous_response_id: no response {response!r}", status=404)
        return [] if response is None else self.responses[response]

    async def act(self, said: Json) -> ToolAnswer:
        """Carry out what the program does in the inner environment.

        Raises:
            BadRequest: There is none, or no action.
        """
        if self.hosted is None:
            raise BadRequest("act: this program was given no environment (inner=...)", status=404)
        if isinstance(said.get("action"), str):
            answer = await self.hosted.say(said["action"])
        elif isinstance(said.get("name"), str) and isinstance(said.get("arguments", {}), dict):
            answer = await self.hosted.call(said["name"], said.get("arguments", {}))
        else:
            raise BadRequest('act: wanted {"action": TEXT} or {"name": TOOL, "arguments": {...}}')
        self._reward += answer.reward
        return answer

    def end(self, said: EndBody) -> None:
        """Take the program's own word for how well it did.

        Raises:
            BadRequest: There is an environment that says it.
        """
        if self.hosted is not None:
            raise BadRequest("end: the inner environment pays and judges this program")
        self.score, self.error = said.score, said.error
        self._reward += said.reward

    def close(self) -> None:
        """Answer nothing any more."""
        self.is_over = True
        waiting = [] if self.asked is None else [self.asked]
        while not self.questions.empty():
            waiting.append(self.questions.get_nowait())
        for asked in waiting:
            asked.answer.cancel()


class _Images:
    """Takes the images out of a request; marks hold their places meanwhile."""

    def __init__(self) -> None:
        self._mark = f"\ue000{secrets.token_hex(8)}:{{}}\ue000"
        self._files: list[bytes] = []

    def show(self, text: str, files: Sequence[bytes]) -> str:
        """Return ``text`` with a mark of the image file in it.

        Raises:
            ValueError: There are several.
        """
        if len(files) > 1:
            raise ValueError(f"{len(files)} images in one message; one is shown")
        for file in files:
            text += self._mark.format(len(self._files))
            self._files.append(file)
        return text

    def taken(self, messages: Sequence[Message]) -> tuple[list[Message], dict[int, bytes]]:
        """Return ``messages`` without marks, and the files of some by their places."""
        found, files = list(messages), dict[int, bytes]()
        for number, file in enumerate(self._files):
            mark = self._mark.format(number)
            place = next(i for i, one in enumerate(found) if mark in one.content)
            found[place] = replace(found[place], content=found[place].content.replace(mark, ""))
            files[place] = file
        return found, files


def program_app(current: Callable[[], ProgramSide | None]) -> Starlette:
    """Return the ASGI application that a program speaks to.

    Args:
        current: Returns the episode that is played.

    Raises:
        MissingExtraError: The extra ``serve`` is not installed.
    """

    def find(request: Request) -> ProgramSide | None:
        key, side = request.path_params.get("episode", ""), current()
        matches = side is not None and secrets.compare_digest(key.encode(), side.key.encode())
        return side if matches and side is not None and not side.is_over else None

    def found(request: Request) -> ProgramSide:
        if (side := find(request)) is None:
            raise BadRequest(_OVER, status=410)
        return side

    async def models(request: Request) -> Response:
        found(request)
        return json_response({"object": "list", "data": [_MODEL]})

    async def task(request: Request) -> Response:
        side = found(request)
        return json_response(side.task | _picture(side.hosted and side.hosted.image))

    async def chat(request: Request) -> Response | EventStream:
        asked = checked(ChatRequest, json_object(await request.body()))
        answer = await while_connected(request, found(request).ask(asked))
        return EventStream(_stream(answer, asked)) if asked.stream else json_response(answer)

    async def responses(request: Request) -> Response | EventStream:
        side, body = found(request), json_object(await request.body())
        asked = chat_request(body, side.said_before(body.get("previous_response_id")))
        answer = await while_connected(request, side.ask(checked(ChatRequest, asked)))
        writer = ResponseWriter(body)
        side.responses |= writer.kept(asked, answer)
        return _written(body, answer, writer)

    async def messages(request: Request) -> Response | EventStream:
        body = json_object(await request.body())
        asked = checked(ChatRequest, anthropic.chat_request(body))
        answer = await while_connected(request, found(request).ask(asked))
        return _written(body, answer, anthropic.MessageWriter(body))

    async def act(request: Request) -> Response:
        return json_response(_seen(await found(request).act(json_object(await request.body()))))

    async def end(request: Request) -> Response:
        found(request).end(parse(EndBody, await request.body()))
        return json_response({})

    return _app([
        ("GET", "v1/models", models), ("GET", "task", task), ("POST", "v1/chat/completions", chat),
        ("POST", "v1/responses", responses), ("POST", "v1/messages", messages), _COUNT,
        ("POST", "act", act), ("POST", "end", end),
    ], find, lambda side, name, given: side.act({"name": name, "arguments": given}))  # fmt: skip


def _app(routes: Sequence[tuple[str, str, Any]], find: Any, call: Any) -> Starlette:
    """Return the application of ``routes``, with MCP where its library is installed."""
    tools, others = None, list[Any]()
    if importlib.util.find_spec("mcp") is not None:
        tools = mcp_app(find, call)
        others = tools.routes

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        if tools is None:
            yield
        else:
            async with tools.router.lifespan_context(tools):
                yield

    def broke(request: Request, error: Exception) -> Response:
        return error_response(BadRequest(str(error), status=500))

    return guarded_app(
        [(method, f"/episodes/{{episode}}/{path}", answer) for method, path, answer in routes],
        Access(),
        others=others,
        failed={EnvironmentFault: broke},
        lifespan=lifespan,
    )


def _seen(answer: ToolAnswer) -> Json:
    seen: Json = {"observation": answer.text, "is_over": answer.stop_reason is not None}
    return {**seen, "legal_actions": answer.legal_actions, **_picture(answer.image)}


def _picture(image: Any) -> Json:
    return {} if image is None else {"image": data_url(image)}


def _same(one: Message, other: Message) -> bool:
    """Say whether a message is what a program makes of ours when it says it again."""
    calls = [[(call.name, dict(call.arguments)) for call in m.tool_calls] for m in (one, other)]
    texts = one.content.strip(), other.content.strip()
    # Some drop the words beside a call.
    alike = texts[0] == texts[1] or (bool(calls[0]) and not texts[1])
    return one.role == other.role and alike and calls[0] == calls[1]


def _completion(model: str, messages: Sequence[Message], answer: Message) -> Json:
    name = uuid.uuid4().hex
    row: Json = {"role": "assistant", "content": answer.content}
    if answer.tool_calls:
        row["tool_calls"] = tool_call_rows(name, answer.tool_calls)
    finish = "tool_calls" if answer.tool_calls else "stop"
    read = sum(len(message.content) for message in messages) // anthropic.CHARS_PER_TOKEN
    said = len(answer.content) // anthropic.CHARS_PER_TOKEN
    usage = {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": row, "finish_reason": finish, "logprobs": None}],
        "usage": usage,
    }


async def _stream(answer: Json, asked: ChatRequest) -> AsyncGenerator[bytes]:
    """Yield a whole answer as the events of a stream."""
    head = {**answer, "object": "chat.completion.chunk"}
    usage, [choice] = head.pop("usage"), head.pop("choices")
    message = choice["message"]
    for delta, finish in ((message, None), ({}, choice["finish_reason"])):
        yield event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    if asked.returns_usage:
        yield event({**head, "choices": [], "usage": usage})
    yield DONE


def _written(body: Json, answer: Json, writer: Writer) -> Response | EventStream:
    """Return an answer in the dialect in which it was asked for."""
    if body.get("stream"):
        return EventStream(_written_stream(answer, writer))
    return json_response(writer.whole(answer))


async def _written_stream(answer: Json, writer: Writer) -> AsyncGenerator[bytes]:
    text = answer["choices"][0]["message"]["content"]
    for part in chain(writer.opening(), writer.text(text, {}), writer.closing(answer)):
        yield part
