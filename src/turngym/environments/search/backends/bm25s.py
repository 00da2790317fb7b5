"""bm25s: scores computed ahead of time, in memory-mapped matrices. Needs the extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turngym.environments.search.backends.sqlite import STOP_WORDS, StoredBackend, documents_of
from turngym.environments.search.documents import terms
from turngym.plugins import import_extra

_TITLE_REPEATS = 4


class Bm25sBackend(StoredBackend):
    """Searches an index that ``build`` wrote. Words as they are, titles counted four times.

    Args:
        database: ``documents.sqlite`` of the index.
        folder: The matrices.
    """

    name = "bm25s"

    def __init__(self, database: Path, folder: Path) -> None:
        super().__init__(database)
        self._index = _bm25s().BM25.load(str(folder), mmap=True, load_corpus=False)

    def rank(self, query: str, k: int) -> Sequence[tuple[int, float]]:
        """Return the best documents that hold any of the words."""
        words = list(dict.fromkeys(terms(query)))
        words = [word for word in words if word not in STOP_WORDS] or words
        words = [word for word in words if word in self._index.vocab_dict]
        if not words:
            return []
        numbers, scores = self._index.retrieve(
            [words], k=k, show_progress=False, n_threads=0, return_as="tuple"
        )
        return [
            (int(number) + 1, float(score))
            for number, score in zip(numbers[0], scores[0], strict=True)
            if score > 0
        ]


def build(database: Path, folder: Path) -> None:
    """Index every document of ``database`` in ``folder``.

    Raises:
        MissingExtraError: bm25s is not installed.
    """
    bm25s = _bm25s()
    corpus = [
        terms(document.title) * _TITLE_REPEATS + terms(document.text)
        for _, document in documents_of(database)
    ]
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    index.save(str(folder))


def _bm25s() -> Any:
    return import_extra("bm25s", "search engine 'bm25s'", "search")
