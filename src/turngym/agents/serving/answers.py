"""The JSON of the policy server's answers, whole and in chunks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turngym.agents.call_forms import MAX_CALLS
from turngym.agents.engine.protocol import Generation
from turngym.agents.serving.http import nests_too_deep
from turngym.types import Message, ToolCall, after_thoughts, json_objects

Json = dict[str, Any]
Decode = Callable[[Sequence[int]], str]

_FINISH = {"end": "stop", "stop": "stop", "length": "length"}
_INCOMPLETE = "\ufffd"
"""How a decoder shows half of a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer, with everything that a client may want to know of it."""

    model: str
    prompt_ids: tuple[int, ...]
    image_places: Sequence[Sequence[int]] = ()
    """Of each image, where in ``prompt_ids`` it is."""
    generation: Generation
    message: Message
    returns_ids: bool
    returns_logprobs: bool
    id: str
    created: int
    """Unix time in seconds."""

    @property
    def usage(self) -> Json:
        """Tokens read and sampled."""
        read, sampled = len(self.prompt_ids), len(self.generation.token_ids)
        return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}

    @property
    def finish(self) -> str:
        """Why it ended, in OpenAI's words."""
        return "tool_calls" if self.message.tool_calls else _FINISH[self.generation.finish]

    def chat(self, decode: Decode) -> Json:
        """Return the body of a chat completion."""
        message: Json = {"role": "assistant", "content": self.message.content}
        if self.message.tool_calls:
            message["tool_calls"] = tool_call_rows(self.id, self.message.tool_calls)
        logprobs: Json | None = None
        if self.returns_logprobs:
            pairs = zip(self.generation.token_ids, self.generation.logprobs, strict=True)
            logprobs = {"content": [logprob_row(decode([token]), p) for token, p in pairs]}
        choice: Json = {"index": 0, "message": message, "finish_reason": self.finish}
        choice["logprobs"] = logprobs
        return self._body("chat.completion", "chatcmpl", choice)

    def completion(self, decode: Decode) -> Json:
        """Return the body of a completion."""
        choice: Json = {
            "index": 0,
            "text": self.message.content,
            "finish_reason": self.finish,
            "logprobs": None,
        }
        if self.returns_logprobs:
            tokens = [decode([token]) for token in self.generation.token_ids]
            choice["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": list(self.generation.logprobs),
                "top_logprobs": None,
                "text_offset": [sum(map(len, tokens[:i])) for i in range(len(tokens))],
            }
        return self._body("text_completion", "cmpl", choice)

    def _body(self, kind: str, prefix: str, choice: Json) -> Json:
        body: Json = {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": [choice],
            "usage": self.usage,
        }
        if self.returns_ids:
            body |= prompt_fields(self.prompt_ids, self.image_places)
            choice["token_ids"] = list(self.generation.token_ids)
            choice["policy_versions"] = list(self.generation.versions)
        return body


def prompt_fields(ids: Sequence[int], image_places: Sequence[Sequence[int]]) -> Json:
    """Return what an answer says of its prompt.

    Args:
        ids: Its tokens, the model's own for an image.
        image_places: Of each image, where in ``ids`` it is.
    """
    found: Json = {"prompt_token_ids": list(ids)}
    return found | {"image_places": image_places} if image_places else found


def logprob_row(text: str, logprob: float) -> Json:
    """Return the entry of one token and its ``logprob`` in a chat answer."""
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}


def tool_call_rows(answer_id: str, calls: Sequence[ToolCall]) -> list[Json]:
    """Return tool calls of ``answer_id`` as OpenAI writes them, each named by nine letters."""
    return [
        {
            "id": f"{answer_id[:8]}{place}",
            "index": place,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for place, call in enumerate(calls)
    ]


def split_tool_calls(text: str, tools: Sequence[Mapping[str, Any]]) -> Message:
    """Return ``text`` as a message, cut before its first call of ``tools``, with all of them.

    What is thought is no call.
    """
    functions = [tool.get("function") for tool in tools]
    names = {str(one.get("name")) for one in functions if isinstance(one, Mapping)}
    calls, end, begin = list[ToolCall](), len(text), len(text) - len(after_thoughts(text))
    for value, start in json_objects(text) if names else ():
        if start < begin:
            continue
        name, arguments = str(value.get("name")), value.get("arguments", {})
        if name in names and isinstance(arguments, dict) and not nests_too_deep(arguments):
            calls.append(ToolCall(name=name, arguments=arguments))
            end = min(end, start)
    said = text[:end].rstrip() if calls else text
    return Message(role="assistant", content=said, tool_calls=tuple(calls[:MAX_CALLS]))


class TextStream:
    """Turns tokens into text as they come, never half a character and never a stop text.

    Args:
        decode: Turns all ids so far into text.
        stops: Texts before which the answer ends.
    """

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        self._decode = decode
        self._stops = stops
        self._hold = max((len(stop) for stop in stops), default=1) - 1
        self._ids: list[int] = []
        self._reported = 0

    def add(self, token: int) -> str:
        """Return the new text that is certain after one more token."""
        self._ids.append(token)
        text = self._decode(self._ids)
        if text.endswith(_INCOMPLETE):
            return ""
        return self._up_to(text, len(text) - self._hold)

    def rest(self) -> str:
        """Return what was held back."""
        text = self._decode(self._ids)
        return self._up_to(text, len(text))

    def _up_to(self, text: str, end: int) -> str:
        end = min(end, len(before_stop(text, self._stops)))
        new = text[self._reported : end]
        self._reported = max(self._reported, end)
        return new


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return ``text`` up to the first stop text."""
    return text[: min([len(text), *(at for stop in stops if (at := text.find(stop)) >= 0)])]
