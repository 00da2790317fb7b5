"""A Chrome trace as lanes of bars: what ran where, and when."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FILE = "timeline.json"

Bar = tuple[float, float, str, str]
"""Begin and length in milliseconds since the first event, name, category."""


def read_timeline(file: Path) -> dict[str, Any] | None:
    """Return the lanes of a trace; None when there is none or it cannot be read.

    Complete events (``X``), pairs (``B`` and ``E``) and the names of processes and threads are
    understood; what else a trace holds is left out.

    Returns:
        ``{"lanes": [{"name": str, "bars": [Bar, ...]}, ...], "end": milliseconds}``.

    Source:
        Trace Event Format, the JSON array and object forms.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        events = content["traceEvents"] if isinstance(content, dict) else content
        return _lanes([event for event in events if isinstance(event, dict)])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lanes(events: list[dict[str, Any]]) -> dict[str, Any]:
    names = _names(events)
    spans = list(_spans(sorted(events, key=lambda event: float(event.get("ts", 0)))))
    origin = min((begin for _, begin, _, _, _ in spans), default=0.0)
    lanes: dict[tuple[Any, Any], list[Bar]] = {}
    for place, begin, length, name, category in spans:
        bar = (round((begin - origin) / 1e3, 4), round(length / 1e3, 4), name, category)
        lanes.setdefault(place, []).append(bar)
    order = sorted(lanes, key=lambda place: (str(place[0]), _sortable(place[1])))
    return {
        "lanes": [{"name": _lane_name(names, place), "bars": lanes[place]} for place in order],
        "end": max(
            (b + length for bars in lanes.values() for b, length, _, _ in bars), default=0.0
        ),
    }


def _spans(
    events: Iterable[Mapping[str, Any]],
) -> Iterable[tuple[tuple[Any, Any], float, float, str, str]]:
    open_ones: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for event in events:
        place = (event.get("pid"), event.get("tid"))
        kind = event.get("ph")
        if kind == "X":
            yield place, float(event["ts"]), float(event.get("dur", 0)), *_labels(event)
        elif kind == "B":
            open_ones.setdefault(place, []).append(event)
        elif kind == "E" and open_ones.get(place):
            begun = open_ones[place].pop()
            begin = float(begun["ts"])
            yield place, begin, float(event["ts"]) - begin, *_labels(begun)


def _labels(event: Mapping[str, Any]) -> tuple[str, str]:
    return str(event.get("name", "")), str(event.get("cat", ""))


def _names(events: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, Any], str]:
    """Return names of threads by process and thread, and of processes by process and None."""
    names: dict[tuple[Any, Any], str] = {}
    for event in events:
        if event.get("ph") == "M" and event.get("name") in ("thread_name", "process_name"):
            thread = event.get("tid") if event["name"] == "thread_name" else None
            names[event.get("pid"), thread] = str(event.get("args", {}).get("name", ""))
    return names


def _lane_name(names: Mapping[tuple[Any, Any], str], place: tuple[Any, Any]) -> str:
    process, thread = names.get((place[0], None)), names.get(place, str(place[1]))
    return f"{process} · {thread}" if process else thread


def _sortable(thread: Any) -> tuple[bool, float, str]:
    is_number = isinstance(thread, int | float)
    return (not is_number, float(thread) if is_number else 0.0, str(thread))
