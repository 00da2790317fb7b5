"""Sums do not depend on how a batch is cut, padded or ordered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turngym.trainers.losses.policy_loss import (
    TokenTerms,
    aggregation_coefficients,
    kl_estimate,
    policy_loss,
)
from turngym.trainers.losses.surrogates import SurrogateInputs, ppo_clip
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import Aggregation, LossConfig, RegularizerConfig
from turngym.trainers.settings.surrogates import PolicyGradient, PpoClip

MODES: tuple[Aggregation, ...] = (
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_const",
    "prompt_mean",
    "turn_mean",
)
modes = st.sampled_from(MODES)
MEANS = st.sampled_from(["token_mean", "seq_mean_token_mean", "prompt_mean", "turn_mean"])
clips = st.builds(
    PpoClip,
    clip_low=st.floats(0.05, 0.9),
    clip_high=st.floats(0.05, 0.9),
    dual_clip=st.none() | st.floats(2.0, 10.0),
)
surrogates = clips | st.just(PolicyGradient(type="pg"))
# Turn ids of a sample, -1 for what was not drawn; the first token never is.
rows = st.lists(st.lists(st.integers(-1, 2), max_size=8), min_size=1, max_size=6)


def sample(turns: list[int], *, index: int, padding: int = 0) -> TrainingSample:
    turn_ids = np.array([-1, *turns, *[-1] * padding])
    mask = turn_ids >= 0
    return TrainingSample(
        token_ids=np.zeros(turn_ids.shape, dtype=np.int64),
        loss_mask=mask,
        turn_ids=turn_ids,
        behaviour_logprobs=np.zeros(turn_ids.shape, dtype=np.float32),
        advantages=np.zeros(turn_ids.shape, dtype=np.float32),
        policy_versions=np.where(mask, 0, -1),
        trajectory=index,
        group=index // 2,
    )


def coefficients(samples: list[TrainingSample], mode: Aggregation) -> list[Any]:
    length = 7 if mode == "seq_mean_token_sum_const" else None
    return aggregation_coefficients(samples, mode, constant_length=length)


@given(rows, modes)
def test_coefficients_are_zero_exactly_where_nothing_was_drawn(
    made: list[list[int]], mode: Aggregation
) -> None:
    samples = [sample(row, index=i) for i, row in enumerate(made)]
    for array, one in zip(coefficients(samples, mode), samples, strict=True):
        assert ((array > 0) == one.loss_mask).all()


@given(rows, MEANS)
def test_coefficients_of_a_mean_sum_to_one(made: list[list[int]], mode: Aggregation) -> None:
    samples = [sample(row, index=i) for i, row in enumerate(made)]
    total = sum(array.sum() for array in coefficients(samples, mode))
    drawn = any(one.loss_mask.any() for one in samples)
    assert total == pytest.approx(1.0 if drawn else 0.0, abs=1e-5)


@given(rows, modes, st.integers(0, 5), st.randoms(use_true_random=False))
def test_padding_and_order_do_not_change_coefficients(
    made: list[list[int]], mode: Aggregation, padding: int, random: Any
) -> None:
    samples = [sample(row, index=i) for i, row in enumerate(made)]
    padded = [sample(row, index=i, padding=padding) for i, row in enumerate(made)]
    random.shuffle(padded)
    wanted = {s.trajectory: a for s, a in zip(samples, coefficients(samples, mode), strict=True)}
    for one, array in zip(padded, coefficients(padded, mode), strict=True):
        expected = wanted[one.trajectory]
        np.testing.assert_allclose(array[: expected.size], expected, rtol=1e-6)
        assert not array[expected.size :].any()


def random_terms(count: int, seed: int) -> TokenTerms:
    rng = np.random.default_rng(seed)

    def draw(scale: float = 1.0) -> torch.Tensor:
        return torch.from_numpy(rng.normal(scale=scale, size=count))

    logprobs = -draw().abs()
    return TokenTerms(
        policy_logprobs=logprobs.requires_grad_(True),
        old_logprobs=(logprobs + draw(0.5)).detach(),
        advantages=draw(),
        coefficients=draw().abs(),
        ref_logprobs=(logprobs + draw(0.5)).detach(),
        entropies=draw().abs(),
    )


def part_of(terms: TokenTerms, chosen: slice) -> TokenTerms:
    return TokenTerms(
        policy_logprobs=terms.policy_logprobs[chosen],
        old_logprobs=terms.old_logprobs[chosen],
        advantages=terms.advantages[chosen],
        coefficients=terms.coefficients[chosen],
        ref_logprobs=None if terms.ref_logprobs is None else terms.ref_logprobs[chosen],
        entropies=None if terms.entropies is None else terms.entropies[chosen],
    )


def push_of(terms: TokenTerms) -> SurrogateInputs:
    return SurrogateInputs(
        log_ratios=terms.policy_logprobs - terms.old_logprobs,
        policy_logprobs=terms.policy_logprobs,
        old_logprobs=terms.old_logprobs,
        advantages=terms.advantages,
    )


REGULARIZER = RegularizerConfig(kl_coefficient=0.3, entropy_coefficient=0.2)


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 1 << 16), surrogates)
def test_pieces_of_a_batch_add_up(count: int, cut: int, seed: int, surrogate: Any) -> None:
    config = LossConfig(surrogate=surrogate)
    terms = random_terms(count, seed)
    whole = policy_loss(terms, config, REGULARIZER).total
    parts = [
        policy_loss(part_of(terms, chosen), config, REGULARIZER).total
        for chosen in (slice(None, cut), slice(cut, None))
    ]
    assert sum(p.item() for p in parts) == pytest.approx(whole.item(), rel=1e-9, abs=1e-9)
    [wanted] = torch.autograd.grad(whole, terms.policy_logprobs, retain_graph=True)
    [found] = torch.autograd.grad(parts[0] + parts[1], terms.policy_logprobs)
    torch.testing.assert_close(found, wanted)


@given(st.integers(1, 30), st.integers(0, 1 << 16), clips)
def test_the_gradient_is_minus_ratio_times_advantage_or_zero(
    count: int, seed: int, clip: PpoClip
) -> None:
    terms = random_terms(count, seed)
    log_ratios = terms.policy_logprobs - terms.old_logprobs
    losses, clipped = ppo_clip(push_of(terms), clip)
    [found] = torch.autograd.grad(losses.sum(), terms.policy_logprobs)
    wanted = torch.where(clipped, 0.0, -log_ratios.detach().exp() * terms.advantages)
    torch.testing.assert_close(found, wanted)


@given(st.integers(1, 30), st.integers(0, 1 << 16), clips)
def test_clipping_only_ever_weakens_the_push(count: int, seed: int, clip: PpoClip) -> None:
    """The surrogate is a lower bound of what it replaces, so the loss is an upper one."""
    terms = random_terms(count, seed)
    log_ratios = (terms.policy_logprobs - terms.old_logprobs).detach()
    bare = clip.model_copy(update={"dual_clip": None})
    losses, _ = ppo_clip(push_of(terms), bare)
    assert (losses >= -log_ratios.exp() * terms.advantages - 1e-12).all()


@given(st.floats(-30, 0), st.floats(-30, 0), st.sampled_from(["k2", "k3", "k3_plus"]))
def test_a_divergence_is_never_negative_and_zero_for_equals(
    policy: float, reference: float, kind: Any
) -> None:
    pair = torch.tensor([policy, policy]), torch.tensor([reference, policy])
    found = kl_estimate(*pair, kind)
    assert found[0] >= -1e-6
    assert found[1] == 0.0
