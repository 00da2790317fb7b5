"""Live engines, against a server that this file starts on the loopback interface."""

import json
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from turngym.environments.search.backends.http import (
    Answer,
    Api,
    Cassette,
    HttpBackend,
    live_backend,
)
from turngym.environments.search.corpus_env import CorpusEnv
from turngym.errors import ConfigError, EnvironmentFault, UnknownNameError

pytestmark = pytest.mark.extra("httpx")

RESULTS = [
    {"url": "{base}/page/ada", "title": "Ada  Lorn", "content": "Ada Lorn was born in Ormouth."},
    {"title": "no url"},
    {"url": "{base}/page/ormouth", "title": "", "content": None},
]
PAGES = {
    "/page/ada": ("text/html; charset=utf-8", b"<title>Ada</title><p>Born in Ormouth."),
    "/page/ormouth": ("text/plain", b"Ormouth is the Port."),
    "/page/photo": ("image/png", b"\x89PNG\x00"),
    "/page/moscow": ("text/html", "<meta charset='windows-1251'><p>Москва".encode("cp1251")),
    "/page/json": ("application/json", b'{"data": {"body": "the text"}}'),
    "/page/broken": ("application/json", b"{"),
    "/page/big": ("text/plain", b"word " * 2_000_000),
}


class Engine(ThreadingHTTPServer):
    """Answers searches; ``plan`` holds what it does wrong first."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.plan = deque()
        self.seen = []
        self.released = Event()

    def handle_error(self, request, client_address):
        """Nobody waits for an answer that came too late."""


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        return None

    def send(self, status, kind, body, **headers):
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def answer(self, values):
        server = self.server
        server.seen.append((self.path, values, self.headers.get("authorization")))
        step = server.plan.popleft() if server.plan else None
        if step == "hang":
            server.released.wait(20)
            self.send(200, "application/json", b"{}")
        elif isinstance(step, tuple):
            self.send(*step[:3], **(step[3] if len(step) > 3 else {}))
        elif urlsplit(self.path).path in PAGES:
            kind, body = PAGES[urlsplit(self.path).path]
            self.send(200, kind, body)
        elif self.path.startswith("/page/"):
            self.send(404, "text/html", b"gone")
        else:
            text = json.dumps(
                {"results": RESULTS, "data": {"items": [{"k": "7", "t": "T", "s": "S"}]}}
            )
            self.send(200, "application/json", text.replace("{base}", server.base).encode())

    def do_GET(self):
        self.answer({k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()})

    def do_POST(self):
        self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))


@pytest.fixture
def engine():
    server = Engine()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def make(engine):
    made = []

    def build(*args, **kwargs):
        made.append(HttpBackend(engine.base, *args, **{"pause": lambda _: None, **kwargs}))
        return made[-1]

    yield build
    for backend in made:
        backend.close()
        backend.close()


def test_a_searxng_engine(engine, make):
    backend = make()
    hits = backend.search("who is ada & co?", 5)
    assert [(h.id, h.title, h.text) for h in hits] == [
        (f"{engine.base}/page/ada", "Ada Lorn", "Ada Lorn was born in Ormouth."),
        (f"{engine.base}/page/ormouth", f"{engine.base}/page/ormouth", ""),
    ]
    assert engine.seen[0][1] == {"q": "who is ada & co?", "format": "json"}
    backend.search("who is ada & co?", 5)
    assert len(engine.seen) == 1
    assert len(backend.search("other", 1)) == 1


def test_pages_are_read_as_text(engine, make):
    backend = make()
    backend.search("x", 5)
    page = backend.get(f"{engine.base}/page/ada")
    assert (page.title, page.text) == ("Ada", "Born in Ormouth.")
    assert backend.get(f"{engine.base}/page/ormouth").text == "Ormouth is the Port."
    assert len(backend.get(f"{engine.base}/page/big").text) < 5_000_000


def test_a_page_may_say_its_encoding_itself(engine, make):
    assert make().get(f"{engine.base}/page/moscow").text == "Москва"


@pytest.mark.parametrize("name", ["photo", "broken", "none"])
def test_what_cannot_be_read_is_none(engine, make, name):
    assert make().get(f"{engine.base}/page/{name}") is None


def test_only_web_pages_are_opened(make):
    assert make().get("file:///etc/hostname") is None
    assert make().get("javascript:1") is None
    assert make().get("http://[broken") is None


def test_any_other_engine(engine, make, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    api = Api(
        path="/v1/find",
        method="POST",
        query="question",
        k="limit",
        fixed={"lang": "en"},
        results="data.items",
        id="k",
        title="t",
        text="s",
        document=f"{engine.base}/page/{{quoted_id}}",
        document_text="data.body",
    )
    backend = make(api, key_variable="MY_KEY")
    (hit,) = backend.search("x", 3)
    assert (hit.id, hit.title, hit.text) == ("7", "T", "S")
    assert engine.seen[0] == (
        "/v1/find",
        {"question": "x", "limit": 3, "lang": "en"},
        "Bearer s3cret",
    )
    assert backend.get("json").text == "the text"


def test_a_key_goes_to_the_engine_only(engine, make, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    other = Engine()
    thread = Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    backend = make(key_variable="MY_KEY")
    backend.get(f"{other.base}/page/ada")
    other.shutdown()
    other.server_close()
    thread.join()
    assert other.seen[0][2] is None


def test_without_documents_the_text_of_the_result_is_all(make):
    backend = make(Api(results="data.items", id="k", title="t", text="s"))
    backend.search("x", 1)
    assert backend.get("7").text == "S"
    assert backend.get("8") is None


BUSY = (429, "text/plain", b"slow down", {"Retry_After": "7"})


@pytest.mark.parametrize(
    ("plan", "waits"),
    [
        ([BUSY], [7.0]),
        ([(503, "text/plain", b"")] * 3, [0.5, 1.0, 2.0]),
        ([(429, "text/plain", b"", {"Retry_After": "9999"})], [30.0]),
        ([(500, "text/plain", b"", {"Retry_After": "Wed, 21 Oct"})], [0.5]),
        (["hang"], [0.5]),
    ],
)
def test_a_busy_engine_is_asked_again(engine, make, plan, waits):
    waited = []
    engine.plan.extend(plan)
    backend = make(pause=waited.append, timeout_s=3.0 if plan == ["hang"] else 60.0)
    assert len(backend.search("x", 5)) == 2
    assert waited == waits


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([BUSY] * 3, "status 429, after 3 tries"),
        (["hang"] * 3, "no answer within 0.2 s, after 3 tries"),
        ([(200, "text/html", b"<html>hello")], "sent no JSON \\('<html>hello'\\)"),
        ([(200, "application/json", b"[1]")], "'results' must be a list, found NoneType"),
        ([(200, "application/json", b'{"results": {}}')], "must be a list, found dict"),
        ([(403, "text/plain", b"no key")], "status 403: 'no key'"),
        ([(400, "text/plain", b"format")], "status 400"),
    ],
)
def test_a_failing_engine_is_a_fault_of_the_episode(engine, make, plan, message):
    engine.plan.extend(plan)
    with pytest.raises(EnvironmentFault, match=message):
        make(retries=2, timeout_s=0.2 if plan[0] == "hang" else 60.0).search("x", 5)


def test_an_engine_that_is_not_there():
    backend = HttpBackend("http://127.0.0.1:9", retries=0)
    with pytest.raises(
        EnvironmentFault, match=r"search engine http://127.0.0.1:9/search: .*after 1 tr"
    ):
        backend.search("x", 1)
    backend.close()


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://x", "http://"])
def test_a_wrong_url_is_refused(url):
    with pytest.raises(ConfigError, match="wanted a URL with http or https"):
        HttpBackend(url)


def test_a_missing_key_is_told():
    with pytest.raises(ConfigError, match="variable NO_SUCH_KEY is not set"):
        HttpBackend("http://x", key_variable="NO_SUCH_KEY")


def test_recordings_are_replayed_without_a_network(engine, make, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    file = tmp_path / "tapes" / "a.jsonl"
    backend = make(cassette=Cassette(file), key_variable="MY_KEY")
    hits = backend.search("x", 5)
    page = backend.get(hits[0].id)
    count = len(engine.seen)
    again = make(cassette=Cassette(file))
    assert (again.search("x", 5), again.get(hits[0].id)) == (hits, page)
    assert len(engine.seen) == count
    assert "s3cret" not in file.read_text()
    replay = HttpBackend(engine.base, cassette=Cassette(file, "replay"))
    assert replay.search("x", 5) == hits
    with pytest.raises(EnvironmentFault, match="no recording of"):
        replay.search("something else", 5)
    replay.close()


def test_a_page_that_was_gone_is_replayed_and_asked_for_again(engine, make, tmp_path):
    engine.plan.extend([(404, "text/html", b"")] * 2)
    file, page = tmp_path / "a.jsonl", f"{engine.base}/page/ada"
    backend = make(cassette=Cassette(file))
    assert [backend.get(page) for _ in range(2)] == [None, None]
    assert make(cassette=Cassette(file, "replay")).get(page) is None
    assert len(file.read_text().splitlines()) == 1
    assert make(cassette=Cassette(file)).get(page).title == "Ada"
    assert make(cassette=Cassette(file, "replay")).get(page).title == "Ada"


def test_a_dead_host_is_gone_and_a_dead_network_is_a_fault(engine, make, tmp_path):
    file, page = tmp_path / "a.jsonl", "http://127.0.0.1:9/page"
    assert make(cassette=Cassette(file), retries=0).get(page) is None
    assert make(cassette=Cassette(file, "replay")).get(page) is None
    backend = HttpBackend("http://127.0.0.1:11", retries=0)
    with pytest.raises(EnvironmentFault, match=r"search engine http://127.0.0.1:11: .*after 1 tr"):
        backend.get(page)
    backend.close()


@pytest.mark.parametrize("status", [400, 406, 520, 999])
def test_a_host_that_refuses_a_page_is_no_fault(engine, make, tmp_path, status):
    file, page = tmp_path / "a.jsonl", f"http://localhost:{engine.server_port}/page/ada"
    engine.plan.append((status, "text/html", b"go away"))
    assert make(cassette=Cassette(file)).get(page) is None
    assert make(cassette=Cassette(file, "replay")).get(page) is None


def test_a_recording_may_hold_any_line_break(tmp_path):
    file, answer = tmp_path / "a.jsonl", Answer(status=200, content_type="", body="a\u2028b\x85c")
    Cassette(file).keep({"url": "u"}, answer)
    assert Cassette(file, "replay").find({"url": "u"}) == answer


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"request": {}}', '{"request": {}, "status": 1, "x": 2}']
)
def test_a_broken_recording_is_named(tmp_path, line):
    file = tmp_path / "a.jsonl"
    Cassette(file).keep({"url": "u"}, Answer(status=200, content_type="", body="half \ud83d"))
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(ConfigError, match=r"a.jsonl:2: not a recording"):
        Cassette(file)
    with pytest.raises(ConfigError, match="no such file to replay"):
        Cassette(tmp_path / "b.jsonl", "replay")
    with pytest.raises(UnknownNameError, match="unknown cassette mode"):
        Cassette(tmp_path / "b.jsonl", "rewind")


def test_an_episode_on_a_live_engine(engine, tmp_path):
    questions = tmp_path / "q.jsonl"
    question = {"text": "Where was Ada born?", "answers": ["Ormouth"], "split": "test"}
    questions.write_text(json.dumps(question))
    settings = {"url": engine.base, "retries": 0, "timeout_s": 60.0}
    env = CorpusEnv(engine=settings, questions=str(questions))
    env.reset(options={"split": "test"})
    found = env.step("search ada")[0]["text"]
    assert found.startswith("1. Ada Lorn: Ada Lorn was born in Ormouth.\n2. ")
    assert env.step("open 1")[0]["text"] == "Ada\nBorn in Ormouth."
    engine.plan.append((404, "text/html", b""))
    assert "cannot be read" in env.step("open 2")[4]["invalid_action"]
    state = env.snapshot()
    assert env.step("answer ormouth")[1] == 1.0
    env.restore(state)
    engine.plan.append(BUSY)
    with pytest.raises(EnvironmentFault, match="429"):
        env.step("search more")
    env.close()
    env.close()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"url": "http://x", "type": "bing"}, UnknownNameError, "unknown type of search engine"),
        ({"url": 3}, ConfigError, "'url' must be a text"),
        ({"url": "http://x", "retrys": 3}, UnknownNameError, "Did you mean 'retries'"),
    ],
)
def test_wrong_settings_of_an_engine(settings, error, message):
    with pytest.raises(error, match=message):
        live_backend(settings)


def test_settings_of_an_engine(tmp_path):
    made = live_backend(
        {
            "url": "http://x",
            "type": "rest",
            "query": "ask",
            "cassette": str(tmp_path / "c"),
            "retries": 1,
        }
    )
    assert (made._api.query, made._retries) == ("ask", 1)
    made.close()
