import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.models import tokenizer
from turngym.agents.engine.models import MIN_VOCAB_SIZE, SPECIAL_TOKENS, train_tokenizer
from turngym.errors import ConfigError


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
