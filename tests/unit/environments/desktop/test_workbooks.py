"""Cells of workbooks as lines of text."""

from __future__ import annotations

import gzip

from turngym.environments.desktop.tasks.sheets import workbook
from turngym.environments.desktop.x11_device import MAX_COLUMNS, MAX_ROWS, cells, contents


def test_the_cells_of_an_open_workbook_are_a_table():
    files = {"tea.gnumeric": workbook([["item", "amount"], ["a <b> & c", 7], ["", 12]])}
    assert contents(["a.txt - Mousepad", "tea.gnumeric - Gnumeric"], files.get) == (
        "Cells of tea.gnumeric as last saved:",
        "     A | B",
        "  1  item | amount",
        "  2  a <b> & c | 7",
        "  3   | 12",
    )
    assert contents(["*tea.gnumeric - Gnumeric"], files.get)[0].endswith("saved; changed since:")


def test_a_window_without_a_file_or_with_another_place_tells_nothing():
    assert contents(["Book1.gnumeric - Gnumeric", "../x.gnumeric - Gnumeric"], {}.get) == ()


def test_a_large_sheet_and_a_long_cell_are_cut_and_say_so():
    rows = [["x" * 50, *range(MAX_COLUMNS)] for _ in range(MAX_ROWS + 1)]
    lines = contents(["a.gnumeric - Gnumeric"], {"a.gnumeric": workbook(rows)}.get)
    assert len(lines) == MAX_ROWS + 3
    assert lines[2].startswith("  1  " + "x" * 37 + "... | 0 | 1")
    assert lines[-1] == "  ... 31 rows and 13 columns in all; the table is cut here"


def test_what_is_no_workbook_is_empty():
    for data in (b"", b"\x1f\x8bbroken", b"text", gzip.compress(b"<gnm:Cells></gnm:Cells>")):
        assert cells(data) == {}
    assert contents(["a.gnumeric - Gnumeric"], {"a.gnumeric": b""}.get)[1:] == ("  (empty)",)


def test_formulas_are_as_they_were_typed():
    text = (
        '<gnm:Cells><gnm:Cell Row="0" Col="0" ExprID="1">=sum(B1:B2)</gnm:Cell>'
        '<gnm:Cell Row="1" Col="0" ExprID="1"/></gnm:Cells>'
    )
    assert cells(text.encode()) == {(0, 0): "=sum(B1:B2)", (1, 0): "(a formula of another cell)"}
