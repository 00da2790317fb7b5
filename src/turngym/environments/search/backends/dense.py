"""Search by meaning: every document a vector, compared with that of the query, all of them.

Exact, memory-mapped, one matrix product a query: good to some hundred thousand documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np

from turngym.environments.search.backends.encoder import PACKAGED, Encode, load_encoder
from turngym.environments.search.backends.stored import StoredBackend
from turngym.errors import ConfigError

VECTORS, SETTINGS = "vectors.npy", "encoder.json"
_BATCH = 64


class DenseBackend(StoredBackend):
    """Ranks by the cosine of the angle between query and document.

    Args:
        database: ``documents.sqlite`` of the index.
        vectors: Unit vectors of the documents in their order, float32 [N, D], a ``.npy`` file.
        encode: Made them, and encodes queries.
    """

    name = "dense"

    def __init__(self, database: Path, vectors: Path, encode: Encode) -> None:
        super().__init__(database)
        self._vectors_ND = np.load(vectors, mmap_mode="r")
        self._encode = encode
        if self._vectors_ND.ndim != 2 or len(self._vectors_ND) != self.num_documents:
            raise ConfigError(
                f"{vectors}: shape {self._vectors_ND.shape} does not fit "
                f"{self.num_documents} documents; build the engine 'dense' again"
            )

    def rank(self, query: str, k: int) -> Sequence[tuple[int, float]]:
        """Return the nearest documents, ties in the order of the documents."""
        if not query.strip():
            return []
        scores_N = self._vectors_ND @ self._encode([query])[0]
        nearest = np.argpartition(-scores_N, min(k, len(scores_N) - 1))[:k]
        order = nearest[np.lexsort((nearest, -scores_N[nearest]))]
        return [(int(place) + 1, float(scores_N[place])) for place in order]


def build(database: Path, folder: Path, argument: str = "") -> None:
    """Encode every document of ``database`` into ``folder``.

    Args:
        database: Of the index.
        folder: Does not exist yet.
        argument: Which encoder, see ``load_encoder``; "" for the packaged MiniLM.

    Raises:
        ConfigError: There is no such encoder.
        MissingExtraError: It is not installed.
    """
    from turngym.environments.search.index import documents_of

    encode = _encoder(argument or PACKAGED)
    texts = (f"{one.title}. {one.text}" for _, one in documents_of(database))
    vectors_ND = np.concatenate([encode(batch) for batch in _batches(texts)])
    folder.mkdir(parents=True)
    np.save(folder / VECTORS, vectors_ND)
    (folder / SETTINGS).write_text(json.dumps({"encoder": argument or PACKAGED}), "utf-8")


def open_built(database: Path, folder: Path) -> DenseBackend:
    """Return the backend over what ``build`` wrote."""
    settings = json.loads((folder / SETTINGS).read_text("utf-8"))
    return DenseBackend(database, folder / VECTORS, _encoder(settings["encoder"]))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    waiting = iter(texts)
    while batch := list(islice(waiting, _BATCH)):
        yield batch


_encoder = lru_cache(maxsize=2)(load_encoder)
