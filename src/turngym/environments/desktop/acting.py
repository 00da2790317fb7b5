"""Carries out actions on a device: finds marks, turns pixels of the picture into the screen's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from turngym.environments.core.actions import Action
from turngym.environments.desktop.device import Device
from turngym.environments.desktop.observation import View

_WAIT_S = 1.0
_CLICKS = {
    "click": ("left", 1),
    "double_click": ("left", 2),
    "right_click": ("right", 1),
}


def act(device: Device, view: View, action: Action, *, scale: float = 1.0) -> str | None:
    """Carry out ``action``; return why it could not be, or None.

    Args:
        device: Where.
        view: What the agent saw last; its marks count.
        action: In words or as a tool call.
        scale: Size of the picture that coordinates are meant in, relative to the screen.
    """
    arguments = action.arguments
    name = action.name.removesuffix("_at").removesuffix("_in")
    match name:
        case "type":
            return device.type_text(str(arguments["text"]).replace("\\n", "\n"))
        case "key":
            return device.press(str(arguments["keys"]))
        case "wait":
            time.sleep(_WAIT_S)
            return None
        case "scroll":
            place = place_of(device, view, arguments, scale)
            if place is None:
                place = device.width // 2, device.height // 2
            if isinstance(place, str):
                return place
            return device.scroll(*place, up=arguments["direction"] == "up")
        case "drag":
            start = place_of(device, view, arguments, scale)
            ends = {"mark": "target", "x": "to_x", "y": "to_y"}
            to = {key: arguments[name] for key, name in ends.items() if name in arguments}
            end = place_of(device, view, to, scale)
            if isinstance(start, tuple) and isinstance(end, tuple):
                return device.drag(start, end)
            return str(end if isinstance(start, tuple) else start)
        case _:
            return _point(device, name, place_of(device, view, arguments, scale))


def _point(device: Device, name: str, place: tuple[int, int] | str | None) -> str | None:
    if not isinstance(place, tuple):
        return place or "A mark or a place is needed."
    if name == "move":
        return device.move(*place)
    button, times = _CLICKS[name]
    return device.click(*place, button=button, times=times)


def place_of(
    device: Device, view: View, arguments: Mapping[str, Any], scale: float
) -> tuple[int, int] | str | None:
    """Return the pixels of the screen that are meant, or why there are none; None: none named."""
    if "mark" in arguments:
        found = view.named(arguments["mark"])
        if isinstance(found, str):
            return found
        device.reveal(found)
        return found.center
    return pixels_of(arguments, scale) if "x" in arguments else None


def pixels_of(arguments: Mapping[str, Any], scale: float) -> tuple[int, int]:
    """Return the pixels of the screen that ``x`` and ``y`` of a picture at ``scale`` stand for."""
    return round(int(arguments["x"]) / scale), round(int(arguments["y"]) / scale)
