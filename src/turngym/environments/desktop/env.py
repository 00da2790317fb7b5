"""Tasks on a desktop: real applications, judged on files, settings and the clipboard."""

from __future__ import annotations

import threading
from collections import deque
from typing import Unpack

from turngym.coroutines import finished
from turngym.environments.desktop.device_env import DeviceOptions, ProblemEnv
from turngym.environments.desktop.display import require_desktop
from turngym.environments.desktop.problems import DesktopWorld
from turngym.environments.desktop.tasks import desktop_tasks
from turngym.environments.desktop.x11_device import X11Device
from turngym.errors import EnvironmentFault
from turngym.shared_resource import SharedResource
from turngym.tasks.base import Task
from turngym.tasks.problem import set_up

SPARE = 1
"""Desktops kept ready; each takes about 50 MB."""


class DisplayPool(SharedResource):
    """The warm desktops of one screen size. ``lease`` gives it, ``release`` gives it back.

    Each desktop serves one episode. While somebody holds a lease, a thread keeps ``SPARE`` fresh
    ones ready; the last release ends them.

    Args:
        width: Of the screen, in pixels.
        height: Of the screen, in pixels.
    """

    def __init__(self, width: int, height: int) -> None:
        self._size = width, height
        self._ready: deque[X11Device] = deque()
        self._change = threading.Condition()
        self._is_open = True
        self._thread: threading.Thread | None = None

    def release(self) -> None:
        """Give a lease back; the last one ends the spare desktops."""
        if not self._end_lease():
            return
        with self._change:
            self._is_open = False
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()

    def take(self) -> X11Device:
        """Return a fresh desktop, which the caller closes.

        Raises:
            EnvironmentFault: None could be started.
        """
        device: X11Device | None = None
        with self._change:
            while self._ready and device is None:
                device = self._ready.popleft()
                if not device.is_sound():
                    device.close()
                    device = None
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._refill, name="turngym-desktops", daemon=True
                )
                self._thread.start()
            self._change.notify_all()
        return device or X11Device(*self._size)

    def _refill(self) -> None:
        while True:
            with self._change:
                while self._is_open and len(self._ready) >= SPARE:
                    self._change.wait()
                if not self._is_open:
                    break
            try:
                device = X11Device(*self._size)
            except EnvironmentFault:
                with self._change:  # take starts one itself, and reports why that fails
                    self._change.wait(1.0)
                continue
            with self._change:
                self._ready.append(device)
        while self._ready:  # here: a sandbox ends with the thread that started it
            self._ready.popleft().close()


class DesktopEnv(ProblemEnv):
    """One kind of task on a desktop with real applications.

    Args:
        kind: Which, for example ``"notes-append"``; see ``GENERATORS``.
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
        self.tasks = desktop_tasks(kind)
        self.name = self.tasks.name
        super().__init__(**options)
        require_desktop()
        self._pool: DisplayPool | None = None

    def open_device(self, task: Task) -> X11Device:
        problem = self.open_problem(task)
        if self._pool is None:
            self._pool = DisplayPool.lease(*self.size)
        device = self._pool.take()
        try:
            finished(set_up(problem, DesktopWorld(device=device), task.id))
        except BaseException:
            device.close()
            raise
        return device

    def world(self, answer: str | None) -> DesktopWorld:
        """Return the files, settings and clipboard once programs have finished what they do."""
        device = self.device
        assert isinstance(device, X11Device)
        device.rest()
        return DesktopWorld(device=device, answer=answer)

    def release(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.release()
