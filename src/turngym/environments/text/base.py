"""What text games share: difficulties, action styles, a split by content, the boundary of faults.

``TextGame`` is a game of ours over a state that can be copied, ``MatchGame`` one of two players.
``EngineGame`` plays an engine of others, imported when its first environment is made; what that
raises is an ``EnvironmentFault``, so a broken engine ends an episode without a score and is never a
reward of 0.
"""

from __future__ import annotations

import copy
import importlib.util
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from turngym.environments.core.actions import (
    Action,
    ActionFormat,
    ActionStyle,
    Commands,
    InvalidAction,
    in_style,
)
from turngym.environments.core.env import Outcome, SnapshotKind, TurnEnv
from turngym.environments.core.spaces import Image, text_observation_space
from turngym.errors import ConfigError, missing_extra, require_known
from turngym.tasks.base import Task, split_of

Colour = tuple[int, int, int]
LOOK = "Look at the picture."
"""Stands for a state that is shown."""
CELL_PX = 8
"""Side of a square in pictures of games."""


class GradedGame(TurnEnv):
    """A game of commands that comes in several difficulties.

    Args:
        difficulty: A key of ``difficulties``; its settings are in ``self.settings``.
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        render_mode: ``"ansi"`` or None.

    Raises:
        ConfigError: The class has no ``commands``, or something else.
        MissingExtraError: The engine is not installed; the message holds the install line.
    """

    commands: ClassVar[Commands]
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {"easy": {}}
    extra: ClassVar[str] = ""
    """Extra of this package that installs the engine."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Top-level modules of the engine."""

    def __init__(
        self,
        *,
        difficulty: str = "easy",
        action_style: ActionStyle = "commands",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        require_known(f"difficulty of {self.name}", difficulty, self.difficulties)
        if any(importlib.util.find_spec(module) is None for module in self.modules):
            raise missing_extra(f"environment {self.name!r}", self.extra)
        self.settings = self.difficulties[difficulty]
        self.name = f"{self.name}-{difficulty}"
        self.action_style = action_style
        if not isinstance(commands := getattr(self, "commands", None), ActionFormat):
            raise ConfigError(
                f"{self.name}: commands: wanted Commands({{...}}), found {commands!r}"
            )
        self.action_format = in_style(action_style, commands)
        self.state: Any = None

    def say(self, command: str, **arguments: Any) -> str:
        """Return the text that does ``command`` in the action style of this environment."""
        return self.action_format.render(Action(name=command, arguments=arguments))

    def get_state(self) -> Any:
        return copy.deepcopy(self.state)

    def set_state(self, state: Any) -> None:
        self.state = copy.deepcopy(state)


class TextGame(GradedGame):
    """A turn-based game in pure Python over ``self.state``.

    Write ``new_game`` and ``turn``; set ``commands``, ``rules`` and ``difficulties``. A problem
    belongs to the test split by its own content (``instance_key``), so no problem is ever in both.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "exact"

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
        """Draw a problem of the split that is suitable.

        Raises:
            ConfigError: None was found.
            TypeError: ``new_game`` returned None.
        """
        rng = np.random.default_rng(task.seed)
        for _ in range(1000):
            self.state = self.new_game(rng)
            if self.state is None:
                raise TypeError("new_game returned None, wanted a state")
            if split_of(self.instance_key()) == task.split and self.is_suitable():
                return Outcome(text=self.describe(), info=self.opening_info())
        raise ConfigError(
            f"{self.name}: no problem of split {task.split!r} in 1000 samples; one problem in five "
            "is a test, chosen by instance_key: a game with few of them may have none"
        )

    def is_suitable(self) -> bool:
        """Return True when the problem in ``self.state`` fits the difficulty; may be costly."""
        return True

    def opening_info(self) -> dict[str, Any]:
        """Return more ``info`` for the reset, for example ``ground_truth``."""
        return {}


class MatchGame(TextGame):
    """A game of two players who move in turn, one against the other.

    Write ``new_game``, ``player``, ``view``, ``play`` and ``result``; set ``players``. Who plays
    whom is the run's choice: one policy can be both, or have an opponent. An answer that is no
    possible move loses the game: else who is about to lose would rather not move.
    """

    @abstractmethod
    def player(self) -> str:
        """Return who moves next, any of them where the game is over."""

    @abstractmethod
    def view(self, player: str) -> str:
        """Return what ``player`` sees now."""

    @abstractmethod
    def play(self, action: Action) -> str | None:
        """Carry out the move of ``player()``; return why it cannot be, where it cannot."""

    @abstractmethod
    def result(self) -> Mapping[str, float] | None:
        """Return 1 for who won and -1 for who lost, 0 for a draw; None while the game goes on."""

    def describe(self) -> str:
        return self.view(self.player())

    def turn(self, action: Action) -> Outcome:
        mover = self.player()
        if (problem := self.play(action)) is not None:
            return self._lost(problem)
        if (won := self.result()) is None:
            return Outcome(text=self.describe())
        return self._end(self.view(mover), mover, won[mover])

    def score(self) -> float:
        """Return 0: a game that is cut short has no winner."""
        return 0.0

    def _not_understood(self, problem: InvalidAction) -> Outcome:
        return self._lost(problem.reason)

    def _lost(self, problem: str) -> Outcome:
        outcome = self._end(f"{problem} The game is lost.", self.player(), -1.0)
        outcome.invalid_action = problem
        return outcome

    def _end(self, text: str, mover: str, reward: float) -> Outcome:
        """Return the end of the game, which pays its last mover ``reward``."""
        first, second = self.players
        other = second if mover == first else first
        scores = {mover: (1 + reward) / 2, other: (1 - reward) / 2}
        info = {"other_rewards": {other: -reward}, "scores": scores, "score": scores[mover]}
        return Outcome(text=text, reward=reward, terminated=True, info=info)


class GridGame(TextGame):
    """A game on cells, which can be shown as a picture.

    Args:
        difficulty: As ``GradedGame``.
        action_style: As ``GradedGame``.
        picture: Show the state as a picture and not in words.
        render_mode: ``"ansi"`` or None.
    """

    painted: ClassVar[str] = ""
    """Rules of the game, for those who see it as a picture."""

    def __init__(
        self,
        *,
        difficulty: str = "easy",
        action_style: ActionStyle = "commands",
        picture: bool = False,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(difficulty=difficulty, action_style=action_style, render_mode=render_mode)
        self.shows_picture = picture
        if picture:
            self.rules = self.painted
            rows, columns = self.cells_shape()
            self.observation_space = text_observation_space(
                image_hw=(rows * CELL_PX, columns * CELL_PX)
            )

    @abstractmethod
    def cells_shape(self) -> tuple[int, int]:
        """Return rows and columns of ``cells``."""

    @abstractmethod
    def cells(self) -> NDArray[np.uint8]:
        """Return the colour of each cell of the state, shape [rows, columns, 3]."""

    def picture(self) -> Image | None:
        """Return the state as squares of ``CELL_PX`` pixels, where it is shown so."""
        if not self.shows_picture:
            return None
        return squares(self.cells())


class EngineGame(GradedGame):
    """A game whose engine lists the commands that it would carry out now.

    Write ``start``, ``play`` and ``possible_commands``. A command that is well formed but not
    possible now is answered with ``refusal`` and never reaches the engine.
    """

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
        """Return what is shown when ``command`` is not possible now."""
        return f"You cannot {command} now."

    def begin(self, task: Task) -> Outcome:
        with self._boundary(f"reset to {task.id}"):
            return Outcome(text=self.start(task))

    def turn(self, action: Action) -> Outcome:
        command = self.commands.render(action).lower()
        exact = self.possible_commands().get(command)
        if exact is None:
            text = self.refusal(command)
            return Outcome(text=text, invalid_action=text)
        with self._boundary(f"step {command!r}"):
            return self.play(exact)

    def legal_actions(self) -> list[str]:
        return [self.styled(command) for command in self.possible_commands()]

    def expert_action(self) -> str:
        with self._boundary("expert"):
            return self.styled(self.expert_command())

    def styled(self, command: str) -> str:
        """Return ``command`` as this environment wants to hear it."""
        if self.action_style == "commands":
            return command
        parsed = self.commands.parse(command)
        return self.action_format.render(parsed) if isinstance(parsed, Action) else command


def squares(cells: NDArray[np.uint8]) -> Image:
    """Return colours [rows, columns, 3] as a picture of squares of ``CELL_PX`` pixels."""
    return cells.repeat(CELL_PX, axis=0).repeat(CELL_PX, axis=1)


def bearing(at: tuple[int, int], goal: tuple[int, int], *, distances: bool) -> str:
    """Return ``north east``, with ``distances`` ``north 2 east 1``; ``here`` when there is no way.

    Args:
        at: Row and column; row 0 is the northernmost.
        goal: Row and column.
        distances: Also say how many steps.
    """
    south, east = goal[0] - at[0], goal[1] - at[1]
    ways = [
        ("south" if south > 0 else "north", abs(south)),
        ("east" if east > 0 else "west", abs(east)),
    ]
    words = [f"{way} {steps}" if distances else way for way, steps in ways if steps]
    return " ".join(words) or "here"
