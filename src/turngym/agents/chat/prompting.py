"""Chat models: their contract, and what they see: prompts, histories that are cut, lessons.

A history that is cut opens a new segment: the tokens before it are no prefix of what comes after.
Cuts are rare and deep rather than shallow and at every turn, so that segments stay long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turngym.agents.config import CustomHistoryConfig, CustomPrompt, PartsConfig
from turngym.agents.policy import EpisodeContext, EpisodeEnd
from turngym.coroutines import awaited
from turngym.errors import ConfigError
from turngym.types import LESSON, Message, Role, TokenSpan, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One entry of a conversation with what only a chat model needs besides."""

    message: Message
    image: NDArray[np.uint8] | None = None
    """What the message shows, shape [H, W, 3]; only for models that see."""
    call_ids: tuple[str, ...] = ()
    """The server's ids of an assistant's tool calls, or of the one that a tool message answers."""

    @property
    def calls_tools(self) -> bool:
        """Whether what comes next is what came of a call."""
        return bool(self.call_ids or self.message.tool_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A model's answer."""

    message: Message
    """Role assistant; the content is the action text, tool calls included."""
    spans: tuple[TokenSpan, ...] = ()
    """Tokens that this answer appended, its prompt first; empty when they are not known."""
    starts_segment: bool = False
    """The server's prompt did not continue what it had served before."""
    segment_reason: str | None = None
    usage: Mapping[str, float] = field(default_factory=dict)
    call_ids: tuple[str, ...] = ()
    in_words: str | None = None
    """The content with all calls, where the arguments of one are no object, so ``message`` lacks
    it."""

    @property
    def entry(self) -> ChatMessage:
        """The answer as an entry of the conversation."""
        return ChatMessage(message=self.message, call_ids=self.call_ids)


class Conversation(Protocol):
    """One conversation with a chat model. Used by one task at a time."""

    async def complete(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Completion:
        """Append ``messages`` to the conversation and return the answer.

        Args:
            messages: Entries since the last answer; it is part of the conversation already.
            tools: OpenAI-style function descriptions, for models with native tool calls.

        Raises:
            ContextOverflow: The conversation does not fit the model.
            PolicyFault: The model cannot be had just now.
            ConfigError: It can never be had this way.
        """

    def resume(self, messages: Sequence[ChatMessage], turn: Turn) -> None:
        """Append what was said in a turn that was played before.

        Args:
            messages: Entries before the answer.
            turn: Gives the answer, and the tokens of both where they are known.

        Raises:
            ValueError: The model goes on from tokens, and the turn has none.
        """

    async def restart(self) -> None:
        """Forget everything; the next messages open the conversation anew."""

    def close(self) -> Awaitable[None] | None:
        """Release what the conversation holds. Safe to call twice; what it returns is awaited."""


class ChatModel(Protocol):
    """A model that has many conversations at once."""

    @property
    def takes_tools(self) -> bool:
        """Whether it is shown tools and calls them in a way of its own; else in words."""

    def open(self, seed: int) -> Conversation:
        """Return a new conversation whose answers depend on ``seed``."""


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
            instructions: Of the environment; without how to act where tools are native.
            lessons: What was learned in earlier attempts, oldest first.
            native_tools: The model gets the environment's tools natively.
        """

    def observation(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> ChatMessage:
        """Return the message that shows an observation."""


@dataclass(frozen=True, slots=True)
class PlainPrompting(Prompting):
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


class ReActPrompting(PlainPrompting):
    """Asks for a thought before each action. Our action formats read the last line alone.

    Source:
        Yao et al. 2023, "ReAct: Synergizing Reasoning and Acting in Language Models",
        arXiv:2210.03629. Zero-shot: no worked examples.
    """

    def opening(self, instructions: str, lessons: Sequence[str], *, native_tools: bool) -> str:
        """Return the plain opening with the form of an answer; a native call is no part of it."""
        form = REACT_TOOLS if native_tools else REACT
        whole = f"{instructions}\n\n{form}".strip()
        return super().opening(whole, lessons, native_tools=native_tools)


class OwnPrompting(Prompting):
    """Prompts that the user wrote.

    Args:
        config: Names the class.
        parts: What it may go by.

    Raises:
        ConfigError: It is not there, or lacks a method.
    """

    def __init__(self, config: CustomPrompt, parts: PartsConfig) -> None:
        self.config = config
        self._made: Prompting = config.made(Prompting, parts)

    def opening(self, instructions: str, lessons: Sequence[str], *, native_tools: bool) -> str:
        """Return its system message."""
        found = self._made.opening(instructions, lessons, native_tools=native_tools)
        return str(self.config.checked(found, str, "opening"))

    def observation(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> ChatMessage:
        """Return its message."""
        found = self._made.observation(observation, info)
        message: ChatMessage = self.config.checked(found, ChatMessage, "observation")
        return message


Ask = Callable[[Sequence[ChatMessage]], Awaitable[str]]
"""Opens a conversation of its own with the same model and returns the text of its answer."""

SUMMARIZE = (
    "The conversation is about to be cut. Write down, in at most 200 words, what you must know to "
    "go on: the task, what was found out, what was tried and how it ended, and what to do next. "
    "Take no action now."
)
SUMMARY = "Your notes of what happened so far:"
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A conversation that was cut: the messages it now begins with, and why."""

    messages: list[ChatMessage]
    reason: str


class History(Protocol):
    """Decides, before each answer, what the model still sees."""

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Return the conversation to go on with, or None to go on as it is.

        Args:
            messages: The whole conversation, the newest entry last.
            tokens: Its length, as the model counted or as we guess.
            ask: Asks the model itself, apart from the conversation.
        """


class FullHistory(History):
    """Everything; the episode ends when the model's context does."""

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Go on as it is."""
        return None


class WindowHistory(History):
    """The system message and the last turns.

    Args:
        turns: Most turns that are seen, the present one included.
        keep: Turns that are left when there are more; half of ``turns`` by default.
    """

    def __init__(self, turns: int, keep: int | None = None) -> None:
        keep = max(1, turns // 2) if keep is None else keep
        if not 1 <= keep <= turns:
            raise ConfigError(f"history: keep={keep} must lie in 1..turns={turns}")
        self._turns, self._keep = turns, keep

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Drop the oldest turns when there are too many."""
        starts = _turn_starts(messages)
        if len(starts) <= self._turns:
            return None
        kept = starts[-self._keep]
        return Rewritten(
            messages=[*_system(messages), *_unbound(messages[kept:])],
            reason=f"window: the last {self._keep} of {len(starts)} turns are kept",
        )


class PictureHistory(History):
    """All that was said, and the last pictures: screens are most of a long conversation.

    Args:
        pictures: Most pictures that are seen; with one more, all but the newest are dropped.
    """

    def __init__(self, pictures: int) -> None:
        self._pictures = pictures

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Drop all pictures but the newest when there are too many."""
        shown = [i for i, entry in enumerate(messages) if entry.image is not None]
        if len(shown) <= self._pictures:
            return None
        kept = [
            entry if i == shown[-1] else replace(entry, image=None)
            for i, entry in enumerate(messages)
        ]
        return Rewritten(messages=kept, reason=f"pictures: 1 of {len(shown)} is kept")


class SummaryHistory(History):
    """The model's own notes of what is dropped, and the last turns word for word.

    Args:
        max_tokens: Length past which the conversation is compacted.
        keep: Turns that are kept word for word, the present one included.
    """

    def __init__(self, max_tokens: int, keep: int = 2) -> None:
        if max_tokens < 1 or keep < 1:
            raise ConfigError(f"history: max_tokens={max_tokens} and keep={keep} must be 1 or more")
        self._max_tokens, self._keep = max_tokens, keep

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Have the model sum up what is about to be dropped."""
        starts = _turn_starts(messages)
        if tokens <= self._max_tokens or len(starts) <= self._keep:
            return None
        kept = starts[-self._keep]
        request = ChatMessage(message=Message(role="user", content=SUMMARIZE))
        notes = (await ask([*_unbound(messages[:kept]), request])).strip()
        summary = ChatMessage(message=Message(role="user", content=f"{SUMMARY}\n{notes}"))
        return Rewritten(
            messages=_merged([*_system(messages), summary, *_unbound(messages[kept:])]),
            reason=f"compaction: {tokens:.0f} tokens are past {self._max_tokens}",
        )


class OwnHistory(History):
    """A history that the user wrote.

    Args:
        function: ``module:Class``.
        settings: It is made with them.

    Raises:
        ConfigError: It is not there, or lacks the method.
    """

    def __init__(self, function: str, settings: Mapping[str, Any]) -> None:
        self.config = CustomHistoryConfig(type="custom", function=function, settings=dict(settings))
        self._made: History = self.config.made(History)

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Return what it makes of the conversation."""
        found: Rewritten | None = await awaited(self._made.fit(messages, tokens=tokens, ask=ask))
        if found is not None:
            self.config.checked(found, Rewritten, "fit")
        return found


def estimated_tokens(messages: Sequence[ChatMessage]) -> float:
    """Return about how many tokens ``messages`` are, by their characters."""
    return sum(len(entry.message.content) for entry in messages) / _CHARS_PER_TOKEN


def _turn_starts(messages: Sequence[ChatMessage]) -> list[int]:
    """Return where each observation begins; a system message is none."""
    seen = [entry.message.role in ("user", "tool") for entry in messages]
    return [i for i, is_seen in enumerate(seen) if is_seen and not (i and seen[i - 1])]


def _system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    return [entry for entry in messages[:1] if entry.message.role == "system"]


def _unbound(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return ``messages``; first answers to tools whose calls are gone become a user's words."""
    results = [*takewhile(lambda entry: entry.message.role == "tool", messages)]
    words = [
        ChatMessage(message=replace(one.message, role="user"), image=one.image) for one in results
    ]
    return [*_merged(words), *messages[len(results) :]]


def _merged(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Join neighbouring messages of the user: templates want roles to alternate."""
    merged: list[ChatMessage] = []
    for entry in messages:
        last = merged[-1] if merged else None
        if last is not None and last.message.role == entry.message.role == "user":
            text = f"{last.message.content}\n\n{entry.message.content}"
            merged[-1] = ChatMessage(message=Message(role="user", content=text), image=entry.image)
        else:
            merged.append(entry)
    return merged


REFLECT = (
    "The attempt is over and did not succeed ({how}). Say in one or two sentences what went wrong "
    "and what you will do differently in the next attempt at this very task. Take no action now."
)
_MAX_LESSON_CHARS = 600


class Reflection:
    """A memory of lessons, per task.

    The first attempt at a task knows none. Attempts that run at the same time, as those of a group
    in training, do not learn from each other; an evaluation plays them one after the other, and
    begins without lessons. The judge's verdict is used between attempts, so numbers of an agent
    with reflection compare with others of the same number of attempts only.

    Args:
        keep: Most lessons that are shown, the newest.

    Source:
        Shinn et al. 2023, "Reflexion: Language Agents with Verbal Reinforcement Learning",
        arXiv:2303.11366.
    """

    def __init__(self, keep: int = 3) -> None:
        if keep < 1:
            raise ConfigError(f"reflection: keep must be at least 1, got {keep}")
        self._keep = keep
        self._lessons: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def anew(self, before: Sequence[Trajectory]) -> Reflection:
        """Return a memory of the lessons of ``before``, in their order, and no others."""
        other = Reflection(self._keep)
        for attempt in before:
            if lesson := attempt.metadata.get(LESSON):
                other._lessons[attempt.env_id, attempt.task_id].append(lesson)
        return other

    def state(self) -> list[tuple[str, str, list[str]]]:
        """Return all that was learned, as JSON values."""
        return [(*key, found[-self._keep :]) for key, found in self._lessons.items()]

    def load_state(self, state: Sequence[tuple[str, str, list[str]]]) -> None:
        """Restore what ``state`` returned."""
        for env_id, task_id, found in state:
            self._lessons[env_id, task_id] = list(found)

    def lessons(self, context: EpisodeContext) -> list[str]:
        """Return what was learned in earlier attempts, oldest first."""
        return self._lessons[context.env_id, context.task_id][-self._keep :]

    async def learn(
        self, context: EpisodeContext, messages: Sequence[ChatMessage], end: EpisodeEnd, *, ask: Ask
    ) -> str | None:
        """``ask`` the model what to do better, unless the attempt succeeded, and return it."""
        if end.score is not None and end.score >= 1.0:
            return None
        how = end.stop_reason.value if end.score is None else f"score {end.score:g}"
        text = "\n\n".join(filter(None, [end.observation, REFLECT.format(how=how)]))
        role: Role = "tool" if messages and messages[-1].calls_tools else "user"
        request = ChatMessage(message=Message(role=role, content=text))
        lesson = " ".join((await ask([*messages, request])).split())[:_MAX_LESSON_CHARS]
        if lesson:
            self._lessons[context.env_id, context.task_id].append(lesson)
        return lesson
