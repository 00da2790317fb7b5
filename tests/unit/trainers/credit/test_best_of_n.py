"""Digi-Q: which candidate is imitated, and which is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.critics import algo, context, matching_game
from turngym.agents.engine.protocol import Sampling
from turngym.trainers.credit.critics.off_policy import BestOfNCredit, choose_best
from turngym.trainers.credit.critics.utterance_critic import CriticValues
from turngym.trainers.settings.group import BestOfN

CRITIC = {
    "hidden": 16,
    "max_tokens": 16,
    "steps_per_update": 2,
    "batch_turns": 8,
    "warmup_updates": 0,
    "value_actions": "replayed",
}
VALID = np.array([[True, True, True, False]])
JUDGED = CriticValues(
    q_2K=np.array([[0.50, 0.62, 0.40, 0.90], [0.45, 0.58, 0.66, 0.20]]),
    v_2K=np.array([[0.40] * 4, [0.48] * 4]),
)


def method(*, stop: tuple[str, ...] = (), **settings: Any) -> BestOfNCredit:
    critic = {**CRITIC, **settings.pop("critic", {})}
    advantage = {"type": "best_of_n", "actor_turns": 6, "candidates": 3, "critic": critic}
    given = replace(context(), sampling=Sampling(max_new_tokens=12, stop=stop))
    made = algo({**advantage, **settings})
    assert isinstance(made.advantage, BestOfN)
    return BestOfNCredit(made.advantage, made, given)


def humble(made: BestOfNCredit) -> BestOfNCredit:
    """Return ``made`` with a critic that finds no state worth anything, so that actions win."""
    low = torch.tensor([-3.0])
    made.load_state(made.state() | {f"critic/online/v_heads.{k}.4.bias": low for k in range(2)})
    return made


@pytest.mark.parametrize(
    ("join", "advantages", "best", "value"),
    [("max", [0.02, 0.14, 0.18], 2, 0.18), ("min", [0.05, 0.18, 0.0], 1, 0.18)],
)
def test_the_candidate_of_the_paper_wins(
    join: Any, advantages: list[float], best: int, value: float
) -> None:
    found = JUDGED.advantage(join)
    assert found[:3] == pytest.approx(advantages)
    for threshold, is_good in ((value - 1e-6, True), (value + 1e-6, False)):
        best_K, is_good_K = choose_best(found[None], VALID, threshold)
        assert (best_K.tolist(), is_good_K.tolist()) == ([best], [is_good])


def test_an_invalid_candidate_that_wins_is_not_imitated() -> None:
    best_K, is_good_K = choose_best(np.array([[-0.2, -0.1, -0.3, 0.9]]), VALID, 0.0)
    assert (best_K.tolist(), is_good_K.tolist()) == ([3], [False])


async def test_winners_are_imitated_with_weight_1() -> None:
    credit = await humble(method(stop=("e", "o", "t", "r"))).assign(matching_game(0))
    assert len(credit.samples) == 6
    assert credit.metrics["credit/imitated_fraction"] == 1.0
    assert credit.metrics["credit/played_best_fraction"] < 1.0
    for one in credit.samples:
        assert one.advantages[one.loss_mask].tolist() == [1.0] * one.num_action_tokens
        assert set(one.policy_versions[one.loss_mask].tolist()) <= {0, 4}


async def test_a_candidate_that_was_cut_off_never_wins() -> None:
    # An untrained policy hardly ever draws the end token within twelve.
    credit = await humble(method()).assign(matching_game(0))
    assert credit.metrics["credit/played_best_fraction"] == 1.0
    assert [s.num_action_tokens for s in credit.samples] == [2] * 6


async def test_a_high_threshold_imitates_nothing() -> None:
    assert (await method(threshold=1.0).assign(matching_game(0))).samples == ()


async def test_one_candidate_is_the_action_that_was_played() -> None:
    credit = await humble(method(candidates=1)).assign(matching_game(0))
    assert len(credit.samples) == 6
    assert credit.metrics["credit/played_best_fraction"] == 1.0
    assert all(set(s.policy_versions[s.loss_mask].tolist()) == {0} for s in credit.samples)


async def test_the_policy_waits_for_the_critic() -> None:
    made = method(threshold=0.0, critic={"warmup_updates": 1, "value_actions": "on_policy"})
    assert (await made.assign(matching_game(0))).samples == ()
    assert (await made.assign(matching_game(1))).metrics["credit/buffer_turns"] == 48


async def test_a_resumed_method_goes_on_to_the_bit() -> None:
    made, again = humble(method()), method()
    await made.assign(matching_game(0))
    again.load_state({name: tensor.clone() for name, tensor in made.state().items()})
    a, b = await made.assign(matching_game(1)), await again.assign(matching_game(1))
    assert a.metrics == b.metrics
    assert len(a.samples) > 0
    assert [s.token_ids.tolist() for s in a.samples] == [s.token_ids.tolist() for s in b.samples]
