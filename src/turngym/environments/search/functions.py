"""Functions of the user's own, named ``module:function``: encoders and proposers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from turngym.errors import ConfigError


def import_function(kind: str, name: str) -> Callable[..., Any]:  # as the user wrote it
    """Return the function that ``name`` means.

    Args:
        kind: What it should be, for messages.
        name: ``module:function``; the module must be importable.

    Raises:
        ConfigError: There is no such module or function, or it cannot be called.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ConfigError(f"{kind} {name!r}: wanted module:function")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind} {name!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{kind} {name!r}: wanted a function, found {type(found).__name__}")
    call: Callable[..., Any] = found
    return call
