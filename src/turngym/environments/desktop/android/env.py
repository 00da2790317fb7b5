"""Tasks of the user's own on an Android device, judged on its files, settings and windows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Unpack

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.desktop.actions import PHONE_KEYS, TOUCHES
from turngym.environments.desktop.android.device import AndroidDevice
from turngym.environments.desktop.device_env import DeviceEnv, DeviceOptions
from turngym.environments.desktop.observation import View
from turngym.errors import ConfigError, EnvironmentFault, missing_extra
from turngym.tasks.base import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidJob:
    """One problem on a phone."""

    goal: str
    is_done: Callable[[AndroidDevice, str | None], bool]
    """The judge; gets the device and the answer, None where the agent just stopped."""
    prepare: Sequence[Sequence[str]] = ()
    """Commands of the device's shell that make the start the same each time."""
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    """What is written below home before the start."""
    launch: Sequence[str] = ()
    """Package, component or link that is open at the start."""
    script: Sequence[Callable[[View], Action]] = ()
    """What an expert does before it stops; each step looks at the screen first."""
    truth: str | None = None
    """The answer, where one is asked for."""


class AndroidEnv(DeviceEnv):
    """Problems of the user's on one phone or emulator that adb lists.

    Args:
        make_job: Makes a problem from a random generator that the task seeds.
        serial: As ``adb devices`` lists it.
        size: Width and height of its screen in pixels, as ``adb shell wm size`` tells them.
        host: Where the adb server runs.
        port: Its port.
        options: As ``DeviceEnv``.

    Action: tapping, swiping, typing and keys; see ``turngym.environments.desktop.actions``.
    Observation: the goal, the window in front, what happened besides, and the screen's parts.
    Reward: 1 at ``stop`` or ``answer`` when the job's judge says so, else 0.
    Start: the job's commands were run, its files are there, its application is open.
    End: ``stop`` or ``answer``.
    """

    name = "android"
    actions: ClassVar[tuple[str, ...]] = TOUCHES
    menu_keys: ClassVar[tuple[str, ...]] = PHONE_KEYS
    rules = (
        "You use a phone to reach the goal. Elements that can be acted on have a number in "
        "brackets. Dragging swipes, a right click presses long, key back and key home are the "
        "phone's buttons. Say stop when the goal is reached."
    )

    def __init__(
        self,
        *,
        make_job: Callable[[Random], AndroidJob],
        serial: str,
        size: tuple[int, int] = (1080, 2400),
        host: str = "127.0.0.1",
        port: int = 5037,
        **options: Unpack[DeviceOptions],
    ) -> None:
        if importlib.util.find_spec("adbutils") is None:
            raise missing_extra("Android devices", "android")
        self.size = size
        super().__init__(**options)
        self._make_job = make_job
        self._serial, self._host, self._port = serial, host, port
        self._job: AndroidJob | None = None
        self._score = 0.0

    @property
    def job(self) -> AndroidJob:
        """The running problem."""
        assert self._job is not None
        return self._job

    def open_device(self, task: Task) -> AndroidDevice:
        """Hold the device, and bring it to the problem's start."""
        self._job = job = self._make_job(Random(task.seed))
        self.goal, self._score = job.goal, 0.0
        device = AndroidDevice(self._serial, host=self._host, port=self._port)
        try:
            self._prepare(device, job)
        except BaseException:
            device.close()
            raise
        return device

    def _prepare(self, device: AndroidDevice, job: AndroidJob) -> None:
        if (device.width, device.height) != self.size:
            raise ConfigError(
                f"android: the screen of {self._serial} is {device.width} x {device.height}: "
                f"pass size=({device.width}, {device.height}), got {self.size}"
            )
        for command in job.prepare:
            if status := device.run(*command):
                raise EnvironmentFault(f"android: {' '.join(command)} ended with status {status}")
        device.write_files(job.files)
        if job.launch:
            device.launch(*job.launch)

    def judge(self, action: Action) -> Outcome | None:
        """Return the end of the episode when the agent is done."""
        if action.name not in ("answer", "stop"):
            return None
        device = self.device
        assert isinstance(device, AndroidDevice)
        answer = str(action.arguments["text"]) if action.name == "answer" else None
        self._score = float(self.job.is_done(device, answer))
        text = "The goal is reached." if self._score else "The goal is not reached."
        return Outcome(text=text, reward=self._score, terminated=True)

    def score(self) -> float:
        """Return 1 when the goal was reached."""
        return self._score

    def expert_action(self) -> str:
        """Return the next action of the job's script; lost, it stops."""
        if self.turns >= len(self.job.script):
            truth = self.job.truth
            return self.say("stop") if truth is None else self.say("answer", text=truth)
        try:
            action = self.job.script[self.turns](self.view)
        except LookupError:
            return self.say("stop")
        return self.say(action.name, **action.arguments)
