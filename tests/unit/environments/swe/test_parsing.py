import ast

import pytest

from turngym.environments.swe.parsing import hide_tests
from turngym.environments.swe.parsing import test_name as name_of
from turngym.environments.swe.repair import expert_edit

FILE = '''
import pytest


def test_a():
    """Doc."""
    assert 1 == 1


@pytest.mark.parametrize("x", [1, 2])
def test_b(x):
    for n in range(x):
        assert n < x


class TestC:
    def test_d(self):
        text = """
no indent
"""
        assert text

    def helper(self):
        return 1


def test_e(): pass
'''


def test_the_name_of_a_test():
    assert name_of("tests/test_a.py::TestC::test_d[x::y]") == "test_d"


def test_hidden_tests_are_cut_with_their_decorators_and_classes_stay_whole():
    left = hide_tests(FILE, ["test_b", "test_d", "helper"])
    ast.parse(left)
    assert "parametrize" not in left
    assert "test_a" in left
    assert "class TestC:\n\n    pass\n" in left
    assert hide_tests("def (", ["x"]) == "def ("


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("a\nb\nc\n", "a\nB\nc\n"),
        ("a\nc\n", "a\nb\nc\n"),
        ("a\nb\nc\n", "a\nc\n"),
        ("x\nx\nx\nx\n", "x\nx\ny\nx\n"),
        ("x\ny\nx\ny\nx\ny\n", "x\ny\nx\nx\ny\nz\n"),
        ("", "a\n"),
        ("a\n", "a\nb\n"),
    ],
)
def test_edits_lead_to_the_repair(found, wanted):
    text = found
    for _ in range(10):
        if text == wanted:
            return
        action = expert_edit("p", text.encode(), wanted.encode())
        if action.name == "create":
            text = action.arguments["content"]
        else:
            assert text.count(action.arguments["old"]) == 1
            text = text.replace(action.arguments["old"], action.arguments["new"])
    assert text == wanted


def test_changes_that_lie_close_are_one_edit():
    text = "".join(f"line {n}\n" for n in range(60))
    wanted = (
        text.replace("line 10\n", "A\n").replace("line 14\n", "B\n").replace("line 50\n", "C\n")
    )
    first = expert_edit("p", text.encode(), wanted.encode()).arguments
    assert (first["old"].count("\n"), first["new"].split("\n")[0]) == (4, "A")
    left = text.replace(first["old"], first["new"])
    assert expert_edit("p", left.encode(), wanted.encode()).arguments == {
        "path": "p", "old": "line 50", "new": "C",
    }  # fmt: skip
    many = "".join(f"{'line' if n % 10 else 'X'} {n}\n" for n in range(200)).encode()
    all_lines = "".join(f"line {n}\n" for n in range(200)).encode()
    assert expert_edit("p", all_lines, many).name == "create"


def test_lines_of_tests_are_those_of_python_whatever_else_stands_in_a_text():
    odd = 'S = "a\x1cb\x85c\u2028d"\n\x0c\ndef test_a():\n    assert S\n\x0c\n'
    assert hide_tests(f"{odd}def test_b():\n    assert S\n", ["test_b"]) == odd


def test_tests_in_a_branch_are_hidden_too():
    branch = "try:\n    import x\nexcept ImportError:\n    {}\nelse:\n    {}\n"
    test = "def test_b():\n        pass"
    assert hide_tests(branch.format(test, test), ["test_b"]) == branch.format("pass", "pass")
