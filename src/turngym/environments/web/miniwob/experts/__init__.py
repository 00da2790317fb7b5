"""Scripted experts of MiniWoB tasks. Each sees what the agent sees, and nothing else."""

from __future__ import annotations

from functools import cache

from turngym.environments.web.expert_view import Expert


@cache
def experts() -> dict[str, Expert]:
    """Return task to expert."""
    from turngym.environments.web.miniwob.experts.aiming import AIMING
    from turngym.environments.web.miniwob.experts.choosing import CHOOSING, MAIL
    from turngym.environments.web.miniwob.experts.clicking import CLICKING
    from turngym.environments.web.miniwob.experts.drawing import DRAWING
    from turngym.environments.web.miniwob.experts.flights import FLIGHTS
    from turngym.environments.web.miniwob.experts.games import GAMES
    from turngym.environments.web.miniwob.experts.pictures import PICTURES
    from turngym.environments.web.miniwob.experts.reading import READING
    from turngym.environments.web.miniwob.experts.typing import TYPING

    return {
        **AIMING, **CHOOSING, **CLICKING, **DRAWING, **FLIGHTS, **GAMES, **MAIL, **PICTURES,
        **READING, **TYPING,
    }  # fmt: skip
