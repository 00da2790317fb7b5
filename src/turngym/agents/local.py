"""The policy of a local engine: renders, draws, and keeps every token as it was."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from turngym.agents.base import EpisodeContext, PolicySession, PolicyTurn
from turngym.agents.engine import EngineSession, Generation, LocalEngine, Sampling
from turngym.agents.rendering import Renderer, with_system
from turngym.types import Message, TokenSpan, Turn


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
        return _LocalSession(self, self.engine.open(context.seed), context)


class _LocalSession:
    def __init__(self, policy: LocalPolicy, session: EngineSession, ctx: EpisodeContext) -> None:
        self._policy = policy
        self._session = session
        self._instructions = ctx.instructions if policy.system_prompt else None
        self._last_ended: bool | None = None  # None before the first action

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        renderer = self._policy.renderer
        seen: tuple[Message, ...] = (Message(role="user", content=observation["text"]),)
        if self._last_ended is None:
            seen = with_system(self._instructions, seen)
            prompt = renderer.opening(seen)
        else:
            prompt = renderer.continuation(seen, ended=self._last_ended)
        drawn = await self._session.generate(prompt, self._policy.sampling)
        self._last_ended = drawn.finish == "end"
        action = Message(role="assistant", content=renderer.decode_action(drawn.token_ids))
        return PolicyTurn(observation=seen, action=action, spans=_spans(prompt, drawn))

    def replay(self, observation: Mapping[str, Any], info: Mapping[str, Any], turn: Turn) -> None:
        """Take over the tokens of a turn that was played before, exactly as they were."""
        ids = [token for span in turn.spans for token in span.token_ids]
        if not ids:
            raise ValueError("the turn has no tokens to take up")
        self._session.read(ids, draws=turn.num_sampled_tokens)
        self._last_ended = ids[-1] == self._policy.renderer.tokenizer.eos_token_id

    def close(self) -> None:
        self._session.close()


def _spans(prompt: tuple[int, ...], drawn: Generation) -> tuple[TokenSpan, ...]:
    """Return the prompt's span, then one span per policy version that drew."""
    spans = [TokenSpan(token_ids=prompt, sampled=False)]
    for version, places in groupby(range(len(drawn.token_ids)), key=drawn.versions.__getitem__):
        run = list(places)
        spans.append(
            TokenSpan(
                token_ids=tuple(drawn.token_ids[i] for i in run),
                logprobs=tuple(drawn.logprobs[i] for i in run),
                sampled=True,
                policy_version=version,
            )
        )
    return tuple(spans)
