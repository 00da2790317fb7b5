from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.models import tokenizer
from helpers.tools import TOOLS
from turngym.agents.engine.small_tokenizer import (
    MIN_VOCAB_SIZE,
    SPECIAL_TOKENS,
    small_action,
    train_tokenizer,
)
from turngym.agents.rendering import Renderer
from turngym.agents.tool_calls import action_text
from turngym.errors import ConfigError
from turngym.types import Message


@given(st.text(max_size=60).filter(lambda text: not any(s in text for s in SPECIAL_TOKENS)))
def test_every_text_survives_encoding(text: str) -> None:
    ids = tokenizer().encode(text, add_special_tokens=False)
    assert tokenizer().decode(ids) == text


def test_special_tokens_are_single_ids() -> None:
    for token in SPECIAL_TOKENS:
        assert len(tokenizer().encode(token, add_special_tokens=False)) == 1


def test_frequent_words_become_short() -> None:
    assert len(tokenizer().encode("go north")) <= 3


def test_too_small_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"at least {MIN_VOCAB_SIZE}"):
        train_tokenizer(["a"], 100)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(), lambda one: st.lists(one, max_size=2)
)


@cache
def small_renderer(images: bool) -> Renderer:
    return Renderer(train_tokenizer(["go north"], 300, images=images))


@given(st.dictionaries(st.sampled_from(["way", "steps", "why"]), VALUES), st.booleans())
def test_calls_of_the_small_model_are_read_back(arguments: dict[str, Any], images: bool) -> None:
    action = Message(role="assistant", content=action_text("go", arguments))
    call = small_action(action)
    renderer = small_renderer(images)
    assert renderer.tools is not None
    assert renderer.tools.written("go", arguments) == call
    ids, _ = renderer.imitated(action, calls=True)
    read, end = renderer.answer(ids, TOOLS)
    assert [(one.name, one.arguments) for one in read.tool_calls] == [("go", arguments)]
    assert end.is_closed


def test_a_frequent_call_is_a_few_tokens() -> None:
    action = Message(role="assistant", content=action_text("go", {"way": "north"}))
    call = small_action(action)
    assert len(train_tokenizer([call] * 9, 300).encode(call)) <= 7
