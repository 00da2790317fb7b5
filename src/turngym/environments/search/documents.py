"""What is searched: documents, hits, and how much of a text an agent is shown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3001-\ua4cf\uf900-\ufaff"
"""Scripts without blanks between words: Thai, Lao, Burmese, Khmer, Chinese, Japanese."""
_WORD = re.compile(rf"[{_UNSPACED}]{{1,2}}|[^\s{_UNSPACED}]{{1,100}}")
_HALF_FIRST, _HALF_LAST = (re.compile(rf"^[^\s{_UNSPACED}]+"), re.compile(rf"[^\s{_UNSPACED}]+$"))
_MARKS = "".join(c for c in map(chr, range(0x300, 0x10000)) if unicodedata.category(c)[0] == "M")
_TERM = re.compile(rf"[^\W_]+(?:[{_MARKS}]+[^\W_]*)*")
"""With marks, such as the vowels of Hindi and Thai: no letters, but parts of words."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+|(?<=[。！？])")

SNIPPET_SOURCE_CHARS = 8_000
"""Characters of a document in which a snippet is looked for, and which a result carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One article of a corpus."""

    id: str
    """Unique in the corpus, without line breaks."""
    title: str
    text: str
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """JSON values. ``links``: names of other articles that this one mentions."""

    @property
    def links(self) -> tuple[str, ...]:
        """Titles that the text mentions, as far as the corpus says so."""
        found = self.meta.get("links", ())
        return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One search result."""

    id: str
    title: str
    text: str
    """What a snippet is made of: the text, its first ``SNIPPET_SOURCE_CHARS``, or what a remote
    engine returned."""
    score: float
    """Higher is better; comparable within one result list only."""


def terms(text: str) -> list[str]:
    """Return the words of ``text`` as engines see them: letters, marks, digits, in lower case."""
    lower = text.lower().replace("i\u0307", "i")  # what İ becomes
    return _TERM.findall(unicodedata.normalize("NFC", lower))


def count_words(text: str) -> int:
    """Return the number of words: between blanks, two characters where a script has none."""
    return len(_WORD.findall(text))


def pages(text: str, page_words: int) -> list[str]:
    """Return ``text`` cut after every ``page_words`` words; at least one page.

    Args:
        text: Any text; line breaks inside a page are kept.
        page_words: 1 or more.
    """
    starts = [match.start() for match in _WORD.finditer(text)][::page_words]
    if len(starts) < 2:
        return [text.strip()]
    ends = [*starts[1:], len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def snippet(text: str, query_terms: frozenset[str], max_words: int) -> str:
    """Return the sentence of ``text`` that holds most of the query, cut to ``max_words`` words.

    Args:
        text: Of a document.
        query_terms: As ``terms`` gives them.
        max_words: 0 for no snippet.
    """
    if max_words <= 0:
        return ""
    best, best_count = "", -1
    for sentence in _SENTENCE_END.split(text[:SNIPPET_SOURCE_CHARS]):
        count = len(query_terms.intersection(terms(sentence)))
        if count > best_count and sentence.strip():
            best, best_count = sentence, count
    ends = [match.end() for match in _WORD.finditer(best)]
    is_cut = len(ends) > max_words
    return " ".join((best[: ends[max_words - 1]] if is_cut else best).split()) + " ..." * is_cut


def passages_with(text: str, wanted: str, *, width: int, limit: int) -> list[str]:
    """Return the places of ``text`` that hold ``wanted``, letter case aside.

    Args:
        text: Of a document.
        wanted: What to look for, word for word.
        width: Characters shown on either side.
        limit: Most places.
    """
    needle = re.compile(r"\s+".join(map(re.escape, wanted.split())), re.IGNORECASE)
    found, end = [], -1
    for match in needle.finditer(text):
        if match.start() < end:
            continue
        start, end = max(0, match.start() - width), min(len(text), match.end() + width)
        before, after = text[start : match.start()], text[match.end() : end]
        if start > 0 and not text[start - 1].isspace():
            before = _HALF_FIRST.sub("", before)  # no half words
        if end < len(text) and not text[end].isspace():
            after = _HALF_LAST.sub("", after)
        found.append(" ".join(f"{before}{match[0]}{after}".split()))
        if len(found) == limit:
            break
    return found


_BLANKS = re.compile(r"[ \t\r\f\v]+")
_ANY_BLANKS = re.compile(r"\s+")
_EMPTY_LINES = re.compile(r"\s*\n\s*\n\s*")
_SKIPPED_TAGS = frozenset({"script", "style", "template", "noscript", "nav"})
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
        self._skipping = max(0, self._skipping - (tag in _SKIPPED_TAGS))
        self._keeps_lines = max(0, self._keeps_lines - (tag == "pre"))
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
