"""What engines share that keep only numbers: the documents come from the database beside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from turngym.environments.search.backends.base import QueryMemory
from turngym.environments.search.backends.sqlite import SqliteBackend
from turngym.environments.search.documents import Document, Hit
from turngym.errors import ConfigError


class StoredBackend(ABC):
    """An engine that ranks document numbers. Write ``rank``.

    Args:
        database: ``documents.sqlite`` of the index.
    """

    name = "stored"

    def __init__(self, database: Path) -> None:
        self._store = SqliteBackend(database)
        self._memory = QueryMemory()
        self.num_documents = self._store.num_documents

    @abstractmethod
    def rank(self, query: str, k: int) -> Sequence[tuple[int, float]]:
        """Return number and score of the ``k`` best documents, the best first."""

    def search(self, query: str, k: int) -> list[Hit]:
        return self._memory.get(query, k, self._search)

    def get(self, doc_id: str) -> Document | None:
        return self._store.get(doc_id)

    def close(self) -> None:
        self._store.close()

    def forget(self) -> None:
        """Forget the results of earlier queries, for measurements."""
        self._memory.clear()

    def _search(self, query: str, k: int) -> list[Hit]:
        return self._store.hits(self.rank(query, min(k, self.num_documents)))


def no_argument(engine: str, argument: str) -> None:
    """Refuse what follows the colon of ``engine:argument`` where an engine takes nothing.

    Raises:
        ConfigError: There is something.
    """
    if argument:
        raise ConfigError(f"search engine '{engine}:{argument}': it takes nothing after a colon")
