"""The text of an HTML page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_BLANKS = re.compile(r"[ \t\r\f\v]+")
_ANY_BLANKS = re.compile(r"\s+")
_EMPTY_LINES = re.compile(r"\s*\n\s*\n\s*")
_SKIPPED_TAGS = frozenset({"script", "style", "template", "noscript", "head", "nav"})
_BLOCK_TAGS = frozenset((
    "article", "blockquote", "br", "dd", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6",
    "hr", "li", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul",
))  # fmt: skip


class _TextOf(HTMLParser):
    """Collects the text of a page, without scripts, with line breaks between blocks."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.parts: list[str] = []
        self._skipping = 0
        self._keeps_lines = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipping += tag in _SKIPPED_TAGS
        self._keeps_lines += tag == "pre"
        self._in_title = tag == "title"
        if tag in _BLOCK_TAGS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED_TAGS and self._skipping:
            self._skipping -= 1
        if tag == "pre" and self._keeps_lines:
            self._keeps_lines -= 1
        self._in_title = False
        if tag in _BLOCK_TAGS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title and not self.title:
            self.title = " ".join(data.split())
        elif not self._skipping:
            self.parts.append(data if self._keeps_lines else _ANY_BLANKS.sub(" ", data))


def html_to_text(page: str) -> tuple[str, str]:
    """Return title and text of an HTML page; scripts, styles and navigation are left out."""
    parser = _TextOf()
    parser.feed(page)
    parser.close()
    text = _BLANKS.sub(" ", "".join(parser.parts))
    return parser.title, _EMPTY_LINES.sub("\n", text).strip()
