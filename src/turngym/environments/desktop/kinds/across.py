"""Tasks over two applications side by side."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from turngym.environments.core.actions import Action
from turngym.environments.desktop.jobs import Desk, Files, Job
from turngym.environments.desktop.kinds.sheets import workbook
from turngym.environments.desktop.kinds.words import file_name, file_names, lines, words
from turngym.environments.desktop.observation import View
from turngym.environments.desktop.scripts import Step, click, key, typed

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


def compute_into_note(rng: Random) -> Job:
    """Compute what a note asks for, and write the result below it."""
    name, a, b = file_name(rng), rng.randint(12, 99), rng.randint(12, 99)
    text = f"{rng.choice(words(rng, 3))}: {a} * {b}\n"
    wanted = {name: f"{text}{a * b}\n"}
    return Job(
        goal=f"Compute the product in {name} with the calculator, write the result into the "
        "next line of the file, and save it.",
        files={name: text},
        launch=(("galculator",), ("mousepad", name)),
        is_done=lambda desk: desk.holds(wanted),
        script=(
            *_buttons(f"{a}*{b}="), *key("ctrl+c"), *_text_of("Mousepad"),
            *key("ctrl+end", "ctrl+v", "ctrl+s"),
        ),
    )  # fmt: skip


def note_into_clipboard(rng: Random) -> Job:
    """Add up the numbers of a note, and leave the sum on the clipboard."""
    name, numbers = file_name(rng), [rng.randint(11, 999) for _ in range(3)]
    files = {name: "".join(f"{n}\n" for n in numbers)}

    def is_done(desk: Desk) -> bool:
        return desk.clipboard() == str(sum(numbers)) and desk.holds(files)

    return Job(
        goal=f"Add up the numbers in {name} with the calculator, and copy the sum to the "
        "clipboard.",
        files=files,
        launch=(("mousepad", name), ("galculator",)),
        is_done=is_done,
        script=(*_buttons("+".join(map(str, numbers)) + "="), *key("ctrl+c")),
    )


def list_files(rng: Random) -> Job:
    """Write the names of files into a note."""
    folder, names = words(rng, 1)[0], file_names(rng, rng.randint(2, 4), ".md")
    inside = {f"{folder}/{name}": "" for name in names}
    return Job(
        goal=f"Write the names of all files in the folder {folder} into list.txt, one a line in "
        "alphabetical order, and save it.",
        files={**inside, "list.txt": ""},
        launch=(("pcmanfm", folder), ("mousepad", "list.txt")),
        is_done=lambda desk: desk.holds({**inside, "list.txt": "\n".join(names)}),
        script=(*_text_of("Mousepad"), *typed("\n".join(names)), *key("ctrl+s")),
    )


def rename_as_told(rng: Random) -> Job:
    """Give a file the name that a note tells."""
    old, new = file_names(rng, 2, ".md")
    text = "\n".join(lines(rng, 2)) + "\n"
    note = f"{old} shall be called {new}\n"
    return Job(
        goal="Do what todo.txt says, and do not change it.",
        files={old: text, "todo.txt": note},
        launch=(("mousepad", "todo.txt"), ("pcmanfm",)),
        is_done=lambda desk: desk.holds({new: text, "todo.txt": note}),
        script=(*click(old, "cell"), *key("f2", "ctrl+a"), *typed(new), *key("enter")),
    )


def number_into_sheet(rng: Random) -> Job:
    """Copy a number from a note into a cell."""
    name, value = file_name(rng), rng.randint(100, 9_999)
    text = f"{value}\n"
    rows: list[list[str | int]] = [["total", 0]]

    def is_done(desk: Desk) -> bool:
        found = desk.tree()
        return (
            found.keys() == {name, _NAME}
            and found[name] == text.encode()
            and desk.sheet(_NAME) == [["total", str(value)]]
        )

    return Job(
        goal=f"Put the number in {name} into cell B1 of {_NAME}, and save the workbook.",
        files={name: text, _NAME: workbook(rows)},
        launch=(("mousepad", name), ("gnumeric", _NAME)),
        is_done=is_done,
        script=(*key("ctrl+home", "right"), *typed(str(value)), *key("enter", "ctrl+s")),
    )


def sheet_into_note(rng: Random) -> Job:
    """Write a number of a sheet into a note."""
    value, name = rng.randint(100, 9_999), words(rng, 1)[0]
    book = workbook([["item", "amount"], [name, value]])
    wanted: Files = {_NAME: book, "note.txt": f"{value}\n"}
    return Job(
        goal=f'Write the amount of "{name}" in {_NAME} into note.txt, and save it. Leave the '
        "workbook as it is.",
        files={_NAME: book, "note.txt": ""},
        launch=(("gnumeric", _NAME), ("mousepad", "note.txt")),
        is_done=lambda desk: desk.holds(wanted),
        script=(*_text_of("Mousepad"), *typed(f"{value}\n"), *key("ctrl+s")),
    )


ACROSS: dict[str, Callable[[Random], Job]] = {
    "across-compute-into-note": compute_into_note, "across-list-files": list_files,
    "across-note-into-clipboard": note_into_clipboard,
    "across-number-into-sheet": number_into_sheet, "across-rename-as-told": rename_as_told,
    "across-sheet-into-note": sheet_into_note,
}  # fmt: skip
