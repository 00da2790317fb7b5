"""How pages are shown and waited for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a page is shown and waited for."""

    width: int = 1024
    height: int = 768
    """Of the view, in CSS pixels."""
    is_phone: bool = False
    """Lay pages out as on a phone, and take touches instead of a mouse."""
    quiet_ms: int = 40
    """A page is quiet when its document has not changed for so long and no request is open."""
    cap_ms: int = 4_000
    """Longest wait for that, after which the page is shown as it is."""
    load_s: float = 10.0
    """Longest wait for an address to answer."""
    ignore: str = ""
    """CSS selector of what is not shown."""
    mark_text: bool = False
    """Give marks to text, too."""
    init_script: str = ""
    """Run in every page before its own scripts."""
    turn_ms: int | None = None
    """For pages with a clock that stands still (``turngymClock``): how far an action moves it on.

    0: until the page is quiet. None: pages have the real clock."""
    state: str = "null"
    """An expression of such pages, read in the message that moves their clock on, as far as that is
    called for: a list that begins with true says that the episode is over."""
    allow: tuple[str, ...] = ()
    """Hosts beyond the task's own that may be reached."""
    trace: bool = False
    """Record a Playwright trace."""


LOCAL = Settings(cap_ms=20_000, load_s=60.0)
"""For programs on this machine whose pages always come to rest, however busy it is."""
