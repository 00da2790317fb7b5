"""Log-probs of chosen tokens against a plain forward pass, whatever the padding."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from helpers import models
from turngym.trainers.update import forward
from turngym.trainers.update.compute import Ranks
from turngym.trainers.update.forward import MicroBatch, micro_batches, read_tokens, score

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
    _, entropies = read_tokens(model, micro)
    table = plain(model, token_ids[0])
    wanted = [-(table[t - 1].exp() * table[t - 1]).sum().item() for t in np.flatnonzero(masks[0])]
    assert entropies.tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("asked", [True, False])
def test_entropies_carry_gradients_only_when_asked_to(asked: bool) -> None:
    token_ids, masks = batch(8)
    [micro] = micro_batches(token_ids, masks, max_tokens=64, device=CPU)
    _, entropies = read_tokens(models.model(), micro, entropy_gradient=asked)
    assert entropies.requires_grad is asked


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("granite", {"logits_scaling": 4.0, "embedding_multiplier": 30.0}),
        ("gemma2", {"final_logit_softcapping": 0.1, "head_dim": 8}),
        (
            "falcon_h1",
            {"lm_head_multiplier": 0.25, "mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8},
        ),
    ],
)
def test_logits_that_an_architecture_changes_after_the_head_are_respected(
    kind: str, change: dict[str, float]
) -> None:
    """Granite divides its logits; the head alone would be four times too sure."""
    shape = AutoConfig.for_model(
        kind,
        vocab_size=280,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        **change,
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


@dataclass
class Rank(Ranks):
    """One of three."""

    number: int
    size: int = 3


@pytest.mark.parametrize(("device", "busy"), [("cpu", 1), ("meta", 3)])
def test_ranks_share_a_batch_and_keep_in_step(device: str, busy: int) -> None:
    """On a GPU, here a device without content, each has something to do."""
    token_ids, masks = batch(5, 30, 12, 12, 3, 40)

    def cut(max_tokens: int) -> list[list[MicroBatch]]:
        place = torch.device(device)
        how = {"max_tokens": max_tokens, "device": place}
        return [micro_batches(token_ids, masks, ranks=Rank(n), **how) for n in range(3)]

    for max_tokens in (64, 500):
        shares = cut(max_tokens)
        assert len({len(share) for share in shares}) == 1
        read = [m.members for share in shares for m in share if not m.is_filler]
        assert sorted(i for members in read for i in members) == [0, 1, 2, 3, 4, 5]
    assert sum(any(not m.is_filler for m in share) for share in cut(500)) == busy
    # As one process cuts and orders them.
    dealt = [m.members for turn in zip(*cut(64), strict=True) for m in turn if not m.is_filler]
    assert dealt == [(5,), (1, 2), (3, 0, 4)]


def test_what_a_rank_computes_to_keep_in_step_is_no_score() -> None:
    """The shortest sequence on its own, which rounds otherwise than among the others."""
    token_ids, masks = batch(9, 4)
    for number, idles in ((0, False), (1, True)):
        found = score(models.model(), token_ids, masks, max_tokens=64, ranks=Rank(number))
        assert [bool(values.any()) for values in found] == [not idles, not idles]


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


# Chunks of tokens.


class Largest(TorchDispatchMode):
    """Sees every tensor that an operation makes, backward passes included."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.rows = 0
        """Most rows of logits in one tensor."""
        self._vocabulary = config.vocab_size
        self._weight = (config.hidden_size, config.vocab_size)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            is_logits = isinstance(one, torch.Tensor) and one.shape[-1:] == (self._vocabulary,)
            if is_logits and one.shape != self._weight:  # the head's gradient, turned over
                self.rows = max(self.rows, one.numel() // self._vocabulary)
        return found


def measured(model: Any, *, entropy_gradient: bool) -> tuple[Any, ...]:
    """Return log-probs, entropies, their gradient, rows of logits, and the number of tokens."""
    token_ids, masks = batch(33, 40, 21)
    [micro] = micro_batches(token_ids, masks, max_tokens=1000, device=CPU)
    model.zero_grad()
    with Largest(model.config) as seen:
        logprobs, entropies = read_tokens(
            model, micro, temperature=0.7, entropy_gradient=entropy_gradient
        )
        total = (logprobs * torch.linspace(-1, 2, len(logprobs))).sum()
        if entropy_gradient:
            total = total + 0.3 * entropies.square().sum()
        total.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return logprobs.detach(), entropies.detach(), gradient, seen.rows, len(logprobs)


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_chunks_bound_the_logits_in_memory_and_change_no_number(
    entropy_gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(models.model())
    *whole, rows, tokens = measured(model, entropy_gradient=entropy_gradient)
    assert rows == tokens > 40
    monkeypatch.setattr(forward, "CHUNK_LOGITS", 7 * model.config.vocab_size + 1)
    *chunked, rows, _ = measured(model, entropy_gradient=entropy_gradient)
    assert rows == 7
    for one, other in zip(whole, chunked, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_chunks_of_logits_that_are_changed_after_the_head_change_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = copy.deepcopy(models.model())
    monkeypatch.setattr(model.config, "logit_scale", 0.5, raising=False)
    *whole, _, _ = measured(model, entropy_gradient=True)
    monkeypatch.setattr(forward, "CHUNK_LOGITS", 7 * model.config.vocab_size + 1)
    *chunked, _, _ = measured(model, entropy_gradient=True)
    for one, other in zip(whole, chunked, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
