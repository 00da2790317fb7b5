"""One call of an agent, recorded as a turn, as a turn that was cut off, or as a fault by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from turngym.agents.policy import ContextOverflow
from turngym.agents.remote.endpoint import HalfAnswer
from turngym.agents.remote.wire import generation_of, prompt_ids_of, usage_of
from turngym.agents.serving.http import BadRequest, Json
from turngym.agents.serving.requests import messages_of
from turngym.errors import ConfigError, PolicyFault, TurnGymError
from turngym.rollouts.gateway.chunks import ChunkCollector, only_choice
from turngym.rollouts.gateway.episodes import Episode
from turngym.types import Message

FAILED = (ConfigError, ContextOverflow, HalfAnswer, PolicyFault)
"""What ends a stream before its end."""


class Call:
    """One chat request.

    Args:
        episode: Where it is recorded.
        asked: The request.
        messages: Its messages, as they are recorded.
        needs_tokens: An answer without token ids and log-probs is refused.
    """

    def __init__(
        self, episode: Episode, asked: Json, messages: list[Message], *, needs_tokens: bool
    ) -> None:
        self.episode, self.asked = episode, asked
        self._messages = messages
        self._needs_tokens = needs_tokens

    @contextmanager
    def recording(self) -> Iterator[ChunkCollector]:
        """Record what becomes of a stream that does not come to its end in the block."""
        collector, recorder = ChunkCollector(), self.episode.recorder
        with self.episode.answering():
            try:
                yield collector
            except FAILED as error:
                recorder.fault(f"a stream failed: {error}")
                raise
            except BaseException:  # the agent has gone: the stream is cancelled or closed
                self._cut_off(collector)
                raise

    async def record_stream(self, collector: ChunkCollector) -> Json:
        """Record a stream that has ended and return its answer as one.

        Raises:
            HalfAnswer: It ended before its answer did.
            ConfigError, PolicyFault: As ``record``.
        """
        if not collector.is_whole:
            raise HalfAnswer("the answer broke off before its end")
        answer = collector.answer()
        await self.record(answer)
        return answer

    async def record(self, answer: Json, usage: Mapping[str, float] | None = None) -> None:
        """Add a turn.

        Args:
            answer: The whole answer.
            usage: What it cost, where more is known than the answer says.

        Raises:
            ConfigError: The token ids that are wanted are missing.
            PolicyFault: The answer is no message.
        """
        async with self.episode.lock:
            if not self.episode.is_over:  # else the end has noted it
                self._add_turn(answer, usage)

    def _cut_off(self, collector: ChunkCollector) -> None:
        """Record what was sampled before the agent went; it may have acted on it.

        The task is being cancelled, so this must not wait for a lock.
        """
        if self.episode.is_over:
            return
        recorder, why = self.episode.recorder, "the agent closed the stream"
        if collector.is_empty:
            recorder.fault(f"{why} before its first token")
            return
        try:
            self._add_turn(collector.answer())
        except TurnGymError as error:
            recorder.fault(f"{why}, and what it had read is no turn: {error}")
        else:
            recorder.fault(f"{why}, so turn {recorder.num_turns} is cut off")

    def _add_turn(self, answer: Json, usage: Mapping[str, float] | None = None) -> None:
        prompt_ids, generation = prompt_ids_of(answer), generation_of(answer)
        if self._needs_tokens and (prompt_ids is None or generation is None):
            raise ConfigError("upstream gives no token ids with log-probs, and tokens=yes asks for")
        read, sampled = usage_of(answer)
        counted = {
            "prompt_tokens": read or float(len(prompt_ids or ())),
            "completion_tokens": sampled or float(len(generation.token_ids) if generation else 0),
            "requests": 1.0,
        }
        try:
            message = messages_of([{**only_choice(answer)["message"], "role": "assistant"}])[0]
        except BadRequest as error:
            raise PolicyFault(f"upstream answered with no message: {error.message}") from error
        self.episode.recorder.call(
            self._messages,
            message,
            prompt_ids=prompt_ids,
            generation=generation,
            usage=usage or counted,
        )
