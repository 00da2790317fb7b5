"""How a method is built, and controls: its turn credit without what it says about single turns.

A method that is no better than its own control has not learned from its signal, whatever else it
brought with it: a critic's wait, a scale, a loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal

import numpy as np

from turngym.seeding import generator
from turngym.trainers.credit.base import Credit, CreditContext, CreditMethod, advantage_metrics
from turngym.trainers.samples import FloatArray, TrainingSample
from turngym.trainers.settings.algo import AlgoConfig
from turngym.types import TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor


def build_credit(algo: AlgoConfig, context: CreditContext | None) -> CreditMethod:
    """Return the credit method that the settings of the advantage name as their ``builder``.

    Args:
        algo: The settings.
        context: What the method and its reward sources may use; None where none asks a model.
    """
    method: CreditMethod = resolve_name(algo.advantage.builder)(algo.advantage, algo, context)
    if algo.teacher is not None:
        method = resolve_name(algo.teacher.builder)(method, algo, context)
    if algo.control == "none":
        return method
    return ControlledCredit(method, algo.control, across=algo.advantage.replays)


class ControlledCredit:
    """A ``CreditMethod`` whose turns get the credit of another turn, or all of them the same.

    Args:
        method: Whose credit it is.
        control: ``shuffled`` deals the turns' advantages anew among the turns of an episode,
            ``constant`` gives each token of an episode their mean.
        across: Deal among all samples of a batch, because each is a turn of another episode.
    """

    def __init__(
        self, method: CreditMethod, control: Literal["shuffled", "constant"], *, across: bool
    ) -> None:
        self._method, self._control, self._across = method, control, across

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return the credit of ``method``, dealt anew.

        Raises:
            TrainingError: As ``method`` does.
        """
        credit = await self._method.assign(groups)
        seeds = [t.policy_seed for group in groups for t in group.trajectories]
        rng = generator(seeds[0] if seeds else 0, "control")
        is_shuffled = self._control == "shuffled"
        samples = dealt_anew(credit.samples, rng if is_shuffled else None, across=self._across)
        return with_samples(credit, samples, across=self._across)

    def state(self) -> Mapping[str, Tensor]:
        """Return what ``method`` learned."""
        return self._method.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._method.load_state(tensors)


def with_samples(credit: Credit, samples: tuple[TrainingSample, ...], *, across: bool) -> Credit:
    """Return ``credit`` with other advantages, of tokens and so of turns, and what they are like.

    Args:
        credit: Of a batch.
        samples: Its samples, with other advantages.
        across: They are of other episodes than those of the batch.
    """
    means = turn_means(samples)
    own = advantage_metrics(np.array([*means.values()])) if means else {}
    credit = replace(credit, samples=samples, metrics={**credit.metrics, **own})
    if across:
        return replace(credit, trajectories=(), advantages=())
    rows = [row.copy() for row in credit.advantages]
    for (episode, turn), value in means.items():
        rows[episode][turn] = value
    return replace(credit, advantages=tuple(rows))


def dealt_anew(
    samples: Sequence[TrainingSample], rng: np.random.Generator | None, *, across: bool = False
) -> tuple[TrainingSample, ...]:
    """Return ``samples`` with the mean advantages of their turns in another order, or their mean.

    Args:
        samples: A batch.
        rng: Deals; None for the mean over all sampled tokens instead.
        across: Over the whole batch and not within each episode.
    """
    pools: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    means: list[dict[int, float]] = []
    for number, sample in enumerate(samples):
        means.append({turn: mean for (_, turn), mean in turn_means([sample]).items()})
        pools[0 if across else sample.trajectory] += [(number, turn) for turn in means[number]]
    results = [np.zeros_like(sample.advantages) for sample in samples]
    for places in pools.values():
        own = [means[number][turn] for number, turn in places]
        masks = [samples[number].turn_ids == turn for number, turn in places]
        if rng is None:
            mean = float(np.average(own, weights=[mask.sum() for mask in masks]))
            dealt = np.full(len(own), mean)
        else:
            dealt = rng.permutation(own)
        for (number, _), mask, value in zip(places, masks, dealt, strict=True):
            results[number][mask] = value
    pairs = zip(samples, results, strict=True)
    return tuple(replace(sample, advantages=advantages_L) for sample, advantages_L in pairs)


def turn_means(samples: Sequence[TrainingSample]) -> dict[tuple[int, int], float]:
    """Return the mean advantage of the sampled tokens of each turn, by episode and turn."""
    found: dict[tuple[int, int], float] = {}
    for sample in samples:
        turns_A = sample.turn_ids[sample.loss_mask]
        values_A: FloatArray = sample.advantages[sample.loss_mask].astype(np.float64)
        for turn in np.unique(turns_A).tolist():
            found[sample.trajectory, turn] = float(values_A[turns_A == turn].mean())
    return found
