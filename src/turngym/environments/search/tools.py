"""What an agent can do in a search environment, in words and as JSON tool calls."""

from __future__ import annotations

from typing import Any

from turngym.environments.core.actions import Commands, JsonTools, function_tool
from turngym.environments.search.backends.base import MAX_RESULTS
from turngym.environments.search.scoring import UNKNOWN

COMMANDS = Commands(
    {
        "search": "search {query...}",
        "open_page": "open {doc...} page {page:int}",
        "open": "open {doc...}",
        "find": "find {text...} in {doc...}",
        "answer": "answer {text...}",
    },
    help={
        "search": "finds documents",
        "open": "reads a result, by its number, id or title",
        "open_page": "reads a further page of it",
        "find": "shows where a result holds a text",
        "answer": f"ends the episode; '{UNKNOWN}' where the documents do not tell",
    },
    keep_case=True,
)


def search_tools(max_results: int = MAX_RESULTS) -> JsonTools:
    """Return the same actions as JSON tool calls, with optional ``k`` and ``page``."""
    text = {"type": "string"}
    doc = {"type": ["string", "integer"], "description": "number, id or title of a result"}
    tools: dict[str, tuple[str, dict[str, Any], list[str]]] = {
        "search": (
            "Find documents.",
            {"query": text, "k": {"type": "integer", "minimum": 1, "maximum": max_results}},
            ["query"],
        ),
        "open": (
            "Read a page of a result.",
            {"doc": doc, "page": {"type": "integer", "minimum": 1}},
            ["doc"],
        ),
        "find": ("Show where a result holds a text.", {"doc": doc, "text": text}, ["doc", "text"]),
        "answer": (
            f"End the episode with an answer; '{UNKNOWN}' where the documents do not tell.",
            {"text": text},
            ["text"],
        ),
    }
    return JsonTools([function_tool(name, *parts) for name, parts in tools.items()])
