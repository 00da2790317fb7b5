"""One episode of search, on a small corpus written by hand."""

import json
import pickle
from dataclasses import replace

import pytest

from turngym.environments.search.backends.sqlite import SqliteBackend
from turngym.environments.search.base import Limits, SearchEnv
from turngym.environments.search.documents import Document
from turngym.environments.search.questions import Lookup, Question
from turngym.environments.search.world_env import WorldEnv
from turngym.errors import ConfigError, UnknownNameError
from turngym.tasks.scorers.answers import contains_answer
from turngym.tasks.sets import TaskSet

DOCUMENTS = [
    Document(
        id="ada",
        title="Ada Lorn",
        text="Ada Lorn was born in Ormouth.",
        meta={"links": ["Ormouth"]},
    ),
    Document(id="ormouth", title="Ormouth", text="Ormouth lies on the river Tal. " + "So " * 60),
    Document(id="7", title="Bela Lorn", text="Bela Lorn painted boats."),
]
QUESTION = Question(
    text="On which river was Ada Lorn born?",
    answers=("the Tal", "Tal river"),
    kind="2hop",
    plan=(Lookup(query="Ada Lorn", doc="ada"), Lookup(query="Ormouth", doc="ormouth")),
    mentions=("Ada Lorn",),
)
SHORT = Limits(max_searches=2, max_opened_words=60, results=2, page_words=40)


class Small(TaskSet[Question]):
    """Always the same question."""

    def count(self, split):
        return None

    def problem(self, task):
        return QUESTION


class SmallEnv(SearchEnv):
    """A few documents."""

    backend = SqliteBackend.in_memory(DOCUMENTS)

    def __init__(self, **kwargs):
        super().__init__(tasks=Small("small"), **kwargs)


def started(**kwargs):
    env = SmallEnv(**{"limits": SHORT, **kwargs})
    env.reset(seed=0)
    return env


def texts(env, *actions):
    return [env.step(action)[0]["text"] for action in actions]


def test_the_opening_holds_the_question_and_info_the_answer():
    env = SmallEnv()
    observation, info = env.reset(seed=0)
    assert observation["text"] == "Question: On which river was Ada Lorn born?"
    assert (info["ground_truth"], info["answer"]) == ("the Tal", "answer the Tal")
    assert info["usage"] == {"searches": 0.0, "opened_words": 0.0}
    assert info["potential"] == 0.75


def test_search_read_and_answer():
    env = started()
    found, read, *_ = texts(env, "search Ada Lorn", "open 1", "search Ormouth")
    assert (
        found
        == "1. Ada Lorn: Ada Lorn was born in Ormouth.\n2. Bela Lorn: Bela Lorn painted boats."
    )
    assert read == "Ada Lorn\nAda Lorn was born in Ormouth."
    page = env.step("open Ormouth")[0]["text"]
    assert page.startswith("Ormouth (page 1 of 2)\nOrmouth lies on the river Tal. So So")
    observation, reward, terminated, truncated, info = env.step("answer Tal")
    assert (observation["text"], reward, terminated, truncated) == ("right.", 1.0, True, False)
    assert (info["score"], info["exact_match"], info["f1"]) == (1.0, 1.0, 1.0)
    assert info["usage"] == {"searches": 2.0, "opened_words": 46.0}


def test_the_expert_needs_as_many_turns_as_the_potential_says():
    env = started()
    potentials = [env.potential()]
    over = False
    while not over:
        _, reward, over, _, info = env.step(env.expert_action())
        potentials.append(info["potential"])
    assert reward == 1.0
    assert potentials == pytest.approx([0.75, 0.8, 0.85, 0.9, 0.95, 0.0])


def test_names_of_the_question_are_cheats_that_score_nothing():
    env = started()
    [cheat] = env.problem.cheats()
    env.follow(cheat.script)
    assert env.expert_action() == "answer Ada Lorn"
    assert env.step(env.expert_action())[1:3] == (0.0, True)
    assert replace(QUESTION, mentions=("Tal",)).cheats() == []


@pytest.mark.parametrize(
    ("reward", "answer", "value", "score"),
    [
        ("exact", "river of Tal", 0.0, 0.0),
        ("f1", "river of Tal", 0.8, 0.0),
        ("f1", "Tal", 1.0, 1.0),
        ("exact", "unknown", 0.0, 0.0),
    ],
)
def test_rewards(reward, answer, value, score):
    _, got, terminated, _, info = started(reward=reward).step(f"answer {answer}")
    assert (got, terminated, info["score"]) == (pytest.approx(value), True, score)


@pytest.mark.parametrize(
    ("actions", "problem"),
    [
        (["open Ormouth"], "There is no result 'Ormouth'; only results can be opened."),
        (["open 1"], "There is no result '1'; only results can be opened."),
        (["search Ada", "open 3"], "There is no result '3'; only results can be opened."),
        (["search Ada", "open ada page 2"], "'Ada Lorn' has pages 1 to 1."),
        (["search Ada", "open ada page 0"], "'Ada Lorn' has pages 1 to 1."),
        (["search ?!"], "The query holds no word."),
        (["search a", "search a", "search a"], "All 2 searches are spent."),
        (
            ["search Ormouth", "open Ormouth", "open Ormouth"],
            "The page has 40 words; only 20 may still be read.",
        ),
        (["search " + "word " * 300], "The query has 1499 characters; at most 1000 are taken."),
        (["find boats in zebra"], "There is no result 'zebra'; only results can be opened."),
        (["dance"], "Not a command: 'dance'. "),
    ],
)
def test_what_cannot_be_done_costs_the_turn_only(actions, problem):
    env = started()
    texts(env, *actions[:-1])
    before = env.state
    observation, reward, terminated, truncated, info = env.step(actions[-1])
    assert info["invalid_action"].startswith(problem)
    assert observation["text"].startswith(problem)
    assert observation["text"].endswith(env.reminder())
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.state == before


def test_a_result_is_meant_by_id_title_or_number():
    env = started(limits=Limits())
    env.step("search Ada Lorn")
    for reference in ("ada", "Ada Lorn", "ADA LORN", "1", "#1"):
        assert env.step(f"open {reference}")[0]["text"].startswith("Ada Lorn\n"), reference
    assert env.step("open 7")[0]["text"].startswith("Bela Lorn")  # too large for a number


def test_earlier_results_can_still_be_opened():
    env = started()
    assert texts(env, "search Ada", "search Ormouth", "open ada")[2].startswith("Ada Lorn")


def test_find_shows_places_and_counts_them_as_read():
    env = started()
    env.step("search Ormouth")
    observation, *_, info = env.step("find river tal in Ormouth")
    assert observation["text"] == "... Ormouth lies on the river Tal. " + "So " * 26 + "..."
    assert info["usage"]["opened_words"] == 32.0
    assert env.step("find zebra in ormouth")[0]["text"] == "'Ormouth' does not hold 'zebra'."


def test_nothing_found_is_said():
    assert texts(started(), "search zebra") == ["Nothing was found."]


def test_without_snippets_everything_is_short():
    env = started(limits=Limits(snippet_words=0, results=2))
    assert env.state.question.text == env.reminder()
    assert texts(env, "search Ada Lorn", "open ada", "search zebra") == [
        "found Ada Lorn, Bela Lorn.",
        "read Ada Lorn: Ada Lorn was born in Ormouth.",
        "found nothing.",
    ]


def test_json_tools_take_a_number_of_results_and_a_page():
    env = started(action_style="tools", limits=Limits(page_words=40))
    _, info = env.reset(seed=0)
    assert [tool["function"]["name"] for tool in info["tools"]] == [
        "search",
        "open",
        "find",
        "answer",
    ]

    def call(name, **arguments):
        return env.step(json.dumps({"name": name, "arguments": arguments}))

    assert call("search", query="Lorn", k=1)[0]["text"].count("\n") == 0
    assert call("search", query="Ormouth")[0]["text"].startswith("1. Ormouth")
    assert call("open", doc="ormouth", page=2)[0]["text"].startswith("Ormouth (page 2 of 2)")
    assert call("open", doc=1)[0]["text"].startswith("Ormouth")
    assert "invalid_action" in call("search", query="x", k=0)[4]
    assert "invalid_action" in call("search", query="x", k=101)[4]
    long = call("search", query="w" * 100_000)[4]["invalid_action"]
    assert long.startswith("The query has 100000 characters")
    assert call("answer", text="Tal")[1] == 1.0


def test_the_expert_speaks_in_tool_calls():
    env = started(action_style="tools")
    over = False
    while not over:
        _, reward, over, _, info = env.step(env.expert_action())
        assert "invalid_action" not in info
    assert reward == 1.0


def test_every_entry_of_the_menu_is_carried_out():
    env = started()
    env.step("search Lorn")
    state = env.snapshot()
    menu = env.legal_actions()
    assert menu[:3] == ["open 1", "open 2", "search Bela Lorn"]
    for action in menu:
        env.restore(state)
        assert "invalid_action" not in env.step(action)[4], action


def test_that_it_is_unknown_is_on_the_menu_once_something_was_searched_for():
    env = started()
    assert "answer unknown" not in env.legal_actions()
    env.step("search Lorn")
    assert "answer unknown" in env.legal_actions()


def test_the_menu_offers_no_search_when_all_are_spent():
    env = started()
    texts(env, "search Ada", "search Bela")
    assert not any(action.startswith("search") for action in env.legal_actions())


def test_the_state_key_tells_states_apart_and_equal_ones_not():
    first, second = started(), started()
    texts(first, "search Ada", "open ada")
    texts(second, "search Ada", "open ada")
    assert first.state_key() == second.state_key()
    first.step("search Ada")
    assert first.state_key() != second.state_key()


def test_a_snapshot_is_small_and_goes_anywhere():
    env, other = WorldEnv(kind="2hop", difficulty="hard"), WorldEnv(kind="2hop", difficulty="hard")
    env.reset(seed=0)
    env.step(env.expert_action())
    data = pickle.dumps(env.snapshot())
    assert len(data) < 10_000
    other.restore(pickle.loads(data))
    while not env._over:
        action = env.expert_action()
        assert env.step(action) == other.step(action)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kind": "5hop"}, UnknownNameError, "unknown kind of question '5hop'"),
        ({"difficulty": "eazy"}, UnknownNameError, "Did you mean 'easy'"),
        ({"reward": "f2"}, UnknownNameError, "Did you mean 'f1'"),
        ({"action_style": "words"}, UnknownNameError, "unknown action_style"),
        ({"articles": 3}, ConfigError, "at least 20, got 3"),
        ({"difficulty": "tiny", "kind": "count"}, ConfigError, "'tiny' has questions of"),
        ({"difficulty": "tiny", "articles": 50}, ConfigError, "fixed number"),
    ],
)
def test_wrong_arguments_are_told(arguments, error, message):
    with pytest.raises(error, match=message):
        WorldEnv(**arguments)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_searches": 0}, "max_searches must be at least 1, got 0"),
        ({"page_words": -1}, "page_words must be at least 1"),
        ({"results": 101}, "results=101"),
        ({"snippet_words": -1}, "snippet_words=-1"),
    ],
)
def test_wrong_limits_are_told(limits, message):
    with pytest.raises(ConfigError, match=message):
        Limits(**limits)


def test_worlds_of_train_and_test_differ():
    env = WorldEnv(difficulty="medium")
    names = {}
    for split in ("train", "test"):
        sources = set()
        for index in range(12):
            env.reset(options={"task": env.task(split, index)})
            assert env.state.question.split == split
            sources.add(env.state.question.spec.seed)
        names[split] = sources
    assert not names["train"] & names["test"]
    assert 1 < len(names["train"]) <= 12


def test_members_of_a_group_share_one_index():
    first, second = WorldEnv(difficulty="easy"), WorldEnv(difficulty="easy")
    for env in (first, second):
        env.reset(options={"task": env.task("train", 3)})
    assert first.backend is second.backend


@pytest.mark.parametrize("kind", ["2hop", "3hop", "4hop"])
def test_no_document_that_the_question_itself_finds_holds_the_answer(kind):
    env = WorldEnv(kind=kind)
    for index in range(15):
        env.reset(options={"task": env.task("test", index)})
        question, backend = env.state.question, env.backend
        hits = backend.search(question.text, env.limits.results)
        assert question.plan[-1].doc not in {hit.id for hit in hits}
        for hit in hits:
            assert not contains_answer(backend.get(hit.id).text, question.answers[0])


def test_instructions_say_how_often_one_can_search_and_how_much_read():
    words = SmallEnv(limits=Limits(max_searches=3, max_opened_words=500)).instructions
    assert "You can search 3 times and read 500 words." in words
