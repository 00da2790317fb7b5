"""Settings of an agent: the model, and the prompt, history and reflection around it."""

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
    """``react`` asks for a thought before each action."""
    system: str = ""
    """Text before the environment's instructions."""
    instructions: bool = True
    """Begin with the environment's instructions."""
    show_legal_actions: bool = False
    """List the legal actions under each observation, where there are some."""
    history: HistoryConfig = FullHistoryConfig()
    reflection: int = Field(default=0, ge=0)
    """Lessons from earlier failed attempts at the same task that are shown; 0 for no memory."""

    @property
    def asks_the_model(self) -> bool:
        """Whether the model is asked things apart from the conversation: notes or lessons."""
        return self.reflection > 0 or isinstance(self.history, SummaryHistoryConfig)


class ChatAgentConfig(ChatConfig, PartsConfig):
    """``openai:MODEL``."""


class CompletionsAgentConfig(CompletionsConfig, PartsConfig):
    """``completions:MODEL``."""


class LocalAgentConfig(PartsConfig):
    """``hf:NAME_OR_PATH``.

    Where the folder has a ``turngym.json``, as models that were trained here do, what is not set is
    as in its training: the prompt, the history, ``max_new_tokens`` and ``context``.
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
