"""Credit that the user wrote: named in the settings, imported from the working folder or a package.

A function is pure: it sees the turns of a batch and returns one number for each. A class may learn.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from turngym.errors import ConfigError
from turngym.plugins import import_attribute
from turngym.trainers.credit.base import Credit, CreditContext, CreditMethod
from turngym.trainers.credit.channels import Channel, Channels, ChannelSource
from turngym.trainers.credit.turns import Turns
from turngym.trainers.samples import FloatArray, per_token, to_samples
from turngym.trainers.settings.custom import CustomAdvantage, CustomReward
from turngym.types import TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor

    from turngym.trainers.settings.train import AlgoConfig


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
        ConfigError: There is none.
    """
    found = import_attribute(_kind(config), config.function)
    if not callable(found):
        raise ConfigError(
            f"{_kind(config)} {config.function!r}: wanted a function or a class, "
            f"found a {type(found).__name__}"
        )
    return found


def custom_source(config: CustomReward, context: CreditContext) -> ChannelSource:
    """Return the channel of a function, or the user's own source.

    Args:
        config: Names it.
        context: What a class may use.
    """
    found = imported(config)
    is_function = not inspect.isclass(found)
    if is_function:
        return _FunctionSource(config, found)
    source: ChannelSource = found(context, **config.settings)
    return source


def custom_credit(algo: AlgoConfig, context: CreditContext | None) -> CreditMethod:
    """Return the method of a function, or the user's own.

    Args:
        algo: Its ``advantage`` names it.
        context: What a class and the reward channels may use.
    """
    assert isinstance(algo.advantage, CustomAdvantage)
    found = imported(algo.advantage)
    is_function = not inspect.isclass(found)
    if is_function:
        return _FunctionCredit(algo, algo.advantage, found, context)
    method: CreditMethod = found(algo, context, **algo.advantage.settings)
    return method


class _FunctionSource:
    """The one channel ``custom``, from a function; learns nothing."""

    is_ready = True

    def __init__(self, config: CustomReward, function: Any) -> None:
        self._config, self._function = config, function

    def read(self, turns: Turns) -> Mapping[str, Channel]:
        found = self._function(turns, **self._config.settings)
        if isinstance(found, Channel):
            return {"custom": found}
        values_N = _one_per_turn(found, turns, self._config)
        return {"custom": Channel(values_N=values_N, has_value_N=np.ones(len(values_N), np.bool_))}

    def metrics(self) -> Mapping[str, float]:
        return {}

    def state(self) -> Mapping[str, Tensor]:
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        return None


class _FunctionCredit:
    """Copies what a function says of each turn to its tokens."""

    in_thread = True

    def __init__(
        self,
        algo: AlgoConfig,
        config: CustomAdvantage,
        function: Any,
        context: CreditContext | None,
    ) -> None:
        self._config, self._function = config, function
        self._channels = Channels(algo.rewards, algo.gate, context)

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        is_ready, turns = self._channels.is_ready, Turns.of(groups)
        if not turns.episodes:
            return Credit(samples=(), dropped={"too_small": len(groups)})
        channels = self._channels.read(turns)
        metrics = self._channels.metrics()
        if not is_ready:
            return Credit(samples=(), dropped={"warmup": len(groups)}, metrics=metrics)
        found = self._function(turns, channels, **self._config.settings)
        values_N = _one_per_turn(found, turns, self._config)
        turns.check_finite(values_N, f"advantage of {self._config.function!r}")
        advantages = turns.split(values_N)
        episodes = zip(turns.episodes, advantages, turns.group_B, strict=True)
        samples = [
            sample
            for index, (episode, values_T, group) in enumerate(episodes)
            for sample in to_samples(
                episode, per_token(episode, values_T), index=index, group=int(group)
            )
        ]
        return Credit(
            samples=tuple(samples),
            trajectories=turns.episodes,
            advantages=tuple(advantages),
            metrics=metrics,
        )

    def state(self) -> Mapping[str, Tensor]:
        return self._channels.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._channels.load_state(tensors)


def _one_per_turn(
    found: Any, turns: Turns, config: CustomReward | CustomAdvantage
) -> FloatArray:  # whatever the user's function returned
    values = np.asarray(found, dtype=np.float64)
    if values.shape != turns.turn_N.shape:
        raise ConfigError(
            f"{_kind(config)} {config.function!r}: returned shape {values.shape}, wanted one value "
            f"per turn, {turns.turn_N.shape}"
        )
    return values


def _kind(config: CustomReward | CustomAdvantage) -> str:
    return "custom reward" if isinstance(config, CustomReward) else "custom advantage"
