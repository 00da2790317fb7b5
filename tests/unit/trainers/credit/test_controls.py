"""Controls keep what a method gives an episode and lose what it says of single turns."""

from __future__ import annotations

import dataclasses

import numpy as np

from helpers.credit import algo, credit_of
from helpers.trajectories import episode, group, turn
from turngym.trainers.credit.base import Credit
from turngym.trainers.credit.controls import dealt_anew

LONG = episode([turn(1.0, prompt=(1,), drawn=(2, 3)), turn(prompt=(4, 5), drawn=(6,))])
BATCH = (group(LONG, [0.0, 0.0]), group([0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 2.0]))


def controlled(control: str, preset: str = "trloo") -> Credit:
    method = algo(preset).model_copy(update={"control": control})
    return credit_of(method, *BATCH)


def test_constant_gives_each_token_of_an_episode_the_mean_of_all() -> None:
    # trloo gives LONG's turns 1 and 0, on two tokens and one.
    samples = controlled("constant").samples
    np.testing.assert_allclose(samples[0].advantages, [0, 2 / 3, 2 / 3, 0, 0, 2 / 3], atol=1e-6)
    np.testing.assert_allclose(controlled("constant").advantages[0], [2 / 3, 2 / 3], atol=1e-6)
    for own, mean in zip(controlled("none").samples, samples, strict=True):
        assert np.isclose(own.advantages.sum(), mean.advantages.sum(), atol=1e-6)


def test_shuffled_deals_the_turns_of_an_episode_anew_among_them() -> None:
    own, dealt = controlled("none"), controlled("shuffled")
    moved = []
    for before, after, sample in zip(own.advantages, dealt.advantages, dealt.samples, strict=True):
        assert sorted(before.tolist()) == sorted(after.tolist())
        moved.append(before.tolist() != after.tolist())
        drawn = sample.turn_ids[sample.loss_mask]
        np.testing.assert_allclose(sample.advantages[sample.loss_mask], after[drawn])
    assert any(moved)
    again = controlled("shuffled")
    assert [a.tolist() for a in again.advantages] == [a.tolist() for a in dealt.advantages]


def test_one_advantage_for_the_whole_attempt_is_its_own_control() -> None:
    rows = [[row.tolist() for row in controlled(c, "grpo").advantages] for c in CONTROLS]
    np.testing.assert_allclose(np.concatenate(rows[0]), np.concatenate(rows[1]), atol=1e-6)
    np.testing.assert_allclose(np.concatenate(rows[0]), np.concatenate(rows[2]), atol=1e-6)


CONTROLS = ("none", "shuffled", "constant")


def test_turns_from_a_buffer_are_dealt_among_the_whole_batch() -> None:
    lone = [
        dataclasses.replace(sample, trajectory=k, advantages=np.where(sample.loss_mask, k, 0.0))
        for k, sample in enumerate(controlled("none").samples)
    ]
    alone = dealt_anew(lone, np.random.default_rng(0))
    assert all(np.array_equal(a.advantages, b.advantages) for a, b in zip(alone, lone, strict=True))
    [*means] = {float(s.advantages[s.loss_mask][0]) for s in dealt_anew(lone, None, across=True)}
    tokens = [s.num_action_tokens for s in lone]
    np.testing.assert_allclose(means, [np.average(np.arange(len(lone)), weights=tokens)], rtol=1e-6)
    mixed = dealt_anew(lone, np.random.default_rng(0), across=True)
    assert any(
        not np.array_equal(a.advantages, b.advantages) for a, b in zip(mixed, lone, strict=True)
    )
