"""Bugs by rule: each operator looks at a syntax tree and proposes small wrong changes.

Only the source span of the changed node is replaced, so that comments and style stay. A change is
named by operator, file, span and variant, which is all that a recipe needs: the text itself comes
from the project.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from turngym.environments.swe.literals import Node, Place, Source, Span, is_text, replaced, span_of
from turngym.environments.swe.parsing import parse
from turngym.errors import ConfigError

Proposal = tuple[Node, str]
"""The node whose span is replaced, and what by."""
Operator = Callable[[ast.AST, str], Iterator[Proposal]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change to one file."""

    operator: str
    path: str
    span: Span
    variant: int
    """Which of the proposals for this span."""
    function: str = ""
    """Qualified name of the function around it."""

    @property
    def key(self) -> str:
        """Eight hex digits that name the edit within its project."""
        content = [self.operator, self.path, self.span, self.variant]
        return hashlib.sha256(repr(content).encode()).hexdigest()[:8]


_COMPARE = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "//",
    ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
_NAMES = {
    "startswith": "endswith", "endswith": "startswith", "lstrip": "rstrip", "rstrip": "lstrip",
    "lower": "upper", "upper": "lower", "find": "rfind", "rfind": "find", "partition": "rpartition",
    "rpartition": "partition", "split": "rsplit", "ljust": "rjust", "rjust": "ljust",
    "min": "max", "max": "min", "any": "all", "all": "any", "append": "extend", "keys": "values",
}  # fmt: skip


def _flip_comparison(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sign = _COMPARE[type(node.ops[0])]
        yield node, f"{_of(node.left, text)} {sign} {_of(node.comparators[0], text)}"


def _shift_constant(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 1000:
        yield node, str(node.value + 1)
        if node.value > 0:
            yield node, str(node.value - 1)


def _flip_constant(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value)


def _negate_condition(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
        yield node.test, f"not ({_plain(node.test, text)})"


def _drop_negation(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, _of(node.operand, text)


def _drop_guard(node: ast.AST, text: str) -> Iterator[Proposal]:
    match node:
        case ast.If(body=[ast.Raise() | ast.Return() | ast.Continue() | ast.Break()], orelse=[]):
            yield node, "pass"


def _drop_branch(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.If) and node.orelse and not isinstance(node.orelse[0], ast.If):
        yield node.orelse[0], "pass"


def _swap_arguments(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        one, other = node.args[:2]
        if not any(isinstance(arg, ast.Starred) for arg in (one, other)):
            first, second = _plain(one, text), _plain(other, text)
            if first != second:
                source = _source(text)
                start, end = source.place(node)
                (a, behind_a), (b, behind_b) = source.place(one), source.place(other)
                between = text[behind_a:b]
                yield node, f"{text[start:a]}{second}{between}{first}{text[behind_b:end]}"


def _change_arithmetic(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        value = getattr(node.left, "value", None)
        if isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            value, int | float
        ):
            return
        sign = _ARITHMETIC[type(node.op)]
        yield node, f"{_of(node.left, text)} {sign} {_of(node.right, text)}"


def _drop_term(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield node, _of(node.left, text)


def _change_boolean(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        sign = "or" if isinstance(node.op, ast.And) else "and"
        yield node, f"{_of(node.values[0], text)} {sign} {_of(node.values[1], text)}"


def _drop_condition(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.BoolOp):
        yield node, _of(node.values[0], text)
        yield node, _of(node.values[-1], text)


def _drop_update(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.AugAssign):
        yield node, "pass"
        yield node, f"{_of(node.target, text)} = {_of(node.value, text)}"


def _drop_call(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"


def _return_nothing(node: ast.AST, text: str) -> Iterator[Proposal]:
    is_none = isinstance(node, ast.Return) and getattr(node.value, "value", node) is None
    if isinstance(node, ast.Return) and node.value is not None and not is_none:
        yield node, "return None"


def _swap_branches(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.IfExp):
        test, body, other = (_of(one, text) for one in (node.test, node.body, node.orelse))
        yield node, f"{other} if {test} else {body}"


def _change_slice(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.Slice) and node.step is None:
        lower = _of(node.lower, text) if node.lower else ""
        upper = _of(node.upper, text) if node.upper else ""
        if lower:
            yield node, f":{upper}"
        if upper:
            yield node, f"{lower}:"


def _change_leave(node: ast.AST, text: str) -> Iterator[Proposal]:
    if isinstance(node, ast.Break | ast.Continue):
        yield node, "continue" if isinstance(node, ast.Break) else "break"


def _change_name(node: ast.AST, text: str) -> Iterator[Proposal]:
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=name) as function) if name in _NAMES:
            yield function, f"{_of(owner, text)}.{_NAMES[name]}"
        case ast.Call(func=ast.Name(id=name) as function) if name in _NAMES:
            yield function, _NAMES[name]


def _remove_body(node: ast.AST, text: str) -> Iterator[Proposal]:
    """Empty a function of three statements or more; docstring and signature stay."""
    if not isinstance(node, ast.FunctionDef):
        return
    body = node.body
    rest = body[1:] if is_text(body[0]) else body
    if sum(1 for one in rest for _ in ast.walk(one)) < 20 or rest[0].lineno == node.lineno:
        return
    if getattr(rest[0], "decorator_list", []):
        return
    (line, column), (last, end) = span_of(rest[0])[:2], span_of(rest[-1])[2:]
    holder = ast.Pass(lineno=line, col_offset=column, end_lineno=last, end_col_offset=end)
    yield holder, f'raise NotImplementedError("{node.name}")'


OPERATORS: Mapping[str, Operator] = {
    one.__name__[1:]: one
    for one in (
        _flip_comparison, _shift_constant, _flip_constant, _negate_condition, _drop_negation,
        _drop_guard, _drop_branch, _swap_arguments, _change_arithmetic, _drop_term,
        _change_boolean, _drop_condition, _drop_update, _drop_call, _return_nothing,
        _swap_branches, _change_slice, _change_leave, _change_name, _remove_body,
    )
}  # fmt: skip
"""Name to operator. All but ``remove_body`` are bugs; that one asks to write a function again."""


def proposals(path: str, text: str) -> list[tuple[Edit, str]]:
    """Return every edit of a file that leaves it valid Python, and what it puts in."""
    tree = parse(text)
    if tree is None:
        return []
    found: list[tuple[Edit, str]] = []
    seen: dict[tuple[str, Span], int] = {}
    for node, function in _inside_functions(tree):
        for name, operator in OPERATORS.items():
            for target, replacement in operator(node, text):
                if _plain(target, text) == replacement:
                    continue
                span = span_of(target)
                variant = seen[name, span] = seen.get((name, span), -1) + 1
                edit = Edit(operator=name, path=path, span=span, variant=variant, function=function)
                found.append((edit, replacement))
    return found


def apply_edits(sources: Mapping[str, str], edits: list[Edit]) -> dict[str, str]:
    """Return those of ``sources`` that change.

    Raises:
        ConfigError: A file is missing or holds no such place: it is another version.
    """
    changed: dict[str, str] = {}
    for path in dict.fromkeys(edit.path for edit in edits):
        text = sources.get(path)
        if text is None:
            raise ConfigError(f"recipe: {path!r} is not in the project")
        source, changes = Source(text), list[tuple[Place, str]]()
        known = {(e.operator, e.span, e.variant): new for e, new in proposals(path, text)}
        here = sorted((e for e in edits if e.path == path), key=lambda e: e.span, reverse=True)
        for edit in here:
            replacement = known.get((edit.operator, edit.span, edit.variant))
            if replacement is None:
                raise ConfigError(
                    f"recipe: {path}:{edit.span[0]} has no place for {edit.operator!r}; is it "
                    "another version?"
                )
            changes.append((source.between(edit.span), replacement))
        changed[path] = replaced(text, changes)
    return changed


def overlap(one: Edit, other: Edit) -> bool:
    """Say whether two edits touch the same place, or stand in one function."""
    return one.path == other.path and (
        one.function == other.function
        or (one.span[:2] < other.span[2:] and other.span[:2] < one.span[2:])
    )


def _inside_functions(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes that run when a function is called, with the function's qualified name."""

    def walk(node: ast.AST, name: str, is_inside: bool) -> Iterator[tuple[ast.AST, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{name}.{child.name}".lstrip(".")
                yield child, inner
                for statement in child.body:
                    yield statement, inner
                    yield from walk(statement, inner, True)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{name}.{child.name}".lstrip("."), is_inside)
            elif not isinstance(child, ast.JoinedStr | ast.FormattedValue):
                if is_inside:
                    yield child, name
                yield from walk(child, name, is_inside)

    return walk(tree, "", False)


@lru_cache(maxsize=8)
def _source(text: str) -> Source:
    return Source(text)


def _plain(node: Node, text: str) -> str:
    return _source(text).of(node)


def _of(node: Node, text: str) -> str:
    """Return the source of a node, to be put beside an operator."""
    found = _plain(node, text)
    needs_parentheses = isinstance(
        node, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.Lambda
    )
    return f"({found})" if needs_parentheses else found
