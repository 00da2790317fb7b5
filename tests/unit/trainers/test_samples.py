"""From spans to arrays: nothing is invented, nothing is encoded again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.trajectories import episode, turn
from turngym.errors import TrainingError
from turngym.trainers.samples import per_token, to_samples
from turngym.types import Message, TokenSpan, Turn


def test_tokens_are_kept_as_they_were_drawn_and_only_those_are_trained_on() -> None:
    made = episode(
        [
            turn(prompt=(10, 11), drawn=(20, 21), logprob=-0.5, version=3),
            turn(prompt=(12,), drawn=(22,), logprob=-0.25, version=4),
        ]
    )
    [sample] = to_samples(made, np.array([1.5, 0.5, -2.0]), index=6)
    assert sample.token_ids.tolist() == [10, 11, 20, 21, 12, 22]
    assert sample.loss_mask.tolist() == [False, False, True, True, False, True]
    assert sample.turn_ids.tolist() == [-1, -1, 0, 0, -1, 1]
    assert sample.behaviour_logprobs.tolist() == [0, 0, -0.5, -0.5, 0, -0.25]
    assert sample.advantages.tolist() == [0, 0, 1.5, 0.5, 0, -2.0]
    assert sample.policy_versions.tolist() == [-1, -1, 3, 3, -1, 4]
    assert (sample.trajectory, sample.num_action_tokens) == (6, 3)


def test_a_turn_drawn_by_two_versions_stays_one_turn() -> None:
    mixed = Turn(
        observation=(),
        action=Message(role="assistant", content="x"),
        spans=(
            TokenSpan(token_ids=(1,), sampled=False),
            TokenSpan(token_ids=(2,), sampled=True, logprobs=(-0.1,), policy_version=0),
            TokenSpan(token_ids=(3,), sampled=True, logprobs=(-0.2,), policy_version=1),
        ),
    )
    [sample] = to_samples(episode([mixed]), np.ones(2), index=0)
    assert sample.turn_ids.tolist() == [-1, 0, 0]
    assert sample.policy_versions.tolist() == [-1, 0, 1]


def test_a_rewritten_history_opens_a_new_sample() -> None:
    made = episode(
        [
            turn(prompt=(1,), drawn=(2,)),
            turn(prompt=(3,), drawn=(4,)),
            turn(prompt=(9, 8), drawn=(7,), starts_segment=True),
        ]
    )
    samples = to_samples(made, np.array([1.0, 2.0, 3.0]), index=4)
    assert [s.token_ids.tolist() for s in samples] == [[1, 2, 3, 4], [9, 8, 7]]
    assert [s.turn_ids.tolist() for s in samples] == [[-1, 0, -1, 1], [-1, -1, 2]]
    assert {s.trajectory for s in samples} == {4}


def test_a_segment_mark_on_the_first_turn_makes_no_empty_sample() -> None:
    [sample] = to_samples(episode([turn(starts_segment=True)]), np.ones(2), index=0)
    assert sample.num_action_tokens == 2


def test_an_episode_without_turns_gives_no_samples() -> None:
    assert to_samples(episode([]), np.zeros(0), index=0) == []


def test_a_policy_without_tokens_cannot_be_trained() -> None:
    silent = Turn(observation=(), action=Message(role="assistant", content="go"))
    with pytest.raises(TrainingError, match="turn 1: has no tokens"):
        to_samples(episode([turn(), silent]), np.zeros(2), index=0)


def test_advantages_of_another_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="4 sampled tokens but advantages of shape"):
        to_samples(episode([0.0, 0.0]), np.zeros(3), index=0)


def test_values_of_turns_are_copied_to_their_tokens() -> None:
    made = episode([turn(drawn=(5, 6, 7)), turn(drawn=(8,))])
    assert per_token(made, np.array([0.5, -1.0])).tolist() == [0.5, 0.5, 0.5, -1.0]
    with pytest.raises(ValueError, match="2 turns but values of shape"):
        per_token(made, np.zeros(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": np.array([True, True, True, True])}, "first token"),
        ({"loss_mask": np.array([False, False, True, False])}, "disagree"),
        ({"advantages": np.array([0, 0, np.nan, 0], dtype=np.float32)}, "finite"),
        ({"advantages": np.zeros(3, dtype=np.float32)}, "one shape"),
    ],
)
def test_a_sample_that_contradicts_itself_cannot_be_made(
    changes: dict[str, np.ndarray], message: str
) -> None:
    [sample] = to_samples(episode([0.0]), np.ones(2), index=0)
    with pytest.raises(ValueError, match=message):
        replace(sample, **changes)  # type: ignore[arg-type]
