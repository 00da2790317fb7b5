import pytest

from turngym.environments.search.documents import (
    Document,
    count_words,
    html_to_text,
    pages,
    passages_with,
    snippet,
    terms,
)


def test_pages_cut_between_words_and_keep_line_breaks():
    assert pages("a b\nc  d e", 2) == ["a b", "c  d", "e"]
    assert pages("a b\nc", 10) == ["a b\nc"]
    assert pages("", 3) == [""]


def test_pages_lose_no_word():
    text = " ".join(f"w{i}" for i in range(1001))
    parts = pages(text, 250)
    assert [count_words(part) for part in parts] == [250, 250, 250, 250, 1]
    assert " ".join(parts) == text


def test_the_snippet_is_the_sentence_that_holds_most_of_the_query():
    text = "Rain fell. The pale harbour froze in May. A harbour is a port."
    assert snippet(text, frozenset(terms("Pale HARBOUR")), 20) == "The pale harbour froze in May."
    assert snippet(text, frozenset(terms("pale harbour")), 3) == "The pale harbour ..."
    assert snippet(text, frozenset(terms("zebra")), 9) == "Rain fell."
    assert snippet(text, frozenset(), 0) == ""
    assert snippet("", frozenset({"a"}), 5) == ""


def test_places_are_found_across_blanks_and_letter_case():
    text = "x " * 100 + "The  Pale\nharbour" + " y" * 100 + " pale harbour"
    found = passages_with(text, "pale harbour", width=5, limit=5)
    assert found == ["The Pale harbour y y", "y y pale harbour"]
    assert passages_with("abcdef pale ghijkl", "pale", width=4, limit=1) == ["pale"]
    assert passages_with(text, "zebra", width=4, limit=5) == []
    assert len(passages_with("a b " * 50, "a", width=0, limit=3)) == 3


def test_a_text_without_blanks_is_shown_in_parts_too():
    text = "法国的首都是巴黎。日本的首都是东京。" * 100
    parts = pages(text, 250)
    assert "".join(parts) == text
    assert {count_words(part) for part in parts[:-1]} == {250}
    assert snippet(text, frozenset(), 3) == "法国的首都是 ..."
    assert passages_with(text, "东京", width=4, limit=1) == ["的首都是东京。法国的"]
    assert len(pages("x" * 100_000, 250)) == 4


def test_what_is_looked_for_is_no_pattern():
    assert passages_with("f(x) = .*", ".*", width=0, limit=2) == [".*"]


@pytest.mark.parametrize("links", [None, "ada", 3])
def test_links_that_are_no_list_are_no_links(links):
    assert Document(id="a", title="a", text="", meta={"links": links}).links == ()


def test_a_page_whose_head_is_not_closed_is_read():
    page = "<!DOCTYPE html><html><head><title>Ada</title><style>p{}</style><body><p>Born here."
    assert html_to_text(page) == ("Ada", "Born here.")
