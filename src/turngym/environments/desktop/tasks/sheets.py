"""Tasks in the spreadsheet, judged on the computed cells of the saved workbook."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from xml.sax.saxutils import escape

from turngym.environments.desktop.problems import DesktopProblem, Script, key, typed
from turngym.environments.desktop.tasks.words import TOPICS, words

Row = list[str | int]
Rows = Sequence[Sequence[str | int]]
_NAMESPACE = "http://www.gnumeric.org/v10.dtd"
_TEXT, _NUMBER = 60, 40


def workbook(rows: Rows) -> bytes:
    """Return a Gnumeric workbook whose one sheet holds ``rows``."""
    cells = "".join(
        f'<gnm:Cell Row="{r}" Col="{c}" ValueType="{_TEXT if isinstance(value, str) else _NUMBER}">'
        f"{escape(str(value))}</gnm:Cell>"
        for r, row in enumerate(rows)
        for c, value in enumerate(row)
    )
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?><gnm:Workbook xmlns:gnm="{_NAMESPACE}">'
        "<gnm:SheetNameIndex><gnm:SheetName>Sheet1</gnm:SheetName></gnm:SheetNameIndex>"
        f"<gnm:Sheets><gnm:Sheet><gnm:Name>Sheet1</gnm:Name><gnm:Cells>{cells}</gnm:Cells>"
        "</gnm:Sheet></gnm:Sheets></gnm:Workbook>"
    )
    return gzip.compress(text.encode(), mtime=0)


def _problem(rng: Random, goal: str, before: Rows, after: Rows, script: Script) -> DesktopProblem:
    """Return the problem to turn cells of a workbook into others; "{file}" is its name."""
    name = f"{rng.choice(TOPICS)}.gnumeric"
    return DesktopProblem(
        prompt=f"{goal.format(file=name)} Save the workbook.",
        files={name: workbook(before)},
        launch=(("gnumeric", name),),
        wanted={name: [[str(value) for value in row] for row in after]},
        script=(*script, *key("ctrl+s")),
    )


def _write(row: int, column: int, text: str) -> Script:
    """Write into a cell, reached by keys from the top left one."""
    place = (*key("ctrl+home"), *key("down") * row, *key("right") * column)
    return (*place, *typed(text), *key("enter"))


def _stock(rng: Random) -> list[Row]:
    """Return a table of goods and their amounts."""
    amounts: list[Row] = [[name, rng.randint(3, 99)] for name in words(rng, 4)]
    return [["item", "amount"], *amounts]


def _fill(rng: Random) -> DesktopProblem:
    table = _stock(rng)[: rng.randint(3, 4)]
    listed = "; ".join(" and ".join(f'"{value}"' for value in row) for row in table)
    cells = ((r, c, str(value)) for r, row in enumerate(table) for c, value in enumerate(row))
    script = tuple(step for r, c, text in cells for step in _write(r, c, text))
    goal = f"Fill the rows of the sheet in {{file}}, from A1 on, with: {listed}."
    return _problem(rng, goal, [], table, script)


def _change(rng: Random) -> DesktopProblem:
    table = _stock(rng)
    row, value = rng.randint(1, 4), rng.randint(100, 999)
    after: list[Row] = [[line[0], value] if r == row else line for r, line in enumerate(table)]
    goal = f'In {{file}}, change the amount of "{table[row][0]}" to {value}.'
    return _problem(rng, goal, table, after, _write(row, 1, str(value)))


def _add_row(rng: Random) -> DesktopProblem:
    table = _stock(rng)
    new: Row = [rng.choice(TOPICS), rng.randint(3, 99)]
    goal = f'Add a row at the end of the table in {{file}}: "{new[0]}" with the amount {new[1]}.'
    script = (*_write(5, 0, str(new[0])), *_write(5, 1, str(new[1])))
    return _problem(rng, goal, table, [*table, new], script)


def _formula(
    rng: Random, what: str, function: str, value: Callable[[list[int]], int]
) -> DesktopProblem:
    table = _stock(rng)
    amounts = [int(row[1]) for row in table[1:]]
    below: Row = ["", value(amounts)]
    goal = f"Put {what} of all amounts into cell B6 of {{file}}."
    return _problem(rng, goal, table, [*table, below], _write(5, 1, f"={function}(B2:B5)"))


_sum = partial(_formula, what="the sum", function="sum", value=sum)
_maximum = partial(_formula, what="the largest", function="max", value=max)
_minimum = partial(_formula, what="the smallest", function="min", value=min)


def _products(rng: Random) -> DesktopProblem:
    goods = [(name, rng.randint(2, 20), rng.randint(2, 20)) for name in words(rng, 3)]
    header: Row = ["item", "amount", "price", "cost"]
    before: list[Row] = [[name, amount, price] for name, amount, price in goods]
    after: list[Row] = [[name, amount, price, amount * price] for name, amount, price in goods]
    goal = "In {file}, fill the column cost with amount times price."
    script = tuple(step for r in range(1, 4) for step in _write(r, 3, f"=B{r + 1}*C{r + 1}"))
    return _problem(rng, goal, [header, *before], [header, *after], script)


def _clear(rng: Random) -> DesktopProblem:
    table = _stock(rng)
    row = rng.randint(1, 4)
    after = [line[:1] if r == row else line for r, line in enumerate(table)]
    goal = f'In {{file}}, empty the cell with the amount of "{table[row][0]}".'
    script = (*key("ctrl+home"), *key("down") * row, *key("right", "delete"))
    return _problem(rng, goal, table, after, script)
