"""Environments for TRL's ``GRPOTrainer``: what its ``environment_factory`` and its data set want.

    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from turngym.api.trl import trl_environment, trl_rows

    GRPOTrainer(
        "Qwen/Qwen3-0.6B", args=GRPOConfig(...),
        train_dataset=Dataset.from_list(trl_rows("text/maze", 256)),
        environment_factory=trl_environment("text/maze"),
    )

Each action of the environment is a tool. The reward is the return of the episode; a conversation
that ends before its episode is judged on the state that it leaves. Of a screen only the text is
shown.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Literal

from turngym.environments.core.actions import JsonTools
from turngym.environments.gym.registration import make
from turngym.environments.packed import first_tasks
from turngym.errors import ConfigError, EnvironmentFault, TurnGymError
from turngym.faults import Boundary
from turngym.rollouts.gateway.hosted import OVER, call_text, finite
from turngym.seeding import derive_seed
from turngym.tasks.base import Split

_TYPES: Mapping[str, Any] = {
    "integer": int, "number": float, "boolean": bool, "array": list, "object": dict,
}  # fmt: skip
_TAKEN = ("reset", "get_reward")


class TrlEnvironment:
    """One episode after another; ``trl_environment`` makes a class of it that has the tools."""

    _make: Callable[[], Any]
    _seed: int

    def __init__(self) -> None:
        self._env = type(self)._make()
        self._format = self._env.get_wrapper_attr("action_format")
        self._checker = JsonTools(self._format.tools())
        self._return, self._is_over, self._is_broken = 0.0, True, True

    def reset(self, *, task: str = "", **row: Any) -> str:
        """Begin an episode of the ``task`` whose id the row has; rows of one task begin alike.

        Raises:
            ConfigError: There is no such column, or no such task, or it has other tools.
        """
        if not task:
            raise ConfigError("a row for TRL: wanted a column 'task' with an id; trl_rows makes it")
        self._return, self._is_over, self._is_broken = 0.0, True, True  # until it has begun
        options = {"task": task}
        with Boundary("reset", EnvironmentFault, ConfigError):
            seed = derive_seed(self._seed, task, "env")
            observation, _ = self._env.reset(seed=seed, options=options)
        for one in self._env.get_wrapper_attr("action_format").tools():
            if not hasattr(self, name := one["function"]["name"]):
                raise ConfigError(
                    f"task {task!r}: the tool {name!r} is known only once an episode has "
                    "begun, and TRL asks for all of them before"
                )
        self._is_over = self._is_broken = False
        return str(observation["text"])

    def get_reward(self) -> float | None:
        """Return the return of the episode; None, which TRL leaves out, where it broke."""
        if not self._is_over:
            self._is_over = True
            try:
                with Boundary("judge", EnvironmentFault):
                    end = self._env.unwrapped.end_at_limit()
                    self._return += 0.0 if end is None else finite(end.reward)
            except TurnGymError:
                self._is_broken = True
        return None if self._is_broken else self._return

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._is_over:
            return OVER
        given = {key: value for key, value in arguments.items() if value is not None}
        self._is_over = self._is_broken = True  # stays so when the turn fails
        with Boundary("step", EnvironmentFault):
            said = call_text(self._format, self._checker, name, given)
            observation, reward, terminated, truncated, _ = self._env.step(said)
            self._return += finite(reward)
        self._is_broken, self._is_over = False, bool(terminated or truncated)
        return str(observation["text"])


def trl_environment(name: str, *, seed: int = 0, **options: Any) -> type[TrlEnvironment]:
    """Return a class for ``environment_factory``: its public methods are the environment's actions.

    Args:
        name: Id, file or folder of the environment.
        seed: Root of the seeds of its episodes.
        options: Of the environment.

    Raises:
        ConfigError: There is none, or an action is called ``reset`` or ``get_reward``.
    """
    with closing(make(name, **options)) as env:
        tools = [tool["function"] for tool in env.get_wrapper_attr("action_format").tools()]
    if taken := [one["name"] for one in tools if one["name"] in _TAKEN]:
        raise ConfigError(f"environment {name!r}: TRL has a use of its own for {taken[0]!r}")
    members: dict[str, Any] = {one["name"]: _method(one) for one in tools}
    members |= {"_make": staticmethod(lambda: make(name, **options)), "_seed": seed}
    return type("TrlEnvironment", (TrlEnvironment,), members)


def trl_rows(
    name: str, count: int, *, split: Split = "train", **options: Any
) -> list[dict[str, Any]]:
    """Return rows of a data set: a prompt with the rules, and the id of a task.

    There are ``count``, or as many as ``split`` of the environment ``name`` with ``options`` has.
    """
    with closing(make(name, **options)) as env:
        content = f"{env.get_wrapper_attr('rules')}\n\n"
        tasks = first_tasks(env, count, splits=(split,))
    return [{"prompt": [{"role": "user", "content": content}], "task": task.id} for task in tasks]


def _method(tool: Mapping[str, Any]) -> Callable[..., str]:
    """Return a method with the name, the types and the words of a tool."""
    name, parameters = tool["name"], tool["parameters"]
    properties = parameters["properties"]

    def method(self: TrlEnvironment, **arguments: Any) -> str:
        return self._call(name, arguments)

    required = parameters.get("required", ())
    hints = {one: _hint(schema) for one, schema in properties.items()}
    keywords = [
        inspect.Parameter(
            one, inspect.Parameter.KEYWORD_ONLY, annotation=hint,
            default=inspect.Parameter.empty if one in required else None,
        )
        for one, hint in hints.items()
    ]  # fmt: skip
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = method.__qualname__ = name
    method.__signature__ = inspect.Signature([first, *keywords])  # type: ignore[attr-defined]
    method.__annotations__ = {**hints, "return": str}
    words = {one: str(schema.get("description") or one) for one, schema in properties.items()}
    lines = [f"    {one}: {' '.join(text.split())}" for one, text in words.items()]
    about = "\n".join(["", "", "Args:", *lines]) if lines else ""
    method.__doc__ = (tool.get("description") or name) + about
    return method


def _hint(schema: Mapping[str, Any]) -> Any:
    if choices := schema.get("enum"):
        return Literal[tuple(choices)]
    return _TYPES.get(str(schema.get("type")), str)
