"""Search libraries used as their own documentation shows it, for `search.py`: no code of ours.

Each has ``build(place)``, which indexes ``corpus.jsonl`` of a folder there, and ``open(place)``,
which returns a function from a query to its ten best results. All return documents, except the one
that says that it returns numbers.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = 10
Ask = Callable[[str], object]

_WRITER_BYTES = 128_000_000
_FTS5 = """
SELECT d.id, d.title, d.text, f.score FROM (
  SELECT rowid, bm25(fts) AS score FROM fts WHERE fts MATCH ? ORDER BY rank LIMIT ?
) AS f JOIN documents AS d ON d.number = f.rowid ORDER BY f.score
"""


def _records(place: Path) -> Iterator[dict[str, str]]:
    with (place / "corpus.jsonl").open() as lines:
        for line in lines:
            yield json.loads(line)


class Fts5:
    """SQLite's FTS5 with the textbook query: any of the words, ranked by BM25."""

    @staticmethod
    def build(place: Path) -> Path:
        """Index the corpus."""
        file = place / "fts5.sqlite"
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE documents(number INTEGER PRIMARY KEY, id, title, text)")
        connection.executemany(
            "INSERT INTO documents(id, title, text) VALUES (?, ?, ?)",
            ((one["id"], one["title"], one["text"]) for one in _records(place)),
        )
        connection.execute(
            "CREATE VIRTUAL TABLE fts USING fts5(title, text, content='documents', "
            "content_rowid='number', tokenize='porter unicode61')"
        )
        connection.execute("INSERT INTO fts(fts) VALUES ('rebuild')")
        connection.commit()
        connection.close()
        return file

    @staticmethod
    def open(place: Path) -> Ask:
        """Open the index, one connection for each thread."""
        local = threading.local()

        def ask(text: str) -> object:
            if not hasattr(local, "connection"):
                name = f"file:{place / 'fts5.sqlite'}?mode=ro"
                local.connection = sqlite3.connect(name, uri=True, check_same_thread=False)
                weakref.finalize(threading.current_thread(), local.connection.close)
            match = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", text))
            return local.connection.execute(_FTS5, (match, RESULTS)).fetchall()

        return ask


class Tantivy:
    """Tantivy with stored documents."""

    @staticmethod
    def build(place: Path) -> Path:
        """Index the corpus."""
        import tantivy

        folder = place / "tantivy"
        folder.mkdir()
        schema = tantivy.SchemaBuilder()
        schema.add_text_field("id", stored=True, tokenizer_name="raw")
        for name in ("title", "text"):
            schema.add_text_field(name, stored=True, tokenizer_name="en_stem")
        index = tantivy.Index(schema.build(), path=str(folder))
        writer = index.writer(_WRITER_BYTES, 1)
        for one in _records(place):
            writer.add_document(tantivy.Document(**one))
        writer.commit()
        writer.wait_merging_threads()
        return folder

    @staticmethod
    def open(place: Path) -> Ask:
        """Open the index."""
        find, searcher = Tantivy._open(place)

        def ask(text: str) -> object:
            return [
                (score, one["id"][0], one["title"][0], one["text"][0])
                for score, address in find(text)
                for one in (searcher.doc(address),)
            ]

        return ask

    @staticmethod
    def _open(place: Path) -> tuple[Any, Any]:  # it has no types
        import tantivy

        index = tantivy.Index.open(str(place / "tantivy"))
        searcher = index.searcher()

        def find(text: str) -> Any:
            return searcher.search(index.parse_query(text, ["title", "text"]), RESULTS).hits

        return find, searcher


class TantivyNumbers(Tantivy):
    """The same, which stops at the numbers of the documents: less than an agent can use."""

    @staticmethod
    def build(place: Path) -> Path:
        """Share the other one's index."""
        return place / "tantivy"

    @staticmethod
    def open(place: Path) -> Ask:
        """Open the index."""
        find, _ = Tantivy._open(place)
        return find  # type: ignore[no-any-return]  # it has no types


class Bm25s:
    """bm25s with its own tokenizer and its own store of documents, both memory-mapped."""

    @staticmethod
    def build(place: Path) -> Path:
        """Index the corpus."""
        import bm25s

        folder = place / "bm25s"
        corpus = list(_records(place))
        texts = [f"{one['title']} {one['text']}" for one in corpus]
        index = bm25s.BM25()
        index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
        index.save(str(folder), corpus=corpus)
        return folder

    @staticmethod
    def open(place: Path) -> Ask:
        """Open the index."""
        import bm25s

        index = bm25s.BM25.load(str(place / "bm25s"), mmap=True, load_corpus=True)

        def ask(text: str) -> object:
            words = bm25s.tokenize(text, show_progress=False)
            return index.retrieve(words, k=RESULTS, show_progress=False, n_threads=0)

        return ask


PEERS = {
    "FTS5 alone": Fts5,
    "tantivy alone": Tantivy,
    "tantivy alone, numbers only": TantivyNumbers,
    "bm25s alone": Bm25s,
}
