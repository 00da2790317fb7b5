"""Tasks in the text editor, judged on the files it saved or on the clipboard."""

from __future__ import annotations

from random import Random

from turngym.environments.desktop.problems import DesktopProblem, Script, key, typed
from turngym.environments.desktop.tasks.words import file_name, lines, sentence, words


def _edit(
    goal: str, name: str, before: list[str], after: list[str], script: Script = ()
) -> DesktopProblem:
    """Return the problem to turn the lines of an open file into others, typed anew by default."""
    wanted = "\n".join(after) + "\n"
    return DesktopProblem(
        prompt=f"{goal} Save the file.",
        files={name: "\n".join(before) + "\n"},
        launch=(("mousepad", name),),
        wanted={name: wanted},
        script=(*(script or (*key("ctrl+a"), *typed(wanted))), *key("ctrl+s")),
    )


def _to_line(number: int) -> Script:
    """Go to the start of a line, counted from 0."""
    return (*key("ctrl+home"), *key("down") * number)


def _append(rng: Random) -> DesktopProblem:
    name, before, new = file_name(rng), lines(rng, rng.randint(2, 5)), sentence(rng)
    goal = f'Add the line "{new}" at the end of {name}.'
    return _edit(goal, name, before, [*before, new], (*key("ctrl+end"), *typed(new)))


def _prepend(rng: Random) -> DesktopProblem:
    name, before, new = file_name(rng), lines(rng, rng.randint(2, 5)), sentence(rng)
    goal = f'Add the line "{new}" at the top of {name}.'
    return _edit(goal, name, before, [new, *before], (*key("ctrl+home"), *typed(f"{new}\n")))


def _insert(rng: Random) -> DesktopProblem:
    name, before, new = file_name(rng), lines(rng, rng.randint(3, 6)), sentence(rng)
    at = rng.randrange(len(before) - 1)
    goal = f'In {name}, put the line "{new}" right below the line "{before[at]}".'
    after = [*before[: at + 1], new, *before[at + 1 :]]
    script = (*_to_line(at), *key("end"), *typed(f"\n{new}"))
    return _edit(goal, name, before, after, script)


def _delete(rng: Random) -> DesktopProblem:
    name, before = file_name(rng), lines(rng, rng.randint(3, 6))
    at = rng.randrange(len(before))
    goal = f'Delete the line "{before[at]}" from {name}, without leaving an empty line.'
    script = (*_to_line(at), *key("shift+down", "delete"))
    return _edit(goal, name, before, before[:at] + before[at + 1 :], script)


def _replace(rng: Random) -> DesktopProblem:
    name = file_name(rng)
    old, new, *others = words(rng, 5)
    others = [one for one in others if old not in one]  # is "stable" to be changed with "table"?
    kinds = [rng.choice(("red", "old", "small")) for _ in others]
    pairs = zip(kinds, others, strict=True)
    before = [f"{kind} {old} and {other} {i}" for i, (kind, other) in enumerate(pairs)]
    after = [line.replace(old, new) for line in before]
    return _edit(f'Replace every "{old}" in {name} by "{new}".', name, before, after)


def _sort(rng: Random) -> DesktopProblem:
    name, before = file_name(rng), words(rng, rng.randint(4, 6))
    return _edit(f"Put the lines of {name} in alphabetical order.", name, before, sorted(before))


def _upper(rng: Random) -> DesktopProblem:
    name, before = file_name(rng), lines(rng, rng.randint(3, 5))
    at = rng.randrange(len(before))
    after = [line.upper() if i == at else line for i, line in enumerate(before)]
    goal = f"Write line {at + 1} of {name} in capital letters."
    return _edit(goal, name, before, after, (*_to_line(at), *key("shift+end"), *typed(after[at])))


def _number(rng: Random) -> DesktopProblem:
    name, before = file_name(rng), words(rng, rng.randint(3, 5))
    after = [f"{i}. {line}" for i, line in enumerate(before, start=1)]
    return _edit(f'Number the lines of {name}, from "1. " on.', name, before, after)


def _create(rng: Random) -> DesktopProblem:
    name, new = file_name(rng), lines(rng, rng.randint(1, 3))
    quoted = ", ".join(f'"{line}"' for line in new)
    return DesktopProblem(
        prompt=f"Write a text file {name} in your home folder with "
        + (f"the lines {quoted}." if len(new) > 1 else f"the line {quoted}."),
        launch=(("mousepad",),),
        wanted={name: "\n".join(new)},
        script=(*typed("\n".join(new)), *key("ctrl+s", "ctrl+a"), *typed(name), *key("enter")),
    )


def _copy_as(rng: Random) -> DesktopProblem:
    name, other, text = file_name(rng), file_name(rng, "-copy.txt"), "\n".join(lines(rng, 3)) + "\n"
    return DesktopProblem(
        prompt=f"Save {name} under the name {other} as well, in the same folder.",
        files={name: text},
        launch=(("mousepad", name),),
        wanted={name: text, other: text},
        script=(*key("ctrl+shift+s", "ctrl+a"), *typed(other), *key("enter")),
    )


def _clip(rng: Random) -> DesktopProblem:
    name, text = file_name(rng), lines(rng, rng.randint(3, 6))
    at = rng.randrange(len(text))
    files = {name: "\n".join(text) + "\n"}
    return DesktopProblem(
        prompt=f"Copy line {at + 1} of {name} to the clipboard, and change nothing.",
        files=files,
        launch=(("mousepad", name),),
        wanted=files,
        is_done=lambda desktop: desktop.clipboard() == text[at],
        script=(*_to_line(at), *key("shift+end", "ctrl+c")),
    )
