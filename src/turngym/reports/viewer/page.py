"""The page: for a server that is asked for episodes, or with everything inside."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from turngym.reports.viewer.library import COLUMNS, Library, read_about, read_metrics_of
from turngym.reports.viewer.timeline import FILE as TIMELINE
from turngym.reports.viewer.timeline import read_timeline
from turngym.reports.viewer.tokens import TokenTexts, token_ids

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
