"""A search engine that the user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal

from turngym.config import load_config
from turngym.custom import CustomPart
from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.documents import Document, Hit


class CustomEngine(CustomPart):
    """Names a class, made once per process as ``Class(**settings)``, a ``SearchBackend``."""

    part: ClassVar[str] = "custom search engine"
    given: ClassVar[int] = 0

    type: Literal["custom"]


class OwnBackend:
    """Asks the user's engine; a wrong thing that it returns is named.

    Args:
        config: Names the engine.

    Raises:
        ConfigError: It is not there, or lacks a method.
    """

    def __init__(self, config: CustomEngine) -> None:
        self.name = config.function
        self._config = config
        self._made: SearchBackend = config.made(SearchBackend)

    def search(self, query: str, k: int) -> list[Hit]:
        """Return its best ``k`` documents for ``query``."""
        found: list[Hit] = self._config.checked(self._made.search(query, k), list, "search")
        return [self._config.checked(hit, Hit, "search, in its list,") for hit in found[:k]]

    def get(self, doc_id: str) -> Document | None:
        """Return its document of this id."""
        found = self._made.get(doc_id)
        if found is not None:
            self._config.checked(found, Document, "get")
        return found

    def close(self) -> None:
        """Close it."""
        self._made.close()


def own_backend(settings: Mapping[str, Any]) -> OwnBackend:
    """Return the engine that ``settings`` name; equal settings name the same one.

    Raises:
        ConfigError: A setting is unknown, or the engine cannot be had.
    """
    return _opened(load_config(CustomEngine, [settings]).model_dump_json())


@lru_cache(maxsize=4)
def _opened(settings: str) -> OwnBackend:
    return OwnBackend(CustomEngine.model_validate_json(settings))
