"""Credit that the user wrote.

A function is pure: it sees the turns of a batch and returns one number for each. A class may learn.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from turngym.coroutines import LoopThread, awaited
from turngym.errors import ConfigError
from turngym.trainers.credit.base import (
    Components,
    Credit,
    CreditContext,
    CreditMethod,
    RewardComponent,
    RewardSource,
    StatelessSource,
    TurnBatch,
    credit_of_turns,
    unused_groups,
)
from turngym.trainers.credit.sources.reward_sources import RewardSources
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.rewards import CustomAdvantage, CustomReward
from turngym.types import TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor


def custom_source(config: CustomReward, context: CreditContext) -> RewardSource:
    """Return the reward source of a function, or the user's own.

    Args:
        config: Names it.
        context: What a class may use.
    """
    found = config.imported()
    is_function = not inspect.isclass(found)  # asked apart: mypy would narrow Any to object
    if is_function:
        return _FunctionSource(config, found)
    return _OwnSource(config, config.made(RewardSource, context))


def custom_credit(
    config: CustomAdvantage, algo: AlgoConfig, context: CreditContext | None
) -> CreditMethod:
    """Return the method of a function, or the user's own.

    Args:
        config: Names it.
        algo: Reward sources and gate.
        context: What a class and the reward sources may use.
    """
    found = config.imported()
    is_function = not inspect.isclass(found)
    if is_function:
        return _FunctionCredit(config, algo, found, context)
    return _OwnCredit(config, config.made(CreditMethod, algo, context))


class _FunctionSource(StatelessSource[CustomReward]):
    """The one component ``custom``, from a function; learns nothing."""

    def __init__(self, config: CustomReward, function: Any) -> None:
        super().__init__(config)
        self._function = function

    def read(self, turns: TurnBatch) -> Components:
        with self._config.running():
            found = _settled(self._function(turns, **self._config.settings))
            if isinstance(found, RewardComponent):
                for part_N in (found.values_N, found.has_value_N):
                    _one_per_turn(part_N, turns, self._config)
                return {"custom": found}
            values_N = _one_per_turn(found, turns, self._config)
        return {"custom": RewardComponent.everywhere(values_N)}


class _FunctionCredit:
    """Copies what a function says of each turn to its tokens."""

    def __init__(
        self,
        config: CustomAdvantage,
        algo: AlgoConfig,
        function: Any,
        context: CreditContext | None,
    ) -> None:
        self._config, self._function = config, function
        self._sources = RewardSources(algo.rewards, algo.gate, context)

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        is_ready, turns = self._sources.is_ready, TurnBatch.of(groups)
        dropped = unused_groups(len(groups), turns, is_warm=is_ready)
        if not turns.episodes:
            return Credit(samples=(), dropped=dropped)
        components = self._sources.read(turns)
        metrics = self._sources.metrics()
        if not is_ready:
            return Credit(samples=(), dropped=dropped, metrics=metrics)
        with self._config.running():
            found = _settled(self._function(turns, components, **self._config.settings))
            values_N = _one_per_turn(found, turns, self._config)
        return credit_of_turns(turns, values_N, dropped=dropped, metrics=metrics)

    def state(self) -> Mapping[str, Tensor]:
        return self._sources.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._sources.load_state(tensors)


class _Own:
    """An object of the user's own; what it raises is named, and so is a wrong thing it returns."""

    def __init__(self, config: CustomReward | CustomAdvantage, made: Any) -> None:
        self._config, self._made = config, made

    def state(self) -> Mapping[str, Tensor]:
        """Return copies: a file of tensors takes none that share memory, as tied weights do."""
        from torch import Tensor

        with self._config.running():
            found: Mapping[str, Tensor] = self._made.state()
            for name, tensor in self._config.checked(found, Mapping, "state").items():
                self._config.checked(name, str, "state: a key")
                self._config.checked(tensor, Tensor, "state")
            return {name: tensor.detach().contiguous().clone() for name, tensor in found.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        with self._config.running():
            self._made.load_state(tensors)

    def _numbers(self, found: Any) -> dict[str, float]:
        metrics = self._config.checked(found, Mapping, "metrics")
        for name in metrics:  # a row of ``metrics.jsonl`` has others, "step" among them
            if not str(name).startswith("credit/"):
                raise ConfigError(
                    f"{self._config.named}: metrics has {name!r}, wanted 'credit/...'"
                )
        return {name: float(value) for name, value in metrics.items()}


class _OwnSource(_Own):
    @property
    def is_ready(self) -> bool:
        with self._config.running():
            return bool(self._made.is_ready)

    def read(self, turns: TurnBatch) -> Components:
        with self._config.running():
            found: Components = _settled(self._made.read(turns))
            for component in self._config.checked(found, Mapping, "read").values():
                self._config.checked(component, RewardComponent, "read")
                for part_N in (component.values_N, component.has_value_N):
                    _one_per_turn(part_N, turns, self._config)
            self._config.checked(found.get("custom"), RewardComponent, "read: 'custom'")
        return found

    def metrics(self) -> Mapping[str, float]:
        with self._config.running():
            return self._numbers(self._made.metrics())


class _OwnCredit(_Own):
    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        with self._config.running():
            found: Credit = self._config.checked(
                await awaited(self._made.assign(groups)), Credit, "assign"
            )
            return replace(found, metrics=self._numbers(found.metrics))


@cache
def _loop() -> LoopThread:
    """Return the event loop of what is awaited here: one, so that models in it are loaded once."""
    return LoopThread("turngym-credit")


def _settled(found: Any) -> Any:  # whatever the user's function returned
    """Return ``found``, or what it is a coroutine of. It is waited for here, in credit's thread."""
    return _loop().start(awaited(found)).result() if inspect.isawaitable(found) else found


def _one_per_turn(
    found: Any, turns: TurnBatch, config: CustomReward | CustomAdvantage
) -> FloatArray:  # whatever the user's function returned
    values = np.asarray(found, dtype=np.float64)
    if values.shape != turns.turn_N.shape:
        raise ConfigError(
            f"{config.named}: returned shape {values.shape}, wanted one value "
            f"per turn, {turns.turn_N.shape}"
        )
    return values
