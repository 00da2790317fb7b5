"""An environment as a package of ``verifiers``, which ``vf-validate`` and ``vf-eval`` load."""

from __future__ import annotations

import re
from pathlib import Path

from turngym.errors import ConfigError
from turngym.provenance import VERSION
from turngym.tasks.base import Split

_PROJECT = """[project]
name = "{package}"
version = "0.1.0"
description = "{name} of turngym as a task set of verifiers."
requires-python = ">=3.11"
dependencies = ["turngym>={version}", "verifiers>=0.4"]

[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"
"""
_MODULE = '''"""{name} of turngym as a task set of verifiers."""

from turngym.api.verifiers import verifiers_classes

Tasks, Play = verifiers_classes({name!r}, count={count}, split={split!r})
__all__ = ["Tasks", "Play"]
'''


def export_verifiers(name: str, out: Path, *, count: int, split: Split) -> Path:
    """Write a package below ``out`` and return its folder; it is called as the folder is.

    Args:
        name: Id of the environment, or a file or folder, which the package then names by its place.
        out: Where packages stand.
        count: How many tasks it has where the command line does not say.
        split: Whose tasks.

    Raises:
        ConfigError: The folder is there already.
    """
    place, colon, one = name.partition(":")  # FILE.py:NAME
    name = f"{Path(place).resolve()}{colon}{one}" if Path(place).exists() else name
    package = "turngym_" + re.sub(r"\W+", "_", name.rpartition("turngym/")[2].lower()).strip("_")
    folder = out / package
    if folder.exists():
        raise ConfigError(f"{folder}: is there already; name another folder, or remove it")
    (folder / package).mkdir(parents=True)
    text = _PROJECT.format(package=package.replace("_", "-"), name=name, version=VERSION)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    text = _MODULE.format(name=name, count=count, split=split)
    (folder / package / "__init__.py").write_text(text, encoding="utf-8")
    return folder
