"""One page in the browser, read and acted on through a world of its own beside the page's.

Everything has a time limit: a page that hangs, crashes or never goes quiet costs a step its cap
and no more. What cannot be used any longer raises ``TabLost``, and the session opens a new tab.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from turngym.environments.web.egress import EgressProxy

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

_UNANSWERED = frozenset({"CSPViolationReport", "EventSource", "Ping", "Prefetch", "Preflight"})
"""Kinds of requests whose answer no page waits for, or that never end."""


class Requests:
    """The unanswered requests of one tab.

    The proxy sees a request when it arrives, which on a busy machine may be long after the page
    made it. Here it counts from the line of the page that made it: the browser reports both over
    one connection, so whatever the page asked for before it answered us is known by then.

    Args:
        session: A session of the DevTools protocol with the page.
    """

    def __init__(self, session: CDPSession) -> None:
        self._open: dict[str, tuple[str, str]] = {}
        """By id: the frame and the document that made it."""
        self._answered: set[str] = set()
        """Ids of which the head of an answer has come."""
        self._changed = asyncio.Event()
        session.on("Network.requestWillBeSent", self._began)
        session.on("Network.responseReceived", lambda event: self._answered.add(event["requestId"]))
        session.on("Network.loadingFinished", self._ended)
        session.on("Network.loadingFailed", self._ended)
        session.on("Page.frameNavigated", self._navigated)
        session.on("Page.frameDetached", self._detached)

    @property
    def is_idle(self) -> bool:
        """The page waits for no answer."""
        return not self._open

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until the page waits for no answer; False when that took too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open:
                    self._changed.clear()
                    await self._changed.wait()
        return self.is_idle

    @property
    def answered(self) -> frozenset[str]:
        """Ids of open requests whose answer has begun to come."""
        return frozenset(self._answered & self._open.keys())

    def forget(self, ids: Collection[str]) -> None:
        """Wait no longer for requests: the page does not read their answers."""
        for one in ids:
            self._open.pop(one, None)
        self._changed.set()

    def _began(self, event: dict[str, Any]) -> None:
        # A redirect comes under the id of its request and takes its place.
        self._answered.discard(event["requestId"])
        # Of a worker's script, which is no document's, only the worker gets to know the end.
        if event.get("type") not in _UNANSWERED and event["loaderId"]:
            self._open[event["requestId"]] = event.get("frameId", ""), event["loaderId"]

    def _ended(self, event: dict[str, Any]) -> None:
        self._answered.discard(event["requestId"])
        self.forget([event["requestId"]])

    def _navigated(self, event: dict[str, Any]) -> None:
        """Forget what the frame's last document asked for: nothing waits for it any more."""
        frame = event["frame"]
        is_top = "parentId" not in frame
        self._keep(
            lambda owner, document: (
                document == frame["loaderId"] or (owner != frame["id"] and not is_top)
            )
        )

    def _detached(self, event: dict[str, Any]) -> None:
        self._keep(lambda owner, _: owner != event["frameId"])

    def _keep(self, wanted: Callable[[str, str], bool]) -> None:
        self._open = {name: one for name, one in self._open.items() if wanted(*one)}
        self._changed.set()


T = TypeVar("T")

WORLD = "turngym"
_SCRIPT = files(__package__).joinpath("page.js").read_text(encoding="utf-8")
_ANSWER_S = 15.0
"""How long a page may keep the main thread busy before its tab is closed as unresponsive.

On a machine with ten jobs for a core a page that is well needs more than a few seconds."""
_LOAD_MS = 4_000
"""How long a document may take to arrive before it is shown as it is."""
_UNREAD_S = 0.5
"""How long a page may leave an answer unread that was sent to its end."""
_LEAVE_S = 0.25
"""How long to wait for a request when a page said that it is about to be left."""
_FENCE = "Input.synthesizeScrollGesture"
_FINGER_S = 0.01
"""Between two places that a finger passes."""
_AGAIN_S = 0.01
_BETWEEN = "Not attached to an active page"
_GONE = ("context with specified id", "context was destroyed", "Inspected target navigated")


class TabLost(Exception):
    """The page crashed or does not answer; the message is shown to the agent."""


class ContextLost(Exception):
    """The document was left while it was asked."""


class Tab:
    """A page and its second world.

    Args:
        page: The page.
        proxy: Its way out, which knows what is under way.
    """

    _session: CDPSession  # these two from ``open`` on
    _requests: Requests

    def __init__(self, page: Page, proxy: EgressProxy) -> None:
        self.page = page
        self._proxy = proxy
        self._world: int | None = None
        self._world_ready = asyncio.Event()
        self._lost = asyncio.Event()
        """Set when the present world is gone."""
        self._frame = ""
        self.earlier: list[str] = []
        """Addresses to go back to once the tab's own history has come to its begin."""
        self._begin = 0
        """Where in the browser's history of the tab its own begins."""
        self.when_opens: Callable[[], None] = lambda: None
        """Called where the page opens a window, before that is there."""
        self.is_crashed = False
        self.lost_because = ""
        """Shown to the agent instead when this tab is lost."""

    async def open(self) -> None:
        """Enter the page: from now on every document gets the second world at its start."""
        self.page.on("crash", self._crashed)
        session = self._session = await self.page.context.new_cdp_session(self.page)
        self._requests = Requests(session)
        # Not Playwright's evaluate: it runs in the page's own world, where a page could replace
        # what we call and see that it is read; and it waits for ever for a page that hangs.
        session.on("Runtime.executionContextCreated", self._context_created)
        session.on("Runtime.executionContextDestroyed", self._context_destroyed)
        session.on("Runtime.executionContextsCleared", lambda _: self._lose_world())
        session.on("Page.windowOpen", lambda _: self.when_opens())
        tree, *_ = await asyncio.gather(
            session.send("Page.getFrameTree"),
            session.send(
                "Page.addScriptToEvaluateOnNewDocument",
                {"source": _SCRIPT, "worldName": WORLD, "runImmediately": True},
            ),
            session.send("Page.enable"),
            session.send("Network.enable", {"maxTotalBufferSize": 0}),
        )
        self._frame = tree["frameTree"]["frame"]["id"]
        # Last: it reports the worlds that are there already, and ours is known by its frame.
        await session.send("Runtime.enable")

    @property
    def document(self) -> object:
        """Identity of the open document."""
        return self._world

    async def visited(self) -> tuple[str, ...]:
        """Return the addresses of the tab's own history, up to the one that is open."""
        entries, here = await self._history()
        return tuple(str(one["url"]) for one in entries[min(self._begin, here) : here + 1])

    async def go_back(self) -> str | None:
        """Go back one page; return the address to open where the browser has forgotten it.

        Raises:
            LookupError: There is no page to go back to.
        """
        entries, here = await self._history()
        if here > self._begin:
            # Playwright's own waits for what may never come.
            await self.within(
                self._session.send(
                    "Page.navigateToHistoryEntry", {"entryId": entries[here - 1]["id"]}
                )
            )
            return None
        if not self.earlier:
            raise LookupError("There is no page to go back to.")
        self._begin = here + 1  # where the page that is opened now will be
        return self.earlier.pop()

    async def _history(self) -> tuple[list[dict[str, Any]], int]:
        found = await self.within(self._asked("Page.getNavigationHistory"))
        blank = int(found["entries"][0]["url"] == "about:blank")  # how every tab starts
        return found["entries"][blank:], found["currentIndex"] - blank

    async def _asked(self, method: str) -> dict[str, Any]:
        """Return the browser's answer on the page; while one page gives way to another, ask again.

        A document that has arrived becomes the active one a moment later, without any event.
        """
        from playwright.async_api import Error

        while True:
            try:
                answer: dict[str, Any] = await self._session.send(method)
                return answer
            except Error as error:
                if _BETWEEN not in str(error):
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def observe(
        self, *, quiet_ms: int, cap_ms: int, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return what ``page.js`` sees once document and network are quiet, or at the cap.

        Args:
            quiet_ms: The document must not have changed for so long.
            cap_ms: Longest wait; then the page is shown as it is, and said to be busy.
            options: As ``observe`` of ``page.js`` takes them.

        Raises:
            TabLost: The page crashed, or its main thread does not answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + cap_ms / 1000
        load_ms = max(cap_ms, _LOAD_MS)
        is_again = False
        while True:
            left_ms = max(1, int((deadline - loop.time()) * 1000))
            quiet = quiet_ms if left_ms > 1 else 0  # at the cap the page is read as it is
            try:
                arguments = (quiet, left_ms, load_ms, options, is_again)
                seconds = max(left_ms, load_ms) / 1000 + _ANSWER_S
                raw: dict[str, Any] = await self.call("observe", *arguments, seconds=seconds)
            except ContextLost:
                if left_ms > 1:
                    continue
                raise TabLost("The page kept loading other pages and was closed.") from None
            if raw["state"] == "leaving":
                await self._left(deadline - loop.time())
            elif self._is_idle or left_ms <= 1:
                return raw
            else:
                is_again = True
                await self._wait_idle(deadline)

    @property
    def _is_idle(self) -> bool:
        """No request of the page is under way, and none that comes of it is at the proxy."""
        return self._requests.is_idle and self._proxy.is_idle

    async def _wait_idle(self, deadline: float) -> None:
        """Wait until nothing is under way; not for an answer that a page never reads.

        The browser calls a request finished once its page has read the whole answer.
        """
        clock = asyncio.get_running_loop().time
        await self._proxy.wait_idle(deadline - clock())
        sent = self._requests.answered if self._proxy.is_idle else frozenset()
        if not await self._requests.wait_idle(min(deadline - clock(), _UNREAD_S)):
            self._requests.forget(sent)

    async def call(self, name: str, *arguments: Any, seconds: float = _ANSWER_S) -> Any:
        """Return what the function ``name`` of ``page.js`` gives.

        Args:
            name: Of the function.
            arguments: JSON values.
            seconds: How long the answer may take.

        Raises:
            TabLost: As ``observe``.
        """
        world = await self._get_world()
        answer = await self._evaluate(_call(name, arguments), world=world, seconds=seconds)
        return answer.get("value")

    async def main(self, expression: str) -> Any:
        """Return the value of ``expression`` in the page's own world. Never of an agent's text."""
        return (await self._evaluate(expression, world=None)).get("value")

    async def can_go_back(self) -> bool:
        """Say whether ``go_back`` leads anywhere."""
        _, here = await self._history()
        return here > self._begin or bool(self.earlier)

    async def upload(self, mark: int, paths: list[str]) -> bool:
        """Put the files at ``paths`` into the field of files that ``mark`` is or stands for.

        Returns:
            False where there is none.
        """
        # The node itself: the browser puts files only into what it knows by an id.
        found = await self._evaluate(
            _call("fileField", (mark,)), world=await self._get_world(), by_value=False
        )
        if (field := found.get("objectId")) is not None:
            await self._session.send("DOM.setFileInputFiles", {"files": paths, "objectId": field})
        return field is not None

    async def touch(self, path: Sequence[tuple[float, float]], *, hold_s: float = 0.0) -> None:
        """Put a finger down at the first place of ``path``, move it through the rest and lift it.

        Args:
            path: Places in the view, in CSS pixels.
            hold_s: Wait before lifting it after a move, so that a page is not flung on.
        """
        session = self._session

        async def send(kind: str, *places: tuple[float, float]) -> None:
            points = [{"x": x, "y": y} for x, y in places]
            event = {"type": kind, "touchPoints": points}
            # A limit for each: a finger that is left on a slow page would spoil what comes next.
            await self.within(session.send("Input.dispatchTouchEvent", event))

        # At once: a finger that rests while a slow browser answers would press long instead.
        second = send("touchMove", path[1]) if len(path) > 1 else send("touchEnd")
        await asyncio.gather(send("touchStart", path[0]), second)
        for place in path[2:]:
            await asyncio.sleep(_FINGER_S)
            await send("touchMove", place)
        if len(path) > 1:
            await asyncio.sleep(hold_s)
            await send("touchEnd")
        await self._input_handled()

    async def _input_handled(self) -> None:
        """Wait until the page has handled all touches, and what became of them, or is gone.

        A tap or a scroll begins only after the touch itself was answered. A gesture of no length
        sends nothing, but queues up behind them, and is answered once a frame shows the result.
        """
        gesture = {"x": 1, "y": 1, "xDistance": 0, "yDistance": 0, "gestureSourceType": "touch"}
        handled = asyncio.ensure_future(self._session.send(_FENCE, gesture))
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await self.within(asyncio.wait([handled, lost], return_when=asyncio.FIRST_COMPLETED))
        finally:
            for one in (handled, lost):
                one.cancel()
            await asyncio.gather(handled, lost, return_exceptions=True)

    async def press_long(self, x: float, y: float, *, hold_s: float) -> None:
        """Hold a finger at a place until the page's context menu would open.

        Chromium without a window takes the press for a long one and opens no menu; the right
        mouse button then gives the page the ``contextmenu`` event that it gets on a phone.
        """
        session = self._session
        held = {"x": x, "y": y, "duration": round(hold_s * 1000), "gestureSourceType": "touch"}
        await self.within(session.send("Input.synthesizeTapGesture", held))
        await self.within(self.page.mouse.click(x, y, button="right"))

    async def within(self, work: Coroutine[Any, Any, T], seconds: float = _ANSWER_S) -> T:
        """Return what ``work`` on the page gives, within a time limit.

        Args:
            work: A coroutine of Playwright's or ours; closed unawaited when the page has crashed.
            seconds: The limit.

        Raises:
            TabLost: It took longer, or the page is gone.
        """
        from playwright.async_api import Error

        if self.is_crashed:
            work.close()
            raise TabLost("The page crashed.")
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            reason = f"The page did not answer for {seconds:g} s and was closed."
            raise TabLost("The page crashed." if self.is_crashed else reason) from None
        except Error as error:
            if self.is_crashed:
                raise TabLost("The page crashed.") from error
            if self.page.is_closed():
                raise TabLost("The page closed itself.") from error
            raise

    async def close(self) -> None:
        """Close the page, whatever state it is in."""
        with suppress(Exception):
            await asyncio.wait_for(self.page.close(), _ANSWER_S)

    async def _evaluate(
        self,
        expression: str,
        *,
        world: int | None,
        by_value: bool = True,
        seconds: float = _ANSWER_S,
    ) -> dict[str, Any]:
        from playwright.async_api import Error

        request: dict[str, Any] = {
            "expression": expression,
            "awaitPromise": True,
            "returnByValue": by_value,
        }
        if world is not None:
            request["contextId"] = world
        try:
            answer = await self.within(self._session.send("Runtime.evaluate", request), seconds)
        except Error as error:
            if any(words in str(error) for words in _GONE):
                if world == self._world:
                    self._lose_world()
                raise ContextLost from error
            raise
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description", details.get("text", ""))
            raise RuntimeError(str(text).split("\n", 1)[0][:300])
        result: dict[str, Any] = answer["result"]
        return result

    async def _get_world(self) -> int:
        while self._world is None:
            await self.within(self._world_ready.wait())
        return self._world

    async def _left(self, seconds: float) -> None:
        """Wait for the next document after a page said that it is being left."""
        world, lost = self._world, self._lost
        until = asyncio.get_running_loop().time() + max(0.0, seconds)
        while self._world == world and asyncio.get_running_loop().time() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await lost.wait()
            if self._world == world and self._is_idle:
                break  # a download, or the page stays after all
        if self._world == world:
            with suppress(ContextLost):
                await self.call("stay")

    def _context_created(self, event: dict[str, Any]) -> None:
        context = event["context"]
        about = context.get("auxData", {})
        if context["name"] == WORLD and about.get("frameId") == self._frame:
            self._world = context["id"]
            self._world_ready.set()

    def _context_destroyed(self, event: dict[str, Any]) -> None:
        if event["executionContextId"] == self._world:
            self._lose_world()

    def _lose_world(self) -> None:
        self._world = None
        self._world_ready.clear()
        self._lost.set()  # wakes who waits for this world to go; the next world gets a new event
        self._lost = asyncio.Event()

    def _crashed(self, _page: object) -> None:
        self.is_crashed = True


def _call(name: str, arguments: tuple[Any, ...]) -> str:
    return f"turngym.{name}({', '.join(json.dumps(one) for one in arguments)})"
