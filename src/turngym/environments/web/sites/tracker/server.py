"""Serves one Trac project. Runs in Trac's own Python, which knows nothing of turngym.

Usage: python server.py PROJECT     (prints the port once it listens, then serves until killed)

The clock stands one minute after the newest change in the project, so that what pages show is a
function of what was done and not of when.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from trac.util import datefmt

_NEWEST = """select max(t) from (select max(changetime) t from ticket
    union select max(time) from ticket_change union select max(time) from wiki)"""


def freeze(database: Path) -> None:
    """Replace Trac's clock; must come before the modules that import it by name."""

    def now(tz: tzinfo | None = None) -> datetime:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            (newest,) = connection.execute(_NEWEST).fetchone()
        finally:
            connection.close()
        moment: datetime = datefmt.from_utimestamp(newest) + timedelta(minutes=1)
        return moment if tz is None else moment.astimezone(tz)

    datefmt.datetime_now = now
    assert isinstance(now(), datetime)


class Server(ThreadingMixIn, WSGIServer):
    """Answers several requests at once."""

    daemon_threads = True
    request_queue_size = 64


class Quiet(WSGIRequestHandler):
    """Writes no log and looks no name up."""

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return self.client_address[0]


def main(project: Path) -> None:
    freeze(project / "db" / "trac.db")
    from trac.web.main import dispatch_request

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        environ["trac.env_path"] = str(project)
        return dispatch_request(environ, start_response)

    server = Server(("127.0.0.1", 0), Quiet)
    server.set_app(application)
    print(server.server_port, flush=True)
    Thread(target=end_with_parent, daemon=True).start()
    server.serve_forever()


def end_with_parent() -> None:
    """Wait for the end of standard input, which comes when whoever started this is gone."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
