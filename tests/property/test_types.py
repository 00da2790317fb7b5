import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.types import Message, StopReason, TokenSpan, Trajectory, TrajectoryGroup, Turn

LOGPROBS = st.floats(max_value=0.0, allow_nan=False, allow_infinity=False)
SAID = Message(role="assistant", content="x")


def spans(sampled: bool) -> st.SearchStrategy[TokenSpan]:
    def make(pairs: list[tuple[int, float]], version: int) -> TokenSpan:
        return TokenSpan(
            token_ids=tuple(token for token, _ in pairs),
            sampled=sampled,
            logprobs=tuple(logprob for _, logprob in pairs) if sampled else (),
            policy_version=version if sampled else None,
        )

    pairs = st.lists(st.tuples(st.integers(0, 200_000), LOGPROBS), max_size=6)
    return st.builds(make, pairs, st.integers(0, 100))


TURNS = st.builds(
    lambda before, drawn, reward: Turn(
        observation=(), action=SAID, spans=(*before, *drawn), reward=reward
    ),
    st.lists(spans(False), max_size=2),
    st.lists(spans(True), max_size=2),
    st.floats(-1e6, 1e6),
)


def trajectory(turns: list[Turn], policy_seed: int, stop: StopReason) -> Trajectory:
    return Trajectory(
        env_id="e",
        task_id="e/train/0",
        env_seed=0,
        policy_seed=policy_seed,
        turns=tuple(turns),
        stop_reason=stop,
        error="broke" if stop.is_error else None,
    )


TRAJECTORIES = st.builds(
    trajectory, st.lists(TURNS, max_size=5), st.integers(0, 50), st.sampled_from(StopReason)
)


@given(TRAJECTORIES)
def test_drawn_tokens_are_counted_once_wherever_they_are_counted(made):
    by_span = sum(len(span.token_ids) for span in made.spans if span.sampled)
    by_logprob = sum(len(span.logprobs) for span in made.spans)
    assert made.num_sampled_tokens == by_span == by_logprob


@given(TRAJECTORIES)
def test_spans_keep_the_order_of_the_turns(made):
    tokens = [token for turn in made.turns for span in turn.spans for token in span.token_ids]
    assert [token for span in made.spans for token in span.token_ids] == tokens


@given(TRAJECTORIES)
def test_the_return_is_that_of_the_two_halves(made):
    half = len(made.turns) // 2
    parts = (made.turns[:half], made.turns[half:])
    halves = [trajectory(list(turns), 0, made.stop_reason).episode_return for turns in parts]
    assert math.isclose(sum(halves), made.episode_return, rel_tol=1e-9, abs_tol=1e-6)


@given(st.lists(TRAJECTORIES, max_size=6, unique_by=lambda made: made.policy_seed))
def test_a_group_is_split_into_usable_members_and_broken_ones(members):
    group = TrajectoryGroup(group_id="g", trajectories=tuple(members))
    broken = [made for made in members if made.error is not None]
    assert [made for made in members if made not in group.usable] == broken
    assert len(group.usable) + len(broken) == len(members)


@given(TRAJECTORIES)
def test_pickling_changes_nothing(made):
    assert pickle.loads(pickle.dumps(made)) == made


@given(
    st.lists(st.integers(0, 9), max_size=4),
    st.lists(st.floats(), max_size=4),
    st.booleans(),
    st.none() | st.integers(0, 3),
)
def test_a_span_is_made_exactly_when_its_invariants_hold(tokens, logprobs, sampled, version):
    holds = (
        len(logprobs) == (len(tokens) if sampled else 0)
        and all(math.isfinite(logprob) and logprob <= 1e-4 for logprob in logprobs)
        and sampled == (version is not None)
    )
    fields = {
        "token_ids": tuple(tokens),
        "sampled": sampled,
        "logprobs": tuple(logprobs),
        "policy_version": version,
    }
    if holds:
        assert TokenSpan(**fields).token_ids == tuple(tokens)
    else:
        with pytest.raises(ValueError, match="TokenSpan"):
            TokenSpan(**fields)


@given(st.floats(), st.lists(st.floats(-10, 10), max_size=3))
def test_a_turn_is_made_exactly_when_its_reward_is_finite_and_the_sum_of_its_parts(reward, parts):
    named = {f"part {number}": part for number, part in enumerate(parts)}
    for value in (reward, sum(parts)):
        fits = not parts or math.isclose(sum(parts), value, rel_tol=1e-6, abs_tol=1e-6)
        if math.isfinite(value) and fits:
            assert Turn(observation=(), action=SAID, reward=value, reward_parts=named)
        else:
            with pytest.raises(ValueError, match="reward"):
                Turn(observation=(), action=SAID, reward=value, reward_parts=named)
