"""What an agent can do in a browser, in words and as JSON tool calls."""

from __future__ import annotations

from typing import Any

from turngym.environments.core.actions import Commands, JsonTools, function_tool

COMMANDS = Commands(
    {
        "click_at": "click at {x:int} {y:int}",
        "click": "click {mark}",
        "double_click": "double_click {mark}",
        "hover": "hover {mark}",
        "drag_at": "drag at {x:int} {y:int} to {to_x:int} {to_y:int}",
        "drag": "drag {mark} to {target}",
        "type": "type {mark} {text...:text}",
        "submit": "submit {mark} {text...:text}",
        "append": "append {mark} {text...:text}",
        "clear": "clear {mark}",
        "select": "select {mark} {option...}",
        "press": "press {keys...}",
        "scroll_in": "scroll {direction:up|down} in {mark}",
        "scroll": "scroll {direction:up|down}",
        "upload": "upload {mark} {file...}",
        "goto": "goto {url}",
        "go_back": "go_back",
        "new_tab": "new_tab",
        "close_tab": "close_tab",
        "switch_tab": "switch_tab {tab:int}",
        "wait": "wait",
        "answer": "answer {text...}",
        "stop": "stop",
    },
    help={
        "click": "mark is the number before an element",
        "click_at": "pixels from the top left corner of the view",
        "type": "replaces what the field holds; \\n is a line break",
        "submit": "type, then Enter",
        "append": "type behind what the field holds",
        "select": "an option of a list; where several may be chosen, again to let it go",
        "press": "keys such as Enter or Control+A, where the focus is",
        "upload": "a file of the episode's folder",
        "wait": "one second",
        "answer": "ends the episode with an answer",
        "stop": "ends the episode",
    },
    keep_case=True,
)
"""Every action in words; environments may offer fewer."""

_MARK = {"type": ["integer", "string"], "description": "number before an element"}
_TEXT = {"type": "string"}
_INT = {"type": "integer"}
_TOOLS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "click": ("Click an element.", {"mark": _MARK}, ["mark"]),
    "double_click": ("Click an element twice.", {"mark": _MARK}, ["mark"]),
    "hover": ("Move the mouse over an element.", {"mark": _MARK}, ["mark"]),
    "click_at": ("Click at pixels of the view.", {"x": _INT, "y": _INT}, ["x", "y"]),
    "drag": (
        "Drag one element onto another.", {"mark": _MARK, "target": _MARK}, ["mark", "target"],
    ),
    "drag_at": (
        "Drag from one point of the view to another.",
        dict.fromkeys(("x", "y", "to_x", "to_y"), _INT), ["x", "y", "to_x", "to_y"],
    ),
    "type": (
        "Type into a field; replaces what it holds unless clear is false.",
        {
            "mark": _MARK, "text": _TEXT, "clear": {"type": "boolean", "default": True},
            "submit": {"type": "boolean", "default": False, "description": "then press Enter"},
        },
        ["mark", "text"],
    ),
    "clear": ("Empty a field.", {"mark": _MARK}, ["mark"]),
    "select": ("Choose an option of a list.", {"mark": _MARK, "option": _TEXT}, ["mark", "option"]),
    "press": ("Press keys such as Enter or Control+A.", {"keys": _TEXT}, ["keys"]),
    "scroll": (
        "Scroll the page, or what the element is in.",
        {"direction": {"type": "string", "enum": ["up", "down"]}, "mark": _MARK}, ["direction"],
    ),
    "upload": (
        "Put a file of the episode's folder into a file field.",
        {"mark": _MARK, "file": _TEXT}, ["mark", "file"],
    ),
    "goto": ("Open an address.", {"url": _TEXT}, ["url"]),
    "go_back": ("Go back one page.", {}, []),
    "new_tab": ("Open a tab.", {}, []),
    "close_tab": ("Close this tab.", {}, []),
    "switch_tab": ("Go to another tab.", {"tab": _INT}, ["tab"]),
    "wait": ("Wait one second.", {}, []),
    "answer": ("End the episode with an answer.", {"text": _TEXT}, ["text"]),
    "stop": ("End the episode.", {}, []),
}  # fmt: skip
_IN_WORDS = {"submit": "type", "append": "type", "scroll_in": "scroll"}
"""Commands in words that are a tool with other arguments."""


def web_commands(names: tuple[str, ...]) -> Commands:
    """Return the actions called ``names``, in words."""
    kept = {name: text for name, text in COMMANDS.templates.items() if name in names}
    return Commands(
        kept, help={k: v for k, v in COMMANDS.help.items() if k in kept}, keep_case=True
    )


def web_tools(names: tuple[str, ...]) -> JsonTools:
    """Return the actions called ``names``, as JSON tool calls."""
    wanted = dict.fromkeys(_IN_WORDS.get(name, name) for name in names)
    return JsonTools([function_tool(name, *_TOOLS[name]) for name in wanted])


def as_tool_call(name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tool call that does what the command ``name`` does."""
    more = {"submit": {"submit": True}, "append": {"clear": False}}.get(name, {})
    return _IN_WORDS.get(name, name), {**arguments, **more}
