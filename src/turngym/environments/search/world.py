"""A world of people, places, works and events unknown to any model: facts and linked articles.

The same ``WorldSpec`` gives the same world on every machine. Since each seed gives other names and
other facts, nothing about one world helps in another. What articles say, and in which words, is in
``relations.toml``: every relation has one value per subject, so that questions have one answer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import files
from random import Random
from typing import Any

from turngym.environments.search.backends.sqlite import SqliteBackend
from turngym.environments.search.documents import Document
from turngym.errors import ConfigError
from turngym.seeding import derive_seed

KINDS = ("country", "city", "person", "work", "event")
"""In the order in which they are made: later ones refer to earlier ones."""

_SHARES = {"country": 0.04, "city": 0.16, "person": 0.35, "work": 0.30, "event": 0.15}
_MISSING = 0.3
"""Probability that an optional fact is missing."""
_ONE_IN_SO_MANY_CREATES = 3
_MIN_ARTICLES = 20
_KEPT_WORLDS = 64


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


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text("utf-8"))


WORDS: Mapping[str, Any] = _read("names.toml")
"""Of what names are made."""
BY_NAME = {
    name: Relation(
        **{**table, "sentences": tuple(table["sentences"]), "asks": tuple(table["asks"])}, name=name
    )
    for name, table in _read("relations.toml").items()
}
BY_SUBJECT = {kind: tuple(one for one in BY_NAME.values() if one.subject == kind) for kind in KINDS}


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

    def new(self, kind: str) -> str:
        """Return a name of a kind: of ``KINDS``, or ``word``, invented for a river or a language.

        A work has a title such as "The Pale Harbour of Kelmouth"; the name of an event does not
        give the city away.
        """
        while True:
            words = self._sample(kind).split()
            name = " ".join(word if word == "of" else word.capitalize() for word in words)
            if name.casefold() not in self._used:
                self._used.add(name.casefold())
                return name

    def _sample(self, kind: str) -> str:
        choice = self._rng.choice
        if kind == "person":
            if self._families and self._rng.random() < self._namesakes:
                family = choice(self._families)
            else:
                family = self._syllables(2)
                self._families.append(family)
            return f"{self._syllables(2)} {family}"
        if kind == "work":
            title = f"The {choice(WORDS['adjectives'])} {choice(WORDS['nouns'])}"
            return title if self._rng.random() < 0.5 else f"{title} of {self._syllables(2)}"
        if kind == "event":
            return f"{self._syllables(2)} {choice(WORDS['occasions'])}"
        if kind == "city":
            return f"{self._syllables(1)}{choice(WORDS['city_ends'])}"
        return f"{self._syllables(2)}{choice(WORDS['country_ends']) if kind == 'country' else ''}"

    def _syllables(self, number: int) -> str:
        choice = self._rng.choice
        return "".join(
            choice(WORDS["onsets"])
            + choice(WORDS["vowels"])
            + (choice(WORDS["codas"]) if i == number - 1 else "")
            for i in range(number)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """What decides a world."""

    seed: int
    articles: int = 60
    """Articles in all, at least 20."""
    paraphrase: bool = False
    """Facts and questions are worded in several ways."""
    namesakes: float = 0.0
    """Probability in [0, 1] that a person shares the family name of another."""
    notes: float = 0.0
    """Share in [0, 0.5] of articles that mention others and say nothing of use."""
    tiny: bool = False
    """Few short names that come back in every world, and articles of a few words."""

    def __post_init__(self) -> None:
        if self.tiny:
            return
        if self.articles < _MIN_ARTICLES:
            raise ConfigError(
                f"search world: articles must be at least {_MIN_ARTICLES}, got {self.articles}"
            )
        if not 0 <= self.namesakes <= 1 or not 0 <= self.notes <= 0.5:
            raise ConfigError(
                f"search world: namesakes={self.namesakes} must lie in [0, 1] and "
                f"notes={self.notes} in [0, 0.5]"
            )


@dataclass(slots=True, eq=False)
class Entity:
    """Someone or something with an article."""

    kind: str
    name: str
    facts: dict[str, Entity | int | str] = field(default_factory=dict)
    """Relation to value."""
    referrers: dict[str, list[Entity]] = field(default_factory=dict)
    """Relation to those of whom this is the value."""
    note: str = ""
    """What the article begins with."""

    def set(self, relation: str, value: Entity | int | str) -> None:
        """Note that ``relation`` holds, on both sides."""
        self.facts[relation] = value
        if isinstance(value, Entity):
            value.referrers.setdefault(relation, []).append(self)

    @property
    def id(self) -> str:
        """Id of the article."""
        return self.name.casefold().replace(" ", "-")

    def stated(self, *, tiny: bool = False) -> list[Relation]:
        """Return what the article says; a tiny one names only other articles."""
        known = [one for one in BY_SUBJECT[self.kind] if one.name in self.facts]
        return [one for one in known if one.leads_on or not tiny]

    def text_of(self, relation: str) -> str:
        """Return the value of a fact in words."""
        value = self.facts[relation]
        return value.name if isinstance(value, Entity) else str(value)


class World:
    """The facts of one world, its articles and an index over them.

    Args:
        spec: What decides it.
    """

    def __init__(self, spec: WorldSpec) -> None:
        self.spec = spec
        self.entities = tuple(_Maker(spec).make())
        self.by_kind = {
            kind: tuple(one for one in self.entities if one.kind == kind) for kind in KINDS
        }

    @cached_property
    def documents(self) -> tuple[Document, ...]:
        """Every article, notes included, in a random order."""
        rng = Random(derive_seed(self.spec.seed, "articles"))
        write = _tiny_article if self.spec.tiny else _article
        found = [write(entity, rng, paraphrase=self.spec.paraphrase) for entity in self.entities]
        num_notes = 0 if self.spec.tiny else self.spec.articles - len(self.entities)
        found += [_note(number, self.entities, rng) for number in range(num_notes)]
        rng.shuffle(found)
        return tuple(found)

    @cached_property
    def backend(self) -> SqliteBackend:
        """The articles, indexed in memory."""
        return SqliteBackend.in_memory(self.documents)


@lru_cache(maxsize=_KEPT_WORLDS)
def world(spec: WorldSpec) -> World:
    """Return the world of ``spec``; the latest ones are kept, and shared by all who ask."""
    return World(spec)


class _Maker:
    def __init__(self, spec: WorldSpec) -> None:
        self._spec = spec
        self._rng = Random(derive_seed(spec.seed, "facts"))
        self._names = Names(self._rng, namesakes=spec.namesakes)
        named = WORDS["tiny"].items() if spec.tiny else ()
        self._tiny = {kind: iter(self._rng.sample(names, len(names))) for kind, names in named}
        """Short names of each kind in a random order; none where names are invented."""
        self._made: dict[str, list[Entity]] = {kind: [] for kind in KINDS}

    def make(self) -> list[Entity]:
        """Return every entity with its facts, in the order of ``KINDS``."""
        for kind, number in self._numbers().items():
            for _ in range(number):
                name = next(self._tiny[kind]) if self._tiny else self._names.new(kind)
                self._made[kind].append(Entity(kind, name, note=self._note(kind)))
        for kind in ("city", "country", "person", "work", "event"):  # capitals need cities
            for entity in self._made[kind]:
                for relation in BY_SUBJECT[kind]:
                    self._state(entity, relation)
        return [entity for kind in KINDS for entity in self._made[kind]]

    def _numbers(self) -> dict[str, int]:
        if self._spec.tiny:
            return {"country": 2, "city": 4, "person": 6, "work": 6, "event": 0}
        entities = round(self._spec.articles * (1 - self._spec.notes))
        numbers = {kind: max(2, int(entities * share)) for kind, share in _SHARES.items()}
        numbers["person"] += entities - sum(numbers.values())
        return numbers

    def _note(self, kind: str) -> str:
        among = {"person": "professions", "work": "forms"}
        return str(self._rng.choice(WORDS[among[kind]])) if kind in among else kind

    def _state(self, entity: Entity, relation: Relation) -> None:
        """Give ``entity`` a value of ``relation``, unless it is optional and left out."""
        if relation.is_optional and self._rng.random() < _MISSING:
            return
        value = self._value(entity, relation)
        if value is not None:
            entity.set(relation.name, value)

    def _value(self, entity: Entity, relation: Relation) -> Entity | int | str | None:
        rng = self._rng
        if relation.value == "year":
            return self._year(entity, relation)
        if relation.value == "number":
            return rng.randrange(1_000, 900_000)
        if relation.value == "word":
            return rng.choice(WORDS["tiny"]["work"]) if self._tiny else self._names.new("word")
        pool = self._made[relation.value]
        if relation.name == "capital":
            own = [city for city in pool if city.facts.get("country") is entity]
            return rng.choice(own or pool)
        if relation.name == "creator" and not self._spec.tiny:  # a few make much, as in life
            pool = pool[::_ONE_IN_SO_MANY_CREATES]
        if relation.name == "teacher":  # those made before, so that no one teaches in a circle
            pool = pool[: pool.index(entity)]
        return rng.choice(pool) if pool else None

    def _year(self, entity: Entity, relation: Relation) -> int:
        who, least = {"finished": ("creator", 18), "opened": ("founder", 20)}.get(
            relation.name, ("", 0)
        )
        if isinstance(maker := entity.facts.get(who), Entity):
            return int(maker.text_of("birth_year")) + self._rng.randrange(least, 60)
        if relation.name == "birth_year":  # in the order of making: teachers are older
            people = self._made["person"]
            return 1500 + round(380 * (people.index(entity) + self._rng.random()) / len(people))
        return {"settled": 900, "opened": 1560}[relation.name] + self._rng.randrange(380)


def _article(entity: Entity, rng: Random, *, paraphrase: bool) -> Document:
    opening = {
        "country": f"{entity.name} is a country.",
        "city": "",
        "person": f"{entity.name} was {_with_article(entity.note)}.",
        "work": f"{entity.name} is {_with_article(entity.note)}.",
        "event": f"The {entity.name} is remembered to this day.",
    }[entity.kind]
    facts = [
        (rng.choice(one.sentences) if paraphrase else one.sentences[0]).format(
            s=entity.name, o=entity.text_of(one.name)
        )
        for one in entity.stated()
    ]
    if paraphrase:
        rng.shuffle(facts)
    lists = [
        words.format(names=", ".join(one.name for one in entity.referrers[relation]))
        for relation, words in _LISTED.items()
        if relation in entity.referrers
    ]
    sentences = [opening, *facts, *lists]
    text = " ".join(sentence for sentence in sentences if sentence)
    return _document(entity, text)


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


_LISTED = {
    "creator": "Works: {names}.",
    "host": "Events held there: {names}.",
    "country": "Cities: {names}.",
}
"""Relations whose subjects the article on the value names, where a reader would expect it."""


def _tiny_article(entity: Entity, rng: Random, *, paraphrase: bool) -> Document:
    del rng, paraphrase
    stated = entity.stated(tiny=True)
    facts = [f"{one.short} {entity.text_of(one.name)}." for one in stated]
    return _document(entity, " ".join(facts) or "nothing.")


def _document(entity: Entity, text: str) -> Document:
    linked = [value.name for value in entity.facts.values() if isinstance(value, Entity)]
    for relation in _LISTED:
        linked += [one.name for one in entity.referrers.get(relation, ())]
    meta = {"kind": entity.kind, "links": list(dict.fromkeys(linked))}
    return Document(id=entity.id, title=entity.name, text=text, meta=meta)


def _note(number: int, entities: tuple[Entity, ...], rng: Random) -> Document:
    """Return an article that mentions others and says nothing of use about them."""
    first, second, third = rng.sample(entities, 3)
    year = rng.randrange(1500, 1950)
    text = (
        f"The chronicle of {year} mentions {first.name} and {second.name} on one page, and a "
        f"letter about {third.name} that was never found."
    )
    return Document(
        id=f"chronicle-{number}",
        title=f"Chronicle, leaf {number}",
        text=text,
        meta={"kind": "note", "links": [first.name, second.name, third.name]},
    )
