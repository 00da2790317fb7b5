"""Where numbers come from: the code, the packages and the machine that made them."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

VERSION = "0.1.0"

_PACKAGES = ("gymnasium", "numpy", "pydantic", "tokenizers", "torch", "transformers")


def source_commit() -> str | None:
    """Return the commit of the checkout that this package runs from, or None outside of one."""
    return _git("rev-parse", "HEAD")


def provenance() -> dict[str, Any]:
    """Return versions, commit and machine as JSON values. No secret of the environment is read."""
    commit = source_commit()
    return {
        "turngym": VERSION,
        "commit": commit,
        "uncommitted_changes": None if commit is None else bool(_git("status", "--porcelain")),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _installed(name))},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
    }


def digest_of(path: Path) -> str | None:
    """Return the SHA-256 of a file, or of all files of a folder with their names; None if gone."""
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    else:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)
    return digest.hexdigest()


def source_digest(source: str) -> str | None:
    """Return the SHA-256 of a file, a folder, or the file of ``module:NAME``; None if gone.

    What a Python file imports of its own folder is part of it.
    """
    where = source if Path(source).exists() else source.partition(":")[0]
    if where.endswith(".py") or Path(where).exists():
        return _code_digest(Path(where).expanduser())
    try:
        found = importlib.util.find_spec(where)
    except (ImportError, ValueError):
        return None
    return None if found is None or found.origin is None else _code_digest(Path(found.origin))


def _code_digest(path: Path) -> str | None:
    files = [path]
    for file in files:  # which grows
        files += sorted(_imported(file, path.parent).difference(files))
    if len(files) == 1:
        return digest_of(path)
    return hashlib.sha256(repr([digest_of(file) for file in files]).encode()).hexdigest()


def _imported(file: Path, folder: Path) -> set[Path]:
    """Return the modules of ``folder`` that a Python file imports."""
    if file.suffix != ".py" or not file.is_file():
        return set()
    names: set[str] = set()
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names.update(one.name for one in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.update(f"{node.module or ''}.{one.name}" for one in node.names)
                names.add(node.module or "")
    places = {folder / name.strip(".").replace(".", "/") for name in names - {""}}
    either = {place.with_suffix(".py") for place in places} | {p / "__init__.py" for p in places}
    return {found for found in either if found.is_file()}


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    package = Path(__file__).parent
    if not (package.parents[1] / ".git").exists():
        return None
    command = ["git", "-C", str(package), *arguments]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
