"""Tasks of the user's own on an Android device, judged on its files, settings and windows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Unpack

from turngym.environments.desktop.actions import PHONE_KEYS, TOUCHES
from turngym.environments.desktop.android.device import AndroidDevice
from turngym.environments.desktop.device_env import DeviceOptions, ProblemEnv
from turngym.environments.desktop.problems import ScriptedProblem
from turngym.errors import ConfigError, EnvironmentFault, missing_extra
from turngym.tasks.base import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidProblem(ScriptedProblem):
    """One problem on a phone."""

    is_done: Callable[[AndroidDevice, str | None], bool]
    """The judge; gets the device and the answer, None where the agent just stopped."""
    prepare: Sequence[Sequence[str]] = ()
    """Commands of the device's shell that make the start the same each time."""
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    """What is written below home before the start."""
    launch: Sequence[str] = ()
    """Package, component or link that is open at the start."""


class AndroidEnv(ProblemEnv):
    """Problems of the user's on one phone or emulator that adb lists.

    Args:
        make_problem: Makes a problem from a random generator that the task seeds.
        serial: As ``adb devices`` lists it.
        size: Width and height of its screen in pixels, as ``adb shell wm size`` reports them.
        host: Where the adb server runs.
        port: Its port.
        options: As ``DeviceEnv``.

    Action: tapping, swiping, typing and keys; see ``turngym.environments.desktop.actions``.
    Observation: the goal, the window in front, what happened besides, and the screen's parts.
    Reward: 1 at ``stop`` or ``answer`` when the problem's judge says so, else 0.
    Start: the problem's commands were run, its files are there, its application is open.
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

    problem: AndroidProblem

    def __init__(
        self,
        *,
        make_problem: Callable[[Random], AndroidProblem],
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
        self._make_problem = make_problem
        self._serial, self._host, self._port = serial, host, port

    def open_device(self, task: Task) -> AndroidDevice:
        """Hold the device, and bring it to the problem's start."""
        problem = self._make_problem(Random(task.seed))
        self._begin_problem(problem)
        device = AndroidDevice(self._serial, host=self._host, port=self._port)
        try:
            self._prepare(device, problem)
        except BaseException:
            device.close()
            raise
        return device

    def _prepare(self, device: AndroidDevice, problem: AndroidProblem) -> None:
        if (device.width, device.height) != self.size:
            raise ConfigError(
                f"android: the screen of {self._serial} is {device.width} x {device.height}: "
                f"pass size=({device.width}, {device.height}), got {self.size}"
            )
        for command in problem.prepare:
            if status := device.run(*command):
                raise EnvironmentFault(f"android: {' '.join(command)} ended with status {status}")
        device.write_files(problem.files)
        if problem.launch:
            device.launch(*problem.launch)

    def is_done(self, answer: str | None) -> bool:
        device = self.device
        assert isinstance(device, AndroidDevice)
        return self.problem.is_done(device, answer)
