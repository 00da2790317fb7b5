"""A streamed chat answer: what to pass on to the agent, and the whole answer at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turngym.errors import PolicyFault

Json = dict[str, Any]

_OURS = ("prompt_token_ids", "token_ids", "policy_versions")
"""Fields that the gateway asked for and an agent did not."""


def only_choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the one choice of an answer or a chunk, empty when there is none.

    Raises:
        PolicyFault: There are several: they are no one conversation, so they are no turn.
    """
    choices = body.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(one, Mapping) for one in choices):
        raise PolicyFault("the upstream server's choices are no list of objects")
    if len(choices) > 1 or any(one.get("index") not in (None, 0) for one in choices):
        raise PolicyFault("the upstream server answered with several choices; one was asked for")
    return choices[0] if choices else {}


class ChunkCollector:
    """Puts the chunks of one stream together, in whatever order its parts come."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._choice: Json = {}
        self._texts: list[str] = []
        self._calls: dict[int, Json] = {}
        self._lists: dict[str, list[Any]] = {"token_ids": [], "policy_versions": []}
        self._logprobs: list[Json] = []

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Add one chunk and return the text that it adds.

        Raises:
            PolicyFault: It belongs to a second choice, or has not the form of a chunk.
        """
        choice = only_choice(chunk)
        for holder in (chunk, choice):
            for key in ("id", "created", "model", "usage", "prompt_token_ids"):
                if holder.get(key) is not None:
                    self._head[key] = holder[key]
        for key in ("finish_reason", "stop_reason"):
            if choice.get(key) is not None:
                self._choice[key] = choice[key]
        for key, found in self._lists.items():
            found += _list(choice.get(key))
        self._logprobs += _list(_object(choice.get("logprobs")).get("content"))
        delta = _object(choice.get("delta"))
        for part in _list(delta.get("tool_calls")):
            self._add_call(_object(part))
        text = delta.get("content")
        self._texts.append(text if isinstance(text, str) else "")
        return self._texts[-1]

    @property
    def is_whole(self) -> bool:
        """The answer has come to its end."""
        return "finish_reason" in self._choice

    @property
    def is_empty(self) -> bool:
        """Nothing has been said yet."""
        return not (any(self._texts) or self._calls or self._lists["token_ids"])

    def answer(self) -> Json:
        """Return the body of the answer as if it had come in one piece."""
        message: Json = {"role": "assistant", "content": "".join(self._texts)}
        if self._calls:
            message["tool_calls"] = [self._calls[place] for place in sorted(self._calls)]
        choice = {"index": 0, "message": message, **self._choice}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        choice |= {key: found for key, found in self._lists.items() if found}
        return {**self._head, "object": "chat.completion", "choices": [choice]}

    def _add_call(self, part: Mapping[str, Any]) -> None:
        """Add a piece of a tool call; one without a number goes on, or has a new id."""
        place, last = part.get("index"), max(self._calls, default=-1)
        if type(place) is not int:
            same = last >= 0 and part.get("id") in (None, "", self._calls[last]["id"])
            place = last if same else last + 1
        blank: Json = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(place, blank)
        call["id"] = part.get("id") or call["id"]
        function = _object(part.get("function"))
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str) and name != call["function"]["name"]:  # some repeat it whole
            call["function"]["name"] += name
        if isinstance(arguments, dict):  # not OpenAI's form, but the meaning is clear
            arguments = json.dumps(arguments)
        if isinstance(arguments, str):
            call["function"]["arguments"] += arguments


def _list(found: Any) -> list[Any]:
    if found is not None and not isinstance(found, list):
        raise PolicyFault("the upstream server's chunk has another form than OpenAI's")
    return found or []


def _object(found: Any) -> Mapping[str, Any]:
    if found is not None and not isinstance(found, Mapping):
        raise PolicyFault("the upstream server's chunk has another form than OpenAI's")
    return found or {}


def without_ours(body: Mapping[str, Any], asked: Mapping[str, Any]) -> Json:
    """Return an answer or a chunk without what the gateway asked for and the agent did not."""
    wants_ids, wants_logprobs = bool(asked.get("return_token_ids")), bool(asked.get("logprobs"))
    kept = {key: value for key, value in body.items() if wants_ids or key not in _OURS}
    choices = []
    for choice in body.get("choices") or []:
        found = {key: value for key, value in choice.items() if wants_ids or key not in _OURS}
        if not wants_logprobs and "logprobs" in found:
            found["logprobs"] = None
        choices.append(found)
    return kept | {"choices": choices}
