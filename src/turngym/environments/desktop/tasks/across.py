"""Tasks over two applications side by side."""

from __future__ import annotations

from random import Random

from turngym.environments.core.actions import Action
from turngym.environments.desktop.observation import View
from turngym.environments.desktop.problems import (
    DesktopState,
    Files,
    Problem,
    ProblemGenerator,
    Step,
    click,
    key,
    typed,
)
from turngym.environments.desktop.tasks.sheets import workbook
from turngym.environments.desktop.tasks.words import file_name, file_names, lines, words

_NAME = "totals.gnumeric"


def _text_of(window: str) -> tuple[Step, ...]:
    """Put the focus into the text of the editor whose title holds ``window``."""

    def step(view: View) -> Action:
        for one in view.elements:
            if one.role == "text" and window in one.window:
                return Action(name="click", arguments={"mark": one.mark})
        raise LookupError(f"no text in a window {window!r}")

    return (step,)


def _buttons(keys: str) -> tuple[Step, ...]:
    return tuple(step for char in keys for step in click(char, "toggle button"))


def _compute_into_note(rng: Random) -> Problem:
    name, a, b = file_name(rng), rng.randint(12, 99), rng.randint(12, 99)
    text = f"{rng.choice(words(rng, 3))}: {a} * {b}\n"
    wanted = {name: f"{text}{a * b}\n"}
    return Problem(
        goal=f"Compute the product in {name} with the calculator, write the result into the "
        "next line of the file, and save it.",
        files={name: text},
        launch=(("galculator",), ("mousepad", name)),
        is_done=lambda desktop: desktop.holds(wanted),
        script=(
            *_buttons(f"{a}*{b}="), *key("ctrl+c"), *_text_of("Mousepad"),
            *key("ctrl+end", "ctrl+v", "ctrl+s"),
        ),
    )  # fmt: skip


def _note_into_clipboard(rng: Random) -> Problem:
    name, numbers = file_name(rng), [rng.randint(11, 999) for _ in range(3)]
    files = {name: "".join(f"{n}\n" for n in numbers)}

    def is_done(desktop: DesktopState) -> bool:
        return desktop.clipboard() == str(sum(numbers)) and desktop.holds(files)

    return Problem(
        goal=f"Add up the numbers in {name} with the calculator, and copy the sum to the "
        "clipboard.",
        files=files,
        launch=(("mousepad", name), ("galculator",)),
        is_done=is_done,
        script=(*_buttons("+".join(map(str, numbers)) + "="), *key("ctrl+c")),
    )


def _list_files(rng: Random) -> Problem:
    folder, names = words(rng, 1)[0], file_names(rng, rng.randint(2, 4), ".md")
    inside = {f"{folder}/{name}": "" for name in names}
    return Problem(
        goal=f"Write the names of all files in the folder {folder} into list.txt, one a line in "
        "alphabetical order, and save it.",
        files={**inside, "list.txt": ""},
        launch=(("pcmanfm", folder), ("mousepad", "list.txt")),
        is_done=lambda desktop: desktop.holds({**inside, "list.txt": "\n".join(names)}),
        script=(*_text_of("Mousepad"), *typed("\n".join(names)), *key("ctrl+s")),
    )


def _rename_as_told(rng: Random) -> Problem:
    old, new = file_names(rng, 2, ".md")
    text = "\n".join(lines(rng, 2)) + "\n"
    note = f"{old} shall be called {new}\n"
    return Problem(
        goal="Do what todo.txt says, and do not change it.",
        files={old: text, "todo.txt": note},
        launch=(("mousepad", "todo.txt"), ("pcmanfm",)),
        is_done=lambda desktop: desktop.holds({new: text, "todo.txt": note}),
        script=(*click(old, "cell"), *key("f2", "ctrl+a"), *typed(new), *key("enter")),
    )


def _number_into_sheet(rng: Random) -> Problem:
    name, value = file_name(rng), rng.randint(100, 9_999)
    text = f"{value}\n"
    rows: list[list[str | int]] = [["total", 0]]

    def is_done(desktop: DesktopState) -> bool:
        found = desktop.tree()
        return (
            found.keys() == {name, _NAME}
            and found[name] == text.encode()
            and desktop.sheet(_NAME) == [["total", str(value)]]
        )

    return Problem(
        goal=f"Put the number in {name} into cell B1 of {_NAME}, and save the workbook.",
        files={name: text, _NAME: workbook(rows)},
        launch=(("mousepad", name), ("gnumeric", _NAME)),
        is_done=is_done,
        script=(*key("ctrl+home", "right"), *typed(str(value)), *key("enter", "ctrl+s")),
    )


def _sheet_into_note(rng: Random) -> Problem:
    value, name = rng.randint(100, 9_999), words(rng, 1)[0]
    book = workbook([["item", "amount"], [name, value]])
    wanted: Files = {_NAME: book, "note.txt": f"{value}\n"}
    return Problem(
        goal=f'Write the amount of "{name}" in {_NAME} into note.txt, and save it. Leave the '
        "workbook as it is.",
        files={_NAME: book, "note.txt": ""},
        launch=(("gnumeric", _NAME), ("mousepad", "note.txt")),
        is_done=lambda desktop: desktop.holds(wanted),
        script=(*_text_of("Mousepad"), *typed(f"{value}\n"), *key("ctrl+s")),
    )


ACROSS: dict[str, ProblemGenerator] = {
    "across-compute-into-note": _compute_into_note, "across-list-files": _list_files,
    "across-note-into-clipboard": _note_into_clipboard,
    "across-number-into-sheet": _number_into_sheet, "across-rename-as-told": _rename_as_told,
    "across-sheet-into-note": _sheet_into_note,
}  # fmt: skip
