"""One episode's dialogue, synchronous (a real ``gymnasium.Env``) or with coroutines.

An author writes ``begin`` (make the problem of a task) and ``turn`` (carry out one parsed action);
``EpisodeCore`` does the rest: tasks and seeds, parsing, limits, the reserved ``info`` keys, order
of calls, and the record that snapshots by replay need.

An environment is snapshot, restored and forked together with everything that is wrapped around it.
It keeps its own state as it declares (``exact``, ``fs`` or ``replay``, see ``TurnEnv.snapshot``).
Of each wrapper all attributes but ``env`` are copied deeply; a wrapper that holds what cannot or
need not be copied has ``snapshot_state()`` and ``restore_state(state)`` instead. Limits are no
wrappers: the environment keeps them.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import gymnasium
import numpy as np

from turngym.coroutines import awaited, finished
from turngym.environments.core.actions import Action, InvalidAction, calls_at_end
from turngym.environments.core.episode import (
    EpisodeCore,
    Observation,
    Outcome,
    Snapshot,
    SnapshotKind,
    Step,
)
from turngym.environments.core.spaces import Info, joined_info
from turngym.errors import EnvironmentFault, SnapshotError
from turngym.tasks.base import Task
from turngym.types import after_thoughts, sum_by_name

__all__ = [
    "AsyncTurnEnv",
    "EpisodeCore",
    "Observation",
    "Outcome",
    "Snapshot",
    "SnapshotKind",
    "Step",
    "TurnEnv",
]


def _outcome(found: object, method: str) -> Outcome:
    if not isinstance(found, Outcome):
        raise TypeError(f"{method} returned {type(found).__name__}, wanted an Outcome")
    return found


def _opening(found: object) -> Outcome:
    opening = _outcome(found, "begin")
    if opening.reward or opening.terminated or opening.truncated or opening.invalid_action:
        raise ValueError(
            "begin returned an Outcome with more than text, image and info: no episode ends or "
            "pays before its first action; return that from turn"
        )
    return opening


def _add_end(outcome: Outcome, end: Outcome | None) -> None:
    """Add what ``end_at_limit`` gave to the ``outcome`` of the turn that reached the limit."""
    if end is None:
        return
    outcome.text = f"{outcome.text}\n{end.text}"
    outcome.reward += end.reward
    outcome.info = joined_info(outcome.info or {}, end.info or {}, outcome.reward)


async def _step_of_calls(env: EpisodeCore, calls: Sequence[str]) -> Step:
    """Carry out the calls of one answer in their order, as one step, until the episode is over.

    Each is a step of the environment's own, and so a turn of its limits. What came of each stands
    in the observation and in ``info["results"]``; rewards and their parts are summed, the first
    invalid call is named, and the rest of ``info`` is of the last.
    """
    results: list[str] = []
    joined: Info = {}
    total = 0.0
    for number, call in enumerate(calls[: env.calls_per_turn], 1):
        observation, reward, terminated, truncated, info = await awaited(env.step(call))
        if "invalid_action" in info:
            info["invalid_action"] = f"call {number}: {info['invalid_action']}"
        results.append(observation["text"])
        joined = _both_infos(joined, info, total, reward)
        total += reward
        if terminated or truncated:
            break
    why = "the episode is over" if env._over else f"at most {env.calls_per_turn} calls an answer"
    results += [f"Not carried out: {why}."] * (len(calls) - len(results))
    env._last_text = "\n\n".join(results)
    joined["results"] = tuple(results)
    return {**observation, "text": env._last_text}, total, terminated, truncated, joined


def _both_infos(before: Info, info: Info, paid: float, reward: float) -> Info:
    """Return the ``info`` of two calls as that of one, which pays ``paid`` and ``reward``."""
    joined = dict(info)
    if "invalid_action" in before:
        joined["invalid_action"] = before["invalid_action"]
    if "reward_parts" in before or "reward_parts" in info:
        parts = [
            one.get("reward_parts", {"reward": pay} if pay else {})
            for one, pay in ((before, paid), (info, reward))
        ]
        joined["reward_parts"] = sum_by_name(*parts)
    return joined


class TurnEnv(EpisodeCore, gymnasium.Env[Observation, str]):
    """One episode of one task, one agent message a turn.

    Write ``begin`` and ``turn``; set ``action_format``, ``rules`` and, if the state can be copied,
    ``snapshot_kind = "exact"`` with ``get_state`` and ``set_state``. ``check_turn_env`` and
    ``check_fork`` test what this class promises.

    Action: any text; ``action_format`` says what is understood.
    Observation: ``{"text": str}``, and ``"image"`` where the environment is visual.
    Start: ``reset(seed=..., options={"task": Task | task_id})``; without a task, one is sampled
    from the ``split`` option (default ``"train"``).
    End: ``info["stop_reason"]`` says why.
    """

    blocks: bool = False
    """Whether its calls wait for something outside (a server, a program). Rollouts then give each
    such environment a thread, so that others play meanwhile. Leave it False where calls compute
    only: they stay in the event loop."""

    @abstractmethod
    def begin(self, task: Task) -> Outcome:
        """Make the problem of ``task`` and return what the agent sees first."""

    @abstractmethod
    def turn(self, action: Action) -> Outcome:
        """Carry out one action."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode. The same seed and options give the same episode."""
        return self._opened(_opening(self.begin(self._open(seed, options))))

    def step(self, action: str) -> Step:
        """Carry out what the agent said. An action that is not understood is part of the episode.

        Raises:
            ResetNeeded: The episode is over.
        """
        if self.calls_per_turn > 1 and len(calls := calls_at_end(action)) > 1:
            return finished(_step_of_calls(self, calls))
        if self._over or not isinstance(action, str):
            self._refuse(action)
        parsed = self.action_format.parse(after_thoughts(action))
        if isinstance(parsed, InvalidAction):
            outcome = self._not_understood(parsed)
        else:
            self._over = True  # stays so when the turn fails: only a reset helps then
            outcome = self.turn(parsed)
            if type(outcome) is not Outcome:
                outcome = _outcome(outcome, "turn")
        if outcome.truncated:
            _add_end(outcome, self.end_at_limit())
        step = self._stepped(action, parsed, outcome)
        if (limit := self._spent) is None:
            return step
        return self._truncated(limit, step, self.end_at_limit())

    def close(self) -> None:
        """Release what the environment holds. Safe to call twice."""

    def snapshot(self) -> Snapshot:
        """Return the state of the episode; taking it changes nothing."""
        return self._snapshot(self._state())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``, which may come from another equal environment.

        Raises:
            SnapshotError: It belongs to another environment, or replaying it gave other
                observations.
        """
        finished(self._restore(snapshot))

    def fork(self, n: int) -> list[Self]:
        """Return ``n`` independent environments in the state of this one.

        Raises:
            SnapshotError: A child does not get there; those made so far are closed.
        """
        return finished(self._fork(n))


class AsyncTurnEnv(EpisodeCore):
    """``TurnEnv`` with coroutines, for environments that wait on I/O; the same public methods.

    One instance serves one task at a time. ``gymnasium.make`` gives its synchronous face,
    ``turngym.make_async`` the environment itself.
    """

    _np_random: Any = None
    if TYPE_CHECKING:
        np_random: np.random.Generator
        np_random_seed: int
    else:
        np_random = gymnasium.Env.np_random
        np_random_seed = gymnasium.Env.np_random_seed
    get_wrapper_attr = gymnasium.Env.get_wrapper_attr
    has_wrapper_attr = gymnasium.Env.has_wrapper_attr
    set_wrapper_attr = gymnasium.Env.set_wrapper_attr

    @property
    def unwrapped(self) -> Self:
        """The environment itself."""
        return self

    @abstractmethod
    async def begin(self, task: Task) -> Outcome:
        """Make the problem of ``task`` and return what the agent sees first."""

    @abstractmethod
    async def turn(self, action: Action) -> Outcome:
        """Carry out one action."""

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode with the ``options`` of ``TurnEnv.reset``."""
        return self._opened(_opening(await awaited(self.begin(self._open(seed, options)))))

    async def step(self, action: str) -> Step:
        """Carry out what the agent said, as ``TurnEnv.step``."""
        if self.calls_per_turn > 1 and len(calls := calls_at_end(action)) > 1:
            return await _step_of_calls(self, calls)
        if self._over or not isinstance(action, str):
            self._refuse(action)
        parsed = self.action_format.parse(after_thoughts(action))
        if isinstance(parsed, InvalidAction):
            outcome = self._not_understood(parsed)
        else:
            self._over = True  # stays so when the turn fails or is cancelled
            outcome = await awaited(self.turn(parsed))  # a plain 'def turn' may be meant
            if type(outcome) is not Outcome:
                outcome = _outcome(outcome, "turn")
        if outcome.truncated:
            _add_end(outcome, await awaited(self.end_at_limit()))
        step = self._stepped(action, parsed, outcome)
        if (limit := self._spent) is None:
            return step
        self._over = True  # stays so when the judge fails
        return self._truncated(limit, step, await awaited(self.end_at_limit()))

    async def close(self) -> None:
        """Release what the environment holds. Safe to call twice."""

    async def snapshot(self) -> Snapshot:
        """Return the state of the episode; ``get_state`` may be a coroutine here."""
        return self._snapshot(await awaited(self._state()))

    async def restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``, as ``TurnEnv.restore``; ``set_state`` may be a coroutine."""
        await self._restore(snapshot)

    async def fork(self, n: int) -> list[Self]:
        """Return ``n`` independent environments in the state of this one, as ``TurnEnv.fork``."""
        return await self._fork(n)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


T = TypeVar("T")
AnyEnv = gymnasium.Env[Any, Any]
EnvT = TypeVar("EnvT", bound=gymnasium.Env[Any, Any])


def opened(value: T | None, name: str) -> T:
    """Return ``value``, which the environment called ``name`` has while an episode is open.

    Raises:
        EnvironmentFault: None is open.
    """
    if value is None:
        raise EnvironmentFault(f"{name}: no episode is open")
    return value


_SHARED = frozenset(
    {"env", "_cached_spec", "_saved_kwargs", "_action_space", "_observation_space", "_metadata"}
)
"""Attributes of a wrapper that say what it is, not where it stands."""


@dataclass(frozen=True, slots=True)
class _Level:
    """Stands in a copied attribute for the environment at ``depth``, 0 being the outermost."""

    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrapperStates:
    """Class name and state of each wrapper, the outermost first."""

    states: tuple[tuple[str, Any], ...]
    levels: tuple[_Level, ...]


def snapshot(env: AnyEnv) -> Snapshot:
    """Return the state of ``env`` and its wrappers; taking it changes nothing.

    Raises:
        SnapshotError: The environment cannot be snapshotted (it is no ``TurnEnv``, or was not
            reset), or a wrapper cannot be copied.
    """
    state: Snapshot = _core(env).snapshot()
    return replace(state, wrappers=_wrapper_states(env))


def restore(env: AnyEnv, state: Snapshot) -> None:
    """Go back to ``state``, which may come from another equal environment.

    Raises:
        SnapshotError: It belongs to another environment or another stack of wrappers, or
            replaying it gave something else.
    """
    here = [_name(wrapper) for wrapper in _wrappers(env)]
    wrappers = state.wrappers or _WrapperStates(states=(), levels=(_Level(0),))
    there = [name for name, _ in wrappers.states]
    if here != there:
        raise SnapshotError(f"{env}: the snapshot is of wrappers {there}, these are {here}")
    _core(env).restore(state)
    _restore_wrappers(env, wrappers)


def fork(env: EnvT, n: int) -> list[EnvT]:
    """Return ``n`` independent environments in the state of ``env``, wrappers included.

    Raises:
        SnapshotError: As ``snapshot`` and ``restore``; or ``n`` is less than 1.
    """
    if n < 1:
        raise SnapshotError(f"{env}: {n} forks were asked for; wanted 1 or more")
    states = _wrapper_states(env)
    return [_rewrap(env, core, states) for core in _core(env).fork(n)]


def clone(env: EnvT) -> EnvT:
    """Return a new environment made like ``env``, wrappers included; it needs a reset.

    Raises:
        SnapshotError: ``env`` is no ``TurnEnv``.
    """
    core = _core(env)
    if not callable(getattr(core, "clone", None)):
        raise SnapshotError(f"{core}: cannot be made again; it is no TurnEnv")
    return _rewrap(env, core.clone(), _wrapper_states(env))


def _core(env: AnyEnv) -> Any:  # has snapshot, restore and fork; gymnasium knows no such type
    core = env.unwrapped
    if not all(callable(getattr(core, name, None)) for name in ("snapshot", "restore", "fork")):
        raise SnapshotError(f"{core}: has no snapshots; it is no TurnEnv")
    return core


def _stack(env: AnyEnv) -> Iterator[AnyEnv]:
    """Yield ``env`` and what it wraps, the outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _wrappers(env: AnyEnv) -> Iterator[Any]:
    return (layer for layer in _stack(env) if isinstance(layer, gymnasium.Wrapper))


def _name(wrapper: AnyEnv) -> str:
    return f"{type(wrapper).__module__}:{type(wrapper).__qualname__}"


def _wrapper_states(env: AnyEnv) -> _WrapperStates:
    levels = tuple(_Level(depth) for depth, _ in enumerate(_stack(env)))
    # deepcopy takes what is in its memo for copied: where a wrapper points to a layer, its copy
    # holds the number of that layer, and no environment is copied along.
    memo = {id(layer): level for layer, level in zip(_stack(env), levels, strict=True)}
    states = tuple((_name(wrapper), _copy_state(wrapper, memo)) for wrapper in _wrappers(env))
    return _WrapperStates(states=states, levels=levels)


def _copy_state(wrapper: Any, memo: dict[int, _Level]) -> Any:
    if hasattr(wrapper, "snapshot_state"):
        return wrapper.snapshot_state()
    mine = {name: value for name, value in vars(wrapper).items() if name not in _SHARED}
    try:
        # It adds to the memo, so each wrapper gets one of its own.
        return copy.deepcopy(mine, dict(memo))
    except Exception as error:  # attributes may be anything
        raise SnapshotError(
            f"wrapper {_name(wrapper)} cannot be copied ({error}); give it snapshot_state and "
            "restore_state"
        ) from error


def _restore_wrappers(env: AnyEnv, wrappers: _WrapperStates) -> None:
    # The other way round: where a copy holds a number, that layer of this stack is put in.
    memo = {id(level): layer for level, layer in zip(wrappers.levels, _stack(env), strict=True)}
    for wrapper, (_, mine) in zip(_wrappers(env), wrappers.states, strict=True):
        if hasattr(wrapper, "restore_state"):
            wrapper.restore_state(mine)
            continue
        # What was first set after the snapshot goes, too: a wrapper may ask whether it is there.
        for name in vars(wrapper).keys() - mine.keys() - _SHARED:
            delattr(wrapper, name)
        vars(wrapper).update(copy.deepcopy(mine, dict(memo)))


def _rewrap(env: EnvT, core: AnyEnv, wrappers: _WrapperStates) -> EnvT:
    """Return wrappers like those of ``env``, in the states given, around ``core``."""
    layer = core
    for wrapper in reversed(list(_wrappers(env))):
        # Not by its constructor: its arguments were not kept, and it may act on the environment.
        outer = object.__new__(type(wrapper))
        vars(outer).update(vars(wrapper))
        outer.env = layer
        layer = outer
    _restore_wrappers(layer, wrappers)
    return cast("EnvT", layer)
