"""One episode of an outside agent, call by call: what it said to a model becomes turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turngym.agents.engine.protocol import Generation
from turngym.agents.remote.scrub import Scrubber
from turngym.agents.token_trace import TokenTrace
from turngym.types import Message, StopReason, Trajectory, Turn

_UNTOLD = "a call before was answered without token ids"
_HID_SECRET = "a call before held a secret, so its tokens are not kept"
_REWRITTEN = "the messages do not go on from the call before"


class EpisodeRecorder:
    """Gathers the turns of one episode; each call to the model is one turn.

    Tokens are kept as the server reported them, and compared with the call before in token space.
    Where the server reports none, messages are compared instead.

    Args:
        env_id: Of the environment, or of whatever the agent works on.
        task_id: What is asked of it.
        env_seed: Seed of the environment, 0 where there is none.
        policy_seed: Distinguishes attempts at one task.
        attempt: Place inside a group.
        scrubber: Takes secrets out of what is kept.
    """

    def __init__(
        self,
        *,
        env_id: str,
        task_id: str,
        env_seed: int = 0,
        policy_seed: int = 0,
        attempt: int = 0,
        scrubber: Scrubber | None = None,
    ) -> None:
        self.env_id, self.task_id = env_id, task_id
        self._env_seed, self._policy_seed, self._attempt = env_seed, policy_seed, attempt
        self._scrubber = scrubber or Scrubber()
        self._turns: list[Turn] = []
        self._said: list[Message] = []
        self._trace = TokenTrace()
        self._early = 0.0
        self._faults: list[str] = []
        self._final: tuple[Message, ...] = ()

    @property
    def num_turns(self) -> int:
        """Calls that were answered."""
        return len(self._turns)

    @property
    def has_happened(self) -> bool:
        """There is something to keep: a call that was answered, or one that failed."""
        return bool(self._turns or self._faults)

    def call(
        self,
        messages: Sequence[Message],
        answer: Message,
        *,
        prompt_ids: Sequence[int] | None,
        generation: Generation | None,
        usage: Mapping[str, float],
    ) -> Turn:
        """Add one answered call.

        Args:
            messages: The whole conversation as the agent sent it.
            answer: What the model said.
            prompt_ids: What the server read, or None when it does not tell.
            generation: What it sampled, or None where it does not say.
            usage: What the call cost.

        Returns:
            The new turn.
        """
        known = len(self._said)
        goes_on = known > 0 and list(messages[:known]) == self._said
        clean = [self._scrubber.message(message) for message in messages]
        clean_answer = self._scrubber.message(answer)
        hides = clean_answer is not answer or any(
            one is not other for one, other in zip(clean, messages, strict=True)
        )
        spans, starts, reason = self._tokens(
            None if hides else prompt_ids,
            generation,
            lost=_HID_SECRET if hides else _UNTOLD,
            goes_on=goes_on,
        )
        turn = Turn(
            observation=tuple(clean if starts or not goes_on else clean[known:]),
            action=clean_answer,
            spans=spans,
            reward=self._early,
            starts_segment=starts,
            segment_reason=reason,
            usage=dict(usage),
        )
        self._early = 0.0
        self._said = [*messages, answer]
        self._turns.append(turn)
        return turn

    def _tokens(
        self,
        prompt_ids: Sequence[int] | None,
        generation: Generation | None,
        *,
        lost: str,
        goes_on: bool,
    ) -> tuple[Any, bool, str | None]:
        """Return spans, whether a segment starts, and why."""
        first = not self._turns
        if prompt_ids is None or generation is None:
            self._trace.lose(lost)
            starts = not first and not goes_on
            return (), starts, _REWRITTEN if starts else None
        traced = self._trace.add(prompt_ids, generation)
        return traced.spans, traced.starts_segment, traced.reason

    def reward(self, value: float, *, invalid_action: str | None = None) -> None:
        """Add a reward to the last turn; one that comes before the first call waits for it."""
        if not self._turns:
            self._early += value
            return
        last = self._turns[-1]
        self._turns[-1] = replace(
            last,
            reward=last.reward + value,
            reward_parts={},
            invalid_action=invalid_action or last.invalid_action,
        )

    def observe(self, text: str) -> None:
        """Note what the environment answered last."""
        self._final = (Message(role="user", content=self._scrubber.text(text)),)

    def fault(self, text: str) -> None:
        """Note something that broke on the way and was no turn."""
        self._faults.append(self._scrubber.text(text))

    def end(
        self,
        stop_reason: StopReason,
        *,
        score: float | None = None,
        error: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """Return the episode."""
        notes = dict(self._scrubber.values(metadata or {}))
        if self._early:
            notes["reward_without_a_call"] = self._early
        if self._faults:
            notes["faults"] = list(self._faults)
        return Trajectory(
            env_id=self.env_id,
            task_id=self.task_id,
            env_seed=self._env_seed,
            policy_seed=self._policy_seed,
            attempt=self._attempt,
            turns=tuple(self._turns),
            stop_reason=stop_reason,
            final_observation=self._final,
            score=None if stop_reason.is_error else score,
            error=None if error is None else self._scrubber.text(error),
            metadata=notes,
        )
