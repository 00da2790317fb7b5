"""Prompts: instructions and observations as messages, plainly or asking for a thought first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turngym.agents.chat.conversation import ChatMessage
from turngym.types import Message

REACT = (
    "Before each action, think. Answer in this form, and in no other:\n"
    "Thought: what you know, what you need, what to do next\n"
    "Action: the action, alone on the last line"
)
REACT_TOOLS = "Before each tool call, say in one or two sentences why you make it."
LESSONS = "What you learned in earlier attempts at this very task:"


class Prompting(Protocol):
    """Turns instructions and observations into messages for a model."""

    def opening(self, instructions: str, lessons: Sequence[str], *, native_tools: bool) -> str:
        """Return the system message; empty for none.

        Args:
            instructions: Of the environment.
            lessons: What was learned in earlier attempts, oldest first.
            native_tools: The model gets the environment's tools natively.
        """
        ...

    def observation(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> ChatMessage:
        """Return the message that shows an observation."""
        ...


@dataclass(frozen=True, slots=True)
class PlainPrompting:
    """The environment's instructions and observations, word for word."""

    system: str = ""
    """Text before the instructions."""
    show_legal_actions: bool = False
    """List the legal actions under each observation, where there are some."""
    max_legal_actions: int = 30
    instructions: bool = True
    """Say the environment's instructions. A model that was trained without them does without."""

    def opening(self, instructions: str, lessons: Sequence[str], *, native_tools: bool) -> str:
        """Return own words, instructions and lessons, with a blank line between."""
        instructions = instructions if self.instructions else ""
        learned = "\n".join([LESSONS, *(f"- {lesson}" for lesson in lessons)]) if lessons else ""
        return "\n\n".join(filter(None, [self.system, instructions, learned]))

    def observation(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> ChatMessage:
        """Return the observation as a user's message."""
        text = str(observation["text"])
        legal = info.get("legal_actions") if self.show_legal_actions else None
        if legal:
            shown = "; ".join(legal[: self.max_legal_actions])
            more = len(legal) - self.max_legal_actions
            text += f"\nYou may: {shown}" + (f"; and {more} more" if more > 0 else "")
        return ChatMessage(
            message=Message(role="user", content=text), image=observation.get("image")
        )


@dataclass(frozen=True, slots=True)
class ReActPrompting:
    """Asks for a thought before each action. Our action formats read the last line alone.

    Source:
        Yao et al. 2023, "ReAct: Synergizing Reasoning and Acting in Language Models",
        arXiv:2210.03629. Zero-shot: no worked examples.
    """

    plain: PlainPrompting = PlainPrompting()

    def opening(self, instructions: str, lessons: Sequence[str], *, native_tools: bool) -> str:
        """Return the plain opening with the form of an answer; a native call is no part of it."""
        form = REACT_TOOLS if native_tools else REACT
        whole = f"{instructions}\n\n{form}".strip()
        return self.plain.opening(whole, lessons, native_tools=native_tools)

    def observation(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> ChatMessage:
        """Return the observation as the plain way has it."""
        return self.plain.observation(observation, info)
