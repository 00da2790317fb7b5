"""What an agent can do on a device, in words and as JSON tool calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from turngym.environments.core.actions import Action, Commands, JsonTools, described_tool
from turngym.environments.desktop.device import Device
from turngym.environments.desktop.observation import View

_POINTED = {
    "click": "Click or tap an element, or a place of the screen.",
    "double_click": "Click twice.",
    "right_click": "Click with the right button; on a phone, press long.",
    "move": "Put the pointer there.",
}
_TEMPLATES = {
    **{f"{name}_at": f"{name} at {{x:int}} {{y:int}}" for name in _POINTED},
    **{name: f"{name} {{mark}}" for name in _POINTED},
    "drag_at": "drag at {x:int} {y:int} to {to_x:int} {to_y:int}",
    "drag": "drag {mark} to {target}",
    "scroll_at": "scroll {direction:up|down} at {x:int} {y:int}",
    "scroll_in": "scroll {direction:up|down} in {mark}", "scroll": "scroll {direction:up|down}",
    "type": "type {text...:text}", "key": "key {keys...}",
    "box": "box {left:int} {top:int} {right:int} {bottom:int}", "wait": "wait",
    "answer": "answer {text...}", "stop": "stop",
}  # fmt: skip
_HELP = {
    "click": "mark is the number before an element",
    "click_at": "pixels from the top left corner of the screen",
    "type": "at the focus; \\n is Enter", "box": "the edges of an element, in pixels",
    "key": "a key or chord, such as enter, f2 or ctrl+shift+s", "wait": "one second",
    "answer": "ends the episode with an answer", "stop": "ends the episode",
}  # fmt: skip
NAMES = tuple(name for name in _TEMPLATES if name != "box")
"""Every action in words that does something."""
TOUCHES = tuple(name for name in NAMES if not name.startswith("move"))
"""Those of a phone, which has no pointer."""
PHONE_KEYS = ("back", "home", "enter", "backspace")

_TEXT, _INT = dict[str, Any](type="string"), dict[str, Any](type="integer")
_PLACE = {"mark": {**_INT, "description": "number before an element"}, "x": _INT, "y": _INT}
_UP_DOWN = {"direction": {"type": "string", "enum": ["up", "down"]}}
_MARK_OR_PLACE = [{"required": ["mark"]}, {"required": ["x", "y"]}]
_ENDS = [{"required": ["mark", "target"]}, {"required": ["x", "y", "to_x", "to_y"]}]
_EDGES = ("left", "top", "right", "bottom")
_TOOLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{name: (about, _PLACE, {"anyOf": _MARK_OR_PLACE}) for name, about in _POINTED.items()},
    "drag": (
        "Drag from one place to another.",
        {**_PLACE, "target": _INT, "to_x": _INT, "to_y": _INT}, {"anyOf": _ENDS},
    ),
    "scroll": ("Scroll some lines.", {**_UP_DOWN, **_PLACE}, {"required": ["direction"]}),
    "type": ("Type text at the focus.", {"text": _TEXT}, {"required": ["text"]}),
    "key": (
        "Press a key or chord, such as enter, f2 or ctrl+shift+s.",
        {"keys": _TEXT}, {"required": ["keys"]},
    ),
    "box": (
        "Give the edges in pixels.", dict.fromkeys(_EDGES, _INT), {"required": list(_EDGES)},
    ),
    "wait": ("Wait one second.", {}, {}),
    "answer": ("End the episode with an answer.", {"text": _TEXT}, {"required": ["text"]}),
    "stop": ("End the episode.", {}, {}),
}  # fmt: skip
"""Description, properties and what else the schema says."""


def device_commands(names: tuple[str, ...]) -> Commands:
    """Return the actions called ``names``, in words."""
    kept = {name: text for name, text in _TEMPLATES.items() if name in names}
    return Commands(kept, help=_HELP, keep_case=True)


def device_tools(names: tuple[str, ...]) -> JsonTools:
    """Return the actions called ``names``, as JSON tool calls."""
    wanted = dict.fromkeys(name.removesuffix("_at").removesuffix("_in") for name in names)
    return JsonTools([_function(name, *_TOOLS[name]) for name in wanted])


def as_tool_call(action: Action) -> Action:
    """Return the tool call that does what an action in words does."""
    name = action.name.removesuffix("_at").removesuffix("_in")
    arguments = dict(action.arguments)
    for key in ("mark", "target"):
        if key in arguments:
            arguments[key] = int(arguments[key])
    return Action(name=name, arguments=arguments)


def _function(
    name: str, description: str, properties: dict[str, Any], more: dict[str, Any]
) -> dict[str, Any]:
    schema = {
        "type": "object", "properties": properties, "additionalProperties": False, "required": [],
        **more,
    }  # fmt: skip
    return described_tool(name, description, schema)


_WAIT_S = 1.0
_CLICKS = {"click": ("left", 1), "double_click": ("left", 2), "right_click": ("right", 1)}


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
    """Return the pixels of the screen that are meant, or why there are none; None: none named.

    Args:
        device: Where.
        view: What the agent saw last; its marks count.
        arguments: Of an action: ``mark``, or ``x`` and ``y``.
        scale: Size of the picture that coordinates are meant in, relative to the screen.
    """
    if "mark" in arguments:
        found = view.named(arguments["mark"])
        if isinstance(found, str):
            return found
        device.reveal(found)
        return found.center
    return pixels_of(arguments, scale) if "x" in arguments else None


def pixels_of(arguments: Mapping[str, Any], scale: float) -> tuple[int, int]:
    """Return the pixels that ``x`` and ``y`` among ``arguments`` stand for at ``scale``."""
    return round(int(arguments["x"]) / scale), round(int(arguments["y"]) / scale)
