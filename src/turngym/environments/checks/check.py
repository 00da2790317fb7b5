"""Does an environment keep its promises? For its author, its tests and ``turngym check env``.

``check_turn_env`` asks for everything that ``TurnEnv`` and ``turngym.environments.core.spaces``
promise, ``check_fork`` for what snapshots promise. Both return a report; ``raise_on_failure`` makes
a test of it:

    def test_my_environment_keeps_its_promises():
        check_turn_env("mylab/Ledger-v0").raise_on_failure()
        check_fork("mylab/Ledger-v0").raise_on_failure()
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing

from turngym.check_report import Broken, CheckReport, NotRun
from turngym.environments.checks.probes import (
    AnyEnv,
    Episode,
    Step,
    as_expert,
    difference,
    ended_after,
    has_expert,
    listed_actions,
    plain_steps,
    play,
    randomly,
    replay,
    step,
)
from turngym.environments.checks.turn import TurnChecks
from turngym.environments.core.env import AsyncTurnEnv, clone, fork, restore, snapshot
from turngym.environments.core.limits import TurnLimit
from turngym.environments.gym.face import as_gym
from turngym.environments.gym.registration import make
from turngym.environments.gym.wrappers import limited
from turngym.faults import describe

Check = Callable[[], None]
Target = AnyEnv | AsyncTurnEnv | Callable[[], AnyEnv | AsyncTurnEnv] | str


def check_turn_env(
    target: Target,
    *,
    episodes: int = 2,
    tasks: int = 20,
    max_turns: int = 60,
    timeout_s: float = 600.0,
    processes: int = 2,
) -> CheckReport:
    """Check what every turn environment promises.

    Args:
        target: An id, an environment, or a function that makes one. Comparing with a fresh
            process needs an id, or an environment that ``gymnasium.make`` made.
        episodes: Seeds per kind of play (random, expert, silent).
        tasks: Tasks of each split to sample.
        max_turns: Turns after which an episode that is played for checking is left.
        timeout_s: Seconds that one check may take, where it runs in the main thread, and a fresh
            process in any.
        processes: Fresh processes, each with another hash seed.

    Returns:
        A report with one result per check, in order.
    """
    make_env, subject = _maker(target)
    checks = TurnChecks(make_env, episodes, tasks, max_turns, timeout_s, processes)
    return _report(subject, checks, timeout_s)


def check_fork(
    target: Target,
    *,
    episodes: int = 2,
    max_turns: int = 24,
    timeout_s: float = 600.0,
    depths: Sequence[int] | None = None,
) -> CheckReport:
    """Check that ``snapshot``, ``restore`` and ``fork`` give the same episode again, and no other.

    Args:
        target: As in ``check_turn_env``.
        episodes: Episodes that are forked, each at several depths.
        max_turns: Turns of each.
        timeout_s: Seconds that one check may take, where it runs in the main thread.
        depths: Turns after which an episode is forked; by default none, the first, half of them
            and all but the last.

    Returns:
        A report with one result per check, in order.
    """
    make_env, subject = _maker(target)
    checks = ForkChecks(make_env, episodes=episodes, max_turns=max_turns, depths=depths)
    return _report(f"snapshots of {subject}", checks, timeout_s)


def _report(subject: str, checks: TurnChecks | ForkChecks, timeout_s: float) -> CheckReport:
    report = CheckReport(subject)
    limited_check = ended_after(timeout_s)  # decorates
    if report.run("can be played", limited_check(checks.can_be_played)):
        for name, check, required in checks.all():
            report.run(name, limited_check(check), required=required)
    return report


def _maker(target: Target) -> tuple[Callable[[], AnyEnv], str]:
    """Return a function that makes one more of ``target``, and what to call it."""
    if isinstance(target, str):
        return partial(make, target), target
    if isinstance(target, gymnasium.Env):
        return partial(clone, target), str(target)
    if isinstance(target, AsyncTurnEnv):
        return lambda: as_gym(target.clone()), target.name
    return lambda: as_gym(target()), getattr(target, "__name__", repr(target))


# What snapshots promise.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """A place in an episode at which it is forked."""

    seed: int
    depth: int
    episode: Episode

    @property
    def rest(self) -> list[str]:
        """The actions from here to the end."""
        return self.episode.actions[self.depth :]

    def __str__(self) -> str:
        return f"{self.episode.name}, forked after turn {self.depth}"


@dataclass(slots=True)
class ForkChecks:
    """The checks of one environment's snapshots; ``can_be_played`` comes first.

    All but ``make``, which makes one more environment, is as in ``check_fork``. Every environment
    has a ``TurnLimit`` that ends the reference episode, so that the counts of limits are part of
    what must come back.
    """

    make: Callable[[], AnyEnv]
    episodes: int
    max_turns: int
    depths: Sequence[int] | None
    played: list[tuple[int, Episode]] = field(default_factory=list)

    def all(self) -> list[tuple[str, Check, bool]]:
        """Return name, check and whether it is required, in order."""
        return [
            ("declared kind", self._declared_kind, True),
            ("taking a snapshot changes nothing", self._taking_changes_nothing, True),
            ("restore in the same environment", self._restore_same, True),
            ("restore in a new environment", self._restore_new, True),
            ("children continue like the parent", self._children_continue, True),
            ("parent and siblings are unaffected", self._independence, True),
            ("reset after restore", self._reset_after_restore, True),
            ("snapshots can be pickled", self._pickling, self._declared() == "exact"),
        ]

    def can_be_played(self) -> None:
        """Play the reference episodes: half by chance or silence, half by the expert."""
        with self._env() as env:
            for seed in range(self.episodes):
                _, info = env.reset(seed=seed)
                name, choose = self._player(env, info, seed)
                label = f"{name} agent, seed {seed}"
                episode = play(env, choose, name=label, max_turns=self.max_turns, seed=seed)
                self.played.append((seed, episode))

    def _player(self, env: AnyEnv, info: Any, seed: int) -> tuple[str, Callable[..., str]]:
        if seed % 2 and has_expert(env):
            return "expert", as_expert(env)
        if listed_actions(info):
            return "random", randomly(np.random.default_rng(seed))
        return "silent", lambda _turn, _info: ""

    def _env(self) -> AbstractContextManager[AnyEnv]:
        return closing(limited(OrderEnforcing(self.make()), TurnLimit(self.max_turns)))

    def _branches(self) -> Iterator[_Branch]:
        """Yield the chosen places, or opening, first turn, middle, and the turn before the end."""
        for seed, episode in self.played:
            turns = len(episode.actions)
            chosen = (0, 1, turns // 2, turns - 1) if self.depths is None else self.depths
            for depth in sorted({min(depth, turns - 1) for depth in chosen}):
                yield _Branch(seed=seed, depth=depth, episode=episode)

    @contextmanager
    def _at(self, branch: _Branch) -> Iterator[AnyEnv]:
        """Give a new environment that was played up to the branch."""
        with self._env() as env:
            env.reset(seed=branch.seed)
            for action in branch.episode.actions[: branch.depth]:
                env.step(action)
            yield env

    def _declared(self) -> str:
        with self._env() as env:
            return str(env.get_wrapper_attr("snapshot_kind"))

    # The checks.

    def _declared_kind(self) -> None:
        """Take snapshots of the kind that the class declares."""
        with self._env() as env:
            if env.spec is not None and env.spec.nondeterministic:
                raise NotRun("it is registered as nondeterministic: its futures differ")
            env.reset(seed=0)
            kind = snapshot(env).kind
        if kind != self._declared():
            raise Broken(f"snapshot_kind is {self._declared()!r}, the snapshot is {kind!r}")

    def _taking_changes_nothing(self) -> None:
        """Go on after a snapshot as without one."""
        for branch in self._branches():
            with self._at(branch) as env:
                snapshot(env)
                _must_continue(env, branch, "after a snapshot")

    def _restore_same(self) -> None:
        """Come back to a snapshot after playing on, twice."""
        for branch in self._branches():
            with self._at(branch) as env:
                state = snapshot(env)
                _stray(env)
                for time in ("first", "second"):
                    restore(env, state)
                    _must_continue(env, branch, f"after the {time} restore")

    def _restore_new(self) -> None:
        """Bring a snapshot to a new environment, reset or not."""
        for branch in self._branches():
            with self._at(branch) as env:
                state = snapshot(env)
            for used in (False, True):
                with self._env() as other:
                    if used:
                        other.reset(seed=branch.seed + 1)
                    restore(other, state)
                    where = "in a used environment" if used else "in a new environment"
                    _must_continue(other, branch, f"restored {where}")

    def _children_continue(self) -> None:
        """Have children that go on like the parent."""
        for branch in self._branches():
            with self._at(branch) as env, _children(env) as children:
                for number, child in enumerate(children):
                    _must_continue(child, branch, f"in child {number}")
                _must_continue(env, branch, "in the parent")

    def _independence(self) -> None:
        """Have a parent and children that do not notice each other."""
        for branch in self._branches():
            with self._at(branch) as env, _children(env) as (first, second):
                _stray(first)
                first.reset(seed=branch.seed + 1)
                first.close()
                _must_continue(env, branch, "in the parent, after a child went astray")
                env.reset(seed=branch.seed + 2)
                _stray(env)
                _must_continue(second, branch, "in a child, after parent and sibling went astray")

    def _reset_after_restore(self) -> None:
        """Start afresh after a restore as in a new environment."""
        for branch in self._branches():
            with self._at(branch) as env:
                state = snapshot(env)
                restore(env, state)
                actions = branch.episode.actions
                again = replay(env, actions, name=str(branch), seed=branch.seed)
                _must_equal(branch, again.steps, "when reset after a restore")

    def _pickling(self) -> None:
        """Have snapshots that survive pickling."""
        for branch in self._branches():
            with self._at(branch) as env:
                state = snapshot(env)
            try:
                state = pickle.loads(pickle.dumps(state))
            except Exception as error:
                raise NotRun(f"a snapshot cannot be pickled: {error}") from error
            with self._env() as other:
                restore(other, state)
                _must_continue(other, branch, "restored from a pickle")


@contextmanager
def _children(env: AnyEnv) -> Iterator[list[AnyEnv]]:
    children = fork(env, 2)
    try:
        yield children
    finally:
        for child in children:
            child.close()


def _stray(env: AnyEnv) -> None:
    """Play something else: nonsense, then what is legal."""
    at = step(env, "no such thing")
    for choice in (-1, 0, -1):
        if at.is_over:
            return
        legal = listed_actions(at.info) or [""]
        at = step(env, legal[choice])


def _must_continue(env: AnyEnv, branch: _Branch, where: str) -> None:
    """Play the rest of the episode and compare it with the reference."""
    found: list[Step] = []
    for turn, action in enumerate(branch.rest, start=branch.depth + 1):
        try:
            found.append(step(env, action))
        except Exception as error:
            what = f"turn {turn} raised {describe(error)}"
            raise Broken(f"{branch}: {where}: {what}") from error
        if found[-1].is_over:
            break
    _must_equal(branch, found, where, first_turn=branch.depth + 1)


def _must_equal(branch: _Branch, found: list[Step], where: str, *, first_turn: int = 0) -> None:
    wanted = plain_steps(branch.episode.steps[first_turn:])
    differs = difference(wanted, plain_steps(found), first_turn=first_turn)
    if differs is not None:
        raise Broken(f"{branch}: differs {where} at {differs}")
