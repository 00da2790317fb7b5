"""One Chromium for the whole process, in an event loop and thread of its own.

Playwright's objects belong to the event loop that made them. Here that is always the loop of the
one ``BrowserHost``, so environments may be played from any loop, from many, or from none: they
send coroutines there with ``run``. The browser starts with the first lease and ends with the last.
A browser that died is started again on the next ``new_context``; contexts of the old one are gone.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from turngym.coroutines import LoopThread
from turngym.environments.web.chromium import FLAGS, find_chromium
from turngym.errors import EnvironmentFault, missing_extra
from turngym.shared_resource import SharedResource

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

T = TypeVar("T")

_LAUNCH_TIMEOUT_MS = 60_000
_CLOSE_TIMEOUT_S = 10.0
_JOIN_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 30.0
_LAUNCHES = 2
"""Times that a browser is started before a step gives up."""


class BrowserGone(EnvironmentFault):
    """The browser died; what was open in it is lost."""


_CRASH_WORDS = ("has been closed", "Target closed", "Connection closed", "browser has disconnected")


async def with_timeout(question: Coroutine[Any, Any, T]) -> T:
    """Return the browser's answer; one that dies meanwhile may never give it.

    Raises:
        BrowserGone: There was none in time.
    """
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await question
    except TimeoutError:
        raise BrowserGone(f"no answer within {ANSWER_TIMEOUT_S:.0f} s") from None


def require_browser() -> None:
    """Raise when there is nothing to browse with.

    Raises:
        MissingExtraError: Playwright is not installed.
        ConfigError: There is no Chromium.
    """
    if importlib.util.find_spec("playwright") is None:
        raise missing_extra("a web environment", "web")
    find_chromium()


class Stoppable(Protocol):
    """Something that runs in the host's loop."""

    async def stop(self) -> None:
        """End it. Safe to call twice."""


class BrowserHost(SharedResource):
    """The browser of this process. ``lease`` gives it, ``release`` gives it back.

    Raises:
        MissingExtraError: Playwright is not installed.
        ConfigError: There is no Chromium.
    """

    def __init__(self) -> None:
        require_browser()
        self._thread = LoopThread("turngym-browser")
        self._thread.loop.set_exception_handler(_forget_driver)
        self._starting: asyncio.Lock | None = None
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self.launches = 0
        """Browsers started so far."""
        self.kept: list[Stoppable] = []
        """What waits to be used again, and ends with the browser. In the host's loop only."""

    def release(self) -> None:
        """Give a lease back; the last one ends browser, loop and thread. Blocks until then."""
        if not self._end_lease():
            return
        future = self.start(self._shut_down())
        with suppress(Exception):  # whatever is left of a browser that does not answer
            future.result(_JOIN_TIMEOUT_S)
        self._thread.stop()
        self._thread.join(_JOIN_TIMEOUT_S)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``work`` in the host's loop; the future may be waited for in any thread."""
        return self._thread.start(work)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the host's loop and await it in the caller's."""
        return await asyncio.wrap_future(self.start(work))

    @property
    def is_alive(self) -> bool:
        """The browser answers. Only in the host's loop."""
        return self._browser is not None and self._browser.is_connected()

    def is_gone(self, error: Exception) -> bool:
        """Say whether Playwright's ``error`` comes of a browser, or driver, that died.

        A dead driver leaves the browser connected, so the words count. Of one page that crashed
        or closed itself they would be the same: ask only where that was ruled out, as in a tab.
        """
        return not self.is_alive or any(words in str(error) for words in _CRASH_WORDS)

    async def new_context(self, **options: Any) -> BrowserContext:
        """Return a fresh, isolated context. Only in the host's loop.

        Args:
            options: As ``playwright.async_api.Browser.new_context``.

        Raises:
            BrowserGone: No browser could be started, or it died at once.
        """
        from playwright.async_api import Error

        browser = None
        for _ in range(_LAUNCHES):
            try:
                browser = await self._ready()
                return await with_timeout(browser.new_context(**options))
            except Error as error:
                problem = str(error).splitlines()[0]
                if "has been closed" in problem and self.is_alive and browser is self._browser:
                    await self._forget_driver()
            except BrowserGone as gone:
                problem = str(gone)
        raise BrowserGone(f"Chromium could not be used: {problem}")

    async def _ready(self) -> Browser:
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._browser is not None and self._browser.is_connected():
                return self._browser
            if self._playwright is None:
                self._playwright = await _started_playwright()
            self._browser = await self._playwright.chromium.launch(
                executable_path=find_chromium(),
                args=list(FLAGS),
                timeout=_LAUNCH_TIMEOUT_MS,
                handle_sigint=False,  # Ctrl-C belongs to the program, which then closes us
                handle_sigterm=False,
                handle_sighup=False,
            )
            self.launches += 1
            return self._browser

    async def _forget_driver(self) -> None:
        """Let the next try start Playwright anew: its driver is gone, and says nothing closed."""
        driver, self._playwright, self._browser = self._playwright, None, None
        with suppress(Exception):
            if driver is not None:
                await driver.stop()

    async def _shut_down(self) -> None:
        for one in self.kept:
            with suppress(Exception):
                await one.stop()
        with suppress(Exception):
            if self._browser is not None:
                await asyncio.wait_for(self._browser.close(), _CLOSE_TIMEOUT_S)
        if self._playwright is not None:
            await self._playwright.stop()


def _forget_driver(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle errors as usual, but not Playwright's that its driver ended: each call says so, too.

    SIGTERM for a whole group of processes, as from ``timeout`` and Slurm, ends the driver first.
    """
    if "reading from the driver" not in str(context.get("exception")):
        loop.default_exception_handler(context)


async def _started_playwright() -> Playwright:
    """Start Playwright; the state of the global random generator is put back."""
    from playwright.async_api import async_playwright

    state = random.getstate()
    try:
        return await async_playwright().start()
    finally:
        random.setstate(state)
