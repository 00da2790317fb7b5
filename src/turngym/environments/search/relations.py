"""What articles of the generated world say of people, places, works and events, and in which words.

Every relation has one value per subject, so that questions have one answer. A sentence is chosen
among several where the world paraphrases; a question asks in its own words. The words themselves
are in ``relations.toml``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


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


_TABLES: dict[str, Any] = tomllib.loads(
    files(__package__).joinpath("relations.toml").read_text("utf-8")
)
RELATIONS = tuple(
    Relation(
        name=name,
        **{key: tuple(one) if isinstance(one, list) else one for key, one in table.items()},
    )
    for name, table in _TABLES.items()
)

BY_NAME = {relation.name: relation for relation in RELATIONS}
BY_SUBJECT = {
    kind: tuple(relation for relation in RELATIONS if relation.subject == kind)
    for kind in ("person", "work", "event", "city", "country")
}
