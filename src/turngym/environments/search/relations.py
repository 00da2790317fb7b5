"""What articles of the generated world say of people, places, works and events, and in which words.

Every relation has one value per subject, so that questions have one answer. A sentence is chosen
among several where the world paraphrases; a question asks in its own words. The words themselves
are in ``relations.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One thing that can be said of a kind of subject."""

    name: str
    subject: str
    """Kind of what it is said of: person, work, event, city or country."""
    value: str
    """Kind of the value: one of those, or ``year``, ``number`` or ``word``."""
    sentences: tuple[str, ...]
    """``{s}``: the subject, ``{o}``: the value. The first is used where nothing is paraphrased."""
    asks: tuple[str, ...]
    """Questions about ``{x}``."""
    phrase: str = ""
    """The value as a noun phrase about ``{x}``; only where the value has an article of its own."""
    is_optional: bool = False
    """Some subjects lack it, and their articles do not say so."""
    short: str = ""
    """The word for it in the world of few words."""

    @property
    def leads_on(self) -> bool:
        """True when the value has an article."""
        return bool(self.phrase)


def _read() -> Iterator[Relation]:
    text = files(__package__).joinpath("relations.toml").read_text("utf-8")
    for name, table in tomllib.loads(text).items():
        yield Relation(
            **{**table, **{key: tuple(table[key]) for key in ("sentences", "asks")}}, name=name
        )


RELATIONS = tuple(_read())
BY_NAME = {relation.name: relation for relation in RELATIONS}
BY_SUBJECT = {
    kind: tuple(relation for relation in RELATIONS if relation.subject == kind)
    for kind in ("person", "work", "event", "city", "country")
}
