"""One episode while it runs: commits its turns, keeps its times, ends it when it has to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from turngym.agents.policy import PolicyTurn
from turngym.environments.core.spaces import Info
from turngym.errors import EpisodeError
from turngym.rollouts.episode import EpisodeSpec, KeepPicture, ReplayedTurn, digest_of
from turngym.rollouts.scheduler.admission import partial_end, turn_version
from turngym.rollouts.scheduler.config import BudgetConfig, SchedulerConfig
from turngym.rollouts.scheduler.groups import Member, OpenGroup, SampleKey
from turngym.rollouts.scheduler.ledger import Ledger
from turngym.rollouts.scheduler.metrics import SchedulerMetrics, Timeline
from turngym.rollouts.scheduler.packing import pack_turn
from turngym.tracing import EpisodeSpans, episode_spans
from turngym.types import Message, StopReason, Trajectory, Turn

Phase = Literal["reset", "act", "step"]
OnEpisode = Callable[[SampleKey, Trajectory, float], None]
"""Called with each episode that ended, also by its last fault, and the seconds that it took."""


class Preempted(EpisodeError):
    """The episode was asked to stop between two turns; it is begun again where it stood."""


@dataclass(slots=True, kw_only=True)
class QueuedEpisode:
    """One episode that is to be played, or to be resumed."""

    group: OpenGroup
    key: SampleKey
    spec: EpisodeSpec
    retry: int = 0
    """Number of the next try: the fencing token."""
    faults: int = 0
    """Tries that ended by a fault."""
    played: list[ReplayedTurn] = field(default_factory=list)
    """Turns to carry out first: the prefix of the request, then turns of an earlier try."""
    versions: list[int] = field(default_factory=list)
    """Version of each of them."""
    trained_to: int = 0
    """First turn that may be trained on: after the prefix, and after what was trained early."""
    carry_from: int | None = None
    """Try whose turns in the ledger are taken over."""
    start_version: int | None = None
    """Version when its first try that counts began."""


class Allowance:
    """Turns and tokens of one episode.

    At its limit of turns an episode that got ahead since the last grant (its potential rose, or it
    earned a positive reward) gets ``extra_turns`` more, at most ``max_extensions`` times.
    """

    def __init__(self, config: BudgetConfig) -> None:
        self._config = config
        self._limit = config.max_turns
        self.grants = 0
        """How often turns were granted."""
        self._earned = 0.0
        self._best: float | None = None
        self._potential: float | None = None

    def spend(self, turn: Turn, *, turns: int, tokens: int) -> StopReason | None:
        """Count a finished turn and return why the episode ends here, or None.

        Args:
            turn: The turn.
            turns: Turns so far, this one included.
            tokens: Sampled tokens so far.
        """
        self._earned += max(0.0, turn.reward)
        self._potential = turn.potential
        if self._best is None:
            self._best = turn.potential
        if self._config.max_tokens is not None and tokens >= self._config.max_tokens:
            return StopReason.TRUNCATED_TOKENS
        if self._limit is None or turns < self._limit or self._extend():
            return None
        return StopReason.TRUNCATED_TURNS

    def _extend(self) -> bool:
        config = self._config
        if not config.extra_turns or self.grants >= config.max_extensions:
            return False
        rose = (
            self._potential is not None and self._best is not None and self._potential > self._best
        )
        if not rose and self._earned <= 0:
            return False
        assert self._limit is not None
        self._limit += config.extra_turns
        self.grants += 1
        # Progress is spent with the turns that it bought: the next extension needs its own.
        self._earned, self._best = 0.0, self._potential
        return True


class TurnBarrier:
    """Lets episodes take their turns together: none acts before all have stepped."""

    def __init__(self) -> None:
        self._parties = 0
        self._there: list[asyncio.Future[None]] = []

    def join(self) -> None:
        """Count an episode in."""
        self._parties += 1

    def leave(self) -> None:
        """Count an episode out; the others may have waited for it."""
        self._parties -= 1
        self._open_if_complete()

    def arrive(self) -> Awaitable[None]:
        """Return what to await before the next turn."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._there.append(waiting)
        self._open_if_complete()
        return waiting

    def _open_if_complete(self) -> None:
        # What a cancelled episode waited for is done: it is not there any more.
        self._there = [waiting for waiting in self._there if not waiting.done()]
        if len(self._there) >= self._parties:
            for waiting in self._there:
                waiting.set_result(None)
            self._there = []


@dataclass(slots=True, kw_only=True)
class SchedulerContext:
    """What all running episodes share."""

    config: SchedulerConfig
    stats: SchedulerMetrics
    clock: Callable[[], float]
    version: Callable[[], int]
    alive: Callable[[], None]
    """Called at every event, for the watchdog."""
    ledger: Ledger | None
    timeline: Timeline | None
    barrier: TurnBarrier | None
    on_episode: OnEpisode | None
    keep_picture: KeepPicture | None


class RunningEpisode:
    """The watch of one try at one episode."""

    def __init__(self, job: QueuedEpisode, context: SchedulerContext, slot: int) -> None:
        self.job = job
        self.slot = slot
        self.retry = job.retry
        self.start_version = context.version()
        self.first_version = self.start_version if job.start_version is None else job.start_version
        """Version when the first try that counts began."""
        self.turns: list[Turn] = [played.turn for played in job.played]
        self.seen: list[str | None] = [played.seen for played in job.played]
        self.versions: list[int] = list(job.versions)
        self.packed: list[bytes] | None = None
        """The turns as the ledger has them."""
        self.tokens = sum(turn.num_sampled_tokens for turn in self.turns)
        self.uncommitted_tokens = 0
        """Sampled in a turn that has not ended."""
        self.phase: Phase = "reset"
        self.entered = False
        """Whether its task began."""
        self.concluded = False
        """Whether its end is accounted for."""
        self.stop_asked = False
        self.drop_reason: str | None = None
        self.began = self.since = context.clock()
        self._context = context
        budget = context.config.budget
        is_limited = budget.max_turns is not None or budget.max_tokens is not None
        self._allowance = Allowance(budget) if is_limited else None
        self._own = len(job.group.request.prefix)
        self.stop: StopReason | None = None
        """Why it ends after the turns that are carried out again, if it does."""
        if self._allowance is not None:  # it was spent on the turns of an earlier try too
            own = self.turns[self._own :]
            tokens = accumulate(turn.num_sampled_tokens for turn in own)
            for number, (turn, spent) in enumerate(zip(own, tokens, strict=True), 1):
                self.stop = self._allowance.spend(turn, turns=number, tokens=spent)
        self._committed = 0
        self._state: tuple[tuple[Message, ...], float | None] = (), None
        """What the environment says after the last turn, and the potential there."""
        self._act_version = self.start_version
        self._spans: EpisodeSpans | None = None

    def enter(self) -> None:
        """Enter the try and the turns of its prefix into the ledger."""
        ledger, job = self._context.ledger, self.job
        self._spans = episode_spans(self._described)
        if ledger is None:
            return
        ledger.start(
            job.key,
            self.retry,
            start_version=self.first_version,
            seed=job.spec.policy_seed,
            carry_from=job.carry_from,
        )
        self.packed = [pack_turn(turn) for turn in self.turns]
        # Turns of an earlier try are copied inside the ledger; those of a prefix are new to it.
        if job.carry_from is None:
            for number, turn in enumerate(self.turns):
                facts = (turn.num_sampled_tokens, self.versions[number], self.seen[number] or "")
                ledger.commit_turn(job.key, self.retry, number, self.packed[number], facts=facts)

    def before_act(self, played: int, observation: Any, info: Info) -> Awaitable[None] | None:
        """Begin a turn: the environment answered.

        Raises:
            Preempted: The episode is asked to stop here.
        """
        if self.stop_asked:
            raise Preempted(f"episode {self.job.key}: stopped after {played} turns")
        seen = Message(role="user", content=observation["text"])
        self._state = (seen,), info.get("potential")
        context = self._context
        now = context.clock()
        if self.phase == "reset":
            context.stats.env_s += now - self.since
            self._draw_span("env", "reset", now)
        self.phase, self.since = "act", now
        self._act_version = context.version()
        if self._spans is not None:
            self._spans.begin_turn(played)
        return self._together() if context.barrier is not None else None

    async def _together(self) -> None:
        assert self._context.barrier is not None
        await self._context.barrier.arrive()
        # Waiting for the others is no time of the policy, and weights may have changed meanwhile.
        self.since = self._context.clock()
        self._act_version = self._context.version()

    def sampled(self, turn: PolicyTurn) -> Awaitable[None] | None:
        """Note what was sampled; the turn before must be on the disk before the step begins."""
        context = self._context
        now = context.clock()
        context.alive()
        self.uncommitted_tokens = sum(len(span.token_ids) for span in turn.spans if span.sampled)
        context.stats.tokens += self.uncommitted_tokens
        context.stats.policy_s += now - self.since
        self._draw_span("policy", "act", now)
        self.phase, self.since = "step", now
        if self._spans is not None:
            self._spans.begin_step()
        ledger = context.ledger
        if ledger is None or ledger.written >= self._committed:
            return None
        return self._on_disk(ledger)

    async def _on_disk(self, ledger: Ledger) -> None:
        await ledger.durable(self._committed)  # time of the disk, not of the environment
        self.since = self._context.clock()

    def stepped(self, turn: Turn, observation: Any) -> StopReason | None:
        """Commit the turn and return why the episode must end here, if it must."""
        context, number = self._context, len(self.turns)
        now = context.clock()
        context.alive()
        context.stats.env_s += now - self.since
        context.stats.turns += 1
        self._draw_span("env", "step", now)
        if self._spans is not None:
            self._spans.end_turn(
                {"turngym.reward": turn.reward, "turngym.invalid_action": turn.invalid_action}
            )
        self.since = now
        version = turn_version(turn, self._act_version)
        self.turns.append(turn)
        self.versions.append(version)
        self.tokens += self.uncommitted_tokens
        if context.ledger is not None:
            assert self.packed is not None
            seen = digest_of(observation)
            self.seen.append(seen)
            self.packed.append(pack_turn(turn))
            self._committed = context.ledger.commit_turn(
                self.job.key,
                self.retry,
                number,
                self.packed[number],
                facts=(self.uncommitted_tokens, version, seen),
            )
        else:
            self.seen.append(None)
        self.uncommitted_tokens = 0
        if self._allowance is None:
            return None
        own = len(self.turns) - self._own
        return self._allowance.spend(turn, turns=own, tokens=self.tokens)

    def leave(self, ended: Trajectory | Exception | None) -> None:
        """End the spans of the try, as it ``ended``; None where it was cancelled."""
        if self._spans is None:
            return
        facts: dict[str, str | float | None] = {
            "turngym.turns": len(self.turns),
            "turngym.drop_reason": self.drop_reason,
            "gen_ai.usage.output_tokens": self.tokens + self.uncommitted_tokens,
        }
        error = None
        if isinstance(ended, Trajectory):
            facts["turngym.stop_reason"] = ended.stop_reason.value
            facts |= {"turngym.return": ended.episode_return, "turngym.score": ended.score}
            error = ended.error
        elif ended is not None:
            error = str(ended)
        self._spans.end(facts, error=error)
        self._spans = None

    def _described(self) -> dict[str, str | float]:
        job = self.job
        return {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": str(job.key),
            "turngym.env.id": job.spec.env_id,
            "turngym.task.id": job.spec.task.id,
            "turngym.group": job.key.group,
            "turngym.member": job.key.member,
            "turngym.try": self.retry,
            "turngym.policy.version": self.start_version,
        }

    def cut(self) -> None:
        """Take down the phase that the try ended in, when it ended before its time."""
        self._draw_span("fault", self.phase, self._context.clock())

    def carried(self) -> list[ReplayedTurn]:
        """Return the finished turns, to be carried out again by the next try."""
        return [ReplayedTurn(turn, seen) for turn, seen in zip(self.turns, self.seen, strict=True)]

    def take_part(self, version: int, bound: int) -> Member | None:
        """Return the turns that can be trained at ``version`` or never, each once; None without.

        Args:
            version: Version of the weights that train now.
            bound: Updates that a token may be old at most.
        """
        job = self.job
        end = partial_end(self.versions, start=job.trained_to, version=version, bound=bound)
        if end == job.trained_to or job.group.closed:
            return None
        seen, potential = self._state
        if end < len(self.turns):
            seen, potential = self.turns[end].observation, self.turns[end].potential
        trajectory = Trajectory(
            env_id=job.spec.env_id,
            task_id=job.spec.task.id,
            env_seed=job.spec.env_seed,
            policy_seed=job.spec.policy_seed,
            member=job.spec.member,
            turns=tuple(self.turns[:end]),
            stop_reason=StopReason.TRUNCATED_ENV,
            final_observation=seen,
            final_potential=potential,
            metadata={"partial": True},
        )
        # Noted before the update, so that no turn is handed out twice.
        first, job.trained_to = job.trained_to, end
        return Member(
            number=job.key.member,
            retry=self.retry,
            trajectory=trajectory,
            first_turn=first,
            end_turn=end,
            versions=tuple(self.versions[:end]),
            start_version=self.start_version,
        )

    def _draw_span(self, kind: str, name: str, now: float) -> None:
        if (timeline := self._context.timeline) is not None:
            timeline.span(kind, f"{name} {self.job.key}", self.slot, self.since, now)
