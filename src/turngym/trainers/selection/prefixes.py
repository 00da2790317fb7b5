"""Beginning an episode where an earlier success has led.

share of the groups, on tasks that are still hard     POPE, arXiv:2601.18779
any number of the success's actions, not trained on   PrefixRL, arXiv:2601.18795
fewer of them stage by stage                          JSRL, arXiv:2204.02372
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np

from turngym.rollouts.scheduler.groups import GroupRequest
from turngym.trainers.selection.past import Successes
from turngym.trainers.settings.selection import PrefixCondition
from turngym.types import Trajectory, Turn


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
    return tuple(
        replace(
            turn,
            spans=tuple(
                replace(span, sampled=False, logprobs=(), policy_version=None)
                for span in turn.spans
            ),
        )
        for turn in turns
    )


def condition_of(prefix: Sequence[Turn]) -> str:
    """Return the name of a prefix: its length and a digest of its actions."""
    digest = blake2b(digest_size=4)
    for turn in prefix:
        digest.update(turn.action.content.encode() + b"\0")
    return f"prefix-{len(prefix)}-{digest.hexdigest()}"
