"""Tasks in the file manager, judged on the files."""

from __future__ import annotations

from random import Random

from turngym.environments.desktop.problems import DesktopProblem, Files, Script, click, key, typed
from turngym.environments.desktop.tasks.words import file_name, file_names, lines, words


def _problem(goal: str, before: Files, after: Files, script: Script) -> DesktopProblem:
    return DesktopProblem(
        prompt=goal, files=before, launch=(("pcmanfm",),), wanted=after, script=script
    )


def _some(rng: Random, n: int, ending: str = ".txt") -> dict[str, str | bytes | None]:
    """Return ``n`` small files."""
    return {name: "\n".join(lines(rng, 2)) + "\n" for name in file_names(rng, n, ending)}


def _pick(name: str) -> Script:
    return click(name, "cell")


def _go(path: str) -> Script:
    """Show another folder, by its path."""
    return (*key("ctrl+l", "ctrl+a"), *typed(path), *key("enter"))


def _rename(rng: Random) -> DesktopProblem:
    before, new = _some(rng, rng.randint(3, 6)), file_name(rng, ".md")
    old = rng.choice(list(before))
    after = {new if name == old else name: data for name, data in before.items()}
    script = (*_pick(old), *key("f2", "ctrl+a"), *typed(new), *key("enter"))
    return _problem(f"Rename the file {old} to {new}.", before, after, script)


def _delete(rng: Random) -> DesktopProblem:
    before = _some(rng, rng.randint(3, 6))
    old = rng.choice(list(before))
    after = {name: data for name, data in before.items() if name != old}
    return _problem(f"Delete the file {old}.", before, after, (*_pick(old), *key("delete")))


def _new_folder(rng: Random) -> DesktopProblem:
    before, name = _some(rng, 2), rng.choice(words(rng, 1)) + f"-{rng.randint(1, 99)}"
    script = (*key("ctrl+shift+n", "ctrl+a"), *typed(name), *key("enter"))
    goal = f"Make an empty folder {name} in your home folder."
    return _problem(goal, before, {**before, name: None}, script)


def _move(rng: Random) -> DesktopProblem:
    files, folders = _some(rng, rng.randint(2, 4)), words(rng, 2)
    name, folder = rng.choice(list(files)), folders[0]
    before: Files = {**files, **dict.fromkeys(folders)}
    after = {f"{folder}/{n}" if n == name else n: data for n, data in before.items()}
    script = (*_pick(name), *key("ctrl+x"), *_go(f"/home/agent/{folder}"), *key("ctrl+v"))
    return _problem(f"Move the file {name} into the folder {folder}.", before, after, script)


def _copy(rng: Random) -> DesktopProblem:
    files, folders = _some(rng, rng.randint(2, 4)), words(rng, 2)
    name, folder = rng.choice(list(files)), folders[0]
    before: Files = {**files, **dict.fromkeys(folders)}
    after = {**before, f"{folder}/{name}": files[name]}
    script = (*_pick(name), *key("ctrl+c"), *_go(f"/home/agent/{folder}"), *key("ctrl+v"))
    return _problem(f"Copy the file {name} into the folder {folder}.", before, after, script)


def _empty(rng: Random) -> DesktopProblem:
    files, folder = _some(rng, 2), words(rng, 1)[0]
    inside = {f"{folder}/{name}": data for name, data in _some(rng, rng.randint(2, 4)).items()}
    script = (*_go(f"/home/agent/{folder}"), *key("ctrl+a", "delete"))
    goal = f"Delete every file in the folder {folder}, but keep the folder itself."
    return _problem(goal, {**files, **inside}, {**files, folder: None}, script)


def _move_all(rng: Random) -> DesktopProblem:
    one, two = words(rng, 2)
    files = _some(rng, rng.randint(2, 4))
    before: Files = {**{f"{one}/{name}": data for name, data in files.items()}, two: None}
    after: Files = {**{f"{two}/{name}": data for name, data in files.items()}, one: None}
    script = (
        *_go(f"/home/agent/{one}"), *key("ctrl+a", "ctrl+x"), *_go(f"/home/agent/{two}"),
        *key("ctrl+v"),
    )  # fmt: skip
    goal = f"Move every file of the folder {one} to the folder {two}. Keep both folders."
    return _problem(goal, before, after, script)


def _rename_folder(rng: Random) -> DesktopProblem:
    old, new = words(rng, 2)
    inside = _some(rng, 2)
    before: Files = {**_some(rng, 2), **{f"{old}/{name}": data for name, data in inside.items()}}
    after = {path.replace(f"{old}/", f"{new}/"): data for path, data in before.items()}
    script = (*_pick(old), *key("f2", "ctrl+a"), *typed(new), *key("enter"))
    return _problem(f"Rename the folder {old} to {new}.", before, after, script)


def _bring_up(rng: Random) -> DesktopProblem:
    outer, inner = words(rng, 2)
    deep = f"{outer}/{inner}"
    inside = _some(rng, 3)
    name = rng.choice(list(inside))
    before: Files = {f"{deep}/{n}": data for n, data in inside.items()}
    after = {n if n.endswith("/" + name) is False else name: data for n, data in before.items()}
    script = (
        *_go(f"/home/agent/{deep}"), *_pick(name), *key("ctrl+x"), *_go("/home/agent"),
        *key("ctrl+v"),
    )  # fmt: skip
    goal = f"Move the file {name} from {deep} to your home folder."
    return _problem(goal, before, after, script)


def _nested(rng: Random) -> DesktopProblem:
    outer, inner = words(rng, 2)
    before: Files = {**_some(rng, 2), outer: None}
    script = (
        *_go(f"/home/agent/{outer}"), *key("ctrl+shift+n", "ctrl+a"), *typed(inner),
        *key("enter"),
    )  # fmt: skip
    goal = f"Make an empty folder {inner} in the folder {outer}."
    return _problem(goal, before, {**before, f"{outer}/{inner}": None}, script)
