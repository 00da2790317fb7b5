"""Serves the viewer to browsers on this machine only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from turngym.errors import ConfigError
from turngym.reports.viewer.library import Scan
from turngym.reports.viewer.page import TokenTexts, describe, served_page, token_ids

HOST = "127.0.0.1"
_WAIT_S = 1.0


class Viewer:
    """What a server needs to answer; reads the run again when its files have changed.

    Args:
        run: Folder or file.

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
        return served_page(f"{self._run.resolve().name} · turngym")

    def about(self) -> dict[str, Any]:
        """Return what stands around the episodes."""
        return describe(self.scan.library)

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

    Args:
        viewer: What it shows.
        port: 0 for any that is free.

    Raises:
        ConfigError: The port cannot be had.
    """

    class Handler(_Handler):
        pass

    Handler.viewer = viewer
    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise ConfigError(
            f"port {port}: cannot be had ({error.strerror}); --port 0 takes any that is free"
        ) from error


class _Handler(BaseHTTPRequestHandler):
    viewer: Viewer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer one request."""
        if not self._is_for_us():
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

    def _answer(self, parts: list[str], query: dict[str, str]) -> None:
        viewer = self.viewer
        calls: dict[tuple[str, ...], Callable[[], Any]] = {
            ("api", "about"): viewer.about,
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

    def _is_for_us(self) -> bool:
        """Say whether the request names this server; another name is a trick of a web page."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        return host in (HOST, "localhost")

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
