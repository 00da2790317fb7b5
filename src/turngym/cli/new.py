"""``turngym new``: write a working example of a task, with its test."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from turngym.cli.output import say
from turngym.errors import ConfigError, unknown_name

KINDS = {
    "game": ("{name}.py", "a text game in one file"),
    "shell": ("{name}.py", "a task in a shell, judged on its files"),
    "questions": ("{name}.toml", "questions and answers of a data file, with a scorer"),
    "page": ("{name}.py", "a web page, judged on its state"),
    "harbor": ("{name}", "a task folder in Harbor's format"),
    "package": ("{name}.py", "a package that brings its tasks to every turngym program"),
}
"""Kind to what is played, and what it is."""
_MORE = {"package": ("shell",)}
_TEST = '''"""The tasks are sound."""

from pathlib import Path

from turngym.cli.main import main


def test_the_expert_solves_each_task_and_doing_nothing_solves_none():
    target = Path(__file__).with_name("{target}")
    assert main(["check", "task", str(target), "--episodes", "3"]) == 0
'''


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name as of a Python module: my_task.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path(),
) -> None:
    """Write a working example with its test, to be changed into a task of your own."""
    if kind not in KINDS:
        raise unknown_name("kind of task", kind, KINDS)
    if not name.isidentifier() or name != name.lower():
        raise ConfigError(f"name {name!r}: wanted small letters, digits and _, such as my_task")
    target = KINDS[kind][0].format(name=name)
    written = {f"test_{name}.py": _TEST.format(target=target)}
    for folder in (kind, *_MORE.get(kind, ())):
        written |= _filled(files("turngym.cli") / "templates" / folder, name)
    for path in written:
        if (out / path).exists():
            raise ConfigError(f"{out / path}: is there already; choose another name, or move it")
    for path, text in written.items():
        place = out / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        place.chmod(0o755 if path.endswith(".sh") else 0o644)
        print(place)
    place = out / target
    say(f"{KINDS[kind][1]}. Try it:")
    say(f"  turngym play {place}\n  turngym eval {place} --agent expert --episodes 3")
    say(f"  turngym check task {place}\n  pytest {out / f'test_{name}.py'}")


def _filled(folder: Traversable, name: str, above: str = "") -> dict[str, str]:
    """Return the files of a template by path, with ``name`` in place of ``my_task``."""
    found: dict[str, str] = {}
    title = re.sub(r"(^|_)(\w)", lambda match: match[2].upper(), name)
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        path = above + entry.name.removesuffix(".in").replace("my_task", name)
        if entry.is_dir():
            found |= _filled(entry, name, f"{path}/")
        else:
            text = entry.read_text(encoding="utf-8")
            found[path] = text.replace("my_task", name).replace("MyTask", title)
    return found
