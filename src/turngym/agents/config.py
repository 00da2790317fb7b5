"""Settings of an agent: the model, and the prompt, history and reflection around it."""

from __future__ import annotations

import os
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, Tag, model_validator

from turngym.agents.engine.config import ChatTemplateConfig
from turngym.config import StrictModel
from turngym.custom import CustomPart
from turngym.errors import ConfigError

OWN_URL = "https://api.openai.com/v1"
"""Where the ``openai`` client goes by default."""
ANTHROPIC_URL = "https://api.anthropic.com/v1"
_ANTHROPIC = {"api": "messages", "base_url": ANTHROPIC_URL, "api_key_env": "ANTHROPIC_API_KEY"}
_LACKS: dict[str, tuple[str, ...]] = {
    "chat": (),
    "responses": ("stop", "token_ids", "max_tokens_field"),
    "messages": ("token_ids", "max_tokens_field"),
}
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
    """Seconds for one answer, retries included, but no wait for the limits below."""
    max_retries: int = Field(default=6, ge=0, le=100)
    """Tries after the first, for what may pass: no connection, 408, 429, 5xx, half an answer."""
    retry_wait_s: float = Field(default=0.5, gt=0)
    """Wait before the second try; doubles up to 30 s, and is shortened at random by up to half."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Most requests in a minute; None for no limit."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Most tokens in a minute, of prompt and completion together; None for no limit."""
    max_requests: int = Field(default=64, ge=1)
    """Requests under way at once."""
    input_usd_per_mtok: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens."""
    cached_usd_per_mtok: float | None = Field(default=None, ge=0)
    """Price of a million of those that the server had in its cache; None for that of the others."""
    output_usd_per_mtok: float = Field(default=0.0, ge=0)
    """Price of a million sampled tokens."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """More fields of every request, for example ``{"reasoning_effort": "low"}``."""

    @property
    def url(self) -> str:
        """The server's address, without a slash at the end.

        Raises:
            ConfigError: It is no address of the web.
        """
        url = (self.base_url or os.environ.get("OPENAI_BASE_URL") or OWN_URL).rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"model {self.model!r}: base_url {url!r}: wanted http:// before it")
        try:
            _ = urlsplit(url).port
        except ValueError as error:
            raise ConfigError(f"model {self.model!r}: base_url {url!r}: {error}") from error
        return url

    @property
    def key(self) -> str:
        """The key. Servers of one's own usually want none, but the client does.

        Raises:
            ConfigError: OpenAI or Anthropic is meant and the variable is not set, it holds what no
                header can, or the address is none.
        """
        key = os.environ.get(self.api_key_env)
        if self.url in (OWN_URL, ANTHROPIC_URL) and not key:
            raise ConfigError(
                f"model {self.model!r}: no key for {self.url}; set {self.api_key_env}, or base_url "
                "for a server of your own"
            )
        if key and not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"model {self.model!r}: {self.api_key_env} holds what no request can carry: a line "
                "end, or a letter beyond ASCII"
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
    """A model behind ``/chat/completions``, ``/responses``, or Anthropic's ``/messages``."""

    type: Literal["openai", "anthropic"] = "openai"
    """``anthropic`` stands for its address, its variable of the key, and its API."""
    api: Literal["chat", "responses", "messages"] = "chat"
    """What the server is asked by. OpenAI's newest models take tools by ``responses`` alone, which
    has no seeds; nor has ``messages``."""
    tool_calls: bool | None = None
    """False for tools and calls in words; else the server is given an environment's tools."""
    images: bool = True
    """Show what the environment shows; False for a model that reads only text."""
    token_ids: bool = False
    """Ask for token ids and log-probs (vLLM, ``turngym serve policy``), so that trajectories can be
    trained on."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """What the server calls the limit; None for what OpenAI, or other servers, call it."""

    @model_validator(mode="before")
    @classmethod
    def _of_anthropic(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") == "anthropic":
            root = os.environ.get("ANTHROPIC_BASE_URL")
            found = {"base_url": f"{root.rstrip('/')}/v1"} if root else {}
            return _ANTHROPIC | found | given
        return given

    @model_validator(mode="after")
    def _fits_api(self) -> Self:
        for name in _LACKS[self.api]:
            if getattr(self, name):
                raise ValueError(f"api={self.api!r} has no {name}; leave it out, or say api='chat'")
        return self


class CompletionsConfig(SamplingConfig, ChatTemplateConfig):
    """A model behind ``/completions`` that reads and returns token ids, as vLLM does."""

    type: Literal["completions"]
    tokenizer: str
    """Folder, hub name or ``package:NAME`` of the tokenizer with the chat template."""
    context: int = Field(default=4096, ge=16)
    """Longest conversation in tokens."""


class HistorySettings(StrictModel):
    """Base of the settings of a history."""

    builder: ClassVar[str]
    """``module:Class`` of the ``History``, called with the settings by name."""
    asks_the_model: ClassVar[bool] = False
    """Whether the model is asked things apart from the conversation."""


class FullHistoryConfig(HistorySettings):
    """The model sees the whole conversation."""

    builder: ClassVar[str] = "turngym.agents.chat.prompting:FullHistory"

    type: Literal["full"] = "full"


class WindowHistoryConfig(HistorySettings):
    """The model sees the system message and the last turns."""

    builder: ClassVar[str] = "turngym.agents.chat.prompting:WindowHistory"

    type: Literal["window"]
    turns: int = Field(default=8, ge=1)
    """Most turns that are seen."""
    keep: int | None = Field(default=None, ge=1)
    """Turns that are left when there are more; None for half."""


class SummaryHistoryConfig(HistorySettings):
    """The model sees its own notes of what was dropped, and the last turns."""

    builder: ClassVar[str] = "turngym.agents.chat.prompting:SummaryHistory"
    asks_the_model: ClassVar[bool] = True

    type: Literal["summary"]
    max_tokens: int = Field(default=3000, ge=1)
    """Length past which the conversation is compacted."""
    keep: int = Field(default=2, ge=1)
    """Turns that are kept word for word."""


class PictureHistoryConfig(HistorySettings):
    """The model sees all that was said, and the last pictures."""

    builder: ClassVar[str] = "turngym.agents.chat.prompting:PictureHistory"

    type: Literal["pictures"]
    pictures: int = Field(default=4, ge=1)
    """Most pictures that are seen; with one more, all but the newest are dropped."""


class CustomHistoryConfig(CustomPart, HistorySettings):
    """A history of your own."""

    part: ClassVar[str] = "custom history"
    given: ClassVar[int] = 0
    builder: ClassVar[str] = "turngym.agents.chat.prompting:OwnHistory"
    asks_the_model: ClassVar[bool] = True

    type: Literal["custom"]
    function: str
    """``module:Class``, made once as ``Class(**settings)`` for all episodes, with the method
    ``fit`` of ``History``."""


HistoryConfig = Annotated[
    FullHistoryConfig
    | WindowHistoryConfig
    | SummaryHistoryConfig
    | PictureHistoryConfig
    | CustomHistoryConfig,
    Field(discriminator="type"),
]


class CustomPrompt(CustomPart):
    """A prompt of your own."""

    part: ClassVar[str] = "custom prompt"

    type: Literal["custom"] = "custom"
    function: str
    """``module:Class``, made once as ``Class(parts, **settings)`` with what else is set here, and
    with the methods of ``Prompting``; ``PlainPrompting`` may be its base."""


PromptConfig = Annotated[
    Annotated[Literal["plain", "react"], Tag("name")] | Annotated[CustomPrompt, Tag("table")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "table"),
]


class PartsConfig(StrictModel):
    """What is put around a model to make an agent of it."""

    prompt: PromptConfig = "plain"
    """``react`` asks for a thought before each action."""
    system: str = ""
    """Text before the environment's instructions."""
    instructions: bool = True
    """Begin with the environment's instructions."""
    show_legal_actions: bool = False
    """List the legal actions under each observation, where there are some."""
    tool_calls: bool | None = None
    """Show an environment's tools and have them called as the model's chat template does; False
    for tools and calls in words, None for what the template can."""
    history: HistoryConfig = FullHistoryConfig()
    reflection: int = Field(default=0, ge=0)
    """Lessons from earlier failed attempts at the same task that are shown; 0 for no memory."""

    @property
    def asks_the_model(self) -> bool:
        """Whether the model is asked things apart from the conversation: notes or lessons."""
        return self.reflection > 0 or self.history.asks_the_model


class ChatAgentConfig(ChatConfig, PartsConfig):
    """``openai:MODEL`` and ``anthropic:MODEL``."""


class CompletionsAgentConfig(CompletionsConfig, PartsConfig):
    """``completions:MODEL``."""


class LocalAgentConfig(PartsConfig, ChatTemplateConfig):
    """``hf:NAME_OR_PATH``.

    Where the folder has a ``turngym.json``, as models that were trained here do, what is not set is
    as in its training: the prompt, the history, ``max_new_tokens`` and ``context``.
    """

    type: Literal["hf"]
    path: str
    """Folder, hub name or ``package:NAME``."""
    images: bool = False
    """Load the part of the model that sees, and show it the pictures of observations."""
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_new_tokens: int = Field(default=256, ge=1)
    context: int = Field(default=4096, ge=16)
    """Longest conversation in tokens; at most what the model was made for."""
    stop: tuple[str, ...] = ()


AgentConfig = ChatAgentConfig | CompletionsAgentConfig | LocalAgentConfig
