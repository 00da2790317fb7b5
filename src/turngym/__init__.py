"""turngym: the gym where LLM agents learn turn by turn.

Every name below is loaded when it is first used; nothing here imports torch.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from turngym.environments.desktop import register_desktop as _register_desktop
from turngym.environments.gym.registration import make
from turngym.environments.search import register_search as _register_search
from turngym.environments.swe import register_swe as _register_swe
from turngym.environments.terminal import register_terminal as _register_terminal
from turngym.environments.text import register_text_games as _register_text_games
from turngym.environments.web import register_web as _register_web
from turngym.provenance import VERSION as __version__
from turngym.registry import extend as _extend
from turngym.registry import register

if _TYPE_CHECKING:
    from turngym.agents.policy import Policy
    from turngym.api.speakers import Speaker, speaker
    from turngym.api.verbs import compare, evaluate, rollout, train
    from turngym.check_report import CheckReport
    from turngym.environments.checks.check import check_fork
    from turngym.environments.checks.check import check_turn_env as check_env
    from turngym.environments.checks.task import check_tasks
    from turngym.environments.core.actions import Action, Commands, JsonTools
    from turngym.environments.core.env import AsyncTurnEnv, Outcome, TurnEnv, fork
    from turngym.environments.gym.hosts import make_async
    from turngym.environments.gym.vector import make_vec
    from turngym.environments.text.base import MatchGame, TextGame
    from turngym.environments.text.from_gymnasium import from_gymnasium
    from turngym.rollouts.evaluation.statistics import Evaluation, summarize
    from turngym.rollouts.gateway.program import ProgramEnv
    from turngym.tasks.base import Task
    from turngym.tasks.problem import AnswerProblem, Cheat, FileProblem, JudgeResult, PageProblem
    from turngym.tasks.sets import GeneratedSet, ListedSet, TaskSet
    from turngym.types import Message, StopReason, Trajectory, TrajectoryGroup, Turn

_LAZY = {
    "turngym.agents.policy": "Policy",
    "turngym.api.speakers": "Speaker speaker",
    "turngym.api.verbs": "compare evaluate rollout train",
    "turngym.check_report": "CheckReport",
    "turngym.environments.checks.check": "check_fork check_turn_env=check_env",
    "turngym.environments.checks.task": "check_tasks",
    "turngym.environments.core.actions": "Action Commands JsonTools",
    "turngym.environments.core.env": "AsyncTurnEnv Outcome TurnEnv fork",
    "turngym.environments.gym.hosts": "make_async",
    "turngym.environments.gym.vector": "make_vec",
    "turngym.environments.text.base": "MatchGame TextGame",
    "turngym.environments.text.from_gymnasium": "from_gymnasium",
    "turngym.rollouts.evaluation.statistics": "Evaluation summarize",
    "turngym.rollouts.gateway.program": "ProgramEnv",
    "turngym.tasks.base": "Task",
    "turngym.tasks.problem": "AnswerProblem Cheat FileProblem JudgeResult PageProblem",
    "turngym.tasks.sets": "GeneratedSet ListedSet TaskSet",
    "turngym.types": "Message StopReason Trajectory TrajectoryGroup Turn",
}
"""Module to the names that it gives, ``NAME_THERE=NAME_HERE`` where they differ."""

__all__ = [
    "Action", "AnswerProblem", "AsyncTurnEnv", "Cheat", "CheckReport", "Commands", "Evaluation",
    "FileProblem", "GeneratedSet", "JsonTools", "JudgeResult", "ListedSet", "MatchGame", "Message",
    "Outcome", "PageProblem", "Policy", "ProgramEnv", "Speaker", "StopReason", "Task", "TaskSet",
    "TextGame", "Trajectory", "TrajectoryGroup", "Turn", "TurnEnv", "__version__", "check_env",
    "check_fork", "check_tasks", "compare", "evaluate", "fork", "from_gymnasium", "make",
    "make_async", "make_vec", "register", "rollout", "speaker", "summarize", "train",
]  # fmt: skip


def __getattr__(name: str) -> _Any:
    for module, names in _LAZY.items():
        for there, _, here in (one.partition("=") for one in names.split()):
            if name == (here or there):
                globals()[name] = value = getattr(_import_module(module), there)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_extend(lambda: _import_module("turngym.environments.own"))  # half of an import
_register_text_games()
_register_search()
_register_web()
_register_desktop()
_register_swe()
_register_terminal()
