"""``turngym corpus`` as a user types it."""

import json

import pytest

from helpers.cli import turngym_here
from helpers.warm import turngym


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    lines = [
        json.dumps({"id": f"d{i}", "title": f"Boat {i}", "text": f"Boat {i} is red."})
        for i in range(9)
    ]
    (place / "good.jsonl").write_text("\n".join(lines))
    assert turngym("corpus", "build", place / "good.jsonl", "--out", place / "ix").returncode == 0
    (place / "bad.jsonl").write_text("\n".join([*lines, "{broken"]))
    return place


def test_build_show_and_search(corpus):
    built = turngym("corpus", "build", corpus / "good.jsonl", "--out", corpus / "ix")
    assert built.returncode == 0, built.stderr
    assert "9 documents" in built.stdout
    shown = turngym("corpus", "show", corpus / "ix", "--json")
    assert json.loads(shown.stdout)["num_documents"] == 9
    found = turngym("corpus", "search", corpus / "ix", "boat", "7", "--k", "2", "--json")
    assert json.loads(found.stdout)[0]["id"] == "d7"
    people = turngym("corpus", "search", corpus / "ix", "boat 7", "--k", "1")
    assert people.stdout == "1. d7  Boat 7: Boat 7 is red.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "nowhere.jsonl", "--out", "x"], "no such file or folder"),
        (["build", "bad.jsonl", "--out", "y"], "bad.jsonl:10: not JSON"),
        (
            ["build", "good.jsonl", "--out", "z", "--engine", "lucene"],
            "unknown search engine 'lucene'",
        ),
        (
            ["propose", "ix", "--out", "q", "--proposer", "math:pi"],
            "wanted a function, found float",
        ),
        (["propose", "ix", "--out", "q", "--proposer", "math"], "wanted module:attribute"),
        (["show", "nowhere"], "there is none; see 'turngym corpus build'"),
        (["search", "nowhere", "x"], "there is none"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(corpus, arguments, message):
    done = turngym_here("corpus", *arguments, cwd=corpus)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_bad_records_are_left_out_when_asked(corpus):
    done = turngym("corpus", "build", "bad.jsonl", "--out", "w", "--skip-bad", "--json", cwd=corpus)
    record = json.loads(done.stdout)
    assert (record["num_documents"], record["num_skipped"]) == (9, 1)


def test_questions_are_proposed_for_a_corpus_and_can_be_played(tmp_path):
    from turngym.environments.search.corpus_env import CorpusEnv
    from turngym.environments.search.index import build_index
    from turngym.environments.search.packages import sample_packages

    build_index(sample_packages(), tmp_path / "ix")
    done = turngym(
        "corpus", "propose", tmp_path / "ix", "--out", tmp_path / "q.jsonl", "--attempts", "60"
    )
    assert done.returncode == 0, done.stderr
    assert "questions of 60 attempts" in done.stdout
    env = CorpusEnv(index=str(tmp_path / "ix"), questions=str(tmp_path / "q.jsonl"))
    env.reset(seed=0)
    over = False
    while not over:
        _, reward, over, _, _ = env.step(env.expert_action())
    assert reward == 1.0
