"""What is in an application's database, as an agent's doings change it.

A query gives what a person would call the content: texts and names instead of row numbers and
dates. Tables that no query stands for, and that do not change by themselves, count as they are.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""Column to value; what SQLite gives."""


class Data:
    """Rows by name of their query. Two are equal when they hold the same rows in any order.

    Args:
        tables: Name to rows.
    """

    def __init__(self, tables: Mapping[str, list[Row]]) -> None:
        self.tables = dict(tables)

    def all(self, table: str, **values: Any) -> list[Row]:
        """Return the rows that have ``values``, in the order of the query."""
        rows = self.tables[table]
        return [row for row in rows if all(row[name] == one for name, one in values.items())]

    def one(self, table: str, **values: Any) -> Row:
        """Return the only row that has ``values``.

        Raises:
            LookupError: There is none, or more than one.
        """
        rows = self.all(table, **values)
        if len(rows) != 1:
            raise LookupError(f"{table}: {len(rows)} rows with {values}; wanted one")
        return rows[0]

    def add(self, table: str, **row: Any) -> Row:
        """Add a row, and return it."""
        self.tables[table].append(row)
        return row

    def drop(self, table: str, **values: Any) -> None:
        """Remove all rows that have ``values``."""
        gone = self.all(table, **values)
        self.tables[table] = [row for row in self.tables[table] if row not in gone]

    def copy(self) -> Data:
        """Return an independent copy."""
        return Data({name: [dict(row) for row in rows] for name, rows in self.tables.items()})

    def differences(self, other: Data) -> list[str]:
        """Return what only one of the two holds: ``-`` here, ``+`` there."""
        found = []
        for table in sorted(self.tables.keys() | other.tables.keys()):
            here, there = _count(self.tables.get(table, [])), _count(other.tables.get(table, []))
            found += [f"- {table}: {row}" for row in (here - there).elements()]
            found += [f"+ {table}: {row}" for row in (there - here).elements()]
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and not self.differences(other)

    __hash__ = None  # type: ignore[assignment]  # it changes


def _count(rows: list[Row]) -> Counter[str]:
    return Counter(
        str(sorted((k, float(v) if isinstance(v, int) else v) for k, v in row.items()))
        for row in rows
    )


def read_queries(site: str) -> dict[str, str]:
    """Return name to query of ``site``, each below its name in ``queries.sql``."""
    text = Path(__file__).with_name(site).joinpath("queries.sql").read_text("utf-8")
    parts = (part.partition("\n") for part in text.split("-- ")[1:])
    return {name: query.strip() for name, _, query in parts}


def read_data(
    connection: sqlite3.Connection, queries: Mapping[str, str], *, ignored: Collection[str] | None
) -> Data:
    """Return what is in the database.

    Args:
        connection: To the database.
        queries: Name to query.
        ignored: Tables that queries stand for, or that change by themselves; None: all.
    """
    tables: dict[str, list[Row]] = {}
    for name, query in queries.items():
        cursor = connection.execute(query)
        columns = [column[0] for column in cursor.description]
        tables[name] = [dict(zip(columns, map(plain, row), strict=True)) for row in cursor]
    if ignored is None:
        return Data(tables)
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    tables["others"] = [
        {"table": name, "digest": _digest(connection, name)}
        for (name,) in sorted(names)
        if name not in ignored and not name.startswith("sqlite_")
    ]
    return Data(tables)


def _digest(connection: sqlite3.Connection, table: str) -> str:
    rows = sorted(map(repr, connection.execute(f'SELECT * FROM "{table}"')))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return text as it was meant: line ends, empty lines and blanks at ends do not matter."""
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return text
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()).strip()
