"""A streamed chat answer: what to pass on to the agent, and the whole answer at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_OURS = ("prompt_token_ids", "token_ids", "policy_versions")
"""Fields that the gateway asked for and an agent did not."""


class ChunkCollector:
    """Puts the chunks of one stream together."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._choice: Json = {}
        self._texts: list[str] = []
        self._calls: dict[int, Json] = {}
        self._ids: list[int] = []
        self._versions: list[int] = []
        self._logprobs: list[Json] = []

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Take in one chunk and return the text that it adds."""
        for key in ("id", "created", "model", "usage", "prompt_token_ids"):
            if chunk.get(key) is not None:
                self._head[key] = chunk[key]
        choices = chunk.get("choices") or []
        if not choices:
            return ""
        choice = choices[0]
        delta = choice.get("delta") or {}
        for part in delta.get("tool_calls") or []:
            self._add_call(part)
        if choice.get("finish_reason") is not None:
            self._choice["finish_reason"] = choice["finish_reason"]
        if choice.get("prompt_token_ids") is not None:
            self._head["prompt_token_ids"] = choice["prompt_token_ids"]
        self._ids += choice.get("token_ids") or []
        self._versions += choice.get("policy_versions") or []
        self._logprobs += (choice.get("logprobs") or {}).get("content") or []
        text = delta.get("content") or ""
        self._texts.append(text)
        return text

    @property
    def is_whole(self) -> bool:
        """The answer has come to its end."""
        return "finish_reason" in self._choice

    def answer(self) -> Json:
        """Return the body of the answer as if it had come in one piece."""
        message: Json = {"role": "assistant", "content": "".join(self._texts)}
        if self._calls:
            message["tool_calls"] = [self._calls[place] for place in sorted(self._calls)]
        choice = {"index": 0, "message": message, **self._choice}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        if self._ids:
            choice["token_ids"] = self._ids
        if self._versions:
            choice["policy_versions"] = self._versions
        return {**self._head, "object": "chat.completion", "choices": [choice]}

    def _add_call(self, part: Mapping[str, Any]) -> None:
        place = int(part.get("index", len(self._calls)))
        blank: Json = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(place, blank)
        function = part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


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
