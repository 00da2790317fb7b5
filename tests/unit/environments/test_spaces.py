import copy
import json
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from turngym.environments.core.spaces import Unicode, text_observation_space


@pytest.mark.parametrize("text", ["", "go to the kitchen", "a\nb\t\x00", "中文 🙂 é", "\ud83d"])
def test_any_text_is_in_the_space(text):
    assert text in Unicode()


@pytest.mark.parametrize("thing", [None, 3, b"bytes", ["a"], np.array("a")])
def test_what_is_no_text_is_not(thing):
    assert thing not in Unicode()


def test_length_is_counted_in_characters():
    assert "🙂🙂🙂" in Unicode(3)
    assert "abcd" not in Unicode(3)


def test_a_space_needs_room_for_one_character():
    with pytest.raises(ValueError, match="wanted at least 1"):
        Unicode(0)


def test_samples_are_inside_and_the_same_for_one_seed():
    first, again, other = Unicode(seed=3), Unicode(seed=3), Unicode(seed=4)
    drawn = [first.sample() for _ in range(50)]
    assert all(text in first for text in drawn)
    assert drawn == [again.sample() for _ in range(50)]
    assert drawn != [other.sample() for _ in range(50)]
    assert all(len(Unicode(2, seed=n).sample()) <= 2 for n in range(20))


def test_masks_are_refused():
    with pytest.raises(ValueError, match="no mask"):
        Unicode().sample(mask=[1])


def test_spaces_with_the_same_texts_are_equal_and_hash_alike():
    assert Unicode(5) == Unicode(5, seed=3)
    assert hash(Unicode(5)) == hash(Unicode(5, seed=3))
    assert Unicode(5) != Unicode(6)
    assert Unicode(5) != gymnasium.spaces.Discrete(5)


def test_samples_survive_json():
    space = Unicode(seed=1)
    drawn = [space.sample() for _ in range(5)]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(drawn)))) == drawn


def test_spaces_survive_copying_and_pickling():
    space = Unicode(9, seed=2)
    for same in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert same == space
        assert same.sample() == copy.deepcopy(space).sample()


def test_the_repr_is_the_constructor_call():
    assert repr(Unicode(9)) == "Unicode(9)"
    assert eval(repr(Unicode(9))) == Unicode(9)


def test_the_observation_space_has_text_and_on_request_a_picture():
    assert {"text": "x"} in text_observation_space()
    space = text_observation_space(image_hw=(2, 3))
    assert {"text": "x", "image": np.zeros((2, 3, 3), np.uint8)} in space
    assert {"text": "x"} not in space
    assert {"text": "x", "image": np.zeros((3, 2, 3), np.uint8)} not in space
    assert space.sample() in space


def test_gymnasium_batches_texts_as_tuples():
    space = text_observation_space()
    batch = batch_space(space, 2)
    observations = concatenate(
        space, [{"text": "a"}, {"text": "b\n"}], create_empty_array(space, 2)
    )
    assert observations == {"text": ("a", "b\n")}
    assert observations in batch
    assert list(iterate(batch_space(Unicode(), 2), ("x", "y"))) == ["x", "y"]
