import json

import pytest

from turngym.environments.search.corpus import FolderSource, JsonlSource, open_source
from turngym.environments.search.documents import html_to_text
from turngym.errors import ConfigError


def jsonl(tmp_path, *lines):
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(
        b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines)
    )
    return JsonlSource(file)


def read(source):
    records = list(source.records())
    return [r.document for r in records if r.document], [
        f"{r.where}: {r.problem}" for r in records if r.problem
    ]


def test_json_lines(tmp_path):
    source = jsonl(
        tmp_path,
        {"id": "a", "title": "A", "text": "x", "meta": {"n": 1}},
        b"   ",
        {"id": 7, "text": "y"},
        {"id": 8, "title": float("nan"), "text": "z"},  # as pandas writes what is missing
    )
    documents, problems = read(source)
    assert problems == []
    assert [(d.id, d.title, d.text, dict(d.meta)) for d in documents] == [
        ("a", "A", "x", {"n": 1}),
        ("7", "7", "y", {}),
        ("8", "8", "z", {}),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "not JSON"),
        (b'{"id": "a", "text": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        ([1], "wanted a JSON object, found list"),
        ({"text": "x"}, "'id' must be a text or an integer, found None"),
        ({"id": True, "text": "x"}, "'id' must be a text or an integer, found True"),
        ({"id": " ", "text": "x"}, "'id' must be a text or an integer, found ' '"),
        ({"id": "a\nb", "text": "x"}, "'id' must be one line of at most 500 characters"),
        ({"id": "a" * 501, "text": "x"}, "'id' must be one line"),
        ({"id": "a"}, "'text' must be a text, found None"),
        ({"id": "a", "text": "  "}, "'text' is empty"),
        ({"id": "a", "text": "\x00\x01"}, "a binary document, wanted text"),
        ({"id": "a", "text": "x", "meta": [1]}, "'meta' must be an object, found [1]"),
        ({"id": "a", "text": "half \ud83d"}, "cannot be stored"),
    ],
)
def test_a_broken_line_is_named_with_its_number_and_reason(tmp_path, line, problem):
    documents, problems = read(jsonl(tmp_path, {"id": "ok", "text": "x"}, line))
    assert [d.id for d in documents] == ["ok"]
    assert len(problems) == 1
    assert f"corpus.jsonl:2: {problem}" in problems[0]


def test_reading_goes_on_at_a_position(tmp_path):
    source = jsonl(tmp_path, *({"id": i, "text": "é" * (i + 1)} for i in range(5)))
    records = list(source.records())
    for number, record in enumerate(records):
        rest = [r.document.id for r in source.records(record.after)]
        assert rest == [r.document.id for r in records[number + 1 :]]
    assert records[-1].after[0] == source.size()
    assert records[2].where.endswith(":3")


def test_a_folder_of_text_markdown_and_html(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "one.md").write_text("# The Title\n\nSome text.")
    (tmp_path / "a.txt").write_text("\ufeffplain text")
    (tmp_path / "page.HTML").write_text("<html><head><title>A  page</title></head><p>x<p>y</html>")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    (tmp_path / "binary.txt").write_bytes(b"\x00\xff")
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    documents, problems = read(open_source(tmp_path))
    assert [(d.id, d.title, d.text) for d in documents] == [
        ("a.txt", "a", "plain text"),
        ("b/one.md", "The Title", "# The Title\n\nSome text."),
        ("page.HTML", "A page", "x\ny"),
    ]
    assert [p.partition(": ")[2] for p in problems] == ["a binary document, wanted UTF-8 text"] * 2
    source = FolderSource(tmp_path)
    assert [r.where for r in source.records((3, 3))] == [
        r.where for r in list(source.records())[3:]
    ]


def test_html_without_scripts_styles_and_navigation():
    page = "<title>T</title><nav>menu</nav><h1>Head</h1><script>var x='<p>';</script>a &amp; b<br>c"
    assert html_to_text(page) == ("T", "Head\na & b\nc")
    assert html_to_text("<p>one\n  line</p><pre>two\nlines</pre>") == ("", "one line\ntwo\nlines")
    assert html_to_text("no tags") == ("", "no tags")
    assert html_to_text("<p>never closed <b>bold") == ("", "never closed bold")


@pytest.mark.extra("pyarrow")
def test_parquet(tmp_path):
    import pyarrow
    from pyarrow.parquet import write_table

    file = tmp_path / "c.parquet"
    rows = [{"id": str(i), "text": f"t{i}", "meta": {"n": i}} for i in range(3000)]
    rows[7]["text"] = None
    write_table(pyarrow.Table.from_pylist(rows), file)
    source = open_source(file)
    documents, problems = read(source)
    assert (source.size(), len(documents), len(problems)) == (3000, 2999, 1)
    assert "row 8: 'text' must be a text" in problems[0]
    assert [r.document.id for r in source.records((2998, 2998))] == ["2998", "2999"]
    write_table(pyarrow.table({"name": ["x"]}), file)
    with pytest.raises(ConfigError, match="no column 'id'; found name"):
        open_source(file).size()
    file.write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="not Parquet"):
        open_source(file).size()


@pytest.mark.parametrize("name", ["missing.jsonl", "corpus.csv"])
def test_what_is_no_corpus_is_refused(tmp_path, name):
    (tmp_path / "corpus.csv").write_text("a,b")
    with pytest.raises(ConfigError, match=r"no such file or folder|wanted a folder, a \.jsonl"):
        open_source(tmp_path / name)
