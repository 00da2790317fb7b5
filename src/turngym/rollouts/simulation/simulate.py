"""A whole run without a model: simulated episodes, engine and learner, from one file.

In virtual time a scenario takes the same course on every machine, faults included, so a report of a
bug of the scheduler is one TOML file. In real time the same parts measure what scheduling costs.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import selectors
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import Field

from turngym.agents.engine.protocol import Generation, spans_of
from turngym.agents.policy import EpisodeContext, PolicyTurn
from turngym.config import StrictModel
from turngym.errors import EnvironmentFault, PolicyFault
from turngym.rollouts.scheduler.config import SchedulerConfig
from turngym.rollouts.scheduler.groups import Batch, Selection, UniformSelection
from turngym.rollouts.scheduler.ledger import Ledger
from turngym.rollouts.scheduler.metrics import Timeline
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.tasks.base import procedural_task
from turngym.types import Message, Turn

_FOREVER_S = 1e8
_PROMPT = (1, 2, 3, 4)
ENV_ID = "turngym/Simulated-v0"


class SimProfile(StrictModel):
    """How simulated episodes behave. Latencies are seconds."""

    min_turns: int = Field(default=1, ge=1)
    max_turns: int = Field(default=8, ge=1)
    """Turns of an episode are uniform between the two."""
    policy_s: float = Field(default=0.2, ge=0)
    """Time to sample one action."""
    env_median_s: float = Field(default=0.5, ge=0)
    """Median of the log-normal time of a step."""
    env_sigma: float = Field(default=1.0, ge=0)
    """Its shape; 0 for a constant."""
    reset_s: float = Field(default=0.0, ge=0)
    tokens_per_turn: int = Field(default=8, ge=1)
    raise_share: float = Field(default=0.0, ge=0, le=1)
    """Share of steps that raise."""
    hang_share: float = Field(default=0.0, ge=0, le=1)
    """Share of steps that never return."""
    engine_error_share: float = Field(default=0.0, ge=0, le=1)
    """Share of actions on which the engine fails."""
    reset_error_share: float = Field(default=0.0, ge=0, le=1)


class Scenario(StrictModel):
    """One simulated training run."""

    seed: int = Field(default=0, ge=0)
    steps: int = Field(default=10, ge=1)
    """Updates."""
    group_size: int = Field(default=4, ge=1)
    groups: int | None = Field(default=None, ge=1)
    """Groups in all; None for no end."""
    update_s: float = Field(default=1.0, ge=0)
    """Mean time of one update, uniform between half and one and a half of it."""
    engine_slots: int | None = Field(default=None, ge=1)
    """Actions sampled at once; None for no limit."""
    profile: SimProfile = SimProfile()
    scheduler: SchedulerConfig = SchedulerConfig(concurrency=16, groups_per_step=4)


class SimEngine:
    """Stamps tokens with the version that was live when each of them was sampled.

    Args:
        slots: Actions sampled at once; None for no limit.
    """

    def __init__(self, slots: int | None = None) -> None:
        self.version = 0
        self.sampled_tokens = 0
        """Tokens of all finished actions."""
        self._since = [(0.0, 0)]
        self._room = asyncio.Semaphore(slots) if slots is not None else None

    def load(self, version: int) -> None:
        """Swap the weights now."""
        self.version = version
        self._since.append((asyncio.get_running_loop().time(), version))

    async def sample(self, count: int, seconds: float) -> list[int]:
        """Return the version of each of ``count`` tokens, sampled evenly over ``seconds``."""
        clock = asyncio.get_running_loop().time
        async with self._room or nullcontext():
            start = clock()
            await asyncio.sleep(seconds)
        self.sampled_tokens += count
        if self._since[-1][0] <= start:
            return [self.version] * count
        span = (clock() - start) / count
        times = [at for at, _ in self._since]
        return [
            self._since[bisect_right(times, start + span * (number + 1)) - 1][1]
            for number in range(count)
        ]


class SimPolicy:
    """Says in each action how long the environment takes for it and how it ends.

    So an episode is a function of its policy seed, whatever plays it.
    """

    def __init__(self, engine: SimEngine, profile: SimProfile) -> None:
        self.engine = engine
        self.profile = profile

    def start(self, context: EpisodeContext) -> SimSession:
        """Return a session with its own random numbers."""
        return SimSession(self.engine, self.profile, context.seed)


class SimSession:
    """One simulated episode's side of the policy."""

    def __init__(self, engine: SimEngine, profile: SimProfile, seed: int) -> None:
        self._engine = engine
        self._profile = profile
        self._rng = random.Random(seed)
        self._left = self._rng.randint(profile.min_turns, profile.max_turns)

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        """Draw an action.

        Raises:
            PolicyFault: As often as the scenario says.
        """
        profile = self._profile
        text, ids, breaks = self._decide()
        if breaks:
            await asyncio.sleep(profile.policy_s)
            raise PolicyFault("simulated engine error")
        versions = tuple(await self._engine.sample(len(ids), profile.policy_s))
        logprobs = (-0.5,) * len(ids)
        answer = Generation(token_ids=ids, logprobs=logprobs, versions=versions, finish="end")
        return PolicyTurn(
            observation=(Message(role="user", content=observation["text"]),),
            action=Message(role="assistant", content=text),
            spans=spans_of(_PROMPT, answer),
        )

    def replay(self, observation: Mapping[str, Any], info: Mapping[str, Any], turn: Turn) -> None:
        """Replay a turn: the random numbers move on as if it had been sampled."""
        self._decide()

    def close(self) -> None:
        """Release nothing."""

    def _decide(self) -> tuple[str, tuple[int, ...], bool]:
        profile, rng = self._profile, self._rng
        self._left -= 1
        spread = rng.gauss(0.0, profile.env_sigma) if profile.env_sigma else 0.0
        seconds = profile.env_median_s * 2.718281828459045**spread
        luck, trouble = rng.random(), rng.random()
        end = "end" if self._left <= 0 else "on"
        if luck < profile.raise_share:
            end = "raise"
        elif luck < profile.raise_share + profile.hang_share:
            end = "hang"
        ids = tuple(rng.choices(range(256), k=profile.tokens_per_turn))
        return f"{seconds:.6f} {end}", ids, trouble < profile.engine_error_share


class SimEnv:
    """Does what the action says, for as long as it says. Observations digest all actions so far."""

    def __init__(self, profile: SimProfile) -> None:
        self._profile = profile
        self._state = 0
        self._turns = 0

    async def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Start an episode; ``options`` has its task.

        Raises:
            EnvironmentFault: As often as the scenario says.
        """
        profile = self._profile
        self._state = zlib.crc32(f"{seed} {options['task'].id}".encode())
        self._turns = 0
        if profile.reset_s:
            await asyncio.sleep(profile.reset_s)
        if profile.reset_error_share and random.Random(self._state).random() < (
            profile.reset_error_share
        ):
            raise EnvironmentFault("simulated failure of reset")
        return {"text": f"start {self._state:08x}"}, {}

    async def step(self, action: str) -> tuple[Any, float, bool, bool, Any]:
        """Take the time that ``action`` says.

        Raises:
            RuntimeError: As often as the scenario says.
        """
        seconds, _, end = action.partition(" ")
        await asyncio.sleep(_FOREVER_S if end == "hang" else float(seconds))
        if end == "raise":
            raise RuntimeError("simulated error of a step")
        self._state = zlib.crc32(action.encode(), self._state)
        self._turns += 1
        over, score = end == "end", float(self._state % 2)
        info = {"score": score} if over else {}
        return {"text": f"turn {self._turns} {self._state:08x}"}, over * score, over, False, info

    async def close(self) -> None:
        """Release nothing."""


T = TypeVar("T")

_THREADS_S = 5.0
"""Real seconds that a thread gets to answer before the loop is called stuck."""


class _JumpingSelector(selectors.SelectSelector):
    """Turns waiting for a time into setting the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is there to be read; if nothing is, let ``timeout`` pass at once."""
        if timeout is not None and timeout <= 0:
            return super().select(0)
        ready = super().select(0 if timeout is not None else _THREADS_S)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("virtual clock: every task waits, and nothing is going to happen")
        self.now += timeout
        return []


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Runs tasks in virtual time, which passes only when all of them wait.

    ``asyncio.sleep`` and timeouts work as ever and take no real time. Two runs of the same
    coroutine take the same course as long as it uses no thread and no real clock.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual time in seconds, from 0."""
        return self._jumping.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(work)


@dataclass(slots=True)
class SimResult:
    """What a simulated run did."""

    wall_s: float = 0.0
    """Time of the event loop."""
    steps: int = 0
    trained_lags: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Trained spans by step and version."""
    sampled_tokens: int = 0
    """By the engine's own count."""
    metrics: dict[str, float] = field(default_factory=dict)
    digest: str = ""
    """Of everything that was trained on, in order."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, without the single lags."""
        return {
            "wall_s": self.wall_s,
            "steps": self.steps,
            "sampled_tokens": self.sampled_tokens,
            "digest": self.digest,
            "metrics": dict(sorted(self.metrics.items())),
        }


async def play_scenario(
    scenario: Scenario,
    *,
    ledger: Ledger | None = None,
    selection: Selection | None = None,
    timeline: Timeline | None = None,
    watching: Callable[[RolloutScheduler], AbstractAsyncContextManager[None]] | None = None,
) -> SimResult:
    """Return what ``scenario`` does in the running event loop.

    Args:
        scenario: The run.
        ledger: Accounts for it; owned by the caller.
        selection: Chooses tasks; None for each in turn.
        timeline: Takes down what ran when.
        watching: Opened around the run, for a live view.
    """
    profile, config = scenario.profile, scenario.scheduler
    engine = SimEngine(scenario.engine_slots)
    pool = EnvPool(lambda: SimEnv(profile), size=config.concurrency, deadlines=config.deadlines)
    chosen = selection or UniformSelection(
        lambda index: procedural_task("simulated", "train", index),
        group_size=scenario.group_size,
        count=scenario.groups,
    )
    clock = asyncio.get_running_loop().time
    began, result, digest = clock(), SimResult(), hashlib.sha256()
    rng = random.Random(scenario.seed)
    made = RolloutScheduler(
        pool,
        SimPolicy(engine, profile),
        chosen,
        config,
        env_id=ENV_ID,
        seed=scenario.seed,
        ledger=ledger,
        timeline=timeline,
    )
    around = nullcontext() if watching is None else watching(made)
    async with made as scheduler, around:
        while result.steps < scenario.steps and (batch := await scheduler.take()) is not None:
            _take_down(batch, result, digest)
            await asyncio.sleep(scenario.update_s * rng.uniform(0.5, 1.5))
            version = batch.step + 1
            await scheduler.publish(version, load=partial(engine.load, version))
            scheduler.mark_checkpointed(version)
            result.steps += 1
        result.metrics = scheduler.metrics()
    result.wall_s = clock() - began
    result.sampled_tokens = engine.sampled_tokens
    result.digest = digest.hexdigest()
    return result


def simulate(scenario: Scenario, *, ledger: Ledger | None = None) -> SimResult:
    """Return what ``scenario`` does, in virtual time: the same on every machine."""
    return run_virtually(play_scenario(scenario, ledger=ledger))


def _take_down(batch: Batch, result: SimResult, digest: Any) -> None:
    for group in [*batch.groups, *batch.extra]:
        for member in group.members:
            digest.update(f"{batch.step} {group.index} {member.number} {member.retry} ".encode())
            for turn in member.trained:
                digest.update(turn.action.content.encode())
                for span in turn.spans:
                    if span.policy_version is not None:
                        result.trained_lags[batch.step, span.policy_version] += 1
