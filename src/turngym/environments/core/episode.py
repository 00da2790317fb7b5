"""What every environment of ours does around an author's ``begin`` and ``turn``, without any I/O.

Tasks and seeds, parsing, limits, the reserved ``info`` keys, order of calls, and the record that
snapshots by replay need. ``env.py`` makes a synchronous and an asynchronous environment of it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding

from turngym.coroutines import awaited, forked
from turngym.environments.core.actions import ActionFormat, InvalidAction, JsonTools
from turngym.environments.core.limits import Limit, Parsed
from turngym.environments.core.spaces import (
    Image,
    Info,
    Unicode,
    announce_calls,
    joined_info,
    score_of,
    text_observation_space,
)
from turngym.errors import ConfigError, EnvironmentFault, SnapshotError, TurnGymError, unknown_name
from turngym.faults import Boundary
from turngym.tasks.base import SPLITS, Split, Task, parse_task_id, procedural_task
from turngym.types import StopReason

Observation = dict[str, Any]
"""``{"text": str}``, and ``"image"``: uint8 [H, W, 3] where the environment is visual."""

Step = tuple[Observation, float, bool, bool, Info]
"""What ``step`` returns: observation, reward, terminated, truncated, info."""

SnapshotKind = Literal["exact", "fs", "replay"]
"""How a state is kept: a copy of it, a copy with its files, or the actions that led to it."""

_TERMINATED, _TRUNCATED = StopReason.TERMINATED.value, StopReason.TRUNCATED_ENV.value
_MAX_TASK_INDEX = 1 << 31


@dataclass(slots=True, kw_only=True)  # not frozen: that would double the cost of a turn
class Outcome:
    """What came of one action."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    """True only for a limit of the environment's own; the others are ``episode_limits``."""
    invalid_action: str | None = None
    """Why the action was understood but could not be carried out."""
    image: Any = None
    info: Mapping[str, Any] | None = None
    """More ``info`` keys, reserved ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A state of one episode that ``restore`` brings back. Picklable when the state is."""

    kind: SnapshotKind
    env: str
    """Which environment it belongs to."""
    task: Task | None
    state: Any
    """``exact`` and ``fs``: what ``get_state`` gave. ``replay``: the record of the episode."""
    rng_state: Mapping[str, Any]
    bookkeeping: Mapping[str, Any]
    wrappers: Any = None
    """States of wrappers around it, of ``turngym.environments.core.env``."""


@dataclass(slots=True)
class EpisodeLog:
    """What ``replay`` needs: how the episode began, every action, and what was seen."""

    rng_state: Mapping[str, Any]
    seed: int | None
    options: dict[str, Any] | None
    opening: str
    turns: list[tuple[str, str]] = field(default_factory=list)


_CALLED = ("answer", "count", "legal_actions", "reminder", "score", "step", "task", "turn")


class EpisodeCore:
    """What ``TurnEnv`` and ``AsyncTurnEnv`` share; does no I/O of its own."""

    name: str = ""
    """Short name, the first part of task ids; defaults to the lower-cased class name."""
    rules: str = ""
    """What an agent should know before it starts; ``instructions`` adds how to act."""
    snapshot_kind: ClassVar[SnapshotKind] = "replay"
    speaks: ClassVar[bool] = False  # itself says who speaks, in ``info["messages"]``: a program
    players: tuple[str, ...] = ()
    """Who plays, in a game of several. What ``turn`` returns is then for ``player()``, its reward
    of the one who acted; ``info`` has ``other_rewards`` and, at the end, ``scores``."""
    shows_ground_truth: ClassVar[bool] = False
    """The opening may hold the text of ``info["ground_truth"]``: finding it there is the task."""
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}
    action_format: ActionFormat
    np_random: np.random.Generator
    reset: Any  # coroutines in an AsyncTurnEnv, and so are these two
    step: Any
    close: Any
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    episode_limits: list[Limit]
    """Truncate the episode; each counts every step, and the first that is spent gives the reason.
    ``turngym.environments.gym.wrappers.limited`` adds to them."""
    calls_per_turn: int = 1
    """Most tool calls of one answer that are carried out, one after the other in one step."""

    _constructor: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    _task: Task | None = None
    _task_id: str = ""
    _log: EpisodeLog | None = None
    _over: bool = True
    _started: bool = False
    _last_text: str = ""
    _is_replaying: bool = False
    _spent: Limit | None = None
    render_mode: str | None = None
    spec: EnvSpec | None = None
    """As ``gymnasium.make`` made it; None when it was not made by an id."""
    _np_random_seed: int | None = None
    _lists_actions = _has_state_key = _has_potential = _has_picture = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Note what this class overrides, so that a turn need not ask what it does not."""
        super().__init_subclass__(**kwargs)
        cls._lists_actions = cls.legal_actions is not EpisodeCore.legal_actions
        cls._has_state_key = cls.state_key is not EpisodeCore.state_key
        cls._has_potential = cls.potential is not EpisodeCore.potential
        cls._has_picture = cls.picture is not EpisodeCore.picture

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the arguments, so that ``fork`` can build an equal environment."""
        self = super().__new__(cls)
        self._constructor = (args, kwargs)
        self.episode_limits = []
        if not self.name:
            self.name = cls.__name__.removesuffix("Env").lower()
        return self

    def __init__(self, *, render_mode: str | None = None) -> None:
        if render_mode not in (None, *(known := self.metadata.get("render_modes", ()))):
            raise unknown_name(f"render_mode of {type(self).__name__}", str(render_mode), known)
        self.observation_space = text_observation_space()
        self.action_space = Unicode()
        self.render_mode = render_mode

    # What an author may override.

    def score(self) -> float | None:
        """Return success in [0, 1] if the episode ended now; None when it cannot be judged."""
        return None

    def end_at_limit(self) -> Outcome | None:
        """Judge the state in which a limit ends the episode, as ``stop`` or ``submit`` would.

        For environments in which the agent says when it is done: its reward is then paid with the
        last turn, so that return and score agree. None: a limit pays nothing. May be a coroutine
        in an ``AsyncTurnEnv``. Rollouts call it where they end an episode between two turns.
        """
        return None

    def legal_actions(self) -> list[str] | None:
        """Return the actions that would be carried out now, or None when they are endless."""
        return None

    def state_key(self) -> str | None:
        """Return a history-free key of the current state, or None when there is none."""
        return None

    def player(self) -> str | None:
        """Return who of ``players`` acts next, any of them where the game is over."""
        return None

    def potential(self) -> float | None:
        """Return how promising the current state is, for reward shaping, or None.

        Any function of the state will do: shaping by its differences leaves the best policy as it
        is. The best one is what can still be earned from here, for example the reward of success
        less a little for every turn that an expert needs; its growth is then a turn's advantage.
        """
        return None

    def answer(self, ground_truth: str) -> str | None:
        """Return the action that states ``ground_truth``, word for word, or None.

        Credit that asks how likely the policy finds the true answer reads it.
        """
        return None

    def reminder(self) -> str:
        """Return what an agent needs to go on after an answer that was not understood.

        Usually the present state in words: a small model that reads only what was wrong has
        forgotten where it is. Must change nothing.
        """
        return ""

    def picture(self) -> Image | None:
        """Return what the state looks like, uint8 [H, W, 3], for outcomes without a picture."""
        return None

    def state_files(self) -> Mapping[str, Any]:
        """Return more of the state than an agent sees, for a person: contents by name of file.

        A value is bytes, or a picture, uint8 [H, W, 3]. May be a coroutine in an ``AsyncTurnEnv``.
        Must change nothing.
        """
        return {}

    def expert_action(self) -> str:
        """Return an expert's action for the current state. Never part of an observation.

        Raises:
            ConfigError: It has none.
        """
        raise ConfigError(f"environment {self.name!r} has no expert")

    def get_state(self) -> Any:
        """Return a copy of the state, independent of the environment (not for ``replay``).

        Raises:
            SnapshotError: A subclass that has one must write it.
        """
        raise SnapshotError(
            f"{self.name}: snapshot_kind is {self.snapshot_kind!r} but get_state is missing"
        )

    def set_state(self, state: Any) -> None:
        """Take over a copy of what ``get_state`` returned (not for ``replay``).

        Raises:
            SnapshotError: A subclass that has one must write it.
        """
        raise SnapshotError(
            f"{self.name}: snapshot_kind is {self.snapshot_kind!r} but set_state is missing"
        )

    # What users call.

    @property
    def instructions(self) -> str:
        """Rules and action format, as text for a system prompt."""
        return f"{self.rules}\n\n{self.action_format.instructions()}".strip()

    @property
    def current_task(self) -> Task:
        """The task of the running episode.

        Raises:
            ResetNeeded: There was none yet.
        """
        if self._task is None:
            raise ResetNeeded(f"{self.name}: call reset before asking for the task")
        return self._task

    def count(self, split: Split) -> int | None:
        """Return the number of tasks of a split; None where there is no end of them."""
        return None

    def task(self, split: Split, index: int) -> Task:
        """Return task number ``index`` of ``split``; the same on every machine."""
        return procedural_task(self.name, split, index)

    def find_task(self, task_id: str) -> Task:
        """Return the task that ``task_id`` names.

        Raises:
            ConfigError: There is no such task here.
        """
        return parse_task_id(self.name, task_id)

    def clone(self) -> Self:
        """Return a new environment made with the same arguments; it needs a reset."""
        args, kwargs = self._constructor
        clone = type(self)(*args, **kwargs)
        clone.spec, clone.calls_per_turn = self.spec, self.calls_per_turn
        clone.episode_limits = [copy.copy(limit) for limit in self.episode_limits]
        return clone

    def render(self) -> str | None:
        """Return the last observation's text in render mode ``"ansi"``."""
        return self._last_text if self.render_mode == "ansi" else None

    # Bookkeeping shared by the sync and the async class.

    def _open(self, seed: int | None, options: dict[str, Any] | None) -> Task:
        rng_state = self._rng_state()
        if seed is not None:
            self.np_random, self._np_random_seed = seeding.np_random(seed)
        self._task = self._choose_task(seed, dict(options or {}))
        self._task_id = self._task.id
        self._log = None
        if self.snapshot_kind == "replay":
            self._log = EpisodeLog(rng_state, seed, options, "")
        self._over, self._started = True, False  # until the opening is there
        return self._task

    def _choose_task(self, seed: int | None, options: dict[str, Any]) -> Task:
        chosen, split = options.pop("task", None), options.pop("split", None)
        if options:
            raise ConfigError(
                f"{self.name}: unknown reset option {sorted(options)[0]!r}; known: task, split"
            )
        if chosen is not None and split is not None:
            raise ConfigError(f"{self.name}: reset options task and split: wanted one of them")
        if isinstance(chosen, Task | str):
            return self.find_task(chosen) if isinstance(chosen, str) else chosen
        if chosen is not None:
            raise ConfigError(f"{self.name}: option 'task' must be a Task or a task id")
        split = split or next(one for one in SPLITS if self.count(one) != 0)
        if split not in SPLITS:
            raise ConfigError(f"{self.name}: split {split!r}; wanted one of {', '.join(SPLITS)}")
        rng = self.np_random if seed is None else seeding.np_random(seed)[0]  # not the episode's
        numbers = rng.integers(self.count(split) or _MAX_TASK_INDEX, size=2)
        return self.task(split, numbers.tolist()[seed is None])  # not the seed's task again

    def _observed(self, outcome: Outcome) -> Observation:
        image = outcome.image
        if image is None and self._has_picture:
            image = self.picture()
        return {"text": outcome.text} if image is None else {"text": outcome.text, "image": image}

    def _opened(self, outcome: Outcome) -> tuple[Observation, Info]:
        for name in _CALLED:
            if not callable(found := getattr(self, name, None)):
                raise TypeError(f"the attribute {name} ({found!r:.40}) hides {name}(); rename it")
        observation = self._observed(outcome)
        self._last_text, self._over, self._started = outcome.text, False, True
        if self._log is not None:
            self._log.opening = outcome.text
        info = self._info(outcome)
        info["instructions"] = self.instructions
        if isinstance(self.action_format, JsonTools):
            info |= {"tools": self.action_format.tools(), "rules": self.rules}
        if self.calls_per_turn > 1:
            announce_calls(info, self.calls_per_turn, self.name)
        truth = info.get("ground_truth")
        if truth is not None and (answer := self.answer(str(truth))) is not None:
            info["answer"] = answer
        for limit in self.episode_limits:
            limit.start(observation, info)
        return observation, info

    def _refuse(self, action: object) -> None:
        if self._over:
            what = "the episode is over" if self._started else "no episode has begun"
            raise ResetNeeded(f"{self.name}: {what}; call reset before step")
        raise ConfigError(f"{self.name}: an action is a str, got {type(action).__name__}")

    def _not_understood(self, problem: InvalidAction) -> Outcome:
        text = f"{problem.reason} {self.reminder()}".rstrip()
        return Outcome(text=text, invalid_action=problem.reason)

    def _stepped(self, action: str, parsed: Parsed, outcome: Outcome) -> Step:
        """Return the step; ``_spent`` is then the first limit that it reached, if it goes on."""
        self._last_text = outcome.text
        self._over = over = outcome.terminated or outcome.truncated
        if self._log is not None:
            self._log.turns.append((action, outcome.text))
        info = self._info(outcome)
        if outcome.invalid_action is not None:
            info["invalid_action"] = outcome.invalid_action
        if over:
            self._note_end(info, _TERMINATED if outcome.terminated else _TRUNCATED)
        observation, spent = self._observed(outcome), None
        for limit in self.episode_limits:
            if limit.is_spent(action, parsed, observation, info) and spent is None:
                spent = limit
        self._spent = None if over or self._is_replaying else spent
        return observation, float(outcome.reward), outcome.terminated, outcome.truncated, info

    def _boundary(self, phase: str) -> Boundary:
        """Attribute to the environment what its engine or its programs raise in ``phase``."""
        return Boundary(f"{self.name}: {phase}", EnvironmentFault, TurnGymError)

    def _note_end(self, info: Info, stop_reason: str) -> None:
        info["stop_reason"] = stop_reason
        info["score"] = score_of(info["score"] if "score" in info else self.score())

    def _truncated(self, limit: Limit, step: Step, end: Outcome | None) -> Step:
        """Return the step at which ``limit`` ends the episode, judged by ``end_at_limit``."""
        observation, reward, _, _, info = step
        if end is not None:
            reward += end.reward
            info = joined_info(info, end.info or {}, reward)
        self._note_end(info, limit.reason.value)
        if "legal_actions" in info:
            info["legal_actions"] = []
        self._over = True
        return observation, reward, False, True, info

    def _info(self, outcome: Outcome) -> Info:
        info: Info = {"task_id": self._task_id}
        if outcome.info:
            info.update(outcome.info)
            if "reward_parts" in info:
                info["reward_parts"] = {k: float(v) for k, v in info["reward_parts"].items()}
        if self._lists_actions:
            legal = [] if self._over else self.legal_actions()
            if legal is not None:
                info["legal_actions"] = legal
        if self._has_state_key and (state_key := self.state_key()) is not None:
            info["state_key"] = state_key
        if self._has_potential and (potential := self.potential()) is not None:
            info["potential"] = float(potential)
        if self.players:
            info |= {"players": self.players, "player": self.player()}
        return info

    def _rng_state(self) -> Mapping[str, Any]:
        return self.np_random.bit_generator.state  # a fresh copy each time

    def _state(self) -> Any:
        if not self._started:
            raise SnapshotError(f"{self.name}: nothing to snapshot before reset")
        return copy.deepcopy(self._log) if self.snapshot_kind == "replay" else self.get_state()

    def _snapshot(self, state: Any) -> Snapshot:
        return Snapshot(
            kind=self.snapshot_kind,
            env=self.name,
            task=self._task,
            state=state,
            rng_state=self._rng_state(),
            bookkeeping={
                "over": self._over,
                "last_text": self._last_text,
                "limits": [(type(one).__name__, one.get_state()) for one in self.episode_limits],
            },
        )

    async def _restore(self, snapshot: Snapshot) -> None:
        """Go back to ``snapshot``; waits for nothing where the environment does not."""
        if (snapshot.env, snapshot.kind) != (self.name, self.snapshot_kind):
            raise SnapshotError(
                f"{self.name}: this is a {snapshot.kind!r} snapshot of {snapshot.env!r}, "
                f"wanted a {self.snapshot_kind!r} one of {self.name!r}"
            )
        here = [type(limit).__name__ for limit in self.episode_limits]
        there = [name for name, _ in snapshot.bookkeeping["limits"]]
        if here != there:
            raise SnapshotError(f"{self.name}: the snapshot is of limits {there}, these are {here}")
        self._task = snapshot.task
        self._task_id = "" if snapshot.task is None else snapshot.task.id
        self._over = True  # until it is there
        if snapshot.kind == "replay":
            # As it was before the reset, which may sample from it.
            self._set_rng(snapshot.state.rng_state)
            self._is_replaying = True
            try:
                log: EpisodeLog = snapshot.state
                observation, _ = await awaited(self.reset(seed=log.seed, options=log.options))
                self._compare(0, log.opening, observation)
                for number, (action, wanted) in enumerate(log.turns, start=1):
                    self._compare(number, wanted, (await awaited(self.step(action)))[0])
            finally:
                self._is_replaying = False
        else:
            await awaited(self.set_state(snapshot.state))  # type: ignore[func-returns-value]
        self._set_rng(snapshot.rng_state)
        self._started = True
        self._over = bool(snapshot.bookkeeping["over"])
        self._last_text = snapshot.bookkeeping["last_text"]
        spent = snapshot.bookkeeping["limits"]
        for limit, (_, state) in zip(self.episode_limits, spent, strict=True):
            limit.set_state(state)

    async def _fork(self, n: int) -> list[Self]:
        state = self._snapshot(await awaited(self._state()))
        return await forked(n, self.clone, lambda child: child._restore(state))

    def _set_rng(self, state: Mapping[str, Any]) -> None:
        bits: np.random.BitGenerator = getattr(np.random, str(state["bit_generator"]))()
        bits.state = state
        self.np_random = np.random.Generator(bits)

    def _compare(self, turn: int, wanted: str, observation: Observation) -> None:
        if observation["text"] != wanted:
            # Between two states: no step may go on from here.
            self._over = True
            raise SnapshotError(
                f"{self.name}: replay differs at turn {turn}: saw "
                f"{observation['text'][:60]!r}, recorded {wanted[:60]!r}; is it deterministic?"
            )
