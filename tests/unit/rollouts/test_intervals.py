from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.rollouts.evaluation.statistics import (
    Measure,
    bootstrap_ratio,
    paired_interval,
    pass_at,
    pass_at_measure,
    wilson_interval,
)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.data())
def test_pass_at_k_is_the_share_of_choices_that_hold_a_solved_attempt(counts, data):
    attempts, solved = counts
    k = data.draw(st.integers(1, attempts))
    outcomes = [True] * solved + [False] * (attempts - solved)
    choices = list(combinations(outcomes, k))
    assert pass_at(k, attempts, solved) == pytest.approx(
        sum(any(choice) for choice in choices) / len(choices)
    )


def test_pass_at_k_of_a_worked_example():
    # 1 - C(3, 2) / C(5, 2) = 1 - 3/10
    assert pass_at(2, 5, 2) == pytest.approx(0.7)
    assert pass_at(4, 5, 2) == 1.0
    assert pass_at(200, 1000, 0) == 0.0


@pytest.mark.parametrize(("k", "attempts", "solved"), [(0, 3, 1), (4, 3, 1), (1, 3, 4), (1, 3, -1)])
def test_pass_at_k_refuses_counts_out_of_range(k, attempts, solved):
    with pytest.raises(ValueError, match="wanted 1 <= k"):
        pass_at(k, attempts, solved)


def test_pass_at_k_is_unbiased_where_the_naive_estimate_is_not():
    random = np.random.default_rng(3)
    solved = random.binomial(6, 0.3, size=20_000)
    ours = np.mean([pass_at(3, 6, int(c)) for c in solved])
    naive = np.mean(1 - (1 - solved / 6) ** 3)
    truth = 1 - 0.7**3
    assert ours == pytest.approx(truth, abs=0.01)
    assert naive < truth - 0.03


def test_tasks_with_fewer_than_k_judged_attempts_are_left_out():
    found = pass_at_measure(2, [(2, 1), (1, 1), (4, 0)])
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert pass_at_measure(5, [(2, 1)]) is None


def test_pass_at_k_that_is_certain_at_every_task_keeps_the_width_of_wilsons_interval():
    found = pass_at_measure(1, [(3, 3)] * 8)
    assert found == Measure(value=1.0, interval=wilson_interval(8, 8))


def test_a_solved_share_has_as_many_trials_as_tasks_make_it_certain():
    found = Measure.solved([(8, 8), *[(1, 0)] * 19])  # most attempts of some tasks broke
    spread = ((8 - 8 * 8 / 27) ** 2 + 19 * (8 / 27) ** 2) / 27**2
    trials = 8 / 27 * 19 / 27 / spread
    assert found is not None
    assert found.value == 8 / 27
    assert found.interval == pytest.approx(wilson_interval(8 / 27 * trials, trials))
    [once, alike] = [Measure.solved([(n, 0)] * 7 + [(n, n)] * 3) for n in (1, 5)]
    assert once == alike == Measure(value=0.3, interval=pytest.approx(wilson_interval(3, 10)))
    assert Measure.solved([(4, 2)] * 10) == Measure(value=0.5, interval=wilson_interval(5, 10))
    assert Measure.solved([]) is None


@pytest.mark.parametrize(("tasks", "mean"), [(50, 0.02), (10, 0.9), (20, 0.5)])
def test_shares_of_several_attempts_cover_the_truth_near_0_and_1_too(tasks, mean):
    random = np.random.default_rng(0)
    abilities = random.beta(mean * 2, (1 - mean) * 2, size=(400, tasks))
    truth = {1: mean, 2: 1 - np.mean((1 - random.beta(mean * 2, (1 - mean) * 2, 10**6)) ** 2)}
    inside = dict.fromkeys(truth, 0)
    for solved in random.binomial(4, abilities):
        counts = [(4, int(c)) for c in solved]
        for k in truth:
            found = pass_at_measure(k, counts)
            assert found is not None
            assert found.interval is not None
            inside[k] += found.interval[0] <= truth[k] <= found.interval[1]
        assert Measure.solved(counts) == pass_at_measure(1, counts)
    assert min(inside.values()) >= 0.9 * 400


def test_a_mean_of_single_attempts_is_the_mean_of_its_tasks():
    assert Measure.mean([[1.0], [2.0], [4.0]]) == Measure(
        value=7 / 3, interval=bootstrap_ratio(np.array([1.0, 2.0, 4.0]), np.ones(3))
    )
    assert Measure.mean([[], []]) is None


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=8))
def test_an_interval_of_seconds_is_never_below_0_nor_above_the_longest(seconds):
    found = Measure.mean([[value] for value in seconds])
    assert found is not None
    assert found.interval is not None
    low, high = found.interval
    assert min(seconds) - 1e-6 <= low <= high <= max(seconds) + 1e-6


def test_seconds_with_one_slow_episode_and_rare_returns_stay_above_0():
    for values in ([0.01] * 9 + [5.0], [0.0] * 19 + [1.0]):
        found = Measure.mean([[value] for value in values])
        assert found is not None
        assert found.interval is not None
        assert found.interval[0] >= 0


def test_difference_of_nothing_and_nothing_has_the_width_of_wilsons_interval():
    zeros, ones = np.zeros(20), np.ones(20)
    low, high = wilson_interval(0, 20)
    assert paired_interval(zeros, zeros) == pytest.approx((-high, high))
    assert paired_interval(ones, ones) == pytest.approx((-high, high))
    low, high = paired_interval(ones, zeros)
    assert 0.7 < low < high == 1.0


def test_paired_interval_is_that_of_newcombe():
    """His example of 20, 12, 2 and 16 pairs: Wilson's ends, and phi = (320 - 24 - 25) / 595.66."""
    phi, d1, d2 = 0.45496, 0.64 - 0.50138, 0.57694 - 0.44
    low = 0.2 - (d1**2 - 2 * phi * d1 * d2 + d2**2) ** 0.5
    ours = np.repeat([1.0, 1.0, 0.0, 0.0], [20, 12, 2, 16])
    theirs = np.repeat([1.0, 0.0, 1.0, 0.0], [20, 12, 2, 16])
    assert paired_interval(ours, theirs) == pytest.approx((low, 0.3292), abs=1e-4)
    assert paired_interval(theirs, ours) == pytest.approx((-0.3292, -low), abs=1e-4)


def test_paired_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        ability = random.random(30)  # tasks differ, so the two agents' outcomes are correlated
        ours, theirs = (random.random((2, 30)) < np.stack([ability, ability**2])).astype(float)
        low, high = paired_interval(ours, theirs)
        inside += low <= 1 / 2 - 1 / 3 <= high
    assert 0.92 * 400 <= inside <= 400


def test_attempts_at_one_task_count_as_one_draw():
    """Eight copies of an attempt say no more than one of them."""
    once = Measure.mean([[0.0], [1.0]] * 10)
    copied = Measure.mean([[0.0] * 8, [1.0] * 8] * 10)
    assert once is not None
    assert once.interval is not None
    assert copied is not None
    assert copied.interval is not None
    assert copied.interval == pytest.approx(once.interval, abs=0.04)


def test_a_bootstrap_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(100):
        values = random.normal(2.0, 1.0, size=40)
        interval = bootstrap_ratio(values, np.ones(40))
        assert interval is not None
        inside += interval[0] <= 2.0 <= interval[1]
    assert 85 <= inside <= 99


def test_a_bootstrap_of_one_task_knows_no_interval_and_of_some_always_the_same():
    assert bootstrap_ratio(np.ones(1), np.ones(1)) is None
    values = np.arange(5.0)
    assert bootstrap_ratio(values, np.ones(5)) == bootstrap_ratio(values, np.ones(5))
