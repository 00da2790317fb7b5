import ast

import pytest
from pydantic import TypeAdapter

from turngym.environments.swe.operators import (
    OPERATORS,
    Edit,
    apply_edits,
    overlap,
    proposals,
)
from turngym.environments.swe.tasksets import sample_project
from turngym.errors import ConfigError

SOURCE = '''
def f(a, b, *rest):
    """Say what é is."""
    if not a:
        return 0
    total = 0
    for x in rest:
        if x > 1 and x != b:
            total += g(a, x) * 2
        else:
            continue
        if x == 9:
            break
    h.append(-total)
    return total if True else rest[1:3]
'''
WANTED = {
    "flip_comparison": "x >= 1",
    "shift_constant": "g(a, x) * 3",
    "flip_constant": "if False else",
    "negate_condition": "not (x == 9)",
    "drop_negation": "if a:",
    "drop_guard": "    pass\n    total = 0",
    "drop_branch": "else:\n            pass",
    "swap_arguments": "g(x, a)",
    "change_arithmetic": "g(a, x) + 2",
    "change_boolean": "(x > 1) or (x != b)",
    "drop_condition": "if (x != b):",
    "drop_update": "total = (g(a, x) * 2)",
    "drop_call": "    pass\n    return total",
    "return_nothing": "return None",
    "swap_branches": "rest[1:3] if True else total",
    "change_slice": "rest[1:]",
    "change_leave": "            continue\n    h",
    "change_name": "h.extend(",
    "remove_body": 'raise NotImplementedError("f")',
}


def results(operator):
    found = [edit for edit, _ in proposals("a.py", SOURCE) if edit.operator == operator]
    return [apply_edits({"a.py": SOURCE}, [edit])["a.py"] for edit in found]


def test_there_are_at_least_twelve_operators():
    assert len(OPERATORS) >= 12


@pytest.mark.parametrize("operator", sorted(WANTED))
def test_an_operator_does_what_its_name_says_and_leaves_valid_python(operator):
    made = results(operator)
    assert any(WANTED[operator] in text for text in made), made
    for text in made:
        ast.parse(text)
        assert text != SOURCE
        assert "Say what é is." in text


def test_a_term_is_dropped():
    text = "def f(a, b):\n    return a + b\n"
    edits = [e for e, _ in proposals("a.py", text) if e.operator == "drop_term"]
    assert apply_edits({"a.py": text}, edits) == {"a.py": "def f(a, b):\n    return a\n"}


def test_edits_are_found_again_from_their_records():
    adapter = TypeAdapter(Edit)
    for edit, _ in proposals("a.py", SOURCE):
        again = adapter.validate_json(adapter.dump_json(edit))
        assert again == edit
        assert again.key == edit.key


def test_two_edits_of_one_file_are_applied_together():
    text = "def f(a):\n    return a + 1\n\n\ndef g(a):\n    return a < 2\n"
    found = {e.operator: e for e, _ in proposals("a.py", text)}
    one, other = found["change_arithmetic"], found["flip_comparison"]
    assert not overlap(one, other)
    made = apply_edits({"a.py": text}, [one, other])["a.py"]
    assert "a - 1" in made
    assert "a <= 2" in made


def test_a_recipe_of_another_version_is_refused():
    edit = proposals("a.py", SOURCE)[0][0]
    with pytest.raises(ConfigError, match="another version"):
        apply_edits({"a.py": "x = 1\n"}, [edit])
    with pytest.raises(ConfigError, match="not in the project"):
        apply_edits({}, [edit])


def test_the_sample_has_candidates_of_nearly_every_kind():
    kinds = {e.operator for p, t in sample_project().sources().items() for e, _ in proposals(p, t)}
    assert len(kinds) >= 16


def test_code_outside_of_functions_and_broken_code_is_left_alone():
    assert proposals("a.py", "X = 1 + 2\n") == []
    assert proposals("a.py", "def f(:\n") == []
