"""Credit that the user wrote: named in the settings, imported from the working folder or a package.

A function is pure: it sees the turns of a batch and returns one number for each. A class may learn.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from turngym.coroutines import awaited
from turngym.errors import ConfigError, TrainingError, TurnGymError
from turngym.faults import describe
from turngym.plugins import import_attribute
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
)
from turngym.trainers.credit.sources.reward_sources import RewardSources
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.rewards import CustomAdvantage, CustomReward
from turngym.types import TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor


def import_functions(algo: AlgoConfig) -> None:
    """Make sure that every function of the user's own in ``algo`` is there.

    Raises:
        ConfigError: One is not, or cannot be called.
    """
    for part in (*algo.rewards, algo.advantage):
        if isinstance(part, CustomReward | CustomAdvantage):
            imported(part)


def imported(config: CustomReward | CustomAdvantage) -> Any:  # of the user's own making
    """Return the function or the class that ``config`` names.

    Raises:
        ConfigError: There is none, or it does not take the settings.
    """
    found = import_attribute(_kind(config), config.function)
    if not callable(found):
        raise ConfigError(
            f"{_named(config)}: wanted a function or a class, found a {type(found).__name__}"
        )
    given = [None] if isinstance(config, CustomReward) else [None, None]
    try:
        inspect.signature(found).bind(*given, **config.settings)
    except TypeError as error:
        raise ConfigError(f"{_named(config)}, settings: {error}") from None
    except ValueError:  # some of C do not say what they take
        pass
    return found


def custom_source(config: CustomReward, context: CreditContext) -> RewardSource:
    """Return the reward source of a function, or the user's own.

    Args:
        config: Names it.
        context: What a class may use.
    """
    found = imported(config)
    is_function = not inspect.isclass(found)  # asked apart: mypy would narrow Any to object
    if is_function:
        return _FunctionSource(config, found)
    with _boundary(config):
        source: RewardSource = found(context, **config.settings)
        _check_methods(config, source, RewardSource)
    return _OwnSource(config, source)


def custom_credit(
    config: CustomAdvantage, algo: AlgoConfig, context: CreditContext | None
) -> CreditMethod:
    """Return the method of a function, or the user's own.

    Args:
        config: Names it.
        algo: Reward sources and gate.
        context: What a class and the reward sources may use.
    """
    found = imported(config)
    is_function = not inspect.isclass(found)
    if is_function:
        return _FunctionCredit(config, algo, found, context)
    with _boundary(config):
        method: CreditMethod = found(algo, context, **config.settings)
        _check_methods(config, method, CreditMethod)
    return _OwnCredit(config, method)


@contextmanager
def _boundary(config: CustomReward | CustomAdvantage) -> Iterator[None]:
    """Name what the user's code raises in one line, with its place."""
    try:
        yield
    except TurnGymError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{_named(config)}: {describe(error)}"
        raise TrainingError(what) from error


def _check_methods(config: CustomReward | CustomAdvantage, made: object, contract: type) -> None:
    wanted = (name for name in vars(contract) if not name.startswith("_"))
    if missing := [name for name in wanted if not hasattr(made, name)]:
        raise ConfigError(
            f"{_named(config)}: lacks {', '.join(missing)} of "
            f"{contract.__module__}.{contract.__name__}"
        )


class _FunctionSource(StatelessSource[CustomReward]):
    """The one component ``custom``, from a function; learns nothing."""

    def __init__(self, config: CustomReward, function: Any) -> None:
        super().__init__(config)
        self._function = function

    def read(self, turns: TurnBatch) -> Components:
        with _boundary(self._config):
            found = self._function(turns, **self._config.settings)
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
        if not turns.episodes:
            return Credit(samples=(), dropped={"too_small": len(groups)})
        components = self._sources.read(turns)
        metrics = self._sources.metrics()
        if not is_ready:
            return Credit(samples=(), dropped={"warmup": len(groups)}, metrics=metrics)
        with _boundary(self._config):
            found = self._function(turns, components, **self._config.settings)
            values_N = _one_per_turn(found, turns, self._config)
        return credit_of_turns(turns, values_N, metrics=metrics)

    def state(self) -> Mapping[str, Tensor]:
        return self._sources.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._sources.load_state(tensors)


class _Own:
    """An object of the user's own; what it raises is named, and so is a wrong thing it returns."""

    def __init__(self, config: CustomReward | CustomAdvantage, made: Any) -> None:
        self._config, self._made = config, made

    def state(self) -> Mapping[str, Tensor]:
        from torch import Tensor

        with _boundary(self._config):
            found: Mapping[str, Tensor] = self._made.state()
            for tensor in self._wanted(found, Mapping, "state").values():
                self._wanted(tensor, Tensor, "state")
        return found

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        with _boundary(self._config):
            self._made.load_state(tensors)

    def _wanted(self, found: Any, wanted: type, method: str) -> Any:  # the user's may be anything
        if not isinstance(found, wanted):
            raise ConfigError(
                f"{_named(self._config)}: {method} gave a "
                f"{type(found).__name__}, wanted a {wanted.__name__}"
            )
        return found

    def _numbers(self, found: Any) -> dict[str, float]:
        return {k: float(value) for k, value in self._wanted(found, Mapping, "metrics").items()}


class _OwnSource(_Own):
    @property
    def is_ready(self) -> bool:
        with _boundary(self._config):
            return bool(self._made.is_ready)

    def read(self, turns: TurnBatch) -> Components:
        with _boundary(self._config):
            found: Components = self._made.read(turns)
            for component in self._wanted(found, Mapping, "read").values():
                self._wanted(component, RewardComponent, "read")
                for part_N in (component.values_N, component.has_value_N):
                    _one_per_turn(part_N, turns, self._config)
            self._wanted(found.get("custom"), RewardComponent, "read: 'custom'")
        return found

    def metrics(self) -> Mapping[str, float]:
        with _boundary(self._config):
            return self._numbers(self._made.metrics())


class _OwnCredit(_Own):
    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        with _boundary(self._config):
            found: Credit = self._wanted(await awaited(self._made.assign(groups)), Credit, "assign")
            return replace(found, metrics=self._numbers(found.metrics))


def _one_per_turn(
    found: Any, turns: TurnBatch, config: CustomReward | CustomAdvantage
) -> FloatArray:  # whatever the user's function returned
    values = np.asarray(found, dtype=np.float64)
    if values.shape != turns.turn_N.shape:
        raise ConfigError(
            f"{_named(config)}: returned shape {values.shape}, wanted one value "
            f"per turn, {turns.turn_N.shape}"
        )
    return values


def _kind(config: CustomReward | CustomAdvantage) -> str:
    return "custom reward" if isinstance(config, CustomReward) else "custom advantage"


def _named(config: CustomReward | CustomAdvantage) -> str:
    return f"{_kind(config)} {config.function!r}"
