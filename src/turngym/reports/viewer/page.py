"""The page and its server, or the page with everything inside; text of tokens."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit

from turngym.errors import ConfigError
from turngym.records import replacing
from turngym.reports.viewer.library import COLUMNS, Library, Scan, read_about, read_metrics_of

TIMELINE = "timeline.json"

Bar = tuple[float, float, str, str]
"""Begin and length in milliseconds since the first event, name, category."""


def read_timeline(file: Path) -> dict[str, Any] | None:
    """Return the lanes of a trace; None when there is none or it cannot be read.

    Complete events (``X``), pairs (``B`` and ``E``) and the names of processes and threads are
    understood; what else a trace holds is left out.

    Returns:
        ``{"lanes": [{"name": str, "bars": [Bar, ...]}, ...], "end": milliseconds}``.

    Source:
        Trace Event Format, the JSON array and object forms.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        events = content["traceEvents"] if isinstance(content, dict) else content
        return _lanes([event for event in events if isinstance(event, dict)])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lanes(events: list[dict[str, Any]]) -> dict[str, Any]:
    names = _names(events)
    spans = list(_spans(sorted(events, key=lambda event: float(event.get("ts", 0)))))
    origin = min((begin for _, begin, _, _, _ in spans), default=0.0)
    lanes: dict[tuple[Any, Any], list[Bar]] = {}
    for place, begin, length, name, category in spans:
        bar = (round((begin - origin) / 1e3, 4), round(length / 1e3, 4), name, category)
        lanes.setdefault(place, []).append(bar)
    order = sorted(lanes, key=lambda place: (str(place[0]), _sortable(place[1])))
    return {
        "lanes": [{"name": _lane_name(names, place), "bars": lanes[place]} for place in order],
        "end": max(
            (b + length for bars in lanes.values() for b, length, _, _ in bars), default=0.0
        ),
    }


def _spans(
    events: Iterable[Mapping[str, Any]],
) -> Iterable[tuple[tuple[Any, Any], float, float, str, str]]:
    open_ones: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for event in events:
        place = (event.get("pid"), event.get("tid"))
        kind = event.get("ph")
        if kind == "X":
            yield place, float(event["ts"]), float(event.get("dur", 0)), *_labels(event)
        elif kind == "B":
            open_ones.setdefault(place, []).append(event)
        elif kind == "E" and open_ones.get(place):
            begun = open_ones[place].pop()
            begin = float(begun["ts"])
            yield place, begin, float(event["ts"]) - begin, *_labels(begun)


def _labels(event: Mapping[str, Any]) -> tuple[str, str]:
    return str(event.get("name", "")), str(event.get("cat", ""))


def _names(events: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, Any], str]:
    """Return names of threads by process and thread, and of processes by process and None."""
    names: dict[tuple[Any, Any], str] = {}
    for event in events:
        if event.get("ph") == "M" and event.get("name") in ("thread_name", "process_name"):
            thread = event.get("tid") if event["name"] == "thread_name" else None
            names[event.get("pid"), thread] = str(event.get("args", {}).get("name", ""))
    return names


def _lane_name(names: Mapping[tuple[Any, Any], str], place: tuple[Any, Any]) -> str:
    process, thread = names.get((place[0], None)), names.get(place, str(place[1]))
    return f"{process} · {thread}" if process else thread


def _sortable(thread: Any) -> tuple[bool, float, str]:
    is_number = isinstance(thread, int | float)
    return (not is_number, float(thread) if is_number else 0.0, str(thread))


SCRIPTS = (
    "dom.js", "source.js", "facts.js", "list.js", "tokens.js", "episode.js", "compare.js",
    "curves.js", "timeline.js", "about.js", "main.js",
)  # fmt: skip
CHUNK = 64
"""Episodes that a self-contained page unpacks at once."""


def describe(library: Library) -> dict[str, Any]:
    """Return what the page shows around the episodes."""
    return {
        "name": library.run.resolve().name,
        "columns": COLUMNS,
        "sources": library.labels(),
        "about": read_about(library.run),
        "curves": read_metrics_of(library.run),
        "timeline": read_timeline(library.run / TIMELINE),  # of a file: none
    }


def write_page(library: Library, path: Path) -> None:
    """Write one file that shows a library and needs nothing else, replacing it when all is written.

    Episodes are packed in chunks, which the browser unpacks when they are opened.
    """
    head, policy = _head(f"{library.run.resolve().name} · turngym", "img-src data:")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        _write(file, library, head.replace("<title>", meta + "\n<title>", 1))


def _write(file: IO[str], library: Library, head: str) -> None:
    start, script, rest = head.partition("<script")
    tokens = TokenTexts(library.root)
    used: set[int] = set()
    pictures: set[str] = set()
    chunks: list[str] = []
    for first in range(0, len(library.rows), CHUNK):
        last = min(first + CHUNK, len(library.rows))
        episodes = [library.episode(number) for number in range(first, last)]
        for episode in episodes:
            used |= token_ids(episode)
            shown = [*(turn.get("picture") for turn in episode["turns"])]
            pictures.update(filter(None, [*shown, episode.get("final_picture")]))
        chunks.append(_packed(episodes))
    run = {
        **describe(library),
        "chunk": CHUNK,
        "rows": library.rows,
        "broken": library.broken,
        "tokens": tokens.of(used),
    }
    file.write(f"{start}{_data('run', _packed(run))}{script}{rest}")
    for number, chunk in enumerate(chunks):
        file.write(_data(f"chunk-{number}", chunk))
    for name in sorted(pictures):
        found = library.picture(name)
        if found is not None:
            content = base64.b64encode(found.read_bytes()).decode()
            file.write(_data(f"picture-{name.removesuffix('.png')}", content))
    file.write("</body></html>\n")


def _packed(content: Any) -> str:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(errors="replace"), 6, mtime=0)).decode()


def _data(name: str, content: str) -> str:
    """Return data that no browser runs, reads as HTML or asks anybody about: base64 in a script."""
    return f'<script type="application/octet-stream" id="{html.escape(name)}">{content}</script>\n'


def _head(title: str, more_policy: str) -> tuple[str, str]:
    """Return the page up to the end of its script, and the policy that lets only it run."""
    assets = files("turngym.reports.viewer") / "assets"
    style = (assets / "viewer.css").read_text(encoding="utf-8")
    parts = [(assets / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = "(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();"
    frame = (assets / "index.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        f"base-uri 'none'; form-action 'none'; {more_policy}"
    )
    page = frame.replace("{{title}}", html.escape(title))
    page = page.replace("{{style}}", style).replace("{{script}}", script)
    return page, policy


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_NAME = "tokenizer.json"


class TokenTexts:
    """Decodes single tokens; without a tokenizer, or what reads it, it knows none.

    Below ``root`` an evaluation keeps ``tokenizer.json``, a training run has it in its checkpoints.
    """

    def __init__(self, root: Path) -> None:
        self._tokenizer: Any = _load(root)  # tokenizers.Tokenizer, which has no types
        self._known: dict[int, str] = {}

    def of(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of each id that has one; half a character is a replacement mark."""
        if self._tokenizer is None:
            return {}
        found: dict[int, str] = {}
        for token in set(ids):
            if token not in self._known:
                decode = self._tokenizer.decode
                text = decode([token], skip_special_tokens=False) if token >= 0 else PLACE
                self._known[token] = text
            found[token] = self._known[token]
        return found


PLACE = "▣"
"""Shown for each place of a picture in token ids."""


def token_ids(episode: dict[str, Any]) -> set[int]:
    """Return all token ids of an episode as JSON values."""
    return {
        token
        for turn in episode["turns"]
        for span in turn.get("spans") or ()
        for token in span["token_ids"]
    }


def _load(root: Path) -> Any:
    files = [root / _NAME, *sorted(root.glob(f"checkpoints/*/model/{_NAME}"), reverse=True)]
    files += sorted(root.glob(f"*/checkpoints/*/model/{_NAME}"))
    for file in files:
        if file.is_file():
            try:
                from tokenizers import Tokenizer

                return Tokenizer.from_file(str(file))
            except Exception:  # noqa: BLE001 - it raises nothing more precise; ids are shown instead
                return None
    return None


HOST = "127.0.0.1"
_WAIT_S = 1.0


class Viewer:
    """What a server needs to answer; reads the run, a folder or file, again when it has changed.

    Raises:
        ConfigError: There is nothing to show.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lock = threading.Lock()
        self.scan = Scan(run)
        self.tokens = TokenTexts(self.scan.library.root)

    def page(self) -> tuple[bytes, str]:
        """Return the page and its content security policy."""
        with self._lock:
            if not self.scan.is_current:
                self.scan = Scan(self._run)
        head, policy = _head(
            f"{self._run.resolve().name} · turngym", "connect-src 'self'; img-src 'self'"
        )
        return (head + "</body></html>\n").encode(), policy

    def index(self, seen: int) -> dict[str, Any]:
        """Return the rows after the first ``seen``."""
        scan = self.scan
        is_done = scan.is_done  # asked first: what it read before it was done is in the rows
        rows = scan.wait(seen, _WAIT_S)
        return {"rows": rows, "done": is_done, "broken": scan.library.broken}

    def episode(self, number: int) -> dict[str, Any]:
        """Return an episode with the texts of its tokens."""
        found = self.scan.library.episode(number)
        return {**found, "tokens": self.tokens.of(token_ids(found))}


def make_server(viewer: Viewer, port: int = 0) -> ThreadingHTTPServer:
    """Return a server on the loopback address; ``serve_forever`` runs it.

    Port 0 is any that is free.

    Raises:
        ConfigError: The port cannot be had.
    """
    handler = type("Handler", (_Handler,), {"viewer": viewer})
    try:
        return ThreadingHTTPServer((HOST, port), handler)
    except OSError as error:
        raise ConfigError(
            f"port {port}: cannot be had ({error.strerror}); --port 0 takes any that is free"
        ) from error


class _Handler(BaseHTTPRequestHandler):
    viewer: Viewer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer one request."""
        # A request that names another server is a trick of a web page.
        if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in (HOST, "localhost"):
            self._send(HTTPStatus.FORBIDDEN, b"this server answers its own machine only\n")
            return
        address = urlsplit(self.path)
        parts = [unquote(part) for part in address.path.strip("/").split("/")]
        query = {key: values[-1] for key, values in parse_qs(address.query).items()}
        try:
            self._answer(parts, query)
        except (IndexError, KeyError, ValueError):
            self._send(HTTPStatus.NOT_FOUND, b"there is nothing of that name\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the browser has gone elsewhere
        except OSError as error:  # the run, or a file of it, was moved or deleted
            text = f"{error.filename}: cannot be read ({error.strerror})\n"
            self._send(HTTPStatus.NOT_FOUND, text.encode(errors="replace"))

    def _answer(self, parts: list[str], query: dict[str, str]) -> None:
        viewer = self.viewer
        calls: dict[tuple[str, ...], Callable[[], Any]] = {
            ("api", "about"): lambda: describe(viewer.scan.library),
            ("api", "index"): lambda: viewer.index(int(query["seen"])),
            ("api", "search"): lambda: viewer.scan.library.search(query["text"]),
        }
        if parts == [""]:
            page, policy = viewer.page()
            self._send(HTTPStatus.OK, page, "text/html; charset=utf-8", policy)
        elif tuple(parts) in calls:
            self._send_json(calls[tuple(parts)]())
        elif parts[:2] == ["api", "episode"]:
            self._send_json(viewer.episode(int(parts[2])))
        elif parts[0] == "picture":
            found = viewer.scan.library.picture(parts[1])
            if found is None:
                raise KeyError(parts[1])
            self._send(HTTPStatus.OK, found.read_bytes(), "image/png")
        else:
            raise KeyError(self.path)

    def _send_json(self, content: Any) -> None:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        self._send(HTTPStatus.OK, text.encode(errors="replace"), "application/json")

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain", policy: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", policy or "default-src 'none'")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing; a page that works needs no log."""
