"""Names that no one has read before, made of syllables; and a small closed set of short ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

ONSETS = (
    "b", "br", "d", "dr", "f", "g", "gr", "h", "k", "kl", "l", "m", "n", "p", "r", "s", "st",
    "t", "tr", "v", "w", "z",
)  # fmt: skip
VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
CODAS = ("", "", "l", "n", "r", "s", "m", "nd", "rk", "th")
CITY_ENDS = ("burg", "by", "dale", "ford", "haven", "mouth", "stead", "wick")
COUNTRY_ENDS = ("ania", "ar", "esh", "ia", "land", "mark", "or", "una")
ADJECTIVES = (
    "amber", "ashen", "bitter", "broken", "burning", "crooked", "distant", "empty", "frozen",
    "gilded", "hidden", "hollow", "iron", "ivory", "last", "lost", "narrow", "pale", "patient",
    "quiet", "restless", "salt", "scarlet", "second", "shallow", "silent", "silver", "sleeping",
    "stolen", "tall", "velvet", "wandering", "winter",
)  # fmt: skip
NOUNS = (
    "anchor", "bell", "bridge", "candle", "clock", "coast", "compass", "crown", "door", "ferry",
    "field", "garden", "gate", "harbour", "horse", "island", "kingdom", "ladder", "lamp",
    "letter", "mirror", "moon", "mountain", "orchard", "river", "road", "shadow", "ship",
    "stair", "stone", "storm", "thread", "tower", "voice", "well", "window",
)  # fmt: skip
OCCASIONS = ("congress", "exhibition", "fair", "festival", "games", "parade", "regatta", "summit")

TINY_NAMES: dict[str, tuple[str, ...]] = {
    "person": (
        "ada", "ben", "cleo", "dan", "eva", "finn", "gil", "hana", "ivan", "june", "karl", "lena",
    ),
    "work": (
        "dune", "echo", "hymn", "icon", "jazz", "kite", "lyre", "maze", "opus", "saga", "tale",
        "veil",
    ),
    "city": ("bern", "cork", "fano", "lima", "oslo", "pisa", "riga", "york"),
    "country": ("chad", "fiji", "mali", "peru"),
}  # fmt: skip
"""Short, so that each is a token or two of a small vocabulary."""


class Names:
    """Sampler of names, each at most once.

    Args:
        rng: Where chance comes from.
        namesakes: Probability that a person takes a family name that is in use already.
    """

    def __init__(self, rng: Random, *, namesakes: float) -> None:
        self._rng = rng
        self._namesakes = namesakes
        self._used: set[str] = set()
        self._families: list[str] = []

    def person(self) -> str:
        """Return a given and a family name."""
        return self._fresh(self._person)

    def city(self) -> str:
        """Return the name of a city."""
        return self._fresh(lambda: self._syllables(1) + self._rng.choice(CITY_ENDS))

    def country(self) -> str:
        """Return the name of a country."""
        return self._fresh(lambda: self._syllables(2) + self._rng.choice(COUNTRY_ENDS))

    def work(self) -> str:
        """Return a title, such as "The Pale Harbour of Kelmouth"."""
        return self._fresh(self._title)

    def event(self) -> str:
        """Return the name of an event; it does not give the city away."""
        return self._fresh(lambda: f"{self._syllables(2)} {self._rng.choice(OCCASIONS)}")

    def word(self) -> str:
        """Return an invented word for a river, a currency or a language."""
        return self._fresh(lambda: self._syllables(2))

    def _person(self) -> str:
        if self._families and self._rng.random() < self._namesakes:
            family = self._rng.choice(self._families)
        else:
            family = self._syllables(2)
            self._families.append(family)
        return f"{self._syllables(2)} {family}"

    def _title(self) -> str:
        words = f"The {self._rng.choice(ADJECTIVES)} {self._rng.choice(NOUNS)}"
        return words if self._rng.random() < 0.5 else f"{words} of {self._syllables(2)}"

    def _syllables(self, number: int) -> str:
        choice = self._rng.choice
        return "".join(
            choice(ONSETS) + choice(VOWELS) + (choice(CODAS) if i == number - 1 else "")
            for i in range(number)
        )

    def _fresh(self, sample: Callable[[], str]) -> str:
        while True:
            name = " ".join(
                word if word == "of" else word.capitalize() for word in sample().split()
            )
            if name.casefold() not in self._used:
                self._used.add(name.casefold())
                return name


def tiny_names(rng: Random) -> dict[str, Iterator[str]]:
    """Return the short names of each kind in a random order."""
    return {kind: iter(rng.sample(names, len(names))) for kind, names in TINY_NAMES.items()}
