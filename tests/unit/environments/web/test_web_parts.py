"""The parts of web environments that need no browser."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import turngym
from turngym.environments.core.actions import Action, InvalidAction
from turngym.environments.web import base, browser, chromium
from turngym.environments.web.acting import COMMANDS, as_tool_call, web_commands, web_tools
from turngym.environments.web.egress import EgressProxy, Folder, Response, Server
from turngym.environments.web.expert_view import ExpertView, fill
from turngym.environments.web.miniwob.env import MiniWobEnv
from turngym.environments.web.miniwob.experts import EXPERTS
from turngym.environments.web.observation import Element, PageView, address_text, page_text
from turngym.environments.web.pages import folder_of
from turngym.errors import ConfigError, MissingExtraError
from turngym.tasks.problem import PageProblem, PageWorld


def view(*lines: str, **more) -> PageView:
    elements = tuple(
        Element(mark=number, role="text", name=line, y=20 * number - 20, height=20)
        for number, line in enumerate(lines, start=1)
    )
    return PageView(elements=elements, **more)


def test_a_line_says_mark_role_name_value_options_and_states():
    box = Element(
        mark=3, role="select", name="Size", value="large", options=("small", "large"),
        states=("focused",), depth=1,
    )  # fmt: skip
    assert box.line() == "[3] select \"Size\" = 'large' of small | large focused"
    dot = Element(mark=1, role="circle", x=4, y=5, width=6, height=7, about="red", hint="#dot")
    assert dot.line() == "[1] circle #dot at 4,5 size 6x7 (red)"
    assert Element(mark=0, role="text", name="read me").line() == 'text "read me"'


def test_a_page_that_fits_is_shown_whole_even_when_it_is_scrolled():
    assert page_text(view("a", "b", scroll=(500, 100, 900)), 100) == '[1] text "a"\n[2] text "b"'


def test_items_and_texts_that_follow_each_other_take_no_lines_of_their_own():
    said = [
        (0, 0, "item", ""), (7, 1, "link", "Kite"), (0, 1, "text", "3.20"),
        (0, 1, "text", "In stock"), (0, 0, "item", ""), (0, 1, "item", ""), (8, 2, "link", "Top"),
        (0, 0, "text", "of"),
        (0, 0, "text", "20"), (0, 0, "item", "Home"),
        (0, 0, "text", "x" * 200), (0, 0, "text", "y"),
        (0, 0, "item", ""),
    ]  # fmt: skip
    elements = tuple(Element(mark=m, depth=d, role=r, name=n) for m, d, r, n in said)
    wanted = [
        '- [7] link "Kite"', '  text "3.20" "In stock"', '- - [8] link "Top"', 'text "of" "20"',
        'item "Home"', f'text "{"x" * 200}"', 'text "y"', "item",
    ]  # fmt: skip
    assert page_text(PageView(elements=elements), 1_000).splitlines() == wanted
    cut = page_text(PageView(elements=elements), 60).splitlines()
    assert cut == [*wanted[:2], "... 6 lines below; scroll down to read them"]


def test_a_longer_page_is_cut_at_whole_lines_from_the_view_on():
    lines = [f"line {number}" for number in range(50)]
    top = page_text(view(*lines), 100).splitlines()
    assert top[0] == '[1] text "line 0"'
    assert top[-1] == "... 45 lines below; scroll down to read them"
    assert page_text(view("x" * 200, "y"), 20).splitlines() == [
        '[1] text "xxxxxxxxxx',
        "... 1 lines below; scroll down to read them",
    ]
    scrolled = PageView(
        elements=tuple(
            Element(mark=n, role="text", name=f"line {n}", y=20 * n - 205, height=20)
            for n in range(50)
        ),
        scroll=(205, 100, 1000),
    )
    middle = page_text(scrolled, 100).splitlines()
    assert middle[0] == "... 10 lines above; scroll up to read them"
    assert middle[1] == '[10] text "line 10"'


def test_tabs_and_focus_are_told():
    from turngym.environments.web.observation import Tab

    text = address_text(
        view(url="http://a.test/", title="A", focused=2, active_tab=1,
             tabs=(Tab(title="B", url="u"), Tab(title="A", url="v")))
    )  # fmt: skip
    assert text.splitlines() == [
        "Page: A http://a.test/",
        "Tab 0: B",
        "Tab 1: A (here)",
        "Focus: [2]",
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("click 3", Action(name="click", arguments={"mark": "3"})),
        ("click at 10 20", Action(name="click_at", arguments={"x": 10, "y": 20})),
        ("type 3 Hello World", Action(name="type", arguments={"mark": "3", "text": "Hello World"})),
        (
            "scroll down in 4",
            Action(name="scroll_in", arguments={"direction": "down", "mark": "4"}),
        ),
        ("drag 3 to 5", Action(name="drag", arguments={"mark": "3", "target": "5"})),
        ("press Control+A", Action(name="press", arguments={"keys": "Control+A"})),
    ],
)
def test_actions_are_read_in_words(text, wanted):
    assert COMMANDS.parse(text) == wanted


def test_every_action_in_words_is_a_tool_call_too():
    tools = web_tools(tuple(COMMANDS.templates))
    for name, arguments in (
        ("submit", {"mark": 1, "text": "x"}),
        ("append", {"mark": 1, "text": "x"}),
        ("scroll_in", {"mark": 1, "direction": "up"}),
        ("click", {"mark": 1}),
        ("stop", {}),
    ):
        call = tools.render(Action(name=as_tool_call(name, arguments)[0],
                                   arguments=as_tool_call(name, arguments)[1]))  # fmt: skip
        assert isinstance(tools.parse(call), Action), call
    assert isinstance(tools.parse('{"name": "click", "arguments": {}}'), InvalidAction)
    assert isinstance(web_commands(("click",)).parse("goto http://x"), InvalidAction)


def test_the_gate_admits_its_own_sites_only():
    proxy = EgressProxy({"shop.test": Server(1)}, allow=("example.org",))
    assert proxy.admits("http://shop.test/x")
    assert proxy.admits("https://example.org/")
    for url in (
        "https://shop.test/",
        "http://127.0.0.1/",
        "http://shop.test.evil/",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "chrome://crash",
    ):
        assert not proxy.admits(url), url


async def ask(proxy: EgressProxy, request: str) -> str:
    host, port = proxy.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{request}\r\nConnection: close\r\n\r\n".encode())
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


async def test_the_gate_answers_forwards_and_refuses():
    async def upstream(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        body = await reader.readexactly(3)
        first = head.splitlines()[0]
        writer.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{first} {body!r}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(upstream, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = EgressProxy(
        {"a.test": lambda path: Response(body=path.encode()), "b.test": Server(port)}
    )
    await proxy.open()
    try:
        assert (await ask(proxy, "GET http://a.test/x?y=1 HTTP/1.1")).endswith("/x?y=1")
        post = "POST http://b.test/form HTTP/1.1\r\nHost: b.test\r\nContent-Length: 3\r\n\r\nabc"
        assert "POST /form HTTP/1.1 b'abc'" in await ask(proxy, post)
        assert "403" in await ask(proxy, "GET http://c.test/ HTTP/1.1")
        assert "403" in await ask(proxy, f"GET http://127.0.0.1:{port}/ HTTP/1.1")
        assert "403" in await ask(proxy, f"CONNECT 127.0.0.1:{port} HTTP/1.1")
        assert proxy.refused == ["c.test", "127.0.0.1", "127.0.0.1"]
        assert proxy.is_idle
    finally:
        await proxy.close()
        server.close()


def test_a_folder_serves_nothing_outside_of_it(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.css").write_text("x")
    (tmp_path / "secret").write_text("y")
    folder = Folder(tmp_path / "site")
    assert folder("/a.css?v=1").type == "text/css; charset=utf-8"
    assert folder("/../secret").status == 404
    assert folder("/%2e%2e/secret").status == 404
    assert folder("/nothing").status == 404


def test_a_missing_chromium_is_named_with_its_package_and_the_variable(monkeypatch):
    monkeypatch.delenv(chromium.VARIABLE, raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(ConfigError, match=r"chromium-headless-shell, or set TURNGYM_CHROMIUM"):
        chromium.find_chromium()
    monkeypatch.setenv(chromium.VARIABLE, "/no/such")
    with pytest.raises(ConfigError, match="TURNGYM_CHROMIUM=/no/such: there is no such program"):
        chromium.find_chromium()


def test_a_missing_playwright_is_named_with_its_install_line(monkeypatch):
    monkeypatch.setattr(browser.importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'turngym\[web\]'"):
        browser.require_browser()


def test_missing_pages_are_named_with_their_install_line(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "miniwob" else found(name)
    )
    with pytest.raises(MissingExtraError, match="pip install --no-deps miniwob"):
        turngym.make("web/miniwob-click-test")


@pytest.mark.extra("playwright", "miniwob", chromium.NEED)
def test_unknown_settings_are_refused_at_once():
    with pytest.raises(ConfigError, match="Did you mean 'click-button'"):
        MiniWobEnv(task="click-buton")
    with pytest.raises(ConfigError, match="time_limit='mine'"):
        MiniWobEnv(task="click-test", time_limit="mine")
    with pytest.raises(ConfigError, match="unknown MiniWoB reward 'sucess'"):
        MiniWobEnv(task="click-test", reward="sucess")
    with pytest.raises(ConfigError, match="screenshot"):
        MiniWobEnv(task="click-test", screenshot="big")


async def test_a_proxy_that_closes_leaves_no_connection_open_not_even_one_that_just_came():
    proxy = EgressProxy({})
    await proxy.open()
    closed = []
    writer = SimpleNamespace(close=lambda: closed.append(True))
    proxy._connected(asyncio.StreamReader(), writer)
    await proxy.close()
    assert closed == [True]


@pytest.mark.extra("playwright", "miniwob", chromium.NEED)
def test_a_view_becomes_text_once_however_often_it_is_asked_for(monkeypatch):
    rendered = []
    monkeypatch.setattr(base, "page_text", lambda view, _: rendered.append(view) or "a page")
    env = MiniWobEnv(task="click-test")
    env.goal = "Click the button."
    assert env.page() == "Goal: Click the button.\na page"
    assert env.reminder().endswith(env.page())
    assert env.state_key() == env.state_key()
    assert len(rendered) == 1


def test_the_expert_of_a_flight_types_a_city_again_that_the_page_missed() -> None:
    goal = '{"Departure City": "Boston", "Destination City": "Denver"}'
    field = Element(mark=3, role="textbox", name="From", value="Boston")
    typed = Action(name="type", arguments={"mark": 3, "text": "Boston"})
    waits = [Action(name="wait", arguments={})] * 5
    view = PageView(elements=(field,))
    expert = EXPERTS["flight.Alaska-auto"]
    assert expert(ExpertView(goal, view, (typed, *waits[:4])))[0] == "wait"
    assert expert(ExpertView(goal, view, (typed, *waits))) == fill(field, "Boston")


def test_the_expert_of_a_mail_knows_who_has_a_name_of_two_words() -> None:
    names = {3: "Tracie", 9: "La Verne", 15: "Hanna"}
    rows = [Element(mark=mark, role="text", name=name) for mark, name in names.items()]
    page = ExpertView("Send email from La Verne to Tracie.", PageView(elements=tuple(rows)))
    assert EXPERTS["email-inbox-forward-nl-turk"](page) == ("click", {"mark": 9})


@pytest.mark.parametrize("start", ["a.html", "a.html?q=1", "a.html#two", "a.html?q=1#two"])
def test_a_first_page_may_have_a_query_and_a_fragment(start: str, tmp_path: Path) -> None:
    (tmp_path / "a.html").touch()

    class Here(PageProblem):
        pages = str(tmp_path)

        async def judge(self, world: PageWorld) -> bool:
            return False

        def expert(self) -> list[str]:
            return []

    problem = Here()
    problem.start = start
    assert folder_of(problem) == tmp_path
    problem.start = f"no-{start}"
    with pytest.raises(ConfigError, match="there is no such page"):
        folder_of(problem)
