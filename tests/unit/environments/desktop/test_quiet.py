"""A screen counts as quiet only when a look says so."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from turngym.environments.desktop import x11_device
from turngym.environments.desktop.activity import Activity


def test_time_that_passes_between_two_looks_does_not_make_a_screen_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine where the one who looks gets no processor for longer than ``quiet_s``."""
    alarms = [False, True, False, False, False]
    looks: list[bool] = []

    def look() -> Activity:
        looks.append(alarms[min(len(looks), len(alarms) - 1)])
        return Activity(turns=1, waited_s=0.0, is_busy=False, has_alarm=looks[-1])

    monkeypatch.setattr(x11_device, "_TICK_S", 0.03)
    device: Any = SimpleNamespace(_now=time.monotonic, _look=look)
    x11_device.X11Device._quiet(device, 0.02)
    assert looks == [False, True, False]
