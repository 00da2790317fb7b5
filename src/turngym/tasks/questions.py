"""Questions and answers of a file: JSON lines, CSV or Parquet, with a scorer.

# capitals.toml
questions = "capitals.jsonl"
question = "What is the capital of {country}?"
answer = "capital"
scorer.type = "exact"
"""

from __future__ import annotations

import csv
import json
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import Field

from turngym.config import StrictModel, load_config
from turngym.errors import ConfigError, require_known, unknown_name
from turngym.plugins import import_extra
from turngym.tasks.base import SPLITS, Split
from turngym.tasks.problem import AnswerProblem, JudgeResult, World
from turngym.tasks.scorers.answers import AnswerScorer, AnyScorer, Exact
from turngym.tasks.sets import ListedSet


class QuestionFile(StrictModel):
    """Where questions are, and how answers are scored."""

    questions: str
    """File beside this one: JSON lines (``.jsonl``), ``.csv`` or ``.parquet``."""
    question: str = "question"
    """A column, or a text with columns in braces."""
    answer: str = "answer"
    """Column with the reference, or a list of them."""
    expert: str | None = None
    """Column with an answer that is right; by default the first reference."""
    id: str | None = None
    """Column with the id; by default the number of the row, from 1."""
    split: str | None = None
    """Column that says ``train`` or ``test``; by default the question decides."""
    one_in: int = Field(default=5, ge=2)
    """One question in so many is for test."""
    scorer: AnyScorer = Exact()


@dataclass(frozen=True, kw_only=True)
class Question(AnswerProblem):
    """One row."""

    prompt: str
    references: tuple[str, ...]
    scorer: AnswerScorer
    right: str
    """An answer that is right."""

    @property
    def truth(self) -> str | None:  # type: ignore[override]
        """The answer, where a reference is one."""
        return self.references[0] if self.scorer.is_answer else None

    async def judge(self, world: World) -> JudgeResult:
        """Score the answer."""
        return self.scorer.score(world.answer, self.references)

    def expert(self) -> list[str]:
        """Return the right answer."""
        return [self.right]


def read_questions(path: Path | str) -> ListedSet[Question]:
    """Return the questions that a TOML file describes.

    Raises:
        ConfigError: A setting or a row is wrong; the message says where.
    """
    path = Path(path).expanduser()
    try:
        return _listed(load_config(QuestionFile, [path]), path)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if str(path.parent) in text else f"{path}: {text}") from None


def _listed(settings: QuestionFile, path: Path) -> ListedSet[Question]:
    file = path.parent / settings.questions
    listed: list[tuple[str, Question]] = []
    splits: dict[str, Split] = {}
    for number, (where, row) in enumerate(read_rows(file), start=1):
        id = str(_column(row, settings.id, where)) if settings.id else str(number)
        listed.append((id, _question(row, settings, where)))
        if settings.split:
            split = _column(row, settings.split, where)
            require_known(f"split in {where}", str(split), SPLITS)
            splits[id] = split
    name = re.sub(r"[^\w.-]+", "-", path.stem)
    return ListedSet(name, listed, where=str(file), one_in=settings.one_in, splits=splits)


def _question(row: Mapping[str, Any], settings: QuestionFile, where: str) -> Question:
    if "{" in settings.question:
        try:
            names = [name for _, name, _, _ in string.Formatter().parse(settings.question) if name]
            prompt = settings.question.format(**{name: _column(row, name, where) for name in names})
        except ConfigError:
            raise
        except (ValueError, LookupError) as error:
            raise ConfigError(
                f"question: {error}; wanted columns as {{name}}, a brace as {{{{"
            ) from None
    else:
        prompt = str(_column(row, settings.question, where))
    found = _column(row, settings.answer, where)
    given = found if isinstance(found, list) else [found]
    if settings.scorer.is_answer and any(isinstance(one, dict | list | bytes) for one in given):
        raise ConfigError(
            f"{where}: column {settings.answer!r}: wanted a text, a number or a list of them, got "
            f"{found!r:.60}"
        )
    references = tuple(_text(one, settings.answer, where) for one in given)
    if settings.expert is None and not settings.scorer.is_answer:
        raise ConfigError(
            f"{where}: scorer {settings.scorer.type!r} needs a right answer of each row too; name "
            "its column with expert = ..."
        )
    expert = _column(row, settings.expert, where) if settings.expert else given[0]
    right = _text(expert, settings.expert or settings.answer, where)
    try:
        for one in references:
            settings.scorer.check(one)
        score = settings.scorer.score(right, references).score
    except ConfigError as error:
        raise ConfigError(f"{where}: {settings.answer}: {error}") from None
    if score != 1:
        raise ConfigError(f"{where}: the expert's answer {right[:40]!r} is not right by the scorer")
    return Question(prompt=prompt, references=references, scorer=settings.scorer, right=right)


def _text(value: Any, name: str, where: str) -> str:  # of a row
    if isinstance(value, int | float | dict | list):
        return json.dumps(_filled(value, name, where), ensure_ascii=False, default=str)
    return str(_filled(value, name, where))


def _column(row: Mapping[str, Any], name: str, where: str) -> Any:  # of a row
    if name not in row:
        raise unknown_name("column", name, row, hint=f"{where} has no value for it.")
    return _filled(row[name], name, where)


def _filled(value: Any, name: str, where: str) -> Any:  # of a row
    if value is None or value == [] or value != value:  # NaN, as pandas writes what is missing
        raise ConfigError(f"{where}: column {name!r} is empty")
    return value


def read_rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where it stands and what it holds of each row of a JSON lines, CSV or Parquet file.

    Raises:
        ConfigError: The file cannot be read, or a line is no object.
    """
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file")
    for number, row in enumerate(_rows(file), start=1):
        try:
            if isinstance(row, str):
                row = json.loads(row)
                json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except ValueError as error:
            raise ConfigError(f"{file}, row {number}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{file}, row {number}: wanted an object, got {row!r:.40}")
        if None in row:  # as csv has it
            raise ConfigError(
                f"{file}, row {number}: more values than columns; quote one with commas"
            )
        yield f"{file}, row {number}", row


def read_texts(file: Path) -> Iterator[tuple[str, str]]:
    """Return where it stands and all text of each row of a file, as ``read_rows``."""
    rows = read_rows(file)
    first = list(islice(rows, 1))  # a file that cannot be read is refused now
    return ((where, " ".join(_texts(row))) for where, row in chain(first, rows))


def _texts(value: Any) -> Iterator[str]:  # of a row
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)


def _rows(file: Path) -> Iterator[Any]:  # objects, or lines of JSON
    if file.suffix not in (".csv", ".jsonl", ".parquet"):
        raise ConfigError(f"{file}: wanted a file that ends in .jsonl, .csv or .parquet")
    if file.suffix == ".parquet":
        parquet = import_extra("pyarrow.parquet", f"{file.name}", "search")
    try:
        if file.suffix == ".parquet":
            yield from parquet.read_table(file).to_pylist()
            return
        with file.open(encoding="utf-8-sig", newline="") as lines:
            if file.suffix == ".csv":
                reader = csv.DictReader(lines)
                names = list(reader.fieldnames or ())
                if twice := [name for name in names if name and names.count(name) > 1]:
                    raise ValueError(f"column {twice[0]!r} is there twice")
                yield from reader
            else:
                yield from (line for line in lines if line.strip())
    except (ValueError, csv.Error) as error:  # not UTF-8, no Parquet, a bad field
        raise ConfigError(f"{file}: cannot be read: {error}") from None
