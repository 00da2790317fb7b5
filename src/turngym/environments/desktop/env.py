"""Tasks on a desktop: real applications, judged on files, settings and the clipboard."""

from __future__ import annotations

from random import Random
from typing import Unpack

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.desktop.device_env import DeviceEnv, DeviceOptions
from turngym.environments.desktop.display import require_desktop
from turngym.environments.desktop.jobs import Desk, Job, full_tree
from turngym.environments.desktop.kinds import TEMPLATES, draw
from turngym.environments.desktop.pool import DisplayPool
from turngym.environments.desktop.x11_device import X11Device
from turngym.errors import missing_extra, unknown_name
from turngym.tasks.base import Task


class DesktopEnv(DeviceEnv):
    """One kind of task on a desktop with real applications.

    Args:
        kind: Which, for example ``"notes-append"``; see ``TEMPLATES``.
        options: As ``DeviceEnv``.

    Action: mouse and keyboard; see ``turngym.environments.desktop.actions``.
    Observation: the goal, the active window, what happened besides, and the windows' parts.
    Reward: 1 at ``stop`` or ``answer`` when files, settings, clipboard and answer are exactly as
        the goal wants them, else 0.
    Start: a fresh desktop with the task's files and open programs.
    End: ``stop`` or ``answer``.
    """

    rules = (
        "You use a desktop computer with mouse and keyboard to reach the goal. Elements that can "
        "be acted on have a number in brackets. Say stop when the goal is reached; what is not "
        "saved does not count."
    )

    def __init__(self, *, kind: str, **options: Unpack[DeviceOptions]) -> None:
        if kind not in TEMPLATES:
            raise unknown_name("kind of desktop task", kind, TEMPLATES)
        self.name = f"desktop-{kind}"
        super().__init__(**options)
        require_all()
        self.kind = kind
        self._pool: DisplayPool | None = None
        self._job: Job | None = None
        self._score = 0.0

    @property
    def job(self) -> Job:
        """The running problem."""
        assert self._job is not None
        return self._job

    def open_device(self, task: Task) -> X11Device:
        """Draw the problem, and return a desktop with its files and programs."""
        self._job = job = draw(self.kind, Random(task.seed), task.split)
        self.goal, self._score = job.goal, 0.0
        if self._pool is None:
            self._pool = DisplayPool.lease(*self.size)
        device = self._pool.take()
        try:
            device.write_files(full_tree(job.files))
            for command in job.launch:
                device.launch(*command)
            if len(job.launch) > 1:
                device.arrange(_side_by_side(self.size))
        except BaseException:
            device.close()
            raise
        return device

    def judge(self, action: Action) -> Outcome | None:
        """Return the end of the episode when the agent is done."""
        if action.name not in ("answer", "stop"):
            return None
        device = self.device
        assert isinstance(device, X11Device)
        device.rest()
        desk = Desk(device, str(action.arguments["text"]) if action.name == "answer" else None)
        self._score = float(self.job.is_done(desk))
        text = "The goal is reached." if self._score else "The goal is not reached."
        return Outcome(text=text, reward=self._score, terminated=True)

    def score(self) -> float:
        """Return 1 when the goal was reached."""
        return self._score

    def expert_action(self) -> str:
        """Return the next action of the problem's script, which begins with the episode.

        After anything else than the script it is lost, and stops.
        """
        script, turn = self.job.script, self.turns
        if turn >= len(script):
            truth = self.job.truth
            return self.say("stop") if truth is None else self.say("answer", text=truth)
        step = script[turn]
        try:
            action = step if isinstance(step, Action) else step(self.view)
        except LookupError:
            return self.say("stop")
        return self.say(action.name, **action.arguments)

    def release(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.release()


def require_all() -> None:
    """Raise when desktops cannot be had here.

    Raises:
        MissingExtraError: A Python package is missing.
        ConfigError: Programs are missing.
    """
    import importlib.util

    if any(importlib.util.find_spec(name) is None for name in ("Xlib", "jeepney")):
        raise missing_extra("desktop environments", "desktop")
    require_desktop()


def _side_by_side(size: tuple[int, int]) -> dict[int, tuple[int, int, int, int]]:
    """Return places for two windows, by stacking order: the older one left."""
    half, bottom = size[0] // 2, size[1] - 40
    return {0: (4, 24, half - 8, bottom), 1: (half + 4, 24, half - 8, bottom)}
