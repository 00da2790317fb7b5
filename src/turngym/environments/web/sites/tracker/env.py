"""Tasks in a real issue tracker, judged on its database."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from random import Random
from typing import Literal

from turngym.environments.actions import Action
from turngym.environments.base import Outcome
from turngym.environments.screen import ActionStyle
from turngym.environments.web.base import WebEnv
from turngym.environments.web.gate import Server, Site
from turngym.environments.web.miniwob.scene import Scene
from turngym.environments.web.settings import Settings
from turngym.environments.web.sites.program import Slot
from turngym.environments.web.sites.tracker.program import TRACKER
from turngym.environments.web.sites.tracker.state import State, read_state
from turngym.environments.web.sites.tracker.tasks import TEMPLATES, Job
from turngym.errors import unknown_name
from turngym.seeding import derive_seed
from turngym.tasks.base import Task

HOST = "tracker.test"


class TrackerEnv(WebEnv):
    """One kind of task in an issue tracker with a wiki: the program Trac, with 40 tickets.

    Args:
        kind: Which, for example ``"close"``; see ``TEMPLATES``.
        settings: As ``WebEnv``.
        max_chars: As ``WebEnv``.
        screenshot: As ``WebEnv``.
        action_style: As ``WebEnv``.
        keep: As ``WebEnv``.
        render_mode: ``"ansi"`` or None.

    Action: everything that a browser can do, within this one site.
    Observation: the goal, the address and the page.
    Reward: 1 at ``stop`` or ``answer`` when the database is exactly as the goal wants it, and the
        answer right where one is asked for; anything else that was changed costs it. Else 0.
    Start: the start page, with the data as it was installed.
    End: ``stop`` or ``answer``.
    """

    def __init__(
        self,
        *,
        kind: str,
        settings: Settings | None = None,
        max_chars: int = 6_000,
        screenshot: Literal["none", "plain", "marks"] = "none",
        action_style: ActionStyle = "commands",
        keep: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        if kind not in TEMPLATES:
            raise unknown_name("kind of tracker task", kind, TEMPLATES)
        super().__init__(
            settings=settings,
            max_chars=max_chars,
            screenshot=screenshot,
            action_style=action_style,
            keep=keep,
            render_mode=render_mode,
        )
        TRACKER.require()
        self._kind = kind
        self.name = f"tracker-{kind}"
        self._slot = Slot(TRACKER)
        self._before = State()
        self._job: Job | None = None
        self._given: str | None = None

    def sites(self) -> Mapping[str, Site]:
        """Return the tracker of this slot."""
        return {HOST: Server(self._slot.port)}

    async def prepare(self, task: Task) -> tuple[str, str]:
        """Reset the tracker, and draw a job until one falls into the split."""
        await self._slot.reset()
        self._before, self._given = self._read(), None
        rng = Random(derive_seed(task.seed, "tracker"))
        while True:
            self._job = TEMPLATES[self._kind](self._before, rng)
            if self._job.split == task.split:
                return self._job.goal, f"http://{HOST}/wiki"

    async def judge(self, action: Action) -> Outcome | None:
        """End the episode at ``stop`` or ``answer``."""
        if action.name not in ("stop", "answer"):
            return None
        self._given = str(action.arguments.get("text", ""))
        score = self.score()
        return Outcome(text="done." if score else "failed.", reward=score, terminated=True)

    def score(self) -> float:
        """Return 1 when the database is exactly as the goal wants it, and the answer right."""
        if self._job is None:
            return 0.0
        if self._job.answer and (self._given or "").strip().lower() != self._job.answer.lower():
            return 0.0
        return float(self._read() == self._job.wanted)

    def instance_key(self) -> str:
        """Return the goal, which holds all that was drawn."""
        return self.goal

    def oracle_action(self) -> str:
        """Return the expert's action."""
        assert self._job is not None
        name, arguments = self._job.expert(Scene(self.goal, self.view, tuple(self._done_actions)))
        return self.say(name, **arguments)

    async def close(self) -> None:
        """Close the context and end the server."""
        host = self._host
        try:
            if host is not None:
                await host.run(self._slot.stop())
        finally:
            await super().close()

    def _read(self) -> State:
        with closing(sqlite3.connect(self._slot.database, timeout=10.0)) as connection:
            return read_state(connection)
