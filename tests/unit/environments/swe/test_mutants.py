import ast
from random import Random

import pytest

from turngym.environments.swe.literals import Source
from turngym.environments.swe.mutants import canonical, replaced, units, written

FILE = '''
import math
import pytest
from shop import price, Basket

PRICES = [
    ("tea", 3),
    ("jam", 7),
]


def test_number():
    """Doc."""
    assert price("tea") == 3


def test_variable():
    expected = "a b"
    found = price("tea", "text")
    assert found == expected


def test_echo():
    sent = "a b"
    assert price(sent) == sent


@pytest.mark.parametrize(("name", "cents"), PRICES)
def test_cases(name, cents):
    assert price(name) == cents


def test_loop():
    for name, cents in PRICES:
        assert cents == price(name)


def test_error():
    with pytest.raises(ValueError, match="no price"):
        price("gold")


def test_computed():
    assert price("tea") == Basket(["tea"]).total


class TestBasket:
    def test_truth(self):
        basket = Basket([])
        assert not basket
        assert basket.total is None
        self.assertEqual(basket.names, [])


def test_nothing_said():
    price("tea")


def test_on_one_line(): price("tea")
'''


def all_mutants(text=FILE):
    """Return for each test function the statements that its mutants make of it."""
    text = canonical(text)
    found = {}
    for unit in units("t.py", text):
        for mutant in unit.mutants:
            new = written(Source(text), mutant, Random(0))
            assert new is not None
            changed = replaced(text, [(mutant.place, new)])
            assert ast.parse(changed)
            assert changed.count("\n") == text.count("\n")
            pairs = zip(text.split("\n"), changed.split("\n"), strict=True)
            found.setdefault(unit.name, []).append([two for one, two in pairs if one != two])
    return found


def test_expectations_change_and_what_the_code_is_given_does_not():
    found = all_mutants()
    assert ['    assert price("tea") != 3'] in found["test_number"]
    assert all('price("tea")' in line for [line] in found["test_number"])
    assert any("expected = " in line for [line] in found["test_variable"])
    for [line] in found["test_echo"]:
        assert "sent = " not in line
    assert all("cents" in line and "name" in line for [line] in found["test_cases"])
    assert all("'tea'" in line or "price(name)" in line for [line] in found["test_loop"])
    assert all("ValueError" not in line for [line] in found["test_error"])


def test_every_mutant_of_an_expectation_fails_where_the_test_passes():
    class Basket:
        def __init__(self, names):
            self.names = names
            self.total = 3 if names else None

        def __bool__(self):
            return bool(self.names)

    def price(name, kind=None):
        if name == "gold":
            raise ValueError("no price")
        return "a b" if kind or name == "a b" else {"tea": 3, "jam": 7}[name]

    class Methods:
        def assertEqual(self, one, other):
            assert one == other

        def assertNotEqual(self, one, other):
            assert one != other

    def passes(text, name):
        space = {"pytest": pytest, "Basket": Basket, "price": price, "__name__": "t"}
        exec(compile(text.replace("from shop", "#").replace("TestBasket", "TestBasket(Methods)"),
                     "t", "exec"), space | {"Methods": Methods}, own := {})  # fmt: skip
        found = own.get(name) or getattr(own["TestBasket"](), name)
        function = getattr(found, "__func__", found)
        function.__globals__.update(own)
        marks = list(getattr(found, "pytestmark", ()))
        try:
            for row in marks[0].args[1] if marks else [()]:
                found(*row)
        except (AssertionError, ValueError, pytest.fail.Exception):
            return False
        return True

    text, count = canonical(FILE), 0
    for unit in units("t.py", text):
        assert passes(text, unit.name), unit.name
        for mutant in unit.mutants:
            new = written(Source(text), mutant, Random(1))
            assert not passes(replaced(text, [(mutant.place, new)]), unit.name), (unit.name, new)
            count += 1
    assert count > 20


def test_lists_with_a_name_are_put_where_they_are_used_and_lines_stay():
    text = canonical(FILE)
    assert text.count("[('tea', 3), ('jam', 7)]") == 2
    assert text.count("\n") == FILE.count("\n")
    assert canonical("def (") == "def ("
    grown = "CASES = [1]\nCASES.append(2)\ndef test():\n    for n in CASES:\n        assert n\n"
    assert canonical(grown) == grown


def test_a_test_that_expects_nothing_gets_a_failure_on_its_own_line():
    found = all_mutants()
    assert found["test_nothing_said"] == [['    assert not 1; price("tea")']]
    assert "test_on_one_line" not in found


def test_cases_of_a_parametrized_test_change_one_by_one():
    [unit] = [one for one in units("t.py", canonical(FILE)) if one.name == "test_cases"]
    assert sorted(unit.cases) == [0, 1]


def test_places_are_found_behind_letters_of_more_than_one_byte():
    text = 'def test():\n    assert f("äöü€") == "größe"  # 😀\n'
    values = set()
    for unit in units("t.py", text):
        for mutant in unit.mutants:
            new = written(Source(text), mutant, Random(2))
            values.add(replaced(text, [(mutant.place, new)]))
    assert all('f("äöü€")' in one and one.endswith("  # 😀\n") for one in values)
    assert len(values) == 2


def test_a_decorator_that_takes_no_names_of_parameters_hides_no_mutants():
    text = "@retried(3, 'times')\ndef test(wanted):\n    assert price() == wanted\n"
    [unit] = units("tests/test_shop.py", text)
    assert unit.mutants


def test_a_mutant_takes_as_many_lines_as_what_it_replaces():
    text = "def test():\n    with raises(\n        OSError\n        if x\n        else IOError\n"
    text += "    ):\n        f()\n    assert f() == [\n    ]\n    assert not (\n        g()\n    )"
    source = Source(text)
    [unit] = units("tests/test_shop.py", text)
    for mutant in unit.mutants:
        new = written(source, mutant, Random(0))
        assert new is not None
        changed = replaced(text, [(mutant.place, new)])
        assert changed != text
        assert changed.count("\n") == text.count("\n")
        ast.parse(changed)
