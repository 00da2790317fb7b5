"""The page, for a server that is asked for episodes or with everything inside; text of tokens."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from turngym.reports.viewer.library import COLUMNS, Library, read_about, read_metrics_of

TIMELINE = "timeline.json"

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


SCRIPTS = (
    "dom.js",
    "source.js",
    "facts.js",
    "list.js",
    "tokens.js",
    "episode.js",
    "compare.js",
    "curves.js",
    "timeline.js",
    "about.js",
    "main.js",
)
CHUNK = 64
"""Episodes that a self-contained page unpacks at once."""


def describe(library: Library) -> dict[str, Any]:
    """Return what the page shows around the episodes."""
    return {
        "name": library.run.resolve().name,
        "columns": COLUMNS,
        "sources": library.labels(),
        "about": read_about(library.run),
        "curves": read_metrics_of(library.run),
        "timeline": read_timeline(library.run / TIMELINE),  # of a file: none
    }


def served_page(title: str) -> tuple[bytes, str]:
    """Return the page that asks its server, and its content security policy."""
    head, policy = _head(title, "connect-src 'self'; img-src 'self'")
    return (head + "</body></html>\n").encode(), policy


def write_page(library: Library, path: Path) -> None:
    """Write one file that shows everything and needs nothing else.

    Episodes are packed in chunks, which the browser unpacks when they are opened.

    Args:
        library: Scanned.
        path: Replaced only when all of it is written.
    """
    head, policy = _head(f"{library.run.resolve().name} · turngym", "img-src data:")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            _write(file, library, head.replace("<title>", meta + "\n<title>", 1))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write(file: IO[str], library: Library, head: str) -> None:
    start, script, rest = head.partition("<script")
    tokens = TokenTexts(library.root)
    used: set[int] = set()
    pictures: set[str] = set()
    chunks = [
        _packed(_episodes(library, first, used, pictures))
        for first in range(0, len(library.rows), CHUNK)
    ]
    run = {
        **describe(library),
        "chunk": CHUNK,
        "rows": library.rows,
        "broken": library.broken,
        "tokens": tokens.of(used),
    }
    file.write(f"{start}{_data('run', _packed(run))}{script}{rest}")
    for number, chunk in enumerate(chunks):
        file.write(_data(f"chunk-{number}", chunk))
    for name in sorted(pictures):
        found = library.picture(name)
        if found is not None:
            content = base64.b64encode(found.read_bytes()).decode()
            file.write(_data(f"picture-{name.removesuffix('.png')}", content))
    file.write("</body></html>\n")


def _episodes(
    library: Library, first: int, used: set[int], pictures: set[str]
) -> list[dict[str, Any]]:
    last = min(first + CHUNK, len(library.rows))
    episodes = [library.episode(number) for number in range(first, last)]
    for episode in episodes:
        used |= token_ids(episode)
        pictures.update(_pictures(episode))
    return episodes


def _pictures(episode: dict[str, Any]) -> Iterator[str]:
    for turn in episode["turns"]:
        if turn.get("picture"):
            yield turn["picture"]
    if episode.get("final_picture"):
        yield episode["final_picture"]


def _packed(content: Any) -> str:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(errors="replace"), 6, mtime=0)).decode()


def _data(name: str, content: str) -> str:
    """Return data that no browser runs, reads as HTML or asks anybody about: base64 in a script."""
    return f'<script type="application/octet-stream" id="{html.escape(name)}">{content}</script>\n'


def _head(title: str, more_policy: str) -> tuple[str, str]:
    """Return the page up to the end of its script, and the policy that lets only it run."""
    assets = files("turngym.reports.viewer") / "assets"
    style = (assets / "viewer.css").read_text(encoding="utf-8")
    parts = [(assets / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = "(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();"
    frame = (assets / "index.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        f"base-uri 'none'; form-action 'none'; {more_policy}"
    )
    page = frame.replace("{{title}}", html.escape(title))
    page = page.replace("{{style}}", style).replace("{{script}}", script)
    return page, policy


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_NAME = "tokenizer.json"


class TokenTexts:
    """Decodes single tokens; without a tokenizer, or what reads it, it knows none.

    Args:
        root: Folder of the run: an evaluation keeps ``tokenizer.json``, a training run has it in
            its checkpoints.
    """

    def __init__(self, root: Path) -> None:
        self._tokenizer: Any = _load(root)  # tokenizers.Tokenizer, which has no types
        self._known: dict[int, str] = {}

    def of(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of each id that has one; half a character is a replacement mark."""
        if self._tokenizer is None:
            return {}
        found: dict[int, str] = {}
        for token in set(ids):
            if token not in self._known:
                self._known[token] = self._tokenizer.decode([token], skip_special_tokens=False)
            found[token] = self._known[token]
        return found


def token_ids(episode: dict[str, Any]) -> set[int]:
    """Return all token ids of an episode as JSON values."""
    return {
        token
        for turn in episode["turns"]
        for span in turn.get("spans") or ()
        for token in span["token_ids"]
    }


def _load(root: Path) -> Any:
    files = [root / _NAME, *sorted(root.glob(f"checkpoints/*/model/{_NAME}"), reverse=True)]
    files += sorted(root.glob(f"*/checkpoints/*/model/{_NAME}"))
    for file in files:
        if file.is_file():
            try:
                from tokenizers import Tokenizer

                return Tokenizer.from_file(str(file))
            except Exception:  # noqa: BLE001 - it raises nothing more precise; ids are shown instead
                return None
    return None
