"""MiniWoB++: 132 small web tasks, from the pages of the ``miniwob`` package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Literal, Unpack

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome
from turngym.environments.web.acting import move_on
from turngym.environments.web.base import WebEnv, WebEpisode, WebOptions
from turngym.environments.web.browser import BrowserGone
from turngym.environments.web.egress import Folder, Site
from turngym.environments.web.expert_view import ExpertView
from turngym.environments.web.miniwob.experts import EXPERTS
from turngym.environments.web.miniwob.experts.games import beats_the_page
from turngym.environments.web.miniwob.names import FULL_MARKS, HIDDEN, TASKS, TURN_MS, WRONG
from turngym.environments.web.settings import LOCAL, Settings
from turngym.environments.web.tab import ContextLost, TabLost
from turngym.errors import ConfigError, EnvironmentFault, MissingExtraError, require_known
from turngym.plugins import package_folder
from turngym.seeding import derive_seed
from turngym.tasks.base import Task

HOST = "miniwob.test"
_NO_LIMIT_MS = 2_000_000_000
_DRAWS = 12
_GAME_DRAWS = 36
"""More, as many games cannot be won."""
_RANDOMS = 12
_STARTS = 5

_HERE = files(__package__)
_START = _HERE.joinpath("start.js").read_text("utf-8")
_STATE = "[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, WOB_REWARD_GLOBAL, WOB_REWARD_REASON]"
_SETTINGS = Settings(
    load_s=LOCAL.load_s,
    width=332,
    height=214,
    ignore="#query, #query-wrap, #reward-display, #sync-task-cover, #click-canvas",
    mark_text=True,
    state=_STATE,
    init_script="".join(_HERE.joinpath(f).read_text("utf-8") for f in ("clock.js", "canvas.js")),
)
_STOPPED = _HERE.joinpath("stopped.js").read_text("utf-8")


@dataclass(slots=True, kw_only=True)
class MiniWobEpisode(WebEpisode):
    """The state of one episode of a MiniWoB task."""

    task: str = ""
    key: int = 0
    """Digest of the problem."""
    raw_reward: float | None = None


class MiniWobEnv(WebEnv):
    """One task of MiniWoB++ (Liu et al. 2018, arXiv:1802.08802).

    Args:
        task: Which, for example ``"click-button"``; of several each episode samples one.
        time_limit: None lifts the task's limit of ten seconds or so, which is meant for quick
            policies, and pays the raw reward. ``"own"`` keeps it, and with it the reward that
            falls as time passes; a number is another limit in seconds. Then an episode is no
            longer the same each time.
        reward: ``"own"`` is the task's, -1 for a failure; with ``"success"`` a failure earns 0, as
            it does to go on until the turns are spent.
        trace: Record a Playwright trace into ``keep``.
        max_chars: As ``WebEnv``.
        options: As ``WebEnv``.

    Action: clicking, typing, choosing, dragging, by mark or by pixel; no addresses and no tabs.
    Observation: the task's own instruction and the page; text has marks too.
    Reward: the task's own at its end, in [-1, 1] or clipped at 0; else 0.
    Start: the page, with the task's seed.
    End: when the page ends the episode; the score is the raw reward, or 0 where that is negative.
    """

    actions: ClassVar[tuple[str, ...]] = (
        "click_at", "click", "double_click", "hover", "drag_at", "drag", "type", "submit",
        "append", "clear", "select", "press", "scroll_in", "scroll", "wait",
    )  # fmt: skip
    shows_address: ClassVar[bool] = False
    episode_type: ClassVar[type[WebEpisode]] = MiniWobEpisode
    episode: MiniWobEpisode

    def __init__(
        self,
        *,
        task: str | Sequence[str],
        time_limit: float | Literal["own"] | None = None,
        reward: Literal["own", "success"] = "own",
        trace: bool = False,
        max_chars: int = 6_000,
        **options: Unpack[WebOptions],
    ) -> None:
        tasks = (task,) if isinstance(task, str) else tuple(task)
        for name in tasks or ("",):
            require_known("MiniWoB task", name, TASKS)
        if isinstance(time_limit, str) and time_limit != "own":
            raise ConfigError(f"MiniWoB: time_limit={time_limit!r}; wanted a number or 'own'")
        require_known("MiniWoB reward", reward, ("own", "success"))
        script = _SETTINGS.init_script + (_STOPPED if time_limit is None else "")
        settings = replace(_SETTINGS, trace=trace, init_script=script)
        super().__init__(settings=settings, max_chars=max_chars, **options)
        self._tasks = tasks
        self._time_limit = time_limit
        self._is_clipped = reward == "success"
        self.name = f"miniwob-{'+'.join(tasks)}"
        pages()  # complains at once

    def sites(self) -> Mapping[str, Site]:
        return {HOST: pages()}

    async def prepare(self, task: Task) -> tuple[str, str]:
        """Return the task's page; its goal is known once it started."""
        name = self._tasks[derive_seed(task.seed, "which") % len(self._tasks)]
        self.episode.task, is_flight = name, name.startswith("flight.")
        has_clock = self._time_limit is not None or is_flight
        turn_ms = None if has_clock else TURN_MS.get(name, 0)
        self.settings = replace(self.settings, turn_ms=turn_ms)
        page = f"flight/{name[7:]}/wrapper.html" if is_flight else f"miniwob/{name}.html"
        return "", f"http://{HOST}/{page}"

    async def arrived(self, task: Task) -> None:
        is_game = self.episode.task == "tic-tac-toe"
        count = _GAME_DRAWS if is_game else _DRAWS
        seeds = [str(derive_seed(task.seed, "miniwob", number)) for number in range(count)]
        limit = _NO_LIMIT_MS if self._time_limit is None else 0
        if isinstance(self._time_limit, int | float):
            limit = round(self._time_limit * 1000)
        parity = int(task.split == "test")
        # Of the games of tic-tac-toe those are left out that best play does not win.
        for some in [[seed] for seed in seeds] if is_game else [seeds]:
            key, goal, again, randoms = await self._start(limit, some, parity)
            if is_game and key & 1 == parity and beats_the_page(randoms):
                break
        if again:  # the problems before it left something that moves
            await self.session.goto(self.session.tab.page.url)
            key, goal, *_ = await self._start(limit, [again], parity)
        self.episode.key = key
        if not self.settings.turn_ms:  # where an action takes some time, looking takes none
            await move_on(self.session)
        self.goal = str(goal["utterance"] if isinstance(goal, dict) else goal)

    async def _start(self, limit: int, seeds: list[str], parity: int) -> Any:
        task = self.episode.task
        arguments = limit, seeds, parity, HIDDEN.get(task, ()), WRONG.get(task, ()), _RANDOMS
        return await self._evaluate_js(f"({_START})(...{json.dumps(arguments)})")

    async def judge(self, action: Action) -> Outcome | None:
        known, self.session.state = self.session.state, None
        is_over, raw, timed, reason = known or await self._evaluate_js(_STATE)
        if not is_over:
            return None
        self.episode.raw_reward = float(raw)
        reward = float(timed)
        if self._time_limit is None:  # return and score agree, but for failures
            reward = min(self.episode.raw_reward, 0.0) or self.score()
        reward = max(0.0, reward) if self._is_clipped else reward
        words = "done." if self.score() >= 1 else "partly done." if raw > 0 else "failed."
        info = {"raw_reward": self.episode.raw_reward}
        return Outcome(
            text=f"{words} {reason or ''}".strip(), reward=reward, terminated=True, info=info
        )

    def score(self) -> float:
        """Return the raw reward, or 0 where it is negative or the task is not over.

        1 where a task measures fractions of a pixel and the best whole pixel was hit, or nearly.
        """
        raw = self.episode.raw_reward or 0.0
        is_full = raw >= FULL_MARKS.get(self.episode.task, 1.0)
        return 1.0 if is_full else max(0.0, raw)

    def instance_key(self) -> str:
        return f"{self.episode.task} {self.episode.key}"

    def expert_action(self) -> str:
        """Return the expert's action.

        Raises:
            ConfigError: The task has no expert.
        """
        expert = EXPERTS.get(self.episode.task)
        if expert is None:
            raise ConfigError(f"{self.name} has no expert")
        name, arguments = expert(ExpertView(self.goal, self.view, tuple(self.episode.done)))
        return self.say(name, **arguments)

    async def _evaluate_js(self, expression: str) -> Any:
        """Return the value of ``expression`` in the task's page."""
        for _ in range(_STARTS):
            try:
                return await self.session.tab.main(expression)
            except ContextLost:  # the first document was just left for the task's
                continue
            except TabLost as lost:
                if self._host is not None and not self._host.is_alive:
                    raise BrowserGone(f"{self.name}: the browser died") from lost
                raise EnvironmentFault(f"{self.name}: {lost}") from lost
        raise EnvironmentFault(f"{self.name}: the page does not start")


@cache
def pages() -> Folder:
    """Return the pages of the installed ``miniwob`` package, which is never imported.

    Raises:
        MissingExtraError: It is not installed.
    """
    folder = package_folder("miniwob")
    if folder is None:
        raise MissingExtraError(
            "MiniWoB tasks need the pages of the package miniwob: pip install --no-deps miniwob"
        )
    return Folder(folder / "html")
