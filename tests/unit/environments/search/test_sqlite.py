import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random

import pytest

from turngym.environments.search.backends import sqlite as module
from turngym.environments.search.backends.sqlite import SqliteBackend
from turngym.environments.search.documents import Document
from turngym.errors import ConfigError

TEXTS = {
    "a": ("Ada Lorn", "Ada Lorn was born in Ormouth."),
    "b": ("Ormouth", "A city. Ada and others were born there."),
    "c": ("Bela Lorn", "Bela Lorn painted boats."),
    "d": ("Boats", "Boats, painted boats, and more boats in Ormouth."),
}


def documents():
    return [Document(id=i, title=t, text=x, meta={"n": [i]}) for i, (t, x) in TEXTS.items()]


@pytest.fixture
def backend():
    backend = SqliteBackend.in_memory(documents())
    yield backend
    backend.close()


def ids(hits):
    return [hit.id for hit in hits]


def test_titles_count_more_than_texts(backend):
    assert ids(backend.search("Ormouth", 3))[0] == "b"


def test_documents_with_all_words_come_before_those_with_some(backend):
    assert ids(backend.search("Lorn Ormouth", 4))[0] == "a"
    assert set(ids(backend.search("Lorn Ormouth", 4))) == {"a", "b", "c", "d"}


def test_words_match_by_their_stems_and_without_regard_to_case(backend):
    assert ids(backend.search("PAINTING boat", 1)) == ["d"]


def test_a_query_of_nothing_finds_nothing(backend):
    assert backend.search("", 5) == []
    assert backend.search('"*() AND NEAR -', 5) == []
    assert backend.search("?!*", 5) == []


@pytest.mark.parametrize(
    "query", ['"', "a AND", "NEAR(", "title:ada", "ad*", "x' OR 1=1 --", "(" * 99]
)
def test_query_syntax_is_taken_for_words(backend, query):
    assert isinstance(backend.search(query, 3), list)


def test_stop_words_count_only_when_there_is_nothing_else(backend):
    assert ids(backend.search("the boats of the", 1)) == ["d"]
    assert "b" in ids(backend.search("there were", 3))


def test_a_document_comes_back_whole(backend):
    assert backend.get("c") == Document(
        id="c", title="Bela Lorn", text="Bela Lorn painted boats.", meta={"n": ["c"]}
    )
    assert backend.get("zebra") is None


def test_duplicate_ids_are_refused():
    with pytest.raises(ConfigError, match="duplicate document id 'a'"):
        SqliteBackend.in_memory([documents()[0], documents()[0]])


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        SqliteBackend(tmp_path / "x.sqlite")


def test_python_without_fts5_is_told(monkeypatch):
    monkeypatch.setattr(module, "_has_fts5", lambda: False)
    with pytest.raises(ConfigError, match="without FTS5"):
        SqliteBackend.in_memory(documents())


def test_frequent_words_are_left_out_of_the_second_step(monkeypatch):
    monkeypatch.setattr(module, "_MAX_POSTINGS", 10)
    many = [Document(id=str(i), title=f"t{i}", text="common word") for i in range(30)]
    many.append(Document(id="rare", title="x", text="seldom"))
    backend = SqliteBackend.in_memory(many)
    assert ids(backend.search("common seldom", 5)) == ["rare"]
    assert len(backend.search("common word", 5)) == 5
    assert backend.search("common absent", 5) == []
    backend.close()


def test_threads_get_the_same_results(backend, tmp_path):
    file = tmp_path / "index.sqlite"
    with closing(sqlite3.connect(file)) as target, target:
        backend._shared.backup(target)
    target.close()
    on_disk = SqliteBackend(file)
    with ThreadPoolExecutor(4) as pool:
        for each in (backend, on_disk):
            each.forget()
            found = list(pool.map(lambda n, e=each: ids(e.search("Ormouth", 1 + n % 4)), range(40)))
            assert found == [ids(backend.search("Ormouth", 1 + n % 4)) for n in range(40)]
    on_disk.close()
    on_disk.close()


def test_results_carry_no_more_than_a_snippet_needs():
    backend = SqliteBackend.in_memory([Document(id="a", title="A", text="word " * 50_000)])
    (hit,) = backend.search("word", 1)
    assert len(hit.text) == 8_000
    assert len(backend.get("a").text) == 250_000
    backend.close()


def test_the_rest_is_ranked_as_one_query_for_all_its_words_would_rank_it():
    rng = Random(3)
    words = ["lorn", "boat", "boats", "city", "river", "the", "o'neil", "1,200", "über"]
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 30))) for _ in range(400)]
    with closing(
        SqliteBackend.in_memory(
            Document(id=str(n), title=rng.choice(words), text=text) for n, text in enumerate(texts)
        )
    ) as backend:
        for _ in range(60):
            asked, k = rng.sample([*words, "nobody"], rng.randint(2, 6)), rng.randint(1, 60)
            whole = backend._ranked(" OR ".join(f'"{word}"' for word in asked), k)
            assert backend.hits(backend._best(asked, k)) == whole  # scores to the bit, ties alike
