"""Settings of a model behind an OpenAI-compatible server."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import Field

from turngym.config import StrictModel
from turngym.errors import ConfigError

OWN_URL = "https://api.openai.com/v1"
"""Where the ``openai`` client goes by default."""
_NO_KEY = "none"


class EndpointConfig(StrictModel):
    """Where a model is, how often and how long it is asked, and what it costs."""

    model: str = Field(min_length=1)
    """Name that the server knows it by."""
    base_url: str | None = None
    """Up to and with ``/v1``; None for the environment variable OPENAI_BASE_URL, else OpenAI."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable with the key. The key itself is never written down."""
    turn_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds for one answer, retries included."""
    max_retries: int = Field(default=6, ge=0, le=100)
    """Tries after the first, for what may pass: no connection, 408, 429, 5xx, half an answer."""
    retry_wait_s: float = Field(default=0.5, gt=0)
    """Wait before the second try; doubles up to 30 s, and is shortened at random by up to half."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Prompt and completion together."""
    max_requests: int = Field(default=64, ge=1)
    """Requests under way at once."""
    input_usd_per_mtok: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens."""
    output_usd_per_mtok: float = Field(default=0.0, ge=0)
    """Price of a million sampled tokens."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """More fields of every request, for example ``{"reasoning_effort": "low"}``."""

    @property
    def url(self) -> str:
        """The server's address, without a slash at the end."""
        return (self.base_url or os.environ.get("OPENAI_BASE_URL") or OWN_URL).rstrip("/")

    @property
    def key(self) -> str:
        """The key. Servers of one's own usually want none, but the client does.

        Raises:
            ConfigError: OpenAI is meant and the variable is not set.
        """
        key = os.environ.get(self.api_key_env)
        if not key and self.url == OWN_URL:
            raise ConfigError(
                f"model {self.model!r}: no key for {self.url}; set {self.api_key_env}, or base_url "
                "for a server of your own"
            )
        return key or _NO_KEY

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be written down."""
        key = os.environ.get(self.api_key_env)
        return (key,) if key else ()


class SamplingConfig(EndpointConfig):
    """How a remote model samples."""

    temperature: float | None = Field(default=0.0, ge=0)
    """None leaves it to the server; some models refuse any but their own."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_new_tokens: int = Field(default=1024, ge=1)
    """Longest answer in tokens."""
    stop: tuple[str, ...] = ()


class ChatConfig(SamplingConfig):
    """A model behind ``/chat/completions``."""

    type: Literal["openai"] = "openai"
    tool_calls: bool = True
    """Offer tools natively where the environment has some; False for plain text only."""
    images: bool = True
    """Show what the environment shows; False for a model that reads only text."""
    token_ids: bool = False
    """Ask for token ids and log-probs (vLLM, ``turngym serve policy``), so that trajectories can be
    trained on."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """What the server calls the limit; None for what OpenAI, or other servers, call it."""


class CompletionsConfig(SamplingConfig):
    """A model behind ``/completions`` that reads and returns token ids, as vLLM does."""

    type: Literal["completions"]
    tokenizer: str
    """Folder, hub name or ``package:NAME`` of the tokenizer with the chat template."""
    context: int = Field(default=4096, ge=16)
    """Longest conversation in tokens."""
