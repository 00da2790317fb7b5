"""The package index of a Debian-like machine as a corpus of linked articles.

Nothing is downloaded and no text is shipped: the package manager of the user's machine prints what
it has stored. Versions and maintainers change with the archive, so an index is frozen with a hash,
and questions are made from that index.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from random import Random

from turngym.environments.search.corpus import (
    START,
    DocumentationSource,
    Position,
    Record,
    Source,
    open_source,
    record_of,
)
from turngym.environments.search.world import WORDS, Names
from turngym.errors import ConfigError

PACKAGES, DOCS = "packages", "docs:"
_COMMAND = ("apt-cache", "dumpavail")
_TIMEOUT_S = 300.0
_NAME = re.compile(r"^[a-z0-9][a-z0-9+.-]*")
_MAX_LISTED = 40
"""Dependencies that an article names."""

Stanza = Mapping[str, str]
"""One package as printed: field to value, continuation lines joined by line breaks."""


class PackageSource:
    """One article a package: what it is, its version, section, maintainer, size, dependencies.

    Args:
        text: Stanzas as ``apt-cache dumpavail`` prints them.
        name: For the manifest of an index.
    """

    licence = "package metadata of the distribution"

    def __init__(self, text: str, name: str = "packages") -> None:
        self.name = name
        self._text = text

    @classmethod
    def installed(cls) -> PackageSource:
        """Return the package index of this machine.

        Raises:
            ConfigError: There is no apt-cache, or it has nothing to say.
        """
        if shutil.which(_COMMAND[0]) is None:
            raise ConfigError(
                "corpus 'packages': needs the program 'apt-cache' (Debian, Ubuntu); name a file "
                "or folder elsewhere"
            )
        try:
            done = subprocess.run(
                _COMMAND, capture_output=True, timeout=_TIMEOUT_S, check=True, text=True
            )
        except (subprocess.SubprocessError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"corpus 'packages': {' '.join(_COMMAND)} failed ({error})"
            ) from error
        if not done.stdout.strip():
            raise ConfigError("corpus 'packages': the index is empty; run 'apt-get update'")
        return cls(done.stdout)

    @classmethod
    def from_file(cls, path: Path) -> PackageSource:
        """Return the packages of a file that holds stanzas."""
        return cls(path.read_text("utf-8"), name=path.name)

    @cached_property
    def packages(self) -> dict[str, Stanza]:
        """The packages by name, the first of several versions."""
        found: dict[str, Stanza] = {}
        for stanza in read_stanzas(self._text.splitlines()):
            name = stanza.get("Package", "").strip()
            if name and stanza.get("Version"):
                found.setdefault(name, stanza)
        return found

    def fingerprint(self) -> str:
        return hashlib.sha256(self._text.encode()).hexdigest()

    def size(self) -> int:
        return len(self.packages)

    def records(self, start: Position = START) -> Iterator[Record]:
        """Yield one record per package."""
        for number, stanza in enumerate(list(self.packages.values())[start[0] :], start[0] + 1):
            links = [name for name in dependencies(stanza) if name in self.packages]
            value = {
                "id": stanza["Package"].strip(),
                "title": stanza["Package"].strip(),
                "text": article(stanza, links),
                "meta": {"links": links, "fields": _facts(stanza)},
            }
            yield record_of(value, f"{self.name}: package {number}", (number, number))


def read_stanzas(lines: Iterable[str]) -> Iterator[Stanza]:
    """Yield the stanzas of a control file; lines that belong to no field are left out."""
    stanza: dict[str, str] = {}
    field = ""
    for line in lines:
        if not line.strip():
            if stanza:
                yield stanza
            stanza, field = {}, ""
        elif line[0] in " \t":
            if field:
                stanza[field] += "\n" + line.strip()
        else:
            field, colon, value = line.partition(":")
            if colon:
                stanza[field] = value.strip()
            else:
                field = ""
    if stanza:
        yield stanza


def dependencies(stanza: Stanza) -> list[str]:
    """Return the names that a package depends on, the first of alternatives, in order."""
    parts = stanza.get("Depends", "").replace("\n", " ").split(",")
    found = [match[0] for part in parts if (match := _NAME.match(part.strip()))]
    return list(dict.fromkeys(found))


def maintainer(stanza: Stanza) -> str:
    """Return the maintainer's name without the address."""
    return stanza.get("Maintainer", "").partition("<")[0].strip().strip('"')


def article(stanza: Stanza, links: list[str]) -> str:
    """Return the article on the package of ``stanza``, with ``links``."""
    name = stanza["Package"].strip()
    summary, _, rest = stanza.get("Description", stanza.get("Description-en", "")).partition("\n")
    sentences = [f"{name}: {summary.strip() or 'a package'}."]
    facts = _facts(stanza)
    sentences += [
        words.format(v=facts[name]) for name, (_, words) in _FIELDS.items() if facts[name]
    ]
    if links:
        sentences.append(f"It depends on {', '.join(links[:_MAX_LISTED])}.")
    body = "\n".join(line for line in rest.splitlines() if line.strip() != ".")
    return "\n".join([" ".join(sentences), body]).strip()


_FIELDS = {
    "version": ("Version", "Its version is {v}."),
    "section": ("Section", "It belongs to section {v}."),
    "maintainer": ("Maintainer", "It is maintained by {v}."),
    "homepage": ("Homepage", "Its homepage is {v}."),
    "installed_size": ("Installed-Size", "Installed it takes {v} kB."),
}
"""What articles say of a package: name of a fact to its field in a stanza, and to a sentence."""


def _facts(stanza: Stanza) -> dict[str, str]:
    found = {name: stanza.get(field, "") for name, (field, _) in _FIELDS.items()}
    return {**found, "maintainer": maintainer(stanza)}


_NUM_PACKAGES = 240
_NUM_PEOPLE = 90
_SECTIONS = (
    "admin", "devel", "games", "graphics", "libs", "mail", "math", "net", "science", "sound",
)  # fmt: skip
_KINDS = ("tool", "library", "plug-in", "server", "viewer", "game", "collection")


def sample_packages() -> PackageSource:
    """Return an invented package index; the same on every machine."""
    rng = Random(20_26)
    names = Names(rng, namesakes=0.0)
    people = [names.new("person") for _ in range(_NUM_PEOPLE)]
    taken: list[str] = []
    stanzas = []
    for _ in range(_NUM_PACKAGES):
        name = _fresh_name(rng, taken)
        number = rng.choice((0, 1, 1, 1, 2, 3, 4))
        depends = rng.sample(taken, min(number, len(taken)))
        version = ".".join(str(rng.randrange(30)) for _ in range(3))
        kind = rng.choice(_KINDS)
        subject = f"{rng.choice(WORDS['adjectives'])} {rng.choice(WORDS['nouns'])}s"
        lines = [
            f"Package: {name}",
            f"Version: {version}-{rng.randrange(1, 9)}",
            f"Installed-Size: {rng.randrange(20, 90_000)}",
            f"Maintainer: {rng.choice(people)} <nobody@example.org>",
            *([f"Depends: {', '.join(depends)}"] if depends else []),
            f"Section: {rng.choice(_SECTIONS)}",
            f"Homepage: https://{name}.example.org/",
            f"Description: {kind} for {subject}",
            f" {name} is a {kind} for people who work with {subject}.",
        ]
        stanzas.append("\n".join(lines))
        taken.append(name)
    return PackageSource("\n\n".join(stanzas) + "\n", name="sample packages")


def _fresh_name(rng: Random, taken: list[str]) -> str:
    while True:
        name = f"{rng.choice(WORDS['adjectives'])}-{rng.choice(WORDS['nouns'])}"
        if name not in taken:
            return name


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
