import json
import re
from pathlib import Path

import pytest

import turngym
from turngym.environments.checks.check import check_fork, check_turn_env
from turngym.environments.search.backends.custom import CustomEngine, OwnBackend
from turngym.environments.search.corpus import JsonlSource
from turngym.environments.search.corpus_env import CorpusEnv
from turngym.environments.search.index import build_index
from turngym.environments.search.packages import PackageSource
from turngym.environments.search.questions import Question, read_questions, write_questions
from turngym.errors import ConfigError

DOCUMENTS = [
    {"id": "1", "title": "Ada", "text": "Ada was born in Ormouth."},
    {"id": "2", "title": "Ormouth", "text": "Ormouth lies on the Tal."},
]
QUESTIONS = [
    {
        "text": f"Question {i}: on which river was Ada born?",
        "answers": ["Tal"],
        "plan": [{"query": "Ada", "doc": "1"}, {"query": "Ormouth", "doc": "2"}],
        "split": "train" if i else "test",
    }
    for i in range(3)
]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, DOCUMENTS)))
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)) + "\n\n")
    build_index(JsonlSource(tmp_path / "c.jsonl"), tmp_path / "ix")
    return tmp_path


def options(place):
    return {"index": str(place / "ix"), "questions": str(place / "q.jsonl")}


def test_a_question_of_the_sample_comes_back_only_after_all_others():
    env = CorpusEnv()
    for split in ("train", "test"):
        asked = []
        for index in range(60):
            env.reset(options={"task": env.task(split, index)})
            asked.append(env.state.question.text)
        different = list(dict.fromkeys(asked))
        assert asked[: len(different)] == different
        assert len(different) >= 30
        again = CorpusEnv()
        again.reset(options={"task": env.task(split, 17)})
        assert again.state.question.text == asked[17]


def test_questions_of_a_file_are_the_tasks(place):
    env = CorpusEnv(**options(place))
    openings = {
        env.reset(options={"task": env.task("train", i)})[0]["text"].split(":")[1] for i in (0, 1)
    }
    assert openings == {" Question 1", " Question 2"}
    drawn = {env.reset(seed=seed)[1]["task_id"].partition("/")[2] for seed in range(20)}
    assert drawn == {"train/0", "train/1"}
    assert env.reset(options={"split": "test"})[1]["task_id"].endswith("/test/0")
    with pytest.raises(ConfigError, match="there is none; the set has 2 of 'train', 1 of 'test'"):
        env.task("test", 1)
    with pytest.raises(ConfigError, match="there is none; the set has 2 of 'train'"):
        env.find_task(f"{env.name}/train/2")
    with pytest.raises(ConfigError, match="unknown reset option"):
        env.reset(options={"splitt": "test"})
    with pytest.raises(ConfigError, match="wanted one of train, test"):
        env.reset(options={"split": "dev"})


def test_a_corpus_of_ones_own_keeps_the_promises(place):
    kwargs = options(place)
    made = lambda: turngym.make("search/corpus", **kwargs)  # noqa: E731
    check_turn_env(made, episodes=1, tasks=4).raise_on_failure()
    check_fork(made, episodes=1).raise_on_failure()


def test_without_a_plan_there_is_no_expert(place):
    bare = [{"text": "Where was Ada born?", "answer": "Ormouth", "split": "train"}]
    (place / "q.jsonl").write_text(json.dumps(bare[0]))
    env = CorpusEnv(**options(place))
    _, info = env.reset(seed=0)
    assert (info["ground_truth"], "potential" in info) == ("Ormouth", False)
    with pytest.raises(ConfigError, match="no plan, so there is no expert"):
        env.expert_action()
    assert env.step("answer ormouth.")[1] == 1.0


def test_an_index_of_packages_asks_its_own_questions(tmp_path):
    from turngym.environments.search.packages import sample_packages

    build_index(sample_packages(), tmp_path / "ix")
    env, plain = CorpusEnv(index=str(tmp_path / "ix")), CorpusEnv()
    for index in range(3):
        one, other = (e.reset(options={"task": e.task("train", index)}) for e in (env, plain))
        assert one[1]["task_id"] != other[1]["task_id"]
    over = False
    while not over:
        _, reward, over, _, _ = env.step(env.expert_action())
    assert reward == 1.0


def test_too_few_packages_are_told(tmp_path):
    build_index(PackageSource("Package: a\nVersion: 1\n"), tmp_path / "ix")
    env = CorpusEnv(index=str(tmp_path / "ix"))
    with pytest.raises(ConfigError, match="the index holds 1 packages, which are too few"):
        env.reset(seed=0)


def test_wrong_arguments_are_told(place):
    index, questions = options(place)["index"], options(place)["questions"]
    with pytest.raises(ConfigError, match=r"not of packages, .* name a file with 'questions'"):
        CorpusEnv(index=index)
    with pytest.raises(ConfigError, match="a live engine needs 'questions' and no 'index'"):
        CorpusEnv(engine={"url": "http://x"})
    with pytest.raises(ConfigError, match="there is none; see 'turngym corpus build'"):
        CorpusEnv(index=str(place / "nowhere"), questions=questions)
    with pytest.raises(ConfigError, match="the sample has no engine 'tantivy'"):
        CorpusEnv(engine="tantivy")
    with pytest.raises(ConfigError, match=r"search limits: .*'max_serches'.*; known: max_searches"):
        CorpusEnv(limits={"max_serches": 3})
    assert CorpusEnv(limits={"max_searches": 3}).limits.max_searches == 3


def test_the_engine_of_the_page_answers(tmp_path, monkeypatch):
    page = (Path(__file__).parents[4] / "docs/search.md").read_text()
    [code] = re.findall(r"```python\n(\"\"\"my_engine.*?)```", page, re.DOTALL)
    (tmp_path / "my_engine.py").write_text(code)
    plan = [{"query": "tin mine", "doc": "tin"}, {"query": "Ada Pell", "doc": "pell"}]
    asked = {"text": "Where was she born who opened the tin mine?", "answers": ["Norrow"]}
    asked["split"] = "test"
    (tmp_path / "questions.jsonl").write_text(json.dumps({**asked, "plan": plan}))
    monkeypatch.chdir(tmp_path)
    own = {"type": "custom", "function": "my_engine.py:Titles"}
    envs = [CorpusEnv(engine=own, questions="questions.jsonl") for _ in range(2)]
    assert envs[0].backend is envs[1].backend, "it is made once"
    assert envs[0].blocks
    envs[0].reset(options={"task": envs[0].task("test", 0)})
    seen, over = "", False
    while not over:
        seen, reward, over, _, _ = envs[0].step(envs[0].expert_action())
    assert reward == 1.0, seen


class Careless:
    """Returns what no engine does."""

    name = "careless"

    def search(self, query, k):
        return ["a hit"]

    def get(self, doc_id):
        return {"id": doc_id}

    def close(self):
        pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"function": "my_engine_that_is_not:Titles"}, "no module 'my_engine_that_is_not' here"),
        ({"functio": "a:b"}, "functio: unknown key"),
        ({"function": Careless}, "wanted module:attribute or path.py:attribute"),
        ({"function": "builtins:object"}, "lacks search, get, close of turngym"),
    ],
)
def test_an_engine_that_is_none_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        CorpusEnv(engine={"type": "custom", **settings}, questions="questions.jsonl")


def test_what_an_engine_wrongly_returns_is_named():
    engine = OwnBackend(CustomEngine(type="custom", function=f"{__file__}:Careless"))
    with pytest.raises(ConfigError, match="Careless': search, in its list, gave a str, wanted a"):
        engine.search("x", 3)
    with pytest.raises(ConfigError, match="Careless': get gave a dict, wanted a Document"):
        engine.get("x")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "q.jsonl, row 1: no JSON"),
        ("[]", "q.jsonl, row 1: wanted an object"),
        ('{"answers": ["x"]}', "q.jsonl, row 1: 'text': Field required"),
        ('{"text": " ", "answers": ["x"]}', "'text': String should have at least 1 character"),
        ('{"text": "x"}', "'answers': Field required"),
        ('{"text": "x", "answers": []}', "'answers': .* at least 1 item"),
        ('{"text": "x", "answers": [1]}', "'answers.0': Input should be a valid string, found 1"),
        ('{"text": "x", "answers": ["a"], "plan": [{"query": "q"}]}', "'plan.0.doc': Field requi"),
        ('{"text": "x", "answers": ["a"], "split": "dev"}', "'split': .*'train' or 'test', found"),
        ("", "there are none"),
    ],
)
def test_a_broken_question_is_named(tmp_path, line, message):
    file = tmp_path / "q.jsonl"
    file.write_text(line)
    with pytest.raises(ConfigError, match=message):
        read_questions(file)


def test_questions_survive_a_file(tmp_path):
    found = read_questions_of(tmp_path, QUESTIONS)
    assert write_questions(tmp_path / "again.jsonl", found) == 3
    assert read_questions(tmp_path / "again.jsonl") == found
    assert [one.split for one in found] == ["test", "train", "train"]
    assert isinstance(found[0], Question)
    with pytest.raises(ConfigError, match="there is no such file"):
        read_questions(tmp_path / "none.jsonl")


def test_what_a_table_leaves_empty_is_as_if_it_were_not_there(tmp_path):
    empty = dict.fromkeys(("answer", "kind", "plan", "mentions", "split"))
    (found,) = read_questions_of(tmp_path, [{**empty, "text": "Where?", "answers": ["x"]}])
    assert found == Question(text="Where?", answers=("x",))


def read_questions_of(tmp_path, values):
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, values)))
    return read_questions(tmp_path / "q.jsonl")
