"""The single checks of ``check_fork``. Each raises ``Broken`` with promise and place."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing

from turngym.check_report import Broken, NotRun
from turngym.environments.checks.probes import (
    Episode,
    Step,
    as_expert,
    difference,
    plain_steps,
    play,
    randomly,
    replaying,
    step,
)
from turngym.environments.core.env import Snapshot
from turngym.environments.core.limits import TurnLimit
from turngym.environments.core.snapshot import fork, restore, snapshot
from turngym.environments.gym.wrappers import limited
from turngym.errors import ConfigError

AnyEnv = gymnasium.Env[Any, Any]
Check = Callable[[], None]


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


class ForkChecks:
    """The checks of one environment's snapshots; ``can_be_played`` comes first.

    Every environment has a ``TurnLimit`` that ends the reference episode, so that the counts of
    limits are part of what must come back.

    Args:
        make: Makes one more environment of the kind.
        episodes: Episodes that are forked.
        max_turns: Turns of each.
        depths: Turns after which an episode is forked; None for four places.
    """

    def __init__(
        self,
        make: Callable[[], AnyEnv],
        *,
        episodes: int,
        max_turns: int,
        depths: Sequence[int] | None = None,
    ) -> None:
        self._make = make
        self._num_seeds = episodes
        self._max_turns = max_turns
        self._depths = depths
        self._played: list[tuple[int, Episode]] = []

    def all(self) -> list[tuple[str, Check, bool]]:
        """Return name, check and whether it is required, in order."""
        return [
            ("declared kind", self.declared_kind, True),
            ("taking a snapshot changes nothing", self.taking_changes_nothing, True),
            ("restore in the same environment", self.restore_same, True),
            ("restore in a new environment", self.restore_new, True),
            ("children continue like the parent", self.children_continue, True),
            ("parent and siblings are unaffected", self.independence, True),
            ("reset after restore", self.reset_after_restore, True),
            ("snapshots can be pickled", self.pickling, self._declared() == "exact"),
        ]

    def can_be_played(self) -> None:
        """Play the reference episodes: half by chance or silence, half by the expert."""
        with self._env() as env:
            for seed in range(self._num_seeds):
                _, info = env.reset(seed=seed)
                name, choose = self._player(env, info, seed)
                label = f"{name} agent, seed {seed}"
                episode = play(env, choose, name=label, max_turns=self._max_turns, seed=seed)
                self._played.append((seed, episode))

    def _player(self, env: AnyEnv, info: Any, seed: int) -> tuple[str, Callable[..., str]]:
        if seed % 2 and env.has_wrapper_attr("expert_action"):
            try:
                env.get_wrapper_attr("expert_action")()
            except ConfigError:  # it has none
                pass
            else:
                return "expert", as_expert(env)
        if info.get("legal_actions"):
            return "random", randomly(np.random.default_rng(seed))
        return "silent", lambda _turn, _info: ""

    @contextmanager
    def _env(self) -> Iterator[AnyEnv]:
        env = limited(OrderEnforcing(self._make()), TurnLimit(self._max_turns))
        try:
            yield env
        finally:
            env.close()

    def _branches(self) -> Iterator[_Branch]:
        """Yield the chosen places, or opening, first turn, middle, and the turn before the end."""
        for seed, episode in self._played:
            turns = len(episode.actions)
            chosen = (0, 1, turns // 2, turns - 1) if self._depths is None else self._depths
            for depth in sorted({min(depth, turns - 1) for depth in chosen}):
                yield _Branch(seed=seed, depth=depth, episode=episode)

    @contextmanager
    def _at(self, branch: _Branch) -> Iterator[AnyEnv]:
        """Give a new environment that was played up to the branch."""
        with self._env() as env:
            _play_to(env, branch)
            yield env

    def _declared(self) -> str:
        with self._env() as env:
            return str(env.get_wrapper_attr("snapshot_kind"))

    # The checks.

    def declared_kind(self) -> None:
        """Take snapshots of the kind that the class declares."""
        with self._env() as env:
            if env.spec is not None and env.spec.nondeterministic:
                raise NotRun("it is registered as nondeterministic: its futures differ")
            env.reset(seed=0)
            kind = snapshot(env).kind
        if kind != self._declared():
            raise Broken(f"snapshot_kind is {self._declared()!r}, the snapshot is {kind!r}")

    def taking_changes_nothing(self) -> None:
        """Go on after a snapshot as without one."""
        for branch in self._branches():
            with self._at(branch) as env:
                snapshot(env)
                _must_continue(env, branch, "after a snapshot")

    def restore_same(self) -> None:
        """Come back to a snapshot after playing on, twice."""
        for branch in self._branches():
            with self._at(branch) as env:
                state = snapshot(env)
                _stray(env)
                for time in ("first", "second"):
                    restore(env, state)
                    _must_continue(env, branch, f"after the {time} restore")

    def restore_new(self) -> None:
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

    def children_continue(self) -> None:
        """Have children that go on like the parent."""
        for branch in self._branches():
            with self._at(branch) as env, _children(env) as children:
                for number, child in enumerate(children):
                    _must_continue(child, branch, f"in child {number}")
                _must_continue(env, branch, "in the parent")

    def independence(self) -> None:
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

    def reset_after_restore(self) -> None:
        """Start afresh after a restore as in a new environment."""
        for branch in self._branches():
            with self._at(branch) as env:
                state = snapshot(env)
                restore(env, state)
                again = play(
                    env,
                    replaying(branch.episode.actions),
                    name=str(branch),
                    max_turns=len(branch.episode.actions),
                    seed=branch.seed,
                )
                _must_equal(branch, again.steps, "when reset after a restore")

    def pickling(self) -> None:
        """Have snapshots that survive pickling."""
        for branch in self._branches():
            with self._at(branch) as env:
                state = snapshot(env)
            try:
                state = _pickled(state)
            except Exception as error:
                raise NotRun(f"a snapshot cannot be pickled: {error}") from error
            with self._env() as other:
                restore(other, state)
                _must_continue(other, branch, "restored from a pickle")


def _pickled(state: Snapshot) -> Snapshot:
    again: Snapshot = pickle.loads(pickle.dumps(state))
    return again


@contextmanager
def _children(env: AnyEnv) -> Iterator[list[AnyEnv]]:
    children = fork(env, 2)
    try:
        yield children
    finally:
        for child in children:
            child.close()


def _play_to(env: AnyEnv, branch: _Branch) -> None:
    env.reset(seed=branch.seed)
    for action in branch.episode.actions[: branch.depth]:
        env.step(action)


def _stray(env: AnyEnv) -> None:
    """Play something else: nonsense, then what is legal."""
    at = step(env, "no such thing")
    for choice in (-1, 0, -1):
        if at.is_over:
            return
        legal = at.info.get("legal_actions") or [""]
        at = step(env, legal[choice])


def _must_continue(env: AnyEnv, branch: _Branch, where: str) -> None:
    """Play the rest of the episode and compare it with the reference."""
    found: list[Step] = []
    for turn, action in enumerate(branch.rest, start=branch.depth + 1):
        try:
            found.append(step(env, action))
        except Exception as error:
            what = f"turn {turn} raised {type(error).__name__}: {error}"
            raise Broken(f"{branch}: {where}: {what}") from error
        if found[-1].is_over:
            break
    _must_equal(branch, found, where, first_turn=branch.depth + 1)


def _must_equal(branch: _Branch, found: list[Step], where: str, *, first_turn: int = 0) -> None:
    wanted = plain_steps(branch.episode.steps[first_turn:])
    differs = difference(wanted, plain_steps(found), first_turn=first_turn)
    if differs is not None:
        raise Broken(f"{branch}: differs {where} at {differs}")
