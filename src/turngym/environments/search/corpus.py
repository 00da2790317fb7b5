"""Corpora on disk: JSON lines, Parquet, or a folder of text, Markdown and HTML files.

A source yields records from a position on, so that an interrupted build goes on where it was. What
cannot be read is a record with a problem that names file, place and reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from turngym.environments.search.documents import Document, count_words, html_to_text
from turngym.errors import ConfigError
from turngym.plugins import import_extra

Position = tuple[int, int]
"""Where to go on: a byte offset and a line number, or a row or file number twice."""
START: Position = (0, 0)

TEXT_SUFFIXES = frozenset({".txt", ".text", ".md", ".markdown", ".rst"})
HTML_SUFFIXES = frozenset({".html", ".htm", ".xhtml"})

_MAX_ID_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of a source: a document, or why there is none."""

    document: Document | None = None
    problem: str = ""
    """The reason, when there is no document."""
    where: str
    """File and place, for messages."""
    after: Position
    """Where to go on behind it."""


class Source(Protocol):
    """Where documents come from."""

    name: str
    """Without folders, for the manifest of an index."""
    licence: str = ""
    """Under which the texts may be used, where the source knows."""

    def fingerprint(self) -> str:
        """Return what changes when the contents do."""

    def size(self) -> int:
        """Return the first number of the position at the end, for progress."""

    def records(self, start: Position = START) -> Iterator[Record]:
        """Yield the records from ``start`` on."""


def open_source(path: Path) -> Source:
    """Return the corpus at ``path``, by what it looks like.

    Raises:
        ConfigError: There is nothing, or nothing that can be read.
    """
    if path.is_dir():
        return FolderSource(path)
    if not path.is_file():
        raise ConfigError(f"corpus {path}: there is no such file or folder")
    if path.suffix in (".jsonl", ".ndjson"):
        return JsonlSource(path)
    if path.suffix == ".parquet":
        return ParquetSource(path)
    raise ConfigError(f"corpus {path}: wanted a folder, a .jsonl or a .parquet file")


class _FileSource(Source):
    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path

    def fingerprint(self) -> str:
        stat = self._path.stat()
        return f"{stat.st_size} {stat.st_mtime_ns}"


class JsonlSource(_FileSource):
    """One JSON object a line: ``id`` and ``text``, and optionally ``title`` and ``meta``."""

    def size(self) -> int:
        return self._path.stat().st_size

    def records(self, start: Position = START) -> Iterator[Record]:
        offset, number = start
        with self._path.open("rb") as file:
            file.seek(offset)
            for line in file:
                offset, number = offset + len(line), number + 1
                if line.strip():
                    yield self._record(line, number, (offset, number))

    def _record(self, line: bytes, number: int, after: Position) -> Record:
        where = f"{self._path}:{number}"
        try:
            value = json.loads(line)
        except UnicodeDecodeError as error:
            return Record(problem=f"not UTF-8 ({error.reason})", where=where, after=after)
        except (ValueError, RecursionError) as error:
            return Record(problem=f"not JSON ({error})", where=where, after=after)
        return record_of(value, where, after)


class ParquetSource(_FileSource):
    """Columns ``id`` and ``text``, and optionally ``title`` and ``meta``. Needs pyarrow."""

    def size(self) -> int:
        return int(self._file().metadata.num_rows)

    def records(self, start: Position = START) -> Iterator[Record]:
        first, row = start[0], 0
        for batch in self._file().iter_batches(batch_size=1024):
            if row + batch.num_rows <= first:
                row += batch.num_rows
                continue
            for value in batch.to_pylist():
                row += 1
                if row > first:
                    yield record_of(value, f"{self._path}: row {row}", (row, row))

    def _file(self) -> Any:  # pyarrow is untyped here
        parquet = import_extra("pyarrow.parquet", f"corpus {self._path}", "search")
        try:
            file = parquet.ParquetFile(self._path)
        except (ValueError, OSError) as error:  # pyarrow's own is a ValueError
            raise ConfigError(f"corpus {self._path}: not Parquet ({error})") from error
        for column in ("id", "text"):
            if column not in file.schema_arrow.names:
                raise ConfigError(
                    f"corpus {self._path}: there is no column {column!r}; found "
                    f"{', '.join(file.schema_arrow.names)}"
                )
        return file


class FolderSource(Source):
    """A folder of text, Markdown and HTML files; the id of each is its path in the folder."""

    def __init__(self, path: Path) -> None:
        self.name = path.resolve().name
        self._path = path
        suffixes = TEXT_SUFFIXES | HTML_SUFFIXES
        self._files = sorted(
            one for one in path.rglob("*") if one.suffix.lower() in suffixes and one.is_file()
        )

    def fingerprint(self) -> str:
        return f"{len(self._files)} {sum(one.stat().st_size for one in self._files)}"

    def size(self) -> int:
        return len(self._files)

    def records(self, start: Position = START) -> Iterator[Record]:
        for number, file in enumerate(self._files[start[0] :], start=start[0] + 1):
            after = (number, number)
            data = file.read_bytes()
            try:
                text = data.decode("utf-8-sig")
            except UnicodeDecodeError:
                text = "\0"
            if "\0" in text:
                problem = "a binary document, wanted UTF-8 text"
                yield Record(problem=problem, where=str(file), after=after)
                continue
            title = ""
            if file.suffix.lower() in HTML_SUFFIXES:
                title, text = html_to_text(text)
            doc_id = file.relative_to(self._path).as_posix()
            value = {"id": doc_id, "title": title or _heading(text) or file.stem, "text": text}
            yield record_of(value, str(file), after)


def record_of(value: Any, where: str, after: Position) -> Record:
    """Return the record for one JSON value, checked.

    Args:
        value: An object with ``id`` and ``text``, and optionally ``title`` and ``meta``.
        where: File and place, for messages.
        after: Where to go on behind it.
    """
    problem = _problem(value)
    if problem:
        return Record(problem=problem, where=where, after=after)
    doc_id, title = str(value["id"]), value.get("title")
    has_title = title and title == title  # NaN, as pandas writes what is missing, is none
    document = Document(
        id=doc_id,
        title=" ".join(str(title if has_title else doc_id).split()),
        text=value["text"],
        meta=value.get("meta") or {},
    )
    return Record(document=document, where=where, after=after)


def _problem(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"wanted a JSON object, found {type(value).__name__}"
    doc_id, text, meta = value.get("id"), value.get("text"), value.get("meta")
    if not isinstance(doc_id, str | int) or isinstance(doc_id, bool) or not str(doc_id).strip():
        return f"'id' must be a text or an integer, found {doc_id!r:.60}"
    if len(str(doc_id)) > _MAX_ID_CHARS or "\n" in str(doc_id):
        return f"'id' must be one line of at most {_MAX_ID_CHARS} characters"
    if not isinstance(text, str):
        return f"'text' must be a text, found {text!r:.60}"
    if not text.strip():
        return "'text' is empty"
    if "\0" in text:
        return "a binary document, wanted text"
    if meta is not None and not isinstance(meta, Mapping):
        return f"'meta' must be an object, found {meta!r:.60}"
    try:
        json.dumps([str(doc_id), str(value.get("title")), text, meta], ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        return f"cannot be stored ({error})"
    return ""


def _heading(text: str) -> str:
    """Return the first line when it is a Markdown heading."""
    first = text.lstrip().partition("\n")[0]
    return first.lstrip("#").strip() if first.startswith("#") else ""


_MIN_WORDS, _MAX_WORDS = 20, 120
_LICENCE_FIELD = re.compile(r"^License:\s*(\S.*)$", re.MULTILINE)
_LICENCE_CHARS = 20_000


class DocumentationSource(FolderSource):
    """Passages of the text, Markdown and HTML files of a folder; ids are ``path#number``.

    Args:
        folder: Where they are.

    Raises:
        ConfigError: It is no folder, or holds no such file.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"corpus 'docs:{folder}': there is no such folder")
        super().__init__(folder)
        if not self._files:
            raise ConfigError(f"corpus 'docs:{folder}': it holds no text, Markdown or HTML file")
        self.licence = _licence(folder)

    def records(self, start: Position = START) -> Iterator[Record]:
        """Yield the passages file by file. A build goes on at a file, never within one."""
        first = start[1]  # passages of the current file that are there already
        for record in super().records((start[0], start[0])):
            done = record.after[0]
            if record.document is None:
                yield record
                continue
            title, cut = record.document.title, passages(record.document.text)
            for number, text in enumerate(cut, start=1):
                is_last = number == len(cut)
                after = (done, 0) if is_last else (done - 1, number)
                if number > first:
                    value = {"id": f"{record.document.id}#{number}", "title": title, "text": text}
                    yield record_of(value, f"{record.where}, passage {number}", after)
            first = 0


def passages(text: str) -> list[str]:
    """Return ``text`` cut at line breaks into passages of 20 to about 120 words.

    Short lines join what follows; what is left over at the end joins the passage before it.
    """
    found: list[str] = []
    current: list[str] = []
    words = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        size = count_words(line)
        if current and words >= _MIN_WORDS and words + size > _MAX_WORDS:
            found.append("\n".join(current))
            current, words = [], 0
        current.append(line.strip())
        words += size
    if current and words < _MIN_WORDS and found:
        found[-1] += "\n" + "\n".join(current)
    elif current:
        found.append("\n".join(current))
    return found


def _licence(folder: Path) -> str:
    """Return what a ``copyright`` file in the folder or above it names as licence."""
    for place in (folder, *list(folder.resolve().parents)[:2]):
        file = place / "copyright"
        if file.is_file():
            text = file.read_text("utf-8", errors="replace")[:_LICENCE_CHARS]
            names = list(dict.fromkeys(name.strip() for name in _LICENCE_FIELD.findall(text)))
            return ", ".join(names) or "see the package's copyright file"
    return ""
