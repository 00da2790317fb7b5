"""The policy of a local engine: renders, draws, and keeps every token as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turngym.agents.chat.conversation import Conversation, Line, Said
from turngym.agents.engine.local import EngineSession, LocalEngine, Sampling
from turngym.agents.engine.protocol import Engine, Session, spans_of
from turngym.agents.policy import EpisodeContext, PolicySession, PolicyTurn
from turngym.agents.rendering import Renderer, with_system
from turngym.types import Message, Turn


class LocalPolicy:
    """Acts with a language model on a local engine.

    Args:
        engine: Draws the tokens; shared by all sessions.
        renderer: Encodes the conversation.
        sampling: How actions are drawn.
        system_prompt: Begin each conversation with the environment's instructions. A model that is
            trained from scratch on one environment does without.
    """

    def __init__(
        self,
        engine: LocalEngine,
        renderer: Renderer,
        *,
        sampling: Sampling,
        system_prompt: bool = True,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.sampling = sampling
        self.system_prompt = system_prompt

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session with its own cache and its own random numbers."""
        return _LocalSession(self, context)


class _LocalSession:
    def __init__(self, policy: LocalPolicy, context: EpisodeContext) -> None:
        self._conversation = EngineConversation(
            policy.engine, policy.renderer, sampling=policy.sampling, seed=context.seed
        )
        self._instructions = context.instructions if policy.system_prompt else None
        self._first = True

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        seen: tuple[Message, ...] = (Message(role="user", content=observation["text"]),)
        if self._first:
            seen, self._first = with_system(self._instructions, seen), False
        said = await self._conversation.say([Line(message=message) for message in seen])
        return PolicyTurn(observation=seen, action=said.message, spans=said.spans)

    def replay(self, observation: Mapping[str, Any], info: Mapping[str, Any], turn: Turn) -> None:
        """Take over the tokens of a turn that was played before, exactly as they were."""
        self._conversation.take_up(turn)
        self._first = False

    def close(self) -> None:
        self._conversation.close()


class EngineModel:
    """A chat model made of an engine and the chat template of its tokenizer."""

    def __init__(self, engine: Engine, renderer: Renderer, *, sampling: Sampling) -> None:
        self.engine = engine
        self.renderer = renderer
        self.sampling = sampling

    def open(self, seed: int) -> Conversation:
        """Return a new conversation."""
        return EngineConversation(self.engine, self.renderer, sampling=self.sampling, seed=seed)


class EngineConversation:
    """A conversation that is told to an engine in tokens, each once; text is never read twice."""

    def __init__(
        self, engine: Engine, renderer: Renderer, *, sampling: Sampling, seed: int
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._sampling = sampling
        self._seed = seed
        self._session: Session = engine.open(seed)
        self._ended: bool | None = None  # None before the first action

    async def say(self, lines: Sequence[Line], *, tools: Sequence[Mapping[str, Any]] = ()) -> Said:
        """Say ``lines`` and return the answer. Tools must be told in the lines themselves."""
        messages = [line.message for line in lines]
        if self._ended is None:
            prompt = self._renderer.opening(messages)
        else:
            prompt = self._renderer.continuation(messages, ended=self._ended)
        drawn = await self._session.generate(prompt, self._sampling)
        self._ended = drawn.finish == "end"
        text = self._renderer.decode_action(drawn.token_ids)
        return Said(
            message=Message(role="assistant", content=text),
            spans=spans_of(prompt, drawn),
            usage={
                "prompt_tokens": float(len(prompt)),
                "completion_tokens": float(len(drawn.token_ids)),
            },
        )

    def take_up(self, turn: Turn) -> None:
        """Take over the tokens of a turn that was played before.

        Raises:
            ValueError: It has none, or the engine's sessions cannot take up any.
        """
        ids = [token for span in turn.spans for token in span.token_ids]
        if not ids:
            raise ValueError("the turn has no tokens to take up")
        if not isinstance(self._session, EngineSession):
            raise ValueError(f"{type(self._session).__name__} cannot take up tokens")
        self._session.read(ids, draws=turn.num_sampled_tokens)
        self._ended = ids[-1] == self._renderer.tokenizer.eos_token_id

    async def restart(self) -> None:
        """Forget everything; the next lines open a conversation."""
        await self._close_session()
        self._session, self._ended = self._engine.open(self._seed + 1), None
        self._seed += 1

    def close(self) -> Any:  # an awaitable or None, as the engine's sessions have it
        """Free the engine's session."""
        return self._session.close()

    async def _close_session(self) -> None:
        closing = self._session.close()
        if closing is not None:
            await closing
