"""Ways from article to article in a generated world, and the words that describe where they end."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from turngym.environments.search.relations import BY_NAME, BY_SUBJECT, Relation
from turngym.environments.search.world import Entity, World


@dataclass(frozen=True, slots=True)
class Path:
    """Someone or something in words that do not name it: "the birthplace of Ada Lorn"."""

    words: str
    anchor: Entity
    via: tuple[Entity, ...]
    """The entities whose articles lead there, the anchor first."""
    end: Entity


def stated(entity: Entity, *, tiny: bool = False) -> list[Relation]:
    """Return what the article of ``entity`` says; the tiny ones name only other articles."""
    return [
        one
        for one in BY_SUBJECT[entity.kind]
        if one.name in entity.facts and (one.leads_on or not tiny)
    ]


def walk(start: Entity, rng: Random, steps: int) -> Path | None:
    """Follow ``steps`` facts from article to article, none twice."""
    words, via, at = start.name, [], start
    for _ in range(steps):
        ways = [one for one in stated(at) if one.leads_on]
        if not ways:
            return None
        relation = rng.choice(ways)
        via.append(at)
        value = at.facts[relation.name]
        assert isinstance(value, Entity)
        if value in via:
            return None
        words, at = relation.phrase.format(x=words), value
    return Path(words, start, tuple(via), at)


def described(world: World, rng: Random, kind: str) -> Path | None:
    """Return someone or something of a kind in words that do not name it."""
    return described_as(rng.choice(world.by_kind[kind]), rng)


def described_as(entity: Entity, rng: Random, *, without: Entity | None = None) -> Path | None:
    """Return ``entity`` as what a fact of another one points to, or by name if nothing does."""
    ways = [
        (relation, who)
        for relation, referrers in entity.referrers.items()
        for who in referrers
        if who is not without
    ]
    if not ways:
        return Path(entity.name, entity, (), entity) if without is not None else None
    relation, who = rng.choice(ways)
    return Path(BY_NAME[relation].phrase.format(x=who.name), who, (who,), entity)
