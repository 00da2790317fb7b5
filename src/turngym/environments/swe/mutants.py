"""Mutants of tests: the same test with one expectation turned into its contrary.

A mutant changes what a test expects, never what it hands to the code under test. So no code can do
the work and pass both a test and its mutant, however it does the work. A mutant stays on the lines
of its test and looks like a test that somebody could have written.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from turngym.environments.swe.literals import (
    Place,
    Source,
    is_text,
    literals,
    other_value,
    replaced,
)
from turngym.environments.swe.parsing import parse

Function = ast.FunctionDef | ast.AsyncFunctionDef
STRONG, FAIR, WEAK = 3, 2, 1
"""How much a mutant finds out: one with another expected value also finds who copies it."""

_CONTRARY: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"), ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is"),
    ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"), ast.Gt: (">", "<="), ast.GtE: (">=", "<"),
}  # fmt: skip
_PAIRS = (
    ("assertTrue", "assertFalse"), ("assertIn", "assertNotIn"), ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"), ("assertIsInstance", "assertNotIsInstance"),
    ("assertRegex", "assertNotRegex"), ("assertEqual", "assertNotEqual"),
    ("assertGreater", "assertLessEqual"), ("assertLess", "assertGreaterEqual"),
    ("assertAlmostEqual", "assertNotAlmostEqual"),
)  # fmt: skip
_CONTRARY_CALL = {**dict(_PAIRS), **{two: one for one, two in _PAIRS}}
_EQUALITY = re.compile(r"^(assert_?(\w*_)?[eE]quals?|assert(List|Dict|Tuple|Set|MultiLine|Sequence|"
                       r"Count|Almost)Equal|eq_|check_equal)$")  # fmt: skip
_RAISES = ("raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp")
_ERRORS = (KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError, EOFError)
_UNKNOWN = ast.Name(id="?")
"""Stands for a value that is no literal."""
_MIN_TEXT = 4
"""Shortest text that is changed where it is to be found in another one."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to turn a test into its contrary."""

    line: int
    last: int
    """The lines of the statement whose expectation is changed."""
    place: Place
    """What is replaced in the canonical text of the file."""
    node: ast.expr | None = None
    """The literal that gets another value; None where ``text`` takes the place."""
    text: str = ""
    strength: int = STRONG
    case: int = -1
    """Which case of a parametrized test; -1 for all of them."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A test function, with the mutants of its body and of its cases."""

    path: str
    name: str
    first: int
    """Its first line, decorators included, as code objects say it."""
    mutants: tuple[Mutant, ...]

    @property
    def cases(self) -> dict[int, list[Mutant]]:
        """Mutants that change one case each, by case."""
        numbers = dict.fromkeys(one.case for one in self.mutants if one.case >= 0)
        return {case: [one for one in self.mutants if one.case == case] for case in numbers}

    @property
    def whole(self) -> list[Mutant]:
        """Mutants that change every case."""
        return [one for one in self.mutants if one.case < 0]


def written(source: Source, mutant: Mutant, rng: Random) -> str | None:
    """Return what takes the place of ``mutant``, in as many lines; None where nothing can."""
    old, node = source.at(mutant.place), mutant.node
    text = mutant.text if node is None else other_value(node, old, rng)
    if text is None or old.count("\n") <= text.count("\n"):
        return text
    end = len(text) - text.endswith((")", "]", "}"))
    return text[:end] + "\n" * (old.count("\n") - text.count("\n")) + text[end:]


@lru_cache(maxsize=512)
def canonical(text: str) -> str:
    """Return a test file in the form that every round starts from.

    Lists that have a name of their own are put where a test goes through them, so that one test can
    get other cases than the next. Numbers of lines stay.
    """
    tree = parse(text)
    if tree is None:
        return text
    source, named = Source(text), _named_lists(tree)
    functions = _functions(tree)
    lists = [one for function in functions for one in _parameters(function)]
    lists += [one.iter for f in functions for one in _own(f) if isinstance(one, ast.For)]
    changes = [
        (source.place(one), ast.unparse(named[one.id]))
        for one in lists
        if isinstance(one, ast.Name) and one.id in named
    ]
    return replaced(text, changes)


@lru_cache(maxsize=512)
def units(path: str, text: str) -> tuple[Unit, ...]:
    """Return the test functions of a canonical file."""
    tree = parse(text)
    if tree is None:
        return ()
    source, maker = Source(text), _Maker(Source(text), tree)
    found = []
    for function in _functions(tree):
        made = maker.of(function) or list(_inserted(source, function))
        first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
        found.append(Unit(path, function.name, first, tuple(made)))
    return tuple(found)


def _functions(tree: ast.AST) -> list[Function]:
    return [
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _own(function: Function) -> Iterator[ast.stmt]:
    """Give the statements of a function, without those of functions and classes inside."""
    todo: list[ast.stmt] = list(reversed(function.body))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield node
        parts = list(ast.iter_child_nodes(node))
        inner = [one for one in parts if isinstance(one, ast.stmt)]
        handlers = [one for one in parts if isinstance(one, ast.ExceptHandler)]
        todo += reversed([*inner, *(one for part in handlers for one in part.body)])


def _parameters(function: Function) -> list[ast.expr]:
    """Return the lists of cases of a parametrized test."""
    return [
        one.args[1]
        for one in function.decorator_list
        if isinstance(one, ast.Call) and ast.unparse(one.func).endswith("mark.parametrize")
        if len(one.args) > 1
    ]


def _named_lists(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the lists of literals that a module names once and uses only as they are."""
    stored: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored[node.id] = stored.get(node.id, 0) + 1
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name):
            stored[node.value.id] = 2  # may be changed in place
    found: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, statement.value
            if isinstance(value, ast.List | ast.Tuple) and stored[name] == 1 and _is_plain(value):
                found[name] = value
    return found


def _is_plain(value: ast.expr) -> bool:
    allowed = ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.expr_context
    return all(isinstance(one, allowed | ast.UnaryOp | ast.unaryop) for one in ast.walk(value))


class _Maker:
    """Finds the mutants of the functions of one file."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self._source = source
        self._safe = _safe_names(tree)
        self._raising = {
            one.targets[0].id: one.value
            for one in tree.body
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
            if isinstance(one.value, ast.Call) and _called(one.value).endswith("raises")
        }
        self._at: ast.stmt = ast.Pass()

    def of(self, function: Function) -> list[Mutant]:
        """Return the mutants of a test function."""
        self._function: Function = function
        found: list[Mutant] = []
        for self._at in _own(function):
            node = self._at
            if isinstance(node, ast.Assert):
                found += self._contraries(node.test)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                found += self._calls(node.value)
            elif isinstance(node, ast.With | ast.AsyncWith):
                for item in node.items:
                    found += self._raises(item.context_expr)
        return found

    def _mutant(self, node: ast.expr, text: str, strength: int) -> Mutant:
        """Return the mutant that puts ``text`` in the place of ``node``."""
        return self._at_place(self._source.place(node), text, strength)

    def _at_place(self, place: Place, text: str, strength: int) -> Mutant:
        line, last = self._lines()
        return Mutant(line, last, place, text=text, strength=strength)

    def _lines(self) -> tuple[int, int]:
        node = self._at
        if isinstance(node, ast.With | ast.AsyncWith):
            return node.lineno, node.body[-1].end_lineno or node.lineno
        return node.lineno, node.end_lineno or node.lineno

    def _other(self, value: ast.expr, case: int = -1) -> list[Mutant]:
        """Return the mutants that give a literal inside of ``value`` another value."""
        line, last = self._lines()
        return [
            Mutant(line, last, self._source.place(one), one, case=case)
            for one in literals(value, self._safe)
        ]

    def _contraries(self, test: ast.expr) -> Iterator[Mutant]:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for one in test.values:
                yield from self._contraries(one)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            operand = self._source.of(test.operand)
            yield self._mutant(test, f"({operand})", WEAK)
        elif isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.left, test.comparators[0]
            if isinstance(test.ops[0], ast.Eq):
                yield from self._equals(left, right)
            elif isinstance(test.ops[0], ast.In):
                is_text = isinstance(left, ast.Constant) and isinstance(left.value, str | bytes)
                if is_text and len(left.value) >= _MIN_TEXT:  # type: ignore[attr-defined]
                    yield from self._other(left)
            found, contrary = _CONTRARY[type(test.ops[0])]
            between = Place(self._source.place(left).end, self._source.place(right).start)
            text = re.sub(found, contrary, self._source.at(between), count=1)
            yield self._at_place(between, text, WEAK)
        else:
            text = self._source.of(test)
            is_one = isinstance(test, ast.Call | ast.Name | ast.Attribute | ast.Subscript)
            yield self._mutant(test, f"not {text}" if is_one else f"not ({text})", WEAK)

    def _equals(self, left: ast.expr, right: ast.expr) -> list[Mutant]:
        """Return mutants of ``left == right`` that put another value on one of the two sides."""
        found: list[Mutant] = []
        for side, against in ((left, right), (right, left)):
            found += self._other(side)
            if isinstance(side, ast.Name):
                found += self._named(side.id, against)
        if not found:
            text = self._source.of(right)
            found.append(self._mutant(right, f"[{text}]", FAIR))
        return found

    def _named(self, name: str, against: ast.expr) -> list[Mutant]:
        """Return mutants that give another value to a variable that is only compared with."""
        if _mentions(against, _derived(self._function, name)):
            return []
        places: list[tuple[ast.expr, int]] = []
        for node in _own(self._function):
            if node.lineno >= self._at.lineno:
                continue
            if isinstance(node, ast.Assign) and any(_mentions(one, {name}) for one in node.targets):
                is_one = isinstance(node.targets[0], ast.Name) and len(node.targets) == 1
                places = [(node.value, -1)] if is_one else [(_UNKNOWN, -1)]
            elif isinstance(node, ast.For) and _mentions(node.target, {name}):
                places = [(one, -1) for _, one in _column(node.target, node.iter, name)]
                places = places or [(_UNKNOWN, -1)]
            elif isinstance(node, ast.With) and any(
                one.optional_vars and _mentions(one.optional_vars, {name}) for one in node.items
            ):
                places = [(_UNKNOWN, -1)]
        if not places:
            for decorator in self._function.decorator_list:
                if isinstance(decorator, ast.Call) and len(decorator.args) > 1:
                    target = _parameter_names(decorator.args[0])
                    found = _column(target, decorator.args[1], name) if target else []
                    places += [(one, number) for number, one in found]
        return [mutant for one, number in places for mutant in self._other(one, number)]

    def _calls(self, call: ast.Call) -> Iterator[Mutant]:
        name = _called(call)
        yield from self._raises(call)
        if _EQUALITY.match(name) and len(call.args) >= 2 and not name.startswith("assertNot"):
            yield from self._equals(call.args[0], call.args[1])
        if name in _CONTRARY_CALL and isinstance(call.func, ast.Attribute):
            end = self._source.place(call.func).end
            place = Place(end - len(name), end)
            yield self._at_place(place, _CONTRARY_CALL[name], WEAK)

    def _raises(self, call: ast.expr) -> Iterator[Mutant]:
        """Give mutants of ``raises(Error)`` that expect another error."""
        if isinstance(call, ast.Name) and call.id in self._raising:
            of = self._raising[call.id]
            for text in _other_errors(of):
                yield self._mutant(call, f"{ast.unparse(of.func)}({text})", FAIR)
        elif isinstance(call, ast.Call) and call.args and _called(call) in _RAISES:
            for text in _other_errors(call):
                yield self._mutant(call.args[0], text, STRONG)


def _inserted(source: Source, function: Function) -> Iterator[Mutant]:
    """Give a failing assertion before a statement of a test that expects nothing by itself."""
    body: Sequence[ast.stmt] = function.body
    while body:
        first = body[1] if len(body) > 1 and is_text(body[0]) else body[0]
        inner = getattr(first, "body", None)
        if inner is None or isinstance(first, ast.FunctionDef | ast.ClassDef):
            if inner is None and first.lineno != function.lineno:
                start = source.start(first)
                place = Place(start, start)
                yield Mutant(first.lineno, first.lineno, place, text="assert not 1; ", strength=0)
            return
        body = inner


def _called(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _other_errors(call: ast.Call) -> list[str]:
    """Return errors that are neither the expected ones nor of their kind."""
    names = {one.id for one in ast.walk(call.args[0]) if isinstance(one, ast.Name)}
    kinds = [getattr(builtins, one, None) for one in names]
    types = [one for one in kinds if isinstance(one, type)]
    return [
        error.__name__
        for error in _ERRORS
        if not any(issubclass(error, one) or issubclass(one, error) for one in types)
    ]


def _safe_names(tree: ast.Module) -> frozenset[str]:
    """Return the names whose meaning no submission changes: built-in ones and the library's."""
    stored = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)
              and not isinstance(one.ctx, ast.Load)}  # fmt: skip
    found = {"str", "int", "float", "bool", "bytes", "list", "dict", "set", "tuple", "frozenset"}
    library = sys.stdlib_module_names | {"pytest"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(one.asname or one.name.partition(".")[0], one.name) for one in node.names]
            found |= {own for own, name in names if name.partition(".")[0] in library}
        elif (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").partition(".")[0] in library
        ):
            found |= {one.asname or one.name for one in node.names}
    return frozenset(found - stored)


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(node))


def _derived(function: Function, name: str) -> set[str]:
    """Return the variables of a function that may depend on ``name``, itself included."""
    found, before = {name}, 0
    while len(found) != before:
        before = len(found)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if node.value is not None and _mentions(node.value, found):
                    found |= {
                        one.id for target in targets for one in ast.walk(target)
                        if isinstance(one, ast.Name)
                    }  # fmt: skip
    return found


def _parameter_names(node: ast.expr) -> ast.expr | None:
    """Return the names of a parametrized test as what they would be in a loop, if they are any."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    if not isinstance(value, str | list | tuple):  # of a decorator that does something else
        return None
    names = [one.strip() for one in value.split(",")] if isinstance(value, str) else list(value)
    if isinstance(value, str) and len(names) == 1:
        return ast.Name(id=names[0])
    return ast.Tuple(elts=[ast.Name(id=one) for one in names if isinstance(one, str)])


def _column(target: ast.expr, rows: ast.expr, name: str) -> list[tuple[int, ast.expr]]:
    """Return what ``name`` stands for in each row that ``target`` is bound to."""
    if not isinstance(rows, ast.List | ast.Tuple):
        return []
    number = None
    if isinstance(target, ast.Tuple | ast.List):
        names = [getattr(one, "id", None) for one in target.elts]
        if name not in names:
            return []
        number = names.index(name)
    found: list[tuple[int, ast.expr]] = []
    for at, row in enumerate(rows.elts):
        cells = row.elts if isinstance(row, ast.List | ast.Tuple) else None
        if isinstance(row, ast.Call) and _called(row) == "param":
            cells = row.args
        if number is None:
            found.append((at, cells[0] if isinstance(row, ast.Call) and cells else row))
        elif cells is not None and number < len(cells):
            found.append((at, cells[number]))
    return found
