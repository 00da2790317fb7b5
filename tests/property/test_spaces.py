import json

from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given
from hypothesis import strategies as st

from turngym.environments.core.spaces import Unicode, text_observation_space

TEXTS = st.text(st.characters(), max_size=30)  # lone surrogates included


@given(st.integers(1, 30), TEXTS)
def test_a_text_is_inside_exactly_when_it_is_short_enough(max_chars, text):
    assert (text in Unicode(max_chars)) == (len(text) <= max_chars)


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_samples_are_inside_and_reproducible(max_chars, seed):
    space, again = Unicode(max_chars, seed=seed), Unicode(max_chars, seed=seed)
    for _ in range(5):
        text = space.sample()
        assert text in space
        assert text == again.sample()
        assert text.encode().decode() == text


@given(st.lists(TEXTS, max_size=5))
def test_texts_survive_json(texts):
    space = Unicode()
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(texts)))) == texts


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_batching_and_iterating_give_back_what_went_in(texts):
    space = text_observation_space()
    batch = batch_space(space, len(texts))
    observations = [{"text": text} for text in texts]
    stacked = concatenate(space, observations, create_empty_array(space, len(texts)))
    assert stacked in batch
    assert list(iterate(batch, stacked)) == observations


@given(st.integers(1, 50), st.integers(1, 50))
def test_spaces_are_equal_exactly_when_they_admit_the_same(left, right):
    assert (Unicode(left) == Unicode(right)) == (left == right)
    assert left != right or hash(Unicode(left)) == hash(Unicode(right))
