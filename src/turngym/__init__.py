"""turngym: the gym where LLM agents learn turn by turn."""

from turngym.environments.core.actions import Action, Commands, JsonTools
from turngym.environments.core.env import AsyncTurnEnv, Outcome, TurnEnv
from turngym.environments.desktop import register_desktop as _register_desktop
from turngym.environments.gym.registration import make, register
from turngym.environments.own import add_class as _add_class
from turngym.environments.own import load as _load_own
from turngym.environments.search import register_search as _register_search
from turngym.environments.swe import register_swe as _register_swe
from turngym.environments.terminal import register_terminal as _register_terminal
from turngym.environments.text import register_text_games as _register_text_games
from turngym.environments.text.base import TextGame
from turngym.environments.web import register_web as _register_web
from turngym.provenance import VERSION as __version__
from turngym.registry import extend as _extend
from turngym.tasks.base import Task
from turngym.types import Message, StopReason, Trajectory, TrajectoryGroup, Turn

__all__ = [
    "Action",
    "AsyncTurnEnv",
    "Commands",
    "JsonTools",
    "Message",
    "Outcome",
    "StopReason",
    "Task",
    "TextGame",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "TurnEnv",
    "__version__",
    "make",
    "register",
]

_extend(load_own=_load_own, add_class=_add_class)
_register_text_games()
_register_search()
_register_web()
_register_desktop()
_register_swe()
_register_terminal()
