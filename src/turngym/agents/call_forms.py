"""How a model writes calls of tools: read off its chat template, which is asked to write one.

Models differ in how they call: a JSON object, a name and a JSON object, tags, Python. No list of
models is kept. A template that shows tools and writes a call says where name and arguments are, and
sampled text is read by the same frame.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from os.path import commonprefix
from typing import Any, Protocol

from turngym.types import THOUGHT, THOUGHT_ENDS, THOUGHT_TAG, json_object_at, json_objects

NAME, ID = "turngym_probe_tool", "callprobe"
"""Name of the tool that a template is asked to call, and the call's id (Mistral: 9 letters)."""
_FIRST, _SECOND, _COUNT = "turngym_key_a", "turngym_key_b", "turngym_key_c"  # some sort them
ONE, _TWO, NUMBER = "turngym-probe-one", "turngym-probe-two", "7305519082"
ARGUMENTS = {_FIRST: ONE, _SECOND: _TWO, _COUNT: int(NUMBER)}
PROBED_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {
                _FIRST: {"type": "string", "description": "A text."},
                _SECOND: {"type": "string", "description": "A text."},
                _COUNT: {"type": "integer", "description": "A number."},
            },
            "required": list(ARGUMENTS),
        },
    },
}
"""What a template is shown; descriptions are there because some templates want them."""

_LETTER = r"[\w.:/-]"
_WORD = f"{_LETTER}+"
_MARK = re.compile(r"[<\[][^<\[]*$")
_CDATA = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
_MAX_BROKEN = 256
MAX_CALLS, _MAX_TAGS = 64, 16
"""Most calls of one answer that are looked at, and most tags of thoughts where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCall:
    """A call as it was found in a text."""

    name: str
    arguments: Any
    """What was given; whether that fits the tool, the environment says."""
    id: str = ID
    """What the model called the call; ours where its form has no such thing."""
    start: int = field(default=0, compare=False)
    """Where in the text it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """An answer, taken apart."""

    said: str
    """Its text before the first call, thoughts included."""
    calls: tuple[FoundCall, ...]


class CallForm(Protocol):
    """One way to write calls."""

    def find(self, text: str, types: Mapping[str, Mapping[str, Any]]) -> Iterator[FoundCall]:
        """Yield the calls in ``text``, in order.

        Args:
            text: What a model said.
            types: Name of each tool to its parameters' JSON Schemas, for forms that do not say
                what is a text and what a number.
        """


@dataclass(frozen=True, slots=True)
class CallReader:
    """Reads calls out of sampled text.

    Args:
        form: How they are written.
        opening: What stands before the first one and belongs to it.
    """

    form: CallForm
    opening: str

    def read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ReadAnswer:
        """Return what is said in ``text`` and the calls after it, outside of thoughts.

        Args:
            text: A sampled answer with its control tokens.
            tools: OpenAI-style function descriptions.
        """
        types = _types(tools)
        begin = text.rfind(THOUGHT_ENDS) + 1
        is_open = text.rfind(THOUGHT) >= begin
        begin, calls = (0, []) if is_open else self._behind(text, begin, types)
        if not calls:
            begin, calls = self._over_a_tag(text, types)
        if not calls:
            return ReadAnswer(said=text, calls=())
        said = text[: begin + calls[0].start].rstrip()
        opening = self.opening.replace(NAME, calls[0].name)
        return ReadAnswer(said=said.removesuffix(opening).rstrip(), calls=tuple(calls))

    def _behind(
        self, text: str, begin: int, types: Mapping[str, Mapping[str, Any]]
    ) -> tuple[int, list[FoundCall]]:
        """Return the calls behind ``begin``, and where they were looked for."""
        begin = max(begin, text.find(self.opening, begin) if self.opening else 0)
        return begin, [*islice(self.form.find(text[begin:], types), MAX_CALLS)]

    def _over_a_tag(
        self, text: str, types: Mapping[str, Mapping[str, Any]]
    ) -> tuple[int, list[FoundCall]]:
        """Return the calls outside of thoughts of which one holds a tag of thoughts itself."""
        begin, is_open = 0, False
        for tag in islice(THOUGHT_TAG.finditer(text), _MAX_TAGS):
            if not is_open:
                place, calls = self._behind(text, begin, types)
                begun = [call for call in calls if place + call.start < tag.start()]
                if begun and begun != self._behind(text[: tag.start()], begin, types)[1]:
                    return place, calls
            begin, is_open = tag.end(), tag[0] == THOUGHT
        return 0, []


def _types(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters' schemas by tool; clients may describe tools in any way."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            found[str(function.get("name"))] = properties if isinstance(properties, Mapping) else {}
    return found


def reader_of(written: str) -> CallReader | None:
    """Return what reads calls such as the one in ``written``; None when its form is not known.

    Args:
        written: What a template made of a call of ``NAME`` with ``ARGUMENTS``, without what comes
            before and behind the answer.
    """
    for make in (_object_form, _python_form, _named_form, _bare_form, _tagged_form):
        form = make(written)
        if form is None:
            continue
        found = next(
            form.find(written, {NAME: PROBED_TOOL["function"]["parameters"]["properties"]}), None
        )
        if found is not None and (found.name, found.arguments) == (NAME, ARGUMENTS):
            return CallReader(form, written[: found.start].strip())
    return None


@dataclass(frozen=True, slots=True)
class _Objects:
    """A JSON object with the name and the arguments, or with the arguments under the name."""

    name: str | None
    """Key of the name; None where the name is the only key."""
    arguments: str = ""
    id: str | None = None

    def find(self, text: str, types: Mapping[str, Mapping[str, Any]]) -> Iterator[FoundCall]:
        for value, start in json_objects(text):
            if self.name is None:
                [name, *others] = value or [None]
                if not others and isinstance(name, str) and (name in types or not types):
                    yield FoundCall(name=name, arguments=value[name], start=start)
            elif isinstance(name := value.get(self.name), str):
                if self.arguments not in value and name not in types:
                    continue
                known = value.get(self.id) if self.id is not None else None
                arguments = value.get(self.arguments, {})
                yield FoundCall(name=name, arguments=arguments, id=str(known or ID), start=start)


def _object_form(written: str) -> CallForm | None:
    for value, _ in json_objects(written):
        if value == {NAME: ARGUMENTS}:
            return _Objects(None)
        keys = {str(content): key for key, content in value.items()}
        if NAME in keys and str(ARGUMENTS) in keys:
            return _Objects(keys[NAME], keys[str(ARGUMENTS)], keys.get(ID))
    return None


@dataclass(frozen=True, slots=True)
class _Named:
    """The name, and then a JSON object of arguments."""

    head: re.Pattern[str]
    """Up to the object; groups ``name`` and perhaps ``id``."""

    def find(self, text: str, types: Mapping[str, Mapping[str, Any]]) -> Iterator[FoundCall]:
        at = broken = 0
        while (match := self.head.search(text, at)) is not None and broken < _MAX_BROKEN:
            try:
                value, at = json_object_at(text, match.end())
            except ValueError:
                at, broken = match.end(), broken + 1
                continue
            known = match.groupdict().get("id") or ID
            yield FoundCall(name=match["name"], arguments=value, id=known, start=match.start())


def _named_form(written: str) -> CallForm | None:
    place = next((start for value, start in json_objects(written) if value == ARGUMENTS), None)
    if place is None:
        return None
    before, name, between = written[:place].rpartition(NAME)
    head = _head(before)
    if not name or not (head or between.strip()):  # nothing says that this is a call
        return None
    tail, last = _loose(between), _MARK.search(between.rstrip())
    if last is not None and ID not in between:  # some say more, or less, before the last mark
        tail = rf"(?:{tail}|(?!{_LETTER})[^{{}}\n]{{0,80}}?{_loose(last.group())}\s*)"
    return _Named(re.compile(f"{_loose(head)}(?P<name>{_WORD}?){tail}(?={{)"))


@dataclass(frozen=True, slots=True)
class _Python:
    """Calls as in Python: ``[name(key="value")]``."""

    head: str
    tail: str

    def find(self, text: str, types: Mapping[str, Mapping[str, Any]]) -> Iterator[FoundCall]:
        start = text.find(self.head) if self.head else _first_call(text, types)
        if start < 0:
            return
        inner = text[start + len(self.head) :]
        inner = inner.partition(self.tail)[0] if self.tail and self.tail in inner else inner
        try:
            # Some templates, and so some models, put line ends into texts as they are.
            tree = ast.parse(inner.strip().replace("\n", "\\n"), mode="eval").body
            parts = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
            for one in parts:
                if isinstance(one, ast.Call):
                    arguments = {str(word.arg): _literal(word.value) for word in one.keywords}
                    yield FoundCall(name=ast.unparse(one.func), arguments=arguments, start=start)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return


def _first_call(text: str, types: Mapping[str, Any]) -> int:
    names = "|".join(map(re.escape, types)) or _WORD
    match = re.search(rf"\[?\s*(?:{names})\(", text)
    return match.start() if match else -1


def _literal(node: ast.expr) -> Any:
    """Return the value of ``node``; JSON's names of true, false and null count too."""
    named = {"true": True, "false": False, "null": None}
    if isinstance(node, ast.Name) and node.id in named:
        return named[node.id]
    return ast.literal_eval(node)


def _python_form(written: str) -> CallForm | None:
    match = re.search(rf"\[?{NAME}\(.*\)\]?", written, re.DOTALL)
    if match is None:
        return None
    return _Python(_head(written[: match.start()]), written[match.end() :].strip())


@dataclass(frozen=True, slots=True)
class _Bare:
    """The name and an object whose keys are bare and whose texts have quotes of their own."""

    head: re.Pattern[str]
    quote: str

    def find(self, text: str, types: Mapping[str, Mapping[str, Any]]) -> Iterator[FoundCall]:
        quote = re.escape(self.quote)
        parts = re.compile(rf"{quote}(?P<text>.*?){quote}|(?P<key>[\w-]+)(?=\s*:)", re.DOTALL)

        def as_json(part: re.Match[str]) -> str:
            return json.dumps(part["key"] if part["text"] is None else part["text"])

        for match, end in _with_ends(self.head, text):
            with suppress(ValueError):
                value, _ = json_object_at(parts.sub(as_json, text[match.end() : end]), 0)
                yield FoundCall(name=match["name"], arguments=value, start=match.start())


def _bare_form(written: str) -> CallForm | None:
    pieces = _pieces(written)
    if pieces is None:
        return None
    of_text, of_number = pieces.before_value, pieces.before_number
    quote = of_text.removeprefix(of_number)
    if not quote or of_text == quote or not pieces.behind_value.startswith(quote):
        return None
    before, after = pieces.before_name, pieces.behind_name.rstrip("{")
    return _Bare(
        re.compile(f"{_loose(_head(before))}(?P<name>{_WORD}?){_loose(after)}(?={{)"), quote
    )


@dataclass(frozen=True, slots=True)
class _Tagged:
    """Names, keys and values between tags. Values are bare: the tool's schema says their types."""

    head: re.Pattern[str]
    """Group ``name``."""
    argument: re.Pattern[str]
    """Groups ``key`` and ``value``."""
    close: str
    """What ends a value."""
    tail: str
    """What ends a call."""

    def find(self, text: str, types: Mapping[str, Mapping[str, Any]]) -> Iterator[FoundCall]:
        for match, end in _with_ends(self.head, text):
            body, properties = text[match.end() : end], types.get(match["name"], {})
            arguments: dict[str, Any] = {}
            at, stop = 0, body.find(self.tail) if self.tail else -1
            while body.find(self.close, at) >= 0:  # else each search would go to the end
                one = self.argument.search(body, at)
                if one is None or 0 <= stop < one.start():
                    break
                arguments[one["key"]] = _value(one["value"], properties.get(one["key"]))
                at = one.end()
                stop = body.find(self.tail, at) if stop >= 0 else -1
            yield FoundCall(name=match["name"], arguments=arguments, start=match.start())


def _with_ends(head: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield where calls may begin, and where the next one does."""
    heads = list(head.finditer(text))
    yield from zip(heads, [*(one.start() for one in heads[1:]), len(text)], strict=bool(heads))


def _value(text: str, schema: Any) -> Any:
    """Return what ``text`` stands for where ``schema`` says what it is; else as it is."""
    given = schema if isinstance(schema, Mapping) else {}
    parts = [given, *(given.get("anyOf") or ())]
    kinds = {str(one["type"]) for one in parts if isinstance(one, Mapping) and one.get("type")}
    cdata = _CDATA.fullmatch(text)
    text = text if cdata is None else cdata[1]
    if not kinds or any("string" in kind for kind in kinds):  # a list of types holds it, too
        return text
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(text.strip())
    return text


def _tagged_form(written: str) -> CallForm | None:
    pieces = _pieces(written)
    if pieces is None:
        return None
    behind, last = pieces.behind_value, pieces.end
    close = commonprefix([behind, last])  # noqa: RUF071  # of characters, and no paths
    close = close[: close.rfind(">") + 1] or close[: close.rfind("]") + 1] or close.rstrip()
    opens = behind[len(close) :]
    after_name = pieces.behind_name
    if not close or not opens.strip() or not after_name.endswith(opens.lstrip()):
        return None
    after_name = after_name.removesuffix(opens.lstrip())
    between = _between(pieces.before_value, pieces.before_number)
    newline = r"\n?" if pieces.before_value.endswith("\n") else ""
    argument = (
        rf"{_loose(opens.strip())}\s*(?P<key>[^<>\[\]\"\s]+){between}{newline}"
        rf"(?P<value>.*?){newline}{_loose(close.strip())}"
    )
    head = rf"{_loose(_head(pieces.before_name))}\s*(?P<name>{_WORD}){_loose(after_name)}"
    tail = last[len(close) :].strip()
    tail = tail[: tail.find(">") + 1] or tail
    return _Tagged(re.compile(head), re.compile(argument, re.DOTALL), close.strip(), tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces:
    """A call with arguments that are written one after the other, cut at what was given."""

    before_name: str
    behind_name: str
    before_value: str
    behind_value: str
    before_number: str
    end: str


def _pieces(written: str) -> _Pieces | None:
    before, there, rest = written.partition(_FIRST)
    before_name, named, behind_name = before.rpartition(NAME)
    if not (there and named):
        return None
    marks = [ONE, _SECOND, _TWO, _COUNT, NUMBER]
    found = []
    for mark in marks:
        before, there, rest = rest.partition(mark)
        if not there:
            return None
        found.append(before)
    before_value, behind_value, again, _, before_number = found
    if again != before_value:
        return None
    return _Pieces(
        before_name=before_name,
        behind_name=behind_name,
        before_value=before_value,
        behind_value=behind_value,
        before_number=before_number,
        end=rest,
    )


def _between(one: str, other: str) -> str:
    """Return a pattern for what stands between key and value, of a text or a number."""
    if one == other:
        return _loose(one.rstrip("\n"))
    start = commonprefix([one, other])  # noqa: RUF071
    end = commonprefix([one[: len(start) - 1 : -1], other[: len(start) - 1 : -1]])[::-1]  # noqa: RUF071
    return rf"{re.escape(start)}[^<>\n]{{0,40}}?{re.escape(end)}"


def _head(before: str) -> str:
    """Return the last mark before a name, which makes a call of it."""
    line = (
        before.rstrip("\n").rpartition("\n")[2]
        if before.endswith("\n")
        else before.rpartition("\n")[2]
    )
    match = _MARK.search(line)
    return match.group() if match else line


def _loose(text: str) -> str:
    """Return a pattern for ``text`` with any blanks where it has some, and any number and id."""
    pieces = []
    for piece in re.split(rf"(\s+|\d+|{ID})", text):
        if piece == ID:
            pieces.append(rf"(?P<id>{_WORD})")
        elif piece.isdigit():
            pieces.append(r"\d+")
        else:
            pieces.append(r"\s*" if piece.isspace() else re.escape(piece))
    return "".join(pieces)
