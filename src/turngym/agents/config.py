"""Settings of an agent: which model, and how it is prompted and remembered with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from turngym.agents.remote.config import ChatConfig, CompletionsConfig
from turngym.config import StrictModel


class FullHistoryConfig(StrictModel):
    """The model sees the whole conversation."""

    type: Literal["full"] = "full"


class WindowHistoryConfig(StrictModel):
    """The model sees the system message and the last turns."""

    type: Literal["window"]
    turns: int = Field(default=8, ge=1)
    """Most turns that are seen."""
    keep: int | None = Field(default=None, ge=1)
    """Turns that are left when there are more; None for half."""


class SummaryHistoryConfig(StrictModel):
    """The model sees its own notes of what was dropped, and the last turns."""

    type: Literal["summary"]
    max_tokens: int = Field(default=3000, ge=1)
    """Length past which the conversation is compacted."""
    keep: int = Field(default=2, ge=1)
    """Turns that are kept word for word."""


HistoryConfig = Annotated[
    FullHistoryConfig | WindowHistoryConfig | SummaryHistoryConfig, Field(discriminator="type")
]


class PartsConfig(StrictModel):
    """What is put around a model to make an agent of it."""

    prompt: Literal["plain", "react"] = "plain"
    system: str = ""
    """Said before the environment's instructions."""
    instructions: bool = True
    """Begin with the environment's instructions."""
    show_legal_actions: bool = False
    history: HistoryConfig = FullHistoryConfig()
    reflection: int = Field(default=0, ge=0)
    """Lessons from earlier failed attempts at the same task that are told; 0 for no memory."""


class ChatAgentConfig(ChatConfig, PartsConfig):
    """``openai:MODEL``."""


class CompletionsAgentConfig(CompletionsConfig, PartsConfig):
    """``completions:MODEL``."""


class LocalAgentConfig(PartsConfig):
    """``hf:NAME_OR_PATH``.

    Where the folder has a ``turngym.json``, as models that were trained here do, ``instructions``,
    ``max_new_tokens`` and ``context`` are those of its training unless they are set.
    """

    type: Literal["hf"]
    path: str
    """Folder, hub name or ``package:NAME``."""
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_new_tokens: int = Field(default=256, ge=1)
    context: int = Field(default=4096, ge=16)
    """Longest conversation in tokens; at most what the model was made for."""
    stop: tuple[str, ...] = ()


AgentConfig = ChatAgentConfig | CompletionsAgentConfig | LocalAgentConfig
