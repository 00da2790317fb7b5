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
_X11: dict[str, Any] = {
    "extra": "desktop", "modules": ("Xlib", "jeepney"), "programs": PROGRAMS, "packages": PACKAGES,
    "provides": ("state_key",),
}  # fmt: skip
"""What every environment with a real desktop needs and gives."""


def register_desktop() -> None:
    """Register every desktop and phone environment; called once by ``import turngym``."""
    for kind in TASK_TYPES:
        register(
            f"turngym/{kind}-v0",
            f"{_HERE}.env:DesktopEnv",
            family="desktop",
            max_turns=60,
            kwargs={"kind": kind},
            **_X11,
        )
    for app in GROUNDING_APPS:
        register(
            f"turngym/grounding-{app}-v0",
            f"{_HERE}.grounding:GroundingEnv",
            family="desktop",
            max_turns=3,
            kwargs={"app": app},
            **_X11,
        )
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
