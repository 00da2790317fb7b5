"""Measure how the source is built: sizes, imports, docstrings, and the path of one update and turn.

    python scripts/measure_house.py                      the working tree
    python scripts/measure_house.py --against COMMIT     beside a worktree of another commit
    python scripts/measure_house.py --json --static      no child processes, machine readable
    python scripts/measure_house.py --update             lines that one update runs, by file

Every number is defined in ``MEASURES``. What is traced runs in child processes and needs
torch and, for the web turn, a browser.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TO_READ = 15
MEASURES = {
    "lines": "lines of Python under src/turngym",
    "files": "files of Python under src/turngym",
    "task_material": "lines of what tasks are made of: problems, judges, experts, their data and"
    " tables, of shell, SWE, search, MiniWoB, sites, desktops and phones",
    "files_over_500": "of these, above 500 lines",
    "body_median": "lines of a function's body without its docstring: median",
    "body_p90": "ninth decile",
    "body_max": "longest",
    "annotated_percent": "functions with every parameter and the result annotated",
    "comments_per_1000": "comments per 1,000 lines, without those that speak to a tool",
    "args_percent": "documented public functions of 2 or more parameters that have `Args:`",
    "args_where_needed_percent": "the same where no base class and no option's help says it already"
    " and a parameter does not speak for itself, by its name, its type or the prose",
    "raises_percent": "public functions with a `raise` that have `Raises:`; without abstract"
    " methods, validators and commands, whose docstring is their help",
    "shapes_percent": "public functions of arrays that show the axes in a name or the docstring;"
    " without tensors by name, as in a state dict",
    "one_importer_percent": "files with one importer, which lies in the same folder",
    "circles": "circles of files, lazy and type-only imports included",
    "largest_circle": "files of the largest",
    "arrows_trainers": "pairs of rooms (files and folders directly inside) that import each other",
    "arrows_credit": "the same inside trainers/credit",
    "arrows_rollouts": "the same inside rollouts",
    "arrows_environments": "the same inside environments",
    "file_arrows_trainers": "the same between files, whatever folder they are in",
    "file_arrows_credit": "",
    "file_arrows_rollouts": "",
    "file_arrows_environments": "",
    "update_functions": "functions run by one update of `turngym train demo`, from one report of"
    " progress to the next",
    "update_files": "files that hold them",
    "update_files_to_read": f"of these, files of which {TO_READ} or more lines of functions ran:"
    " what has to be read, when a helper of a few lines is believed by its name",
    "web_turn_threads": "threads that run our code in one turn of a MiniWoB task under `eval`",
    "web_turn_loops": "event loops among them",
    "empty_step_us": "microseconds of an awaited step of a coroutine environment that does nothing,"
    " as rollouts get it: median of five rounds",
}
_MATERIAL = re.compile(
    r"environments/(desktop/(tasks|phone|problems|names|workbooks|grounding)"
    r"|search/(world|relations|names|question|package|selfplay|scoring)|swe/|terminal/"
    r"|web/(miniwob|sites)/|web/expert_view)|tasks/shell"
)
_TOOLS = re.compile(r"#\s*(noqa|type:|pragma|!)")
_ARRAY = re.compile(r"\b(Tensor|ndarray|NDArray|Floats|Ints|Bools)\b")
_BY_NAME = re.compile(r"(Mapping|dict)\[str, [^\]]*\]")
_AXES = re.compile(r"_[A-Z]{1,4}\b|\[[A-Z][A-Z0-9, +\-a-z*]*\]|\bshape\b")
_KNOWN = re.compile(
    r"action|bytes|command|config|content|count|cwd|data|default|env|files?|folder|height|index|info"
    r"|key|model|names?|observations?|path|rng|s|seed|steps?|task|text|timeout|tokenizer|tokens"
    r"|total|values?|version|width|x|y"
)
_SILENT = ("abstractmethod", "overload", "validator", "override")

Function = ast.FunctionDef | ast.AsyncFunctionDef


# Source as text


@dataclass
class House:
    """The parsed files of one checkout."""

    root: Path
    trees: dict[str, ast.Module] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, checkout: Path) -> House:
        house = cls(checkout / "src")
        for path in sorted((house.root / "turngym").rglob("*.py")):
            parts = path.relative_to(house.root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            house.texts[name] = path.read_text(encoding="utf-8")
            house.trees[name] = ast.parse(house.texts[name])
        return house

    def is_package(self, name: str) -> bool:
        return (self.root / name.replace(".", "/") / "__init__.py").exists()


def inherited(house: House) -> set[int]:
    """Return the methods, by ``id``, whose contract a base class of ours documents."""
    nodes = [node for tree in house.trees.values() for node in ast.walk(tree)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def methods(name: str) -> set[str]:
        one = classes.get(name)
        if one is None:
            return set()
        own = {node.name for node in one.body if isinstance(node, Function)}
        return own.union(*(methods(base) for base in bases(one) if base != name))

    def bases(one: ast.ClassDef) -> list[str]:
        return [
            re.split(r"[.\[]", ast.unparse(base))[-1 if "[" not in ast.unparse(base) else 0]
            for base in one.bases
        ]

    found = set()
    for one in classes.values():
        above = set[str]().union(*(methods(base) for base in bases(one) if base != one.name))
        found |= {
            id(node) for node in one.body if isinstance(node, Function) and node.name in above
        }
    return found


def functions(tree: ast.AST, public: bool = True) -> Iterator[tuple[Function, bool, bool]]:
    """Yield functions, whether all names on their path are public, and whether one is a method."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            is_public = public and not node.name.startswith("_")
            yield node, is_public, isinstance(tree, ast.ClassDef)
            yield from functions(node, public=False)
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, public and not node.name.startswith("_"))
        else:
            yield from functions(node, public)


def own_parameters(function: Function, is_method: bool) -> list[ast.arg]:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return every[1:] if is_method and every and every[0].arg in ("self", "cls") else every


def body_lines(function: Function) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def sizes(house: House) -> dict[str, float]:
    bodies, annotated = [], []
    for tree in house.trees.values():
        for function, _, is_method in functions(tree):
            bodies.append(body_lines(function))
            rest = [x for x in (function.args.vararg, function.args.kwarg) if x is not None]
            parameters = [*own_parameters(function, is_method), *rest]
            annotated.append(function.returns is not None and all(p.annotation for p in parameters))
    bodies.sort()
    counts = [len(text.splitlines()) for text in house.texts.values()]
    return {
        "lines": sum(counts),
        "files": len(counts),
        "task_material": sum(map(material, (house.root / "turngym").rglob("*.*"))),
        "files_over_500": sum(count > 500 for count in counts),
        "body_median": statistics.median(bodies),
        "body_p90": bodies[int(0.9 * len(bodies))],
        "body_max": bodies[-1],
        "annotated_percent": percent(annotated),
        "comments_per_1000": 1000 * sum(map(comments, house.texts.values())) / sum(counts),
    }


def material(path: Path) -> int:
    """Return the lines of a file of task material; 0 for any other file."""
    is_text = path.suffix in (".py", ".sql", ".toml", ".txt", ".json")
    if not is_text or not _MATERIAL.search(path.as_posix().rpartition("turngym/")[2]):
        return 0
    return len(path.read_text(encoding="utf-8").splitlines())


def comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(t.type == tokenize.COMMENT and not _TOOLS.match(t.string) for t in tokens)


def percent(hits: list[bool]) -> float:
    return 100 * sum(hits) / len(hits) if hits else 100.0


# Docstrings


def docstrings(house: House) -> dict[str, float]:
    args: list[bool] = []
    needed: list[bool] = []
    raising: list[bool] = []
    shaped: list[bool] = []
    nodes = [node for tree in house.trees.values() for node in ast.walk(tree)]
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    elsewhere = inherited(house)
    for name, tree in house.trees.items():
        for function, is_public, is_method in functions(tree):
            text = ast.get_docstring(function) or ""
            if not is_public or is_silent(function):
                continue
            parameters = own_parameters(function, is_method)
            if text and len(parameters) >= 2:
                args.append("Args:" in text)
                is_elsewhere = id(function) in elsewhere or name.startswith("turngym.cli")
                if not is_elsewhere and not all(
                    speaks(parameter, text, classes) for parameter in parameters
                ):
                    needed.append("Args:" in text)
            if raises(function) and not name.startswith("turngym.cli"):
                raising.append("Raises:" in text)
            signature = [ast.unparse(p.annotation) for p in parameters if p.annotation]
            signature += [ast.unparse(function.returns)] if function.returns else []
            if any(_ARRAY.search(_BY_NAME.sub("", one)) for one in signature):
                names = " ".join([function.name, *(p.arg for p in parameters)])
                shaped.append(bool(_AXES.search(names) or _AXES.search(text)))
    return {
        "args_percent": percent(args),
        "args_where_needed_percent": percent(needed),
        "raises_percent": percent(raising),
        "shapes_percent": percent(shaped),
    }


def is_silent(function: Function) -> bool:
    return any(word in ast.unparse(d) for d in function.decorator_list for word in _SILENT)


def speaks(parameter: ast.arg, docstring: str, classes: set[str]) -> bool:
    """Say whether a parameter needs no line of its own.

    So it is when its type is a class of ours, when the prose names it, when its unit is in its name
    (``timeout_s``), and when it is a word that means one thing everywhere (``seed``, ``path``).
    """
    annotation = ast.unparse(parameter.annotation) if parameter.annotation else ""
    words = parameter.arg.lower().split("_")
    if classes & set(re.findall(r"\w+", annotation)) or _KNOWN.fullmatch(words[-1]):
        return True
    said = re.findall(r"[a-z]+", docstring.partition("Args:")[0].lower())
    return any(near(word, words[-1]) or near(word, words[0]) for word in said)


def near(word: str, stem: str) -> bool:
    """Say whether two words are one but for their ending."""
    if len(stem) <= 2:
        return word == stem
    return word.rstrip("s") == stem.rstrip("s") or (len(stem) > 3 and word.startswith(stem))


def raises(function: Function) -> bool:
    """Say whether the body itself raises an error of its own making."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and node.exc is not None:
            name = ast.unparse(node.exc)
            if not name.startswith(("NotImplementedError", "AttributeError", "typer.", "Stop")):
                return True
        todo += ast.iter_child_nodes(node)
    return False


# Imports


def imports(house: House) -> dict[str, set[str]]:
    """Return the files that each file imports anywhere: at the top, lazily, and for types."""
    arrows: dict[str, set[str]] = {name: set() for name in house.trees}
    for name, tree in house.trees.items():
        for node in ast.walk(tree):
            found = set()
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                found = {one if one in house.trees else node.module for one in inside}
            elif isinstance(node, ast.Import):
                found = {alias.name for alias in node.names}
            arrows[name] |= {one for one in found if one in house.trees and one != name}
    return arrows


def graph(house: House) -> dict[str, float]:
    arrows = imports(house)
    importers: dict[str, set[str]] = defaultdict(set)
    for name, targets in arrows.items():
        for target in targets:
            importers[target].add(name)
    files = {one for one in house.trees if not house.is_package(one)}
    alone = [one for one, by in importers.items() if len(by) == 1 and {one, *by} <= files]
    beside = [one for one in alone if folder(next(iter(importers[one]))) == folder(one)]
    circles = [circle for circle in components(arrows) if len(circle) > 1]
    found: dict[str, float] = {
        "one_importer_percent": 100 * len(beside) / len(house.trees),
        "circles": len(circles),
        "largest_circle": max(map(len, circles), default=0),
    }
    packages = {"credit": "trainers.credit"}
    for label in ("trainers", "credit", "rollouts", "environments"):
        package = f"turngym.{packages.get(label, label)}"
        found[f"arrows_{label}"] = len(room_arrows(arrows, package))
        inside = [
            (a, b) for a, to in arrows.items() for b in to if both_inside(a, b, f"{package}.")
        ]
        found[f"file_arrows_{label}"] = len(inside)
    return found


def folder(name: str) -> str:
    return name.rpartition(".")[0]


def both_inside(a: str, b: str, prefix: str) -> bool:
    return a.startswith(prefix) and b.startswith(prefix)


def room_arrows(arrows: dict[str, set[str]], package: str) -> set[tuple[str, str]]:
    """Return pairs of rooms directly inside ``package`` of which one imports the other."""
    depth = package.count(".") + 2
    pairs = set()
    for name, targets in arrows.items():
        for target in targets:
            if both_inside(name, target, f"{package}."):
                a, b = (".".join(one.split(".")[:depth]) for one in (name, target))
                pairs |= {(a, b)} - {(a, a)}
    return pairs


def components(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected sets, by Kosaraju's two walks."""
    reverse: dict[str, set[str]] = defaultdict(set)
    for name, targets in arrows.items():
        for target in targets:
            reverse[target].add(name)
    order, seen = list[str](), set[str]()
    for name in arrows:
        order += walk(name, arrows, seen)
    found, seen = list[set[str]](), set[str]()
    for name in reversed(order):
        if name not in seen:
            found.append(set(walk(name, reverse, seen)))
    return found


def walk(start: str, arrows: dict[str, set[str]], seen: set[str]) -> list[str]:
    """Return what is reached from ``start`` and new, each after all that it leads to."""
    if start in seen:
        return []
    seen.add(start)
    left, todo = list[str](), [(start, iter(sorted(arrows.get(start, ()))))]
    while todo:
        name, targets = todo[-1]
        following = next((one for one in targets if one not in seen), None)
        if following is None:
            left.append(name)
            todo.pop()
        else:
            seen.add(following)
            todo.append((following, iter(sorted(arrows.get(following, ())))))
    return left


# What runs: each part is a child process that has the checkout's source on its path


def child(part: str, checkout: Path, folder: str) -> Any:
    """Return what ``house_trace.py`` says about ``part`` of ``checkout``; None when it failed."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "house_trace.py"), part, folder]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        print(f"NOT RUN: {part}: {done.stderr.strip()[-400:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def traced(checkout: Path, house: House) -> dict[str, float]:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        ran = child("update", checkout, folder)
        turn = child("turn", checkout, folder)
        step = child("step", checkout, folder)
    if ran is not None:
        per_file, bodies = Counter[str](), lines_of_functions(house)
        for path, first in ran:
            per_file[path] += bodies.get((path, first), ("", 0))[1]
        found["update_functions"] = len(ran)
        found["update_files"] = len(per_file)
        found["update_files_to_read"] = sum(lines >= TO_READ for lines in per_file.values())
    if turn is not None:
        found["web_turn_threads"], found["web_turn_loops"] = turn
    if step is not None:
        found["empty_step_us"] = step
    return found


def lines_of_functions(house: House) -> dict[tuple[str, int], tuple[str, int]]:
    """Return name and lines of each body by file and first line, decorators included."""
    bodies = {}
    for name, tree in house.trees.items():
        path = name.removeprefix("turngym").lstrip(".").replace(".", "/")
        path = f"{path}/__init__.py".lstrip("/") if house.is_package(name) else f"{path}.py"
        for function, _, _ in functions(tree):
            first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
            bodies[path, first] = function.name, body_lines(function)
    return bodies


def listed(checkout: Path) -> str:
    """Return the files that one update runs, most lines first, each with its functions."""
    bodies, files = lines_of_functions(House.of(checkout)), defaultdict[str, list[Any]](list)
    with tempfile.TemporaryDirectory() as folder:
        for path, first in child("update", checkout, folder) or ():
            files[path].append((first, *bodies.get((path, first), ("?", 0))))
    lines = []
    for path, ran in sorted(files.items(), key=lambda file: -sum(one[2] for one in file[1])):
        lines.append(f"{sum(one[2] for one in ran):4d} {path}, functions: {len(ran)}")
        lines += [f"{lines_run:9d} {name}, line {first}" for first, name, lines_run in sorted(ran)]
    return "\n".join(lines)


# The table


def measure(checkout: Path, *, static: bool) -> dict[str, float]:
    house = House.of(checkout)
    found = sizes(house) | docstrings(house) | graph(house)
    if not static:
        found |= traced(checkout, house)
    return {
        name: value if value == int(value) and isinstance(value, int) else round(value, 1)
        for name, value in found.items()
    }


def table(columns: dict[str, dict[str, float]]) -> str:
    lines = ["| measure | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name in MEASURES:
        cells = [f"{column[name]:,}" if name in column else "–" for column in columns.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--static", action="store_true", help="only what is read from the source")
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit too")
    parser.add_argument("--update", action="store_true", help="only what one update runs, by file")
    given = parser.parse_args()
    if given.update:
        print(listed(HERE.parent))
        return
    columns: dict[str, dict[str, float]] = {}
    if given.against:
        with tempfile.TemporaryDirectory() as folder:
            git = ["git", "-C", str(HERE.parent), "worktree"]
            subprocess.run(
                [*git, "add", "-q", "--detach", f"{folder}/old", given.against], check=True
            )
            try:
                columns[given.against] = measure(Path(folder) / "old", static=given.static)
            finally:
                subprocess.run([*git, "remove", "--force", f"{folder}/old"], check=True)
    columns["now"] = measure(HERE.parent, static=given.static)
    print(json.dumps(columns, indent=2) if given.json else table(columns))


if __name__ == "__main__":
    main()
