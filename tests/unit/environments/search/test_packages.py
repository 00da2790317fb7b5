from random import Random

import pytest

from turngym.environments.search import packages as module
from turngym.environments.search.backends.sqlite import SqliteBackend
from turngym.environments.search.corpus import DocumentationSource, passages
from turngym.environments.search.corpus_env import PackageGraph, sample_package_question
from turngym.environments.search.packages import (
    PackageSource,
    dependencies,
    find_source,
    read_stanzas,
    sample_packages,
)
from turngym.environments.search.questions import leaks
from turngym.errors import ConfigError

STANZAS = """\
Package: alpha
Version: 1.0-1
Installed-Size: 120
Maintainer: "Ada Lorn" <ada@example.org>
Depends: beta (>= 2), gamma | delta,
 alpha-data (= 1.0), missing
Homepage: https://alpha.example.org/
Section: net
Description: first of letters
 It comes first.
 .
 And stays there.

Package: beta
Version: 2.1

garbage line
 more garbage
Package: beta
Version: 9.9

Package: broken
"""


def test_stanzas_are_read_with_continuation_lines():
    found = list(read_stanzas(STANZAS.splitlines()))
    assert [one.get("Package") for one in found] == ["alpha", "beta", "beta", "broken"]
    assert found[0]["Description"] == "first of letters\nIt comes first.\n.\nAnd stays there."
    assert dependencies(found[0]) == ["beta", "gamma", "alpha-data", "missing"]


def test_articles_name_facts_and_known_dependencies():
    source = PackageSource(STANZAS)
    alpha, beta = (record.document for record in source.records())
    assert alpha.text == (
        "alpha: first of letters. Its version is 1.0-1. It belongs to section net. It is "
        "maintained by Ada Lorn. Its homepage is https://alpha.example.org/. "
        "Installed it takes 120 kB. It depends on beta.\nIt comes first.\nAnd stays there."
    )
    assert alpha.links == ("beta",)
    assert (beta.id, beta.text) == ("beta", "beta: a package. Its version is 2.1.")
    assert (source.size(), [r.document.id for r in source.records((1, 1))]) == (2, ["beta"])


def test_questions_have_one_answer_that_the_records_give():
    records = [record.document for record in sample_packages().records()]
    backend, graph = SqliteBackend.in_memory(records), PackageGraph(records)
    kinds = set()
    for seed in range(40):
        question = sample_package_question(graph, backend, Random(seed), k=5, snippet_words=24)
        kinds.add(question.kind)
        assert leaks(question, backend, k=5, snippet_words=24) == ""
        visited = [graph.packages[doc] for doc in question.supporting]
        first, last = visited[0], visited[-1]
        if question.kind == "largest dependency":
            largest = max(visited[1:], key=lambda one: int(one.fields["installed_size"]))
            assert set(first.links) == {one.name for one in visited[1:]}
            assert question.answers == (largest.fields["maintainer"],)
        elif question.kind == "other package":
            same = [
                p
                for p in graph.packages.values()
                if p.fields["maintainer"] == first.fields["maintainer"]
            ]
            assert {p.name for p in same} == {first.name, last.name}
            assert question.answers == (last.fields["section"],)
        else:
            assert (visited[0].links, visited[1].links) == ((visited[1].name,), (last.name,))
            assert question.answers == (last.fields["version"],)
    assert kinds == {"largest dependency", "other package", "only dependency"}
    backend.close()


def test_the_sample_is_the_same_everywhere():
    assert sample_packages().fingerprint().startswith("ae783e9343d1e7f9")


def test_the_index_of_this_machine_needs_its_package_manager(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs the program 'apt-cache'"):
        find_source("packages")
    for script, message in (("exit 3", "failed"), ("echo", "is empty; run 'apt-get update'")):
        (tmp_path / "apt-cache").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "apt-cache").chmod(0o755)
        with pytest.raises(ConfigError, match=message):
            find_source("packages")
    (tmp_path / "apt-cache").write_text("#!/bin/sh\necho 'Package: x'\necho 'Version: 1'\n")
    assert list(find_source("packages").packages) == ["x"]


def test_packages_from_a_file(tmp_path):
    file = tmp_path / "Packages"
    file.write_text(STANZAS)
    assert PackageSource.from_file(file).size() == 2
    assert module.maintainer({"Maintainer": "X Team <x@y>"}) == "X Team"


def test_documentation_is_cut_into_passages_with_its_licence(tmp_path):
    folder = tmp_path / "pkg" / "html"
    folder.mkdir(parents=True)
    (tmp_path / "pkg" / "copyright").write_text("License: MIT\n...\nLicense: MIT\nLicense: PSF-2\n")
    line = "word " * 30
    (folder / "a.html").write_text("<title>A</title>" + f"<p>{line}" * 9)
    (folder / "b.txt").write_text("short text")
    (folder / "c.txt").write_bytes(b"\x00")
    source = DocumentationSource(folder)
    assert (source.name, source.licence, source.size()) == ("html", "MIT, PSF-2", 3)
    records = list(source.records())
    assert [r.document.id if r.document else r.problem for r in records] == [
        "a.html#1",
        "a.html#2",
        "a.html#3",
        "b.txt#1",
        "a binary document, wanted UTF-8 text",
    ]
    assert records[0].document.title == "A"
    for number, record in enumerate(records):
        rest = [r.where for r in source.records(record.after)]
        assert rest == [r.where for r in records[number + 1 :]]


def test_passages_lose_no_word_and_are_of_a_size():
    lines = [f"line {i} " + "w " * (i % 17) for i in range(200)]
    cut = passages("\n".join(lines))
    assert " ".join(" ".join(cut).split()) == " ".join(" ".join(lines).split())
    assert all(20 <= len(one.split()) <= 160 for one in cut)
    assert passages("a b") == ["a b"]
    assert passages("") == []


@pytest.mark.parametrize("text", ["docs:", "docs:/no/such/folder", "nowhere.jsonl"])
def test_sources_that_are_not_there(text):
    with pytest.raises(ConfigError):
        find_source(text)


def test_a_folder_without_documentation(tmp_path):
    with pytest.raises(ConfigError, match="no text, Markdown or HTML"):
        find_source(f"docs:{tmp_path}")
