"""Tasks in the file manager, judged on the files."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from turngym.environments.desktop.jobs import Files, Job
from turngym.environments.desktop.kinds.words import file_name, file_names, lines, words
from turngym.environments.desktop.scripts import Step, click, key, typed


def _job(goal: str, before: Files, after: Files, script: tuple[Step, ...]) -> Job:
    return Job(
        goal=goal,
        files=before,
        launch=(("pcmanfm",),),
        is_done=lambda desk: desk.holds(after),
        script=script,
    )


def _some(rng: Random, n: int, ending: str = ".txt") -> dict[str, str | bytes | None]:
    """Return ``n`` small files."""
    return {name: "\n".join(lines(rng, 2)) + "\n" for name in file_names(rng, n, ending)}


def _pick(name: str) -> tuple[Step, ...]:
    return click(name, "cell")


def _go(path: str) -> tuple[Step, ...]:
    """Show another folder, by its path."""
    return (*key("ctrl+l", "ctrl+a"), *typed(path), *key("enter"))


def rename(rng: Random) -> Job:
    """Give a file another name."""
    before, new = _some(rng, rng.randint(3, 6)), file_name(rng, ".md")
    old = rng.choice(list(before))
    after = {new if name == old else name: data for name, data in before.items()}
    script = (*_pick(old), *key("f2", "ctrl+a"), *typed(new), *key("enter"))
    return _job(f"Rename the file {old} to {new}.", before, after, script)


def delete(rng: Random) -> Job:
    """Delete a file."""
    before = _some(rng, rng.randint(3, 6))
    old = rng.choice(list(before))
    after = {name: data for name, data in before.items() if name != old}
    return _job(f"Delete the file {old}.", before, after, (*_pick(old), *key("delete")))


def new_folder(rng: Random) -> Job:
    """Make a folder."""
    before, name = _some(rng, 2), rng.choice(words(rng, 1)) + f"-{rng.randint(1, 99)}"
    script = (*key("ctrl+shift+n", "ctrl+a"), *typed(name), *key("enter"))
    return _job(f"Make an empty folder {name} in your home folder.", before, {**before, name: None},
                script)  # fmt: skip


def move(rng: Random) -> Job:
    """Move a file into a folder."""
    files, folders = _some(rng, rng.randint(2, 4)), words(rng, 2)
    name, folder = rng.choice(list(files)), folders[0]
    before: Files = {**files, **dict.fromkeys(folders)}
    after = {f"{folder}/{n}" if n == name else n: data for n, data in before.items()}
    script = (*_pick(name), *key("ctrl+x"), *_go(f"/home/agent/{folder}"), *key("ctrl+v"))
    return _job(f"Move the file {name} into the folder {folder}.", before, after, script)


def copy(rng: Random) -> Job:
    """Copy a file into a folder."""
    files, folders = _some(rng, rng.randint(2, 4)), words(rng, 2)
    name, folder = rng.choice(list(files)), folders[0]
    before: Files = {**files, **dict.fromkeys(folders)}
    after = {**before, f"{folder}/{name}": files[name]}
    script = (*_pick(name), *key("ctrl+c"), *_go(f"/home/agent/{folder}"), *key("ctrl+v"))
    return _job(f"Copy the file {name} into the folder {folder}.", before, after, script)


def empty(rng: Random) -> Job:
    """Delete everything in a folder, but not the folder."""
    files, folder = _some(rng, 2), words(rng, 1)[0]
    inside = {f"{folder}/{name}": data for name, data in _some(rng, rng.randint(2, 4)).items()}
    script = (*_go(f"/home/agent/{folder}"), *key("ctrl+a", "delete"))
    goal = f"Delete every file in the folder {folder}, but keep the folder itself."
    return _job(goal, {**files, **inside}, {**files, folder: None}, script)


def move_all(rng: Random) -> Job:
    """Move everything from one folder to another."""
    one, two = words(rng, 2)
    files = _some(rng, rng.randint(2, 4))
    before: Files = {**{f"{one}/{name}": data for name, data in files.items()}, two: None}
    after: Files = {**{f"{two}/{name}": data for name, data in files.items()}, one: None}
    script = (
        *_go(f"/home/agent/{one}"), *key("ctrl+a", "ctrl+x"), *_go(f"/home/agent/{two}"),
        *key("ctrl+v"),
    )  # fmt: skip
    goal = f"Move every file of the folder {one} to the folder {two}. Keep both folders."
    return _job(goal, before, after, script)


def rename_folder(rng: Random) -> Job:
    """Give a folder another name."""
    old, new = words(rng, 2)
    inside = _some(rng, 2)
    before: Files = {**_some(rng, 2), **{f"{old}/{name}": data for name, data in inside.items()}}
    after = {path.replace(f"{old}/", f"{new}/"): data for path, data in before.items()}
    script = (*_pick(old), *key("f2", "ctrl+a"), *typed(new), *key("enter"))
    return _job(f"Rename the folder {old} to {new}.", before, after, script)


def bring_up(rng: Random) -> Job:
    """Move a file out of a folder within a folder."""
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
    return _job(goal, before, after, script)


def nested(rng: Random) -> Job:
    """Make a folder within another."""
    outer, inner = words(rng, 2)
    before: Files = {**_some(rng, 2), outer: None}
    script = (
        *_go(f"/home/agent/{outer}"), *key("ctrl+shift+n", "ctrl+a"), *typed(inner),
        *key("enter"),
    )  # fmt: skip
    goal = f"Make an empty folder {inner} in the folder {outer}."
    return _job(goal, before, {**before, f"{outer}/{inner}": None}, script)


FOLDERS: dict[str, Callable[[Random], Job]] = {
    "files-bring-up": bring_up, "files-copy": copy, "files-delete": delete, "files-empty": empty,
    "files-move": move, "files-move-all": move_all, "files-nested": nested,
    "files-new-folder": new_folder, "files-rename": rename, "files-rename-folder": rename_folder,
}  # fmt: skip
