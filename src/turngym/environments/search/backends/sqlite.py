"""Full-text search with what Python brings along: SQLite's FTS5, in memory or in one file.

Ranking is BM25 with the title counting four times. A query first asks for documents that hold all
its words; when they are fewer than wanted, the rest comes from documents that hold some. FTS5 ranks
every match before it returns the best, so the second step leaves out the most frequent words: the
time of a query is bounded, whatever the size of the corpus.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turngym.environments.search.backends.base import REMEMBERED
from turngym.environments.search.documents import SNIPPET_SOURCE_CHARS, Document, Hit, terms
from turngym.errors import ConfigError

DOCUMENTS_SCHEMA = """
CREATE TABLE documents(
  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL,
  meta TEXT NOT NULL
)
"""
FTS_SCHEMA = """
CREATE VIRTUAL TABLE fts USING fts5(
  title, text, content='documents', content_rowid='number',
  tokenize="porter unicode61 categories 'L* N* Co M*'"
)
"""

_RESULT = f"id, title, substr(text, 1, {SNIPPET_SOURCE_CHARS})"
_RANKED = f"""
SELECT {_RESULT}, -f.score FROM (
  SELECT rowid, bm25(fts, 4.0, 1.0) AS score FROM fts WHERE fts MATCH ?
  ORDER BY score, rowid LIMIT ?
) AS f JOIN documents AS d ON d.number = f.rowid ORDER BY f.score, f.rowid
"""
_SCORED = "SELECT rowid, bm25(fts, 4.0, 1.0) FROM fts WHERE fts MATCH ?"
_MAX_TERMS = 32
"""Words of a query that count; the rest is ignored."""
_MAX_POSTINGS = 20_000
"""Matches that the second step of a query may rank."""
_MANY_POSTINGS = 150
"""From so many on it pays to rank by what is known of each word."""
_KEPT_WORDS = 256
"""Words whose scores are kept, each 16 bytes a document that holds it."""
_MMAP_BYTES = 1 << 31

STOP_WORDS = frozenset(
    (
        "a", "an", "and", "are", "as", "at", "be", "by", "did", "do", "does", "for", "from",
        "had", "has", "have", "how", "in", "is", "it", "its", "of", "on", "or", "that", "the",
        "this", "to", "was", "were", "what", "when", "where", "which", "who", "whom", "whose",
        "why", "will", "with",
    )
)  # fmt: skip


class SqliteBackend:
    """Searches the index in a file that ``build_index`` wrote, or one of its own in memory.

    Args:
        path: The file, read only and memory-mapped; each thread has its own connection.
    """

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        need_fts5()
        if not path.is_file():
            raise ConfigError(f"search index {path}: there is no such file")
        try:
            self._setup(f"{path.absolute().as_uri()}?mode=ro&immutable=1", shared=None)
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"search index {path}: cannot be read ({error}); build it again with --fresh"
            ) from error

    @classmethod
    def in_memory(cls, documents: Iterable[Document]) -> SqliteBackend:
        """Return a backend over ``documents``, indexed in memory.

        Raises:
            ConfigError: Two documents have the same id.
        """
        need_fts5()
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        with ExitStack() as undo:
            undo.callback(connection.close)
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            connection.execute(DOCUMENTS_SCHEMA)
            insert_documents(connection, documents)
            connection.execute(FTS_SCHEMA)
            connection.execute("INSERT INTO fts(fts) VALUES ('rebuild')")
            connection.execute("COMMIT")
            self = cls.__new__(cls)
            self._setup("", shared=connection)
            undo.pop_all()
        return self

    def _setup(self, uri: str, *, shared: sqlite3.Connection | None) -> None:
        self._uri = uri
        self._shared = shared
        self._local = threading.local()
        self._lock = threading.Lock()
        self._found = lru_cache(maxsize=REMEMBERED)(self._search)
        self._open_connections = [] if shared is None else [shared]
        self._closer = weakref.finalize(self, _close_all, self._open_connections)
        self._parts = lru_cache(maxsize=_KEPT_WORDS)(self._score)
        self._frequency = lru_cache(maxsize=65_536)(self._count)
        self.num_documents = int(self._rows("SELECT count(*) FROM documents", ())[0][0])

    def search(self, query: str, k: int) -> list[Hit]:
        """Return the ``k`` best documents for ``query``; see the head of the module."""
        return self._found(query, k)

    def get(self, doc_id: str) -> Document | None:
        rows = self._rows("SELECT id, title, text, meta FROM documents WHERE id = ?", (doc_id,))
        return _document(rows[0]) if rows else None

    def hits(self, ranked: Sequence[tuple[int, float]]) -> list[Hit]:
        """Return the documents with these numbers as results, each with its score; all exist."""
        marks = ",".join("?" * len(ranked))
        query = f"SELECT number, {_RESULT} FROM documents WHERE number IN ({marks})"
        rows = self._rows(query, tuple([number for number, _ in ranked]))
        found = {row[0]: dict(zip(("id", "title", "text"), row[1:], strict=True)) for row in rows}
        return [Hit(**found[number], score=score) for number, score in ranked]

    def by_number(self, number: int) -> Document:
        """Return the document with this number, which exists."""
        row = self._rows("SELECT id, title, text, meta FROM documents WHERE number = ?", (number,))
        return _document(row[0])

    def close(self) -> None:
        self._closer()

    def forget(self) -> None:
        """Forget the results of earlier queries, for measurements."""
        self._found.cache_clear()

    def _search(self, query: str, k: int) -> list[Hit]:
        words = list(dict.fromkeys(terms(query)))[:_MAX_TERMS]
        if not words:
            return []
        words = [word for word in words if word not in STOP_WORDS] or words
        hits = self._ranked(" ".join(map(_quoted, words)), k)
        if len(hits) < k and len(words) > 1:
            known = {hit.id for hit in hits}
            some = self._some(self._rare(words), k)
            hits += [hit for hit in some if hit.id not in known][: k - len(hits)]
        return hits

    def _rare(self, words: list[str]) -> list[str]:
        """Return the rarest of ``words`` that together match few enough documents; at least one."""
        if self.num_documents * len(words) <= _MAX_POSTINGS:
            return words
        kept: list[str] = []
        postings = 0
        for word in sorted(words, key=lambda word: (self._frequency(word), word)):
            postings += self._frequency(word)
            if kept and postings > _MAX_POSTINGS:
                break
            kept.append(word)
        return kept

    def _some(self, words: list[str], k: int) -> list[Hit]:
        """Return the ``k`` best documents that hold some of ``words``."""
        is_small = self.num_documents * len(words) < _MANY_POSTINGS  # without a count
        if is_small or sum(map(self._frequency, words)) < _MANY_POSTINGS:
            return self._ranked(" OR ".join(map(_quoted, words)), k)
        return self.hits(self._best(words, k))

    def _best(self, words: list[str], k: int) -> list[tuple[int, float]]:
        """Return number and score of those documents.

        BM25 is a sum over words, so the parts of a frequent word serve all queries that hold it.
        They are added in the order in which ``bm25`` of a query for all words would add them.
        """
        found = [self._parts(word) for word in words]
        numbers, places = np.unique(np.concatenate([of for of, _ in found]), return_inverse=True)
        scores = np.bincount(places, weights=np.concatenate([part for _, part in found]))
        best = np.argsort(-scores, kind="stable")[:k]
        return [(int(numbers[at]), float(scores[at])) for at in best]

    def _score(self, word: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the numbers of the documents that hold ``word``, and what it adds to each."""
        rows = self._rows(_SCORED, (_quoted(word),))
        return np.array([n for n, _ in rows], np.int64), np.array([-s for _, s in rows], np.float64)

    def _count(self, word: str) -> int:
        """Return the number of documents that hold ``word``."""
        rows = self._rows("SELECT count(*) FROM fts WHERE fts MATCH ?", (_quoted(word),))
        return int(rows[0][0])

    def _ranked(self, match: str, k: int) -> list[Hit]:
        return [
            Hit(id=doc_id, title=title, text=text, score=score)
            for doc_id, title, text, score in self._rows(_RANKED, (match, k))
        ]

    def _rows(self, statement: str, values: tuple[str | int, ...]) -> list[Any]:  # as declared
        if self._shared is not None:
            with self._lock:  # one connection serves all threads
                return self._shared.execute(statement, values).fetchall()
        return self._connection().execute(statement, values).fetchall()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
            connection.execute(f"PRAGMA mmap_size={_MMAP_BYTES}")
            self._local.connection = connection
            with self._lock:
                self._open_connections.append(connection)
        return connection


def _document(row: Sequence[str]) -> Document:
    doc_id, title, text, meta = row
    return Document(id=doc_id, title=title, text=text, meta=json.loads(meta))


def documents_of(database: Path) -> Iterator[tuple[int, Document]]:
    """Yield number and document of everything in a database, in order."""
    query = "SELECT number, id, title, text, meta FROM documents ORDER BY number"
    address = f"{database.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        for number, *row in connection.execute(query):
            yield number, _document(row)


def insert_documents(connection: sqlite3.Connection, documents: Iterable[Document]) -> None:
    """Insert ``documents`` through ``connection``, without indexing their words.

    Raises:
        ConfigError: One has an id that is there already.
    """
    for document in documents:
        meta = json.dumps(dict(document.meta), ensure_ascii=False)
        try:
            connection.execute(
                "INSERT INTO documents(id, title, text, meta) VALUES (?, ?, ?, ?)",
                (document.id, document.title, document.text, meta),
            )
        except sqlite3.IntegrityError:
            raise ConfigError(f"duplicate document id {document.id!r}") from None


def need_fts5() -> None:
    """Make sure that SQLite was compiled with FTS5.

    Raises:
        ConfigError: It was not.
    """
    if not _has_fts5():
        raise ConfigError(
            f"SQLite {sqlite3.sqlite_version} of this Python was compiled without FTS5; use a "
            "Python with a newer SQLite"
        )


@lru_cache(maxsize=1)
def _has_fts5() -> bool:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
        except sqlite3.OperationalError:
            return False
    return True


def _quoted(word: str) -> str:
    return f'"{word}"'


def _close_all(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


class StoredBackend(SqliteBackend, ABC):
    """An engine that ranks the numbers of the documents in a file. Write ``rank``."""

    name = "stored"

    @abstractmethod
    def rank(self, query: str, k: int) -> Sequence[tuple[int, float]]:
        """Return number and score of the ``k`` best documents, the best first."""

    def _search(self, query: str, k: int) -> list[Hit]:
        return self.hits(self.rank(query, min(k, self.num_documents)))
