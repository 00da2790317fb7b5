"""Tasks in a real web application, judged on its database."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Unpack

from turngym.environments.core.actions import Action
from turngym.environments.core.env import Outcome, SnapshotKind
from turngym.environments.web import SITES
from turngym.environments.web.base import ProblemWebEnv, WebEpisode, WebOptions
from turngym.environments.web.browser import BrowserHost
from turngym.environments.web.egress import Server, Site
from turngym.environments.web.settings import LOCAL, Settings
from turngym.environments.web.sites.data import Data, read_data, read_queries
from turngym.environments.web.sites.problems import Generator, SiteTasks, SiteWorld
from turngym.environments.web.sites.program import Program, Slot
from turngym.errors import EnvironmentFault, SnapshotError, require_known
from turngym.tasks.base import Task

_MOST_WAITING = 4
"""Servers that are kept running without an environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteState:
    """A moment of an episode: the data file, the browser's storage, addresses, what was done."""

    content: bytes
    storage: Any
    """Cookies and local storage, as Playwright gives them."""
    addresses: tuple[str, ...]
    """Of the pages in the tab's history, the one that is open last; empty when there is more to
    the browser than that, and only playing the episode again leads here."""
    done: tuple[Action, ...]
    on_page: int
    """How many of ``done``, the last ones, were done on the page that is open."""
    text: str


@dataclass(slots=True, kw_only=True)
class SiteEpisode(WebEpisode):
    """The state of one episode in a web application."""

    document: object = None
    """Which document is open."""
    on_page: int = 0
    """Actions since it was loaded."""


class SiteEnv(ProblemWebEnv):
    """One kind of task in a web application, with a server and a database of its own.

    A subclass says which application by class variables, and ``read`` where queries do not do.

    Args:
        kind: Which of ``generators``.
        settings: As ``WebEnv``; ``looks`` by default.
        max_chars: As ``WebEnv``.
        options: As ``WebEnv``.

    Action: everything that a browser can do, within this one site.
    Observation: the goal, the address and the page.
    Reward: 1 at ``stop`` or ``answer`` when the database is exactly as the goal wants it, and the
        answer right where one is asked for; anything else that was changed costs it. Else 0.
    Start: the start page, with the data as it was installed.
    End: ``stop`` or ``answer``; a limit of turns judges as ``stop`` does.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "fs"
    rules = (
        f"{ProblemWebEnv.rules} Say stop when the goal is reached and nothing else was changed, or "
        "give the answer where one is asked for: either ends the episode, which is then judged."
    )
    episode_type: ClassVar[type[WebEpisode]] = SiteEpisode
    episode: SiteEpisode
    site: ClassVar[str]
    """Name in ids and in the address."""
    program: ClassVar[Program]
    ignored: ClassVar[Collection[str] | None] = None
    """As ``read_data``."""
    looks: ClassVar[Settings] = LOCAL
    """How its pages are shown by default."""
    start: ClassVar[str] = "/"
    """Path of the first page."""
    signed_in: ClassVar[Mapping[str, str]] = {}
    """Cookies of the user that the agent acts for, name to value."""

    def __init__(
        self,
        *,
        kind: str,
        settings: Settings | None = None,
        max_chars: int = 6_000,
        **options: Unpack[WebOptions],
    ) -> None:
        require_known(f"kind of {self.site} task", kind, SITES[self.site])
        super().__init__(settings=settings or self.looks, max_chars=max_chars, **options)
        self.program.require()
        self.tasks = SiteTasks(self.site, kind, self.generator(kind), self.content)
        self.name = self.tasks.name
        self._slot: Slot | None = None

    @classmethod
    def generator(cls, kind: str) -> Generator:
        """Return what makes problems of a kind: of ``as-other`` its module's ``_as_other``."""
        found: Generator = vars(sys.modules[cls.__module__])[f"_{kind.replace('-', '_')}"]
        return found

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> Data:
        """Return all that an agent could change, from the application's database."""
        with closing(connection):
            return read_data(connection, read_queries(cls.site), ignored=cls.ignored)

    @classmethod
    @cache
    def content(cls, number: int) -> Data:
        """Return what the database of a number holds. Shared: copy it to change it."""
        return cls.read(cls.program.content(number))

    @property
    def slot(self) -> Slot:
        """The server of this environment."""
        assert self._slot is not None, "the environment was not reset"
        return self._slot

    def data(self) -> Data:
        """Return what is in the live database now."""
        return self.read(self.slot.connect())

    def world(self, answer: str | None) -> SiteWorld:
        return SiteWorld(answer=answer, data=self.data)

    def sites(self) -> Mapping[str, Site]:
        return {f"{self.site}.test": Server(socket=str(self.slot.folder / "socket"))}

    async def prepare(self, task: Task) -> tuple[str, str]:
        """Reset the application to the database that the problem begins with."""
        problem = self.open_problem(task)
        if self._slot is None:
            self._slot = self._take()
        await self.slot.reset(problem.number)
        self.episode.storage = None
        if self.signed_in and problem.is_signed_in:
            common = {"domain": f"{self.site}.test", "path": "/", "expires": -1}
            common |= {"httpOnly": True, "secure": False, "sameSite": "Lax"}
            cookies = [{"name": k, "value": v, **common} for k, v in self.signed_in.items()]
            self.episode.storage = {"cookies": cookies, "origins": []}
        return problem.prompt, f"http://{self.site}.test{self.start}"

    def instance_key(self) -> str:
        """Return the goal and the database that it is asked of."""
        return f"{self.goal}\n{self.problem.number}"

    async def close(self) -> None:
        """Close the context; the server waits for the next environment of its kind."""
        host = self._host
        try:
            if host is not None:
                await host.run(self._give_back(host))
        finally:
            await super().close()

    def _take(self) -> Slot:
        """Return a server that waits, or a new one. In the browser's loop."""
        kept = self._open_host().kept
        for one in reversed(kept):
            if isinstance(one, Slot) and one.program is self.program:
                kept.remove(one)
                return one
        return Slot(self.program)

    async def _give_back(self, host: BrowserHost) -> None:
        slot, self._slot = self._slot, None
        if slot is None:
            return
        await self._drop_session()
        waiting = [one for one in host.kept if isinstance(one, Slot)]
        if slot.pid is None or len(waiting) >= _MOST_WAITING:
            await slot.stop()
        else:
            host.kept.append(slot)

    # Snapshots: the data file, the storage and the address, and what was done on that page.

    async def get_state(self) -> SiteState:
        return await self._open_host().run(self._get_state())

    async def set_state(self, state: SiteState) -> None:  # type: ignore[override]
        """Go back to ``state``; what the page itself remembers is done again.

        Raises:
            SnapshotError: That leads to another page.
        """
        if self._host is None:
            self._host = BrowserHost.lease()
        await self._host.run(self._set_state(state))

    async def _get_state(self) -> SiteState:
        is_simple = self.session.is_plain
        return SiteState(
            content=self.slot.content(),
            storage=await self.session.storage_state() if is_simple else None,
            addresses=await self.session.history() if is_simple else (),
            done=tuple(self.episode.done),
            on_page=self.episode.on_page,
            text=self.page(),
        )

    async def _set_state(self, state: SiteState) -> None:
        with self._boundary("restore"):
            await self._new_episode()
            if not await self._open_again(state):
                await self._new_episode()
                await self._enter(self.current_task)
                for action in state.done:
                    await self._step(action)
                if self.page() != state.text:
                    raise SnapshotError(f"{self.name}: playing the episode again gave another page")
            self.episode.done = list(state.done)

    async def _open_again(self, state: SiteState) -> bool:
        """Open the page with the data of that moment; say whether that is the same page."""
        if not state.addresses:
            return False
        goal, _ = await self.prepare(self.current_task)
        await self.slot.reset(state.content)
        before = self.data()
        self.episode.storage = state.storage
        try:
            await self._open_page(goal, state.addresses[-1])
        except EnvironmentFault:  # as it was then, where a link leads outside
            return False
        self.session.tab.earlier = list(state.addresses[:-1])
        for action in state.done[len(state.done) - state.on_page :]:
            await self._step(action)
        is_same = self.page() == state.text and self.data() == before
        await self.slot.reset(state.content)  # looking leaves traces, such as counts of views
        return is_same

    async def _open_page(self, goal: str, url: str) -> None:
        try:
            await super()._open_page(goal, url)
        except EnvironmentFault:
            await self.slot.require_answer()
            raise
        self.episode.document, self.episode.on_page = self.session.tab.document, 0

    async def _step(self, action: Action) -> Outcome:
        outcome = await super()._step(action)
        if self.slot.pid is None or self.view.is_busy:  # that would be no failure of the agent
            await self.slot.require_answer()
        document = self.session.tab.document
        self.episode.on_page = self.episode.on_page + 1 if document == self.episode.document else 0
        self.episode.document = document
        return outcome
