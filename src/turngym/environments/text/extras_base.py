"""What the games on foreign engines share: their names, their commands, and the boundary of faults.

An engine is imported when its first environment is made. Whatever it raises afterwards becomes an
``EnvironmentFault``, so a broken engine ends an episode without a score and is never a reward of 0.
"""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from typing import Any, ClassVar

from turngym.environments.core.actions import Action, ActionStyle, Commands, in_style
from turngym.environments.core.env import Outcome, TurnEnv
from turngym.errors import EnvironmentFault, TurnGymError, missing_extra, unknown_name
from turngym.faults import Boundary
from turngym.tasks.base import Task


def engine_boundary(name: str, phase: str) -> Boundary:
    """Return a context manager that turns what an engine raises into an ``EnvironmentFault``.

    Args:
        name: The environment, for the message.
        phase: What was being done, for the message.
    """
    return Boundary(f"{name}: {phase}", EnvironmentFault, TurnGymError)


class EngineGame(TurnEnv):
    """A game whose engine lists the commands that it would carry out now.

    Write ``start``, ``play`` and ``possible_commands``. A command that is well formed but not
    possible now is answered with ``refusal`` and never reaches the engine.

    Args:
        difficulty: A key of ``difficulties``; its settings are in ``self.settings``.
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        render_mode: ``"ansi"`` or None.

    Raises:
        MissingExtraError: The engine is not installed; the message holds the install line.
    """

    commands: ClassVar[Commands]
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {"easy": {}}
    extra: ClassVar[str]
    """Extra of this package that installs the engine."""
    modules: ClassVar[tuple[str, ...]]
    """Top-level modules of the engine."""

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
        if any(importlib.util.find_spec(module) is None for module in self.modules):
            raise missing_extra(f"environment {self.name!r}", self.extra)
        self.settings = self.difficulties[difficulty]
        self.name = f"{self.name}-{difficulty}"
        self.action_style = action_style
        self.action_format = in_style(action_style, self.commands)

    @abstractmethod
    def start(self, task: Task) -> str:
        """Make the problem of ``task`` and return what the agent sees first."""

    @abstractmethod
    def play(self, command: str) -> Outcome:
        """Carry out one of ``possible_commands``, as it is written there."""

    @abstractmethod
    def possible_commands(self) -> dict[str, str]:
        """Return the commands that can be carried out now: lower-cased text to the engine's own.

        Asks nothing of the engine, which may be gone.
        """

    @abstractmethod
    def expert_command(self) -> str:
        """Return the expert's next command, in any letter case."""

    def refusal(self, command: str) -> str:
        """Return what the agent is told when ``command`` is not possible now."""
        return f"You cannot {command} now."

    def begin(self, task: Task) -> Outcome:
        """Make the problem of ``task``."""
        with engine_boundary(self.name, f"reset to {task.id}"):
            return Outcome(text=self.start(task))

    def turn(self, action: Action) -> Outcome:
        """Carry out a command that is possible now; refuse the others."""
        command = self.commands.render(action).lower()
        exact = self.possible_commands().get(command)
        if exact is None:
            text = self.refusal(command)
            return Outcome(text=text, invalid_action=text)
        with engine_boundary(self.name, f"step {command!r}"):
            return self.play(exact)

    def legal_actions(self) -> list[str]:
        """Return the possible commands in the action style of this environment."""
        return [self.styled(command) for command in self.possible_commands()]

    def expert_action(self) -> str:
        """Return the expert's next action in the action style of this environment."""
        with engine_boundary(self.name, "expert"):
            return self.styled(self.expert_command())

    def styled(self, command: str) -> str:
        """Return ``command`` as this environment wants to hear it."""
        if self.action_style == "commands":
            return command
        parsed = self.commands.parse(command)
        return self.action_format.render(parsed) if isinstance(parsed, Action) else command
