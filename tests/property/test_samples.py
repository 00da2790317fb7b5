"""Whatever was played, samples hold exactly what was read and drawn, once."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.trajectories import episode, turn
from turngym.trainers.samples import to_samples

tokens = st.lists(st.integers(0, 500), min_size=1, max_size=5)
turns = st.lists(
    st.builds(
        turn,
        reward=st.floats(-1, 1),
        prompt=tokens,
        drawn=tokens,
        logprob=st.floats(-5, 0),
        version=st.integers(0, 9),
        starts_segment=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(turns, st.data())
def test_samples_hold_the_spans_and_nothing_else(made: list[Any], data: Any) -> None:
    trajectory = episode(made)
    size = trajectory.num_sampled_tokens
    advantages = np.array(data.draw(st.lists(st.floats(-9, 9), min_size=size, max_size=size)))
    samples = to_samples(trajectory, advantages, index=3)
    spans = trajectory.spans
    drawn = [span for span in spans if span.sampled]

    def joined(name: str, *, trained: bool) -> list[float]:
        return [
            x
            for sample in samples
            for x in getattr(sample, name)[sample.loss_mask if trained else slice(None)].tolist()
        ]

    assert joined("token_ids", trained=False) == [i for span in spans for i in span.token_ids]
    assert joined("token_ids", trained=True) == [i for span in drawn for i in span.token_ids]
    assert joined("behaviour_logprobs", trained=True) == [
        np.float32(p) for span in drawn for p in span.logprobs
    ]
    assert joined("policy_versions", trained=True) == [
        span.policy_version for span in drawn for _ in span.token_ids
    ]
    assert joined("turn_ids", trained=True) == [
        number for number, t in enumerate(made) for _ in range(t.num_sampled_tokens)
    ]
    assert joined("advantages", trained=True) == [np.float32(a) for a in advantages]


@given(turns)
def test_nothing_but_zeros_stands_where_nothing_was_drawn(made: list[Any]) -> None:
    whole = episode(made)
    for sample in to_samples(whole, np.ones(whole.num_sampled_tokens), index=0):
        outside = ~sample.loss_mask
        assert not sample.advantages[outside].any()
        assert not sample.behaviour_logprobs[outside].any()
        assert (sample.turn_ids[outside] == -1).all()
        assert (sample.policy_versions[outside] == -1).all()


@given(turns)
def test_there_is_one_sample_for_each_segment(made: list[Any]) -> None:
    starts = sum(t.starts_segment for t in made[1:])
    whole = episode(made)
    samples = to_samples(whole, np.zeros(whole.num_sampled_tokens), index=0, group=2)
    assert [s.group for s in samples] == [2] * (1 + starts)
