"""What the text games share: a picklable state, exact snapshots, a split by content."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Action, ActionStyle, Commands, in_style
from turngym.environments.core.env import Outcome, SnapshotKind, TurnEnv
from turngym.errors import ConfigError, unknown_name
from turngym.tasks.base import Task
from turngym.tasks.splits import split_of


class TextGame(TurnEnv):
    """A turn-based game in pure Python over ``self.state``.

    Write ``new_game`` and ``turn``; set ``commands``, ``rules`` and ``difficulties``. A problem
    belongs to the test split by its own content (``instance_key``), so no problem is ever in both.

    Args:
        difficulty: A key of ``difficulties``; its settings are in ``self.settings``.
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        render_mode: ``"ansi"`` or None.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "exact"
    commands: ClassVar[Commands]
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {"easy": {}}

    def __init__(
        self,
        *,
        difficulty: str = "easy",
        action_style: ActionStyle = "commands",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        if difficulty not in self.difficulties:
            raise unknown_name(f"difficulty of {self.name}", difficulty, self.difficulties)
        self.settings = self.difficulties[difficulty]
        self.name = f"{self.name}-{difficulty}"
        self.action_format = in_style(action_style, self.commands)
        self.state: Any = None

    @abstractmethod
    def new_game(self, rng: np.random.Generator) -> Any:
        """Return the state of a random new problem; deep-copyable and picklable."""

    def describe(self) -> str:
        """Return what the agent sees at the start; by default the rules."""
        return self.rules

    def instance_key(self) -> str:
        """Return what makes the problem in ``self.state`` this one; decides its split."""
        return repr(self.state)

    def begin(self, task: Task) -> Outcome:
        """Draw problems from the task's seed until one belongs to the task's split."""
        rng = np.random.default_rng(task.seed)
        for _ in range(1000):
            self.state = self.new_game(rng)
            if split_of(self.instance_key()) == task.split and self.is_suitable():
                return Outcome(text=self.describe(), info=self.opening_info())
        raise ConfigError(f"{self.name}: no problem of split {task.split!r} in 1000 draws")

    def is_suitable(self) -> bool:
        """Return True when the problem in ``self.state`` fits the difficulty; may be costly."""
        return True

    def opening_info(self) -> dict[str, Any]:
        """Return more ``info`` for the reset, for example ``ground_truth``."""
        return {}

    def say(self, command: str, **arguments: Any) -> str:
        """Return the text that does ``command`` in the action style of this environment."""
        return self.action_format.render(Action(name=command, arguments=arguments))

    def get_state(self) -> Any:
        """Return a deep copy of ``self.state``."""
        return copy.deepcopy(self.state)

    def set_state(self, state: Any) -> None:
        """Take a deep copy of ``state``."""
        self.state = copy.deepcopy(state)
