"""What a browser does for an agent: one function per action, within one episode's session."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from turngym.environments.core.actions import Action, Commands, JsonTools, function_tool
from turngym.environments.web.browser import BrowserGone
from turngym.environments.web.session import MAX_TABS, WebSession, first_line
from turngym.environments.web.tab import ContextLost, Tab, TabLost

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
    return Commands(kept, help=COMMANDS.help, keep_case=True)


def web_tools(names: tuple[str, ...]) -> JsonTools:
    """Return the actions called ``names``, as JSON tool calls."""
    wanted = dict.fromkeys(_IN_WORDS.get(name, name) for name in names)
    return JsonTools([function_tool(name, *_TOOLS[name]) for name in wanted])


def as_tool_call(name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tool call that does what the command ``name`` does with ``arguments``."""
    more = {"submit": {"submit": True}, "append": {"clear": False}}.get(name, {})
    return _IN_WORDS.get(name, name), {**arguments, **more}


# What each of them does.


_WAIT_S = 1.0
_DRAG_STEPS = 20
_PIECE_CHARS = 20
"""Characters for which a page has the time of one answer; a slow one takes a long text, too."""
_TYPED_CHARS = 120
"""Longer text is pasted instead of typed key by key."""


_COPY = {"c+control", "control+insert"}
_CUT = {"control+x", "delete+shift"}
_PASTE = {"control+v", "control+shift+v", "insert+shift"}
"""Keys in alphabetical order, with the episode's own clipboard; the browser's is shared by all."""


async def act(session: WebSession, action: Action) -> str | None:
    """Carry out ``action``; return why it could not be, or None.

    What an action sets off may close tabs or open others; ``look`` shows.

    Raises:
        BrowserGone: The browser died.
    """
    from playwright.async_api import Error

    session.state = None
    try:
        problem = await _act(session, action)
        if problem is None and action.name != "wait":
            await move_on(session)
        return problem
    except TabLost as lost:
        await session.replace_tab(str(lost))
    except ContextLost:
        session.notes.append("The page changed before that could be done.")
    except Error as error:
        if session.host.is_gone(error):
            raise BrowserGone(f"the browser died during {action.name}") from error
        return first_line(error)
    return None


async def _act(session: WebSession, action: Action) -> str | None:
    arguments = dict(action.arguments)
    mark = _number(arguments.get("mark"))
    if mark is None and "mark" in arguments:
        return f"{str(arguments['mark'])[:40]!r} is not the number of an element."
    match action.name:
        case "click" | "double_click" | "hover":
            return await _point(session, action.name, mark or 0)
        case "click_at":
            place = _place(session, arguments["x"], arguments["y"])
            await session.tab.within(session.tab.page.mouse.click(*place))
        case "drag":
            return await _drag(session, mark or 0, _number(arguments["target"]))
        case "drag_at":
            start = _place(session, arguments["x"], arguments["y"])
            end = _place(session, arguments["to_x"], arguments["to_y"])
            await _drag_mouse(session, start, end)
        case "type" | "submit" | "append" | "clear":
            return await _type(
                session,
                mark or 0,
                str(arguments.get("text", "")).replace("\\n", "\n"),
                clear=action.name != "append" and bool(arguments.get("clear", True)),
                submit=action.name == "submit" or bool(arguments.get("submit")),
            )
        case "select":
            return await _select(session, mark or 0, str(arguments["option"]))
        case "press":
            return await _press(session, str(arguments["keys"]))
        case "scroll" | "scroll_in":
            return await _scroll(session, mark or 0, str(arguments["direction"]))
        case "upload":
            return await _upload(session, mark or 0, str(arguments["file"]))
        case "wait":
            await wait(session, _WAIT_S)
        case _:
            return await _navigate(session, action.name, arguments)
    return None


def _place(session: WebSession, x: Any, y: Any) -> tuple[int, int]:
    """Return the nearest place in the view: far ones are the end of a page's process."""
    width, height = session.settings.width, session.settings.height
    return min(max(int(x), 0), width - 1), min(max(int(y), 0), height - 1)


async def _navigate(session: WebSession, name: str, arguments: dict[str, Any]) -> str | None:
    match name:
        case "goto":
            url = str(arguments["url"])
            url = url if "://" in url or ":" in url.split("/")[0] else f"http://{url}"
            if not session.proxy.admits(url):
                return f"{url[:80]!r} may not be opened."
            await session.goto(url)
        case "go_back":
            try:
                forgotten = await session.tab.go_back()
            except LookupError as problem:
                return str(problem)
            if forgotten is not None:
                await session.goto(forgotten)
        case "new_tab":
            if len(session.tabs) >= MAX_TABS:
                return f"At most {MAX_TABS} tabs can be open."
            await session.new_tab()
        case "close_tab":
            if len(session.tabs) == 1:
                return "The last tab cannot be closed."
            await session.drop_tab(session.tab)
        case "switch_tab":
            number = int(arguments["tab"])
            if not 0 <= number < len(session.tabs):
                return f"There is no tab {number}; tabs are 0 to {len(session.tabs) - 1}."
            session.active = number
            await session.tab.within(session.tab.page.bring_to_front())
        case _:
            return f"{name!r} is not possible here."
    return None


async def _point(session: WebSession, name: str, mark: int) -> str | None:
    found = await session.tab.call("locate", mark)
    if "problem" in found:
        return _problem(mark, found["problem"])
    if found["covered"]:
        session.notes.append(f"[{mark}] is covered by {found['covered']}.")
    mouse, x, y = session.tab.page.mouse, found["x"], found["y"]
    if name == "hover":
        await session.tab.within(mouse.move(x, y, steps=2))
    else:
        await session.tab.within(mouse.click(x, y, click_count=1 + (name == "double_click")))
    return None


async def _drag(session: WebSession, mark: int, target: int | None) -> str | None:
    if target is None:
        return "The target is not the number of an element."
    found = await session.tab.call("locateBoth", mark, target)
    if "problem" in found:
        return _problem(found["mark"], found["problem"])
    start, end = found["places"]
    await _drag_mouse(session, (start["x"], start["y"]), (end["x"], end["y"]))
    return None


async def _drag_mouse(
    session: WebSession, start: tuple[float, float], end: tuple[float, float]
) -> None:
    mouse, within = session.tab.page.mouse, session.tab.within
    await within(mouse.move(*start))
    await show_frame(session)
    await within(mouse.down())
    for step in range(1, _DRAG_STEPS + 1):
        x, y = (a + (b - a) * step / _DRAG_STEPS for a, b in zip(start, end, strict=True))
        await within(mouse.move(x, y))
        await show_frame(session)
    await within(mouse.up())


async def _type(
    session: WebSession, mark: int, text: str, *, clear: bool, submit: bool
) -> str | None:
    tab = session.tab
    for is_last in (False, True):
        found = await tab.call("edit", mark, text, clear)
        if found.get("isFresh"):  # an editor puts its own cursor when it gets the focus
            found = await tab.call("edit", mark, text, clear)
        if "problem" in found:
            return _problem(mark, found["problem"])
        if "kept" in found:
            return f"[{mark}] did not take {text[:40]!r}; it holds {found['kept'][:40]!r}."
        if found["way"] == "keys":
            await _type_keys(session.tab, found, text, clear=clear)
        if is_last or not clear or not await _is_cut_short(session, mark, text):
            break
    if submit:
        await tab.within(tab.page.keyboard.press("Enter"))
    return None


async def _type_keys(tab: Tab, found: dict[str, Any], text: str, *, clear: bool) -> None:
    """Type where the focus is, which is in what was ``found``."""
    keyboard, within = tab.page.keyboard, tab.within
    if found.get("end"):
        await within(keyboard.press("End"))
    if clear and found.get("isArea"):  # what an editor shows may not be in its field
        await within(keyboard.press("ControlOrMeta+a"))
    if clear and not found["empty"]:
        await within(keyboard.press("Delete"))
    typed, pasted = text[:_TYPED_CHARS], text[_TYPED_CHARS:]
    for start in range(0, len(typed), _PIECE_CHARS):
        await within(keyboard.type(typed[start : start + _PIECE_CHARS]))
    if pasted:
        await within(keyboard.insert_text(pasted))


async def _is_cut_short(session: WebSession, mark: int, text: str) -> bool:
    """Say, once the page is quiet again, whether a field holds the first part of a text alone."""
    with suppress(ContextLost):  # what was typed led to another page
        if await session.tab.call("isCutShort", mark, text):
            await session.tab.call("settle", session.settings.quiet_ms, session.settings.cap_ms, 0)
            return True
    return False


async def _select(session: WebSession, mark: int, option: str) -> str | None:
    found = await session.tab.call("choose", mark, option)
    if found.get("problem") == "no option":
        return f"[{mark}] has no option {option[:40]!r}; options: {' | '.join(found['options'])}."
    return _problem(mark, found["problem"]) if "problem" in found else None


async def _press(session: WebSession, keys: str) -> str | None:
    from playwright.async_api import Error

    keys = keys.replace(" ", "")
    plain = keys.lower().replace("ormeta+", "+").replace("+key", "+")
    chord = "+".join(sorted(plain.split("+")))
    try:
        if chord in _COPY | _CUT:
            selected = await session.tab.call("selected")
            session.clipboard = selected or session.clipboard
            keys = "Delete" if selected and chord in _CUT else "Control"
        if chord in _PASTE:
            await session.tab.within(session.tab.page.keyboard.insert_text(session.clipboard))
        else:
            await session.tab.within(session.tab.page.keyboard.press(keys))
    except Error as error:
        if "Unknown key" in str(error):
            return f"Unknown key {keys[:40]!r}; keys are such as Enter, Tab, a or Control+A."
        raise
    return None


async def _scroll(session: WebSession, mark: int, direction: str) -> str | None:
    found = await session.tab.call("scroll", mark, direction)
    if "problem" in found:
        return _problem(mark, found["problem"])
    if not found["moved"]:
        session.notes.append("There is nothing more to scroll.")
    return None


async def _upload(session: WebSession, mark: int, name: str) -> str | None:
    try:
        file = (session.folder / name).resolve()
        is_there = file.is_relative_to(session.folder.resolve()) and file.is_file()
    except (OSError, ValueError):  # no name of a file at all
        is_there = False
    if not is_there:
        known = ", ".join(sorted(one.name for one in session.folder.iterdir())) or "none"
        return f"There is no file {name[:80]!r}; files: {known}."
    if problem := await session.tab.call("problem", mark):
        return _problem(mark, problem)
    if not await session.tab.upload(mark, [str(file)]):
        return f"[{mark}] takes no file."
    return None


def _number(mark: Any) -> int | None:
    text = str(int(mark) if isinstance(mark, float) else mark).strip().strip("[]#")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None


def _problem(mark: int, kind: str) -> str:
    return {
        "unknown": f"There is no element [{mark}] on this page.",
        "gone": f"Element [{mark}] is gone; the page has changed.",
        "hidden": f"Element [{mark}] is not visible.",
        "behind": f"Element [{mark}] cannot be reached; something else on the page is open.",
        "apart": f"Element [{mark}] is too far from the other to be in view together.",
        "disabled": f"Element [{mark}] cannot be changed.",
        "option disabled": f"That option of [{mark}] cannot be chosen.",
        "no field": f"Nothing can be typed into [{mark}].",
        "no list": f"[{mark}] is no list of options; click it instead.",
    }[kind]


# How time passes on a page: by itself, or only while the agent acts.

_FRAME_S = 0.02
_CLOCK = "globalThis.turngymClock"
_MOVE = """(state, move) =>
  state()?.[0] ? [false, state()] : move().then((goesOn) => [goesOn, state()])"""
_RESTS = 20
"""How often a page may answer, once in some seconds, that its clock still goes on."""


async def wait(session: WebSession, seconds: float) -> None:
    """Let time pass on the page.

    Args:
        session: Shows the page; on a clock that stands still the time costs next to none.
        seconds: How long, by the page's clock.

    Raises:
        TabLost: The page did not come to rest.
    """
    turn_ms = session.settings.turn_ms
    if turn_ms is None:
        await asyncio.sleep(seconds)
    else:
        is_paced = "true" if turn_ms else "false"
        await _tell_clock(session, f"pass({round(seconds * 1000)}, {is_paced})")


async def move_on(session: WebSession) -> None:
    """Let pass what an action takes, on a page whose clock stands still."""
    settings = session.settings
    if settings.turn_ms:
        await wait(session, settings.turn_ms / 1000)
    elif settings.turn_ms == 0:
        await _tell_clock(session, f"settle({settings.cap_ms})")


async def show_frame(session: WebSession) -> None:
    """Let the page see where the mouse is, on a page whose clock stands still."""
    if session.settings.turn_ms is not None:
        await wait(session, _FRAME_S)


async def _tell_clock(session: WebSession, call: str) -> None:
    for _ in range(_RESTS):  # on a busy machine it takes a while
        goes_on, session.state = await session.tab.main(
            f"({_MOVE})(() => {session.settings.state}, async () => {_CLOCK}?.{call})"
        )
        if not goes_on:
            return
        call = "rest()"
    raise TabLost("The page did not come to rest and was closed.")
