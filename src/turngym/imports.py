"""Things of the user's own, named ``module:attribute``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from turngym.errors import ConfigError, unknown_name


def import_attribute(kind: str, spec: str) -> Any:  # whatever the user wrote; the caller checks it
    """Return what ``module:attribute`` names, looking in the working folder first.

    Args:
        kind: What it should be, for messages, for example ``"agent"``.
        spec: Module and attribute.

    Raises:
        ConfigError: The module does not exist or breaks on import, or has no such attribute.
    """
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{kind} {spec!r}: wanted module:attribute")
    module = _import(kind, spec, module_name)
    if not hasattr(module, attribute):
        known = [f"{module_name}:{name}" for name in vars(module) if not name.startswith("_")]
        raise unknown_name(kind, spec, known, hint=f"{module_name!r} holds no such name.")
    return getattr(module, attribute)


def _import(kind: str, spec: str, name: str) -> Any:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(".")[0] == error.name.split(".")[0]:
            raise ConfigError(
                f"{kind} {spec!r}: no module {error.name!r} here or installed"
            ) from error
        raise ConfigError(f"{kind} {spec!r}: {error}") from error
    except Exception as error:
        raise ConfigError(
            f"{kind} {spec!r}: importing {name!r} raised {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(here)
