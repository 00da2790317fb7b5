"""Proof that tasks are sound: the expert solves each, and who does nothing solves none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import Any

import gymnasium

from turngym.check_report import Broken, CheckReport
from turngym.errors import ConfigError
from turngym.tasks.base import SPLITS, Task

AnyEnv = gymnasium.Env[Any, Any]

_MAX_EXPERT_TURNS = 500
_MAX_SILENT_TURNS = 100


def find_tasks(env: AnyEnv, limit: int | None) -> list[Task]:
    """Return the tasks of both splits.

    Args:
        env: Whose tasks.
        limit: Most of each split; None for all, of an endless set 20.
    """
    find = env.get_wrapper_attr("task")
    found: list[Task] = []
    for split in SPLITS:
        for index in range(_endless(env) if limit is None else limit):
            try:
                found.append(find(split, index))
            except ConfigError:
                break
    return found


def check_tasks(
    make: Callable[[], AnyEnv],
    tasks: Iterable[Task],
    *,
    subject: str,
    parallel: int = 1,
    on_task: Callable[[str], None] | None = None,
) -> CheckReport:
    """Play every task twice: with the expert, who must score 1, and idly, which must score 0.

    Idle is to submit at once where that can be done, else to say nothing until the episode ends.

    Args:
        make: Makes one environment.
        tasks: What to check.
        subject: What the report calls it.
        parallel: Tasks at once.
        on_task: Told the id of each task that was checked.
    """
    todo, report = list(tasks), CheckReport(subject)
    envs: SimpleQueue[AnyEnv] = SimpleQueue()
    made = [make() for _ in range(min(parallel, len(todo)))]
    for env in made:
        envs.put(env)

    def check(task: Task) -> CheckReport:
        env, own = envs.get(), CheckReport(task.id)
        try:
            own.run(task.id, lambda: _must_be_sound(env, task))
        finally:
            envs.put(env)
        return own

    try:
        with ThreadPoolExecutor(max(1, len(made))) as threads:
            waiting = [threads.submit(check, task) for task in todo]
            for done in as_completed(waiting):
                if on_task is not None:
                    on_task(done.result().subject)
        report.results = [one.result().results[0] for one in waiting]
    finally:
        for env in made:
            env.close()
    return report


def _must_be_sound(env: AnyEnv, task: Task) -> None:
    score = _idle_score(env, task)
    if score is None or score > 0:
        raise Broken(f"doing nothing scores {score!r}")
    env.reset(seed=0, options={"task": task})
    expert = env.get_wrapper_attr("expert_action")
    for turn in range(1, _MAX_EXPERT_TURNS + 1):
        action = str(expert())
        _, _, terminated, truncated, info = env.step(action)
        if "invalid_action" in info:
            raise Broken(f"turn {turn} of the expert was refused: {info['invalid_action']}")
        if terminated or truncated:
            break
    if info.get("score") != 1.0:
        reason = str(info.get("problem") or "").strip()
        detail = f" ({reason})" if reason else ""
        raise Broken(f"the expert scores {info.get('score')!r}{detail}")


def _idle_score(env: AnyEnv, task: Task) -> float | None:
    _, info = env.reset(seed=0, options={"task": task})
    can_submit = env.has_wrapper_attr("tools") and env.has_wrapper_attr("say")
    action = env.get_wrapper_attr("say")("submit") if can_submit else ""
    for _ in range(_MAX_SILENT_TURNS):
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return info.get("score")
    return 0.0


def _endless(env: AnyEnv) -> int:
    """Return how many tasks of a split to look at: all of a finite set."""
    try:
        env.get_wrapper_attr("task")(SPLITS[0], (1 << 30) - 1)
    except ConfigError:
        return 1 << 30
    return 20
