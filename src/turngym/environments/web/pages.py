"""Reach a goal on pages of one's own: a folder of HTML, judged on the state behind the page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.core.tasks import TaskSetEnv
from turngym.environments.web.base import StoppedWebEnv, WebEpisode, WebOptions
from turngym.environments.web.chromium import NEED
from turngym.environments.web.egress import Folder, Site
from turngym.environments.web.expert_view import ExpertView, Move
from turngym.environments.web.settings import Settings
from turngym.environments.web.sites.problems import Stage, choose, enter, press
from turngym.environments.web.tab import TabLost
from turngym.errors import ConfigError, EnvironmentFault
from turngym.tasks.base import Task
from turngym.tasks.problem import PageProblem, judge, set_up
from turngym.tasks.sets import TaskSet
from turngym.tasks.sources import task_set

HOST = "task.test"
_STAGES: Mapping[str, Callable[..., Stage]] = {"click": press, "type": enter, "select": choose}
"""Actions of a script that name an element by what it is called."""


@dataclass(slots=True, kw_only=True)
class PagesEpisode(WebEpisode):
    """The state of one episode on pages of one's own."""

    problem: PageProblem | None = None
    score: float = 0.0


class PagesEnv(TaskSetEnv, StoppedWebEnv):
    """Reach goals on pages of one's own.

    Args:
        tasks: The problems, or where they are: ``FILE.py``, ``FILE.py:NAME``, ``module:NAME``.
        settings, max_chars, options: As ``WebEnv``.

    Action: everything that a browser can do, within this one site.
    Observation: the goal and the page.
    Reward: at ``stop`` or ``answer``, what the problem's judge gives, in [0, 1].
    Start: the problem's first page.
    End: ``stop`` or ``answer``; a limit of turns judges as ``stop`` does.
    """

    max_turns: ClassVar[int] = 30
    programs: ClassVar[tuple[str, ...]] = (NEED,)
    modules: ClassVar[tuple[str, ...]] = ("playwright",)
    extra: ClassVar[str] = "web"
    provides: ClassVar[tuple[str, ...]] = ("anchor",)
    rules = (
        f"{StoppedWebEnv.rules} Say stop when the goal is reached, or give the answer where one is "
        "asked for: either ends the episode, which is then judged."
    )
    episode_type: ClassVar[type[WebEpisode]] = PagesEpisode
    episode: PagesEpisode

    def __init__(
        self,
        *,
        tasks: TaskSet[Any] | str,  # of any kind of PageProblem
        settings: Settings | None = None,
        max_chars: int = 8_000,
        **options: Unpack[WebOptions],
    ) -> None:
        super().__init__(settings=settings, max_chars=max_chars, **options)
        self.tasks = task_set(tasks)
        self.name = self.tasks.name
        self._folders: dict[Path, Folder] = {}

    @property
    def problem(self) -> PageProblem:
        """What the running episode is about."""
        if self.episode.problem is None:
            self.episode.problem = self.tasks.problem(self.current_task)
        return self.episode.problem

    def sites(self) -> Mapping[str, Site]:
        folder = folder_of(self.problem)
        return {HOST: self._folders.setdefault(folder, Folder(folder))}

    async def prepare(self, task: Task) -> tuple[str, str]:
        """Return the goal and the first page."""
        self._new_script()
        return self.problem.prompt, f"http://{HOST}/{self.problem.start}"

    async def arrived(self, task: Task) -> None:
        await set_up(self.problem, _Page(self, None), task.id)

    async def judge(self, action: Action) -> Outcome | None:
        if action.name not in ("stop", "answer"):
            return None
        world = _Page(self, str(action.arguments["text"]) if action.name == "answer" else None)
        result = await judge(self.problem, world, self._task_id)
        self.episode.score = result.score
        info = {"problem": result.evidence, "parts": dict(result.parts)}
        text = "done." if result.score == 1 else "failed."
        return Outcome(text=text, reward=result.score, terminated=True, info=info)

    def score(self) -> float:
        """Return what the judge gave; 0 before the end was judged."""
        return self.episode.score

    def instance_key(self) -> str:
        """Return what makes the problem this one."""
        return self.problem.content

    def expert_action(self) -> str:
        """Return the script's action of this turn, then ``stop``."""
        self._said = len(self.episode.done)
        step = self._next()
        if step is None:
            return self.say("stop")
        name, arguments = self._move(step)
        return self.say(name, **arguments)

    def _move(self, step: Sequence[str]) -> Move:
        command, *rest = step
        if command in _STAGES:
            return _STAGES[command](*rest)(ExpertView(self.goal, self.view))
        return ("answer", {"text": rest[0]}) if command == "answer" else (command, {})


class _Page:
    """What the judge of a page sees."""

    def __init__(self, env: PagesEnv, answer: str | None) -> None:
        self.answer = answer
        self._env = env

    async def evaluate(self, expression: str) -> Any:  # what the page holds, as JSON
        """Return the value of a JavaScript expression in the page."""
        try:
            return await self._env.session.tab.main(expression)
        except TabLost as lost:
            raise EnvironmentFault(f"{self._env.name}: {lost}") from lost


def folder_of(problem: PageProblem) -> Path:
    """Return the folder of a problem's pages, beside the file of its class.

    Raises:
        ConfigError: It, or the first page, is not there.
    """
    folder = Path(inspect.getfile(type(problem))).parent / problem.pages
    if not (folder / problem.start.partition("?")[0]).is_file():
        raise ConfigError(f"{folder / problem.start}: there is no such page")
    return folder
