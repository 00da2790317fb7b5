"""One protocol for every search engine, local or remote, and the memory that local ones share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from turngym.environments.search.documents import Document, Hit

MAX_RESULTS = 100
"""Most results of one query."""


class SearchBackend(Protocol):
    """A corpus that can be searched. Its contents never change while it is open.

    May be used from several threads at once. Equal queries give equal results, except for live
    engines.
    """

    name: str
    """What it is, for messages, for example ``"sqlite"``."""

    def search(self, query: str, k: int) -> list[Hit]:
        """Return the ``k`` best documents, the best first; fewer when fewer match.

        Args:
            query: Any text; without a word in it nothing matches.
            k: 1 to ``MAX_RESULTS``.

        Raises:
            EnvironmentFault: A remote engine failed; the episode has no reward.
        """

    def get(self, doc_id: str) -> Document | None:
        """Return the document with this id, or None.

        Raises:
            EnvironmentFault: A remote engine failed.
        """

    def close(self) -> None:
        """Release files and connections. Safe to call twice."""


class QueryMemory:
    """Remembers the results of the latest queries: members of a group ask the same things.

    Args:
        size: Queries that are remembered.
    """

    def __init__(self, size: int = 1_024) -> None:
        self._size = size
        self._known: OrderedDict[tuple[str, int], list[Hit]] = OrderedDict()
        self._lock = Lock()

    def get(self, query: str, k: int, search: Callable[[str, int], list[Hit]]) -> list[Hit]:
        """Return what ``search(query, k)`` gives; callers must not change it."""
        key = (query, k)
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
        found = search(query, k)
        with self._lock:
            self._known[key] = found
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        return found

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()
