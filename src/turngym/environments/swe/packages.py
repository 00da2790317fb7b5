"""What tests import: pytest and what it needs, and what ``swe.install`` added, in one folder."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import threading
from pathlib import Path

from turngym.errors import ConfigError, missing_extra
from turngym.sandbox.backends.runtime import made_once

_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_MAKING = threading.Lock()


def swe_cache() -> Path:
    """Return the folder of downloaded projects and packages; ``TURNGYM_CACHE`` moves it."""
    base = os.environ.get("TURNGYM_CACHE") or Path.home() / ".cache" / "turngym"
    return Path(base) / "swe"


def added_packages() -> Path:
    """Return the folder that ``python -m turngym.environments.swe.install`` fills."""
    return swe_cache() / "packages"


def require_pytest() -> None:
    """Raise when there is nothing to run tests with.

    Raises:
        MissingExtraError: pytest is not installed.
    """
    if importlib.util.find_spec("pytest") is None:
        raise missing_extra("an SWE environment", "swe")


def packages_folder() -> Path:
    """Return a folder with pytest and all that was added, made when need be.

    Raises:
        MissingExtraError: pytest is not installed.
        ConfigError: A package that pytest needs is missing.
    """
    require_pytest()
    versions = [f"{name} {_distribution(name).version}" for name in _PYTEST]
    added = added_packages()
    marks = [
        f"{entry.name} {entry.stat().st_mtime_ns}" for entry in sorted(added.glob("*.dist-info"))
    ]
    key = hashlib.sha256("\n".join([*versions, *marks]).encode()).hexdigest()[:16]
    target = swe_cache() / f"tools-{key}"

    def fill(fresh: Path) -> None:
        for name in _PYTEST:
            _copy_distribution(name, fresh)
        if added.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "bin")
            shutil.copytree(added, fresh, dirs_exist_ok=True, ignore=ignore)
        _compile(fresh)

    target.parent.mkdir(parents=True, exist_ok=True)
    with _MAKING:  # once for all episodes that begin with it
        return made_once(target, fill)


async def packages_beside() -> Path:
    """Return `packages_folder`, made in another thread: it takes seconds."""
    return await asyncio.to_thread(packages_folder)


def _compile(folder: Path) -> None:
    """Compile for the Python that sandboxes see; where that fails they do it themselves."""
    python = "/usr/bin/python3"
    if not os.access(python, os.X_OK):
        return
    command = [python, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*command, str(folder)], check=False, capture_output=True, timeout=300)


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"swe: pytest needs {name!r}: pip install 'turngym[swe]'") from None


def _copy_distribution(name: str, target: Path) -> None:
    for file in _distribution(name).files or ():
        if ".." in file.parts or "__pycache__" in file.parts or file.suffix in (".so", ".pyc"):
            continue
        place = target / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(file.locate()), place)
