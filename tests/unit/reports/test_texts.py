"""Numbers with intervals, as people and spreadsheets read them."""

from turngym.reports import texts


def test_a_share_is_shown_with_its_interval_in_percent() -> None:
    assert texts.percent(0.45, (0.356, 0.548)) == "45.0 % [35.6, 54.8]"
    assert texts.percent(0.45) == "45.0 %"
    assert texts.percent(0.45, signed=True) == "+45.0 %"


def test_what_has_no_number_is_a_dash_and_what_has_no_interval_stands_alone() -> None:
    assert texts.percent(None) == "–"
    assert texts.figure(None) == "–"
    assert texts.figure(1.005, digits=1) == "1.0"
    assert texts.figure(1.005, (None, None), 1) == "1.0"


def test_csv_has_all_columns_and_six_digits() -> None:
    rows = [{"a": 1, "b": 0.123456789}, {"a": None, "c": "x"}]
    assert texts.csv_text(rows) == "a,b,c\n1,0.123457,\n,,x\n"
