"""Tantivy, for large corpora: memory-mapped, and fast whatever the query. Needs the extra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from turngym.environments.search.backends.sqlite import STOP_WORDS, StoredBackend, documents_of
from turngym.environments.search.documents import terms
from turngym.plugins import import_extra

_TITLE_WEIGHT = 4.0
_WRITER_BYTES = 128_000_000
_MAX_TERMS = 32


class TantivyBackend(StoredBackend):
    """Searches an index that ``build`` wrote. BM25, words by their stems, titles count fourfold.

    Args:
        database: ``documents.sqlite`` of the index.
        folder: Tantivy's own files.
    """

    name = "tantivy"

    def __init__(self, database: Path, folder: Path) -> None:
        super().__init__(database)
        tantivy = import_extra("tantivy", "search engine 'tantivy'", "search")
        self._index = tantivy.Index.open(str(folder))
        self._searcher = self._index.searcher()
        self._fields = {"title": _TITLE_WEIGHT, "text": 1.0}

    def rank(self, query: str, k: int) -> Sequence[tuple[int, float]]:
        """Return the best documents that hold any of the words, those with more of them first."""
        words = list(dict.fromkeys(terms(query)))[:_MAX_TERMS]
        words = [word for word in words if word not in STOP_WORDS] or words
        if not words:
            return []
        parsed = self._index.parse_query(
            _joined(words), ["title", "text"], field_boosts=self._fields
        )
        found = self._searcher.search(parsed, k, count=False).hits
        numbers = self._searcher.fast_field_values("number", [address for _, address in found])
        return [(number, score) for number, (score, _) in zip(numbers, found, strict=True)]


def build(database: Path, folder: Path) -> None:
    """Index every document of ``database`` in ``folder``, which does not exist yet.

    Raises:
        MissingExtraError: Tantivy is not installed.
    """
    tantivy = import_extra("tantivy", "search engine 'tantivy'", "search")
    schema = tantivy.SchemaBuilder()
    schema.add_integer_field("number", stored=True, fast=True)
    for name in ("title", "text"):
        schema.add_text_field(name, stored=False, tokenizer_name="en_stem", index_option="freq")
    folder.mkdir(parents=True)
    index = tantivy.Index(schema.build(), path=str(folder))
    writer = index.writer(_WRITER_BYTES, 1)
    for number, document in documents_of(database):
        title, text = (_joined(terms(one)) for one in (document.title, document.text))
        writer.add_document(tantivy.Document(number=number, title=title, text=text))
    writer.commit()
    writer.wait_merging_threads()


def _joined(words: Sequence[str]) -> str:
    """Return one text of ``words``, their marks as numbers: tantivy would part them there."""
    return re.sub(r"[^\w ]", lambda mark: f"{ord(mark[0]):x}", " ".join(words))
