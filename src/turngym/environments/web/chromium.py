"""Where Chromium is on this machine, and how it is started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from turngym.errors import ConfigError

VARIABLE = "TURNGYM_CHROMIUM"
"""Environment variable with the path of another Chromium."""
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""In order of preference: the headless shell takes a third to a fifth of the CPU of the others."""
NEED = "|".join((f"${VARIABLE}", *PROGRAMS))
"""The same as one requirement of a registry entry."""

FLAGS = (
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    # A page that puts what the mouse enters on top of the rest would never hear of a click on it.
    "--disable-blink-features=BoundaryEventDispatchTracksNodeRemoval",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-features=IsolateOrigins,site-per-process,WebRtcHideLocalIpsWithMdns",
    "--disable-gpu",
    "--disable-quic",
    "--disable-renderer-backgrounding",
    "--disable-sync",
    # Whatever does not take the proxy of its context gets nowhere: no name is ever looked up.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-first-run",
)


def find_chromium() -> str:
    """Return the path of the Chromium to start.

    Raises:
        ConfigError: There is none; the message names the package and the variable.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        found = shutil.which(chosen)
        if found is None:
            raise ConfigError(f"{VARIABLE}={chosen}: there is no such program")
        return found
    for name in PROGRAMS:
        if (found := shutil.which(name)) is not None:
            return str(Path(found))
    raise ConfigError(
        "web environments need Chromium: apt-get install chromium-headless-shell, or set "
        f"{VARIABLE} to the path of a Chromium"
    )
