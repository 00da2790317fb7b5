"""Serves a WSGI application on a Unix socket. For the scripts of programs, in their own Python."""

from __future__ import annotations

import os
import signal
import socketserver
import sys
from collections.abc import Callable
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """Answers several requests at once."""

    address_family = socketserver.UnixStreamServer.address_family
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "site", 80
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        connection, _ = super().get_request()
        return connection, ("127.0.0.1", 0)  # all callers are one client


class Quiet(WSGIRequestHandler):
    """Writes no log and looks no name up."""

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "127.0.0.1"


def serve(application: Callable[..., Any], socket: str) -> None:
    """Serve ``application`` at ``socket`` until killed, or until the parent is gone."""
    server = Server(socket, Quiet)  # type: ignore[arg-type]  # typeshed knows host and port only
    server.set_app(application)
    say_ready()
    server.serve_forever()


def say_ready() -> None:
    """Tell the parent that requests may come, and end together with it."""
    print("ready", flush=True)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of standard input, which comes when the parent is gone."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)  # whatever else was started goes, too
