"""What a tab asks the browser while the page moves, with the browser played by a double."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest

from turngym.environments.web.egress import EgressProxy
from turngym.environments.web.tab import Requests, Tab

pytest.importorskip("playwright")


class Session:
    """Answers as it is told to, and passes events on."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.answers = defaultdict(list)
        self.handled = asyncio.Event()
        self.listeners = defaultdict(list)

    def on(self, name, listener):
        self.listeners[name].append(listener)

    def emit(self, name, **event):
        for listener in self.listeners[name]:
            listener(event)

    async def send(self, method, params=None):
        self.sent.append(method)
        if method == "Input.synthesizeScrollGesture":
            await self.handled.wait()
        answer = self.answers[method].pop(0) if self.answers[method] else {}
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def tab(session):
    tab = Tab(SimpleNamespace(is_closed=lambda: False), EgressProxy({}))
    tab._session = session
    tab._requests = Requests(session)
    return tab


async def test_a_page_that_gives_way_to_another_is_asked_again(tab, session):
    from playwright.async_api import Error

    entries = [{"url": "about:blank", "id": 1}, {"url": "http://page.test/", "id": 2}]
    between = Error("Protocol error (Page.getNavigationHistory): Not attached to an active page")
    session.answers["Page.getNavigationHistory"] = [
        between, between, {"entries": entries, "currentIndex": 1},
    ]  # fmt: skip
    assert await tab.visited() == ("http://page.test/",)
    session.answers["Page.getNavigationHistory"] = [Error("something else")]
    with pytest.raises(Error, match="something else"):
        await tab.visited()


async def test_a_touch_ends_when_the_page_has_handled_it(tab, session):
    touching = asyncio.create_task(tab.touch([(1, 1)]))
    while "Input.synthesizeScrollGesture" not in session.sent:
        await asyncio.sleep(0)
    assert session.sent[:2] == ["Input.dispatchTouchEvent"] * 2
    assert not touching.done()
    session.handled.set()
    await touching


async def test_a_touch_ends_when_it_leads_to_another_document(tab, session):
    touching = asyncio.create_task(tab.touch([(1, 1)]))
    while "Input.synthesizeScrollGesture" not in session.sent:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    tab._lose_world()
    await touching
    assert not session.handled.is_set()


async def test_requests_are_under_way_until_answered_or_left_behind(session):
    requests = Requests(session)

    def begin(name, *, frame="top", loader="one", kind="Fetch"):
        session.emit(
            "Network.requestWillBeSent",
            requestId=name, frameId=frame, loaderId=loader, type=kind,
        )  # fmt: skip

    begin("a")
    begin("ping", kind="Ping")
    assert not await requests.wait_idle(0.0)
    waiting = asyncio.create_task(requests.wait_idle(60.0))
    await asyncio.sleep(0)
    session.emit("Network.loadingFinished", requestId="a")
    assert await waiting
    begin("b")
    session.emit("Network.loadingFailed", requestId="b")
    assert requests.is_idle
    begin("in a frame", frame="inner", loader="two")
    session.emit("Page.frameNavigated", frame={"id": "other", "parentId": "top", "loaderId": "9"})
    assert not requests.is_idle
    session.emit("Page.frameDetached", frameId="inner")
    assert requests.is_idle
    begin("old")
    begin("new", loader="three")
    session.emit("Page.frameNavigated", frame={"id": "top", "loaderId": "three"})
    assert not requests.is_idle
    session.emit("Network.loadingFinished", requestId="new")
    assert requests.is_idle
