"""A question with its exact answers, the documents that give it, and how an expert finds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Required, TypedDict, Unpack

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.documents import snippet, terms
from turngym.errors import ConfigError
from turngym.tasks.base import Split, split_of
from turngym.tasks.problem import AnswerProblem, Cheat, JudgeResult, World
from turngym.tasks.questions import read_rows
from turngym.tasks.scorers.answers import UNKNOWN, contains_answer, exact_match, token_f1

_Text = Annotated[str, StringConstraints(pattern=r"\S")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One step of an expert: a query, and the document among its results that is needed."""

    query: _Text
    doc: _Text


@dataclass(frozen=True, kw_only=True)
class Question(AnswerProblem):
    """What is asked, and everything that is needed to judge and to solve it."""

    played_by: ClassVar[str] = ""  # the set says what is searched
    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    answers: Annotated[tuple[_Text, ...], Field(min_length=1)]
    """Right answers; the first is the canonical one."""
    kind: str = "question"
    """Which generator made it, for example ``"2hop"``."""
    plan: tuple[Lookup, ...] = ()
    """The expert's way, in order; its documents support the answer."""
    mentions: tuple[str, ...] = ()
    """Names that the question holds."""
    is_choice: bool = False
    """The way leads past rivals of the answer: to read its name is not yet to know it."""
    fixed_split: Split | None = None
    """The split, where a benchmark says so; else it follows from the content."""
    facts: str = ""
    """What the problem is beyond its words; decides its split together with them."""

    @property
    def prompt(self) -> str:  # type: ignore[override]  # the text
        """What is asked."""
        return self.text

    @property
    def truth(self) -> str:  # type: ignore[override]  # there always is one
        """The canonical answer."""
        return self.answers[0]

    @property
    def supporting(self) -> tuple[str, ...]:
        """Ids of the documents that give the answer, each once."""
        return tuple(dict.fromkeys(step.doc for step in self.plan))

    @property
    def content(self) -> str:
        """Everything that makes this question this one."""
        return f"{self.text} -> {self.answers[0]} by {self.facts}"

    @property
    def split(self) -> Split:
        """The split that the question belongs to, by its own content unless it is fixed."""
        return self.fixed_split or split_of(self.content)

    async def judge(self, world: World) -> JudgeResult:
        """Score exact match; ``parts`` has the token F1 too."""
        given = world.answer or ""
        exact, f1 = exact_match(given, self.answers), token_f1(given, self.answers)
        evidence = "" if exact else f"{given[:60]!r} is not right"
        return JudgeResult(score=exact, parts={"exact_match": exact, "f1": f1}, evidence=evidence)

    def expert(self) -> list[Lookup | str]:
        """Return the plan, then the answer."""
        return [*self.plan, self.answers[0]]

    def cheats(self) -> list[Cheat]:
        """Return answers that need no search: names that the question itself holds."""
        wrong = [name for name in self.mentions if not exact_match(name, self.answers)]
        return [Cheat(kind="answer from the prompt", script=[name]) for name in wrong]


_ADAPTER = TypeAdapter(Question)


def question_from_json(value: Mapping[str, Any], where: str) -> Question:
    """Return the question that ``write_questions`` wrote, or one that a person wrote.

    Args:
        value: ``text`` and ``answers`` (or one ``answer``) are needed; ``kind``, ``plan`` (a list
            of ``query`` and ``doc``), ``mentions`` and ``split`` are not.
        where: File and line, for messages.

    Raises:
        ConfigError: Something is missing or of the wrong type.
    """
    row = {name: one for name, one in value.items() if one is not None}  # as Parquet fills up rows
    row["fixed_split"] = row.get("split", row.get("fixed_split"))
    if "answer" in row:
        row.setdefault("answers", [row["answer"]])
    try:
        return _ADAPTER.validate_python(row)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])).replace("fixed_split", "split")
        raise ConfigError(
            f"{where}: {place!r}: {first['msg']}, found {first['input']!r:.60}"
        ) from None


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a file of JSON lines, CSV or Parquet.

    Raises:
        ConfigError: The file is missing, empty or broken; the message names the row.
    """
    found = [question_from_json(row, where) for where, row in read_rows(path)]
    if not found:
        raise ConfigError(f"questions {path}: there are none")
    return found


def write_questions(path: Path, questions: Iterable[Question]) -> int:
    """Write ``questions`` as JSON lines and return how many there were."""
    lines = [json.dumps(asdict(question), ensure_ascii=False) + "\n" for question in questions]
    path.write_text("".join(lines), "utf-8")
    return len(lines)


def leaks(question: Question, backend: SearchBackend, *, k: int, snippet_words: int) -> str:
    """Return how the answer can be had too cheaply, or "" when it cannot.

    The answer may not stand in the question. Where several documents are needed, it may neither
    stand in what one search for the whole question shows, nor in any document that it finds,
    unless rivals of it stand there just as well. Where results are titles only (``snippet_words``
    is 0, for small policies in small worlds) only the best document is looked at.

    Args:
        question: What is asked.
        backend: Where it will be searched.
        k: Results of a search.
        snippet_words: Words shown of each.
    """
    answer = question.answers[0]
    if contains_answer(question.text, answer):
        return "the question holds the answer"
    if len(question.supporting) < 2 or answer == UNKNOWN or question.is_choice:
        return ""
    hits, words = backend.search(question.text, k), frozenset(terms(question.text))
    for hit in hits:
        if not contains_answer(f"{hit.title}. {hit.text}", answer):
            continue  # no part of it does, either
        if contains_answer(f"{hit.title}. {snippet(hit.text, words, snippet_words)}", answer):
            return "one search shows the answer"
    for number, hit in enumerate(hits if snippet_words else hits[:1], start=1):
        document = backend.get(hit.id)
        if document is not None and contains_answer(document.text, answer):
            which = "best document" if number == 1 else f"document at place {number}"
            return f"the {which} for the whole question holds the answer"
    return ""


def unreachable(question: Question, backend: SearchBackend, *, k: int) -> str:
    """Return which step of the expert's way does not work, or "" when all do.

    Args:
        question: With its plan.
        backend: Where it will be searched.
        k: Results among which each document must be.
    """
    for step in question.plan:
        if all(hit.id != step.doc for hit in backend.search(step.query, k)):
            return f"{step.query!r} does not find {step.doc!r} among {k}"
    return ""


class Soundness(TypedDict, total=False):
    """What is demanded of a sampled question, and how often to try."""

    k: Required[int]
    """Results of a search, for the proof that an expert finds its way."""
    snippet_words: Required[int]
    """Words shown of each, for the leak test."""
    accept: Callable[[Question], bool]
    """Further demands."""
    tries: int
    """How often to try; then there is no question."""


def sound_question(
    sample: Callable[[], Question | None], backend: SearchBackend, **demands: Unpack[Soundness]
) -> Question | None:
    """Return the first sampled question that an expert can answer and that gives nothing away.

    Args:
        sample: Makes a question; None when a try came to nothing.
        backend: Where it will be searched.
        demands: As ``Soundness``.
    """
    accept, k = demands.get("accept"), demands["k"]
    for _ in range(demands.get("tries", 3_000)):
        question = sample()
        if (
            question is not None
            and (accept is None or accept(question))
            and not leaks(question, backend, k=k, snippet_words=demands["snippet_words"])
            and not unreachable(question, backend, k=k)
        ):
            return question
    return None
