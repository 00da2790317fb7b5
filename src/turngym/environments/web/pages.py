"""Reach a goal on pages of one's own: a folder of HTML, judged on the state behind the page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Unpack

from turngym.environments.web.acting import COMMANDS
from turngym.environments.web.base import ProblemWebEnv, WebOptions
from turngym.environments.web.chromium import NEED
from turngym.environments.web.egress import Folder, Site
from turngym.environments.web.settings import Settings
from turngym.environments.web.tab import TabLost
from turngym.errors import ConfigError, EnvironmentFault
from turngym.tasks.base import Task
from turngym.tasks.problem import PageProblem, PageWorld, set_up
from turngym.tasks.sets import TaskSet
from turngym.tasks.sources import task_set

HOST = "task.test"


class PagesEnv(ProblemWebEnv):
    """Reach goals on pages of one's own.

    Args:
        tasks: The problems, or where they are: ``FILE.py``, ``FILE.py:NAME``, ``module:NAME``.
        settings: As of ``WebEnv``, and so ``max_chars`` and ``options``.

    Action: everything that a browser can do, within this one site.
    Observation: the goal and the page.
    Reward: at ``stop`` or ``answer``, what the problem's judge gives, in [0, 1].
    Start: the problem's first page.
    End: ``stop`` or ``answer``; a limit of turns judges as ``stop`` does.
    """

    actions: ClassVar[tuple[str, ...]] = tuple(COMMANDS.templates)
    max_turns: ClassVar[int] = 30
    programs: ClassVar[tuple[str, ...]] = (NEED,)
    modules: ClassVar[tuple[str, ...]] = ("playwright",)
    extra: ClassVar[str] = "web"
    provides: ClassVar[tuple[str, ...]] = ("state_key",)
    rules = (
        f"{ProblemWebEnv.rules} Say stop when the goal is reached, or give the answer where one is "
        "asked for: either ends the episode, which is then judged."
    )

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

    def sites(self) -> Mapping[str, Site]:
        folder = folder_of(self.problem)
        return {HOST: self._folders.setdefault(folder, Folder(folder))}

    async def prepare(self, task: Task) -> tuple[str, str]:
        problem = self.open_problem(task)
        return problem.prompt, f"http://{HOST}/{problem.start}"

    async def arrived(self, task: Task) -> None:
        self.first_page = self.open_page()
        await set_up(self.problem, self.world(None), task.id)

    def world(self, answer: str | None) -> PageWorld:
        return _Page(self, answer)

    def open_page(self) -> str:
        """Return the address that is open, without query and fragment."""
        return re.split("[?#]", self.session.tab.page.url)[0]


class _Page:
    """What the judge of a page sees."""

    def __init__(self, env: PagesEnv, answer: str | None) -> None:
        self.answer = answer
        self._env = env

    async def evaluate(self, expression: str) -> Any:  # what the page holds, as JSON
        """Return the value of a JavaScript expression in the page that is open.

        None where it fails and the agent has left the problem's first page, whose state it is of.
        """
        env = self._env
        try:
            return await env.session.tab.main(expression)
        except TabLost as lost:
            raise EnvironmentFault(f"{env.name}: {lost}") from lost
        except RuntimeError:
            if env.open_page() == env.first_page:
                raise
            return None


def folder_of(problem: PageProblem) -> Path:
    """Return the folder of a problem's pages, beside the file of its class.

    Raises:
        ConfigError: It, or the first page, is not there.
    """
    folder = Path(inspect.getfile(type(problem))).parent / problem.pages
    if not (folder / re.split("[?#]", problem.start)[0]).is_file():
        raise ConfigError(f"{folder / problem.start}: there is no such page")
    return folder
