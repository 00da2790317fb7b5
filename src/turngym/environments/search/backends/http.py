"""Live engines over HTTP: a SearXNG-style JSON API, and any other that answers in JSON.

A failing engine is a fault of the episode, never a reward of 0: after the retries it raises
``EnvironmentFault``. A page that cannot be read is an observation, and so is one on another host
that refuses it, or does not answer while the engine does.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

from turngym.environments.search.backends.base import REMEMBERED
from turngym.environments.search.documents import Document, Hit, html_to_text
from turngym.errors import ConfigError, EnvironmentFault, require_known, unknown_name
from turngym.plugins import import_extra

if TYPE_CHECKING:
    import httpx

CassetteMode = Literal["record", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine answered. Request headers, which may hold a key, are never kept."""

    status: int
    content_type: str
    body: str


class Cassette:
    """A file of JSON lines, one request and its answer each.

    Args:
        path: The file; made by the first recording.
        mode: ``"record"`` asks the engine what is not known yet, and keeps the answer; so it is a
            cache of pages too, but not of failures. ``"replay"`` never asks; what was gone is gone.

    Raises:
        ConfigError: The file is broken, or missing where it shall be replayed.
    """

    def __init__(self, path: Path, mode: CassetteMode = "record") -> None:
        require_known("cassette mode", mode, ("record", "replay"))
        self._path, self._mode = path, mode
        self._lock = Lock()
        self._known: dict[str, Answer] = {}
        if path.exists():
            self._read()
        elif mode == "replay":
            raise ConfigError(f"cassette {path}: there is no such file to replay; record one first")

    def find(self, request: Mapping[str, str]) -> Answer | None:
        """Return the answer to ``request``; None when the engine should be asked.

        Raises:
            EnvironmentFault: It is not there and nothing may be asked.
        """
        key = _key(request)
        with self._lock:
            found = self._known.get(key)
        if found is None and self._mode == "replay":
            raise EnvironmentFault(f"cassette {self._path}: no recording of {key[:200]}")
        asks_again = found is None or (found.status != _OK and self._mode == "record")
        return None if asks_again else found

    def keep(self, request: Mapping[str, str], answer: Answer) -> None:
        """Record the answer to ``request``. Several processes may record into one file."""
        key = _key(request)
        line = json.dumps({"request": dict(request), **asdict(answer)}, ensure_ascii=False)
        with self._lock:
            if self._known.get(key) == answer:
                return
            self._known[key] = answer
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(line.encode(errors="replace") + b"\n")

    def _read(self) -> None:
        for number, line in enumerate(self._path.read_text("utf-8").split("\n"), start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
                request = value.pop("request")
                self._known[_key(request)] = Answer(**value)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ConfigError(f"{self._path}:{number}: not a recording ({error!r})") from error


def _key(request: Mapping[str, str]) -> str:
    return json.dumps(dict(request), sort_keys=True, ensure_ascii=False)


_MAX_BODY_BYTES = 4_000_000
_MAX_WAIT_S = 30.0
_MAX_KNOWN = 50_000
"""Results that are remembered for their titles."""
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_OK = 200
_GONE = 410
_NOT_FOUND = frozenset({401, 403, 404, _GONE, 415, 451})
_CHARSET = re.compile(rb"<meta\b[^>]*\bcharset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)
_HEAD_BYTES = 1024
"""In which a page says its encoding, where its server does not."""
_TEXT_TYPES = ("text/", "application/json", "application/xhtml", "application/xml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """How an engine is asked and where its answer holds what."""

    path: str = ""
    """Appended to the URL of the engine."""
    query: str = "q"
    """Name of the parameter with the query."""
    k: str = ""
    """Name of the parameter with the number of results; "" where there is none."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """More parameters."""
    method: str = "GET"
    """GET sends parameters in the URL, POST as a JSON object."""
    results: str = "results"
    """Where the list of results is, keys joined by dots."""
    id: str = "id"
    title: str = "title"
    text: str = "text"
    """Where a result holds these, keys joined by dots; the text is what snippets are made of."""
    document: str = ""
    """URL of a document, with ``{id}`` (as it is) or ``{quoted_id}``; "" where the text of the
    result is all there is."""
    document_text: str = "text"
    """Where a document that is JSON holds its text."""


SEARXNG = Api(path="/search", fixed={"format": "json"}, id="url", text="content", document="{id}")
"""SearXNG with its JSON format switched on; documents are the pages themselves."""


class HttpBackend:
    """Searches a live engine.

    Args:
        url: Of the engine, http or https.
        api: How it is asked.
        timeout_s: Seconds that one try may take.
        retries: Tries after the first, for time-outs, 429 and server errors, each after twice the
            wait of the one before, or what ``Retry-After`` says, 30 s at most.
        cassette: Where answers are kept.
        key_variable: Environment variable with a key, sent as ``Authorization: Bearer``.
        pause: Waits for a number of seconds; for tests.

    Raises:
        ConfigError: The URL or the variable is wrong.
        MissingExtraError: httpx is not installed.
    """

    name = "http"

    def __init__(
        self,
        url: str,
        api: Api = SEARXNG,
        *,
        timeout_s: float = 10.0,
        retries: int = 3,
        cassette: Cassette | None = None,
        key_variable: str = "",
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"search engine {url!r}: wanted a URL with http or https")
        if key_variable and not os.environ.get(key_variable):
            raise ConfigError(f"search engine {url}: the variable {key_variable} is not set")
        self._url, self._api = url.rstrip("/"), api
        self._retries, self._timeout_s, self._pause = retries, timeout_s, pause
        self._headers = {"accept": "application/json, text/html;q=0.9, */*;q=0.5"}
        if key_variable:
            self._headers["authorization"] = f"Bearer {os.environ[key_variable]}"
        self._cassette = cassette
        self._client: httpx.Client | None = None
        self._lock = Lock()
        self._found = lru_cache(maxsize=REMEMBERED)(self._search)
        self._known: dict[str, Hit] = {}
        self._httpx = import_extra("httpx", "a live search engine", "search")

    def search(self, query: str, k: int) -> list[Hit]:
        hits = self._found(query, k)
        with self._lock:
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
            self._known.update((hit.id, hit) for hit in hits)
        return hits

    def get(self, doc_id: str) -> Document | None:
        if not self._api.document:
            hit = self._known.get(doc_id)
            return None if hit is None else Document(id=hit.id, title=hit.title, text=hit.text)
        url = self._api.document.format(id=doc_id, quoted_id=quote(doc_id, safe=""))
        try:
            is_page = urlsplit(url).scheme in ("http", "https")
        except ValueError:  # "http://[" is none
            is_page = False
        if not is_page:
            return None
        answer = self._ask({"method": "GET", "url": url})
        if answer.status in _NOT_FOUND:
            return None
        self._must_be_ok(answer, url)
        return self._document(doc_id, answer)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _search(self, query: str, k: int) -> list[Hit]:
        api = self._api
        count = {api.k: k if api.method == "POST" else str(k)} if api.k else {}
        values = {**api.fixed, api.query: query, **count}
        url = self._url + api.path
        request = {"method": api.method, "url": url, "values": json.dumps(values, sort_keys=True)}
        answer = self._ask(request)
        self._must_be_ok(answer, url)
        try:
            found = _at(json.loads(answer.body), api.results)
        except ValueError as error:
            raise EnvironmentFault(
                f"search engine {url}: sent no JSON ({answer.body[:60]!r})"
            ) from error
        if not isinstance(found, list):
            raise EnvironmentFault(
                f"search engine {url}: {api.results!r} must be a list, found {type(found).__name__}"
            )
        return [hit for rank, one in enumerate(found[:k]) if (hit := self._hit(one, rank))]

    def _hit(self, value: Any, rank: int) -> Hit | None:
        """Return a result, or None when it has no id."""
        doc_id, title = _at(value, self._api.id), _at(value, self._api.title)
        if not isinstance(doc_id, str | int) or not str(doc_id).strip():
            return None
        text = _at(value, self._api.text)
        return Hit(
            id=str(doc_id),
            title=" ".join(str(title or doc_id).split()),
            text=text if isinstance(text, str) else "",
            score=-float(rank),
        )

    def _document(self, doc_id: str, answer: Answer) -> Document | None:
        hit = self._known.get(doc_id)
        title, text = (hit.title if hit else doc_id), answer.body
        if "json" in answer.content_type:
            try:
                found = _at(json.loads(answer.body), self._api.document_text)
            except ValueError:
                return None
            text = found if isinstance(found, str) else ""
        elif "html" in answer.content_type:
            own, text = html_to_text(answer.body)
            title = own or title
        elif not answer.content_type.startswith(_TEXT_TYPES) or "\0" in text:
            return None
        return Document(id=doc_id, title=title, text=text) if text.strip() else None

    def _must_be_ok(self, answer: Answer, url: str) -> None:
        if answer.status != _OK:
            raise EnvironmentFault(
                f"search engine {url}: status {answer.status}: {answer.body[:80]!r}"
            )

    def _ask(self, request: dict[str, str]) -> Answer:
        """Return the answer to ``request``, from the cassette, the engine or the page's host."""
        known = None if self._cassette is None else self._cassette.find(request)
        if known is not None:
            return known
        is_engine = self._is_engine(request["url"])
        try:
            answer = self._try(request)
            if answer.status not in _NOT_FOUND and not is_engine:
                self._must_be_ok(answer, request["url"])
        except EnvironmentFault as error:
            if is_engine:
                raise
            self._try({"method": "GET", "url": self._url})  # raises where it is the network
            answer = Answer(status=_GONE, content_type="", body=str(error))
        if self._cassette is not None and (answer.status == _OK or answer.status in _NOT_FOUND):
            self._cassette.keep(request, answer)
        return answer

    def _is_engine(self, url: str) -> bool:
        return urlsplit(url)[:2] == urlsplit(self._url)[:2]

    def _try(self, request: dict[str, str]) -> Answer:
        httpx = self._httpx
        problem, wait = "", 0.0
        for attempt in range(self._retries + 1):
            if attempt:
                self._pause(wait)
            wait = min(_MAX_WAIT_S, 0.5 * 2**attempt)
            try:
                response = self._send(request)
            except httpx.TimeoutException:
                problem = f"no answer within {self._timeout_s:g} s"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = str(error) or type(error).__name__
            else:
                answer, after = response
                if answer.status not in _RETRIED:
                    return answer
                problem = f"status {answer.status}"
                wait = max(wait, after)
        raise EnvironmentFault(
            f"search engine {request['url']}: {problem}, after {self._retries + 1} tries"
        )

    def _send(self, request: dict[str, str]) -> tuple[Answer, float]:
        """Send once; return the answer and the seconds to wait that it asks for."""
        values = json.loads(request.get("values", "{}"))
        place = {"json": values} if request["method"] == "POST" else {"params": values or None}
        headers = self._headers
        if not self._is_engine(request["url"]):  # a key is for the engine only
            headers = {name: value for name, value in headers.items() if name != "authorization"}
        with self._get_client().stream(
            request["method"], request["url"], headers=headers, **place
        ) as response:
            data = b""
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > _MAX_BODY_BYTES:
                    break
            encoding = response.encoding or "utf-8"
            if response.charset_encoding is None and (own := _CHARSET.search(data[:_HEAD_BYTES])):
                encoding = own[1].decode()
            answer = Answer(
                status=response.status_code,
                content_type=response.headers.get("content-type", "").lower(),
                body=_decoded(data, encoding),
            )
            return answer, _seconds(response.headers.get("retry-after", ""))

    def _get_client(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                self._client = self._httpx.Client(
                    timeout=self._timeout_s, follow_redirects=True, trust_env=False
                )
            client: httpx.Client = self._client
            return client


def _decoded(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding, errors="replace")
    except (LookupError, UnicodeError):  # there is no such encoding
        return data.decode(errors="replace")


def _at(value: Any, path: str) -> Any:
    """Return what ``value`` holds at keys joined by dots, or None."""
    for key in path.split(".") if path else ():
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _seconds(text: str) -> float:
    """Return a ``Retry-After`` in seconds, within bounds; 0 for a date or nonsense."""
    return min(_MAX_WAIT_S, float(text)) if text.strip().isdigit() else 0.0


KINDS: Mapping[str, Api] = {"searxng": SEARXNG, "rest": Api()}
"""Kind of engine to how it is asked unless the settings say otherwise."""

_OPTIONS = ("timeout_s", "retries", "key_variable")
_API_FIELDS = tuple(field.name for field in fields(Api))


def live_backend(settings: Mapping[str, Any]) -> HttpBackend:
    """Return the engine that ``settings`` describe.

    Args:
        settings: ``url``; ``type`` (``"searxng"`` or ``"rest"``); ``timeout_s``, ``retries``,
            ``key_variable``; ``cassette`` (a file) and ``cassette_mode``; any field of ``Api``.

    Raises:
        ConfigError: A setting is unknown or wrong.
    """
    left = dict(settings)
    kind, url = left.pop("type", "searxng"), left.pop("url", None)
    if kind not in KINDS:
        raise unknown_name("type of search engine", str(kind), KINDS)
    if not isinstance(url, str):
        raise ConfigError(f"search engine: 'url' must be a text, found {url!r}")
    recordings, mode = left.pop("cassette", None), left.pop("cassette_mode", "record")
    options = {name: left.pop(name) for name in _OPTIONS if name in left}
    for name in left:
        if name not in _API_FIELDS:
            known = ("url", "type", "cassette", "cassette_mode", *_OPTIONS, *_API_FIELDS)
            raise unknown_name("setting of a search engine", name, known)
    cassette = None if recordings is None else Cassette(Path(recordings).expanduser(), mode)
    return HttpBackend(url, replace(KINDS[kind], **left), cassette=cassette, **options)
