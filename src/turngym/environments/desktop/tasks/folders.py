"""Tasks in the file manager, judged on the files."""

from __future__ import annotations

from functools import partial
from random import Random

from turngym.environments.desktop.problems import DesktopProblem, Files, Script, click, key, typed
from turngym.environments.desktop.tasks.words import file_name, file_names, lines, words


def _problem(goal: str, before: Files, after: Files, script: Script) -> DesktopProblem:
    return DesktopProblem(
        prompt=goal, files=before, launch=(("pcmanfm",),), wanted=after, script=script
    )


def _some(rng: Random, n: int) -> dict[str, str | bytes | None]:
    return {name: "\n".join(lines(rng, 2)) + "\n" for name in file_names(rng, n, ".txt")}


def _pick(name: str) -> Script:
    return click(name, "cell")


def _named(name: str, open_with: str) -> Script:
    """Enter a name after the key that asks for one."""
    return (*key(open_with, "ctrl+a"), *typed(name), *key("enter"))


def _go(folder: str) -> Script:
    """Show another folder, by its path below home."""
    return _named(f"/home/agent/{folder}".removesuffix("/"), "ctrl+l")


def _rename(rng: Random) -> DesktopProblem:
    before, new = _some(rng, rng.randint(3, 6)), file_name(rng, ".md")
    old = rng.choice(list(before))
    after = {new if name == old else name: data for name, data in before.items()}
    script = (*_pick(old), *_named(new, "f2"))
    return _problem(f"Rename the file {old} to {new}.", before, after, script)


def _delete(rng: Random) -> DesktopProblem:
    before = _some(rng, rng.randint(3, 6))
    old = rng.choice(list(before))
    after = {name: data for name, data in before.items() if name != old}
    return _problem(f"Delete the file {old}.", before, after, (*_pick(old), *key("delete")))


def _new_folder(rng: Random) -> DesktopProblem:
    before, name = _some(rng, 2), rng.choice(words(rng, 1)) + f"-{rng.randint(1, 99)}"
    goal = f"Make an empty folder {name} in your home folder."
    return _problem(goal, before, {**before, name: None}, _named(name, "ctrl+shift+n"))


def _to_folder(rng: Random, verb: str, take: str) -> DesktopProblem:
    files, folders = _some(rng, rng.randint(2, 4)), words(rng, 2)
    name, folder = rng.choice(list(files)), folders[0]
    before: Files = {**files, **dict.fromkeys(folders)}
    after = {n: data for n, data in before.items() if n != name or verb == "Copy"}
    script = (*_pick(name), *key(take), *_go(folder), *key("ctrl+v"))
    goal = f"{verb} the file {name} into the folder {folder}."
    return _problem(goal, before, {**after, f"{folder}/{name}": files[name]}, script)


_move = partial(_to_folder, verb="Move", take="ctrl+x")
_copy = partial(_to_folder, verb="Copy", take="ctrl+c")


def _empty(rng: Random) -> DesktopProblem:
    files, folder = _some(rng, 2), words(rng, 1)[0]
    inside = {f"{folder}/{name}": data for name, data in _some(rng, rng.randint(2, 4)).items()}
    script = (*_go(folder), *key("ctrl+a", "delete"))
    goal = f"Delete every file in the folder {folder}, but keep the folder itself."
    return _problem(goal, {**files, **inside}, {**files, folder: None}, script)


def _move_all(rng: Random) -> DesktopProblem:
    one, two = words(rng, 2)
    files = _some(rng, rng.randint(2, 4))
    before: Files = {**{f"{one}/{name}": data for name, data in files.items()}, two: None}
    after: Files = {**{f"{two}/{name}": data for name, data in files.items()}, one: None}
    script = (*_go(one), *key("ctrl+a", "ctrl+x"), *_go(two), *key("ctrl+v"))
    goal = f"Move every file of the folder {one} to the folder {two}. Keep both folders."
    return _problem(goal, before, after, script)


def _rename_folder(rng: Random) -> DesktopProblem:
    old, new = words(rng, 2)
    inside = _some(rng, 2)
    before: Files = {**_some(rng, 2), **{f"{old}/{name}": data for name, data in inside.items()}}
    after = {path.replace(f"{old}/", f"{new}/"): data for path, data in before.items()}
    script = (*_pick(old), *_named(new, "f2"))
    return _problem(f"Rename the folder {old} to {new}.", before, after, script)


def _bring_up(rng: Random) -> DesktopProblem:
    outer, inner = words(rng, 2)
    deep = f"{outer}/{inner}"
    inside = _some(rng, 3)
    name = rng.choice(list(inside))
    before: Files = {f"{deep}/{n}": data for n, data in inside.items()}
    after = {name if n.endswith("/" + name) else n: data for n, data in before.items()}
    script = (*_go(deep), *_pick(name), *key("ctrl+x"), *_go(""), *key("ctrl+v"))
    goal = f"Move the file {name} from {deep} to your home folder."
    return _problem(goal, before, after, script)


def _nested(rng: Random) -> DesktopProblem:
    outer, inner = words(rng, 2)
    before: Files = {**_some(rng, 2), outer: None}
    script = (*_go(outer), *_named(inner, "ctrl+shift+n"))
    goal = f"Make an empty folder {inner} in the folder {outer}."
    return _problem(goal, before, {**before, f"{outer}/{inner}": None}, script)
