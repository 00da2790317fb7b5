"""Targets and losses of ArCHer's critic by hand; the encoder; what the critic learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from helpers import models
from helpers.critics import matching_game
from turngym.agents.engine.models import seeded
from turngym.agents.rendering import Renderer
from turngym.errors import ConfigError
from turngym.trainers.credit.base import TurnBatch
from turngym.trainers.credit.critics.replay import Transition, transitions
from turngym.trainers.credit.critics.utterance_critic import (
    CriticLearner,
    CriticValues,
    correlation,
    critic_loss,
    expectile_loss,
    polyak,
    q_targets,
)
from turngym.trainers.credit.critics.utterance_encoder import new_encoder, rectangles
from turngym.trainers.settings.group import UtteranceCritic

REWARD = torch.tensor([0.0, 0.0, 1.0])
ENDS = torch.tensor([False, False, True])
NEXT_V = torch.tensor([[0.5, 0.6, 9.0], [0.4, 0.8, 9.0]])


def learner(**settings: Any) -> CriticLearner:
    expectile = settings.pop("expectile", None)
    config = UtteranceCritic(**{"hidden": 32, "max_tokens": 16, **settings})
    renderer = Renderer(models.tokenizer())
    return CriticLearner(
        config,
        make_encoder=lambda: new_encoder(
            config, model=models.model(), renderer=renderer, max_batch=16384
        ),
        seed=0,
        expectile=expectile,
    )


def rows(seed: int, *, episodes: int = 64) -> list[Transition]:
    turns = TurnBatch.of(matching_game(seed, episodes=episodes))
    renderer = Renderer(models.tokenizer())
    return transitions(turns, turns.reward_N, renderer, gamma=0.5, context=256)


def test_each_twin_bootstraps_from_its_own_target() -> None:
    found = q_targets(REWARD, ENDS, NEXT_V, gamma=0.95, pessimistic=False)
    assert found[0].tolist() == pytest.approx([0.475, 0.57, 1.0])
    assert found[1].tolist() == pytest.approx([0.38, 0.76, 1.0])


def test_pessimistic_targets_take_the_smaller_twin() -> None:
    found = q_targets(REWARD, ENDS, NEXT_V, gamma=0.95, pessimistic=True)
    assert found[0].tolist() == found[1].tolist() == pytest.approx([0.38, 0.57, 1.0])


def test_the_loss_sums_the_mean_squares_of_four_heads() -> None:
    q = torch.tensor([[0.5, 0.6, 0.9], [0.4, 0.7, 0.8]])
    v = torch.tensor([[0.45, 0.55, 0.7], [0.5, 0.5, 0.75]])
    yq = q_targets(REWARD, ENDS, NEXT_V, gamma=0.95, pessimistic=False)
    yv = torch.tensor([[0.48, 0.52, 0.88], [0.42, 0.62, 0.78]])
    wanted = [0.003842, 0.014667, 0.011400, 0.007233]
    squares = [*(q - yq).square().mean(1).tolist(), *(v - yv).square().mean(1).tolist()]
    assert squares == pytest.approx(wanted, abs=1e-6)
    assert critic_loss(q, yq, v, yv).item() == pytest.approx(0.037142, abs=1e-6)


def test_the_advantage_takes_the_smaller_twins_or_the_larger() -> None:
    judged = CriticValues(
        q_2K=np.array([[0.52, 0.58, 0.95], [0.46, 0.66, 0.85]]),
        v_2K=np.array([[0.45, 0.55, 0.7], [0.5, 0.5, 0.75]]),
    )
    assert judged.advantage() == pytest.approx([0.01, 0.08, 0.15])
    assert judged.advantage("max") == pytest.approx([0.02, 0.11, 0.2])


def test_the_expectile_weighs_surprises_by_their_sign() -> None:
    assert expectile_loss(torch.tensor([0.3, -0.2]), 0.9).item() == pytest.approx(0.0425)


def test_the_target_follows_by_tau() -> None:
    online, target = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    with torch.no_grad():
        for net, value in ((online, 1.0), (target, 0.2)):
            net.weight.fill_(value)
            net.bias.fill_(value)
    found = []
    for _ in range(2):
        polyak(target, online, 0.1)
        found.append(target.weight.item())
    assert found == pytest.approx([0.28, 0.352])


def test_the_target_of_every_weight_moves_after_a_step() -> None:
    made = learner(tau=0.25, polyak_every=2)
    before = {name: t.clone() for name, t in made.target.state_dict().items()}
    made.step(rows(0)[:8])
    assert all(torch.equal(t, before[name]) for name, t in made.target.state_dict().items())
    made.step(rows(0)[:8])
    online = made.online.state_dict()
    for name, tensor in made.target.state_dict().items():
        assert torch.allclose(tensor, before[name].lerp(online[name], 0.25), atol=1e-7)


@pytest.mark.parametrize("kind", ["small", "policy"])
def test_padding_and_company_change_no_vector(kind: str) -> None:
    encoder = encoder_of(kind)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 200, size) for size in (5, 1, 12, 0, 16)]
    together = encoder(texts)
    alone = torch.cat([encoder([text]) for text in texts])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("kind", ["small", "policy"])
def test_the_oldest_tokens_are_cut_off(kind: str) -> None:
    encoder = encoder_of(kind)
    text = np.arange(40)
    assert torch.allclose(encoder([text]), encoder([text[-16:]]), atol=1e-6)
    assert not torch.allclose(encoder([text]), encoder([text[-15:]]), atol=1e-3)


@pytest.mark.parametrize("kind", ["small", "policy"])
def test_every_token_it_reads_counts(kind: str) -> None:
    encoder = encoder_of(kind)
    text = np.arange(16)
    for place in range(16):
        changed = np.where(np.arange(16) == place, 99, text)
        assert not torch.allclose(encoder([text]), encoder([changed]), atol=1e-4)


def encoder_of(kind: str) -> nn.Module:
    config = UtteranceCritic(hidden=32, max_tokens=16, encoder=None if kind == "small" else kind)
    with seeded(3):
        made = new_encoder(
            config, model=models.model(), renderer=Renderer(models.tokenizer()), max_batch=64
        )
    return made.eval().requires_grad_(False)


def test_seeds_make_the_weights_and_leave_the_global_state_alone() -> None:
    before = torch.random.get_rng_state()
    one, same = learner().state(), learner().state()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(tensor, same[name]) for name, tensor in one.items())


def test_rectangles_hold_like_lengths_within_their_budget() -> None:
    lengths = [3, 50, 48, 4, 30, 49]
    groups = rectangles(lengths, 110)
    assert sorted(k for group in groups for k in group) == list(range(6))
    assert groups == [[1, 5], [2], [4], [3, 0]]


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="hidden=33 must be a multiple of heads=4"):
        learner(hidden=33)


@pytest.mark.parametrize("interaction", [True, False])
def test_q_learns_which_action_fits_which_state(interaction: bool) -> None:
    made = learner(gamma=0.5, lr=3e-3, interaction=interaction)
    played, unseen = rows(0, episodes=128), rows(1)
    for step in range(120):
        rng = np.random.default_rng(step)
        chosen, others = (rng.integers(0, len(played), 48) for _ in range(2))
        said = [np.array([rng.integers(10, 13), 3]) for _ in others]
        loss = made.step([played[k] for k in chosen], [played[k].state for k in others], said)
        assert np.isfinite(loss)
    judged = made.values([row.state for row in unseen], [row.action for row in unseen])
    returns = np.array([row.mc_return for row in unseen])
    assert correlation(judged.q_2K.mean(axis=0), returns) > 0.6


def test_a_high_expectile_values_the_best_action() -> None:
    high, low = learner(lr=3e-3, expectile=0.95), learner(lr=3e-3, expectile=0.05)
    played = [row for row in rows(0, episodes=24) if row.is_terminated]
    for made in (high, low):
        for _ in range(40):
            made.step(played)
    states, actions = [row.state for row in played], [row.action for row in played]
    assert high.values(states, actions).v_2K.mean() > low.values(states, actions).v_2K.mean() + 0.3


def test_a_resumed_critic_goes_on_to_the_bit() -> None:
    made, again = learner(), learner()
    made.step(rows(0)[:8])
    again.load_state({name: tensor.clone() for name, tensor in made.state().items()})
    assert again.steps == 1
    losses = [one.step(rows(1)[:8]) for one in (made, again)]
    assert losses[0] == losses[1]
    assert all(torch.equal(t, again.state()[name]) for name, t in made.state().items())


def test_a_pretrained_encoder_reads_text_and_is_trained(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    shape = BertConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32,
    )  # fmt: skip
    with seeded(0):
        BertModel(shape).save_pretrained(tmp_path)
    models.tokenizer().save_pretrained(tmp_path)
    made = learner(encoder=str(tmp_path), max_tokens=12)
    before = {name: t.clone() for name, t in made.online.encoder.state_dict().items()}
    played = rows(0, episodes=4)
    made.step(played)
    changed = made.online.encoder.state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in changed.items())
    judged = made.values([row.state for row in played], [row.action for row in played])
    assert judged.q_2K.shape == judged.v_2K.shape == (2, len(played))
    assert judged.q_2K.std() > 0


def test_of_a_frozen_encoder_only_the_heads_learn() -> None:
    made = learner(encoder="policy", freeze_encoder=True, lr=1e-2)
    assert made.target.encoder is made.online.encoder
    before = {name: t.clone() for name, t in made.online.state_dict().items()}
    played = rows(0, episodes=8)
    for _ in range(3):
        made.step(played)
    changed = {n for n, t in made.online.state_dict().items() if not torch.equal(t, before[n])}
    assert {name.split(".")[0] for name in changed} == {"q_heads", "v_heads"}
    again = learner(encoder="policy", freeze_encoder=True, lr=1e-2)
    again.load_state({name: tensor.clone() for name, tensor in made.state().items()})
    assert again.step(played) == made.step(played)


def test_an_encoder_that_learned_nothing_is_not_frozen() -> None:
    with pytest.raises(ValueError, match="wanted encoder='policy' or the name of one"):
        UtteranceCritic(freeze_encoder=True)


def test_an_encoder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"critic\.encoder '.*nowhere' cannot be loaded"):
        learner(encoder=str(tmp_path / "nowhere"))
