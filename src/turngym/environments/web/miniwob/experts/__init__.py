"""Scripted experts of MiniWoB tasks. Each sees what the agent sees, and nothing else."""

from __future__ import annotations

from turngym.environments.web.expert_view import Expert
from turngym.environments.web.miniwob.experts.aiming import AIMING
from turngym.environments.web.miniwob.experts.choosing import CHOOSING, MAIL
from turngym.environments.web.miniwob.experts.clicking import CLICKING
from turngym.environments.web.miniwob.experts.drawing import DRAWING
from turngym.environments.web.miniwob.experts.games import GAMES
from turngym.environments.web.miniwob.experts.reading import READING
from turngym.environments.web.miniwob.experts.typing import TYPING

EXPERTS: dict[str, Expert] = {
    **AIMING, **CHOOSING, **CLICKING, **DRAWING, **GAMES, **MAIL, **READING, **TYPING,
}  # fmt: skip
"""Task to expert."""
