"""What the web applications share, without any of them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from random import Random

import pytest

from turngym.environments.web.egress import EgressProxy, Server
from turngym.environments.web.expert_view import (
    ExpertView,
    as_stage,
    choose,
    enter,
    press,
    press_above,
    reply,
    visit,
)
from turngym.environments.web.observation import Element, PageView
from turngym.environments.web.sites.data import Data, plain, read_data
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import SiteProblem, SiteTasks, is_right
from turngym.environments.web.sites.program import DATABASES
from turngym.environments.web.sites.wiki.env import WikiEnv
from turngym.tasks.problem import judge


@pytest.fixture
def shelf() -> Iterator[Callable[[], sqlite3.Connection]]:
    """Opens databases of two books, closed when the test is over."""
    with ExitStack() as opened:

        def open_one() -> sqlite3.Connection:
            connection = opened.enter_context(closing(sqlite3.connect(":memory:")))
            connection.executescript(
                """CREATE TABLE book (id INTEGER PRIMARY KEY, title TEXT, pages INTEGER);
                CREATE TABLE visit (at TEXT); CREATE TABLE owner (name TEXT);
                INSERT INTO book VALUES (1, 'Moss', 80), (2, 'Fern', 120);
                INSERT INTO owner VALUES ('ada');"""
            )
            return connection

        yield open_one


QUERIES = {"books": "SELECT title, pages FROM book"}
IGNORED = ("book", "visit")


def test_data_is_equal_whatever_the_order_and_the_numbers_of_rows(shelf):
    one, two = shelf(), shelf()
    two.execute("UPDATE book SET id = 9 WHERE id = 1")
    two.execute("INSERT INTO visit VALUES ('today')")
    before, after = (read_data(each, QUERIES, ignored=IGNORED) for each in (one, two))
    assert before == after
    two.execute("INSERT INTO book VALUES (3, 'Fern', 120)")
    assert read_data(two, QUERIES, ignored=IGNORED).differences(before) == [
        "- books: [('pages', 120.0), ('title', 'Fern')]"
    ]


def test_a_table_that_no_query_stands_for_counts_whole(shelf):
    one, two = shelf(), shelf()
    two.execute("UPDATE owner SET name = 'ben'")
    assert read_data(one, QUERIES, ignored=IGNORED) != read_data(two, QUERIES, ignored=IGNORED)
    assert read_data(one, QUERIES, ignored=None) == read_data(two, QUERIES, ignored=None)


def test_data_is_changed_in_a_copy():
    data = Data({"books": [{"title": "Moss"}, {"title": "Fern"}]})
    wanted = data.copy()
    wanted.one("books", title="Moss")["title"] = "Ivy"
    wanted.add("books", title="Reed")
    wanted.drop("books", title="Fern")
    assert [row["title"] for row in wanted.all("books")] == ["Ivy", "Reed"]
    assert [row["title"] for row in data.all("books")] == ["Moss", "Fern"]
    with pytest.raises(LookupError, match="0 rows"):
        wanted.one("books", title="Fern")


def test_blanks_and_empty_lines_of_a_text_do_not_matter():
    assert plain("\n a  \r\n\r\n  b\n") == plain(b"a\n  b") == "a\n  b"
    assert plain(3) == 3


@pytest.mark.parametrize(
    ("answer", "truth", "wanted"),
    [
        (" Rain  Gauge. ", "Rain gauge", True), ("the rain gauge", "Rain gauge", True),
        ("12.5", "12.50", True), ("€12.50", "12.50", True), ("38.0", "38", True),
        ("#38", "38", True),
        ("1250", "12.50", False), ("12.50 or 13", "12.50", False), ("not 38", "38", False),
        ("Rain gauge, Kite", "Rain gauge", False), ("", "38", False), ("", "Kite", False),
    ],
)  # fmt: skip
def test_an_answer_counts_in_any_form_of_the_same_number_or_name(answer, truth, wanted):
    assert is_right(answer, truth) == wanted


def page(*lines: tuple[str, str, str]) -> PageView:
    return PageView(
        elements=tuple(
            Element(mark=n, role=role, name=name, hint=hint)
            for n, (role, name, hint) in enumerate(lines, start=1)
        )
    )


PAGE = page(
    ("link", "Edit", ""),
    ("text", "First post", ""),
    ("link", "Edit", ""),
    ("text", "Second post", ""),
    ("textbox", "Message", ""),
    ("spinbutton", "", "#count"),
    ("select", "Size", ""),
)


@pytest.mark.parametrize(
    ("stage", "move"),
    [
        (press("Edit", "link"), ("click", {"mark": 1})),
        (press("edit", after="First"), ("click", {"mark": 3})),
        (press("#count"), ("click", {"mark": 6})),
        (press_above("Edit", "Second"), ("click", {"mark": 3})),
        (enter("Message", "hi"), ("type", {"mark": 5, "text": "hi"})),
        (enter("#count", "4"), ("type", {"mark": 6, "text": "4"})),
        (choose("Size", "large"), ("select", {"mark": 7, "option": "large"})),
        (press("Nothing"), ("wait", {})),
        (choose("Nothing", "large"), ("wait", {})),
        (visit("http://a.test/"), ("goto", {"url": "http://a.test/"})),
        (reply("42"), ("answer", {"text": "42"})),
        (as_stage(("type", "Message", "hi")), ("type", {"mark": 5, "text": "hi"})),
        (as_stage(("go_back",)), ("go_back", {})),
    ],
)
def test_a_stage_finds_its_element(stage, move):
    assert stage(ExpertView("", PAGE)) == move


def test_a_step_in_words_whose_element_is_not_there_names_it():
    with pytest.raises(LookupError, match=r"nothing called 'Nope' is there; put \('wait',\)"):
        as_stage(("click", "Nope"))(ExpertView("", PAGE))


def rename(data, rng):
    title = rng.choice(["Ivy", "Reed", "Oak", "Elm", "Yew", "Fir", "Ash", "Box"])
    goal = f"Call the {rng.randint(1, 99)} books of the shelf {data.all('books')[0]['title']}."
    data.all("books")[0]["title"] = title
    return f"{goal} {title}", [press("Edit")], title


def read(number):
    return Data({"books": [{"title": f"Book {number}"}]})


def test_problems_of_train_and_test_begin_with_different_databases_and_share_no_goal():
    tasks = SiteTasks("shelf", "rename", rename, read)
    by_split = {
        split: [tasks.problem(tasks.task(split, n)) for n in range(80)]
        for split in ("train", "test")
    }
    numbers = {split: {one.number for one in found} for split, found in by_split.items()}
    half = DATABASES // 2
    assert numbers == {"train": set(range(half)), "test": set(range(half, DATABASES))}
    goals = [{one.prompt for one in found} for found in by_split.values()]
    assert not goals[0] & goals[1]
    assert all(f"Book {one.number}." in one.prompt for one in by_split["test"])
    assert read(0) == Data({"books": [{"title": "Book 0"}]})


@dataclass
class Shelf:
    answer: str | None
    data: Callable[[], Data]


async def test_a_judge_wants_the_answer_and_all_of_the_data_and_says_what_is_wrong():
    tasks = SiteTasks("shelf", "rename", rename, read)
    problem = tasks.problem(tasks.task("test", 0))
    assert isinstance(problem, SiteProblem)
    assert len(problem.expert()) == 2
    right = Data({"books": [{"title": problem.truth}]})
    found = {}
    for name, answer, data in (
        ("right", f" {problem.truth.upper()}. ", right),
        ("silent", None, right),
        ("idle", problem.truth, read(problem.number)),
    ):
        found[name] = await judge(problem, Shelf(answer, lambda data=data: data), "one")
    assert {name: one.score for name, one in found.items()} == {
        "right": 1.0, "silent": 0.0, "idle": 0.0,
    }  # fmt: skip
    assert "answer" in found["silent"].evidence
    assert f"Book {problem.number}" in found["idle"].evidence


async def test_the_gate_reaches_a_server_on_a_unix_socket(tmp_path):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    path = str(tmp_path / "socket")
    server = await asyncio.start_unix_server(answer, path)
    proxy = EgressProxy({"site.test": Server(socket=path), "gone.test": Server(socket=path + "x")})
    await proxy.open()
    try:
        for host, wanted in (("site.test", b"hello"), ("gone.test", b"does not answer")):
            port = int(proxy.address.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            async with asyncio.timeout(10):
                assert wanted in await reader.readuntil(wanted)
            writer.close()
    finally:
        await proxy.close()
        server.close()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("==Ways ==\n#1", "== Ways ==\n#1"),
        ("#redirect[[ Longsand ]]", "#REDIRECT [[Longsand]]"),
        ("#Redirect: [[Longsand]]", "#REDIRECT [[Longsand]]"),
        ("#REDIRECT [[old_Mill]]", "#REDIRECT [[Old Mill]]"),
        ("a [[category: isles]]", "a\n[[Category:Isles]]"),
        ("a\n[[Category:B c]]\nb\n[[Category:A]]", "a\nb\n[[Category:B c]]\n[[Category:A]]"),
        ("see #redirect [[a]] and [[:category:b]]", "see #redirect [[a]] and [[:category:b]]"),
    ],
)
def test_what_a_wiki_reads_alike_is_the_same_text(monkeypatch, text, wanted):
    data = Data({"pages": [{"text": text}]})
    monkeypatch.setattr(SiteEnv, "read", lambda _connection: data)
    assert WikiEnv.read(None).all("pages") == [{"text": wanted}]


def test_no_page_is_mostly_the_answer_where_three_are_compared():
    pages = [
        {"title": f"Light {n}", "space": 0, "text": f"It is a lighthouse.\nHeight: {10 + n} m"}
        for n in range(7)
    ]
    rng, make = Random(3), WikiEnv.generator("highest")
    problems = [make(Data({"pages": pages}), rng) for _ in range(500)]
    answers = [answer for _, _, answer in problems]
    assert set(answers) == {f"Light {n}" for n in range(2, 7)}
    assert max(map(answers.count, answers)) < 0.3 * len(answers)
    named = [goal.split(": ")[1].split("?")[0].split(", ") for goal, _, _ in problems]
    assert [max(names) for names in named] == answers
    assert {names.index(max(names)) for names in named} == {0, 1, 2}
