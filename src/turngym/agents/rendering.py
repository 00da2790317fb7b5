"""From a conversation to token ids through a chat template, append only.

A template is asked for the text that new messages add to a conversation, and only that text is
encoded; what was sampled stays as it was sampled. The mask of what to train on follows from the
spans and is never searched for in text. With an engine that makes a chat model, which speaks in
tokens and keeps every one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from turngym.agents.chat.prompting import ChatMessage, Completion
from turngym.agents.engine.protocol import (
    Engine,
    Generation,
    Sampling,
    Session,
    spans_of,
    vision_of,
)
from turngym.agents.templates import (
    ANSWER,
    NEXT,
    QUESTION,
    control_token,
    difference,
    end_token,
    mark,
    rendered,
    says_as_is,
    slots_of,
    takes_system,
)
from turngym.coroutines import awaited
from turngym.errors import ConfigError
from turngym.pictures import Pixels, number_of
from turngym.tracing import is_tracing, note, traced
from turngym.types import THOUGHT, THOUGHT_ENDS, Message, Role, Trajectory, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_QUESTION = Message(role="user", content=QUESTION)
_ANSWER = Message(role="assistant", content=ANSWER)
_NEXT = Message(role="user", content=NEXT)
_SMALL = 2**16
"""Bytes of a picture that is kept at once, in a millisecond or two. A thread makes the order of
requests, and so the rounding of their log-probs, depend on the clock."""
_KNOWN_OPENINGS, _KNOWN_TEXTS, _KNOWN_CHARS = 64, 2_048, 1_000
"""How many openings, and texts of at most so many characters, are remembered with their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedEpisode:
    """An episode as tokens, for imitation. All sequences have one length [L]."""

    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    """True on the tokens of assistant messages, the end token included."""
    turn_ids: tuple[int, ...]
    """0-based turn of an action token, -1 elsewhere."""


class Renderer:
    """Encodes what is new in a conversation with the tokenizer's own chat template.

    What an episode holds is never rewritten. A template may treat thoughts of earlier answers in
    another way than those of the last one; here they all stay as they were sampled. One that
    rewrites anything else is refused. That is probed once, when the renderer is built.

    Args:
        tokenizer: With a chat template, and the token that the template puts after an answer as
            its end-of-sequence token, as ``load_tokenizer`` returns it.

    Raises:
        ConfigError: The tokenizer has no template, or its template rewrites history.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template; "
                "use an instruct model or set chat_template to a file with one"
            )
        self.tokenizer = tokenizer
        self._control_tokens = [t for t in tokenizer.get_added_vocab() if len(t) > 1]
        self._any_control_token = re.compile("|".join(map(re.escape, self._control_tokens)))
        # The Rust half of a tokenizer: the Python around it takes most of the time of a turn.
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._cleans_up = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        self._slots: dict[tuple[Role, ...], tuple[str, ...] | None] = {}
        """What the template puts around new messages of these roles; None where it must be run."""
        self._has_slots = says_as_is(str(tokenizer.chat_template))
        # Encoding is most of a turn. Members of a group open with the same words one after another,
        # and environments say the same few things again and again.
        self._known_opening = lru_cache(_KNOWN_OPENINGS)(self._encode_opening)
        self._known_text = lru_cache(_KNOWN_TEXTS)(self._encode)
        if self.tokenizer.eos_token_id is None:
            raise ConfigError(f"tokenizer {self.tokenizer.name_or_path!r} has no end token")
        self.end_ids = (int(self.tokenizer.eos_token_id),)
        self.vocab_size = len(tokenizer)
        self._takes_system = takes_system(tokenizer)
        self.vision = vision_of(tokenizer)
        self._closing = self._probe()

    def _probe(self) -> str:
        """Return the control token that closes an answer before the next message."""
        name, end = self.tokenizer.name_or_path, str(self.tokenizer.eos_token)
        first = self._text([_QUESTION], generate=True)
        before, _, after = self._text([_QUESTION, _ANSWER, _NEXT], generate=True).partition(ANSWER)
        if end_token(self.tokenizer) != end:
            raise ConfigError(
                f"chat template of {name!r}: an assistant message is followed by {after[:20]!r}, "
                f"not by the end token {end!r}"
            )
        longer = self._text([_QUESTION, *(_ANSWER, _NEXT) * 2], generate=True)
        before_both, _, rest = longer.partition(ANSWER)
        between, _, after_both = rest.rpartition(ANSWER)
        pairs = ((first, before), (first, before_both), (after, between))
        found = [ends for one, other in pairs if (ends := difference(one, other)) is not None]
        if after_both != after:
            found.append((after, after_both))
        if found:
            once, later = (text[:40] for text in found[0])
            raise ConfigError(
                f"chat template of {name!r} rewrites earlier messages: {once!r} becomes {later!r}, "
                "so sampled tokens could not be kept. Set chat_template to a file with one that "
                "only appends"
            )
        self.opens_thought = first.rstrip().endswith(THOUGHT)
        answered = self._text([_QUESTION, _ANSWER]).partition(ANSWER)[0]
        begins = answered.removeprefix(first) if answered.startswith(first) else ""
        self.answer_begins = begins or f"\n{THOUGHT_ENDS}\n\n" * self.opens_thought
        return control_token(self.tokenizer, after) or ""

    def opening(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of a conversation's first messages, up to where the agent speaks."""
        # Role and content are all that the template gets.
        return self._known_opening(tuple([(one.role, one.content) for one in messages]))

    def seen(self, message: Message, image: Pixels | None) -> Message:
        """Return ``message`` with the mark of ``image``, where the model sees; else as it is."""
        if image is None or self.vision is None:
            return message
        return self._shown(message, self.vision.pictures.keep(image))

    def _shown(self, message: Message, number: int) -> Message:
        assert self.vision is not None
        return replace(message, content=self.vision.shown(message.content, number))

    def continuation(self, messages: Sequence[Message], *, hit_eos: bool) -> tuple[int, ...]:
        """Return the tokens between one sampled action and the next.

        Args:
            messages: What is new since the action.
            hit_eos: The action closed with the end token; when False it is added here, unsampled.
        """
        text = self.continuation_text(messages, hit_eos=hit_eos)
        return self._known_text(text) if len(text) <= _KNOWN_CHARS else self._encode(text)

    def continuation_text(self, messages: Sequence[Message], *, hit_eos: bool) -> str:
        """Return what ``continuation`` encodes.

        Args:
            messages: What is new since the action.
            hit_eos: The action closed with the end token; when False it is added here, unsampled.
        """
        new = self._filled(messages) if self._has_slots else None
        if new is None:
            new = self._after_answer(messages)
        return new.removeprefix(self._closing) if hit_eos else new

    def _after_answer(self, messages: Sequence[Message]) -> str:
        longer = self._text([_QUESTION, _ANSWER, *messages], generate=True)
        return longer.partition(ANSWER)[2]

    def _filled(self, messages: Sequence[Message]) -> str | None:
        """Return the same without running the template, where that is certain to be equal."""
        roles = tuple([message.role for message in messages])
        if roles not in self._slots:
            marks = [Message(role=role, content=mark(i)) for i, role in enumerate(roles)]
            self._slots[roles] = slots_of(self._after_answer(marks), len(marks))
        slots = self._slots[roles]
        contents = [self._defused(message.content) for message in messages]
        if slots is None or any(not said or said != said.strip() for said in contents):
            return None
        return fill(slots, contents)

    def action(self, text: str) -> tuple[int, ...]:
        """Return the tokens of an action with its end token, as if it had been sampled.

        What the template puts between the place where a model speaks and its answer comes first: a
        blank, or a thought that is closed at once, where ``text`` has none of its own.
        """
        return self.closed(text if THOUGHT_ENDS in text else self.answer_begins + text)

    def closed(self, text: str) -> tuple[int, ...]:
        """Return the tokens of ``text`` with the end token."""
        return (*self._encode(text), self.tokenizer.eos_token_id)

    def decode_action(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled tokens without special tokens."""
        decoder = self.tokenizer if self._backend is None or self._cleans_up else self._backend
        text: str = decoder.decode(list(token_ids), skip_special_tokens=True)
        return text

    def render_episode(
        self, trajectory: Trajectory, instructions: str | None = None
    ) -> RenderedEpisode:
        """Return a whole episode as tokens, as ``ChatAgent`` would have fed and sampled them.

        Args:
            trajectory: Its messages are used; token spans, if any, are not.
            instructions: Text of a system message before the first observation, or None.
        """
        ids: list[int] = []
        turn_ids: list[int] = []
        for number, (prompt, action) in enumerate(self.render_turns(trajectory, instructions)):
            ids += [*prompt, *action]
            turn_ids += [-1] * len(prompt) + [number] * len(action)
        return RenderedEpisode(
            token_ids=tuple(ids),
            action_mask=tuple(turn >= 0 for turn in turn_ids),
            turn_ids=tuple(turn_ids),
        )

    def render_turns(
        self, trajectory: Trajectory, instructions: str | None = None
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return what is read before each action, and the action, as in ``render_episode``.

        Args:
            trajectory: The episode.
            instructions: As in ``render_episode``.
        """
        turns = trajectory.turns
        if self.vision is not None:  # then its pictures are in the run's folder
            turns = tuple(map(self._with_picture, turns))
        prompts = [self.continuation(turn.observation, hit_eos=True) for turn in turns[1:]]
        if turns:
            prompts.insert(0, self.opening(with_system(instructions, turns[0].observation)))
        actions = [self.action(turn.action.content) for turn in turns]
        return list(zip(prompts, actions, strict=True))

    def _with_picture(self, turn: Turn) -> Turn:
        if turn.picture is None or not turn.observation:
            return turn
        shown = self._shown(turn.observation[-1], number_of(turn.picture))
        return replace(turn, observation=(*turn.observation[:-1], shown))

    def _text(self, messages: Sequence[Message], *, generate: bool = False) -> str:
        said = [(str(one.role), self._defused(one.content)) for one in messages]
        if not self._takes_system and said and said[0][0] == "system":
            system = said.pop(0)[1]
            user = said.pop(0)[1] if said and said[0][0] == "user" else ""
            before = f"{system}\n\n" if user else system
            if self.vision is not None:
                user = self.vision.behind_mark(before, user)
            else:
                user = before + user
            said.insert(0, ("user", user))
        return rendered(self.tokenizer, said, generate=generate)

    def _defused(self, content: str) -> str:
        """Return ``content`` with control tokens broken up: a page must not speak as the agent."""
        if not self._control_tokens or self._any_control_token.search(content) is None:
            return content
        for token in self._control_tokens:
            if token in content:
                content = content.replace(token, f"{token[0]} {token[1:]}")
        return content

    def _encode_opening(self, said: Sequence[tuple[Role, str]]) -> tuple[int, ...]:
        messages = [Message(role=role, content=content) for role, content in said]
        return self._encode(self._text(messages, generate=True))

    def _encode(self, text: str) -> tuple[int, ...]:
        if self.vision is None:
            return self._encode_text(text)
        return self.vision.encode(text, self._encode_text)

    def _encode_text(self, text: str) -> tuple[int, ...]:
        backend = self._backend
        # Others may have set it to cut or to pad: the tokenizer undoes that, its backend does not.
        if backend is None or backend.truncation is not None or backend.padding is not None:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False))
        return tuple(backend.encode(text, add_special_tokens=False).ids)


def fill(slots: Sequence[str], contents: Sequence[str]) -> str:
    """Return the text of a template with ``contents`` in its ``slots``, one more than contents."""
    return (
        "".join([part for pair in zip(slots, contents, strict=False) for part in pair]) + slots[-1]
    )


def with_system(instructions: str | None, observation: Sequence[Message]) -> tuple[Message, ...]:
    """Return ``observation`` behind a system message, when there are instructions."""
    if not instructions:
        return tuple(observation)
    return (Message(role="system", content=instructions), *observation)


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
        self._hit_eos: bool | None = None  # None before the first answer

    async def complete(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Completion:
        """Return the answer to ``messages``, which must describe the tools themselves."""
        pictures = [entry.image for entry in messages if entry.image is not None]
        if self._renderer.vision is None or sum(one.size for one in pictures) <= _SMALL:
            new = self._seen(messages)
        else:  # they are written to files
            new = await asyncio.to_thread(self._seen, messages)
        if self._hit_eos is None:
            prompt = self._renderer.opening(new)
        else:
            prompt = self._renderer.continuation(new, hit_eos=self._hit_eos)
        generate = self._traced if is_tracing() else self._session.generate
        answer = await generate(prompt, self._sampling)
        self._hit_eos = answer.token_ids[-1:] == self._renderer.end_ids
        text = self._renderer.decode_action(answer.token_ids)
        if self._renderer.opens_thought and THOUGHT_ENDS not in text:
            text = f"{THOUGHT}{text}"  # of which no line is an action
        return Completion(
            message=Message(role="assistant", content=text),
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
        self._hit_eos = tuple(ids[-1:]) == self._renderer.end_ids

    async def restart(self) -> None:
        """Forget everything; the next messages open a conversation, with the next seed."""
        await awaited(self._session.close())
        self._seed += 1
        self._session, self._hit_eos = self._engine.open(self._seed), None

    def close(self) -> Awaitable[None] | None:
        """Free the engine's session."""
        return self._session.close()
