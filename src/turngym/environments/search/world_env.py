"""Search in generated worlds: nothing can be known by heart, every question has one answer."""

from __future__ import annotations

from random import Random
from typing import Any, Unpack

from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.base import Limits, SearchEnv, SearchOptions
from turngym.environments.search.questions import Question
from turngym.environments.search.world import World, WorldSpec, world
from turngym.environments.search.world_questions import GENERATORS, sample_question
from turngym.errors import ConfigError, unknown_name
from turngym.seeding import derive_seed
from turngym.tasks.base import Task

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


class WorldEnv(SearchEnv):
    """Answer a question about people, places, works and events of a world that nobody knows.

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

    name = "world"

    def __init__(
        self,
        *,
        kind: str = "2hop",
        difficulty: str = "easy",
        articles: int | None = None,
        limits: Limits | None = None,
        **options: Unpack[SearchOptions],
    ) -> None:
        if kind not in GENERATORS:
            raise unknown_name("kind of question", kind, GENERATORS)
        if difficulty not in DIFFICULTIES:
            raise unknown_name("difficulty of search/world", difficulty, DIFFICULTIES)
        if difficulty == "tiny" and kind not in _TINY_KINDS:
            raise ConfigError(
                f"search/world: difficulty 'tiny' has questions of {', '.join(_TINY_KINDS)}, "
                f"not {kind!r}"
            )
        if difficulty == "tiny" and articles is not None:
            raise ConfigError("search/world: difficulty 'tiny' has a fixed number of articles")
        super().__init__(limits=limits or _LIMITS.get(difficulty), **options)
        self._kind = kind
        self._world: World | None = None
        self._num_worlds = SHARED_WORLDS[difficulty]
        self._settings = dict(DIFFICULTIES[difficulty])
        self.name = f"world-{kind}-{difficulty}"
        if articles is not None:
            self._settings["articles"] = articles
            self.name += f"-{articles}"
        WorldSpec(seed=0, **self._settings)  # complains at once

    def question_of(self, task: Task) -> tuple[Question, WorldSpec]:
        rng = Random(derive_seed(task.seed, "question"))
        for attempt in range(_MAX_WORLDS):
            spec = WorldSpec(seed=self._world_seed(task, attempt), **self._settings)
            question = sample_question(
                world(spec),
                self._kind,
                rng,
                k=self.limits.results,
                snippet_words=self.limits.snippet_words,
                accept=lambda one: one.split == task.split,
                tries=_DRAWS_PER_WORLD,
            )
            if question is not None:
                return question, spec
        raise ConfigError(
            f"{self.name}: no question of kind {self._kind!r} in {_MAX_WORLDS} worlds of "
            f"{self._settings['articles']} articles; make them larger"
        )

    def backend(self, source: WorldSpec) -> SearchBackend:
        """Return the index over the world's articles, which all environments share."""
        if self._world is None or self._world.spec != source:
            self._world = world(source)  # held, since only the latest worlds are kept for all
        return self._world.backend

    def _world_seed(self, task: Task, attempt: int) -> int:
        if self._num_worlds is None:
            return derive_seed(task.seed, "world", attempt)
        number = (derive_seed(task.seed, "which world") + attempt) % self._num_worlds
        return derive_seed(0, "search worlds", task.split, number)
