"""The value model reads where it should, learns what it is told, and comes back to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers import models
from turngym.agents.engine.models import add_lora
from turngym.trainers.credit.critics.values import ValueModel
from turngym.trainers.settings.group import TokenValues

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(0, 280, size) for size in (9, 14, 6)]
MASKS = [np.isin(np.arange(text.size), (2, 5)) for text in TEXTS]
TARGETS = [np.array([1.0, -1.0]), np.array([0.5, 0.25]), np.array([0.0, 2.0])]


def value_model(**settings: Any) -> ValueModel:
    return ValueModel(models.model(), TokenValues(**settings), seed=1, max_tokens=64)


def test_every_value_begins_at_zero() -> None:
    assert [values.tolist() for values in value_model().read(TEXTS, MASKS)] == [[0.0, 0.0]] * 3


def test_a_value_is_read_at_the_position_that_predicts_the_token() -> None:
    made = value_model()
    weight = torch.linspace(-1, 1, 32)[None]
    made.load_state(made.state() | {"net/weight": weight, "net/bias": torch.tensor([0.5])})
    body = models.model().base_model
    for text, mask, found in zip(TEXTS, MASKS, made.read(TEXTS, MASKS), strict=True):
        with torch.no_grad():
            hidden = body(input_ids=torch.from_numpy(text)[None]).last_hidden_state[0]
        wanted = [float(hidden[at - 1] @ weight[0]) + 0.5 for at in np.flatnonzero(mask)]
        assert found == pytest.approx(wanted, abs=1e-5)


def test_a_value_knows_nothing_of_what_comes_after() -> None:
    made = value_model()
    made.fit(TEXTS, MASKS, TARGETS)
    before = made.read(TEXTS, MASKS)
    changed = [np.where(np.arange(text.size) >= 5, 7, text) for text in TEXTS]
    for old, new in zip(before, made.read(changed, MASKS), strict=True):
        assert new == pytest.approx(old, abs=1e-6)


def test_the_loss_is_the_mean_square_over_chosen_tokens() -> None:
    # The value loss of ArCHer's token baseline: A = .01, v = (.02, -.01), here as the gaps A - v.
    made = value_model(epochs=1, minibatches=1)
    loss = made.fit(TEXTS[:1], MASKS[:1], [np.array([-0.01, 0.02])])
    assert loss == pytest.approx(0.00025)


def test_targets_are_learned_and_the_policy_is_left_alone() -> None:
    policy = {name: t.clone() for name, t in models.model().state_dict().items()}
    made = value_model(lr=3e-3, epochs=40, minibatches=2)
    made.fit(TEXTS, MASKS, TARGETS)
    assert np.concatenate(made.read(TEXTS, MASKS)) == pytest.approx(
        np.concatenate(TARGETS), abs=0.1
    )
    assert all(torch.equal(t, policy[name]) for name, t in models.model().state_dict().items())


def test_small_rectangles_change_nothing() -> None:
    one = ValueModel(models.model(), TokenValues(), seed=1, max_tokens=1)
    many = value_model()
    assert one.fit(TEXTS, MASKS, TARGETS) == pytest.approx(many.fit(TEXTS, MASKS, TARGETS))
    assert np.concatenate(one.read(TEXTS, MASKS)) == pytest.approx(
        np.concatenate(many.read(TEXTS, MASKS)), abs=1e-4
    )


def test_a_resumed_value_model_goes_on_to_the_bit() -> None:
    made, again = value_model(), value_model()
    made.fit(TEXTS, MASKS, TARGETS)
    again.load_state({name: tensor.clone() for name, tensor in made.state().items()})
    for one in (made, again):
        one.fit(TEXTS, MASKS, TARGETS)
    assert all(torch.equal(t, again.state()[name]) for name, t in made.state().items())


@pytest.mark.extra("peft")
def test_an_adapted_policy_is_copied_with_its_adapters_merged() -> None:
    import copy

    adapted = add_lora(copy.deepcopy(models.model()), 2, seed=0)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.05)
    made = ValueModel(adapted, TokenValues(), seed=1, max_tokens=64)
    weight = torch.linspace(-1, 1, 32)[None]
    made.load_state(made.state() | {"net/weight": weight})
    body = adapted.get_base_model().base_model
    with torch.no_grad():
        hidden = body(input_ids=torch.from_numpy(TEXTS[0])[None]).last_hidden_state[0]
    wanted = [float(hidden[at - 1] @ weight[0]) for at in np.flatnonzero(MASKS[0])]
    assert made.read(TEXTS[:1], MASKS[:1])[0] == pytest.approx(wanted, abs=1e-4)
    assert not any("lora" in name for name in made.state())
