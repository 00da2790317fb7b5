"""The episodes that a gateway records: opened, found by name, ended, written."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from turngym.agents.remote.scrub import Scrubber
from turngym.errors import ConfigError
from turngym.records import append_trajectory
from turngym.rollouts.gateway.hosted import HostedEnv
from turngym.rollouts.gateway.recorder import EpisodeRecorder
from turngym.seeding import derive_seed
from turngym.types import StopReason, Trajectory

OpenEnv = Callable[[], HostedEnv]

FILE = "trajectories.jsonl"
_UNKNOWN_ENV, _UNKNOWN_TASK = "outside", "outside"


class Episode:
    """One episode that is being recorded."""

    def __init__(self, name: str, recorder: EpisodeRecorder, hosted: HostedEnv | None) -> None:
        self.name = name
        self.recorder = recorder
        self.hosted = hosted
        self.lock = asyncio.Lock()
        """Held while an answer is recorded or the environment steps: one thing after another."""
        self.is_over = False
        self.responses: dict[str, list[dict[str, Any]]] = {}
        """Chat messages up to and with each response, for requests that go on from one."""


class Episodes:
    """All episodes of one gateway.

    Args:
        out: Folder of the trajectories; None keeps them in memory only.
        scrubber: Takes secrets out of what is kept.
        open_env: Makes the environment of an episode; None when agents bring their own.
        seed: Root of the seeds of hosted environments.
    """

    def __init__(
        self,
        *,
        out: Path | None,
        scrubber: Scrubber,
        open_env: OpenEnv | None = None,
        seed: int = 0,
    ) -> None:
        self.finished: list[Trajectory] = []
        self.scrubber = scrubber
        self._out = out
        self._open_env = open_env
        self._seed = seed
        self._open: dict[str, Episode] = {}
        self._count = itertools.count()

    async def open(
        self,
        name: str | None = None,
        *,
        task_id: str | None = None,
        env_id: str | None = None,
        attempt: int = 0,
    ) -> Episode:
        """Open an episode and, where environments are hosted, reset one for it.

        Args:
            name: Of the episode; None for one that cannot be guessed.
            task_id: Which task; None for the next one.
            env_id: What the agent works on, when no environment is hosted.
            attempt: Place inside a group of attempts at one task.

        Raises:
            ConfigError: The name is taken, or the environment has no such task.
            EnvironmentFault: The environment broke.
        """
        name = name or secrets.token_urlsafe(9)
        if name in self._open:
            raise ConfigError(f"episode {name!r} is open already")
        number = next(self._count)
        hosted = None if self._open_env is None else self._open_env()
        task = task_id or _UNKNOWN_TASK
        env_seed = 0
        if hosted is not None:
            env_id = hosted.env_id
            try:
                chosen = hosted.task(number if task_id is None else task_id)
                task, env_seed = chosen.id, derive_seed(self._seed, chosen.id, "env")
                await hosted.reset(chosen, seed=env_seed)
            except BaseException:
                await hosted.close()
                raise
        recorder = EpisodeRecorder(
            env_id=env_id or _UNKNOWN_ENV,
            task_id=task,
            env_seed=env_seed,
            policy_seed=derive_seed(self._seed, task, "policy", attempt, name),
            attempt=attempt,
            scrubber=self.scrubber,
        )
        episode = self._open[name] = Episode(name, recorder, hosted)
        return episode

    def find(self, name: str) -> Episode:
        """Return an open episode.

        Raises:
            KeyError: There is none of that name.
        """
        return self._open[name]

    async def end(
        self,
        episode: Episode,
        stop_reason: StopReason,
        *,
        score: float | None = None,
        error: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """End an episode, close its environment and write its trajectory."""
        self._open.pop(episode.name, None)
        episode.is_over = True
        notes = {"episode": episode.name, **(metadata or {})}
        trajectory = episode.recorder.end(stop_reason, score=score, error=error, metadata=notes)
        self.finished.append(trajectory)
        if self._out is not None:
            append_trajectory(self._out / FILE, trajectory)
        if episode.hosted is not None:
            await episode.hosted.close()
        return trajectory

    async def end_all(self) -> None:
        """End what is open when the gateway stops; episodes without a call leave nothing."""
        for episode in list(self._open.values()):
            if episode.recorder.num_turns:
                notes = {"unfinished": "the gateway was stopped"}
                await self.end(episode, StopReason.TRUNCATED_TIME, metadata=notes)
            elif episode.hosted is not None:
                await episode.hosted.close()
        self._open.clear()
