"""Serves one Trac project. Runs in Trac's own Python, which knows nothing of turngym.

Usage: python server.py PROJECT SOCKET     (says when it listens, then serves until killed)

The clock stands one minute after the newest change in the project, so that what pages show is a
function of what was done and not of when.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from trac.util import datefmt
from unix_server import serve

_NEWEST = """select max(t) from (select max(changetime) t from ticket
    union select max(time) from ticket_change union select max(time) from wiki)"""


def freeze(database: Path) -> None:
    """Replace Trac's clock; must come before the modules that import it by name."""

    address = f"{database.absolute().as_uri()}?mode=ro"

    def now(tz: tzinfo | None = None) -> datetime:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            (newest,) = connection.execute(_NEWEST).fetchone()
        moment: datetime = datefmt.from_utimestamp(newest) + timedelta(minutes=1)
        return moment if tz is None else moment.astimezone(tz)

    datefmt.datetime_now = now
    assert isinstance(now(), datetime)


def main(project: Path, socket: str) -> None:
    freeze(project / "db" / "trac.db")
    if sys.version_info >= (3, 14):
        sqlite3.version_info = (2, 6, 0)  # read by Trac 1.6 when it is imported, and gone
    from trac.web.main import dispatch_request

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        environ["trac.env_path"] = str(project)
        return dispatch_request(environ, start_response)

    serve(application, socket)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
