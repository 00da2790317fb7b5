"""Credit as a user would write it, named in settings as ``helpers.custom_credit:...``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import turngym
from turngym.trainers.credit.base import Credit, CreditContext, RewardComponent, TurnBatch
from turngym.trainers.credit.critics.off_policy import sample_actions
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.algo import AlgoConfig
from turngym.types import TrajectoryGroup

NUMBER = 7
LOOPS: set[asyncio.AbstractEventLoop] = set()
"""Where ``count_letters`` was asked."""


def early(turns: TurnBatch, *, bonus: float = 1.0) -> FloatArray:
    """Pay a bonus on the first turn."""
    return np.where(turns.turn_N == 0, bonus, 0.0)


async def judged(turns: TurnBatch, *, judge: str) -> FloatArray:
    """Ask a judge about every action."""
    who = turngym.speaker(judge)
    texts = [turn.action.content for one in turns.episodes for turn in one.turns]
    return np.array([float(said) for said in await asyncio.gather(*map(who.ask, texts))])


async def count_letters(messages: Sequence[Mapping[str, str]]) -> str:
    """Judge as someone who waits."""
    LOOPS.add(asyncio.get_running_loop())
    await asyncio.sleep(0)
    return str(len(messages[0]["content"]))


async def halved(turns: TurnBatch, components: Mapping[str, RewardComponent]) -> FloatArray:
    """Wait, then return half of the reward."""
    await asyncio.sleep(0)
    return components["env"].values_N / 2


def only_last(turns: TurnBatch) -> RewardComponent:
    """Speak on last turns only."""
    return RewardComponent(values_N=turns.is_last_N * 2.0, has_value_N=turns.is_last_N)


def summed(
    turns: TurnBatch, components: Mapping[str, RewardComponent], *, weight: float = 1.0
) -> FloatArray:
    """Return the sum of all components."""
    total_N = np.zeros(len(turns.turn_N))
    for component in components.values():
        total_N += component.values_N
    return weight * total_N


def too_short(turns: TurnBatch, components: Mapping[str, RewardComponent]) -> FloatArray:
    """Return one value too few."""
    return np.zeros(len(turns.turn_N) - 1)


def not_finite(turns: TurnBatch, components: Mapping[str, RewardComponent]) -> FloatArray:
    """Return no number on the last turn of all."""
    values_N = np.zeros(len(turns.turn_N))
    values_N[-1] = np.nan
    return values_N


def breaks(turns: TurnBatch, components: Mapping[str, RewardComponent]) -> FloatArray:
    """Read what is not there."""
    return components["no"].values_N


def leaves(turns: TurnBatch, components: Mapping[str, RewardComponent]) -> FloatArray:
    """End the program as if all were well."""
    raise SystemExit(0)


def says_words(turns: TurnBatch, components: Mapping[str, RewardComponent]) -> list[str]:
    """Return no numbers."""
    return ["much"] * len(turns.turn_N)


def lopsided(turns: TurnBatch) -> RewardComponent:
    """Say of one turn alone whether it has a value."""
    return RewardComponent(values_N=np.zeros(len(turns.turn_N)), has_value_N=np.ones(1, np.bool_))


class Half:
    """A method that forgets what it learned."""

    def __init__(self, algo: AlgoConfig, context: CreditContext | None) -> None:
        """Learn nothing."""

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Teach nothing."""
        return Credit(samples=())


class Counting:
    """A component that learns how often it was asked."""

    def __init__(self, context: CreditContext | None, *, start: int = 0) -> None:
        self.asked = start

    @property
    def is_ready(self) -> bool:
        """Only after the first batch."""
        return self.asked > 0

    def read(self, turns: TurnBatch) -> Mapping[str, RewardComponent]:
        """Return the count on every turn."""
        self.asked += 1
        values_N = np.full(len(turns.turn_N), float(self.asked))
        return {
            "custom": RewardComponent(
                values_N=values_N, has_value_N=np.ones(len(values_N), np.bool_)
            )
        }

    def metrics(self) -> Mapping[str, float]:
        """Return the count."""
        return {"credit/asked": float(self.asked)}

    def state(self) -> Mapping[str, Tensor]:
        """Return the count."""
        return {"asked": torch.tensor(self.asked)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a count."""
        self.asked = int(tensors["asked"])


class Late(Counting):
    """A reward that waits before it counts."""

    async def read(self, turns: TurnBatch) -> Any:  # type: ignore[override]
        """Wait, then count."""
        await asyncio.sleep(0)
        return super().read(turns)


class Broken(Counting):
    """A component of which one method does what it must not."""

    def __init__(self, context: CreditContext | None, *, where: str) -> None:
        super().__init__(context, start=1)
        self.where = where

    @property
    def is_ready(self) -> bool:
        """Divide by 0, perhaps."""
        return 1 // (self.where != "is_ready") > 0

    def read(self, turns: TurnBatch) -> Any:
        """Return the values under a wrong name, or without one, perhaps."""
        found = super().read(turns)
        wrong = {"other": {"mine": found["custom"]}, "bare": found["custom"].values_N}
        return wrong.get(self.where, found)

    def metrics(self) -> Mapping[str, Any]:
        """Return words, perhaps, or a name that is taken."""
        name = "step" if self.where == "name" else "credit/asked"
        return {name: "often" if self.where == "metrics" else np.float32(1)}

    def state(self) -> Mapping[Any, Any]:
        """Return no tensor, perhaps, or one without a name."""
        wrong = {"key": {1: torch.ones(2)}, "sparse": {"asked": torch.ones(2).to_sparse()}}
        return wrong.get(self.where, {"asked": 1.0})


class Tied:
    """A method whose tensors share memory, as tied weights do."""

    def __init__(self, algo: AlgoConfig, context: CreditContext | None) -> None:
        self.weights = torch.zeros(2, 3)

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Learn something; teach nothing."""
        self.weights += len(groups)
        return Credit(samples=())

    def state(self) -> Mapping[str, Tensor]:
        """Return the weights twice."""
        return {"embedding": self.weights, "head": self.weights.T}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the weights."""
        self.weights = tensors["embedding"]


class BrokenMethod:
    """A method that breaks when it is asked."""

    def __init__(self, algo: AlgoConfig, context: CreditContext | None) -> None:
        """Learn nothing."""

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Return nothing; break when there are two groups."""
        if len(groups) > 1:
            raise KeyError("no")

    def state(self) -> None:
        """Return nothing at all."""

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Read what is not there."""
        tensors["asked"]


class Nothing:
    """A method that teaches nothing."""

    def __init__(self, algo: AlgoConfig, context: CreditContext | None, **settings: Any) -> None:
        self.settings = settings

    def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return no sample; what need not wait may be a plain method."""
        settings = {f"credit/{name}": value for name, value in self.settings.items()}
        return Credit(samples=(), metrics={"credit/groups": float(len(groups)), **settings})

    def state(self) -> Mapping[str, Tensor]:
        """Return nothing."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing."""


class Drawing(Nothing):
    """A method that draws one action for each attempt and teaches nothing."""

    def __init__(self, algo: AlgoConfig, context: CreditContext, **settings: Any) -> None:
        super().__init__(algo, context, **settings)
        self.context = context

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return no sample, and how many tokens were drawn."""
        starts = [np.array(e.turns[0].spans[0].token_ids) for g in groups for e in g.usable]
        drawn = sum(len(g.token_ids) for g in await sample_actions(self.context, starts, seed=0))
        return Credit(samples=(), metrics={"credit/counted": float(drawn)})
