"""The one policy around language models, local or remote, and a model on an engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from turngym.agents.chat.prompting import (
    ChatMessage,
    ChatModel,
    Completion,
    FullHistory,
    History,
    PlainPrompting,
    Prompting,
    Reflection,
    Rewritten,
    estimated_tokens,
)
from turngym.agents.engine.protocol import Engine, Generation, Sampling, Session, spans_of
from turngym.agents.policy import (
    ContextOverflow,
    EpisodeContext,
    EpisodeEnd,
    Learned,
    PolicySession,
    PolicyTurn,
    messages_seen,
)
from turngym.agents.rendering import AnswerEnd, Renderer
from turngym.agents.tool_calls import in_words, with_all_calls, with_tools
from turngym.coroutines import awaited
from turngym.seeding import derive_seed
from turngym.tracing import is_tracing, note, traced
from turngym.types import Message, Trajectory, Turn, after_thoughts, sum_by_name

logger = logging.getLogger(__name__)

_SMALL = 2**16
"""Bytes of a picture that is kept at once, in a millisecond or two. A thread makes the order of
requests, and so the rounding of their log-probs, depend on the clock."""
ModelT = TypeVar("ModelT", bound=ChatModel, covariant=True)


class ChatAgent(Generic[ModelT]):
    """Acts with any chat model.

    Args:
        model: Answers.
        prompting: Makes messages of instructions and observations.
        history: How much of the conversation the model still sees.
        reflection: Learns a lesson from each failed attempt at a task, for the next one; None for
            no memory between episodes.
    """

    def __init__(
        self,
        model: ModelT,
        *,
        prompting: Prompting | None = None,
        history: History | None = None,
        reflection: Reflection | None = None,
    ) -> None:
        self.model = model
        self.prompting: Prompting = prompting or PlainPrompting()
        self.history: History = history or FullHistory()
        self.reflection = reflection

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session with a conversation of its own."""
        if self.reflection is None:
            return _ChatSession(self, context)
        return _ReflectingSession(self, context, self.reflection)

    @property
    def learns(self) -> bool:
        """Whether an attempt at a task is shown what earlier ones learned."""
        return self.reflection is not None

    def anew(self, before: Sequence[Trajectory]) -> Self:
        """Return this agent with the lessons of ``before``, in their order, and no others."""
        other = copy(self)
        other.reflection = self.reflection and self.reflection.anew(before)
        return other


class _ChatSession:
    def __init__(
        self, agent: ChatAgent[ChatModel], context: EpisodeContext, lessons: Sequence[str] = ()
    ) -> None:
        self._agent = agent
        self._context = context
        self._conversation = agent.model.open(context.seed)
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._takes_all_calls = False
        """Whether all calls of an answer are carried out, not the first alone."""
        self._messages: list[ChatMessage] = []
        self._replayed: list[tuple[list[ChatMessage], Turn]] = []
        self._num_turns = 0
        self._tokens = 0.0
        self._spent: dict[str, float] = {}
        self._lessons = lessons

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        await self._resume()
        return await self._act(observation, info)

    def replay(self, observation: Mapping[str, Any], info: Mapping[str, Any], turn: Turn) -> None:
        """Take over a turn that was played before, its tokens exactly as they were."""
        self._note_tools(info)
        new = [ChatMessage(message=message) for message in turn.observation]
        if new:
            new = _shown(new, observation, info)
        if self._num_turns == 0 and not any(one.message.role == "system" for one in new):
            new = [*self._opening(), *new]  # another agent's turn, or it would be there
        self._replayed.append((new, turn))
        if turn.starts_segment:
            self._messages = []
        entries = [*new, ChatMessage(message=turn.action)]
        self._add(entries, turn, starts_segment=turn.starts_segment)

    def _note_tools(self, info: Mapping[str, Any]) -> None:
        """Take over what the ``info`` of a reset says of tools."""
        self._tools = info.get("tools", self._tools)
        if "messages" in info or "calls_per_turn" in info:  # of a program, which takes them all
            self._takes_all_calls = True

    async def _resume(self) -> None:
        """Resume the conversation from the replayed turns; restarting it may have to wait."""
        replayed, self._replayed = self._replayed, []
        for new, turn in replayed:
            if turn.starts_segment:
                await self._conversation.restart()
            self._conversation.resume(new, turn)

    async def _act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        self._note_tools(info)
        new, rewritten = self._new(observation, info)
        self._spent = {}
        if rewritten is None:
            whole, tokens = [*self._messages, *new], self._tokens + estimated_tokens(new)
            rewritten = await self._agent.history.fit(whole, tokens=tokens, ask=self.ask)
        if rewritten is not None:
            await self._conversation.restart()
            self._messages, new = [], rewritten.messages
        answer = await self._conversation.complete(new, tools=self._tools)
        starts_segment = answer.starts_segment or rewritten is not None
        self._add([*new, answer.entry], answer, starts_segment=starts_segment)
        action = answer.message
        if self._takes_all_calls:
            action = with_all_calls(action, answer.in_words)
        return PolicyTurn(
            observation=tuple(entry.message for entry in new),
            action=action,
            spans=answer.spans,
            starts_segment=starts_segment,
            segment_reason=answer.segment_reason if rewritten is None else rewritten.reason,
            usage=sum_by_name(self._spent, answer.usage) if self._spent else answer.usage,
        )

    def _new(
        self, observation: Mapping[str, Any], info: Mapping[str, Any]
    ) -> tuple[list[ChatMessage], Rewritten | None]:
        """Return what is new, and the whole where the environment has said it anew."""
        if "messages" in info:  # of a program, which says itself who speaks
            said = messages_seen(observation, info)
            if not self._agent.model.takes_tools:
                said = tuple(map(in_words, said))
            new = _shown([ChatMessage(message=one) for one in said], observation, info)
        else:
            new = self._observed(observation, info)
        reason = info.get("rewritten") if self._messages else None
        if reason is None and self._messages:
            return new, None
        opening = self._opening()
        if opening and new[0].message.role == "system":  # one is all that a template takes
            both = f"{opening[0].message.content}\n\n{new[0].message.content}"
            opening, new = [ChatMessage(message=Message(role="system", content=both))], new[1:]
        new = [*opening, *new]
        if "messages" in info and not self._agent.model.takes_tools:
            new = _with_tools(new, self._tools)
        return new, None if reason is None else Rewritten(messages=new, reason=reason)

    def _observed(
        self, observation: Mapping[str, Any], info: Mapping[str, Any]
    ) -> list[ChatMessage]:
        """Return what an environment shows: what came of each call, where there were some."""
        observe = self._agent.prompting.observation
        if not (self._messages and self._messages[-1].calls_tools):
            return [observe(observation, info)]
        *before, last = info.get("results", [observation["text"]])
        seen = observe({**observation, "text": last}, info)
        seen = replace(seen, message=replace(seen.message, role="tool"))
        return [*(ChatMessage(message=Message(role="tool", content=one)) for one in before), seen]

    async def ask(self, messages: Sequence[ChatMessage]) -> str:
        """Ask the model something apart from the conversation, and count what it costs."""
        # Seeded by the turn, of which each asks at most once: a resumed episode asks the same way.
        seed = derive_seed(self._context.seed, "aside", self._num_turns)
        aside = self._agent.model.open(seed)
        try:
            answer = await aside.complete(messages)
        finally:
            await awaited(aside.close())
        self._spent = sum_by_name(self._spent, answer.usage)
        return after_thoughts(answer.message.content)

    def close(self) -> Awaitable[None] | None:
        return self._conversation.close()

    def _opening(self) -> list[ChatMessage]:
        agent = self._agent
        native, context = agent.model.takes_tools and bool(self._tools), self._context
        said = context.rules if native and context.rules is not None else context.instructions
        text = agent.prompting.opening(said, self._lessons, native_tools=native)
        return [ChatMessage(message=Message(role="system", content=text))] if text else []

    def _add(
        self, messages: Sequence[ChatMessage], answer: Completion | Turn, *, starts_segment: bool
    ) -> None:
        """Append what was said in a turn, and note how long the conversation is now."""
        self._messages += messages
        self._num_turns += 1
        if answer.spans:  # what this answer added
            added = float(sum([len(span.token_ids) for span in answer.spans]))
            self._tokens = added if starts_segment else self._tokens + added
        elif (read := answer.usage.get("prompt_tokens", 0.0)) > 0:
            self._tokens = read + answer.usage.get("completion_tokens", 0.0)
        else:
            self._tokens = estimated_tokens(self._messages)


class _ReflectingSession(_ChatSession):
    """A session that is given earlier lessons, and learns one from its own failure."""

    def __init__(
        self, agent: ChatAgent[ChatModel], context: EpisodeContext, reflection: Reflection
    ) -> None:
        super().__init__(agent, context, reflection.lessons(context))
        self._reflection = reflection

    async def finish(self, end: EpisodeEnd) -> Learned | None:
        """Ask for a lesson when the attempt failed."""
        self._spent = {}
        lesson = await self._reflection.learn(self._context, self._messages, end, ask=self.ask)
        return None if lesson is None else Learned(lesson=lesson, usage=self._spent)


def _shown(
    entries: Sequence[ChatMessage], observation: Mapping[str, Any], info: Mapping[str, Any]
) -> list[ChatMessage]:
    """Return what an observation adds, which are the last of ``entries``, with its pictures."""
    found = list(entries)
    first = len(found) - len(info["messages"]) if "messages" in info else len(found) - 1
    pictures = info.get("pictures", {}) if "messages" in info else {0: observation.get("image")}
    for place, image in pictures.items():
        if first + place < 0:  # it was cut away
            continue
        found[first + place] = replace(found[first + place], image=image)
    return found


def _with_tools(
    entries: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]
) -> list[ChatMessage]:
    """Return a conversation with a program's tools described in its system message."""
    described = with_tools([entry.message for entry in entries], tools)
    missing = len(described) - len(entries)
    added = [ChatMessage(message=message) for message in described[:missing]]
    kept = zip(entries, described[missing:], strict=True)
    return [*added, *(replace(entry, message=message) for entry, message in kept)]


EngineT = TypeVar("EngineT", bound=Engine)


class EngineModel(Generic[EngineT]):
    """A chat model on an engine.

    Args:
        engine: Samples the tokens; shared by all conversations.
        renderer: Encodes messages.
        sampling: How answers are sampled.
    """

    def __init__(self, engine: EngineT, renderer: Renderer, *, sampling: Sampling) -> None:
        self.engine = engine
        self.renderer = renderer
        self.sampling = sampling

    @property
    def takes_tools(self) -> bool:
        """Whether tools are shown by the chat template."""
        return self.renderer.tools is not None

    def open(self, seed: int) -> EngineConversation:
        """Return a new conversation."""
        return EngineConversation(self.engine, self.renderer, sampling=self.sampling, seed=seed)


class EngineConversation:
    """A conversation as one sequence of tokens; text is encoded once and never read again."""

    def __init__(
        self, engine: Engine, renderer: Renderer, *, sampling: Sampling, seed: int
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._sampling = sampling
        self._seed = seed
        self._session: Session = engine.open(seed)
        self._most_chars = renderer.most_characters(engine.context)
        self._end: AnswerEnd | None = None  # None before the first answer
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._resumed: Turn | None = None
        """One of an earlier process, until the tools that it could call are known."""

    async def complete(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Completion:
        """Return the answer to ``messages``; where the template shows no tools they must.

        Raises:
            ContextOverflow: There is no room for them.
        """
        if (said := sum(len(one.message.content) for one in messages)) > self._most_chars:
            raise ContextOverflow(f"{said} characters, context {self._engine.context} tokens")
        self._tools = tools if self._renderer.tools is not None else ()
        if tools and self._renderer.no_tools:
            logger.warning("tools are described in words: %s", self._renderer.no_tools)
            self._renderer.no_tools = ""  # said once
        if self._resumed is not None:
            self._end, self._resumed = self._renderer.end_of(self._resumed, self._tools), None
        pictures = [entry.image for entry in messages if entry.image is not None]
        if self._renderer.vision is None or sum(one.size for one in pictures) <= _SMALL:
            new = self._seen(messages)
        else:  # they are written to files
            new = await asyncio.to_thread(self._seen, messages)
        if self._end is None:
            prompt = self._renderer.opening(new, self._tools)
        else:
            prompt = self._renderer.continuation(new, self._end)
        generate = self._traced if is_tracing() else self._session.generate
        answer = await generate(prompt, self._sampling)
        message, self._end = self._renderer.answer(answer.token_ids, self._tools or None)
        return Completion(
            message=message,
            spans=spans_of(prompt, answer),
            usage={
                "prompt_tokens": float(len(prompt)),
                "completion_tokens": float(len(answer.token_ids)),
            },
        )

    def _seen(self, messages: Sequence[ChatMessage]) -> list[Message]:
        return [self._renderer.seen(entry.message, entry.image) for entry in messages]

    @traced("generate")
    async def _traced(self, prompt: Sequence[int], sampling: Sampling) -> Generation:
        note(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.max_tokens": sampling.max_new_tokens,
                "gen_ai.usage.input_tokens": len(prompt),  # those that are new to the conversation
            }
        )
        answer = await self._session.generate(prompt, sampling)
        note(
            {
                "gen_ai.usage.output_tokens": len(answer.token_ids),
                "gen_ai.response.finish_reasons": (answer.finish,),
                "turngym.policy.version": answer.versions[-1] if answer.versions else None,
            }
        )
        return answer

    def resume(self, messages: Sequence[ChatMessage], turn: Turn) -> None:
        """Take over the tokens of a turn that was played before, exactly as they were.

        Raises:
            ValueError: It has none.
        """
        ids = [token for span in turn.spans for token in span.token_ids]
        if not ids:
            raise ValueError("the turn has no tokens to resume from")
        self._session.read(ids, sampled=turn.num_sampled_tokens)
        self._resumed = turn

    async def restart(self) -> None:
        """Forget everything; the next messages open a conversation, with the next seed."""
        await awaited(self._session.close())
        self._seed += 1
        self._session, self._end, self._resumed = self._engine.open(self._seed), None, None

    def close(self) -> Awaitable[None] | None:
        """Free the engine's session."""
        return self._session.close()
