"""A question with its exact answers, the documents that give it, and how an expert finds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Required, TypedDict

from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.documents import snippet, terms
from turngym.errors import ConfigError
from turngym.tasks.base import SPLITS, Split, split_of
from turngym.tasks.scorers.answers import UNKNOWN, contains_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One step of an expert: a query, and the document among its results that is needed."""

    query: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, and everything that is needed to judge and to solve it."""

    text: str
    answers: tuple[str, ...]
    """Right answers; the first is the canonical one."""
    kind: str
    """Which generator made it, for example ``"2hop"``."""
    plan: tuple[Lookup, ...]
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
    def supporting(self) -> tuple[str, ...]:
        """Ids of the documents that give the answer, each once."""
        return tuple(dict.fromkeys(step.doc for step in self.plan))

    @property
    def is_answerable(self) -> bool:
        """False when the right answer is that the corpus does not say."""
        return self.answers != (UNKNOWN,)

    @property
    def key(self) -> str:
        """Everything that makes this question this one."""
        return f"{self.text} -> {self.answers[0]} by {self.facts}"

    @property
    def split(self) -> Split:
        """The split that the question belongs to, by its own content unless it is fixed."""
        if self.fixed_split is not None:
            return self.fixed_split
        return split_of(self.key)

    def to_json(self) -> dict[str, Any]:
        """Return the question as JSON values."""
        return asdict(self)


def question_from_json(value: Any, where: str) -> Question:
    """Return the question that ``to_json`` gave, or one that a person wrote.

    Args:
        value: ``text`` and ``answers`` are needed; ``kind``, ``plan`` (a list of ``query`` and
            ``doc``), ``mentions`` and ``split`` are not.
        where: File and line, for messages.

    Raises:
        ConfigError: Something is missing or of the wrong type.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: wanted a JSON object, found {type(value).__name__}")
    answers = value.get("answers", [value["answer"]] if "answer" in value else None)
    if not isinstance(value.get("text"), str) or not value["text"].strip():
        raise ConfigError(f"{where}: 'text' must be a question")
    if not isinstance(answers, list) or not answers or not all(map(_is_text, answers)):
        raise ConfigError(f"{where}: 'answers' must be a list of texts with at least one")
    steps = value.get("plan", [])
    if not isinstance(steps, list) or not all(
        isinstance(step, Mapping) and _is_text(step.get("query")) and _is_text(step.get("doc"))
        for step in steps
    ):
        raise ConfigError(f"{where}: 'plan' must be a list of objects with 'query' and 'doc'")
    split = value.get("split", value.get("fixed_split"))
    if split is not None and split not in SPLITS:
        raise ConfigError(f"{where}: 'split' must be one of {', '.join(SPLITS)}, found {split!r}")
    return Question(
        text=value["text"].strip(),
        answers=tuple(answers),
        kind=str(value.get("kind", "question")),
        plan=tuple(Lookup(query=step["query"], doc=step["doc"]) for step in steps),
        mentions=tuple(map(str, value.get("mentions", ()))),
        is_choice=bool(value.get("is_choice", False)),
        fixed_split=split,
        facts=str(value.get("facts", "")),
    )


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a JSONL file.

    Raises:
        ConfigError: The file is missing, empty or broken; the message names the line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"questions {path}: cannot be read ({error})") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: not JSON ({error})") from error
        found.append(question_from_json(value, where))
    if not found:
        raise ConfigError(f"questions {path}: there are none")
    return found


def write_questions(path: Path, questions: Iterable[Question]) -> int:
    """Write ``questions`` as JSON lines and return how many there were."""
    lines = [json.dumps(question.to_json(), ensure_ascii=False) + "\n" for question in questions]
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
    if len(question.supporting) < 2 or not question.is_answerable or question.is_choice:
        return ""
    hits, words = backend.search(question.text, k), frozenset(terms(question.text))
    for hit in hits:
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
    """Results of a search."""
    snippet_words: Required[int]
    """Words shown of each result."""
    accept: Callable[[Question], bool]
    """Further demands."""
    tries: int


def sound_question(
    sample: Callable[[], Question | None],
    backend: SearchBackend,
    *,
    k: int,
    snippet_words: int,
    accept: Callable[[Question], bool] = lambda _: True,
    tries: int = 3_000,
) -> Question | None:
    """Return the first sampled question that an expert can answer and that gives nothing away.

    Args:
        sample: Makes a question; None when a try came to nothing.
        backend: Where it will be searched.
        k: Results of a search, for the proof that an expert finds its way.
        snippet_words: Words shown of each, for the leak test.
        accept: Further demands.
        tries: How often to try; then the answer is None.
    """
    for _ in range(tries):
        question = sample()
        if (
            question is not None
            and accept(question)
            and not leaks(question, backend, k=k, snippet_words=snippet_words)
            and not unreachable(question, backend, k=k)
        ):
            return question
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
