"""How a chat template writes an answer: what the model says before it, and where thoughts stand.

Most models think between ``<think>`` tags, and that is how thoughts stand in our messages. Others
have marks of their own (Gemma 4, Seed), or write a header before each part of an answer (gpt-oss,
Solar). The template is asked to write both, and sampled text is read by that.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import TYPE_CHECKING

from turngym.agents.templates import ANSWER, QUESTION, ChatRow, control_token, rendered
from turngym.errors import ConfigError
from turngym.types import THOUGHT, THOUGHT_ENDS, Message, thought_apart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE = "turngym-probe-thought"
_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message that hold its thought, by templates."""
_HOLDS = "\ue000turngym-thought-ends\ue000"
_ASKED: ChatRow = ("user", QUESTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """What stands around the parts of an answer. All is empty for most models."""

    header: str = ""
    """What the model says itself before an answer."""
    opens: str = ""
    """Before a thought, where that is not ``<think>``."""
    closes: str = ""
    """Between a thought and an answer."""
    stop: str = ""
    """The part of ``closes`` that ends a thought, whatever follows."""
    body: str = ""
    """The control token that ends a header."""
    field: str = ""
    """Of a message, for its thought."""
    is_prompted: bool = False
    """The prompt opens the thought."""

    @property
    def is_usual(self) -> bool:
        """Whether answers are as they are said."""
        return not (self.header or self.opens)

    def canonical(self, text: str) -> str:
        """Return a sampled ``text`` with its thoughts in ``<think>`` tags."""
        if not self.opens:
            return text
        found, mark = "", self.opens.strip()
        text = mark + text if self.is_prompted else text
        while True:
            before, opened, text = text.partition(mark)
            found += before
            if not opened:
                return found
            thought, closed, text = text.partition(self.stop)
            found += f"{THOUGHT}{thought.strip()}{THOUGHT_ENDS if closed else ''}"

    def said(self, text: str, control: re.Pattern[str]) -> str:
        """Return what a canonical ``text`` says, without headers.

        Args:
            text: With its control tokens.
            control: Matches each of them.
        """
        thoughts, ends, rest = text.rpartition(THOUGHT_ENDS)
        if self.body and THOUGHT not in rest and control.search(rest):
            parts = zip(control.findall(rest), control.split(rest)[1:], strict=True)
            rest = "\n".join([said for mark, said in parts if mark == self.body and said])
        return control.sub("", f"{thoughts}{ends}{rest}")

    def written(self, text: str) -> str | None:
        """Return how the model writes ``text``, a thought in it; None where that is as usual."""
        if (apart := self._apart(text)) is None:
            return None
        thought, answer = apart
        return f"{'' if self.is_prompted else self.opens}{thought}{self.closes}{answer}"

    def before_call(self, said: str) -> tuple[str, str]:
        """Return how the thought of what is ``said`` before a call is written, and the rest."""
        if (apart := self._apart(said)) is None:
            return "", said
        thought, answer = apart
        begins = "" if self.is_prompted else self.opens
        return f"{begins}{thought}{self.closes.removesuffix(self.header)}", answer

    def held(self, message: Message) -> Message:
        """Return an answer of a history whose thought no cleaning of its text takes apart."""
        apart = self._apart(message.content) if message.role == "assistant" else None
        return message if apart is None else replace(message, content=_HOLDS.join(apart))

    def _apart(self, text: str) -> tuple[str, str] | None:
        """Return the thought and the answer of a text; None where it is written as it is said."""
        is_closed = bool(self.opens) and THOUGHT_ENDS in text
        thought, answer = thought_apart(text) if is_closed else ("", text)
        return None if answer == text else (thought, answer)

    def row(self, row: ChatRow) -> ChatRow:
        """Return a message of a history, ``held`` before, with its thought in its field."""
        role, content, *more = row
        thought, holds, answer = content.partition(_HOLDS)
        if not holds or role != "assistant":
            return row
        return role, answer, {**(more[0] if more else {}), self.field: thought}


def answer_form(tokenizer: PreTrainedTokenizerBase, header: str) -> AnswerForm:
    """Return how the chat template of ``tokenizer`` writes an answer.

    Args:
        tokenizer: With a chat template.
        header: What it has the model say before one.
    """
    first = rendered(tokenizer, [_ASKED], generate=True)
    marks = "|".join(map(re.escape, tokenizer.get_added_vocab())) or "(?!)"
    body = (re.findall(marks, header) or [""])[-1]
    for field in _FIELDS:
        with suppress(ConfigError):
            thinks: ChatRow = ("assistant", ANSWER, {field: _PROBE})
            before, thought, rest = rendered(tokenizer, [_ASKED, thinks]).partition(_PROBE)
            closes, answered, _ = rest.partition(ANSWER)
            if not (thought and answered):
                continue
            if THOUGHT in before or THOUGHT_ENDS in closes or not closes.strip():
                break  # as usual
            opens = before[len(commonprefix([first, before])) :]  # noqa: RUF071  # of characters
            if not opens.strip():  # the prompt has it, perhaps closed at once
                last = [one.start() for one in re.finditer(marks, before)][-1:]
                opens = before[last[0] :] if last else ""
            stop = control_token(tokenizer, closes.lstrip()) or closes.strip()
            return AnswerForm(
                header=header, opens=opens, closes=closes, stop=stop, body=body, field=field,
                is_prompted=bool(opens.strip()) and first.rstrip().endswith(opens.strip()),
            )  # fmt: skip
    return AnswerForm(header=header, body=body)
