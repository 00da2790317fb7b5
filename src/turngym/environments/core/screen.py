"""What environments with a screen share: a goal, a page of text, a picture, turns that are kept."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from itertools import count
from pathlib import Path
from typing import Literal

from turngym.environments.core.actions import ActionStyle, InvalidAction
from turngym.environments.core.env import AsyncTurnEnv, Outcome
from turngym.environments.core.spaces import Image, text_observation_space
from turngym.errors import EnvironmentFault, TurnGymError, unknown_name
from turngym.faults import Boundary
from turngym.tasks.base import Task

Screenshot = Literal["none", "plain", "marks"]


class ScreenEnv(AsyncTurnEnv):
    """Reach a goal on a screen that is read as text.

    Args:
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        screenshot: ``"plain"`` adds a picture to observations, ``"marks"`` one with marks on it.
        image_hw: Height and width of the picture, in pixels.
        keep: Folder in which every turn leaves its text, and its picture when there is one.
        render_mode: ``"ansi"`` or None.
    """

    def __init__(
        self,
        *,
        action_style: ActionStyle,
        screenshot: Screenshot,
        image_hw: tuple[int, int],
        keep: str | None,
        render_mode: str | None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        if screenshot not in ("none", "plain", "marks"):
            raise unknown_name("screenshot", screenshot, ("none", "plain", "marks"))
        if screenshot != "none":
            self.observation_space = text_observation_space(image_hw=image_hw)
        self.action_style: ActionStyle = action_style
        self.goal = ""
        self._screenshot = screenshot
        self._image: Image | None = None
        self._keep = None if keep is None else Path(keep)
        self._kept: Path | None = None
        """Folder of the running episode."""

    @abstractmethod
    def page(self) -> str:
        """Return the goal and what was seen last, as text."""

    def reminder(self) -> str:
        """Return what was seen last."""
        return "\n" + self.page()

    def anchor(self) -> str:
        """Return a digest of the goal and what is seen."""
        return hashlib.sha256(self.page().encode()).hexdigest()[:16]

    def _not_understood(self, problem: InvalidAction) -> Outcome:
        outcome = super()._not_understood(problem)
        outcome.image = self._image
        return outcome

    def _open_folder(self, task: Task) -> None:
        """Make an episode's folder: the task's name, with a number when it was played before."""
        if self._keep is None:
            return
        name = task.id.replace("/", "-")
        for number in count():
            self._kept = self._keep / (f"{name}-{number}" if number else name)
            try:
                self._kept.mkdir(parents=True)
            except FileExistsError:
                continue
            return

    def _keep_turn(self, number: int, outcome: Outcome) -> None:
        """Leave the text and the picture of a turn, where turns are kept."""
        if self._kept is None:
            return
        name = f"turn_{number:03}"
        (self._kept / f"{name}.txt").write_text(outcome.text, encoding="utf-8")
        if outcome.image is not None:
            from turngym.environments.core.pictures import save

            save(outcome.image, self._kept / f"{name}.png")

    def _boundary(self, phase: str) -> Boundary:
        """Attribute what the screen's programs raise to the environment."""
        return Boundary(f"{self.name}: {phase}", EnvironmentFault, TurnGymError)
