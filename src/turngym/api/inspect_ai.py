"""An environment of ours as a task of Inspect (``inspect_ai``).

    from inspect_ai import task
    from turngym.api.inspect_ai import inspect_task

    @task
    def maze():
        return inspect_task("text/maze", count=100)

The environment runs beside the model, in a sandbox of ours where it needs one: what it shows is the
user's turn, and what the model says is the action. The score is the task's own. An episode that
broke is an error of its sample, and no score of 0.
"""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

from turngym.environments.gym.registration import make
from turngym.environments.packed import first_tasks
from turngym.errors import EnvironmentFault, missing_package
from turngym.rollouts.gateway.hosted import HostedEnv
from turngym.rollouts.stop_words import STOP_WORDS
from turngym.seeding import derive_seed
from turngym.tasks.base import Split

_KEY = "turngym"
_LONGEST_JUDGING_S = 300.0


def inspect_task(name: str, *, count: int = 100, split: Split = "test", **options: Any) -> Any:
    """Return a ``Task`` with a sample for each task, a solver that plays it and its scorer.

    Args:
        name: Id, file, folder or pack of tasks.
        count: How many tasks; fewer where there are fewer.
        split: Whose tasks.
        options: Of the environment.

    Raises:
        MissingExtraError: ``inspect_ai`` is not installed here.
        ConfigError: There is no such environment or option.
    """
    try:
        from inspect_ai import Task
        from inspect_ai.dataset import Sample
        from inspect_ai.scorer import Score, mean, scorer, stderr
        from inspect_ai.solver import solver
    except ImportError as error:
        raise missing_package("a task of Inspect", "inspect-ai") from error

    @solver  # type: ignore[untyped-decorator]  # inspect_ai is no dependency
    def play() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            hosted = HostedEnv(make(name, **options), env_id=name)
            try:
                return await _played(hosted, state, generate)
            finally:
                await hosted.close()

        return solve

    @scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator]
    def judged() -> Any:
        async def score(state: Any, target: Any) -> Any:
            if (found := state.store.get(_KEY)) is None:
                raise EnvironmentFault("no score: the episode broke, or was cut off within a step")
            value = math.nan if found["score"] is None else found["score"]
            return Score(value=value, metadata=found, explanation=found["stop_reason"])

        return score

    with closing(make(name, **options)) as env:
        ids = [task.id for task in first_tasks(env, count, splits=(split,))]
    samples = [Sample(id=id, input=id) for id in ids]
    return Task(dataset=samples, solver=play(), scorer=judged(), name=name.replace("/", "_"))


async def _played(hosted: HostedEnv, state: Any, generate: Any) -> Any:
    """Play one episode; it is judged where it stands when a limit of Inspect ends it."""
    import anyio
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser
    from inspect_ai.util import LimitExceededError

    task = hosted.task(str(state.sample_id))
    answer = await hosted.reset(task, seed=derive_seed(0, task.id, "env"))
    opening = ChatMessageSystem(content=hosted.instructions_in_text)
    state.messages = [opening, ChatMessageUser(content=answer.text)]
    total, cut = 0.0, None
    try:
        while not (hosted.is_over or state.completed):
            state = await generate(state, tool_calls="none")
            answer = await hosted.say(state.output.completion)
            total += answer.reward
            state.messages.append(ChatMessageUser(content=answer.text))
    except (LimitExceededError, anyio.get_cancelled_exc_class()) as limit:
        cut = limit  # what else is raised leaves no score
    # A limit of time goes on cancelling whatever waits; a step that is under way is waited for.
    with anyio.move_on_after(_LONGEST_JUDGING_S, shield=True):
        total += await hosted.end()
        stop = answer.stop_reason
        word = "" if stop is None else STOP_WORDS[stop].inspect_ai
        reason = "a limit of Inspect" if stop is None else stop.value
        found = {"score": hosted.score(), "return": total, "stop_reason": reason, "limit": word}
        state.store.set(_KEY, found)
    if cut is not None:
        raise cut
    return state
