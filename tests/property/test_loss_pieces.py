"""Every loss that the settings allow is the same however a batch is cut, packed and ordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from turngym.trainers.losses.policy_loss import (
    TokenTerms,
    aggregation_coefficients,
    policy_loss,
    token_log_ratios,
)
from turngym.trainers.losses.surrogates import (
    SurrogateInputs,
    flat,
    level_log_ratios,
    sequence_ids,
    unflat,
)
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import (
    Aggregation,
    LossConfig,
    RatioLevel,
    RegularizerConfig,
)
from turngym.trainers.settings.surrogates import CustomSurrogate, Surrogate

SURROGATES = [
    get_args(kind.model_fields["type"].annotation)[0]
    for kind in get_args(get_args(Surrogate)[0])
    if kind is not CustomSurrogate
]
CONST: Aggregation = "seq_mean_token_sum_const"
REGULARIZER = RegularizerConfig(
    kl_coefficient=0.3, kl_estimator="k3_unbiased", entropy_coefficient=0.2
)


def allowed_losses() -> list[LossConfig]:
    """Return every surrogate at every level with every aggregation that go together."""
    found = []
    modes, levels = get_args(Aggregation), get_args(RatioLevel)
    for kind, level, mode in product(SURROGATES, levels, modes):
        settings = {"surrogate": {"type": kind}, "ratio_level": level, "aggregation": mode}
        try:
            found.append(LossConfig(**settings, constant_length=7 if mode == CONST else None))
        except ValidationError:
            continue
    return found


LOSSES = allowed_losses()


def test_most_parts_go_together() -> None:
    assert len(LOSSES) == 210
    assert {loss.surrogate.type for loss in LOSSES} == set(SURROGATES)


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples, and what a policy, an anchor and a reference think of their tokens."""

    samples: list[TrainingSample]
    policy: list[NDArray[np.float64]]
    anchor: list[NDArray[np.float64]]
    reference: list[NDArray[np.float64]]

    def in_order(self, order: Sequence[int]) -> Batch:
        """Return the same batch with its samples in another order."""
        rest = ([each[i] for i in order] for each in (self.policy, self.anchor, self.reference))
        return Batch([self.samples[i] for i in order], *rest)

    def padded(self, count: int) -> Batch:
        """Return the same batch with tokens behind each sample that nobody drew."""

        def longer(array: NDArray[Any], fill: float = 0) -> NDArray[Any]:
            return np.pad(array, (0, count), constant_values=fill)

        samples = [
            TrainingSample(
                token_ids=longer(s.token_ids),
                loss_mask=longer(s.loss_mask),
                turn_ids=longer(s.turn_ids, -1),
                behaviour_logprobs=longer(s.behaviour_logprobs),
                advantages=longer(s.advantages),
                policy_versions=longer(s.policy_versions, -1),
                trajectory=s.trajectory,
                group=s.group,
                weight=s.weight,
            )
            for s in self.samples
        ]
        rest = ([longer(a) for a in each] for each in (self.policy, self.anchor, self.reference))
        return Batch(samples, *rest)


def random_batch(seed: int, *, segments: int) -> Batch:
    """Return five episodes in two groups, of up to ``segments`` segments of one or two turns."""
    rng = np.random.default_rng(seed)
    samples = []
    for episode in range(5):
        turn = 0
        for _ in range(rng.integers(1, segments + 1)):
            turn_ids = [-1]
            for _ in range(rng.integers(1, 3)):
                turn_ids += [turn] * int(rng.integers(1, 4)) + [-1] * int(rng.integers(0, 2))
                turn += 1
            samples.append(sample(turn_ids, rng, episode=episode))

    def draw(scale: float) -> list[NDArray[np.float64]]:
        return [rng.normal(0, scale, s.turn_ids.shape) for s in samples]

    policy = [-1 - np.abs(gap) for gap in draw(1.0)]
    anchor, reference = (
        [p + gap for p, gap in zip(policy, draw(0.4), strict=True)] for _ in range(2)
    )
    return Batch(samples, policy, anchor, reference)


def sample(turn_ids: list[int], rng: np.random.Generator, *, episode: int) -> TrainingSample:
    mask = np.array(turn_ids) >= 0
    advantages = np.where(mask, rng.normal(size=mask.shape), 0)
    return TrainingSample(
        token_ids=np.zeros(mask.shape, dtype=np.int64),
        loss_mask=mask,
        turn_ids=np.array(turn_ids),
        behaviour_logprobs=np.zeros(mask.shape, dtype=np.float32),
        advantages=advantages.astype(np.float32),
        policy_versions=np.where(mask, 0, -1),
        trajectory=episode,
        group=episode % 2,
        weight=0.5 if episode == 3 else 1.0,
    )


def loss_in_pieces(batch: Batch, config: LossConfig, *, size: int) -> tuple[float, torch.Tensor]:
    """Return loss and gradient when ``size`` samples at a time go through the loss.

    The gradient is with respect to the log-probs of the drawn tokens, laid out flat.
    """
    samples = batch.samples
    leaves = [torch.from_numpy(p).requires_grad_(True) for p in batch.policy]
    coefficients = aggregation_coefficients(
        samples, config.aggregation, constant_length=config.constant_length
    )
    sequences = sequence_ids(samples)
    known = None
    if config.ratio_level not in ("token", "turn") and size < len(samples):
        all_N = SurrogateInputs.of(samples, batch.policy, batch.anchor)
        own_N = token_log_ratios(all_N, config)
        found_N = level_log_ratios(own_N, flat(sequences, samples), config.ratio_level)
        known = unflat(found_N, samples)
    total = 0.0
    for start in range(0, len(samples), size):
        part = range(start, min(start + size, len(samples)))
        masks = [samples[i].loss_mask for i in part]

        def gather(arrays: Sequence[Any], part: range = part, masks: Any = masks) -> torch.Tensor:
            picked = [torch.as_tensor(arrays[i])[m] for i, m in zip(part, masks, strict=True)]
            return torch.cat(picked)

        policy_N = gather(leaves)
        terms = TokenTerms(
            policy_logprobs=policy_N,
            old_logprobs=gather(batch.anchor),
            advantages=gather([s.advantages for s in samples]).double(),
            coefficients=gather(coefficients).double(),
            sequences=gather(sequences),
            sequence_log_ratios=None if known is None else gather(known),
            ref_logprobs=gather(batch.reference),
            entropies=policy_N.square(),
        )
        loss = policy_loss(terms, config, REGULARIZER).total
        loss.backward()
        total += loss.item()
    gradients = []
    for leaf, one in zip(leaves, samples, strict=True):
        assert leaf.grad is not None
        gradients.append(leaf.grad[torch.from_numpy(one.loss_mask)])
    return total, torch.cat(gradients)


def label(config: LossConfig) -> str:
    return f"{config.surrogate.type}-{config.ratio_level}-{config.aggregation}"


@pytest.mark.parametrize("config", LOSSES, ids=label)
def test_micro_batches_of_any_size_give_the_loss_and_gradient_of_one(config: LossConfig) -> None:
    batch = random_batch(7, segments=3)
    wanted, gradient = loss_in_pieces(batch, config, size=len(batch.samples))
    for size in range(1, len(batch.samples)):
        loss, found = loss_in_pieces(batch, config, size=size)
        assert loss == pytest.approx(wanted, abs=1e-6)
        torch.testing.assert_close(found, gradient, atol=1e-6, rtol=0)


@given(
    st.sampled_from(LOSSES),
    st.integers(0, 1 << 16),
    st.integers(1, 3),
    st.integers(1, 15),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_order_padding_and_pieces_change_nothing(
    config: LossConfig, seed: int, segments: int, size: int, padding: int, random: Any
) -> None:
    batch = random_batch(seed, segments=segments)
    order = list(range(len(batch.samples)))
    random.shuffle(order)
    other = batch.in_order(order).padded(padding)
    wanted, gradient = loss_in_pieces(batch, config, size=len(order))
    loss, found = loss_in_pieces(other, config, size=min(size, len(order)))
    assert loss == pytest.approx(wanted, abs=1e-6)
    counts = [batch.samples[i].num_action_tokens for i in order]
    parts = dict(zip(order, found.split(counts), strict=True))
    restored = torch.cat([parts[i] for i in sorted(parts)])
    torch.testing.assert_close(restored, gradient, atol=1e-6, rtol=0)
