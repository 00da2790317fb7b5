"""One protocol for every search engine, local or remote."""

from __future__ import annotations

from typing import Protocol

from turngym.environments.search.documents import Document, Hit

MAX_RESULTS = 100
"""Most results of one query."""
REMEMBERED = 1_024
"""Latest queries whose results an engine remembers: members of a group ask the same things."""


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
