"""Rewards for pointing, with numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.environments.desktop.grounding import (
    box_size_reward,
    distance_reward,
    edge_agreement,
    iou,
    is_hit,
)

TARGET = (100.0, 100.0, 200.0, 150.0)
EDGE = st.floats(0, 1000, allow_nan=False)


def test_a_point_on_the_edge_hits_and_one_outside_does_not():
    assert is_hit((100, 100), TARGET)
    assert is_hit((200, 150), TARGET)
    assert not is_hit((201, 120), TARGET)


def test_overlap_is_shared_area_over_covered_area():
    # shared 50 x 50 of 5000 + 5000
    assert iou(TARGET, (150.0, 100.0, 250.0, 150.0)) == pytest.approx(2500 / 7500)
    assert iou(TARGET, TARGET) == 1.0
    assert iou(TARGET, (300.0, 300.0, 400.0, 400.0)) == 0.0


def test_edges_agree_by_the_harmonic_mean_of_their_nearness():
    # left is 250 of 1000 pixels off: 3/4 near; the others are 1
    predicted = (350.0, 100.0, 200.0, 150.0)
    assert edge_agreement(predicted, TARGET, 1000, 500) == pytest.approx(4 / (4 / 3 + 3))
    assert edge_agreement((1100.0, 100.0, 200.0, 150.0), TARGET, 1000, 500) == 0.0


def test_box_size_reward_adds_hit_overlap_and_edges():
    assert box_size_reward(TARGET, TARGET, 1000, 500) == pytest.approx(1.0)
    # a click in the middle: a hit, no overlap, edges 50 of 1000 and 25 of 500 off
    click = (150.0, 125.0, 150.0, 125.0)
    assert box_size_reward(click, TARGET, 1000, 500) == pytest.approx((1 + 0.125 * 0.95) / 1.375)


def test_neither_a_dot_nor_the_whole_screen_is_the_best_box():
    best = box_size_reward(TARGET, TARGET, 1000, 500)
    dot = box_size_reward((150.0, 125.0, 150.0, 125.0), TARGET, 1000, 500)
    screen = box_size_reward((0.0, 0.0, 1000.0, 500.0), TARGET, 1000, 500)
    assert best > dot > screen


def test_a_near_miss_earns_at_most_half_and_falls_with_the_distance():
    near = distance_reward((201, 120), TARGET, 1000, 500)
    far = distance_reward((900, 450), TARGET, 1000, 500)
    assert distance_reward((150, 120), TARGET, 1000, 500) == 1.0
    assert 0.5 > near > far > 0.0


@given(EDGE, EDGE, EDGE, EDGE)
def test_every_box_earns_between_nothing_and_one(left, top, right, bottom):
    assert 0.0 <= box_size_reward((left, top, right, bottom), TARGET, 1000, 1000) <= 1.0
    assert 0.0 <= distance_reward((left, top), TARGET, 1000, 1000) <= 1.0
