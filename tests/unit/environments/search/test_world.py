from random import Random

import pytest

from turngym.environments.search.questions import leaks
from turngym.environments.search.world import Entity, World, WorldSpec
from turngym.environments.search.world_env import GENERATORS, MIXED_KINDS, WorldEnv, sample_question
from turngym.errors import ConfigError
from turngym.tasks.scorers.answers import UNKNOWN, contains_answer

RICH = WorldSpec(seed=3, articles=200, paraphrase=True, namesakes=0.5, notes=0.2)


@pytest.fixture(scope="module")
def rich():
    return World(RICH)


def draw(world, kind, seed, **kwargs):
    return sample_question(world, kind, Random(seed), k=5, snippet_words=24, **kwargs)


def find(world, name):
    return next(one for one in world.entities if one.name == name)


def test_a_world_is_a_function_of_its_spec(rich):
    assert World(RICH).documents == rich.documents
    assert World(WorldSpec(seed=4, articles=200)).documents[0] not in rich.documents


@pytest.mark.parametrize("articles", [20, 60, 333])
def test_a_world_has_the_size_that_was_asked_for(articles):
    world = World(WorldSpec(seed=1, articles=articles, notes=0.3))
    assert len(world.documents) == articles
    assert len({one.id for one in world.documents}) == articles
    assert len({one.title.casefold() for one in world.documents}) == articles


def test_every_fact_stands_in_the_article_of_its_subject(rich):
    texts = {one.id: one.text for one in rich.documents}
    for entity in rich.entities:
        for relation in entity.facts:
            assert contains_answer(texts[entity.id], entity.text_of(relation)), (entity, relation)


def test_time_runs_forward(rich):
    for person in rich.by_kind["person"]:
        teacher = person.facts.get("teacher")
        if isinstance(teacher, Entity):
            assert teacher.facts["birth_year"] <= person.facts["birth_year"]
    for work in rich.by_kind["work"]:
        assert work.facts["finished"] > work.facts["creator"].facts["birth_year"]
    for event in rich.by_kind["event"]:
        if "founder" in event.facts:
            assert event.facts["opened"] > event.facts["founder"].facts["birth_year"]


def test_wordings_namesakes_and_notes_come_only_when_asked_for(rich):
    plain = World(WorldSpec(seed=3, articles=200))
    families = [one.name.split()[1] for one in plain.by_kind["person"]]
    assert len(set(families)) == len(families)
    assert not any(one.meta["kind"] == "note" for one in plain.documents)
    families = [one.name.split()[1] for one in rich.by_kind["person"]]
    assert len(set(families)) < len(families)
    assert sum(one.meta["kind"] == "note" for one in rich.documents) == 40
    born = [one.text for one in rich.documents if one.meta["kind"] == "person"]
    assert 0 < sum("was born in" in text for text in born) < len(born)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"articles": 19}, "at least 20, got 19"),
        ({"namesakes": 1.5}, "namesakes=1.5"),
        ({"notes": 0.7}, "notes=0.7"),
    ],
)
def test_a_world_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        WorldSpec(seed=0, **settings)


@pytest.mark.parametrize("kind", GENERATORS)
def test_questions_give_nothing_away_and_can_be_answered(rich, kind):
    texts = {one.id: one.text for one in rich.documents}
    for seed in range(6):
        question = draw(rich, kind, seed)
        assert question == draw(rich, kind, seed)
        assert not contains_answer(question.text, question.answers[0])
        assert all(name in question.text for name in question.mentions)
        assert leaks(question, rich.backend, k=5, snippet_words=24) == ""
        if question.answers != (UNKNOWN,) and question.kind not in ("count", "temporal"):
            told = [contains_answer(texts[doc], question.answers[0]) for doc in question.supporting]
            assert any(told)
            if question.kind.endswith("hop"):
                assert told == [False] * (len(told) - 1) + [True]
                assert f"{len(question.supporting)}hop" == question.kind


def test_chains_are_answered_by_following_the_facts(rich):
    question = draw(rich, "2hop", 0)
    first, second = (next(e for e in rich.entities if e.id == doc) for doc in question.supporting)
    assert second in first.facts.values()
    assert question.answers[0] in [second.text_of(one) for one in second.facts]
    assert first.name in question.text
    assert second.name not in question.text


def test_the_winner_of_a_comparison_wins(rich):
    for seed in range(8):
        question = draw(rich, "compare", seed)
        relation = {"born": "birth_year", "settled": "settled", "inhabitants": "population"}
        name = next((v for k, v in relation.items() if k in question.text), "finished")
        best = max if (" last" in question.text or "most" in question.text) else min
        rivals = [next(e for e in rich.entities if e.id == doc) for doc in question.supporting]
        rivals = [one for one in rivals if name in one.facts and one.name not in question.mentions]
        assert best(rivals, key=lambda one: one.facts[name]).name == question.answers[0]


def test_exactly_one_fits_an_intersection(rich):
    pairs = {"work": ("creator", "setting"), "event": ("founder", "host")}
    for seed in range(6):
        question = draw(rich, "intersect", seed)
        target = find(rich, question.answers[0])
        first, second = pairs.get(target.kind, ("teacher", "birthplace"))
        fitting = [
            one
            for one in rich.by_kind[target.kind]
            if one.facts.get(first) is target.facts[first]
            and one.facts.get(second) is target.facts[second]
        ]
        assert fitting == [target]
        assert question.plan[-1].doc == target.id


def test_counts_are_right(rich):
    for seed in range(6):
        question = draw(rich, "count", seed)
        entities = [next(e for e in rich.entities if e.id == doc) for doc in question.supporting]
        creator = next(
            e for e in entities[:2] if e.kind == "person" and e.name not in question.text
        )
        year = int(question.text.rstrip("?").split()[-1])
        works = [w for w in rich.by_kind["work"] if w.facts["creator"] is creator]
        assert sum(w.facts["finished"] < year for w in works) == int(question.answers[0])
        assert {w.id for w in works} <= set(question.supporting)


def test_times_are_right(rich):
    kinds = set()
    for seed in range(12):
        question = draw(rich, "temporal", seed)
        if "How many years" in question.text:
            work = find(rich, question.mentions[0])
            years = work.facts["finished"] - work.facts["creator"].facts["birth_year"]
            assert question.answers == (str(years),)
        else:
            event = find(rich, question.answers[0])
            rivals = [e for e in rich.by_kind["event"] if e.facts["host"] is event.facts["host"]]
            best = min if "first" in question.text else max
            assert best(rivals, key=lambda e: e.facts["opened"]) is event
        kinds.add(question.text.split()[0])
    assert kinds == {"How", "Which"}


def test_about_a_third_of_the_unanswerable_kind_is_unanswerable(rich):
    questions = [draw(rich, "unanswerable", seed) for seed in range(60)]
    missing = [one for one in questions if one.answers == (UNKNOWN,)]
    assert 8 <= len(missing) <= 35
    last = next(e for e in rich.entities if e.id == missing[0].supporting[-1])
    assert len(last.facts) < len([*last.facts, "one more"])


def test_mixed_questions_are_of_every_kind(rich):
    kinds = {draw(rich, "mixed", seed).kind for seed in range(80)}
    assert kinds == set(MIXED_KINDS)


def test_further_demands_are_met(rich):
    for split in ("train", "test"):
        question = draw(rich, "2hop", 5, accept=lambda one, s=split: one.split == s)
        assert question.split == split


def test_a_world_without_such_a_question_gives_none(rich):
    assert draw(rich, "2hop", 0, accept=lambda _: False, tries=50) is None


def test_an_environment_whose_worlds_are_too_small_says_so(monkeypatch):
    monkeypatch.setitem(GENERATORS, "count", lambda _world, _rng: None)
    with pytest.raises(ConfigError, match=r"no question of kind 'count' in 20 worlds of 20"):
        WorldEnv(kind="count", articles=20).reset(seed=0)


def test_a_tiny_world_speaks_in_few_words():
    world = World(WorldSpec(seed=2, tiny=True))
    assert len(world.documents) == 18
    assert max(len(one.text.split()) for one in world.documents) <= 6
    question = sample_question(world, "2hop", Random(1), k=3, snippet_words=0)
    assert len(question.text.split()) == 4
