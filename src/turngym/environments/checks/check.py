"""Does an environment keep its promises? For its author, its tests and ``turngym check env``.

``check_turn_env`` asks for everything that ``TurnEnv`` and ``turngym.environments.core.info``
promise, ``check_fork`` for what snapshots promise. Both return a report; ``raise_on_failure`` makes
a test of it:

    def test_my_environment_keeps_its_promises():
        check_turn_env("mylab/Ledger-v0").raise_on_failure()
        check_fork("mylab/Ledger-v0").raise_on_failure()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from turngym.check_report import CheckReport
from turngym.environments.checks.fork import ForkChecks
from turngym.environments.checks.turn import TurnChecks
from turngym.environments.core.env import AsyncTurnEnv
from turngym.environments.core.snapshot import clone
from turngym.environments.gym.face import as_gym
from turngym.environments.gym.registration import make

AnyEnv = gymnasium.Env[Any, Any]
Target = AnyEnv | AsyncTurnEnv | Callable[[], AnyEnv | AsyncTurnEnv] | str


def check_turn_env(
    target: Target,
    *,
    episodes: int = 2,
    tasks: int = 20,
    max_turns: int = 60,
    timeout_s: float = 120.0,
    processes: int = 2,
) -> CheckReport:
    """Check what every turn environment promises.

    Args:
        target: An id, an environment, or a function that makes one. Comparing with a fresh
            process needs an id, or an environment that ``gymnasium.make`` made.
        episodes: Seeds per kind of play (random, expert, silent).
        tasks: Tasks of each split to sample.
        max_turns: Turns after which an episode that is played for checking is left.
        timeout_s: Seconds that a fresh process may take.
        processes: Fresh processes, each with another hash seed.

    Returns:
        A report with one result per check, in order.
    """
    make_env, subject = _maker(target)
    checks = TurnChecks(
        make_env,
        episodes=episodes,
        tasks=tasks,
        max_turns=max_turns,
        timeout_s=timeout_s,
        processes=processes,
    )
    report = CheckReport(subject)
    if report.run("can be played", checks.can_be_played):
        for name, check, required in checks.all():
            report.run(name, check, required=required)
    return report


def check_fork(
    target: Target, *, episodes: int = 2, max_turns: int = 24, depths: Sequence[int] | None = None
) -> CheckReport:
    """Check that ``snapshot``, ``restore`` and ``fork`` give the same episode again, and no other.

    Args:
        target: As in ``check_turn_env``.
        episodes: Episodes that are forked, each at several depths.
        max_turns: Turns of each.
        depths: Turns after which an episode is forked; by default none, the first, half of them
            and all but the last.

    Returns:
        A report with one result per check, in order.
    """
    make_env, subject = _maker(target)
    checks = ForkChecks(make_env, episodes=episodes, max_turns=max_turns, depths=depths)
    report = CheckReport(f"snapshots of {subject}")
    if report.run("can be played", checks.can_be_played):
        for name, check, required in checks.all():
            report.run(name, check, required=required)
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
