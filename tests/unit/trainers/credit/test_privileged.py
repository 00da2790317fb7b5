"""SWEET-RL: a critic that knows the true answer, learned from better and worse attempts."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import models
from helpers.rendered import batch, context, rendered_episode, sharpened
from turngym.agents.engine.models import add_lora
from turngym.trainers.credit.base import TurnBatch
from turngym.trainers.credit.sources.learned import ExampleBuffer, Row, episode_rows
from turngym.trainers.credit.sources.privileged import (
    PrivilegedCritic,
    PrivilegedSource,
    best_and_worse,
    pair_example,
    pair_weights,
    ranking_loss,
    truth_prefix,
    turn_means,
)
from turngym.trainers.selection.past import as_context
from turngym.trainers.settings.rewards import Privileged

CONFIG = Privileged(type="privileged", lr=1e-3, steps_per_update=3, batch_pairs=4, buffer_pairs=16)
BETTER = np.array([0.2, 0.4, 0.1, 0.3, 0.5], dtype=np.float32)
WORSE = np.array([-0.1, 0.0, -0.2, 0.1], dtype=np.float32)


def row(turn_ids: list[int]) -> Row:
    length = len(turn_ids)
    return Row(
        token_ids_L=np.arange(length),
        turn_ids_L=np.array(turn_ids),
        reference_L=np.zeros(length, np.float32),
    )


@pytest.mark.parametrize(
    ("objective", "totals", "loss"),
    [("token_mean", (0.3, -0.05), 0.675800), ("turn_sum", (0.8, -0.1), 0.649159)],
)
def test_worked_example(objective: Any, totals: tuple[float, float], loss: float) -> None:
    pair = pair_example([row([-1, 0, 0, -1, 1, -1, 2, 2])], [row([-1, 0, -1, 1, 1, 2])])
    weights = pair_weights(pair, objective)
    drawn = [w[r.turn_ids_L >= 0] for w, r in zip(weights, pair.rows, strict=True)]
    sides = (drawn[0] @ BETTER, drawn[1] @ WORSE)
    np.testing.assert_allclose(sides, (totals[0], -totals[1]), atol=1e-6)
    margin = torch.tensor([float(sum(sides))])
    assert ranking_loss(margin, beta=0.1).item() == pytest.approx(loss, abs=1e-6)
    assert not any(w[r.turn_ids_L < 0].any() for w, r in zip(weights, pair.rows, strict=True))


def test_worked_example_advantages() -> None:
    np.testing.assert_allclose(
        turn_means(BETTER, np.array([0, 0, 1, 2, 2])), [0.3, 0.1, 0.4], atol=1e-6
    )


def games(rng: np.random.Generator, tasks: int = 12) -> TurnBatch:
    """Return pairs of attempts; the one that says the truth in one of its turns wins."""
    found = []
    for task in range(tasks):
        truth, other = rng.permutation(["key", "got"]).tolist()
        place = int(rng.integers(2))
        words = [[truth if turn == place else other for turn in range(2)], [other, other]]
        found.append(
            [
                rendered_episode(
                    [("exits", word) for word in said],
                    rewards=[0, float(attempt == 0)],
                    truth=truth,
                    member=attempt,
                    task=task,
                )
                for attempt, said in enumerate(words)
            ]
        )
    return batch(*found)


def test_the_critic_learns_which_turn_served_the_truth() -> None:
    config = Privileged(
        type="privileged", lr=3e-3, beta=1.0, steps_per_update=20, batch_pairs=12, warmup_updates=2
    )
    source = PrivilegedSource(config, context(sharpened()))
    rng = np.random.default_rng(0)
    for update in range(3):
        assert source.is_ready == (update >= 2)
        turns = games(rng)
        component = source.read(turns)["privileged"]
        assert component.has_value_N.all()
    serves = np.array([t.action.content == e.ground_truth for e in turns.episodes for t in e.turns])
    assert component.values_N[serves].mean() > component.values_N[~serves].mean() + 1
    metrics = source.metrics()
    assert metrics["credit/privileged_ranked_right"] > 0.9
    assert metrics["credit/privileged_loss"] < 0.3
    assert metrics["credit/privileged_pairs"] == 12


EXPLORES = {
    "lr": 3e-3,
    "beta": 1.0,
    "steps_per_update": 1,
    "batch_pairs": 12,
    "buffer_pairs": 256,
    "warmup_updates": 1,
    "warmup_until": 0.9,
    "warmup_window": 24,
    "warmup_steps": 10,
    "after_warmup": "freeze",
}


def test_the_policy_waits_until_new_pairs_are_ranked_right() -> None:
    source = PrivilegedSource(CONFIG.model_copy(update=EXPLORES), context(sharpened()))
    rng, explored = np.random.default_rng(0), []
    while not source.is_ready:
        source.read(games(rng))
        explored.append(source.metrics()["credit/privileged_explored_ranked_right"])
    assert all(found < 0.9 for found in explored[1:-1])  # the first is half a window
    assert explored[-1] >= 0.9
    assert 2 <= len(explored) < 12
    assert source.metrics()["credit/privileged_explored"] == 12 * len(explored)
    before = {name: tensor.clone() for name, tensor in source.state().items()}
    source.read(games(rng))
    assert "credit/privileged_loss" not in source.metrics()
    assert source.metrics()["credit/privileged_ranked_right"] > 0.8
    after = source.state()
    learned = [name for name in after if name.startswith(("learner", "buffer"))]
    assert learned
    assert all(torch.equal(before[name], after[name]) for name in learned)


def test_advantages_are_mean_log_ratios_behind_the_truth() -> None:
    model = models.model()
    critic = PrivilegedCritic(model, CONFIG, seed=1, max_tokens=500)
    with torch.no_grad():
        for weight in critic._model.parameters():
            weight *= 3.0
    given = context(model)
    episode = rendered_episode([("exits", "go"), ("got", "key")], truth="key")
    prefix = truth_prefix(given.renderer, "key")
    rows = critic.with_reference(episode_rows(episode, prefix=prefix))
    [found] = critic.log_ratios(rows)
    row_ids = torch.from_numpy(rows[0].token_ids_L)[None]
    assert row_ids[0, : len(prefix)].tolist() == list(prefix)
    with torch.no_grad():
        ours, theirs = (
            m(input_ids=row_ids).logits[0].log_softmax(-1) for m in (critic._model, model)
        )
    for at in np.flatnonzero(rows[0].turn_ids_L >= 0):
        token = row_ids[0, at]
        wanted = (ours[at - 1, token] - theirs[at - 1, token]).item()
        assert found[at] == pytest.approx(wanted, abs=1e-4)
    assert not found[rows[0].turn_ids_L < 0].any()
    assert np.abs(found).max() > 0.1


def test_turns_that_are_context_have_no_value() -> None:
    said = [("exits", "go"), ("got", "key")]
    better, worse, third = (
        rendered_episode(said, rewards=[0, won], truth="key", member=number)
        for number, won in enumerate((1, 0, 0))
    )
    given = replace(worse, turns=as_context(worse.turns))
    cut = replace(third, turns=(*as_context(third.turns[:1]), *third.turns[1:]))
    source, plain = (PrivilegedSource(CONFIG, context(sharpened())) for _ in range(2))
    for one in (plain, source):
        one.read(batch([better, worse]))
    found = plain.read(batch([better, cut]))["privileged"]
    other = source.read(batch([better, given, cut]))["privileged"]
    assert found.has_value_N.tolist() == [True, True, False, True]
    assert other.has_value_N.tolist() == [True, True, False, False, False, True]
    np.testing.assert_allclose(other.values_N[[0, 1, 5]], found.values_N[[0, 1, 3]], atol=1e-5)
    assert np.abs(found.values_N[3]) > 0


def test_the_first_advantages_are_zero() -> None:
    source = PrivilegedSource(CONFIG.model_copy(update={"warmup_updates": 0}), context())
    component = source.read(games(np.random.default_rng(3)))["privileged"]
    assert component.has_value_N.all()
    assert not component.values_N.any()


def test_memory_budget_changes_nothing() -> None:
    turns = games(np.random.default_rng(4), tasks=2)
    losses = []
    for max_tokens in (1, 10_000):
        critic = PrivilegedCritic(models.model(), CONFIG, seed=1, max_tokens=max_tokens)
        rows = [critic.with_reference(episode_rows(episode)) for episode in turns.episodes]
        buffer = ExampleBuffer(8)
        buffer.add([pair_example(rows[0], rows[1]), pair_example(rows[2], rows[3])])
        losses.append([critic.step(buffer) for _ in range(3)])
    assert losses[0][0] == pytest.approx(np.log(2), abs=1e-6)
    assert losses[0][2] < losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_episodes_without_a_truth_or_without_room_are_counted() -> None:
    said = [("exits", "go"), ("got", "key")]
    turns = batch(
        [
            rendered_episode(said, truth="key", rewards=[0, 1], member=0),
            rendered_episode(said, rewards=[0, 0], member=1),
            rendered_episode(said, truth="key " * 400, rewards=[0, 0], member=2),
        ]
    )
    source = PrivilegedSource(CONFIG.model_copy(update={"warmup_updates": 0}), context())
    component = source.read(turns)["privileged"]
    assert component.has_value_N.tolist() == [True, True, False, False, False, False]
    metrics = source.metrics()
    assert metrics["credit/privileged_fallbacks"] == 2
    assert metrics["credit/privileged_pairs"] == 0
    assert "credit/privileged_loss" not in metrics  # nothing to learn from yet


def test_only_strictly_worse_attempts_make_pairs() -> None:
    said = [("exits", "go")]
    attempts = [
        rendered_episode(said, truth="key", rewards=[r], member=i)
        for i, r in enumerate([0, 1, 1, 0.5])
    ]
    turns = batch(attempts, [replace(attempts[0], policy_seed=9)])
    source = PrivilegedSource(CONFIG, context())
    judged = source._judge(turns, source._new_learner())
    pairs = best_and_worse(turns, judged)
    assert [(a.number, b.number) for a, b in pairs] == [(1, 0), (1, 3)]


@pytest.mark.parametrize("settings", [{}, {"warmup_until": 0.95, "most_warmup_updates": 3}])
def test_a_resumed_run_goes_on_to_the_bit(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    batches = [games(rng, tasks=2) for _ in range(4)]
    config = CONFIG.model_copy(update=settings)
    straight, first = PrivilegedSource(config, context()), PrivilegedSource(config, context())
    for turns in batches[:2]:
        straight.read(turns)
        first.read(turns)
    kept = {name: tensor.clone() for name, tensor in first.state().items()}
    resumed = PrivilegedSource(config, context(sharpened()))  # the policy has moved on since
    resumed.load_state(kept)
    for turns in batches[2:]:
        wanted, found = straight.read(turns)["privileged"], resumed.read(turns)["privileged"]
        np.testing.assert_array_equal(found.values_N, wanted.values_N)
        assert resumed.metrics() == straight.metrics()
        assert resumed.is_ready == straight.is_ready
    a, b = straight.state(), resumed.state()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_critic_that_had_nothing_to_learn_from_is_resumed_too() -> None:
    alone = batch([rendered_episode([("exits", "go")], truth="key", rewards=[1])])
    first = PrivilegedSource(CONFIG, context())
    first.read(alone)
    resumed = PrivilegedSource(CONFIG, context(sharpened()))
    resumed.load_state(first.state())
    assert resumed.is_ready
    assert not resumed.read(alone)["privileged"].values_N.any()  # critic and reference are one


def test_the_policy_and_global_random_state_are_left_alone() -> None:
    model = models.model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    PrivilegedSource(CONFIG, context(model)).read(games(np.random.default_rng(0), tasks=1))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.extra("peft")
def test_of_a_policy_with_adapters_only_these_are_trained_and_kept() -> None:
    adapted = add_lora(copy.deepcopy(models.model()), 2, seed=1)
    source = PrivilegedSource(CONFIG, context(adapted))
    turns = games(np.random.default_rng(0), tasks=2)
    source.read(turns)
    kept = {name: tensor.clone() for name, tensor in source.state().items()}
    weights = [name for name in kept if name.startswith(("learner/model/", "learner/reference/"))]
    assert weights
    assert all(".lora_" in name for name in weights)
    again = PrivilegedSource(CONFIG, context(adapted))
    again.load_state(kept)
    wanted, found = source.read(turns)["privileged"], again.read(turns)["privileged"]
    np.testing.assert_array_equal(found.values_N, wanted.values_N)
    assert wanted.values_N.any()
