"""Tasks of the user's own on an Android device, judged on its files, settings and windows."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Unpack

from turngym.coroutines import finished
from turngym.environments.desktop.actions import PHONE_KEYS, TOUCHES
from turngym.environments.desktop.android.device import AndroidDevice
from turngym.environments.desktop.device_env import DeviceOptions, ProblemEnv
from turngym.environments.desktop.problems import DeviceProblem, DeviceWorld
from turngym.errors import ConfigError, EnvironmentFault, missing_extra
from turngym.tasks.base import Task
from turngym.tasks.problem import set_up
from turngym.tasks.sets import TaskSet
from turngym.tasks.sources import task_set


@dataclass(frozen=True, kw_only=True)
class AndroidProblem(DeviceProblem[DeviceWorld]):
    """One problem on a phone."""

    prepare: Sequence[Sequence[str]] = ()
    """Commands of the device's shell that make the start the same each time."""
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    """What is written below home before the start."""
    launch: Sequence[str] = ()
    """Package, component or link that is open at the start."""

    @property
    def content(self) -> str:
        """Prompt and all of the start."""
        return repr([self.prompt, self.prepare, sorted(self.files.items()), self.launch])

    async def set_up(self, world: DeviceWorld) -> None:
        """Run the commands, write the files and open the application.

        Raises:
            EnvironmentFault: A command failed.
        """
        for command in self.prepare:
            if status := world.device.run(*command):
                raise EnvironmentFault(f"android: {' '.join(command)} ended with status {status}")
        world.device.write_files(self.files)
        if self.launch:
            world.device.launch(*self.launch)


class AndroidEnv(ProblemEnv):
    """Problems of the user's on one phone or emulator that adb lists.

    Args:
        tasks: The problems, or where they are: ``FILE.py``, ``FILE.py:NAME``, ``module:NAME``.
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
        tasks: TaskSet[Any] | str,  # of AndroidProblems
        serial: str,
        size: tuple[int, int] = (1080, 2400),
        host: str = "127.0.0.1",
        port: int = 5037,
        **options: Unpack[DeviceOptions],
    ) -> None:
        if importlib.util.find_spec("adbutils") is None:
            raise missing_extra("an Android device", "android")
        self.size, self.tasks = size, task_set(tasks)
        self.name = self.tasks.name
        super().__init__(**options)
        self._serial, self._host, self._port = serial, host, port

    def open_device(self, task: Task) -> AndroidDevice:
        """Hold the device, and bring it to the problem's start.

        Raises:
            ConfigError: Its screen has another size than was said.
        """
        problem = self.open_problem(task)
        device = AndroidDevice(self._serial, host=self._host, port=self._port)
        try:
            if (device.width, device.height) != self.size:
                raise ConfigError(
                    f"android: the screen of {self._serial} is {device.width} x {device.height}: "
                    f"pass size=({device.width}, {device.height}), got {self.size}"
                )
            finished(set_up(problem, DeviceWorld(device=device), task.id))
        except BaseException:
            device.close()
            raise
        return device
