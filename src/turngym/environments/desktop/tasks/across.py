"""Tasks over two applications side by side."""

from __future__ import annotations

from random import Random

from turngym.environments.core.actions import Action
from turngym.environments.desktop.observation import View
from turngym.environments.desktop.problems import DesktopProblem, Script, click, key, typed
from turngym.environments.desktop.tasks.calculator import buttons
from turngym.environments.desktop.tasks.sheets import workbook
from turngym.environments.desktop.tasks.words import file_name, file_names, lines, words

_NAME = "totals.gnumeric"


def _text_of(window: str) -> Script:
    """Put the focus into the text of the editor whose title holds ``window``."""

    def step(view: View) -> Action:
        for one in view.elements:
            if one.role == "text" and window in one.window:
                return Action(name="click", arguments={"mark": one.mark})
        raise LookupError(f"no text in a window {window!r}")

    return (step,)


def _compute_into_note(rng: Random) -> DesktopProblem:
    name, a, b = file_name(rng), rng.randint(12, 99), rng.randint(12, 99)
    text = f"{rng.choice(words(rng, 3))}: {a} * {b}\n"
    return DesktopProblem(
        prompt=f"Compute the product in {name} with the calculator, write the result into the "
        "next line of the file, and save it.",
        files={name: text},
        launch=(("galculator",), ("mousepad", name)),
        wanted={name: f"{text}{a * b}\n"},
        script=(
            *buttons(f"{a}*{b}="), *key("ctrl+c"), *_text_of("Mousepad"),
            *key("ctrl+end", "ctrl+v", "ctrl+s"),
        ),
    )  # fmt: skip


def _note_into_clipboard(rng: Random) -> DesktopProblem:
    name, numbers = file_name(rng), [rng.randint(11, 999) for _ in range(3)]
    files = {name: "".join(f"{n}\n" for n in numbers)}
    return DesktopProblem(
        prompt=f"Add up the numbers in {name} with the calculator, and copy the sum to the "
        "clipboard.",
        files=files,
        launch=(("mousepad", name), ("galculator",)),
        wanted=files,
        is_done=lambda desktop: desktop.clipboard() == str(sum(numbers)),
        script=(*buttons("+".join(map(str, numbers)) + "="), *key("ctrl+c")),
    )


def _list_files(rng: Random) -> DesktopProblem:
    folder, names = words(rng, 1)[0], file_names(rng, rng.randint(2, 4), ".md")
    while names != sorted(names, key=_as_shown):  # what is asked must not depend on the order
        names = file_names(rng, len(names), ".md")
    inside = {f"{folder}/{name}": "" for name in names}
    return DesktopProblem(
        prompt=f"Write the names of all files in the folder {folder} into list.txt, one a line in "
        "alphabetical order, and save it.",
        files={**inside, "list.txt": ""},
        launch=(("pcmanfm", folder), ("mousepad", "list.txt")),
        wanted={**inside, "list.txt": "\n".join(names)},
        script=(*_text_of("Mousepad"), *typed("\n".join(names)), *key("ctrl+s")),
    )


def _as_shown(name: str) -> tuple[str, int, str]:
    """Return the place of a name where numbers count as numbers, as the file manager has it."""
    return name.partition("-")[0], len(name), name


def _rename_as_told(rng: Random) -> DesktopProblem:
    old, new = file_names(rng, 2, ".md")
    text = "\n".join(lines(rng, 2)) + "\n"
    note = f"{old} shall be called {new}\n"
    return DesktopProblem(
        prompt="Do what todo.txt says, and do not change it.",
        files={old: text, "todo.txt": note},
        launch=(("mousepad", "todo.txt"), ("pcmanfm",)),
        wanted={new: text, "todo.txt": note},
        script=(*click(old, "cell"), *key("f2", "ctrl+a"), *typed(new), *key("enter")),
    )


def _number_into_sheet(rng: Random) -> DesktopProblem:
    name, value = file_name(rng), rng.randint(100, 9_999)
    text = f"{value}\n"
    return DesktopProblem(
        prompt=f"Put the number in {name} into cell B1 of {_NAME}, and save the workbook.",
        files={name: text, _NAME: workbook([["total", 0]])},
        launch=(("mousepad", name), ("gnumeric", _NAME)),
        wanted={name: text, _NAME: [["total", str(value)]]},
        script=(*key("ctrl+home", "right"), *typed(str(value)), *key("enter", "ctrl+s")),
    )


def _sheet_into_note(rng: Random) -> DesktopProblem:
    value, name = rng.randint(100, 9_999), words(rng, 1)[0]
    rows = [["item", "amount"], [name, str(value)]]
    return DesktopProblem(
        prompt=f'Write the amount of "{name}" in {_NAME} into note.txt, and save it. Leave the '
        "workbook as it is.",
        files={_NAME: workbook([rows[0], [name, value]]), "note.txt": ""},
        launch=(("gnumeric", _NAME), ("mousepad", "note.txt")),
        wanted={_NAME: rows, "note.txt": f"{value}\n"},  # saved anew its file is another one
        script=(*_text_of("Mousepad"), *typed(f"{value}\n"), *key("ctrl+s")),
    )
