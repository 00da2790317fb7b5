"""How time passes on a page: by itself, or only while the agent acts."""

from __future__ import annotations

import asyncio

from turngym.environments.web.session import WebSession
from turngym.environments.web.tab import TabLost

_FRAME_S = 0.02
_CLOCK = "globalThis.turngymClock"
_MOVE = """(state, move) =>
  state()?.[0] ? [false, state()] : move().then((goesOn) => [goesOn, state()])"""
_RESTS = 20
"""How often a page may answer, once in some seconds, that its clock still goes on."""


async def wait(session: WebSession, seconds: float) -> None:
    """Let time pass on the page.

    Args:
        session: Shows the page; on a clock that stands still the time costs next to none.
        seconds: How long, by the page's clock.

    Raises:
        TabLost: The page did not come to rest.
    """
    turn_ms = session.settings.turn_ms
    if turn_ms is None:
        await asyncio.sleep(seconds)
    else:
        is_paced = "true" if turn_ms else "false"
        await _tell_clock(session, f"pass({round(seconds * 1000)}, {is_paced})")


async def move_on(session: WebSession) -> None:
    """Let pass what an action takes, on a page whose clock stands still."""
    settings = session.settings
    if settings.turn_ms:
        await wait(session, settings.turn_ms / 1000)
    elif settings.turn_ms == 0:
        await _tell_clock(session, f"settle({settings.cap_ms})")


async def show_frame(session: WebSession) -> None:
    """Let the page see where the mouse is, on a page whose clock stands still."""
    if session.settings.turn_ms is not None:
        await wait(session, _FRAME_S)


async def _tell_clock(session: WebSession, call: str) -> None:
    for _ in range(_RESTS):  # on a busy machine it takes a while
        goes_on, session.state = await session.tab.main(
            f"({_MOVE})(() => {session.settings.state}, async () => {_CLOCK}?.{call})"
        )
        if not goes_on:
            return
        call = "rest()"
    raise TabLost("The page did not come to rest and was closed.")
