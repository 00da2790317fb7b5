import json
import sqlite3
from contextlib import closing

import pytest

from turngym.environments.search import index as module
from turngym.environments.search.corpus import JsonlSource
from turngym.environments.search.index import build_index, open_index, read_manifest
from turngym.errors import ConfigError, UnknownNameError


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(module, "_BATCH", 3)


def source_of(tmp_path, count, *, bad=()):
    file = tmp_path / "corpus.jsonl"
    lines = [
        json.dumps({"id": f"d{i}", "title": f"Title {i}", "text": f"word{i} all"})
        for i in range(count)
    ]
    for place, line in bad:
        lines[place] = line
    file.write_text("\n".join(lines) + "\n")
    return JsonlSource(file)


def test_build_and_search(tmp_path):
    told = []
    manifest = build_index(
        source_of(tmp_path, 10),
        tmp_path / "ix",
        advance=lambda done, note: told.append((done, note)),
    )
    assert (manifest.num_documents, manifest.num_skipped, manifest.engines) == (10, 0, ("sqlite",))
    assert manifest == read_manifest(tmp_path / "ix")
    assert manifest.size_bytes > 0
    assert [note for _, note in told] == [f"{n} documents" for n in (3, 6, 9, 10)]
    backend = open_index(tmp_path / "ix")
    assert [hit.id for hit in backend.search("word7", 5)] == ["d7"]
    assert len(backend.search("all", 100)) == 10
    assert backend.get("d3").title == "Title 3"
    backend.close()


def test_a_build_that_was_killed_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    source = source_of(tmp_path, 10)
    whole = build_index(source, tmp_path / "whole")

    class Killed(BaseException):
        pass

    def stop(done, note):
        if note == "6 documents":
            raise Killed

    with pytest.raises(Killed):
        build_index(source, tmp_path / "ix", advance=stop)
    with pytest.raises(ConfigError, match="interrupted; run 'turngym corpus build' again"):
        open_index(tmp_path / "ix")
    seen = []
    plain = source.records
    monkeypatch.setattr(
        source, "records", lambda start: (seen.append(r) or r for r in plain(start))
    )
    again = build_index(source, tmp_path / "ix")
    assert (again.num_documents, again.sha256) == (10, whole.sha256)
    assert [r.document.id for r in seen] == ["d6", "d7", "d8", "d9"]
    with closing(sqlite3.connect(tmp_path / "ix" / "documents.sqlite")) as database, database:
        rows = "SELECT id FROM documents ORDER BY number"
        assert [r[0] for r in database.execute(rows)] == [f"d{i}" for i in range(10)]
    database.close()


def test_the_hash_is_of_the_contents(tmp_path):
    one = build_index(source_of(tmp_path, 4), tmp_path / "a").sha256
    assert build_index(source_of(tmp_path, 4), tmp_path / "b").sha256 == one
    assert build_index(source_of(tmp_path, 5), tmp_path / "c").sha256 != one


def test_a_broken_record_stops_the_build_unless_asked_otherwise(tmp_path):
    source = source_of(tmp_path, 6, bad=[(4, "{"), (1, json.dumps({"id": "d0", "text": "again"}))])
    with pytest.raises(
        ConfigError, match=r"corpus.jsonl:2: duplicate document id 'd0'; --skip-bad"
    ):
        build_index(source, tmp_path / "ix")
    manifest = build_index(source, tmp_path / "ix", skip_bad=True)
    assert (manifest.num_documents, manifest.num_skipped) == (4, 2)
    other = source_of(tmp_path, 6, bad=[(4, "{")])
    with pytest.raises(ConfigError, match=r"corpus.jsonl:5: not JSON .*; --skip-bad"):
        build_index(other, tmp_path / "other")


def test_an_empty_corpus_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no document"):
        build_index(source_of(tmp_path, 0), tmp_path / "ix")
    with pytest.raises(ConfigError, match="holds no document"):
        build_index(source_of(tmp_path, 1, bad=[(0, "{")]), tmp_path / "iy", skip_bad=True)


def test_a_corpus_that_changed_needs_a_fresh_start(tmp_path):
    build_index(source_of(tmp_path, 4), tmp_path / "ix")
    changed = source_of(tmp_path, 7)
    with pytest.raises(ConfigError, match="not what this index was begun with; --fresh"):
        build_index(changed, tmp_path / "ix")
    assert read_manifest(tmp_path / "ix").num_documents == 4
    assert build_index(changed, tmp_path / "ix", fresh=True).num_documents == 7


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for fresh in (False, True):
        with pytest.raises(ConfigError, match="holds something else"):
            build_index(source_of(tmp_path, 1), tmp_path / "mine", fresh=fresh)
    assert (tmp_path / "mine" / "thesis.txt").exists()
    with pytest.raises(ConfigError, match="it is a file"):
        build_index(source_of(tmp_path, 1), tmp_path / "mine" / "thesis.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "not the manifest"),
        ("[]", "not the manifest"),
        ("{}", "not the manifest"),
        (
            '{"format": "turngym.corpus", "version": 2}',
            "version 2; this turngym reads .* version 1",
        ),
        ('{"format": "other", "version": 1}', "format 'other'"),
        ('{"format": "turngym.corpus", "version": 1, "engines": []}', "incomplete"),
    ],
)
def test_a_manifest_that_cannot_be_read(tmp_path, text, message):
    build_index(source_of(tmp_path, 1), tmp_path / "ix")
    (tmp_path / "ix" / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        open_index(tmp_path / "ix")


def test_engines_that_are_not_there(tmp_path):
    source = source_of(tmp_path, 2)
    with pytest.raises(UnknownNameError, match="Did you mean 'tantivy'"):
        build_index(source, tmp_path / "ix", engines=["tantivi"])
    build_index(source, tmp_path / "ix")
    with pytest.raises(
        ConfigError, match=r"built for sqlite, not for 'tantivy'; .* --engine tantivy"
    ):
        open_index(tmp_path / "ix", "tantivy")
    with pytest.raises(ConfigError, match="not for 'dense'"):
        open_index(tmp_path / "ix", "hybrid")
    with pytest.raises(UnknownNameError, match="unknown search engine"):
        open_index(tmp_path / "ix", "elastic")
    with pytest.raises(ConfigError, match="there is none"):
        open_index(tmp_path / "nowhere")


def test_a_second_build_adds_an_engine_and_keeps_the_first(tmp_path, monkeypatch):
    source = source_of(tmp_path, 5)
    built = []

    def build(database, folder, argument=""):
        folder.mkdir()
        built.append((folder.name, argument))

    monkeypatch.setattr(module, "_part", lambda _name: build)
    build_index(source, tmp_path / "ix", engines=["bm25s"])
    manifest = build_index(source, tmp_path / "ix", engines=["dense:mine:encode"])
    assert manifest.engines == ("sqlite", "bm25s", "dense")
    assert (manifest.num_documents, built) == (5, [("bm25s", ""), ("dense", "mine:encode")])
    assert build_index(source, tmp_path / "ix", fresh=True).engines == ("sqlite",)
    assert not (tmp_path / "ix" / "bm25s").exists()


def test_a_database_that_is_none_is_told(tmp_path):
    source = source_of(tmp_path, 5)
    build_index(source, tmp_path / "ix")
    (tmp_path / "ix" / "documents.sqlite").write_bytes(b"nonsense " * 1000)
    with pytest.raises(ConfigError, match=r"cannot be read \(file is not a database\); .* --fresh"):
        open_index(tmp_path / "ix")
    with pytest.raises(ConfigError, match=r"file is not a database; .* anew with --fresh"):
        build_index(source, tmp_path / "ix")
    assert build_index(source, tmp_path / "ix", fresh=True).num_documents == 5
