"""Several engines over one corpus, joined by the ranks of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turngym.environments.search.backends.base import MAX_RESULTS, SearchBackend
from turngym.environments.search.documents import Document, Hit
from turngym.errors import ConfigError

_RANK_OFFSET = 60
_DEPTH = 3
"""Results asked of each engine, as a multiple of what is wanted."""


class HybridBackend:
    """Ranks documents by ``sum over engines of 1 / (60 + rank)``, rank counted from 1.

    Args:
        backends: Engines over the same documents, one or more.

    Source:
        Cormack et al. 2009, "Reciprocal rank fusion outperforms Condorcet and individual rank
        learning methods", equation 1.
    """

    name = "hybrid"

    def __init__(self, backends: Sequence[SearchBackend]) -> None:
        if not backends:
            raise ConfigError("HybridBackend: wanted at least one engine")
        self._backends = tuple(backends)

    def search(self, query: str, k: int) -> list[Hit]:
        """Return the ``k`` best of all engines for ``query``; ties go to the earlier engine."""
        scores: dict[str, float] = {}
        hits: dict[str, Hit] = {}
        for backend in self._backends:
            found = backend.search(query, min(MAX_RESULTS, _DEPTH * k))
            for rank, hit in enumerate(found, start=1):
                scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (_RANK_OFFSET + rank)
                hits.setdefault(hit.id, hit)
        best = sorted(scores, key=lambda doc_id: -scores[doc_id])[:k]
        return [replace(hits[doc_id], score=scores[doc_id]) for doc_id in best]

    def get(self, doc_id: str) -> Document | None:
        return self._backends[0].get(doc_id)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
