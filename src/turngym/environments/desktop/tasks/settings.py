"""Tasks with settings, judged on the files that programs keep them in."""

from __future__ import annotations

import re
from random import Random
from xml.etree import ElementTree

from turngym.environments.core.actions import Action
from turngym.environments.desktop.observation import View
from turngym.environments.desktop.problems import (
    DesktopProblem,
    DesktopWorld,
    Generator,
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


def _openbox(desktop: DesktopWorld, path: str) -> str:
    """Return a setting of the window manager, by its path in the file."""
    try:
        tree = ElementTree.fromstring(desktop.config(_OPENBOX))  # made by obconf from our own file
    except ElementTree.ParseError:
        return ""
    found = tree.find("/".join(_XML + name for name in path.split("/")))
    return "" if found is None or found.text is None else found.text.strip()


def _windows(rng: Random, goal: str, path: str, wanted: str, script: Script) -> DesktopProblem:
    """Return the problem to change one setting of windows, and the number of desktops."""
    number = str(rng.randint(2, 30))

    def is_done(desktop: DesktopWorld) -> bool:
        return _openbox(desktop, path) == wanted and _openbox(desktop, "desktops/number") == number

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


def _desktops(rng: Random) -> DesktopProblem:
    return _windows(rng, "", "theme/name", "Clearlooks", ())


def _theme(rng: Random) -> DesktopProblem:
    name = rng.choice(_SHOWN_THEMES)
    script = click(name, "cell")
    return _windows(rng, f"choose the theme {name} and ", "theme/name", name, script)


def _check(tab: str, label: str, goal: str, path: str, wanted: str) -> Generator:
    def generator(rng: Random) -> DesktopProblem:
        script = (*click(tab, "tab"), *click(label, "check box"))
        return _windows(rng, f"{goal} and ", path, wanted, script)

    generator.__doc__ = f"Tick {label!r}."
    return generator


_follow_mouse = _check(
    "Mouse", "Focus windows when the mouse pointer moves over them",
    "let the focus follow the mouse pointer", "focus/followMouse", "yes",
)  # fmt: skip
_new_windows = _check(
    "Windows", "Focus new windows when they appear",
    "keep new windows from taking the focus", "focus/focusNew", "no",
)  # fmt: skip


def _editor(goal: str, name: str, wanted: str, script: Script) -> Generator:
    def generator(rng: Random) -> DesktopProblem:
        file, text = file_name(rng), "\n".join(lines(rng, 4)) + "\n"

        def is_done(desktop: DesktopWorld) -> bool:
            pattern = rf"^{re.escape(name)}=(.*)$"
            found = re.findall(pattern, desktop.config(_MOUSEPAD), re.MULTILINE)
            return bool(found) and found[-1] == wanted

        return DesktopProblem(
            prompt=f"In the text editor, {goal}.",
            files={file: text},
            launch=(("mousepad", file),),
            wanted={file: text},
            is_done=is_done,
            script=script,
        )

    generator.__doc__ = f"Set {name} to {wanted}."
    return generator


_line_numbers = _editor(
    "show line numbers", "show-line-numbers", "true",
    (*click("View", "menu"), *click("Line Numbers", "menu item")),
)  # fmt: skip
_status_bar = _editor(
    "show the status bar", "statusbar-visible", "true",
    (*click("View", "menu"), *click("Statusbar", "menu item")),
)  # fmt: skip
_word_wrap = _editor(
    "turn on word wrap", "word-wrap", "true",
    (*click("Document", "menu"), *click("Word Wrap", "menu item")),
)  # fmt: skip
