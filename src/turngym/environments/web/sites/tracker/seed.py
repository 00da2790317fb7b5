"""Makes the Trac project that episodes begin with. Runs in Trac's own Python.

Usage: python seed.py PROJECT NUMBER     (each number gives other content)
"""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 14):
    sqlite3.version_info = (2, 6, 0)  # read by Trac 1.6 when it is imported, and gone
from trac.admin.console import TracAdmin
from trac.cache import key_to_id
from trac.env import open_environment
from trac.util.datefmt import to_utimestamp

COMPONENTS = ("account", "cart", "mobile", "payment", "search")
OWNERS = ("ada", "ben", "cleo", "dan", "eva")
MILESTONES = ("1.0", "1.1", "2.0")
PRIORITIES = ("blocker", "critical", "major", "minor", "trivial")
TYPES = ("defect", "enhancement", "task")
THINGS = ("Button", "Coupon", "Invoice", "Menu", "Password mail", "Price", "Receipt", "Timer")
PROBLEMS = (
    "is cut off", "is shown twice", "loses its value", "needs a clearer name", "stays grey",
    "takes too long", "vanishes on reload",
)  # fmt: skip
PAGES = {
    "ReleasePlan": "= Release plan =\n\nVersion 1.1 comes in March, version 2.0 in autumn.\n",
    "OnCall": "= Who is on call =\n\n * Monday: ada\n * Tuesday: ben\n",
    "Conventions": "= Conventions =\n\nSummaries are whole sentences.\n",
}
TICKETS = 40
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
CACHES = (
    "trac.wiki.api.WikiSystem.pages",
    "trac.ticket.api.TicketSystem.fields",
    "trac.ticket.api.TicketSystem.custom_fields",
    "trac.ticket.model.Milestone.select_names_select",
    "trac.perm.DefaultPermissionStore._all_permissions",
)


def main(project: Path, number: int) -> None:
    admin = TracAdmin(str(project))
    admin.do_initenv("Workshop sqlite:db/trac.db")
    env = open_environment(str(project))
    env.config.set("trac", "default_dateinfo_format", "absolute")
    env.config.set("trac", "default_handler", "WikiModule")
    env.config.set("trac", "auto_preview_timeout", "0")  # it comes by the clock
    env.config.set("ticket", "default_component", "account")
    env.config.set("ticket", "default_milestone", "")
    env.config.set("ticket", "restrict_owner", "false")
    env.config.set("logging", "log_type", "none")
    env.config.set("ticket", "preserve_newlines", "true")
    env.config.save()
    with env.db_transaction as db:
        db("DELETE FROM component")
        db("DELETE FROM milestone")
        db("DELETE FROM version")
        db("INSERT INTO permission (username, action) VALUES ('anonymous', 'TRAC_ADMIN')")
        for name in COMPONENTS:
            db("INSERT INTO component (name, owner) VALUES (%s, '')", (name,))
        for place, name in enumerate(MILESTONES):
            done = to_utimestamp(START) if place == 0 else 0
            db("INSERT INTO milestone (name, due, completed) VALUES (%s, 0, %s)", (name, done))
        for name, text in PAGES.items():
            db(
                """INSERT INTO wiki (name, version, time, author, text, comment, readonly)
                   VALUES (%s, 1, %s, 'ada', %s, '', 0)""",
                (name, to_utimestamp(START), text),
            )
        db("UPDATE wiki SET time = %s", (to_utimestamp(START),))
        for ticket in tickets(number):
            names = ", ".join(ticket)
            db(
                f"INSERT INTO ticket ({names}) VALUES ({', '.join(['%s'] * len(ticket))})",
                tuple(ticket.values()),
            )
        db("DELETE FROM cache")
        for key in CACHES:
            db("INSERT INTO cache (id, generation, key) VALUES (%s, 1, %s)", (key_to_id(key), key))
    env.shutdown()


def tickets(number: int) -> Iterator[dict[str, Any]]:
    """Yield the tickets; no two have the same summary."""
    draw = random.Random(11 + 1_000 * number)
    summaries = [f"{thing} {problem}" for thing in THINGS for problem in PROBLEMS]
    draw.shuffle(summaries)
    for id, summary in enumerate(summaries[:TICKETS], start=1):
        time = to_utimestamp(START + timedelta(hours=id))
        status = draw.choice(("new", "new", "assigned", "accepted", "closed"))
        yield {
            "id": id,
            "type": draw.choice(TYPES),
            "time": time,
            "changetime": time,
            "component": draw.choice(COMPONENTS),
            "priority": draw.choice(PRIORITIES),
            "owner": draw.choice(OWNERS),
            "reporter": draw.choice(OWNERS),
            "cc": "",
            "version": "",
            "milestone": draw.choice(MILESTONES[1:]),
            "status": status,
            "resolution": "fixed" if status == "closed" else "",
            "summary": summary,
            "description": f"Seen by {draw.choice(OWNERS)} during a test.",
            "keywords": "",
        }


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
