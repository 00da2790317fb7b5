"""From a few words of a command line to a corpus."""

from __future__ import annotations

from pathlib import Path

from turngym.environments.search.corpus import Source, open_source
from turngym.environments.search.docsets import DocumentationSource
from turngym.environments.search.packages import PackageSource
from turngym.errors import ConfigError

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
