"""Roll out, evaluate, train and compare in one call each, from a script or a notebook."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from turngym import registry
from turngym.api.agents import CHANCE, against, as_policy, need_train_extra
from turngym.config import load_config
from turngym.coroutines import apart, stoppable
from turngym.environments.gym.registration import done_with, make, players_of
from turngym.errors import ConfigError, TrainingError, require_known
from turngym.rollouts.evaluation import evaluate as evaluation
from turngym.rollouts.evaluation.statistics import Evaluation, summarize
from turngym.tasks.base import SPLITS, Split, Task
from turngym.types import Trajectory

if TYPE_CHECKING:
    from turngym.reports.comparison import Ranking
    from turngym.trainers.runs.progress import Progress, TrainResult

logger = logging.getLogger(__name__)

T = TypeVar("T")
Source = str | Path | Mapping[str, Any]
"""A recipe's name, a TOML file, ``key.path=value``, or a mapping of settings."""


def rollout(
    env: str,
    agent: object,
    *,
    episodes: int = 1,
    attempts: int = 1,
    split: Split = "test",
    seed: int = 0,
    concurrency: int = 16,
    timeout_s: float | None = None,
    opponent: object = CHANCE,
    **options: Any,
) -> list[Trajectory]:
    """Play tasks 0 to ``episodes - 1`` of an environment and return the trajectories.

    Args:
        env: An id, a file or ``module:Class``, as for ``make``.
        agent: ``"expert"``, ``"random"``, ``"openai:MODEL"``, ``"run:FOLDER"`` ...; a function
            of ``(observation, info)``; a class with such a method ``act``; or a ``Policy``.
        episodes: Tasks to play; all there are, if fewer.
        attempts: Episodes of each task. They share the environment's seed.
        split: ``"test"`` (held out) or ``"train"``.
        seed: Root of all randomness.
        concurrency: Episodes at a time; no result depends on it.
        timeout_s: Seconds after which an episode is truncated.
        opponent: Who the others are, where several play: as ``agent``, or ``"self"`` for the agent
            as every player. Which player the agent is depends on the task.
        **options: Arguments of the environment.

    Returns:
        Attempts of one task together. An episode that broke has an ``error_*`` stop reason, and
        the first error is logged as a warning.

    Raises:
        ConfigError: There is no such environment, agent, split or option, or no task is asked for.
    """
    if attempts < 1:
        raise ConfigError(f"attempts must be at least 1, got {attempts}")
    make_env = partial(make, env, **options)
    if opponent != CHANCE:
        made = make_env()
        done_with(made)
        if not players_of(made):
            raise ConfigError(f"opponent={opponent!r}: there is one player in {env}")
    playing = evaluation.evaluate(
        make_env,
        against(as_policy(agent), opponent),
        first_tasks(make_env, split, episodes),
        env_id=registry.find(env).short_name,
        seed=seed,
        concurrency=concurrency,
        attempts=attempts,
        timeout_s=timeout_s,
    )
    found = apart(partial(asyncio.run, _stoppable(playing)))
    if broken := [one.error for one in found if one.error is not None]:
        first = broken[0].partition("\n")[0]
        logger.warning("%s: %d of %d episodes broke: %s", env, len(broken), len(found), first)
    return found


def evaluate(
    env: str,
    agent: object,
    *,
    episodes: int = 100,
    attempts: int = 1,
    split: Split = "test",
    seed: int = 0,
    concurrency: int = 16,
    timeout_s: float | None = None,
    opponent: object = CHANCE,
    **options: Any,
) -> Evaluation:
    """Play as ``rollout`` does and return success, return and turns with 95 % intervals.

    Args:
        env: An id, a file or ``module:Class``.
        agent: As for ``rollout``, like all that follows.
        episodes: Tasks to play.
        attempts: Episodes of each.
        split: Where tasks are from.
        seed: Root of all randomness.
        concurrency: Episodes at a time.
        timeout_s: Seconds after which an episode is truncated.
        opponent: Who the others are, where several play.
        **options: Arguments of the environment.

    Returns:
        An ``Evaluation``; faults are counted apart and are no failures of the agent.
    """
    found = rollout(
        env, agent, episodes=episodes, attempts=attempts, split=split, seed=seed,
        concurrency=concurrency, timeout_s=timeout_s, opponent=opponent, **options,
    )  # fmt: skip
    return summarize(found)


def train(*sources: Source, out: str | Path, progress: Progress | None = None) -> TrainResult:
    """Train a policy as ``turngym train`` does, or resume the run that is in ``out``.

    Args:
        *sources: Recipes, TOML files, ``key.path=value`` and mappings; later ones count.
        out: Folder of the run.
        progress: Watches.

    Raises:
        MissingExtraError: The extra ``train`` is not installed.
        ConfigError: The settings do not fit, or the folder belongs to another run.
        TrainingError: The run cannot go on.
    """
    need_train_extra("turngym.train")
    from turngym.trainers.loop import train as run_training
    from turngym.trainers.settings.train import TrainConfig

    config = load_config(TrainConfig, sources)
    return apart(partial(run_training, config, Path(out).expanduser(), progress=progress))


def compare(
    env: str,
    algos: Sequence[str] | Mapping[str, str],
    *sources: Source,
    budget_episodes: int,
    out: str | Path,
    seeds: int | Sequence[int] = 5,
    jobs: int = 1,
    reference: str | None = None,
) -> Ranking:
    """Train algorithms from equal starts at equal episodes, in child processes, and rank them.

    Args:
        env: The environment.
        algos: Presets or TOML files, one text with commas as well; a mapping gives them names.
        *sources: A recipe or TOML file, ``key.path=value`` and mappings; without a file, the
            shipped settings.
        budget_episodes: Training episodes of each run.
        out: Folder of the comparison; what is done there already is not repeated.
        seeds: Runs of each, or their seeds: those that chose a setting should not report it.
        jobs: Runs at a time.
        reference: Whom the others are measured against; grpo, or else the first.

    Raises:
        MissingExtraError: The extra ``train`` is not installed.
        ConfigError: A setting is wrong.
        TrainingError: A run failed.
    """
    need_train_extra("turngym.compare")
    from turngym.api.jobs import run_heats
    from turngym.reports.comparison import rank
    from turngym.reports.runs import Protocol, read_runs
    from turngym.trainers.runs.comparison import ComparedAlgo, plan

    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    algos = algos.split(",") if isinstance(algos, str) else algos
    stems = [Path(algo).stem for algo in algos]
    named = algos.items() if isinstance(algos, Mapping) else zip(stems, algos, strict=True)
    compared = [ComparedAlgo(name=name, algo=algo) for name, algo in named]
    if reference is not None:
        require_known("reference", reference, [one.name for one in compared])
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    out = Path(out).expanduser()
    heats = plan(
        [env], compared, sources=sources, seeds=seeds, budget_episodes=budget_episodes, out=out
    )
    protocol = Protocol.of(compared, seeds)
    protocol.write(out, budget_episodes)
    failures = apart(partial(run_heats, heats, jobs=jobs, advance=lambda done, note: None))
    if failures:
        raise TrainingError("; ".join(f"{label}: {reason}" for label, reason in failures.items()))
    done, notes = read_runs(run.folder for heat in heats for run in heat.runs)
    for note in notes:
        logger.warning("%s", note)
    if not done:
        raise TrainingError(f"{out}: no run has a success; its episodes broke, see its train.log")
    return rank(done, reference=reference, protocol=protocol)[0]


def first_tasks(make_env: Callable[[], Any], split: Split, count: int) -> list[Task]:
    """Return the first ``count`` tasks of ``split``, or all there are.

    Raises:
        ConfigError: There is none, or no such split, or ``count`` is less than 1.
    """
    require_known("split", split, SPLITS)
    if count < 1:
        raise ConfigError(f"episodes must be at least 1, got {count}")
    found: list[Task] = []
    env = make_env()
    try:
        task = env.get_wrapper_attr("task")
        for index in range(count):
            try:
                found.append(task(split, index))
            except ConfigError:
                if not found:
                    raise
                break
    finally:
        done_with(env)
    return found


async def _stoppable(work: Coroutine[Any, Any, T]) -> T:
    stoppable()
    return await work
