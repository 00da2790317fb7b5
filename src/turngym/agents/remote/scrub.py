"""Keys and authorization headers never reach a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from turngym.types import Message, ToolCall

HIDDEN = "[secret]"

_SHORTEST = 6
"""A shorter secret would be found in every other word."""
_KNOWN_FORMS = re.compile(
    r"(?P<lead>\b(?:x-api-key|api-key|authorization)[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic)\s+)?)"
    r"[\w.~+/=-]{6,}"
    r"|(?P<scheme>\b(?:bearer|basic)\s+)(?=[\w.~+/=-]*\d)[\w.~+/=-]{6,}"  # no word has a digit
    r"|\bsk-[\w-]{8,}",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+@")


class Scrubber:
    """Takes secrets out of texts: those it knows, and what looks like one.

    Args:
        secrets: Known ones; those under six characters are left, they would be everywhere.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """Learn of more secrets."""
        self._secrets |= {secret for secret in secrets if len(secret) >= _SHORTEST}

    def copy(self) -> Scrubber:
        """Return another one that knows the same secrets, and may learn its own."""
        return Scrubber(self._secrets)

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        text = _KNOWN_FORMS.sub(
            lambda found: f"{found['lead'] or found['scheme'] or ''}{HIDDEN}", text
        )
        return _USER_INFO.sub(f"{HIDDEN}@", text)

    def message(self, message: Message) -> Message:
        """Return ``message`` without secrets; the same object when there were none."""
        content = self.text(message.content)
        calls = tuple(
            ToolCall(name=self.text(call.name), arguments=self.values(call.arguments))
            for call in message.tool_calls
        )
        if content == message.content and calls == message.tool_calls:
            return message
        return replace(message, content=content, tool_calls=calls)

    def values(self, value: Any) -> Any:
        """Return JSON values without secrets."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.values(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.values(item) for item in value]
        return value
