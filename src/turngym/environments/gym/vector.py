"""Many environments behind one ``reset`` and ``step``, as Gymnasium's own vector environments.

Three things are added to ``SyncVectorEnv`` and ``AsyncVectorEnv``. Their batched ``info`` keeps our
keys whole: lists, texts and ground truths as arrays of objects, a missing score as NaN. An episode
that begins by itself is of the split that was asked for, as the one before it. And the worker
process of the async one forgets an episode that is over when it is reset by hand;
Gymnasium's (1.4) does that only with shared memory, which text cannot use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from turngym import registry
from turngym.environments.gym.process import open_reply, pack_error
from turngym.environments.gym.registration import known_options, with_own_turns
from turngym.errors import ConfigError, EnvironmentFault, require_known

if TYPE_CHECKING:
    _Sync = SyncVectorEnv[Any, Any]
    _Async = AsyncVectorEnv[Any, Any]
else:  # without parameters in older gymnasium
    _Sync, _Async = SyncVectorEnv, AsyncVectorEnv

VectorizationMode = Literal["sync", "async"]
VECTORIZATION_MODES: tuple[VectorizationMode, ...] = ("sync", "async")

_BATCHED_BY_GYMNASIUM = frozenset({"reward_parts", "usage", "episode", "final_info", "final_obs"})
"""Keys whose values are dictionaries of numbers, or have a form of their own; ``episode`` is of
Gymnasium's ``RecordEpisodeStatistics``."""


def make_vec(
    id: str | EnvSpec,
    num_envs: int,
    vectorization_mode: VectorizationMode = "sync",
    *,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    wrappers: Sequence[Callable[[Any], gymnasium.Env[Any, Any]]] = (),
    vector_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """Return ``num_envs`` environments of one kind as one vector environment.

    Actions are a sequence of ``num_envs`` texts; the observation is ``{"text": (str, ...)}``.
    ``call("legal_actions")``, ``call("score")`` and the like ask each environment.

    Args:
        id: Id, short name or Gymnasium spec.
        num_envs: Number of environments, 1 or more.
        vectorization_mode: ``"sync"``: one after the other, here. ``"async"``: a process each,
            started afresh (``spawn``), so the main module needs its ``__name__`` guard.
        autoreset_mode: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``, as in Gymnasium; what
            begins by itself is of the ``split`` of the last reset.
        wrappers: Applied to each environment in order; for ``"async"`` they must be picklable.
        vector_kwargs: More arguments of Gymnasium's class, for example ``{"context": "fork"}``.
        kwargs: Arguments of the environment's class.

    Raises:
        UnknownNameError: There is no such environment or mode.
        MissingExtraError: It needs something that is not installed.
        ConfigError: ``num_envs`` is less than 1, or there is no option of that name.
    """
    require_known("vectorization_mode", vectorization_mode, VECTORIZATION_MODES)
    if num_envs < 1:
        raise ConfigError(f"make_vec: num_envs must be at least 1, got {num_envs}")
    spec = id if isinstance(id, EnvSpec) else _spec(id)
    make_one = partial(
        _make_one, with_own_turns(spec, kwargs), tuple(wrappers), kwargs, registry.sources()
    )
    options = {"autoreset_mode": AutoresetMode(autoreset_mode), **(vector_kwargs or {})}
    envs: VectorEnv[Any, Any, Any]
    with nullcontext() if isinstance(id, EnvSpec) else known_options(registry.find(id), kwargs):
        if vectorization_mode == "sync":
            envs = TurnSyncVectorEnv([make_one] * num_envs, **options)
        else:
            options = {"shared_memory": False, "context": "spawn", "worker": _work, **options}
            envs = TurnAsyncVectorEnv([make_one] * num_envs, **options)
    envs.spec = deepcopy(spec)
    envs.spec.kwargs |= {**kwargs, "num_envs": num_envs, "vectorization_mode": vectorization_mode}
    return envs


def _spec(name: str) -> EnvSpec:
    entry = registry.find(name)
    entry.require()
    return gymnasium.spec(entry.id)


def _make_one(
    spec: EnvSpec,
    wrappers: tuple[Callable[[Any], gymnasium.Env[Any, Any]], ...],
    kwargs: Any,
    sources: Sequence[str],
) -> gymnasium.Env[Any, Any]:
    with registry.loaded(sources):
        env = gymnasium.make(spec, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


class _WholeInfos:
    """Batches the infos of single environments; mixed into Gymnasium's classes."""

    num_envs: int

    def step(self, actions: Any) -> Any:
        """Carry out one action in each environment.

        Raises:
            ValueError: There are more or fewer actions. None is carried out: Gymnasium would carry
                out the first, and take their answers for those of the next call.
        """
        if len(actions) != self.num_envs:
            raise ValueError(f"step: wanted {self.num_envs} actions, found {len(actions)}")
        return super().step(actions)  # type: ignore[misc]

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        theirs = {k: v for k, v in env_info.items() if k in _BATCHED_BY_GYMNASIUM}
        for key, value in env_info.items():
            if key not in theirs:
                self._put(vector_infos, key, value, env_num)
        merged: dict[str, Any] = super()._add_info(vector_infos, theirs, env_num)  # type: ignore[misc]
        return merged

    def _put(self, infos: dict[str, Any], key: str, value: Any, env_num: int) -> None:
        if key == "score":
            value = np.float64(np.nan if value is None else value)
        is_number = isinstance(value, int | float | np.number)
        dtype = np.asarray(value).dtype if is_number else np.dtype(object)
        if key not in infos:
            blank = np.nan if key == "score" else 0 if is_number else None
            infos[key] = np.full(self.num_envs, blank, dtype=dtype)
            infos[f"_{key}"] = np.zeros(self.num_envs, dtype=np.bool_)
        # What the first environment has is no measure of what others have: 1 and 0.5, 3 and None.
        infos[key] = infos[key].astype(np.promote_types(infos[key].dtype, dtype), copy=False)
        infos[key][env_num] = value
        infos[f"_{key}"][env_num] = True


Options = dict[str, Any] | None


def _split_of(options: Options) -> Options:
    """Return what of ``options`` holds for the episodes after the first as well."""
    return {k: v for k, v in (options or {}).items() if k == "split"} or None


class TurnSyncVectorEnv(_WholeInfos, _Sync):
    """Gymnasium's ``SyncVectorEnv`` with whole infos, which stays in a split."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._splits: list[Options] = [None] * self.num_envs

    def reset(self, *, seed: Any = None, options: Options = None) -> Any:
        """Start an episode in each environment, or in those of ``options["reset_mask"]``."""
        mask, split = (options or {}).get("reset_mask"), _split_of(options)
        result = super().reset(seed=seed, options=options)
        chosen = [True] * self.num_envs if mask is None else mask
        pairs = zip(chosen, self._splits, strict=True)
        self._splits = [split if is_reset else before for is_reset, before in pairs]
        return result

    def step(self, actions: Any) -> Any:
        """Carry out one action in each environment; what is over begins again in its split."""
        envs = self.envs
        pairs = zip(envs, self._splits, strict=True)
        self.envs = [
            cast("Any", SimpleNamespace(step=env.step, reset=partial(env.reset, options=split)))
            for env, split in pairs
        ]
        try:
            return super().step(actions)
        finally:
            self.envs = envs


class TurnAsyncVectorEnv(_WholeInfos, _Async):
    """Gymnasium's ``AsyncVectorEnv`` with whole infos and errors as they were raised."""

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End all processes, also where one of them was killed and cannot answer."""
        try:
            super().close_extras(timeout, terminate)
        except (EOFError, ConnectionError):
            self._state = AsyncState.DEFAULT
            super().close_extras(timeout, terminate=True)

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        failures = [self.error_queue.get() for success in successes if not success]
        for index, _ in failures:
            self.parent_pipes[index].close()
            self.parent_pipes[index] = None  # type: ignore[call-overload] # as gymnasium does
        if failures:
            self._state = AsyncState.DEFAULT
            index, packed = failures[0]
            open_reply(f"environment {index}", packed)


class _Worker:
    """One environment in its process; each method answers one command of the main process."""

    def __init__(self, env: gymnasium.Env[Any, Any], autoreset: AutoresetMode, permit: Any) -> None:
        self.env = env
        self._autoreset = autoreset
        self._permit: AbstractContextManager[Any] = permit or nullcontext()
        self._over = False
        self._observation: Any = None
        self._split: Options = None

    def answer(self, command: str, data: Any) -> Any:
        """Carry out ``command`` and return the answer."""
        if command == "reset":
            self._split = _split_of(data.get("options"))
            return self._reset(**data)
        if command == "reset-noop":
            return self._observation, {}
        if command == "step":
            return self._step(data)
        if command == "_call":
            name, args, kwargs = data
            value = self.env.get_wrapper_attr(name)
            return value(*args, **kwargs) if callable(value) else value
        if command == "_setattr":
            self.env.set_wrapper_attr(*data)
            return None
        if command == "_check_spaces":
            return self._has_spaces(*data)
        raise ConfigError(f"vector environment: unknown command {command!r}")

    def _reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        with self._permit:
            self._observation, info = self.env.reset(**kwargs)
        self._over = False
        return self._observation, info

    def _step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._over and self._autoreset is AutoresetMode.NEXT_STEP:
            observation, info = self._reset(options=self._split)
            return observation, 0.0, False, False, info
        if self._over:
            raise EnvironmentFault("step: the episode is over; reset it first")
        with self._permit:
            observation, reward, terminated, truncated, info = self.env.step(action)
        self._observation = observation
        self._over = terminated or truncated
        if self._over and self._autoreset is AutoresetMode.SAME_STEP:
            final = {"final_info": info, "final_obs": observation}
            observation, opening = self._reset(options=self._split)
            info = {**final, **opening}
        return observation, float(reward), terminated, truncated, info

    def _has_spaces(self, mode: Any, observations: Any, actions: Any) -> tuple[bool, bool]:
        mine = self.env.observation_space
        if mode == "same":
            fits = observations == mine
        else:
            fits = is_space_dtype_shape_equiv(observations, mine)
        return bool(fits), bool(actions == self.env.action_space)


def _work(
    index: int,
    make_one: Callable[[], gymnasium.Env[Any, Any]],
    pipe: Connection,
    parent_pipe: Connection,
    _shared_memory: Any,
    errors: Any,
    autoreset: AutoresetMode,
    permit: Any = None,
) -> None:
    """Serve one environment until it is closed; the main function of a worker process.

    Its arguments and messages are those that ``AsyncVectorEnv`` expects of a worker.
    """
    parent_pipe.close()
    env: gymnasium.Env[Any, Any] | None = None
    try:
        env = make_one()
        worker = _Worker(env, autoreset, permit)
        while (message := pipe.recv())[0] != "close":
            pipe.send((worker.answer(*message), True))
        pipe.send((None, True))
    except BaseException as error:  # noqa: BLE001 - the main process raises it
        errors.put((index, pack_error(f"environment {index}", error)))
        pipe.send((None, False))
    finally:
        if env is not None:
            env.close()
