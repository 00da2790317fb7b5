"""What is in a tracker: everything that an agent could change, read from its database."""

from __future__ import annotations

import copy
import sqlite3
from dataclasses import dataclass, field

FIELDS = (
    "type", "component", "priority", "owner", "reporter", "cc", "version", "milestone", "status",
    "resolution", "summary", "description", "keywords",
)  # fmt: skip


@dataclass(slots=True)
class State:
    """Compared as a whole: what is missing and what is too much both count."""

    tickets: dict[int, dict[str, str]] = field(default_factory=dict)
    comments: list[tuple[int, str]] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)
    """Name of a wiki page to its newest text."""
    milestones: dict[str, bool] = field(default_factory=dict)
    """Name to whether it is completed."""
    others: list[tuple[str, ...]] = field(default_factory=list)
    """Components, versions, permissions, reports, attachments: no task touches them."""

    def copy(self) -> State:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def open_tickets(self, **values: str) -> list[int]:
        """Return the numbers of tickets that are not closed and have ``values``, in order."""
        return [
            number
            for number, ticket in sorted(self.tickets.items())
            if ticket["status"] != "closed" and all(ticket[k] == v for k, v in values.items())
        ]


def read_state(connection: sqlite3.Connection) -> State:
    """Return what is in the database."""
    rows = connection.execute
    state = State()
    for number, *values in rows(f"SELECT id, {', '.join(FIELDS)} FROM ticket"):
        state.tickets[number] = {
            name: _plain(value) for name, value in zip(FIELDS, values, strict=True)
        }
    comments = rows(
        "SELECT ticket, newvalue FROM ticket_change WHERE field = 'comment' AND newvalue <> '' "
        "ORDER BY ticket, time"
    )
    state.comments = [(number, _plain(text)) for number, text in comments]
    for name, text in rows("SELECT name, text FROM wiki ORDER BY name, version"):
        state.pages[name] = _plain(text)
    state.milestones = {
        name: bool(done) for name, done in rows("SELECT name, completed FROM milestone")
    }
    for table in ("component", "version", "permission", "enum", "report", "attachment"):
        found = rows(f"SELECT * FROM {table}").fetchall()
        state.others += sorted((table, *map(str, row)) for row in found)
    return state


def _plain(text: str | None) -> str:
    """Return text as it was meant: line ends, empty lines and blanks at ends do not matter."""
    return "\n".join(line.rstrip() for line in (text or "").splitlines() if line.strip())
