"""Search in generated worlds: nothing can be known by heart, every question has one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Unpack

from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.base import Limits, SearchEnv, SearchOptions
from turngym.environments.search.questions import Lookup, Question, Soundness, sound_question
from turngym.environments.search.world import (
    BY_NAME,
    BY_SUBJECT,
    KINDS,
    Entity,
    Relation,
    World,
    WorldSpec,
    world,
)
from turngym.errors import ConfigError, require_known
from turngym.seeding import derive_seed
from turngym.tasks.base import Task
from turngym.tasks.scorers.answers import UNKNOWN, contains_answer
from turngym.tasks.sets import TaskSet


@dataclass(frozen=True, slots=True)
class Path:
    """Someone or something in words that do not name it: "the birthplace of Ada Lorn"."""

    words: str
    anchor: Entity
    via: tuple[Entity, ...]
    """The entities whose articles lead there, the anchor first."""
    end: Entity


def walk(start: Entity, rng: Random, steps: int) -> Path | None:
    """Follow ``steps`` facts from article to article, none twice."""
    words, via, at = start.name, [], start
    for _ in range(steps):
        ways = [one for one in at.stated() if one.leads_on]
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


def described(entity: Entity, rng: Random, *, without: Entity | None = None) -> Path | None:
    """Return ``entity`` as what a fact of another one points to, or by name if nothing does.

    Args:
        entity: What is described.
        rng: Chooses among the facts.
        without: An entity whose facts may not be used, since they are the answer.
    """
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


QuestionGenerator = Callable[[World, Random], Question | None]
"""Samples a question; None when the sample came to nothing."""

_UNANSWERABLE_SHARE = 1 / 3
_NUM_COMPARED = 3
_MIN_COUNTED, _MAX_LISTED = 3, 6
_COMPARISONS = (
    ("birth_year", min, "Who was born first"),
    ("birth_year", max, "Who was born last"),
    ("settled", min, "Which city was settled first"),
    ("population", max, "Which city has the most inhabitants"),
    ("finished", min, "Which work was finished first"),
)


def sample_question(
    world: World, kind: str, rng: Random, **demands: Unpack[Soundness]
) -> Question | None:
    """Return a random sound question, or None when the world seems to have none.

    Args:
        world: What it is about.
        kind: A key of ``GENERATORS``.
        rng: Where chance comes from.
        demands: As ``sound_question``.
    """
    return sound_question(lambda: GENERATORS[kind](world, rng), world.backend, **demands)


def _chain(world: World, rng: Random, *, hops: int) -> Question | None:
    """Follow facts from article to article: "the country of the birthplace of Ada Lorn"."""
    kinds = [kind for kind in KINDS if world.by_kind[kind]]
    start = rng.choice(world.by_kind[rng.choice(kinds)])
    path = walk(start, rng, hops - 1)
    if path is None:
        return None
    seen = (*path.via, path.end)
    open_ends = [
        one for one in path.end.stated(tiny=world.spec.tiny) if path.end.facts[one.name] not in seen
    ]
    if not open_ends:
        return None
    relation = rng.choice(open_ends)
    answer = path.end.text_of(relation.name)
    documents = {one.id: one for one in seen}
    if any(
        contains_answer(_words_of(one), answer) for one in documents.values() if one is not path.end
    ):
        return None  # a shorter way
    return _question(world, rng, f"{hops}hop", path, relation, (answer,))


def _unanswerable(world: World, rng: Random) -> Question | None:
    """Ask for a fact that the last article lacks; in two of three cases it has it after all."""
    wants_missing = rng.random() < _UNANSWERABLE_SHARE
    path = walk(rng.choice(world.entities), rng, 1)
    if path is None:
        return None
    optional = [
        one
        for one in BY_SUBJECT[path.end.kind]
        if one.is_optional and (one.name not in path.end.facts) == wants_missing
    ]
    if not optional:
        return None
    relation = rng.choice(optional)
    answer = UNKNOWN if wants_missing else path.end.text_of(relation.name)
    return _question(world, rng, "unanswerable", path, relation, (answer,))


def _compare(world: World, rng: Random) -> Question | None:
    """Ask which of three, none of them named, was first, last or largest."""
    name, best, words = rng.choice(_COMPARISONS)
    paths = [
        described(rng.choice(world.by_kind[BY_NAME[name].subject]), rng)
        for _ in range(_NUM_COMPARED)
    ]
    found = [path for path in paths if path is not None]
    values = [path.end.facts[name] for path in found]
    if len(found) < _NUM_COMPARED or len(set(values)) < _NUM_COMPARED:
        return None
    winner = found[values.index(best(values))]  # type: ignore[type-var]  # all are numbers
    listed = f"{', '.join(path.words for path in found[:-1])} or {found[-1].words}"
    visited = [one for path in found for one in (*path.via, path.end)]
    return Question(
        text=f"{words}: {listed}?",
        answers=(winner.end.name,),
        kind="compare",
        is_choice=True,
        plan=_by_name(visited),
        mentions=tuple(path.anchor.name for path in found),
        facts=repr(values),
    )


def _intersect(world: World, rng: Random) -> Question | None:
    """Ask for the only one that two descriptions meet in."""
    kind, first, second, words = rng.choice(
        (
            ("work", "creator", "setting", "Which work by {a} is set in {b}"),
            ("event", "founder", "host", "Which event founded by {a} was held in {b}"),
            ("person", "teacher", "birthplace", "Which pupil of {a} was born in {b}"),
        )
    )
    target = rng.choice(world.by_kind[kind])
    one, other = target.facts.get(first), target.facts.get(second)
    if not isinstance(one, Entity) or not isinstance(other, Entity):
        return None
    both = [who for who in one.referrers[first] if who.facts.get(second) is other]
    left, right = described(one, rng, without=target), described(other, rng, without=target)
    if len(both) != 1 or left is None or right is None:
        return None
    visited = [*left.via, left.end, *right.via, right.end]
    return Question(
        text=f"{words.format(a=left.words, b=right.words)}?",
        answers=(target.name,),
        kind="intersect",
        plan=(*_by_name(visited), Lookup(query=f"{one.name} {other.name}", doc=target.id)),
        mentions=(left.anchor.name, right.anchor.name),
        facts=f"{one.name} {other.name}",
    )


def _count(world: World, rng: Random) -> Question | None:
    """Ask how many of someone's works were finished before a year; none of them may be."""
    path = described(rng.choice(world.by_kind["person"]), rng)
    if path is None:
        return None
    works = path.end.referrers.get("creator", [])
    if not _MIN_COUNTED <= len(works) <= _MAX_LISTED:
        return None
    years = sorted(int(work.text_of("finished")) for work in works)
    number = rng.randrange(len(years) + 1)
    year = years[0] if number == 0 else years[number - 1] + 1
    if sum(one < year for one in years) != number:
        return None  # two of them in one year
    return Question(
        text=f"How many works by {path.words} were finished before {year}?",
        answers=(str(number),),
        kind="count",
        plan=_by_name([*path.via, path.end, *works]),
        mentions=(path.anchor.name,),
        facts=f"{path.end.name} {years}",
    )


def _time_between(world: World, rng: Random) -> Question | None:
    """Ask for the time between two facts."""
    work = rng.choice(world.by_kind["work"])
    creator = work.facts["creator"]
    assert isinstance(creator, Entity)
    years = int(work.text_of("finished")) - int(creator.text_of("birth_year"))
    return Question(
        text=f"How many years after the birth of its creator was {work.name} finished?",
        answers=(str(years),),
        kind="temporal",
        plan=_by_name([work, creator]),
        mentions=(work.name,),
        facts=creator.name,
    )


def _first_or_last(world: World, rng: Random) -> Question | None:
    """Ask for the first or last of several events."""
    path = described(rng.choice(world.by_kind["city"]), rng)
    if path is None:
        return None
    events = path.end.referrers.get("host", [])
    years = [int(event.text_of("opened")) for event in events]
    if not 2 <= len(events) <= _MAX_LISTED or len(set(years)) < len(years):
        return None
    best, word = rng.choice(((min, "first"), (max, "last")))
    return Question(
        text=f"Which of the events held in {path.words} opened {word}?",
        answers=(events[years.index(best(years))].name,),
        kind="temporal",
        is_choice=True,
        plan=_by_name([*path.via, path.end, *events]),
        mentions=(path.anchor.name,),
        facts=f"{path.end.name} {years}",
    )


GENERATORS: Mapping[str, QuestionGenerator] = {
    **{f"{hops}hop": partial(_chain, hops=hops) for hops in (1, 2, 3, 4)}, "compare": _compare,
    "intersect": _intersect, "count": _count, "unanswerable": _unanswerable,
    "temporal": lambda world, rng: (
        (_time_between if rng.random() < 0.5 else _first_or_last)(world, rng)
    ),
    "mixed": lambda world, rng: GENERATORS[rng.choice(MIXED_KINDS)](world, rng),
}  # fmt: skip
"""Kind of question to its generator."""
MIXED_KINDS: tuple[str, ...] = tuple(kind for kind in GENERATORS if kind != "mixed")


def _question(
    world: World, rng: Random, kind: str, path: Path, relation: Relation, answers: tuple[str, ...]
) -> Question:
    if world.spec.tiny:
        text = f"find {_tiny_words(path)} {relation.short}?"
    else:
        ask = rng.choice(relation.asks) if world.spec.paraphrase else relation.asks[0]
        text = ask.format(x=path.words)
    visited = [*path.via, path.end]
    return Question(
        text=text,
        answers=answers,
        kind=kind,
        plan=_by_name(visited),
        mentions=(path.anchor.name,),
        facts=" ".join(one.name for one in visited[1:]),
    )


def _tiny_words(path: Path) -> str:
    """Return the anchor and the short words for the way from it."""
    words, visited = [path.anchor.name], [*path.via, path.end]
    for one, following in pairwise(visited):
        words.append(next(BY_NAME[r].short for r, v in one.facts.items() if v is following))
    return " ".join(words)


def _words_of(entity: Entity) -> str:
    """Return the names and values that the article of ``entity`` holds."""
    lists = [one.name for them in entity.referrers.values() for one in them]
    return ". ".join([entity.name, *(entity.text_of(name) for name in entity.facts), *lists])


def _by_name(entities: list[Entity]) -> tuple[Lookup, ...]:
    """Return the way that looks everyone up by name, each once."""
    return tuple(Lookup(query=one.name, doc=one.id) for one in dict.fromkeys(entities))


# The environment.


DIFFICULTIES: dict[str, dict[str, Any]] = {
    "tiny": {"tiny": True, "articles": 18},
    "easy": {"articles": 60},
    "medium": {"articles": 600, "paraphrase": True, "namesakes": 0.3, "notes": 0.1},
    "hard": {"articles": 10_000, "paraphrase": True, "namesakes": 0.6, "notes": 0.3},
}
"""What a world is like; see ``WorldSpec``."""
SHARED_WORLDS = {"tiny": None, "easy": None, "medium": 64, "hard": 1}
"""Worlds per split; None: every task has its own."""
_LIMITS = {"tiny": Limits(results=3, snippet_words=0), "hard": Limits(results=10)}
_MAX_WORLDS, _DRAWS_PER_WORLD = 20, 500
_TINY_KINDS = ("1hop", "2hop", "3hop")


@dataclass(frozen=True, kw_only=True)
class WorldQuestion(Question):
    """A question, and the world that it is about."""

    spec: WorldSpec


class WorldTasks(TaskSet[Question]):
    """Questions of one kind about worlds of one difficulty, without end.

    Args:
        kind: A key of ``GENERATORS``.
        difficulty: A key of ``DIFFICULTIES``.
        articles: Another size of the world.
        limits: Of those who search in it.
    """

    def __init__(self, kind: str, difficulty: str, articles: int | None, limits: Limits) -> None:
        super().__init__(f"world-{kind}-{difficulty}" + (f"-{articles}" if articles else ""))
        self._kind, self._limits = kind, limits
        self._num_worlds = SHARED_WORLDS[difficulty]
        self._settings = dict(DIFFICULTIES[difficulty])
        if articles is not None:
            self._settings["articles"] = articles
        WorldSpec(seed=0, **self._settings)  # complains at once

    def problem(self, task: Task) -> WorldQuestion:
        """Return a sound question of the task's split, about the first world that has one.

        Raises:
            ConfigError: Worlds of this size have none.
        """
        rng = Random(derive_seed(task.seed, "question"))
        for attempt in range(_MAX_WORLDS):
            spec = WorldSpec(seed=self._world_seed(task, attempt), **self._settings)
            question = sample_question(
                world(spec), self._kind, rng, k=self._limits.results,
                snippet_words=self._limits.snippet_words,
                accept=lambda one: self.split(one) == task.split, tries=_DRAWS_PER_WORLD,
            )  # fmt: skip
            if question is not None:
                return WorldQuestion(**vars(question), spec=spec)
        raise ConfigError(
            f"{self.name}: no question of kind {self._kind!r} in {_MAX_WORLDS} worlds of "
            f"{self._settings['articles']} articles; make them larger"
        )

    def _world_seed(self, task: Task, attempt: int) -> int:
        if self._num_worlds is None:
            return derive_seed(task.seed, "world", attempt)
        number = (derive_seed(task.seed, "which world") + attempt) % self._num_worlds
        return derive_seed(0, "search worlds", task.split, number)


class WorldEnv(SearchEnv):
    """Answer a question about people, places, works and events of a world unknown to any model.

    Tiny: 18 articles of a few words, in every task a world of its own. Easy: 60 articles, again a
    world per task. Medium: 600 articles, in several wordings, with namesakes and idle mentions; 64
    worlds a split. Hard: 10,000 articles with more of all that; one world a split, so that many
    environments share its index. Worlds of train and test are different ones.

    Args:
        kind: What is asked: ``1hop`` to ``4hop``, ``compare``, ``intersect``, ``count``,
            ``temporal``, ``unanswerable`` (a third are) or ``mixed``.
        difficulty: ``"tiny"``, ``"easy"``, ``"medium"`` or ``"hard"``.
        articles: Another size of the world.
        limits: Other budgets.
        options: As ``SearchEnv``.
    """

    def __init__(
        self,
        *,
        kind: str = "2hop",
        difficulty: str = "easy",
        articles: int | None = None,
        limits: Limits | None = None,
        **options: Unpack[SearchOptions],
    ) -> None:
        require_known("kind of question", kind, GENERATORS)
        require_known("difficulty of search/world", difficulty, DIFFICULTIES)
        if difficulty == "tiny" and kind not in _TINY_KINDS:
            raise ConfigError(
                f"search/world: difficulty 'tiny' has questions of {', '.join(_TINY_KINDS)}, "
                f"not {kind!r}"
            )
        if difficulty == "tiny" and articles is not None:
            raise ConfigError("search/world: difficulty 'tiny' has a fixed number of articles")
        limits = limits or _LIMITS.get(difficulty) or Limits()
        tasks = WorldTasks(kind, difficulty, articles, limits)
        super().__init__(tasks=tasks, limits=limits, **options)
        self._world: World | None = None

    @property
    def backend(self) -> SearchBackend:
        """The index over the world's articles, which all environments share."""
        question = self.state.question
        assert isinstance(question, WorldQuestion)
        if self._world is None or self._world.spec != question.spec:
            self._world = world(question.spec)  # held, since only the latest are kept for all
        return self._world.backend
