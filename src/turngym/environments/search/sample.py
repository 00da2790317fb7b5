"""A package index that does not exist, so that the search over packages can be tried at once."""

from __future__ import annotations

from random import Random

from turngym.environments.search.packages import PackageSource
from turngym.environments.search.world_names import ADJECTIVES, NOUNS, Names

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
    people = [names.person() for _ in range(_NUM_PEOPLE)]
    taken: list[str] = []
    stanzas = []
    for _ in range(_NUM_PACKAGES):
        name = _fresh_name(rng, taken)
        number = rng.choice((0, 1, 1, 1, 2, 3, 4))
        depends = rng.sample(taken, min(number, len(taken)))
        version = ".".join(str(rng.randrange(30)) for _ in range(3))
        kind, subject = rng.choice(_KINDS), f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}s"
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
        name = f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"
        if name not in taken:
            return name
