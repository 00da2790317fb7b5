"""OpenAI's Responses API, spoken to the agent; upstream there are only chat completions."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from turngym.agents.remote.wire import KEPT, text_of, thought_in, usage_of
from turngym.agents.serving.http import BadRequest
from turngym.rollouts.gateway.bodies import check_responses

Json = dict[str, Any]

_PASSED_ON = ("model", "temperature", "top_p", "seed", "stop", "parallel_tool_calls")
_REFUSED = ("conversation", "background", "prompt")
_INPUT_TEXT = ("text", "input_text", "output_text")


def chat_request(body: Mapping[str, Any], earlier: Sequence[Json] = ()) -> Json:
    """Return a Responses request as a chat request.

    Args:
        body: The request.
        earlier: Chat messages of the response that it goes on from.

    Raises:
        BadRequest: It is none, or asks for what chat completions cannot do.
    """
    check_responses(dict(body))
    for name in _REFUSED:
        if body.get(name):
            raise BadRequest(f"{name}: the gateway does not know it")
    request: Json = {key: body[key] for key in _PASSED_ON if body.get(key) is not None}
    request["messages"] = _messages(body, earlier)
    if body.get("max_output_tokens") is not None:
        request["max_tokens"] = body["max_output_tokens"]
    if body.get("tools"):
        request["tools"] = [_tool(tool) for tool in body["tools"]]
        choice = body.get("tool_choice")
        if isinstance(choice, Mapping):
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        if choice is not None:
            request["tool_choice"] = choice
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        schema = {key: form[key] for key in ("name", "schema", "strict") if key in form}
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") == "json_object":
        request["response_format"] = {"type": "json_object"}
    if body.get("stream"):
        request["stream"] = True
    return request


def _messages(body: Mapping[str, Any], earlier: Sequence[Json]) -> list[Json]:
    rows: list[Json] = list(earlier)
    if body.get("instructions"):
        rows = [row for row in rows if row["role"] != "system"]
        rows.insert(0, {"role": "system", "content": body["instructions"]})
    given = body.get("input") or []
    if isinstance(given, str):
        return [*rows, {"role": "user", "content": given}]
    thoughts: Json = {}
    for item in given:
        kind = item.get("type", "message")
        if kind == "reasoning":  # of the answer that follows
            thoughts = _thoughts_of(item)
            continue
        if kind == "message":
            role = "system" if item.get("role") == "developer" else item.get("role", "user")
            rows.append({"role": role, "content": _content(item.get("content"))})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not rows or rows[-1]["role"] != "assistant":
                rows.append({"role": "assistant", "content": ""})
            rows[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = _content(item.get("output"))
            rows.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        else:
            raise BadRequest(f"input: the gateway does not know items of type {kind!r}")
        if rows[-1]["role"] == "assistant":
            rows[-1] = {**rows[-1], **thoughts}
        thoughts = {}
    return rows


def _thoughts_of(item: Mapping[str, Any]) -> Json:
    """Return the fields of a chat message that a ``reasoning`` item stands for."""
    with suppress(ValueError):  # of another server, or none
        found = json.loads(base64.b64decode(item.get("encrypted_content") or "", validate=True))
        return {field: found[field] for field in KEPT if field in found}
    text = "".join(part.get("text") or "" for part in item.get("content") or ())
    return {"reasoning_content": text} if text else {}


def _kept(message: Mapping[str, Any]) -> Json:
    """Return the fields of a chat message that hold thoughts."""
    return {field: message[field] for field in KEPT if message.get(field)}


def _content(content: Any) -> Any:
    """Return the content of a message: a text where it is only that, else parts."""
    if not isinstance(content, list):
        return content or ""
    if all(part.get("type") in _INPUT_TEXT for part in content):
        return "".join(part.get("text") or "" for part in content)
    return [_part(part) for part in content]


def _part(part: Mapping[str, Any]) -> Json:
    if part.get("type") in _INPUT_TEXT:
        return {"type": "text", "text": part.get("text") or ""}
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    raise BadRequest(f"input: the gateway does not know parts of type {part.get('type')!r}")


def _tool(tool: Mapping[str, Any]) -> Json:
    if tool.get("type") != "function":
        raise BadRequest(f"tools: the gateway knows functions only, not {tool.get('type')!r}")
    function = {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
    return {"type": "function", "function": function}


def answer_row(answer: Mapping[str, Any]) -> Json:
    """Return the chat message of a whole chat answer, as later requests hold it."""
    message = answer["choices"][0]["message"]
    row: Json = {"role": "assistant", "content": text_of(message.get("content")), **_kept(message)}
    if message.get("tool_calls"):
        row["tool_calls"] = message["tool_calls"]
    return row


class ResponseWriter:
    """Writes one answer as a Responses object, and as the events of its stream."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self._item = f"msg_{uuid.uuid4().hex}"
        self._body = body
        self._created = int(time.time())
        self._sequence = 0
        self._places = 0
        """Items of the stream so far."""
        self._text_place: int | None = None
        """Which of them is the text; None before it has begun."""

    def whole(self, answer: Mapping[str, Any]) -> Json:
        """Return the response for a whole chat answer."""
        choice = answer["choices"][0]
        cut = choice.get("finish_reason") == "length"
        return self._response(
            "incomplete" if cut else "completed",
            self._output(choice["message"]),
            answer.get("usage") or {},
            model=answer.get("model"),
        )

    def opening(self) -> Iterator[bytes]:
        """Yield the events before anything is said."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress", [], {}))

    def text(self, new: str, so_far: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events of more text, behind what was thought.

        Args:
            new: The text.
            so_far: The chat message as far as it has come.
        """
        if new:
            if self._text_place is None:
                yield from self._thought(so_far)
                yield from self._text_begins()
            yield self._event("response.output_text.delta", **self._place(), delta=new, logprobs=[])

    def closing(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events after the last text: its end, tool calls, the whole response."""
        message = answer["choices"][0]["message"]
        if self._text_place is None:
            yield from self._thought(message)
        if self._text_place is None and not message.get("tool_calls"):
            yield from self._text_begins()
        text = text_of(message.get("content"))
        if self._text_place is not None:
            yield self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            part: Json = {"type": "output_text", "text": text, "annotations": []}
            yield self._event("response.content_part.done", **self._place(), part=part)
            item = self._message(text)
            yield self._event("response.output_item.done", output_index=self._text_place, item=item)
        for call in map(self._call, message.get("tool_calls") or []):
            place = self._next_place()
            at = {"output_index": place, "item_id": call["id"]}
            blank = {**call, "arguments": "", "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=place, item=blank)
            arguments = call["arguments"]
            yield self._event("response.function_call_arguments.delta", **at, delta=arguments)
            yield self._event(
                "response.function_call_arguments.done",
                **at,
                arguments=arguments,
                name=call["name"],
            )
            yield self._event("response.output_item.done", output_index=place, item=call)
        whole = self.whole(answer)
        kind = "completed" if whole["status"] == "completed" else "incomplete"
        yield self._event(f"response.{kind}", response=whole)

    def _thought(self, message: Mapping[str, Any]) -> Iterator[bytes]:
        for item in self._reasoning(message):
            place = self._next_place()
            blank = {**item, "content": [], "encrypted_content": None, "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=place, item=blank)
            yield self._event("response.output_item.done", output_index=place, item=item)

    def _text_begins(self) -> Iterator[bytes]:
        self._text_place = self._next_place()
        item = {**self._message(""), "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=self._text_place, item=item)
        part: Json = {"type": "output_text", "text": "", "annotations": []}
        yield self._event("response.content_part.added", **self._place(), part=part)

    def _next_place(self) -> int:
        self._places += 1
        return self._places - 1

    def _place(self) -> Json:
        return {"item_id": self._item, "output_index": self._text_place, "content_index": 0}

    def _output(self, message: Mapping[str, Any]) -> list[Json]:
        text = text_of(message.get("content"))
        calls = [self._call(call) for call in message.get("tool_calls") or []]
        said = [self._message(text)] if text or not calls else []
        return [*self._reasoning(message), *said, *calls]

    def _reasoning(self, message: Mapping[str, Any]) -> list[Json]:
        """Return what was thought as an item; some agents send back its opaque text alone."""
        if not (kept := _kept(message)):
            return []
        opaque = base64.b64encode(json.dumps(kept).encode()).decode()
        text = [{"type": "reasoning_text", "text": thought_in(message)}]
        return [
            {
                "id": self._item.replace("msg_", "rs_"),
                "type": "reasoning",
                "summary": [],
                "content": text,
                "encrypted_content": opaque,
                "status": "completed",
            }
        ]

    def _message(self, text: str) -> Json:
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
        }

    def _call(self, call: Mapping[str, Any]) -> Json:
        function = call.get("function") or {}
        return {
            "id": f"fc_{call.get('id')}",
            "type": "function_call",
            "call_id": call.get("id"),
            "name": function.get("name"),
            "arguments": function.get("arguments") or "{}",
            "status": "completed",
        }

    def _response(
        self, status: str, output: list[Json], usage: Mapping[str, Any], *, model: Any = None
    ) -> Json:
        body = self._body
        read, written = map(int, usage_of({"usage": usage}))
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.get("instructions"),
            "model": model or body.get("model"),
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": body.get("previous_response_id"),
            "temperature": body.get("temperature"),
            "top_p": body.get("top_p"),
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "metadata": body.get("metadata") or {},
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": read + written,
            },
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()
