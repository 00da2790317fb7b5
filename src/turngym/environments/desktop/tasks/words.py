"""Words, names and small texts for problems."""

from __future__ import annotations

from random import Random

NOUNS = (
    "anchor", "apple", "basket", "bridge", "candle", "carpet", "cellar", "cloud", "copper",
    "curtain", "desk", "engine", "feather", "fence", "forest", "garden", "hammer", "harbour",
    "island", "kettle", "ladder", "lantern", "maple", "market", "mirror", "needle", "orchard",
    "paper", "pepper", "piano", "pocket", "quarry", "ribbon", "river", "saddle", "shelf", "signal",
    "spoon", "stable", "table", "ticket", "tunnel", "valley", "violin", "wagon", "window",
)  # fmt: skip
VERBS = ("paint", "repair", "sell", "move", "clean", "order", "return", "measure", "label", "check")
TOPICS = ("budget", "garden", "travel", "invoice", "recipe", "meeting", "project", "holiday")


def words(rng: Random, n: int) -> list[str]:
    """Return ``n`` different nouns."""
    return rng.sample(NOUNS, n)


def sentence(rng: Random) -> str:
    """Return something to do."""
    return f"{rng.choice(VERBS)} the {rng.choice(NOUNS)} {rng.randint(2, 99)}"


def lines(rng: Random, n: int) -> list[str]:
    """Return ``n`` different things to do."""
    found: dict[str, None] = {}
    while len(found) < n:
        found[sentence(rng)] = None
    return list(found)


def file_name(rng: Random, ending: str = ".txt") -> str:
    """Return the name of a file with this ``ending``."""
    return f"{rng.choice(TOPICS)}-{rng.randint(10, 999)}{ending}"


def file_names(rng: Random, n: int, ending: str = ".txt") -> list[str]:
    """Return ``n`` different names of files with this ``ending``, sorted."""
    found: set[str] = set()
    while len(found) < n:
        found.add(file_name(rng, ending))
    return sorted(found)
