"""Warm desktops for the whole process: a reset takes one that is already there.

Each desktop serves one episode. While somebody holds a lease, a thread keeps ``spare`` fresh ones
ready; the last release ends them.
"""

from __future__ import annotations

import threading
from collections import deque

from turngym.environments.desktop.x11_device import X11Device
from turngym.errors import EnvironmentFault
from turngym.shared_resource import SharedResource

SPARE = 1
"""Desktops kept ready; each takes about 50 MB."""


class DisplayPool(SharedResource):
    """The warm desktops of one screen size. ``lease`` gives it, ``release`` gives it back.

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
        self.started = 0
        """Desktops started so far."""

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
        if device is None:
            device = self._new()
        return device

    def _new(self) -> X11Device:
        self.started += 1
        return X11Device(*self._size)

    def _refill(self) -> None:
        while True:
            with self._change:
                while self._is_open and len(self._ready) >= SPARE:
                    self._change.wait()
                if not self._is_open:
                    break
            try:
                device = self._new()
            except EnvironmentFault:
                with self._change:  # take starts one itself, and reports why that fails
                    self._change.wait(1.0)
                continue
            with self._change:
                self._ready.append(device)
        while self._ready:  # here: a sandbox ends with the thread that started it
            self._ready.popleft().close()
