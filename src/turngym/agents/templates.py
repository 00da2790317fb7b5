"""Chat templates: a model's own or another, with fixed arguments, and what they do to messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngym.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from turngym.agents.engine.config import ChatTemplateConfig

QUESTION, ANSWER, NEXT = (f"turngym-probe-{name}" for name in ("question", "answer", "next"))
"""What messages say while a template is looked at."""
VISION = "_turngym_vision"
"""Attribute of a tokenizer and of a model's body that says how pictures are read."""
_ENDS = "_turngym_ends"
"""Attribute of a tokenizer: the tokens that end an answer, by the model's card."""
_FIXED = "{# chat_template_kwargs #}{{ '' }}"
"""Stands between arguments and template. The empty text keeps a line end after it."""


def prepare(
    tokenizer: PreTrainedTokenizerBase,
    config: ChatTemplateConfig | None = None,
    *,
    ends: Sequence[int] = (),
) -> None:
    """Give ``tokenizer`` the template that ``config`` wants, and the end token of its template.

    Arguments become part of the template, and so of a model that is trained with it. The token that
    ends a message is not always the tokenizer's end of sequence (Gemma, Phi, GLM), and it is what a
    model says at the end of an answer.

    Args:
        tokenizer: With a template of its own, unless ``config`` has one. Changed in place.
        config: What to set; None to leave the template as it is.
        ends: Tokens that end an answer, by the model's card.

    Raises:
        ConfigError: The file cannot be read.
    """
    named = tokenizer.convert_ids_to_tokens(list(ends))
    setattr(tokenizer, _ENDS, tuple(str(one) for one in named if one))
    if config is not None and config.chat_template:
        file = Path(config.chat_template).expanduser()
        try:
            tokenizer.chat_template = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"chat_template {str(file)!r} cannot be read: {error}") from error
    if not isinstance(tokenizer.chat_template, str):
        return
    if config is not None and config.chat_template_kwargs:
        # Python's and Jinja's literals of what TOML can hold are the same.
        pairs = config.chat_template_kwargs.items()
        fixed = "".join(f"{{%- set {name} = {value!r} %}}" for name, value in pairs)
        earlier, _, own = tokenizer.chat_template.rpartition(_FIXED)
        if not earlier.endswith(fixed):  # of two values the later one counts
            tokenizer.chat_template = earlier + fixed + _FIXED + own
    if (end := end_token(tokenizer)) is not None:
        tokenizer.eos_token = end


ChatRow = tuple[str, str] | tuple[str, str, Mapping[str, Any]]
"""A message for a template: role, content and, where it has some, more fields."""


def rendered(
    tokenizer: PreTrainedTokenizerBase,
    said: Sequence[ChatRow],
    *,
    generate: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the text of messages.

    Args:
        tokenizer: With a chat template.
        said: The messages.
        generate: End where the assistant speaks next.
        tools: OpenAI-style function descriptions that the template shows.

    Raises:
        ConfigError: The template refuses them.
    """
    from jinja2 import TemplateError

    content = str if _takes_text(tokenizer) else _parts
    rows = [
        {"role": role, "content": content(text), **(more[0] if more else {})}
        for role, text, *more in said
    ]
    try:
        return _applied(tokenizer, rows, generate=generate, tools=tools)
    except (TemplateError, TypeError) as error:
        raise ConfigError(
            f"chat template of {tokenizer.name_or_path!r} fails on messages of roles "
            f"{[one[0] for one in said]}: {error}"
        ) from error


def _applied(
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Any],
    *,
    generate: bool,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    text: str = tokenizer.apply_chat_template(
        rows, tools=list(tools) or None, tokenize=False, add_generation_prompt=generate
    )
    return text


def _parts(text: str, *before: str) -> list[dict[str, str]]:
    return [*({"type": kind} for kind in before), {"type": "text", "text": text}]


_TAKES_TEXT: dict[str, bool] = {}


def _takes_text(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a message may be a text; templates of models that see may want its parts."""
    template = str(tokenizer.chat_template)
    if template not in _TAKES_TEXT:
        _TAKES_TEXT[template] = _says(tokenizer, QUESTION) or not _says(tokenizer, _parts(QUESTION))
    return _TAKES_TEXT[template]


def _says(tokenizer: PreTrainedTokenizerBase, content: Any) -> bool:
    from jinja2 import TemplateError

    with suppress(TemplateError, TypeError):
        return QUESTION in _applied(
            tokenizer, [{"role": "user", "content": content}], generate=False
        )
    return False


def written_picture(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str, bool]:
    """Return how the chat template changes what is around a message's text for its picture.

    Returns:
        Blanks that are no longer there right before the text, what is there instead, and True; or
        nothing, what is there right behind the text, and False.

    Raises:
        ConfigError: It writes nothing for a picture, or changes more than that.
    """
    from jinja2 import TemplateError

    plain = rendered(tokenizer, probed([NEXT]), generate=True)
    before, _, behind = plain.partition(NEXT)
    for comes_first in (True, False):
        with suppress(TemplateError, TypeError):
            shown = with_pictures(tokenizer, 1, comes_first=comes_first)
            its_before, _, its_behind = shown.partition(NEXT)
            same = len(commonprefix((before, its_before)))  # noqa: RUF071  # no paths
            gone, written = before[same:], its_before[same:]
            if comes_first and written and its_behind == behind and not gone.strip():
                return gone, written, True
            written = its_behind.removesuffix(behind)
            if written and its_before == before and its_behind == written + behind:
                return "", written, False
    raise ConfigError(
        f"chat template of {tokenizer.name_or_path!r} has no place for a picture beside a "
        "message's text; set chat_template to a file with one that has, or images=false"
    )


def probed(said: Sequence[str]) -> list[tuple[str, str]]:
    """Return a conversation in which a user says ``said`` after a first question."""
    turns = [[("assistant", ANSWER), ("user", text)] for text in said]
    return [("user", QUESTION), *chain.from_iterable(turns)]


def with_pictures(tokenizer: PreTrainedTokenizerBase, pictures: int, *, comes_first: bool) -> str:
    """Return the text of a probe whose later questions have a picture each.

    Args:
        tokenizer: With a chat template.
        pictures: How many.
        comes_first: The picture comes before the text.
    """
    content = str if _takes_text(tokenizer) else _parts
    parts = _parts(NEXT, "image") if comes_first else [*_parts(NEXT), {"type": "image"}]
    rows = [
        {"role": role, "content": parts if text == NEXT else content(text)}
        for role, text in probed([NEXT] * pictures)
    ]
    return _applied(tokenizer, rows, generate=True)


def end_token(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the control token right after the last answer, or before the next message."""
    asked = [("user", QUESTION), ("assistant", ANSWER)]
    for said, generate in ((asked, False), ([*asked, ("user", NEXT)], True)):
        try:
            after = rendered(tokenizer, said, generate=generate).partition(ANSWER)[2]
        except ConfigError:  # said by who renders with it
            return None
        if (token := control_token(tokenizer, after)) is not None:
            return token
    return None


def end_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return every token that may end an answer, that of the template first."""
    return (str(tokenizer.eos_token), *getattr(tokenizer, _ENDS, ()))


def takes_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the template has a place for a system message before the first question."""
    try:
        return ANSWER in rendered(tokenizer, [("system", ANSWER), ("user", QUESTION)])
    except ConfigError:
        return False


def control_token(tokenizer: PreTrainedTokenizerBase, text: str) -> str | None:
    """Return the longest control token of ``tokenizer`` that ``text`` begins with, or None."""
    found = [token for token in tokenizer.get_added_vocab() if token and text.startswith(token)]
    return max(found, key=len, default=None)


_THOUGHTS = re.compile(r"\s*|.*(think|thought).*", re.IGNORECASE | re.DOTALL)


def difference(one: str, other: str) -> tuple[str, str] | None:
    """Return how ``one`` and ``other`` end differently; None where it is a place for thoughts.

    Templates of models that think put it before an answer that is asked for, or before the last
    one, and not before earlier ones.
    """
    same = len(commonprefix((one, other)))  # noqa: RUF071  # of characters, and no paths
    ends = one[same:], other[same:]
    return None if all(map(_THOUGHTS.fullmatch, ends)) else ends


# Which templates put what is said into their text as it is, wherever it is said: such a one is run
# once for messages of these roles. That is proven from its syntax tree, and nothing is assumed. One
# that looks at what is said (thinking, tool answers that it recognises) is run every time.

_SAID = "content"
_NODES = frozenset({
    "Template", "Output", "TemplateData", "For", "If", "CondExpr", "Assign", "Name", "NSRef",
    "Const", "Getattr", "Getitem", "Slice", "Compare", "Operand", "And", "Or", "Not", "Neg", "Add",
    "Sub", "Mod", "Concat", "Filter", "Test", "Call", "Keyword", "Tuple", "List", "Dict", "Pair",
})  # fmt: skip
"""Kinds of nodes that are understood; a template with any other is run every time."""
_TESTS = frozenset({"defined", "undefined", "none", "string", "mapping", "iterable", "true"})
"""Tests that say the same of every text."""


def says_as_is(template: str) -> bool:
    """Return whether the text of ``template`` is the same around whatever its messages say.

    True only where that is certain for contents that are not empty and have no blanks around them.
    """
    try:
        from jinja2 import Environment, TemplateSyntaxError
    except ImportError:
        return False
    # As ``transformers`` reads templates.
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        tree = environment.parse(template)
    except TemplateSyntaxError:
        return False
    return _Reading(tree).is_plain


def slots_of(text: str, count: int) -> tuple[str, ...] | None:
    """Return what stands around ``count`` marks in ``text``; None when one is not there once."""
    pieces: list[str] = []
    for number in range(count):
        before, *rest = text.split(mark(number))
        if len(rest) != 1:
            return None
        pieces.append(before)
        text = rest[0]
    return (*pieces, text)


def mark(number: int) -> str:
    """Return what stands for content ``number`` while a template is run for its slots."""
    return f"turngym-slot-{number}-of-a-message"


class _Reading:
    """Follows what is said through a template.

    ``said`` are the names that hold what a message says, or a text with it; ``objects`` are the
    names that hold messages.
    """

    def __init__(self, tree: Any) -> None:  # nodes of jinja2, whose attributes are by kind
        self._above: dict[int, Any] = {}
        self._nodes = list(self._walk(tree))
        self._said: set[str] = set()
        self._objects = {"messages"}
        self.is_plain = all(map(self._is_known, self._nodes)) and self._follow()

    def _walk(self, node: Any) -> Iterator[Any]:
        yield node
        for child in node.iter_child_nodes():
            self._above[id(child)] = node
            yield from self._walk(child)

    @staticmethod
    def _is_known(node: Any) -> bool:
        kind = type(node).__name__
        return kind in _NODES and not (kind == "Name" and node.name == "strftime_now")

    def _follow(self) -> bool:
        """Look at every use of what is said and of messages, until no name is new."""
        known = -1
        while known != (known := len(self._said) + len(self._objects)):
            for node in self._nodes:
                kind = type(node).__name__
                is_name = kind == "Name" and node.ctx == "load"
                if self._reads_content(node) or (is_name and node.name in self._said):
                    if not self._is_put_in(node):
                        return False
                elif is_name and node.name in self._objects and not self._is_looked_into(node):
                    return False
        return not self._said & self._objects

    @staticmethod
    def _reads_content(node: Any) -> bool:
        kind = type(node).__name__
        if kind == "Getattr":
            return bool(node.attr == _SAID)
        return kind == "Getitem" and getattr(node.arg, "value", None) == _SAID

    def _is_put_in(self, node: Any) -> bool:
        """Return whether ``node``, a text with what is said, is put into the output as it is."""
        above = self._above[id(node)]
        kind = type(above).__name__
        if kind in ("Output", "Not"):
            return True
        if kind == "Test":
            return above.name in _TESTS
        if kind == "If" or (kind == "CondExpr" and above.test is node):
            return True  # a text that is not empty counts as true
        if kind == "Assign" and type(above.target).__name__ == "Name":
            self._said.add(above.target.name)
            return True
        if kind in ("Concat", "Add", "And", "Or", "CondExpr"):
            return self._is_put_in(above)
        return kind == "Filter" and above.name == "trim" and self._is_put_in(above)

    def _is_looked_into(self, node: Any) -> bool:
        """Return whether ``node``, one or several messages, gives away nothing but its parts."""
        above = self._above[id(node)]
        kind = type(above).__name__
        if kind == "For" and above.iter is node:
            if type(above.target).__name__ != "Name":
                return False
            self._objects.add(above.target.name)
            return True
        if kind == "Getitem" and above.node is node:
            if isinstance(getattr(above.arg, "value", None), str):
                return True  # one of its fields; the content is looked at by itself
            return self._is_looked_into(above)
        if kind == "Assign" and type(above.target).__name__ == "Name":
            self._objects.add(above.target.name)
            return True
        if kind == "Getattr":  # a field and no method, which might give the content
            return type(self._above[id(above)]).__name__ != "Call"
        return kind == "Filter" and above.name == "length"
