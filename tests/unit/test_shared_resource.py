"""One object per process and arguments, from the first lease to the last release."""

from __future__ import annotations

import multiprocessing as mp

import pytest

from turngym.shared_resource import SharedResource


class Lamp(SharedResource):
    def __init__(self, colour: str) -> None:
        if colour == "none":
            raise ValueError(colour)
        self.colour, self.is_on = colour, True

    def release(self) -> None:
        if self._end_lease():
            self.is_on = False


class Other(Lamp):
    """Shared apart from its base."""


def test_leases_share_one_object_until_the_last_release() -> None:
    first, second = Lamp.lease("red"), Lamp.lease("red")
    assert first is second
    first.release()
    assert second.is_on
    second.release()
    assert not second.is_on
    third = Lamp.lease("red")
    assert third is not first
    assert third.is_on
    third.release()


def test_other_arguments_and_classes_give_other_objects() -> None:
    lamps = [Lamp.lease("red"), Lamp.lease("blue"), Other.lease("red")]
    assert len(set(map(id, lamps))) == 3
    assert [lamp.colour for lamp in lamps] == ["red", "blue", "red"]
    for lamp in lamps:
        lamp.release()


def test_what_cannot_be_made_is_not_leased() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="none"):
            Lamp.lease("none")


def _leased_anew(mine: int) -> bool:
    return id(Lamp.lease("red")) != mine


def test_a_forked_process_has_none_of_its_parents() -> None:
    lamp = Lamp.lease("red")
    with mp.get_context("fork").Pool(1) as pool:
        assert pool.apply(_leased_anew, (id(lamp),))
    lamp.release()
