"""How an agent says what it does: commands in words, or JSON tool calls.

An ``ActionFormat`` prints itself as instructions for a prompt and parses what came back. Parsing
never raises: what cannot be understood is an ``InvalidAction`` whose reason helps the agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Literal, Protocol, runtime_checkable

from turngym.errors import ConfigError, require_known
from turngym.types import after_thoughts, json_object_at, json_objects

ActionStyle = Literal["commands", "tools"]
"""How actions are written: in words, or as JSON tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A parsed action: which command, with which arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidAction:
    """A text that is no action; ``reason`` is one sentence for the agent."""

    reason: str


@runtime_checkable
class ActionFormat(Protocol):
    """The grammar of an environment's actions."""

    def instructions(self) -> str:
        """Return how to act, as text for a prompt."""

    def parse(self, text: str) -> Action | InvalidAction:
        """Return the action in ``text``, or why there is none. Never raises."""

    def render(self, action: Action) -> str:
        """Return the text that ``parse`` turns into ``action``."""

    def tools(self) -> list[dict[str, Any]]:
        """Return the actions as OpenAI-style function descriptions with JSON Schemas."""


_SLOT = re.compile(r"\{(?P<name>\w+)(?P<rest>\.\.\.)?(?::(?P<kind>[^}]+))?\}")
_FENCE = re.compile(r"```[\w-]*\n(?P<body>.*?)```", re.DOTALL)
QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019"}
"""Opening to closing."""
_ANY_QUOTES = "".join(QUOTES)
LEAD = re.compile(r"^(?:[*_]*action\s*:[*_]*|>|\$)\s*", re.IGNORECASE)
_MARKS = ("**", "__", "*", "_", "`")
_QUOTED_WORDS = re.compile(r"(?<!\S)(?:\"([^\"]+)\"|'([^']+)'|\u201c([^\u201d]+)\u201d)(?!\S)")
_BETWEEN_CALLS = re.compile(r"(?:\s|[,;]|</?tool_call>|```\w*)*")
_FULL_STOP = re.compile(r"(?<=\w)\.$")

# Bounds on the work that one text can cause.
_MAX_LINE_CHARS = 10_000
_MAX_KNOWN_TEXTS, _MAX_KNOWN_CHARS = 1_024, 200


class Commands:
    """Actions in words, such as ``go north`` or ``guess crane``.

    Each command is a template: words stand for themselves, ``{x}`` takes one word, ``{x:int}`` an
    integer, ``{x:a|b}`` one of the listed words, ``{x...}`` the rest of the line. Letter case and
    repeated blanks do not matter; a listed word is captured as listed, other values have single
    blanks and are lower-cased unless ``keep_case``. When the text has several lines, the last
    non-empty one counts (so an agent may think first), or the last line of the last fenced block;
    a leading ``Action:`` or ``>`` is dropped.

    The exact form of a command keeps its meaning. Where there is none, the line is read again
    without ``**``, ``*``, ``__``, ``_``, backticks or quotes around all of it and without a lead,
    then without the full stop at its end, then without the quotes around single arguments.
    An argument loses one pair of quotes around the whole of it, unless the same quotes stand
    inside: ``answer "45.50"`` answers 45.50, and ``answer "a" or "b"`` keeps its quotes. To mean
    quotes, give them twice: ``answer ""45.50""``. ``{x...:text}`` is text to type, which loses
    double quotes only, and ``{x...:raw}`` keeps all; both keep the blanks inside.

    Args:
        templates: Command name to template, for example ``{"go": "go {direction:north|south}"}``.
        help: Command name to a few words on what it does, for the prompt.
        keep_case: Keep the letter case of captured values that are not listed.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        *,
        help: Mapping[str, str] | None = None,
        keep_case: bool = False,
    ) -> None:
        if not templates or not isinstance(templates, Mapping):
            raise ConfigError(f"Commands: wanted {{name: template, ...}}, found {templates!r}")
        self.templates = dict(templates)
        self.help = dict(help or {})
        self.keep_case = keep_case
        self._known: dict[str, Action | InvalidAction] = {}
        self._slots = {name: _slots(text) for name, text in self.templates.items()}
        patterns = [
            (name, _compile(name, text), self._slots[name]) for name, text in self.templates.items()
        ]
        self._patterns = [one for one in patterns if not self.templates[one[0]].startswith("{")]
        self._anything = [one for one in patterns if self.templates[one[0]].startswith("{")]

    def instructions(self) -> str:
        """Return the list of commands, one a line."""
        lines = ["Answer with one command on the last line. Commands:"]
        for name, template in self.templates.items():
            note = f"  ({self.help[name]})" if name in self.help else ""
            lines.append(f"  {_shown(template)}{note}")
        return "\n".join(lines)

    def parse(self, text: str) -> Action | InvalidAction:
        """Return the command on the last line of ``text``, or why there is none.

        What short texts mean is remembered: agents say the same few things again and again. So
        two calls may return one object; no caller may change its arguments.
        """
        parsed = self._known.get(text)
        if parsed is None:
            parsed = self._read(text)
            if len(text) <= _MAX_KNOWN_CHARS:
                if len(self._known) >= _MAX_KNOWN_TEXTS:
                    self._known.clear()
                self._known[text] = parsed
        return parsed

    def _read(self, text: str) -> Action | InvalidAction:
        line = _last_line(text)
        if not line:
            return InvalidAction(reason="The answer was empty. " + self._hint())
        if len(line) > _MAX_LINE_CHARS:
            reason = f"The last line is longer than {_MAX_LINE_CHARS} characters. "
            return InvalidAction(reason=reason + self._hint())
        forms = ((form, self._patterns) for form in readings(line))  # mostly the first one matches
        for form, patterns in chain(forms, [(line, self._anything)]):
            for name, pattern, slots in patterns:
                if (match := pattern.fullmatch(form)) is not None:
                    return Action(name=name, arguments=self._arguments(slots, match))
        return InvalidAction(reason=f"Not a command: {line[:80]!r}. " + self._hint())

    def render(self, action: Action) -> str:
        """Return the command line of ``action``."""
        slots = self._slots[action.name]

        def shown(match: re.Match[str]) -> str:
            slot, text = slots[match["name"]], str(action.arguments[match["name"]])
            is_bare = text[:1].isalnum() and text[-1].isalnum()  # no quotes, no full stop: most are
            is_plain = is_bare or text == self._meant(slot, text)
            return text if is_plain and not slot.needs_quotes(text) else quoted(text, slot.quotes)

        return _SLOT.sub(shown, self.templates[action.name])

    def tools(self) -> list[dict[str, Any]]:
        """Return one function description per command."""
        return [_tool(name, text, self.help.get(name, "")) for name, text in self.templates.items()]

    def _hint(self) -> str:
        return "Commands: " + "; ".join(_shown(text) for text in self.templates.values()) + "."

    def _arguments(self, slots: Mapping[str, _Slot], match: re.Match[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for slot in slots.values():
            text = match[slot.name] if slot.kind == "int" else self._meant(slot, match[slot.name])
            plain = text if self.keep_case else text.lower()
            value = slot.listed.get(text.lower(), plain)
            values[slot.name] = int(text) if slot.kind == "int" else value
        return values

    def _meant(self, slot: _Slot, text: str) -> str:
        """Return what is meant by ``text`` in a slot: see ``Commands``."""
        text = text.strip() if slot.kind in ("text", "raw") else " ".join(text.split())
        inner = unquoted(text, slot.quotes)
        has_stop = inner == text and slot.is_last and (slot.kind == "word" or not self.keep_case)
        return _FULL_STOP.sub("", text) if has_stop else inner


def function_tool(
    name: str, description: str, properties: Mapping[str, Any], required: Sequence[str]
) -> dict[str, Any]:
    """Return a tool that takes the given arguments and no others, in OpenAI's form.

    Args:
        name: What it is called.
        description: What it does, for the model.
        properties: Name of each argument to its JSON Schema.
        required: The arguments that must be there.
    """
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
    return described_tool(name, description, parameters)


def described_tool(
    name: str, description: str | None, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a tool in OpenAI's form; ``parameters`` is the JSON Schema of its arguments."""
    function = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": function}


class JsonTools:
    """Actions as JSON tool calls: ``{"name": ..., "arguments": {...}}``.

    The last JSON object in the text that has a ``name`` counts, bare, fenced or inside
    ``<tool_call>`` tags. Arguments are checked against the tool's JSON Schema.

    Args:
        tools: OpenAI-style function descriptions (``{"type": "function", "function": {"name",
            "description", "parameters"}}``).
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        if not tools or not all("function" in tool for tool in tools):
            raise ConfigError(f'JsonTools: wanted [{{"function": ...}}, ...], found {tools!r}')
        self._tools = [dict(tool) for tool in tools]
        self._schemas = {t["function"]["name"]: t["function"]["parameters"] for t in self._tools}

    def instructions(self) -> str:
        """Return the tools and the form of a call."""
        lines = ['Answer with one tool call: {"name": "<tool>", "arguments": {...}}. Tools:']
        lines += [f"  {json.dumps(tool['function'], ensure_ascii=False)}" for tool in self._tools]
        return "\n".join(lines)

    def parse(self, text: str) -> Action | InvalidAction:
        """Return the tool call in ``text``, or why there is none."""
        calls = [value for value, _ in json_objects(text) if isinstance(value.get("name"), str)]
        if not calls:
            return InvalidAction(reason="No tool call found. " + self._hint())
        name, arguments = calls[-1]["name"], calls[-1].get("arguments", {})
        if name not in self._schemas:
            return InvalidAction(reason=f"Unknown tool {name!r}. " + self._hint())
        if not isinstance(arguments, dict):
            return InvalidAction(reason=f"The arguments of {name!r} must be a JSON object.")
        if not _is_unicode(arguments):
            return InvalidAction(reason=f"The arguments of {name!r} hold half of a unicode pair.")
        if (problem := self._schema_problem(name, arguments)) is not None:
            return InvalidAction(reason=problem)
        return Action(name=name, arguments=_with_ints(arguments, self._schemas[name]))

    def render(self, action: Action) -> str:
        """Return the JSON of a call of ``action``."""
        call = {"name": action.name, "arguments": dict(action.arguments)}
        return json.dumps(call, ensure_ascii=False)

    def tools(self) -> list[dict[str, Any]]:
        """Return the function descriptions."""
        return [dict(tool) for tool in self._tools]

    def _hint(self) -> str:
        form = '{"name": "<tool>", "arguments": {...}}'
        return f"Tools: {', '.join(self._schemas)}. Form: {form}."

    def _schema_problem(self, name: str, arguments: dict[str, Any]) -> str | None:
        from jsonschema.exceptions import best_match
        from referencing.exceptions import Unresolvable

        try:
            error = best_match(self._validators[name].iter_errors(arguments))
        except Unresolvable as missing:
            return f"Tool {name!r}: its JSON Schema has no {missing.ref!r}."
        if error is None:
            return None
        where = ".".join(str(part) for part in error.absolute_path) or "arguments"
        return f"Tool {name!r}, {where}: {error.message[:200]}"

    @cached_property
    def _validators(self) -> dict[str, Any]:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry

        found = {}
        for name, schema in self._schemas.items():
            validator = validator_for(schema, default=Draft202012Validator)
            try:
                validator.check_schema(schema)
            except SchemaError as error:
                raise ConfigError(f"tool {name!r}: bad JSON Schema: {error.message}") from error
            found[name] = validator(schema, registry=Registry())  # which fetches nothing
        return found


def _with_ints(value: Any, schema: Any) -> Any:
    """Return ``value`` with 3.0 as 3 where its schema says integer, which admits both."""
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return {key: _with_ints(one, known.get(key)) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_ints(one, schema.get("items")) for one in value]
    any_of = [one for one in (schema, *schema.get("anyOf", ())) if isinstance(one, Mapping)]
    kinds = str([one.get("type") for one in any_of])
    is_int = "integer" in kinds and "number" not in kinds
    return int(value) if is_int and isinstance(value, float) and value.is_integer() else value


def calls_at_end(action: object) -> list[str]:
    """Return the tool calls at the end of an answer, with nothing but marks between them.

    Earlier ones, of which the model only spoke, are not among them.
    """
    found: list[str] = []
    text, end = after_thoughts(action) if isinstance(action, str) else "", 0
    for value, start in json_objects(text):
        if isinstance(value.get("name"), str):
            if _BETWEEN_CALLS.fullmatch(text, end, start) is None:
                found = []
            end = json_object_at(text, start)[1]
            found.append(text[start:end])
    return found


def in_style(
    style: ActionStyle, commands: ActionFormat, tools: ActionFormat | None = None
) -> ActionFormat:
    """Return the action format of a style.

    Args:
        style: ``"commands"`` or ``"tools"``.
        commands: The actions in words.
        tools: The same as JSON tool calls; made of ``commands.tools()`` where it is None.

    Raises:
        UnknownNameError: There is no such style.
    """
    require_known("action_style", style, ("commands", "tools"))
    return commands if style == "commands" else tools or JsonTools(commands.tools())


def _compile(name: str, template: str) -> re.Pattern[str]:
    pattern, end = "", 0
    for slot in _SLOT.finditer(template):
        pattern += _words(template[end : slot.start()]) + _slot_pattern(name, slot)
        end = slot.end()
    try:
        return re.compile(pattern + _words(template[end:]), re.IGNORECASE)
    except re.error as error:
        raise ConfigError(f"command {name!r}: template {template!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Slot:
    """One argument of a template."""

    name: str
    kind: str
    """``int``, ``word``, ``rest``, ``text``, ``raw``, or the choices."""
    is_last: bool

    @property
    def quotes(self) -> str:
        """The quotes that an argument may stand in."""
        return {"rest": _ANY_QUOTES, "word": _ANY_QUOTES, "text": '"'}.get(self.kind, "")

    @property
    def listed(self) -> dict[str, str]:
        """The choices by their words in small letters."""
        choices = self.kind.split("|") if "|" in self.kind else ()
        return {" ".join(one.lower().split()): one for one in choices}

    def needs_quotes(self, text: str) -> bool:
        """Say whether ``text`` cannot be seen without them."""
        has_blanks = any(map(str.isspace, text)) if self.kind == "word" else text != text.strip()
        return has_blanks or not text


def _slots(template: str) -> dict[str, _Slot]:
    return {
        slot["name"]: _Slot(
            slot["name"],
            slot["kind"] or ("rest" if slot["rest"] else "word"),
            slot.end() == len(template),
        )
        for slot in _SLOT.finditer(template)
    }


def _slot_pattern(name: str, slot: re.Match[str]) -> str:
    kind = slot["kind"]
    if slot["rest"] and kind in (None, "text", "raw"):
        body = r".+"
    elif kind is None:
        body = r"""(?:"[^"]+"|'[^']+'|\u201c[^\u201d]+\u201d|\S+)"""
    elif kind == "int":
        body = r"[+-]?\d{1,18}"
    elif "|" in kind:
        body = "|".join(_words(choice) for choice in kind.split("|"))
    else:
        raise ConfigError(f"command {name!r}: unknown slot kind {kind!r}; wanted int or a|b|c")
    return f"(?P<{slot['name']}>{body})"


def _words(text: str) -> str:
    """Return a pattern for fixed words, with any blanks between them."""
    return re.sub(r"(?:\\?\s)+", r"\\s++", re.escape(text))


def _shown(template: str) -> str:
    def show(slot: re.Match[str]) -> str:
        kind = slot["kind"]
        return f"<{kind}>" if kind and "|" in kind else f"<{slot['name']}>"

    return _SLOT.sub(show, template)


def _last_line(text: str) -> str:
    """Return the last non-empty line, without a lead or code marks."""
    text = (_FENCE.findall(text) or [text])[-1]
    line = next((line for line in reversed(text.splitlines()) if line and not line.isspace()), "")
    line = LEAD.sub("", line.strip()).strip()
    ends_in_code = line[:1] != "`" and line.count("`") % 2 == 0  # answer `ls`
    return line if ends_in_code else line.strip("`").strip()


def _is_unicode(value: Any) -> bool:
    """Return False when a text in ``value`` holds a lone surrogate, which no file can store."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _tool(name: str, template: str, description: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for slot in _SLOT.finditer(template):
        kind = slot["kind"]
        properties[slot["name"]] = {"type": "integer" if kind == "int" else "string"}
        if kind and "|" in kind:
            properties[slot["name"]]["enum"] = kind.split("|")
    return function_tool(name, description or _shown(template), properties, list(properties))


def readings(line: str) -> Iterator[str]:
    """Yield ``line`` and what else it may mean, the most literal first."""
    yield line
    bare = _bare(line)
    ended = _bare(bare[:-1].rstrip()) if bare.endswith(".") else bare
    forms = (bare, ended, *(_QUOTED_WORDS.sub(r"\1\2\3", form) for form in (line, bare, ended)))
    yield from (form for form in dict.fromkeys(forms) if form not in ("", line))


def unquoted(text: str, quotes: str = _ANY_QUOTES) -> str:
    """Return ``text`` without one pair of ``quotes`` around it, if it stands in one."""
    if not _is_quoted(text, quotes):
        return text
    inner = text[1:-1]
    has_same = text[0] in inner or text[-1] in inner
    return text if has_same and not _is_quoted(inner, quotes) else inner


def quoted(text: str, quotes: str = _ANY_QUOTES) -> str:
    """Return ``text`` in quotes, so that ``unquoted`` gives it back; as it is where none do."""
    forms = (f"{mark}{text}{QUOTES[mark]}" for mark in quotes)
    return next((form for form in forms if unquoted(form, quotes) == text), text)


def _is_quoted(text: str, quotes: str) -> bool:
    return len(text) >= 2 and text[0] in quotes and QUOTES[text[0]] == text[-1]


def _unwrapped(line: str) -> str:
    """Return ``line`` without quotes around all of it; those around its words may be the same."""
    is_wrapped = _is_quoted(line, _ANY_QUOTES)
    between = _QUOTED_WORDS.sub("", line[1:-1]) if is_wrapped else ""
    has_same = line[:1] in between or line[-1:] in between
    return line[1:-1] if is_wrapped and not has_same else unquoted(line)


def _bare(line: str) -> str:
    """Return ``line`` without what stands around all of it."""
    while True:
        inner = LEAD.sub("", _unwrapped(line)).strip()
        for mark in _MARKS:
            if inner.startswith(mark) and inner.endswith(mark) and len(inner) > 2 * len(mark):
                inner = inner[len(mark) : -len(mark)].strip()
                break
        if inner == line:
            return line
        line = inner
