"""Environments and a policy that raise everything there is, everywhere, each thing once.

What is raised where stands in the name of the task: ``POINT KIND``. A file is made when it is
raised, so that only the first try breaks, in whatever thread or process it is played, and so that a
test can see that it happened. ``POINT KIND always`` breaks in every try.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium

from turngym.agents.policy import ContextOverflow, EpisodeContext, EpisodeEnd, PolicyTurn
from turngym.environments.core.env import AsyncTurnEnv
from turngym.environments.core.spaces import Unicode, text_observation_space
from turngym.environments.gym.face import as_gym
from turngym.errors import PolicyFault
from turngym.rollouts.episode import CannotReplay
from turngym.rollouts.scheduler.running import Preempted
from turngym.tasks.base import Task
from turngym.types import Message, TokenSpan, Turn

TURNS = 2


class UsersExit(BaseException):
    """A user's own way to say that it is over."""


class Mute(Exception):
    """Its message cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Deadly(Exception):
    """Its message ends the program."""

    def __str__(self) -> str:
        sys.exit(4)


class TwoWords(Exception):
    """Can be pickled, but not read again."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


def _raise(error: BaseException) -> None:
    raise error


def _in_circles() -> None:
    error = ValueError("round")
    other = KeyError("and round")
    other.__cause__ = error
    raise error from other


def _deeper(depth: int = 0) -> int:
    return _deeper(depth + 1) + 1


def _too_deep() -> None:
    # A garbage collection in the deepest frames would run other tests' finalizers where they have
    # no room, and pytest would count their errors as this test's.
    gc.disable()
    try:
        _deeper()
    finally:
        gc.enable()


KINDS: Mapping[str, Callable[[], object]] = {
    "value": lambda: _raise(ValueError("broke")),
    "key": lambda: {}["nothing"],
    "os": lambda: Path("/no/such/file").read_text(),
    "assert": lambda: _raise(AssertionError()),
    "timeout": lambda: _raise(TimeoutError("the server did not answer")),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
    "cancelled-thread": lambda: _raise(concurrent.futures.CancelledError()),
    "stop-iteration": lambda: next(iter(())),
    "stop-async-iteration": lambda: _raise(StopAsyncIteration()),
    "generator-exit": lambda: _raise(GeneratorExit()),
    "keyboard-interrupt": lambda: _raise(KeyboardInterrupt()),
    "exit": lambda: sys.exit(3),
    "exit-fine": sys.exit,
    "exit-words": lambda: sys.exit("goodbye"),
    "memory": lambda: _raise(MemoryError()),
    "recursion": _too_deep,
    "group": lambda: _raise(ExceptionGroup("some", [ValueError("one"), OSError("two")])),
    "base-group": lambda: _raise(BaseExceptionGroup("all", [KeyboardInterrupt(), SystemExit(1)])),
    "base": lambda: _raise(BaseException("the root of all")),
    "users-exit": lambda: _raise(UsersExit("enough")),
    "mute": lambda: _raise(Mute()),
    "deadly": lambda: _raise(Deadly()),
    "unpicklable": lambda: _raise(ValueError(lambda: None)),
    "unreadable": lambda: _raise(TwoWords("half", "way")),
    "surrogate": lambda: _raise(ValueError("\ud800 \0 " + "long " * 5000)),
    "circle": _in_circles,
    "overflow": lambda: _raise(ContextOverflow("not mine to raise")),
    "broken-off": lambda: _raise(Preempted("nor this")),
    "replay": lambda: _raise(CannotReplay("nor this")),
    "policy-fault": lambda: _raise(PolicyFault("not mine")),
}
IN_COROUTINES: Mapping[str, Callable[[], object]] = {"cancels-itself": lambda: _cancel_this_task()}
IN_CHILDREN: Mapping[str, Callable[[], object]] = {
    "os-exit": lambda: os._exit(7),
    "os-exit-fine": lambda: os._exit(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
}
ALL = {**KINDS, **IN_COROUTINES, **IN_CHILDREN}


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@dataclass(frozen=True)
class Trouble:
    """Raises what a task's name says, the first time that its point is reached."""

    folder: Path

    def at(self, point: str, task_id: str) -> str | None:
        """Return the kind that is due at ``point``, and note that it happens; None when none is."""
        where, _, kind = task_id.partition(" ")
        if where != point:
            return None
        kind, _, always = kind.partition(" ")
        try:
            self._mark(task_id).open("x").close()
        except FileExistsError:
            return kind if always else None
        return kind

    def may_close(self, task_id: str) -> None:
        """Break, so that the environment is closed, when that is what is to break."""
        if task_id.startswith("close ") and not self._mark(task_id).exists():
            raise ConnectionError("to be closed")

    def may(self, point: str, task_id: str) -> None:
        """Raise what is due at ``point``."""
        if (kind := self.at(point, task_id)) is not None:
            ALL[kind]()

    async def may_later(self, point: str, task_id: str) -> None:
        """Raise what is due at ``point`` in a coroutine."""
        await asyncio.sleep(0)
        self.may(point, task_id)
        await asyncio.sleep(0)

    def _mark(self, task_id: str) -> Path:
        return self.folder / task_id.replace(" ", "+")


@dataclass(frozen=True)
class Maker:
    """Makes environments of one class; after the first, each of ``kinds`` breaks one making."""

    folder: Path
    kinds: tuple[str, ...]
    wanted: Literal["plain", "async", "face"]

    def __call__(self) -> Any:
        for kind in ("", *self.kinds):
            with suppress(FileExistsError):
                (self.folder / f"make+{kind}").open("x").close()
                if kind:
                    ALL[kind]()
                break
        if self.wanted == "plain":
            return ChaosEnv(self.folder)
        make = partial(AsyncChaosEnv, self.folder)
        return make() if self.wanted == "async" else as_gym(make())


def _answer(turn: int) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
    over = turn >= TURNS
    info: dict[str, Any] = {"score": 1.0} if over else {}
    return {"text": f"turn {turn}"}, float(over), over, False, info


class ChaosEnv(gymnasium.Env[Any, str]):
    """Breaks in ``reset``, ``step1``, ``step2``, ``score`` and ``close``."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    render_mode = None

    def __init__(self, folder: Path) -> None:
        self.trouble = Trouble(folder)
        self.observation_space = text_observation_space()
        self.action_space = Unicode()
        self.task_id, self.turns = "", 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.task_id, self.turns = options["task"].id, 0
        self.trouble.may("reset", self.task_id)
        return {"text": "start"}, {}

    def step(self, action: str) -> Any:
        self.turns += 1
        self.trouble.may_close(self.task_id)
        self.trouble.may(f"step{self.turns}", self.task_id)
        return _answer(self.turns)

    def score(self) -> float:
        self.trouble.may("score", self.task_id)
        return 0.5

    def close(self) -> None:
        self.trouble.may("close", self.task_id)


class AsyncChaosEnv(AsyncTurnEnv):
    """The same with coroutines; can also be stopped in the middle of a step."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.trouble = Trouble(folder)
        self.task_id, self.turns = "", 0

    async def begin(self, task: Task) -> Any:
        raise NotImplementedError

    async def turn(self, action: Any) -> Any:
        raise NotImplementedError

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.task_id, self.turns = options["task"].id, 0
        await self.trouble.may_later("reset", self.task_id)
        return {"text": "start"}, {}

    async def step(self, action: str) -> Any:
        self.turns += 1
        self.trouble.may_close(self.task_id)
        await self.trouble.may_later(f"step{self.turns}", self.task_id)
        if (kind := self.trouble.at("cancel", self.task_id)) is not None:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                ALL[kind]()
        return _answer(self.turns)

    def score(self) -> float:
        self.trouble.may("score", self.task_id)
        return 0.5

    async def close(self) -> None:
        await self.trouble.may_later("close", self.task_id)


class ChaosPolicy:
    """Breaks in ``start``, ``act``, ``finish`` and ``end`` (the closing of its session)."""

    def __init__(self, folder: Path) -> None:
        self.trouble = Trouble(folder)
        self.version = 0

    def start(self, context: EpisodeContext) -> ChaosSession:
        self.trouble.may("start", context.task_id)
        return ChaosSession(self, context.task_id)


class ChaosSession:
    """One episode's side of the policy."""

    def __init__(self, policy: ChaosPolicy, name: str) -> None:
        self._policy, self._name, self._turns = policy, name, 0

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        self._turns += 1
        await asyncio.sleep(0)
        self._policy.trouble.may(f"act{self._turns}", self._name)
        sampled = TokenSpan(
            token_ids=(4, 5, 6),
            sampled=True,
            logprobs=(-1.0, -1.0, -1.0),
            policy_version=self._policy.version,
        )
        if self._turns == 2 and self._name.startswith("score"):
            raise ContextOverflow("so that the judge is asked")
        return PolicyTurn(
            observation=(Message(role="user", content=observation["text"]),),
            action=Message(role="assistant", content="go"),
            spans=(TokenSpan(token_ids=(1, 2), sampled=False), sampled),
        )

    def replay(self, observation: Mapping[str, Any], info: Mapping[str, Any], turn: Turn) -> None:
        self._turns += 1

    async def finish(self, end: EpisodeEnd) -> None:
        self._policy.trouble.may("finish", self._name)

    async def close(self) -> None:
        self._policy.trouble.may("end", self._name)
