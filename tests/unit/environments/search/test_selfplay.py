import pytest

from turngym.environments.search.backends.sqlite import SqliteBackend
from turngym.environments.search.documents import Document
from turngym.environments.search.packages import sample_packages
from turngym.environments.search.questions import Lookup, Question
from turngym.environments.search.selfplay import (
    ClozeProposer,
    ProposalCounts,
    proposer_rewards,
    self_play_questions,
    verdict,
)
from turngym.environments.search.world import World, WorldSpec
from turngym.errors import ConfigError
from turngym.tasks.scorers.answers import contains_answer

WORLD = World(WorldSpec(seed=1, articles=300, paraphrase=True, namesakes=0.4))
SMALL = SqliteBackend.in_memory(
    [
        Document(id="kite", title="Kite", text="Kite was made by Ada.", meta={"links": ["Ada"]}),
        Document(id="ada", title="Ada", text="Ada was born in Ormouth. Ada sang."),
        Document(id="tal", title="Tal", text="Tal is a river in the west."),
    ]
)
PLAN = (Lookup(query="Kite", doc="kite"), Lookup(query="Ada", doc="ada"))


def proposal(**changes):
    values = {"text": "Where was the maker of Kite born?", "answers": ("Ormouth",), "plan": PLAN}
    return Question(**{**values, **changes})


def test_what_retrieval_solves_passes():
    assert verdict(proposal(), SMALL, k=1) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"text": " "}, "incomplete"),
        ({"answers": ("?!",)}, "incomplete"),
        ({"plan": ()}, "incomplete"),
        ({"text": "Where was the maker born?"}, "a query needs words that were not given"),
        ({"plan": PLAN[::-1]}, "a query needs words that were not given"),
        ({"plan": (*PLAN, Lookup(query="Ada", doc="bela"))}, "a document does not exist"),
        ({"answers": ("Paris",)}, "the last document does not hold the answer"),
        (
            {"plan": (PLAN[0], Lookup(query="Kite", doc="ada"))},
            "a query does not find its document",
        ),
        ({"text": "Was the maker of Kite born in Ormouth?"}, "the question holds the answer"),
        (
            {"text": "In which town was Ada of Kite born, where she sang?"},
            "one search shows the answer",
        ),
    ],
)
def test_what_does_not_pass_is_told_why(changes, reason):
    assert verdict(proposal(**changes), SMALL, k=1) == reason


@pytest.mark.parametrize("source", ["world", "packages"])
def test_the_baseline_writes_questions_with_one_answer(source):
    if source == "world":
        backend = WORLD.backend
    else:
        records = sample_packages().records()
        backend = SqliteBackend.in_memory(record.document for record in records)
    counts = ProposalCounts()
    found = list(self_play_questions(ClozeProposer(), backend, seed=3, attempts=150, counts=counts))
    assert len(found) == counts.accepted >= 15
    assert counts.accepted + counts.rejected.total() == 150
    assert len({one.text for one in found}) == len(found)
    for question in found:
        first, last = (backend.get(doc) for doc in question.supporting)
        assert first.title in question.text
        assert not contains_answer(first.text, question.answers[0])
        assert contains_answer(last.text, question.answers[0])
    again = list(self_play_questions(ClozeProposer(), backend, seed=3, attempts=150))
    assert again == found


def test_a_gap_that_two_sentences_fit_is_no_question():
    documents = [
        Document(id="k", title="Kite", text="By Ada and Bela.", meta={"links": ["Ada", "Bela"]}),
        Document(id="a", title="Ada", text="Ada was born in Ormouth."),
        Document(id="b", title="Bela", text="Bela was born in Talford."),
    ]
    backend = SqliteBackend.in_memory(documents)
    from random import Random

    assert ClozeProposer()(documents[0], backend, Random(0)) is None
    backend.close()


def test_a_proposer_earns_what_solvers_miss():
    rewards = proposer_rewards([[True, True], [True, False, False, False], [False, False]])
    assert rewards == [0.0, 0.75, 0.0]
    with pytest.raises(ConfigError, match="without attempts"):
        proposer_rewards([[]])


def test_nothing_attempted_is_a_mistake():
    with pytest.raises(ConfigError, match="attempts must be at least 1, got 0"):
        list(self_play_questions(ClozeProposer(), WORLD.backend, seed=0, attempts=0))
