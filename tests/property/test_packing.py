"""What is packed comes back to the last bit."""

from __future__ import annotations

import base64
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import RecordError
from turngym.rollouts.scheduler.packing import (
    PackedEpisode,
    pack_episode,
    pack_tail,
    pack_turn,
    pack_turns,
    unpack_episode,
    unpack_turn,
    unpack_turns,
)
from turngym.types import Message, Routing, StopReason, TokenSpan, ToolCall, Trajectory, Turn

numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)
narrow = st.floats(max_value=0, allow_nan=False, allow_infinity=False, width=32)
wide = st.floats(max_value=0, allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec=None), max_size=12)
calls = st.builds(
    ToolCall, name=texts, arguments=st.dictionaries(texts, st.integers() | texts, max_size=2)
)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)


def sampled(logprob: st.SearchStrategy[float]) -> st.SearchStrategy[TokenSpan]:
    rows = st.lists(st.tuples(st.integers(0, 2**31 - 1), logprob), max_size=6)
    return st.builds(
        lambda row, version: TokenSpan(
            token_ids=tuple(token for token, _ in row),
            sampled=True,
            logprobs=tuple(value for _, value in row),
            policy_version=version,
        ),
        rows,
        st.integers(0, 9),
    )


def routed(span: TokenSpan) -> TokenSpan:
    experts = base64.b64encode(bytes(6 * len(span.token_ids))).decode()
    return replace(span, routing=Routing(layers=3, top_k=2, experts=experts))


plain = (
    st.builds(TokenSpan, token_ids=ids, sampled=st.just(False)) | sampled(narrow) | sampled(wide)
)
spans = st.lists(plain | plain.map(routed), max_size=4).map(tuple)
turns = st.builds(
    Turn,
    observation=st.lists(
        st.builds(
            Message,
            role=st.sampled_from(("system", "user", "tool")),
            content=texts,
            tool_calls=st.lists(calls, max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    action=st.builds(Message, role=st.just("assistant"), content=texts),
    spans=spans,
    reward=numbers,
    invalid_action=st.none() | texts,
    state_key=st.none() | texts,
    potential=st.none() | numbers,
    starts_segment=st.booleans(),
)


@given(turns)
def test_a_turn_comes_back(turn: Turn) -> None:
    assert unpack_turn(pack_turn(turn)) == turn


@given(st.lists(turns, max_size=3))
def test_several_turns_come_back(several: list[Turn]) -> None:
    assert unpack_turns(pack_turns(several)) == tuple(several)


@given(st.lists(turns, max_size=2), st.none() | texts, st.sampled_from(StopReason))
def test_an_episode_comes_back(several: list[Turn], text: str | None, stop: StopReason) -> None:
    episode = Trajectory(
        env_id="e",
        task_id="t",
        env_seed=2**62,
        policy_seed=1,
        turns=tuple(several),
        stop_reason=stop,
        score=None if stop.is_error else 0.0,
        ground_truth=text,
        error="broke" if stop.is_error else None,
        final_observation=() if text is None else (Message(role="user", content=text),),
    )
    assert unpack_episode(pack_episode(episode)) == episode


def test_what_a_limit_pays_after_the_last_turn_was_packed_comes_back() -> None:
    said = Message(role="assistant", content="x")
    turn = Turn(action=said, observation=(), reward=0.5, reward_parts={"a": 0.5})
    paid = replace(turn, reward=1.5, reward_parts={"a": 0.5, "end": 1.0})
    seeds = {"env_id": "e", "task_id": "t", "env_seed": 1, "policy_seed": 1}
    episode = Trajectory(**seeds, turns=(turn, paid), stop_reason=StopReason.TRUNCATED_TIME)
    early = PackedEpisode((pack_turn(turn), pack_turn(turn)), pack_tail(episode))
    assert unpack_episode(early) == episode


def test_reward_parts_come_back() -> None:
    turn = Turn(
        action=Message(role="assistant", content="x"),
        observation=(),
        reward=0.75,
        reward_parts={"a": 0.5, "b": 0.25},
    )
    assert unpack_turn(pack_turn(turn)) == turn


@pytest.mark.parametrize("blob", [b"", b"\x01\x00\x00\x00\x09\x00\x00\x00{}", b"\xff" * 40])
def test_broken_bytes_are_said_to_be_broken(blob: bytes) -> None:
    with pytest.raises(RecordError, match="packed turn"):
        unpack_turn(blob)


def test_a_broken_episode_is_said_to_be_broken() -> None:
    with pytest.raises(RecordError, match="packed episode"):
        unpack_episode(PackedEpisode((), b"[]"))


def test_float32_log_probs_take_four_bytes_and_others_eight() -> None:
    def size(logprob: float) -> int:
        span = TokenSpan(
            token_ids=(1,) * 100, sampled=True, logprobs=(logprob,) * 100, policy_version=0
        )
        action = Message(role="assistant", content="x")
        return len(pack_turn(Turn(observation=(), action=action, spans=(span,))))

    assert size(-math.log(3)) - size(-0.5) >= 400
