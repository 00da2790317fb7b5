"""Installed documentation as a corpus of paragraphs, for questions about real prose.

A folder such as ``/usr/share/doc/python3.11/html`` is cut into passages of about a hundred words,
each with the heading above it. The texts stay on the user's machine; the licence is that of the
package, which a ``copyright`` file beside the folder usually states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from turngym.environments.search.corpus import (
    START,
    FolderSource,
    Position,
    Record,
    Source,
    open_source,
    record_of,
)
from turngym.environments.search.documents import count_words
from turngym.environments.search.packages import PackageSource
from turngym.errors import ConfigError

_MIN_WORDS, _MAX_WORDS = 20, 120
_LICENCE_FIELD = re.compile(r"^License:\s*(\S.*)$", re.MULTILINE)
_LICENCE_CHARS = 20_000


class DocumentationSource:
    """Passages of the text, Markdown and HTML files of a folder; ids are ``path#number``.

    Args:
        folder: Where they are.

    Raises:
        ConfigError: It is no folder, or holds no such file.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"corpus 'docs:{folder}': there is no such folder")
        self._files = FolderSource(folder)
        if self._files.size() == 0:
            raise ConfigError(f"corpus 'docs:{folder}': it holds no text, Markdown or HTML file")
        self.name = self._files.name
        self.licence = _licence(folder)

    def fingerprint(self) -> str:
        return self._files.fingerprint()

    def size(self) -> int:
        return self._files.size()

    def records(self, start: Position = START) -> Iterator[Record]:
        """Yield the passages file by file. A build goes on at a file, never within one."""
        first = start[1]  # passages of the current file that are there already
        for record in self._files.records((start[0], start[0])):
            done = record.after[0]
            if record.document is None:
                yield record
                continue
            title, cut = record.document.title, passages(record.document.text)
            for number, text in enumerate(cut, start=1):
                is_last = number == len(cut)
                after = (done, 0) if is_last else (done - 1, number)
                if number > first:
                    value = {"id": f"{record.document.id}#{number}", "title": title, "text": text}
                    yield record_of(value, f"{record.where}, passage {number}", after)
            first = 0


def passages(text: str) -> list[str]:
    """Return ``text`` cut at line breaks into passages of 20 to about 120 words.

    Short lines join what follows; what is left over at the end joins the passage before it.
    """
    found: list[str] = []
    current: list[str] = []
    words = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        size = count_words(line)
        if current and words >= _MIN_WORDS and words + size > _MAX_WORDS:
            found.append("\n".join(current))
            current, words = [], 0
        current.append(line.strip())
        words += size
    if current and words < _MIN_WORDS and found:
        found[-1] += "\n" + "\n".join(current)
    elif current:
        found.append("\n".join(current))
    return found


def _licence(folder: Path) -> str:
    """Return what a ``copyright`` file in the folder or above it names as licence."""
    for place in (folder, *list(folder.resolve().parents)[:2]):
        file = place / "copyright"
        if file.is_file():
            text = file.read_text("utf-8", errors="replace")[:_LICENCE_CHARS]
            names = list(dict.fromkeys(name.strip() for name in _LICENCE_FIELD.findall(text)))
            return ", ".join(names) or "see the package's copyright file"
    return ""


PACKAGES, DOCS = "packages", "docs:"


def find_source(text: str) -> Source:
    """Return the corpus that ``text`` means: a path, ``packages`` or ``docs:FOLDER``.

    Raises:
        ConfigError: There is none.
    """
    if text == PACKAGES and not Path(text).exists():
        return PackageSource.installed()
    if text.startswith(DOCS):
        if not text.removeprefix(DOCS):
            raise ConfigError("corpus 'docs:': wanted 'docs:FOLDER', a folder of documentation")
        return DocumentationSource(Path(text.removeprefix(DOCS)))
    return open_source(Path(text))
