"""Attempts of the past in new batches, and beginning an episode where one of them has led.

share of the groups, on tasks that are still hard     POPE, arXiv:2601.18779
any number of the success's actions, not trained on   PrefixRL, arXiv:2601.18795
fewer of them stage by stage                          JSRL, arXiv:2204.02372
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from turngym.records import from_json, to_json
from turngym.rollouts.scheduler.groups import GroupRequest, Member, ReadyGroup
from turngym.trainers.settings.selection import Imitation, PrefixCondition, SuccessReplay
from turngym.types import Trajectory, Turn

IMITATED = "imitated"
"""Condition of groups that are trained on apart, because nothing new is compared with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """An attempt of the past."""

    trajectory: Trajectory
    step: int
    """When it was trained on first."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"trajectory": to_json(self.trajectory), "step": self.step}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Remembered:
        """Return what ``to_json`` wrote."""
        return Remembered(trajectory=from_json(content["trajectory"]), step=int(content["step"]))


class Successes:
    """The newest successes at each task, played from the beginning.

    Args:
        per_task: How many of each are kept.
        max_age: Steps after which one is forgotten; None for never.
    """

    def __init__(self, *, per_task: int, max_age: int | None = None) -> None:
        self._per_task = per_task
        self._max_age = max_age
        self._tasks: dict[str, list[Remembered]] = {}

    def add(self, trajectory: Trajectory, step: int) -> None:
        """Remember a success; others are ignored."""
        if trajectory.is_success and trajectory.turns:
            known = self._tasks.setdefault(trajectory.task_id, [])
            known.append(Remembered(trajectory=trajectory, step=step))
            del known[: -self._per_task]

    def of(self, task_id: str, step: int) -> list[Trajectory]:
        """Return the successes at a task that are not too old, oldest first."""
        oldest = -math.inf if self._max_age is None else step - self._max_age
        return [r.trajectory for r in self._tasks.get(task_id, []) if r.step >= oldest]

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {task: [one.to_json() for one in known] for task, known in self._tasks.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._tasks = {
            task: [Remembered.from_json(one) for one in known] for task, known in state.items()
        }


class SuccessReplayer(Successes):
    """Lets earlier successes join new groups of the same task.

    Source:
        RLEP, arXiv:2507.07451: n new attempts and 2 of the past, compared together. The ratio is
        measured from the policy that the update began with, so that it starts at 1.
    """

    def __init__(self, config: SuccessReplay) -> None:
        super().__init__(per_task=config.per_task, max_age=config.max_age)
        self._per_group = config.per_group

    def replay(
        self, step: int, groups: Sequence[ReadyGroup], rng: np.random.Generator
    ) -> list[ReadyGroup]:
        """Return for each group the successes that join it, then remember its own."""
        joined = []
        for group in groups:
            new = {t.policy_seed for t in group.trajectories}
            env_seed = group.trajectories[0].env_seed
            known = [
                t
                for t in self.of(group.request.task.id, step)
                if t.policy_seed not in new and t.env_seed == env_seed
            ]
            count = min(self._per_group, len(known))
            if count and not group.request.condition:
                chosen = [known[i] for i in rng.permutation(len(known))[:count]]
                joined.append(of_the_past(chosen, group.request, index=group.index))
        for group in groups:
            if not group.request.condition:
                for trajectory in group.usable:
                    self.add(trajectory, step)
        return joined


class SelfImitation:
    """Brings back attempts whose return was above the median of recent groups.

    Source:
        SPEAR, arXiv:2509.22601, without its mask on covariance and its bonus for tool calls.
    """

    def __init__(self, config: Imitation) -> None:
        self._config = config
        self._buffer: deque[Remembered] = deque(maxlen=config.capacity)
        self._means: deque[float] = deque(maxlen=config.history)

    @property
    def baseline(self) -> float:
        """The median of recent group means; 0 before the first."""
        return float(np.median(self._means)) if self._means else 0.0

    def replay(
        self, step: int, groups: Sequence[ReadyGroup], rng: np.random.Generator
    ) -> list[ReadyGroup]:
        """Return attempts of the past that beat the baseline, then remember the new ones."""
        for group in groups:
            if returns := [t.episode_return for t in group.usable]:
                self._means.append(float(np.mean(returns)))
        while self._buffer and self._buffer[0].step < step - self._config.max_age:
            self._buffer.popleft()
        better = [r.trajectory for r in self._buffer if r.trajectory.episode_return > self.baseline]
        count = min(self._config.per_step, len(better))
        chosen = [better[i] for i in sorted(rng.permutation(len(better))[:count].tolist())]
        for group in groups:
            if not group.request.condition:
                self._buffer.extend(
                    Remembered(trajectory=t, step=step) for t in group.usable if t.turns
                )
        if not groups:
            return []
        request = replace(groups[0].request, condition=IMITATED)
        return [of_the_past([t], request, index=-1 - n) for n, t in enumerate(chosen)]

    def weight(self, step: int) -> float:
        """Return the imitated loss's weight, ``(1 - cos(pi·step / warmup)) / 2``, at most 1."""
        done = min(1.0, step / self._config.warmup)
        return (1 - math.cos(math.pi * done)) / 2

    def state(self) -> dict[str, Any]:
        """Return buffer and history as JSON values."""
        return {"buffer": [one.to_json() for one in self._buffer], "means": list(self._means)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._buffer.clear()
        self._buffer.extend(Remembered.from_json(one) for one in state.get("buffer", []))
        self._means.clear()
        self._means.extend(state.get("means", []))


def of_the_past(
    trajectories: Sequence[Trajectory], request: GroupRequest, *, index: int
) -> ReadyGroup:
    """Return attempts of the past as a group of the kind ``replay``."""
    return replace(as_ready_group(index, request, trajectories), kind="replay")


def as_ready_group(
    index: int, request: GroupRequest, trajectories: Sequence[Trajectory]
) -> ReadyGroup:
    """Return episodes that were played for a request as its group.

    Args:
        index: Running number of the group.
        request: What was asked for.
        trajectories: At least one.
    """
    members = tuple(member_of(t, number) for number, t in enumerate(trajectories))
    return ReadyGroup(
        index=index, request=request, members=members, start_version=members[0].start_version
    )


def member_of(trajectory: Trajectory, number: int, *, first_turn: int = 0) -> Member:
    """Return an episode as a member of a group.

    Args:
        trajectory: Played to its end.
        number: Its place in the group.
        first_turn: Earlier turns are context.
    """
    versions = tuple(
        min((s.policy_version for s in turn.spans if s.policy_version is not None), default=0)
        for turn in trajectory.turns
    )
    return Member(
        number=number,
        retry=0,
        trajectory=trajectory,
        first_turn=first_turn,
        end_turn=len(trajectory.turns),
        versions=versions,
        start_version=versions[0] if versions else 0,
    )


class Prefixer:
    """Gives some groups the first actions of an earlier success.

    Args:
        config: Which groups, and how many actions.
    """

    def __init__(self, config: PrefixCondition) -> None:
        self._config = config
        self._successes = Successes(per_task=4)
        self.stage = config.stages
        """``staged``: tenths, or so, of a success's actions; 0 when nothing is given any more."""
        self._recent: deque[float] = deque(maxlen=config.window)
        self._best = 0.0

    def conditioned(
        self, request: GroupRequest, *, index: int, success: float, rng: np.random.Generator
    ) -> GroupRequest:
        """Return the request with a prefix, or as it is.

        Args:
            request: A plain order.
            index: Running number of its group.
            success: estimated success at its task.
            rng: Decides.
        """
        coin, pick, cut = rng.random(3).tolist()
        known = self._successes.of(request.task.id, 0)
        if coin >= self.share(index) or success >= self._config.below or not known:
            return request
        turns = known[int(pick * len(known))].turns
        prefix = as_context(turns[: self.cut(len(turns), cut)])
        if not prefix:
            return request
        return replace(request, prefix=prefix, condition=condition_of(prefix))

    def share(self, index: int) -> float:
        """Return the part of the groups that get a prefix."""
        until = self._config.until
        return self._config.share * (1 if until is None else max(0.0, 1 - index / until))

    def cut(self, length: int, sample: float) -> int:
        """Return how many of ``length`` actions are given; at least one is left to the policy.

        Args:
            length: Actions of the success.
            sample: In [0, 1).
        """
        if self._config.cut == "random":
            return int(sample * length)
        return min(length - 1, math.ceil(length * self.stage / (self._config.stages + 1)))

    def observe(self, request: GroupRequest, trajectories: Sequence[Trajectory], step: int) -> None:
        """Learn from a group: successes from the beginning, and how well the stage goes."""
        if not request.condition:
            for trajectory in trajectories:
                self._successes.add(trajectory, step)
            return
        scores = [t.score for t in trajectories if t.score is not None]
        if scores and self._config.cut == "staged" and self.stage > 0:
            self._recent.append(sum(scores) / len(scores))
            self._advance()

    def _advance(self) -> None:
        """Go on to the next stage when the last groups did nearly as well as any before."""
        if len(self._recent) < self._config.window:
            return
        mean = sum(self._recent) / len(self._recent)
        self._best = max(self._best, mean)
        if mean > 0 and mean >= (1 - self._config.tolerance) * self._best:
            self.stage -= 1
            self._recent.clear()

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "successes": self._successes.state(),
            "stage": self.stage,
            "recent": list(self._recent),
            "best": self._best,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._successes.load_state(state["successes"])
        self.stage, self._best = int(state["stage"]), float(state["best"])
        self._recent.clear()
        self._recent.extend(state["recent"])


def as_context(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return turns as they were, but with tokens that are not trained on."""
    return tuple(turn.as_context() for turn in turns)


def condition_of(prefix: Sequence[Turn]) -> str:
    """Return the name of a prefix: its length and a digest of its actions."""
    digest = blake2b(digest_size=4)
    for turn in prefix:
        digest.update(turn.action.content.encode() + b"\0")
    return f"prefix-{len(prefix)}-{digest.hexdigest()}"
