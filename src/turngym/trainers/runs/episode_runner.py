"""Where episodes come from: which tasks serve which purpose, and how they are played.

The train split is cut in three, so that no number is measured on what was trained on:

    0 .. V-1            validation: when to stop
    V .. V+E-1          the expert's episodes
    V+E ..              reinforcement, fresh tasks at every step

The test split is played before and after training and decides nothing. Of a mix of
environments each gives its share of all of them.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gymnasium import spaces

from turngym.agents.policy import Policy
from turngym.environments.core.env import TurnEnv
from turngym.environments.core.spaces import ShownText
from turngym.environments.gym.hosts import Isolation
from turngym.environments.gym.ray_workers import RayWorkers
from turngym.environments.gym.registration import (
    done_with,
    make,
    make_expert_match,
    named,
    players_of,
)
from turngym.errors import ConfigError, TrainingError
from turngym.pictures import PictureFolder
from turngym.registry import find
from turngym.rollouts.evaluation.evaluate import evaluate
from turngym.rollouts.players import SELF
from turngym.rollouts.replay import FloatArray, TurnValues, turn_values
from turngym.rollouts.scheduler.config import FailureConfig
from turngym.rollouts.scheduler.pool import calls_at_once
from turngym.seeding import derive_seed
from turngym.tasks.base import Split, Task
from turngym.tracing import traced
from turngym.trainers.selection.policy import TaskPool
from turngym.trainers.settings.group import MonteCarlo
from turngym.trainers.settings.train import EnvPart, EnvShare, EvaluationConfig, TrainConfig
from turngym.types import StopReason, Trajectory

logger = logging.getLogger(__name__)


class Playground:
    """One environment of a run: makes it, and names its tasks."""

    def __init__(self, part: EnvPart, *, reserved: int, held_out: int) -> None:
        self.env_id = find(part.id).id
        make_one = make_expert_match if part.expert_match else make
        self.make_env = partial(make_one, self.env_id, **part.options)
        """Returns a new environment. A process that is sent it imports no more than that needs."""
        self._reserved, self._held_out = reserved, held_out
        with named(part.id, part.options):
            self._catalogue = self.make_env()
        self._task = self._catalogue.get_wrapper_attr("task")
        counted = self._catalogue.has_wrapper_attr("count")
        count = self._catalogue.get_wrapper_attr("count") if counted else lambda split: None
        for split, taken, setting in (
            ("train", reserved + 1, "evaluation.validation_tasks"),
            ("train", part.num_train_tasks or 0, "env.num_train_tasks"),
            ("test", held_out, "evaluation.held_out_tasks"),
        ):
            if (size := count(split)) is not None and size < taken:
                raise ConfigError(
                    f"environment {self.env_id!r} has {size} tasks of split {split!r}, where "
                    f"{taken} are needed: add tasks, or lower {setting}"
                )
        self._size = part.num_train_tasks or count("train")

    @property
    def shows_pictures(self) -> bool:
        """Whether observations have pictures."""
        space = self._catalogue.observation_space
        has_image = isinstance(space, spaces.Dict) and "image" in space.spaces
        return has_image or isinstance(space, ShownText)

    @property
    def speaks(self) -> bool:
        """Whether it says itself who speaks, as a program that is played does."""
        return bool(self._catalogue.get_wrapper_attr("speaks"))

    @property
    def players(self) -> tuple[str, ...]:
        """Who plays, in a game of several; else empty."""
        return players_of(self._catalogue)

    def close(self) -> None:
        """Release the environment that names the tasks. Safe to call twice."""
        done_with(self._catalogue)

    def task(self, split: Split, index: int) -> Task:
        """Return a task of ``split``; a finite train set repeats, without the reserved ones."""
        size, reserved = self._size, self._reserved
        if split == "train" and size is not None and index >= reserved:
            index = reserved + (index - reserved) % (size - reserved)
        task: Task = self._task(split, index)
        return replace(task, env_id=self.env_id)

    def find(self, task_id: str) -> Task:
        """Return the task that an id names."""
        found: Task = self._catalogue.get_wrapper_attr("find_task")(task_id)
        return replace(found, env_id=self.env_id)

    def introduction(self, split: Split = "train") -> Mapping[str, Any]:
        """Return the ``info`` with which the environment introduces itself in a first task."""
        _, info = self._catalogue.reset(seed=0, options={"task": self._task(split, 0)})
        return info

    def check_splits(self) -> None:
        """Begin a task of each split, where that computes and starts nothing.

        Raises:
            ConfigError: A split has no task.
        """
        env = self._catalogue.unwrapped
        if isinstance(env, TurnEnv) and not env.blocks:
            for split in ("train", "test") if self._held_out else ("train",):
                try:
                    self.introduction(split)
                except ConfigError:
                    raise
                except Exception as error:  # noqa: BLE001 - a fault, counted where episodes are played
                    logger.debug("%s: %s", self.env_id, error)


def _playground(part: EnvPart, config: TrainConfig) -> Playground:
    held_out = -(-config.evaluation.held_out_tasks // len(config.env.parts))
    return Playground(part, reserved=config.reserved_tasks, held_out=held_out)


def check_environments(config: TrainConfig) -> None:
    """Make each environment of a run once, so that what is wrong is refused before anything starts.

    Raises:
        As ``EpisodeRunner``.
    """
    several: list[str] = []
    for part in config.env.parts:
        ground = _playground(part, config)
        several += [part.id] if ground.players else []
        ground.check_splits()
        ground.close()
    for block, default in (("rollout", SELF), ("evaluation", EvaluationConfig().opponent)):
        named = getattr(config, block).opponent
        if named != default and not several:
            raise ConfigError(
                f"{block}.opponent={named!r}: env.id={config.env.name!r} has one player"
            )
    if several and isinstance(config.algo.advantage, MonteCarlo):
        raise ConfigError(
            f"env.id={several[0]!r} has several players, and algo {config.algo.name!r} plays on "
            "from every turn of one: wanted another algo"
        )
    if several and config.rollout.stale == "train_partial":
        raise ConfigError(
            f"env.id={several[0]!r} has several players, and rollout.stale='train_partial' would "
            "train on moves before the others have answered them: wanted 'mask_stale'"
        )


class Mix:
    """Deals places of reinforcement out to environments by weight, the same at every call.

    Args:
        config: The run's settings.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._shares = config.env.mix or (EnvShare(id=config.env.id),)
        self._per_step = config.rollout.schedule().groups_started
        self._due = [0.0] * len(self._shares)
        self._count = [0] * len(self._shares)
        self._dealt: list[tuple[int, int]] = []
        self.firsts: Sequence[int] = ()
        """First place of each update so far; empty where places are begun ahead of updates."""

    def at(self, place: int) -> tuple[int, int]:
        """Return the environment of ``place``, and how many places it had before."""
        while (number := len(self._dealt)) <= place:
            step = (
                bisect_right(self.firsts, number) - 1 if self.firsts else number // self._per_step
            )
            # After the last step, in a run that is made longer, all of them are in again.
            active = [i for i, share in enumerate(self._shares) if share.is_in(step)]
            active = active or list(range(len(self._shares)))
            total = sum(self._shares[i].weight for i in active)
            for i in active:
                self._due[i] += self._shares[i].weight / total
            chosen = max(active, key=lambda i: self._due[i])
            self._due[chosen] -= 1
            self._dealt.append((chosen, self._count[chosen]))
            self._count[chosen] += 1
        return self._dealt[place]


class EpisodeRunner:
    """Plays the episodes of one run. Every call is a function of its arguments.

    Args:
        config: The run's settings.
        folder: Of the run, for pictures that the model sees.

    Raises:
        UnknownNameError: There is no such environment.
        MissingExtraError: It needs something that is not installed.
        ConfigError: There are too few tasks, or no nodes for the environments.
    """

    def __init__(self, config: TrainConfig, folder: Path | None = None) -> None:
        self._config = config
        self.pictures = PictureFolder(folder) if config.model.images else None
        """Where pictures are kept; None for a model that sees none."""
        self._grounds: list[Playground] = []
        self.place: Isolation | RayWorkers = "inline"
        """Where environments run."""
        try:
            for part in config.env.parts:
                self._grounds.append(_playground(part, config))
            kind, workers = config.rollout.isolation, config.rollout.workers.model_dump()
            self.place = RayWorkers(**workers) if kind == "ray" else kind
        except BaseException:
            self.close()
            raise
        self._is_short = False  # of context, and said so
        self.mix = Mix(config)
        self.env_id = self._grounds[0].env_id
        self.make_env = {ground.env_id: ground.make_env for ground in self._grounds}
        """By environment, what makes a new one."""

    @cached_property
    def introductions(self) -> Mapping[str, Mapping[str, Any]]:
        """By environment, the ``info`` with which it introduces itself."""
        return {ground.env_id: ground.introduction() for ground in self._grounds}

    def close(self) -> None:
        """Release the environments that name the tasks. Safe to call twice."""
        for ground in self._grounds:
            ground.close()
        if isinstance(self.place, RayWorkers):
            self.place.close()

    @property
    def unseen(self) -> list[str]:
        """The environments whose pictures the model is not shown, since it reads text alone."""
        if self.pictures is not None:
            return []
        return [ground.env_id for ground in self._grounds if ground.shows_pictures]

    @property
    def selves(self) -> int:
        """Players of one episode that the policy is at once, each with a session of its own."""
        names = f"{self._config.rollout.opponent},{self._config.evaluation.opponent}".split(",")
        is_self = SELF in map(str.strip, names)
        return max(max(1, len(g.players)) for g in self._grounds) if is_self else 1

    @property
    def pool(self) -> TaskPool:
        """The tasks of reinforcement."""
        part, reserved = self._config.env.parts[0], self._config.reserved_tasks
        size = part.num_train_tasks if len(self._grounds) == 1 else None
        experts = -(-self._config.warm_start.episodes // len(self._grounds))
        return TaskPool(
            task=partial(self._train_task, reserved + experts),
            size=None if size is None else size - reserved,
        )

    @property
    def measured(self) -> frozenset[str]:
        """Ids of the tasks that decide when to stop, and of those that say how good it got."""
        counts = self._config.evaluation
        kept = self._tasks("train", counts.validation_tasks)
        kept += self._tasks("test", counts.held_out_tasks)
        return frozenset(task.id for task in kept)

    @property
    def speaking(self) -> frozenset[str]:
        """The environments that say themselves who speaks, system messages included."""
        return frozenset(ground.env_id for ground in self._grounds if ground.speaks)

    async def expert_episodes(self, policy: Policy, *, count: int) -> list[Trajectory]:
        """Play ``count`` tasks once each, for imitation.

        Raises:
            TooManyFaults: More of them broke than ``rollout.failures.fraction``.
        """
        limit = self._config.rollout.failures.fraction
        failures = FailureConfig(window=count, fraction=limit)
        tasks = self._tasks("train", count, first=self._config.reserved_tasks)
        seed = self._seed("expert")
        return await self._play("the expert", policy, tasks, seed=seed, failures=failures)

    async def validation_episodes(self, policy: Policy, *purpose: str | int) -> list[Trajectory]:
        """Play the validation tasks once each; ``purpose`` seeds the sampling."""
        tasks = self._tasks("train", self._config.evaluation.validation_tasks)
        seed = self._seed("validation", *purpose)
        return await self._play("validation", policy, tasks, seed=seed)

    @traced("held-out tasks")
    async def held_out_episodes(self, policy: Policy) -> list[Trajectory]:
        """Play the held-out tasks once each, sampled in the same way at every call."""
        tasks = self._tasks("test", self._config.evaluation.held_out_tasks)
        return await self._play("held-out tasks", policy, tasks, seed=self._seed("held_out"))

    async def play_on(
        self,
        policy: Policy,
        trajectories: Sequence[Trajectory],
        attempts: int,
        seed: int,
        *,
        concurrency: int,
    ) -> TurnValues:
        """Return ``turn_values`` of episodes of the run.

        Args:
            policy: Who plays them to their end.
            trajectories: The episodes.
            attempts: Continuations of each state, an even number, 2 or more.
            seed: Root of their place in the seed tree.
            concurrency: Episodes at a time.

        Raises:
            EpisodeError: A continuation broke.
        """
        rollout = self._config.rollout
        calls = calls_at_once(rollout.calls_at_once)
        values: dict[int, FloatArray] = {}
        episodes = 0
        for ground in self._grounds:
            own = [n for n, t in enumerate(trajectories) if t.env_id == ground.env_id]
            found = await turn_values(
                ground.make_env,
                policy,
                [trajectories[n] for n in own],
                [ground.find(trajectories[n].task_id) for n in own],
                attempts=attempts,
                seed=seed,
                concurrency=concurrency,
                isolation=self.place,
                calls=calls,
                deadlines=rollout.deadlines,
                timeout_s=rollout.timeout_s,
                budget=rollout.budget,
            )
            values |= dict(zip(own, found.values, strict=True))
            episodes += found.episodes
        ordered = tuple(values[n] for n in range(len(trajectories)))
        return TurnValues(values=ordered, episodes=episodes)

    async def _play(
        self,
        what: str,
        policy: Policy,
        tasks: Sequence[Task],
        *,
        seed: int,
        failures: FailureConfig | None = None,
    ) -> list[Trajectory]:
        rollout = self._config.rollout
        played = await evaluate(
            self.make_env,
            policy,
            tasks,
            env_id=self.env_id,
            seed=seed,
            concurrency=rollout.concurrency,
            timeout_s=rollout.timeout_s,
            failures=failures,
            deadlines=rollout.deadlines,
            isolation=self.place,
            calls=rollout.calls_at_once,
            keep_picture=self.pictures,
        )
        if broken := [one.error for one in played if one.error is not None]:
            first = broken[0].partition("\n")[0]
            logger.warning(
                "%s: %d of %d episodes broke and are not counted; the first: %s",
                *(what, len(broken), len(played), first),
            )
        self._say_what_does_not_fit(what, played)
        return played

    def _say_what_does_not_fit(self, what: str, played: Sequence[Trajectory]) -> None:
        """Warn where most conversations outgrew the context.

        Raises:
            TrainingError: None has room for a turn.
        """
        context = self._config.model.context
        cut = [one for one in played if one.stop_reason is StopReason.TRUNCATED_CONTEXT]
        if cut and len(cut) == len(played) and not any(one.turns for one in cut):
            raise TrainingError(
                f"{what}: no conversation has room for an answer in model.context={context} "
                "tokens; set it to more"
            )
        if 2 * len(cut) > len(played) and not self._is_short:
            self._is_short = True
            logger.warning(
                "%s: %d of %d episodes were cut at model.context=%d tokens; set it to more, or "
                "agent.history to a shorter one",
                *(what, len(cut), len(played), context),
            )

    def _tasks(self, split: Split, count: int, *, first: int = 0) -> list[Task]:
        """Return tasks of all environments in turn, from number ``first`` of each."""
        grounds = self._grounds
        places = (divmod(number, len(grounds)) for number in range(count))
        return [grounds[which].task(split, first + place) for place, which in places]

    def _train_task(self, first: int, place: int) -> Task:
        which, number = self.mix.at(place) if len(self._grounds) > 1 else (0, place)
        return self._grounds[which].task("train", first + number)

    def _seed(self, *path: str | int) -> int:
        return derive_seed(self._config.run.seed, *path)
