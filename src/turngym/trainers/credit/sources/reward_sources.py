"""All reward sources of a method as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import numpy as np

from turngym.trainers.credit.base import CreditContext, RewardComponent, RewardSource, TurnBatch
from turngym.trainers.settings.rewards import OutcomeGate, RewardConfig
from turngym.trainers.tensors import below, joined

if TYPE_CHECKING:
    from torch import Tensor


class RewardSources:
    """The reward sources of a method, each built by the ``builder`` that its settings name.

    Args:
        rewards: Their settings.
        gate: What the outcome decides about them.
        context: What those that ask a model may use; None when none of them does.

    Raises:
        ValueError: A source asks a model and there is no context.
    """

    def __init__(
        self,
        rewards: Sequence[RewardConfig],
        gate: OutcomeGate | None,
        context: CreditContext | None,
    ) -> None:
        self._gate = gate
        self._sources: dict[str, RewardSource] = {}
        for config in rewards:
            if context is None and config.asks_model:
                raise ValueError(f"the reward {config.type!r} needs a CreditContext, got None")
            self._sources[config.type] = resolve_name(config.builder)(config, context)

    @property
    def is_ready(self) -> bool:
        """False while any source still has to learn."""
        return all(source.is_ready for source in self._sources.values())

    def read(self, turns: TurnBatch) -> dict[str, RewardComponent]:
        """Return all reward components of a batch by name.

        Raises:
            TrainingError: A value is not finite; the message names the episode.
        """
        found: dict[str, RewardComponent] = {}
        for source in self._sources.values():
            found.update(source.read(turns))
        for name, component in found.items():
            turns.check_finite(component.values_N, f"reward {name!r}")
        return gated(found, turns, self._gate)

    def metrics(self) -> dict[str, float]:
        """Return ``credit/*`` about the last batch."""
        return {k: v for source in self._sources.values() for k, v in source.metrics().items()}

    def state(self) -> dict[str, Tensor]:
        """Return what was learned and collected, by source."""
        return joined({name: source.state() for name, source in self._sources.items()})

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        for name, source in self._sources.items():
            source.load_state(below(tensors, name))


def gated(
    components: Mapping[str, RewardComponent], turns: TurnBatch, gate: OutcomeGate | None
) -> dict[str, RewardComponent]:
    """Return ``components``, all but ``env`` and ``outcome`` 0 in episodes that did not pass.

    Args:
        components: By name.
        turns: The batch.
        gate: Which episodes pass; None for all.

    Source:
        G-RA, arXiv:2508.10548.
    """
    if gate is None:
        return dict(components)
    passed_B = (turns.outcome_B > gate.above) & ~turns.truncated_B
    factor_N = passed_B[turns.episode_N].astype(np.float64)
    return {
        name: component
        if name in ("env", "outcome")
        else RewardComponent(
            values_N=component.values_N * factor_N, has_value_N=component.has_value_N
        )
        for name, component in components.items()
    }
