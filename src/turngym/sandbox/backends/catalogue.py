"""Which back ends exist, by name. Nothing is imported until one is opened.

Packages add theirs through the entry-point group ``turngym.sandboxes``: a name and the class.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, cast

from turngym.errors import ConfigError, unknown_name
from turngym.faults import describe, is_from_signal
from turngym.plugins import import_attribute
from turngym.sandbox.base import Backend

ENTRY_POINT_GROUP = "turngym.sandboxes"
OWN = {
    "bubblewrap": "turngym.sandbox.backends.bubblewrap:BubblewrapBackend",
    "docker": "turngym.sandbox.backends.docker:DockerBackend",
    "e2b": "turngym.sandbox.backends.e2b:E2BBackend",
    "swe-rex": "turngym.sandbox.backends.swe_rex:SweRexBackend",
    "unsafe-local": "turngym.sandbox.backends.unsafe_local:UnsafeLocalBackend",
}
DEFAULT = "bubblewrap"


def backend_names() -> list[str]:
    """Return every name that ``open_backend`` takes, plug-ins included."""
    return sorted({*OWN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def open_backend(name: str = DEFAULT, **options: Any) -> Backend:  # each back end has its own
    """Make the back end called ``name`` with ``options``. Nothing is started until a sandbox is.

    Raises:
        UnknownNameError: There is none of that name.
        ConfigError: A plug-in of that name cannot be loaded.
        SandboxRefused: It does not accept the options, or misses one.
    """
    make = _constructor(name)
    try:
        return make(**options)
    except TypeError as error:
        raise ConfigError(f"sandbox {name!r}: {error}") from None


def _constructor(name: str) -> Callable[..., Backend]:
    if name in OWN:
        return cast("Callable[..., Backend]", import_attribute("sandbox", OWN[name]))
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            try:
                return cast("Callable[..., Backend]", point.load())
            except BaseException as error:
                if is_from_signal(error):
                    raise
                raise ConfigError(f"sandbox {name!r}: {describe(error)}") from error
    raise unknown_name("sandbox", name, backend_names())
