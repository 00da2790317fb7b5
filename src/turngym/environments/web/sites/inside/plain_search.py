"""A search engine for Haystack that keeps no index: it reads what the database holds now.

So a reset of the database resets the search, too. Every word must occur in a document, letter case
aside; filters compare the fields that an application would have indexed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from haystack import connections
from haystack.backends import BaseEngine, BaseSearchBackend, BaseSearchQuery, SearchNode
from haystack.models import SearchResult
from haystack.utils import get_model_ct_tuple

_KEYS = ("id", "django_ct", "django_id")


class Query(BaseSearchQuery):  # type: ignore[misc]  # of an untyped package
    """Tells what is searched for as JSON."""

    def build_query(self) -> str:
        leaves = list(_leaves(self.query_filter)) if self.query_filter else []
        words = [str(value) for name, value in leaves if name in ("content", "text")]
        filters = [(name, value) for name, value in leaves if name not in ("content", "text")]
        return json.dumps(
            {"words": " ".join(words).lower().split(), "filters": filters}, default=str
        )


def _leaves(node: SearchNode) -> Iterator[tuple[str, Any]]:
    for child in node.children:
        if isinstance(child, SearchNode):
            yield from _leaves(child)
            continue
        name, value = child
        text = getattr(value, "query_string", value)  # an AutoQuery and its like
        value = list(text) if name.endswith("__in") else str(text)
        yield name.removesuffix("__content"), value


class Backend(BaseSearchBackend):  # type: ignore[misc]
    """Looks through all documents."""

    def update(self, *_: object, **__: object) -> None:
        pass

    remove = clear = update

    def search(self, query_string: str, **kwargs: Any) -> dict[str, Any]:
        query = json.loads(query_string)
        result_class = kwargs.get("result_class") or SearchResult
        index = connections[self.connection_alias].get_unified_index()
        results = []
        for model in kwargs.get("models") or index.get_indexed_models():
            one = index.get_index(model)
            for found in one.read_queryset().order_by("pk"):
                fields = one.full_prepare(found)
                if not _matches(fields, query):
                    continue
                fields = {name: value for name, value in fields.items() if name not in _KEYS}
                result = result_class(*get_model_ct_tuple(found), found.pk, 0, **fields)
                result._model, result._object = model, found
                results.append(result)
        for name in reversed(kwargs.get("sort_by") or []):
            field = name.lstrip("-")
            results.sort(key=lambda one: _rank(getattr(one, field)), reverse=name[0] == "-")
        first, last = kwargs.get("start_offset", 0), kwargs.get("end_offset")
        return {"results": results[first:last], "hits": len(results)}


def _matches(fields: dict[str, Any], query: dict[str, Any]) -> bool:
    text = str(fields.get("text", "")).lower()
    if not all(word in text for word in query["words"]):
        return False
    for name, value in query["filters"]:
        field, _, how = name.partition("__")
        if field not in fields:
            continue
        have = fields[field]
        if how == "in":
            several = have if isinstance(have, list | tuple) else [have]
            fits = any(str(one) in map(str, value) for one in several)
        else:
            fits = str(value).lower() in str(have).lower()
        if not fits:
            return False
    return True


def _rank(value: Any) -> tuple[bool, Any]:
    """Order what has no value first."""
    return value is not None, value or 0


class Engine(BaseEngine):  # type: ignore[misc]
    """What a project names."""

    backend = Backend
    query = Query
