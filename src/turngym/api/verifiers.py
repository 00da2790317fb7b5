"""An environment of ours as a task set of ``verifiers``, and the dialogue that plays it there.

``turngym tasks export ID OUT --format verifiers`` writes a package that says no more than this:

    Tasks, Play = verifiers_classes("text/maze")
    __all__ = ["Tasks", "Play"]

The environment runs beside the model, in a sandbox of ours where it needs one: what it shows is the
user's turn, and what the model says is the action. ``vf-validate`` has the expert play, and then no
one: doing nothing must not pay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from turngym.environments.gym.registration import make
from turngym.environments.packed import first_tasks
from turngym.errors import missing_package
from turngym.rollouts.gateway.hosted import HostedEnv
from turngym.rollouts.stop_words import STOP_WORDS
from turngym.seeding import derive_seed
from turngym.tasks.base import Split


def verifiers_classes(
    name: str, *, count: int = 100, split: Split = "train", **options: Any
) -> tuple[type, type]:
    """Return what a package for ``verifiers`` exports: a ``Taskset`` and an ``Env``.

    Args:
        name: Id, file or folder of the environment.
        count: How many tasks, where the command line does not say.
        split: Whose tasks, where the command line does not say.
        options: Of the environment.

    Raises:
        MissingExtraError: ``verifiers`` is not installed here.
    """
    try:
        import verifiers.v1 as vf
    except ImportError as error:
        raise missing_package("a task set of verifiers", "verifiers>=0.4") from error
    chosen_count, chosen_split = count, split

    class Config(vf.TasksetConfig):  # type: ignore[misc]  # verifiers is no dependency
        count: int = chosen_count
        split: str = chosen_split

    class Data(vf.TaskData):  # type: ignore[misc]
        task: str

    class OneTask(vf.Task[Data, vf.State, vf.TaskConfig]):  # type: ignore[misc]
        @property
        def key(self) -> str:
            return str(self.data.task)

        async def validate(self, runtime: Any) -> bool:
            """Have the expert play."""
            found = await asyncio.to_thread(_played, name, self.data.task, options, by_expert=True)
            return found[1] == 1

        @vf.reward  # type: ignore[untyped-decorator]
        async def turngym(self, trace: Any) -> Mapping[str, float]:
            """Return what doing nothing earns, for an episode that was not played."""
            if "turngym" in trace.info:
                return {}
            found = await asyncio.to_thread(_played, name, self.data.task, options, by_expert=False)
            return {"turngym": found[0]}

    class Tasks(vf.Taskset[OneTask, Config]):  # type: ignore[misc]
        def load(self) -> Iterator[OneTask]:
            with closing(make(name, **options)) as env:
                tasks = first_tasks(env, self.config.count, splits=(self.config.split,))
            for id in (task.id for task in tasks):
                yield OneTask(Data(name=id, id=id, task=id), self.config.task)

    class PlayConfig(vf.EnvConfig):  # type: ignore[misc]
        player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})  # else one with a shell

    class Play(vf.Env[PlayConfig]):  # type: ignore[misc]
        async def run(self, task: Any, agents: Any) -> None:
            hosted = HostedEnv(make(name, **options), env_id=name)
            try:
                await _talk(hosted, task, agents.player)
            finally:
                await hosted.close()

    return Tasks, Play


async def _talk(hosted: HostedEnv, task: Any, player: Any) -> None:
    """Play one episode; a fault of the environment is raised, and is no reward."""
    chosen = hosted.task(task.data.task)
    answer = await hosted.reset(chosen, seed=_seed(chosen.id))
    said, total = f"{hosted.instructions_in_text}\n\n{answer.text}", 0.0
    async with player.interaction(task) as interaction:
        while not (segment := await interaction.turn(said)).terminated:
            answer = await hosted.say(segment.last_reply)
            said, total = answer.text, total + answer.reward
            if hosted.is_over:
                break
        total += await hosted.end()
        if answer.stop_reason is not None:
            stop = answer.stop_reason
            interaction.trace.stop(STOP_WORDS[stop].verifiers or stop.value)
    trace = interaction.trace
    trace.info["turngym"] = {"task": chosen.id, "score": hosted.score()}
    trace.record_reward("turngym", total)


def _seed(task: str) -> int:
    return derive_seed(0, task, "env")


def _played(
    name: str, task: str, options: Mapping[str, Any], *, by_expert: bool
) -> tuple[float, float | None]:
    """Return return and score of an episode of the expert, or of one that ends as it begins.

    What is not played pays what its state is worth.
    """
    with closing(make(name, **options)) as env:
        env.reset(seed=_seed(task), options={"task": task})
        inner: Any = env.unwrapped  # an environment of ours
        total, is_over, info = 0.0, False, dict[str, Any]()
        while by_expert and not is_over:
            _, reward, terminated, truncated, info = env.step(inner.expert_action())
            total, is_over = total + float(reward), terminated or truncated
        if not is_over:
            end = inner.end_at_limit()
            total += (inner.score() or 0.0) if end is None else end.reward
        return total, info.get("score")
