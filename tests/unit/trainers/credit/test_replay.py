"""What was played is kept as it was, drawn evenly, and survives a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import models
from helpers.trajectories import episode, group, turn
from turngym.agents.rendering import CLOSED, AnswerEnd, Renderer
from turngym.errors import CheckpointError, TrainingError
from turngym.trainers.credit.base import TurnBatch, trained_turns
from turngym.trainers.credit.critics.replay import ReplayBuffer, Transition, transitions
from turngym.trainers.credit.critics.values import final_prompt
from turngym.trainers.selection.past import as_context
from turngym.types import Message, StopReason, Trajectory

RENDERER = Renderer(models.tokenizer())
SEEN = (Message(role="user", content="go east"),)


def played(*episodes: Trajectory, gamma: float = 0.5, context: int = 256) -> list[Transition]:
    attempts = [replace(e, member=i, policy_seed=i) for i, e in enumerate(episodes)]
    turns = TurnBatch.of([group(*attempts)])
    return transitions(turns, turns.reward_N, RENDERER, gamma=gamma, context=context)


def test_a_turn_knows_what_was_seen_said_and_seen_next() -> None:
    rows = played(
        episode([turn(1.0, prompt=(1, 2), drawn=(3, 4)), turn(2.0, prompt=(5,), drawn=(6,))])
    )
    first, second = rows
    assert first.state.tolist() == [1, 2]
    assert first.action.tolist() == [3, 4]
    assert first.next_state.tolist() == second.state.tolist() == [1, 2, 3, 4, 5]
    assert second.action.tolist() == [6]
    assert second.next_state.size == 0
    assert [row.mc_return for row in rows] == [2.0, 2.0]
    assert [row.is_terminated for row in rows] == [False, True]
    assert not any(row.is_truncated for row in rows)


def test_a_rewritten_history_is_followed_into_its_new_text() -> None:
    turns = [
        turn(prompt=(1, 2), drawn=(3,)),
        turn(prompt=(7, 8), drawn=(9,), starts_segment=True),
        turn(prompt=(4,), drawn=(5,)),
    ]
    rows = played(episode(turns))
    assert [row.state.tolist() for row in rows] == [[1, 2], [7, 8], [7, 8, 9, 4]]
    assert [row.next_state.tolist() for row in rows] == [[7, 8], [7, 8, 9, 4], []]


def test_turns_that_are_not_trained_are_what_the_next_one_saw() -> None:
    turns = [
        turn(1.0, prompt=(1, 2), drawn=(3,)),
        turn(prompt=(7, 8), drawn=(9,), starts_segment=True),
        turn(prompt=(4,), drawn=(5,)),
        turn(2.0, prompt=(6,), drawn=(2,)),
    ]
    head = episode([*as_context(turns[:2]), *turns[2:]])
    [made] = trained_turns([group(head)])
    rows, whole = played(*made.trajectories), played(episode(turns))
    assert [row.state.tolist() for row in rows] == [row.state.tolist() for row in whole[2:]]
    assert [row.mc_return for row in rows] == [row.mc_return for row in whole[2:]]
    assert trained_turns([group(episode(turns))]) == [group(episode(turns))]


def test_a_turn_that_nothing_was_sampled_for_is_named() -> None:
    silent = replace(turn(), spans=turn().spans[:1])
    with pytest.raises(TrainingError, match="3 turns, of which only 2 have sampled tokens"):
        played(episode([turn(drawn=(3,)), silent, turn(drawn=(5,))]))


def test_a_limit_is_not_an_end() -> None:
    cut = replace(episode([0.0, 1.0], stop=StopReason.TRUNCATED_TURNS), final_observation=SEEN)
    last = played(cut)[-1]
    more = RENDERER.continuation(SEEN, AnswerEnd(is_closed=False))
    assert (last.is_truncated, last.is_terminated) == (True, False)
    assert last.next_state.tolist() == [1, 2, 3, 4, 1, 2, 3, 4, *more]
    assert not last.is_end(bootstrap_truncated=True)
    assert last.is_end(bootstrap_truncated=False)
    assert played(replace(cut, score=1.0))[-1].is_terminated  # nothing more to earn
    assert played(replace(cut, judged_at_limit=True))[-1].is_terminated
    unseen = played(replace(cut, final_observation=()))[-1]
    assert unseen.next_state.tolist() == [1, 2, 3, 4, 1, 2, 3, 4]


def test_the_last_state_is_shown_as_the_policy_would_have_seen_it() -> None:
    end = RENDERER.tokenizer.eos_token_id
    stop = StopReason.TRUNCATED_TURNS
    said_end = replace(episode([turn(drawn=(3, end))], stop=stop), final_observation=SEEN)
    new = final_prompt(said_end, RENDERER, context=256)
    assert new == RENDERER.continuation(SEEN, CLOSED)
    assert final_prompt(said_end, RENDERER, context=4 + len(new)) == new
    assert final_prompt(said_end, RENDERER, context=3 + len(new)) == ()
    ended = replace(said_end, stop_reason=StopReason.TERMINATED)
    assert final_prompt(ended, RENDERER, context=256) == ()


def test_the_newest_turns_stay_and_are_drawn_evenly() -> None:
    rows = played(*(episode([turn(float(n), prompt=(1,), drawn=(2,))]) for n in range(8)))
    buffer = ReplayBuffer(5)
    buffer.add(rows)
    assert len(buffer) == 5
    assert sorted(buffer[slot].reward for slot in range(5)) == [3.0, 4.0, 5.0, 6.0, 7.0]
    drawn = buffer.sample(20_000, np.random.default_rng(0))
    counts = np.bincount([int(row.reward) for row in drawn], minlength=8)
    assert counts[:3].tolist() == [0, 0, 0]
    assert counts[3:] == pytest.approx(4000, rel=0.06)  # four standard deviations


def test_rewards_are_float32_even_when_whole_numbers_come_first() -> None:
    buffer = ReplayBuffer(8)
    buffer.add(played(episode([1, 0.25]), gamma=1.0))
    tensors = buffer.state()
    assert tensors["reward"].dtype == torch.float32
    assert tensors["reward"].tolist() == [1.0, 0.25]
    assert tensors["mc_return"].tolist() == [1.25, 0.25]


def test_a_ring_comes_back_to_the_bit_and_goes_on_alike() -> None:
    rows = played(
        episode([turn(0.1, drawn=(3,)), turn(0.2, starts_segment=True), turn(0.3)]),
        replace(episode([0.7], stop=StopReason.TRUNCATED_TURNS), final_observation=SEEN),
        episode([0.9, 0.8]),
    )
    buffer, again = ReplayBuffer(4), ReplayBuffer(4)
    buffer.add(rows[:4])
    tensors = buffer.state()
    again.load_state(tensors)
    for one in (buffer, again):
        one.add(rows[4:])
    assert len(again) == 4
    for slot in range(4):
        a, b = buffer[slot], again[slot]
        for name in ("state", "action", "next_state", "logprobs_A", "versions_A"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
        assert (a.reward, a.mc_return, a.is_end(bootstrap_truncated=True)) == (
            b.reward,
            b.mc_return,
            b.is_end(bootstrap_truncated=True),
        )
    assert all(torch.equal(t, again.state()[name]) for name, t in buffer.state().items())


def test_each_text_is_saved_once() -> None:
    buffer = ReplayBuffer(10)
    buffer.add(played(episode([0.0] * 5)))
    assert buffer.state()["ids"].numel() == 5 * 4


def test_a_smaller_ring_refuses_what_a_larger_one_saved() -> None:
    buffer = ReplayBuffer(4)
    buffer.add(played(episode([0.0] * 3)))
    with pytest.raises(CheckpointError, match="3 turns were saved, and buffer_turns is 2"):
        ReplayBuffer(2).load_state(buffer.state())


def test_an_empty_ring_is_saved_and_has_nothing_to_draw() -> None:
    buffer, again = ReplayBuffer(4), ReplayBuffer(4)
    again.load_state(buffer.state())
    assert len(again) == 0
    with pytest.raises(ValueError, match="nothing was played yet"):
        again.sample(1, np.random.default_rng(0))
