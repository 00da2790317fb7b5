import pytest

from turngym.tasks.scorers.answers import (
    contains_answer,
    exact_match,
    normalize_answer,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Pale  Harbour.", "pale harbour"),
        ("  An  'apple' a day ", "apple day"),
        ("12,400", "12400"),
        ("1,2", "1 2"),
        ("Ärger", "ärger"),
        ("the", ""),
        ("", ""),
    ],
)
def test_normal_form(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("answer", "references", "value"),
    [
        ("the Pale Harbour", ("Pale harbour!",), 1.0),
        ("Pale", ("Pale harbour",), 0.0),
        ("b", ("a1", "B"), 1.0),
        ("", ("",), 0.0),
        ("The", ("a",), 0.0),
        ("a.", ("A",), 1.0),
        ("“O’Neil’s – Bar”", ("O'Neil's - Bar",), 1.0),
        ("Jean\u2011Paul Ôé", ("Jean-Paul O\u0302e\u0301",), 1.0),  # as models write, as files hold
        ("12\u202f400", ("12,400",), 1.0),
        ("¿北京。", ("「北京」",), 1.0),
        ("Unanswerable.", ("unknown",), 1.0),
        ("no answer", ("unknown",), 1.0),
        ("3.5", ("35",), 0.0),
        ("-5", ("5",), 0.0),
        ("-$.5", ("$.5",), 0.0),
        ("(3.14).", ("3.14",), 1.0),
        ("\u22125", ("-5",), 1.0),
        ("U.S. No.5", ("us no5",), 1.0),
        ("1914-18", ("1914–18",), 1.0),
        ("12", ("1/2",), 0.0),
        ("11/2/2020", ("1/12/2020",), 0.0),
        ("12:30", ("1:230",), 0.0),
        ("35", ("3,5",), 0.0),
        ("32", ("3–2",), 0.0),
        ("1 / 2", ("1/2",), 1.0),
        ("12,34,567", ("1'234'567",), 1.0),
    ],
)
def test_exact_match(answer, references, value):
    assert exact_match(answer, references) == value


@pytest.mark.parametrize(
    ("answer", "references", "value"),
    [
        ("x y", ("x y",), 1.0),
        ("x", ("x y",), 2 / 3),
        ("x x", ("x y",), 0.5),
        ("x q r", ("x y", "q r"), 0.8),
        ("z", ("x y",), 0.0),
        ("unknown harbour", ("unknown",), 0.0),
        ("unknown", ("unknown harbour",), 0.0),
        ("yes or no", ("yes",), 0.0),
        ("yes or no", ("No",), 0.0),
        ("Yes.", ("yes",), 1.0),
        ("yes men", ("the yes men",), 1.0),
        ("", ("x",), 0.0),
        ("x", (), 0.0),
    ],
)
def test_token_f1(answer, references, value):
    assert token_f1(answer, references) == pytest.approx(value)


def test_an_answer_is_found_as_whole_words_only():
    assert contains_answer("In Ormouth, they say.", "ormouth")
    assert not contains_answer("In Ormouthia.", "Ormouth")
    assert not contains_answer("anything", "the")
    assert contains_answer("It fell to (-3.5).", "\u22123.5")
    assert not contains_answer("It fell to (-3.5).", "3.5")
