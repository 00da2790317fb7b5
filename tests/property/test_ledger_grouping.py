"""Statements that are grouped leave the very ledger that they leave one by one."""

import sqlite3
from contextlib import closing
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turngym.rollouts.scheduler import ledger_files as sql

PLACE = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 2))


def turn(place: tuple[int, int, int], number: int) -> sql.Operation:
    return sql.COMMIT_TURN, (*place, number, 2, 0, "", 7, b"packed")


OPERATIONS = st.one_of(
    st.builds(turn, PLACE, st.integers(0, 30)),
    st.builds(lambda p: (sql.START, (*p, 0, 1)), PLACE),
    st.builds(lambda p: (sql.FENCE, p), PLACE),
    st.builds(lambda p: (sql.FINISH, p), PLACE),
    st.builds(lambda p: (sql.END, (*p, "terminated", None, 3, b"tail")), PLACE),
    st.builds(lambda p: (sql.CARRY_TURNS, (p[0], p[1], p[2] + 1, p[2])), PLACE),
    st.builds(lambda p: (sql.READY, (p[0], p[1], 0)), PLACE),
    st.builds(lambda p: (sql.DROP, (p[0], p[1], "stale")), PLACE),
    st.builds(lambda p: (sql.RESERVE_SAMPLE, p[:2]), PLACE),
    st.builds(lambda p: (sql.CREATE_SAMPLE, p[:2]), PLACE),
)


def left(operations: list[sql.Operation], *, grouped: bool) -> list[list[Any]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(sql.SCHEMA)
        for group in range(2):
            for member in range(2):
                db.execute(sql.CREATE_SAMPLE, (group, member))
                db.execute(sql.START, (group, member, 0, 0, 1))
                db.execute(sql.FENCE, (group, member, 0))
        for statement, row in sql.grouped(operations) if grouped else operations:
            db.execute(statement, row)
        tables = ("samples", "tries", "turns")
        return [
            db.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4").fetchall() for name in tables
        ]


@given(st.lists(OPERATIONS, max_size=60))
def test_grouping_changes_nothing(operations: list[sql.Operation]) -> None:
    assert left(operations, grouped=True) == left(operations, grouped=False)


def test_turns_of_many_episodes_are_few_statements() -> None:
    operations: list[sql.Operation] = []
    for member in range(100):
        operations += [(sql.CREATE_SAMPLE, (9, member)), (sql.START, (9, member, 0, 0, 1))]
        operations += [(sql.FENCE, (9, member, 0)), turn((9, member, 0), 0)]
        operations += [(sql.FINISH, (9, member, 0))]
    statements = [statement for statement, _ in sql.grouped(operations)]
    assert len([s for s in statements if s in (sql.COMMIT_TURN, *sql.COMMIT_TURNS.values())]) == 9
    assert left(operations, grouped=True) == left(operations, grouped=False)
