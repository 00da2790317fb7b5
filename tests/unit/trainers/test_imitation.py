"""The warm start: what weighs how much, in which order, and that it learns."""

from __future__ import annotations

import copy
from itertools import chain

import numpy as np
import pytest
import torch

from helpers import models
from turngym.agents.rendering import RenderedEpisode
from turngym.trainers.settings.optimizer import WarmStartConfig
from turngym.trainers.update.imitation import Imitator, imitation_weights


def rendered(action: int, *, prompt: tuple[int, ...] = (5, 6)) -> RenderedEpisode:
    """Return an episode that answers ``prompt`` with ``action`` twice."""
    ids = (*prompt, action, *prompt, action)
    turns = (*(-1 for _ in prompt), 0, *(-1 for _ in prompt), 1)
    return RenderedEpisode(token_ids=ids, action_mask=tuple(t >= 0 for t in turns), turn_ids=turns)


EPISODES = [rendered(7), rendered(8, prompt=(9, 10, 11)), rendered(12, prompt=(13,))]


def imitator(**config: object) -> Imitator:
    settings = {"batch_episodes": 2, "lr": 3e-3, "max_steps": 50, **config}
    return Imitator(
        copy.deepcopy(models.model()),
        EPISODES,
        WarmStartConfig(**settings),  # type: ignore[arg-type]
        seed=1,
    )


def test_action_and_observation_tokens_share_their_weights_over_the_batch() -> None:
    masks = [np.array([False, False, True]), np.array([False, True, False, True, True])]
    first, second = imitation_weights(masks, observation_weight=0.2)
    assert first.tolist() == pytest.approx([0, 0.1, 0.25])
    assert second.tolist() == pytest.approx([0, 0.25, 0.1, 0.25, 0.25])
    assert first.sum() + second.sum() == pytest.approx(1.2)


def test_without_observation_weight_only_actions_are_imitated() -> None:
    [weights] = imitation_weights([np.array([False, False, True])], observation_weight=0.0)
    assert weights.tolist() == [0, 0, 1]


def test_a_few_steps_learn_the_actions_by_heart() -> None:
    made = imitator(max_steps=60)
    losses = [made.step()["warm_start/action_loss"] for _ in range(60)]
    assert losses[0] > 4
    assert losses[-1] < 0.5


def test_each_pass_takes_every_episode_at_most_once() -> None:
    made = imitator(batch_episodes=1)
    for first in (0, 3, 6):
        assert sorted(chain(*(made._batch(first + i) for i in range(3)))) == [0, 1, 2]
    orders = {tuple(tuple(made._batch(3 * p + i)) for i in range(3)) for p in range(8)}
    assert len(orders) > 1


def test_a_batch_larger_than_the_episodes_takes_them_all() -> None:
    assert sorted(imitator(batch_episodes=99)._batch(4)) == [0, 1, 2]


def test_micro_batches_do_not_change_a_step() -> None:
    whole, cut = imitator(), imitator(microbatch_tokens=7)
    for _ in range(3):
        assert cut.step()["warm_start/loss"] == pytest.approx(
            whole.step()["warm_start/loss"], abs=1e-5
        )


def test_a_warm_start_can_be_taken_up_to_the_bit() -> None:
    config = {"lr_schedule": "cosine", "lr_warmup_steps": 3}
    straight, first = imitator(**config), imitator(**config)
    for _ in range(8):
        straight.step()
    for _ in range(4):
        first.step()
    second = imitator(**config)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state(first.tensors()["optimizer"], steps=4)
    for _ in range(4):
        second.step()
    for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_learning_rate_rises_then_follows_a_half_cosine_to_zero() -> None:
    made = imitator(lr=1.0, lr_warmup_steps=2, lr_schedule="cosine", max_steps=6)
    rates = []
    for _ in range(7):
        rates.append(made.optimizer.lr)
        made.optimizer.steps += 1
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)
