"""What an agent can do on a device, in words and as JSON tool calls."""

from __future__ import annotations

from typing import Any

from turngym.environments.core.actions import Action, Commands, JsonTools

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
    "scroll_in": "scroll {direction:up|down} in {mark}",
    "scroll": "scroll {direction:up|down}",
    "type": "type {text...:text}",
    "key": "key {keys...}",
    "box": "box {left:int} {top:int} {right:int} {bottom:int}",
    "wait": "wait",
    "answer": "answer {text...}",
    "stop": "stop",
}
_HELP = {
    "click": "mark is the number before an element",
    "click_at": "pixels from the top left corner of the screen",
    "type": "at the focus; \\n is Enter",
    "box": "the edges of an element, in pixels",
    "key": "a key or chord, such as enter, f2 or ctrl+shift+s",
    "wait": "one second",
    "answer": "ends the episode with an answer",
    "stop": "ends the episode",
}
NAMES = tuple(name for name in _TEMPLATES if name != "box")
"""Every action in words that does something."""
TOUCHES = tuple(name for name in NAMES if not name.startswith("move"))
"""Those of a phone, which has no pointer."""
PHONE_KEYS = ("back", "home", "enter", "backspace")

_INT: dict[str, Any] = {"type": "integer"}
_PLACE = {"mark": {**_INT, "description": "number before an element"}, "x": _INT, "y": _INT}
_UP_DOWN = {"direction": {"type": "string", "enum": ["up", "down"]}}
_MARK_OR_PLACE = [{"required": ["mark"]}, {"required": ["x", "y"]}]


def device_commands(names: tuple[str, ...]) -> Commands:
    """Return the actions called ``names``, in words."""
    kept = {name: text for name, text in _TEMPLATES.items() if name in names}
    help = {name: text for name, text in _HELP.items() if name in kept}
    return Commands(kept, help=help, keep_case=True)


def device_tools(names: tuple[str, ...]) -> JsonTools:
    """Return the actions called ``names``, as JSON tool calls."""
    wanted = dict.fromkeys(name.removesuffix("_at").removesuffix("_in") for name in names)
    return JsonTools([_tool(name) for name in wanted])


def as_tool_call(action: Action) -> Action:
    """Return the tool call that does what an action in words does."""
    name = action.name.removesuffix("_at").removesuffix("_in")
    arguments = dict(action.arguments)
    for key in ("mark", "target"):
        if key in arguments:
            arguments[key] = int(arguments[key])
    return Action(name=name, arguments=arguments)


def _tool(name: str) -> dict[str, Any]:
    text = {"type": "string"}
    match name:
        case "drag":
            ends = {**_PLACE, "target": _INT, "to_x": _INT, "to_y": _INT}
            one_of = [{"required": ["mark", "target"]}, {"required": ["x", "y", "to_x", "to_y"]}]
            return _function(name, "Drag from one place to another.", ends, anyOf=one_of)
        case "scroll":
            places = {**_UP_DOWN, **_PLACE}
            return _function(name, "Scroll some lines.", places, required=["direction"])
        case "type":
            return _function(name, "Type text at the focus.", {"text": text}, required=["text"])
        case "key":
            about = "Press a key or chord, such as enter, f2 or ctrl+shift+s."
            return _function(name, about, {"keys": text}, required=["keys"])
        case "box":
            edges = dict.fromkeys(("left", "top", "right", "bottom"), _INT)
            return _function(name, "Give the edges in pixels.", edges, required=list(edges))
        case "wait":
            return _function(name, "Wait one second.", {})
        case "answer":
            about = "End the episode with an answer."
            return _function(name, about, {"text": text}, required=["text"])
        case "stop":
            return _function(name, "End the episode.", {})
        case _:
            return _function(name, _POINTED[name], _PLACE, anyOf=_MARK_OR_PLACE)


def _function(
    name: str, description: str, properties: dict[str, Any], **more: Any
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "required": [],
        **more,
    }
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}
