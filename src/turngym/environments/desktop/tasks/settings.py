"""Tasks with settings, judged on the files that programs keep them in."""

from __future__ import annotations

from configparser import ParsingError, RawConfigParser
from contextlib import suppress
from functools import cache, partial
from importlib.resources import files
from random import Random
from xml.etree import ElementTree

from turngym.environments.core.actions import Action
from turngym.environments.desktop.observation import View
from turngym.environments.desktop.problems import (
    DesktopProblem,
    DesktopWorld,
    Script,
    click,
    key,
    typed,
)
from turngym.environments.desktop.tasks.words import file_name, lines

_OPENBOX = ".config/openbox/rc.xml"
_XML = "{http://openbox.org/3.4/rc}"
_SHOWN_THEMES = ("Clearlooks-3.4", "Clearlooks-Olive")
_MOUSEPAD = ".config/glib-2.0/settings/keyfile"
_SCHEMA = "/usr/share/glib-2.0/schemas/org.xfce.mousepad.gschema.xml"


def _values(text: str) -> dict[str, str]:
    """Return the window manager's settings by their paths in its file."""
    found: dict[str, str] = {}

    def read(element: ElementTree.Element, path: str) -> None:
        for one in element:
            marks = "".join(f"[{value}]" for value in one.attrib.values())
            place = f"{path}{one.tag.removeprefix(_XML)}{marks}"
            if value := (one.text or "").strip():
                found[place] = value
            read(one, f"{place}/")

    with suppress(ElementTree.ParseError):
        read(ElementTree.fromstring(text), "")  # made by obconf from our own file
    return found


@cache
def _start() -> dict[str, str]:
    file = files("turngym.environments.desktop").joinpath("settings", "openbox.xml")
    return _values(file.read_text("utf-8"))


def _windows(rng: Random, goal: str, path: str, wanted: str, script: Script) -> DesktopProblem:
    """Return the problem to change one setting of windows, and the number of desktops."""
    number = str(rng.randint(2, 30))

    def is_done(desktop: DesktopWorld) -> bool:
        every = {**_start(), path: wanted, "desktops/number": number}
        return every.items() <= _values(desktop.config(_OPENBOX)).items()

    return DesktopProblem(
        prompt=f"In the window settings, {goal}set the number of desktops to {number}.",
        launch=(("obconf",),),
        is_done=is_done,
        script=(*script, *click("Desktops", "tab"), *_into_field(number)),
    )


def _into_field(text: str) -> Script:
    """Write into the first number field that can be written to."""

    def step(view: View) -> Action:
        for one in view.elements:
            if one.role == "spin button" and "disabled" not in one.states:
                return Action(name="click", arguments={"mark": one.mark})
        raise LookupError("no number field")

    # Not by a double click: on a slow machine its two clicks may be too far apart to select.
    return (step, *key("ctrl+a"), *typed(text), *key("tab"))


def _ticked(tab: str, label: str) -> Script:
    return (*click(tab, "tab"), *click(label, "check box"))


def _theme(rng: Random) -> DesktopProblem:
    name = rng.choice(_SHOWN_THEMES)
    return _windows(rng, f"choose the theme {name} and ", "theme/name", name, click(name, "cell"))


_desktops = partial(_windows, goal="", path="theme/name", wanted="Clearlooks", script=())
_follow_mouse = partial(
    _windows,
    goal="let the focus follow the mouse pointer and ",
    path="focus/followMouse",
    wanted="yes",
    script=_ticked("Mouse", "Focus windows when the mouse pointer moves over them"),
)
_new_windows = partial(
    _windows,
    goal="keep new windows from taking the focus and ",
    path="focus/focusNew",
    wanted="no",
    script=_ticked("Windows", "Focus new windows when they appear"),
)


def _preferences(text: str) -> dict[str, str]:
    """Return the text editor's settings that are not as they come, by their paths."""
    parser = RawConfigParser(strict=False, delimiters="=")
    with suppress(ParsingError):
        parser.read_string(text)
    found = {f"{group}/{key}": value for group in parser for key, value in parser[group].items()}
    before = _defaults()
    return {key: value for key, value in found.items() if before.get(key, value) != value}


@cache
def _defaults() -> dict[str, str]:
    """Return the text editor's settings as they come."""
    return {
        f"{schema.attrib['id'].replace('.', '/')}/{key.attrib['name']}": key.findtext("default", "")
        for schema in ElementTree.parse(_SCHEMA).iter("schema")
        for key in schema.iter("key")
        if schema.attrib["id"].startswith("org.xfce.mousepad.preferences.")
    }


def _editor(rng: Random, goal: str, name: str, menu: str, entry: str) -> DesktopProblem:
    """Return the problem to turn a setting of the text editor on, by an entry of a menu."""
    file, text = file_name(rng), "\n".join(lines(rng, 4)) + "\n"

    def is_done(desktop: DesktopWorld) -> bool:
        changed = _preferences(desktop.config(_MOUSEPAD))
        return changed == {f"org/xfce/mousepad/preferences/{name}": "true"}

    return DesktopProblem(
        prompt=f"In the text editor, {goal}.",
        files={file: text},
        launch=(("mousepad", file),),
        wanted={file: text},
        is_done=is_done,
        script=(*click(menu, "menu"), *click(entry, "menu item")),
    )


_line_numbers = partial(
    _editor,
    goal="show line numbers",
    name="view/show-line-numbers",
    menu="View",
    entry="Line Numbers",
)
_status_bar = partial(
    _editor,
    goal="show the status bar",
    name="window/statusbar-visible",
    menu="View",
    entry="Statusbar",
)
_word_wrap = partial(
    _editor, goal="turn on word wrap", name="view/word-wrap", menu="Document", entry="Word Wrap"
)
