"""Devices with a screen: desktops with real applications; see ``docs/desktop.md``."""

from __future__ import annotations

from typing import Any

from turngym.environments.desktop.names import (
    GROUNDING_APPS,
    PACKAGES,
    PHONE_TASK_TYPES,
    PROGRAMS,
    TASK_TYPES,
)
from turngym.environments.web.chromium import NEED
from turngym.registry import register

_HERE = "turngym.environments.desktop"


def register_desktop() -> None:
    """Register every desktop and phone environment; called once by ``import turngym``."""
    for kind in TASK_TYPES:
        _register_x11(kind, "env:DesktopEnv", max_turns=60, kind=kind)
    for app in GROUNDING_APPS:
        _register_x11(f"grounding-{app}", "grounding:GroundingEnv", max_turns=3, app=app)
    for kind in PHONE_TASK_TYPES:
        register(
            f"turngym/{kind}-v0",
            f"{_HERE}.phone.env:PhoneEnv",
            family="phone",
            max_turns=40,
            kwargs={"kind": kind},
            extra="web",
            modules=("playwright",),
            programs=(NEED,),
            provides=("state_key",),
        )


def _register_x11(name: str, entry_point: str, *, max_turns: int, **kwargs: Any) -> None:
    """Register an environment with a real desktop, by all that such a one needs and gives."""
    register(
        f"turngym/{name}-v0", f"{_HERE}.{entry_point}", family="desktop", max_turns=max_turns,
        kwargs=kwargs, extra="desktop", modules=("Xlib", "jeepney"), programs=PROGRAMS,
        packages=PACKAGES, provides=("state_key",),
    )  # fmt: skip
