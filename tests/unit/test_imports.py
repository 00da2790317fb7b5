"""What tests, benchmarks, examples, scripts and pages import of the package is there.

Types are checked in ``src`` alone, and much of the rest runs in no fast test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
FILES = sorted(
    file
    for room in ("tests", "benchmarks", "examples", "scripts", "docs", "src/turngym/cli/templates")
    for file in (ROOT / room).rglob("*")
    if file.suffix in (".py", ".md") and "runs" not in file.parts
)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """Give module and name of every import from the package."""
    text = file.read_text(encoding="utf-8")
    for code in BLOCK.findall(text) if file.suffix == ".md" else [text]:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                module = node.module or ""
                if module.split(".")[0] == "turngym":
                    yield from ((module, alias.name) for alias in node.names)


@cache
def names(module: str) -> frozenset[str]:
    """Return what a module has at its top; empty where there is no such module."""
    place = SOURCE / module.replace(".", "/")
    file = next((f for f in (place.with_suffix(".py"), place / "__init__.py") if f.exists()), None)
    if file is None:
        return frozenset()
    found = {one.stem for one in place.iterdir()} if place.is_dir() else set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name) for alias in node.names}
        elif isinstance(node, ast.Constant) and file.name == "__init__.py":
            found.add(str(node.value))  # names that are imported when they are asked for
    return frozenset(found)


def test_what_is_imported_is_there() -> None:
    missing = [
        f"{file.relative_to(ROOT)}: {module}.{name}"
        for file in FILES
        for module, name in imports(file)
        if name not in names(module)
    ]
    assert missing == []
