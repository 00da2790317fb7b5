"""Log-probs of chosen tokens against a plain forward pass, whatever the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from helpers import models
from turngym.trainers.forward import micro_batches, score, token_logprobs

CPU = torch.device("cpu")


def batch(*lengths: int, seed: int = 0) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    token_ids = [rng.integers(0, 280, length) for length in lengths]
    masks = [rng.random(length) < 0.5 for length in lengths]
    for mask in masks:
        mask[0], mask[-1] = False, True
    return token_ids, masks


def plain(model: Any, ids: Any, *, temperature: float = 1.0) -> Any:
    """Return log-probs [L, V] of the next token, from the model's own logits of one sequence."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0]
    return (logits / temperature).log_softmax(-1)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_equal_a_plain_forward_pass(architecture: Any, temperature: float) -> None:
    model = models.model(architecture)
    token_ids, masks = batch(9, 17, 4)
    found = score(model, token_ids, masks, max_tokens=64, temperature=temperature)
    for ids, mask, values in zip(token_ids, masks, found, strict=True):
        table = plain(model, ids, temperature=temperature)
        wanted = [table[t - 1, ids[t]].item() if mask[t] else 0.0 for t in range(len(ids))]
        np.testing.assert_allclose(values, wanted, atol=1e-5)


def test_scores_do_not_depend_on_company_or_padding() -> None:
    model = models.model()
    token_ids, masks = batch(5, 30, 12, 12, 3)
    together = score(model, token_ids, masks, max_tokens=1000)
    for i, wanted in enumerate(together):
        [alone] = score(model, [token_ids[i]], [masks[i]], max_tokens=1)
        np.testing.assert_allclose(alone, wanted, atol=1e-6)


def test_entropies_are_those_of_the_predicting_position() -> None:
    model = models.model()
    token_ids, masks = batch(8)
    [micro] = micro_batches(token_ids, masks, max_tokens=64, device=CPU)
    _, entropies = token_logprobs(model, micro)
    table = plain(model, token_ids[0])
    wanted = [-(table[t - 1].exp() * table[t - 1]).sum().item() for t in np.flatnonzero(masks[0])]
    assert entropies.tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("asked", [True, False])
def test_entropies_carry_gradients_only_when_asked_to(asked: bool) -> None:
    token_ids, masks = batch(8)
    [micro] = micro_batches(token_ids, masks, max_tokens=64, device=CPU)
    _, entropies = token_logprobs(models.model(), micro, entropy_gradient=asked)
    assert entropies.requires_grad is asked


def test_logits_that_an_architecture_changes_after_the_head_are_respected() -> None:
    """Granite divides its logits; the head alone would be four times too sure."""
    shape = AutoConfig.for_model(
        "granite",
        vocab_size=280,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        logits_scaling=4.0,
        embedding_multiplier=30.0,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(0)
        model = AutoModelForCausalLM.from_config(shape).eval()
    token_ids, masks = batch(7)
    [found] = score(model, token_ids, masks, max_tokens=64)
    table = plain(model, token_ids[0])
    for t in np.flatnonzero(masks[0]):
        assert found[t] == pytest.approx(table[t - 1, token_ids[0][t]].item(), abs=1e-5)


def test_micro_batches_hold_every_sequence_once_within_the_budget() -> None:
    token_ids, masks = batch(5, 30, 12, 12, 3, 40)
    cut = micro_batches(token_ids, masks, max_tokens=64, device=CPU)
    assert sorted(i for micro in cut for i in micro.members) == [0, 1, 2, 3, 4, 5]
    assert all(micro.token_ids_BT.numel() <= 64 for micro in cut)
    assert [micro.members for micro in cut] == [(5,), (1, 2), (3, 0, 4)]


def test_a_sequence_longer_than_the_budget_goes_alone() -> None:
    token_ids, masks = batch(5, 30)
    assert [m.members for m in micro_batches(token_ids, masks, max_tokens=6, device=CPU)] == [
        (1,),
        (0,),
    ]


def test_sequences_without_chosen_tokens_are_left_out() -> None:
    token_ids, masks = batch(5, 6)
    masks[0][:] = False
    [micro] = micro_batches(token_ids, masks, max_tokens=64, device=CPU)
    assert micro.members == (1,)
    assert score(models.model(), token_ids, masks, max_tokens=64)[0].tolist() == [0] * 5


def test_gathered_values_line_up_with_the_chosen_tokens() -> None:
    token_ids, masks = batch(9, 17, 4)
    for micro in micro_batches(token_ids, masks, max_tokens=40, device=CPU):
        assert micro.gather(token_ids).tolist() == micro.targets_N.tolist()
