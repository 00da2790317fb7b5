import base64
import gzip
import http.client
import json
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from helpers.viewer import HOSTILE, write_talks
from turngym.cli.main import main
from turngym.records import MANIFEST
from turngym.reports.viewer.library import Library
from turngym.reports.viewer.page import Viewer, make_server, write_page

ASSETS = Path(__import__("turngym").__file__).parent / "reports" / "viewer" / "assets"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_talks(tmp_path / "run")


class Tags(HTMLParser):
    """Every tag with its attributes, and the data of scripts by id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if tag == "script" and attributes.get("id"):
            self.data.setdefault(str(attributes["id"]), data)  # not the line end after it


def written(run: Path) -> Tags:
    library = Library(run)
    library.scan()
    write_page(library, run / "page.html")
    return Tags((run / "page.html").read_text(encoding="utf-8"))


def unpacked(data: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(data)))


def test_a_page_holds_everything_and_points_nowhere(run: Path):
    page = written(run)
    for _, attributes in page.tags:
        assert not {"src", "href", "action", "onload", "onerror"} & attributes.keys()
    assert unpacked(page.data["run"])["name"] == "run"
    episodes = unpacked(page.data["chunk-0"])
    assert [turn["action"]["content"] for turn in episodes[2]["turns"]] == list(HOSTILE)
    [picture] = [name for name in page.data if name.startswith("picture-")]
    assert base64.b64decode(page.data[picture]).startswith(b"\x89PNG")


def test_what_models_said_stands_in_no_page_as_html(run: Path):
    text = (written(run), (run / "page.html").read_text(encoding="utf-8"))[1]
    for said in HOSTILE[:5]:
        assert said not in text


def test_the_policy_lets_only_the_pages_own_script_run(run: Path):
    page = written(run)
    [policy] = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert sum(tag == "script" and "id" not in a for tag, a in page.tags) == 1


def test_the_same_run_gives_the_same_page(run: Path):
    written(run)
    first = (run / "page.html").read_bytes()
    written(run)
    assert (run / "page.html").read_bytes() == first


def test_no_asset_writes_html_evaluates_text_or_asks_anybody():
    for file in ASSETS.iterdir():
        text = file.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, file.name
        places = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)
        assert set(places) <= {"http://www.w3.org"}, file.name


def test_the_command_writes_a_page(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["view", str(run), "--html", str(run / "a.html")]) == 0
    assert "4 episodes" in capsys.readouterr().err
    assert (run / "a.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["view", "nowhere"], "nowhere: there is no such folder or file"),
        (["view", "{empty}"], "no trajectories, metrics or timeline in here"),
        (["view", "{run}", "--html", "{run}/no/such/a.html"], "cannot be written"),
        (["view", "{run}", "--html", "."], "--html .: is a folder; wanted a file"),
    ],
)
def test_wrong_input_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
):
    (run / "empty").mkdir()
    places = {"run": run, "empty": run / "empty"}
    assert main([argument.format(**places) for argument in arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_of_what_is_no_folder_nothing_else_beside_it_is_looked_at(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    (run / MANIFEST).write_text("of another run, and damaged")
    assert main(["view", str(run.parent / "nowhere")]) == 2
    assert "nowhere: there is no such folder or file" in capsys.readouterr().err


# The server.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadingHTTPServer]:
    found = make_server(Viewer(write_talks(tmp_path_factory.mktemp("served") / "run")))
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def asked(
    server: ThreadingHTTPServer, path: str, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=900)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, answer.headers


def test_a_run_that_is_moved_while_it_is_shown_is_said(tmp_path: Path):
    run = write_talks(tmp_path / "run")
    with make_server(Viewer(run)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            while not json.loads(asked(server, "/api/index?seen=0")[1])["done"]:
                pass
            run.rename(tmp_path / "elsewhere")
            for path in ("/", "/api/episode/0"):
                status, content, _ = asked(server, path)
                assert (status, b"/run" in content, b"No such file" in content) == (404, True, True)
        finally:
            server.shutdown()
            thread.join()


def test_the_server_is_on_the_loopback_address(server: ThreadingHTTPServer):
    assert server.server_address[0] == "127.0.0.1"


def test_the_server_answers_with_page_rows_episode_search_and_picture(
    server: ThreadingHTTPServer,
):
    status, page, headers = asked(server, "/")
    assert status == 200
    assert b"<main" in page
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    rows, done = [], False
    while not done:
        found = json.loads(asked(server, f"/api/index?seen={len(rows)}")[1])
        rows += found["rows"]
        done = found["done"]
    assert len(rows) == 4
    about = json.loads(asked(server, "/api/about")[1])
    assert (about["name"], len(about["timeline"]["lanes"])) == ("run", 2)
    assert json.loads(asked(server, "/api/search?text=take%20key")[1]) == [1]
    episode = json.loads(asked(server, "/api/episode/1")[1])
    status, picture, headers = asked(server, f"/picture/{episode['turns'][0]['picture']}")
    assert (status, headers["Content-Type"]) == (200, "image/png")
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "path",
    [
        "/api/episode/99",
        "/api/episode/x",
        "/api/episode",
        "/api/index",
        "/api/index?seen=x",
        "/picture/..%2f..%2ftalks.jsonl",
        "/picture",
        "/talks.jsonl",
        "/../talks.jsonl",
        "/favicon.ico",
    ],
)
def test_anything_else_is_not_there(server: ThreadingHTTPServer, path: str):
    assert asked(server, path)[0] == 404


def test_a_page_of_somebody_else_cannot_ask(server: ThreadingHTTPServer):
    """A name that leads to this machine (DNS rebinding) is refused."""
    assert asked(server, "/api/about", Host="evil.example")[0] == 403
    assert asked(server, "/api/about", Host=f"localhost:{server.server_port}")[0] == 200


def test_a_port_that_is_taken_is_one_line(
    server: ThreadingHTTPServer, run: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["view", str(run), "--port", str(server.server_port)]) == 2
    assert "--port 0 takes any that is free" in capsys.readouterr().err
