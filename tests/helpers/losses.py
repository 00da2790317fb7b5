"""The fixture F1: two sequences of four and two drawn tokens, with advantages +1 and -1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from turngym.trainers.losses.policy_loss import (
    LossParts,
    TokenTerms,
    aggregation_coefficients,
    policy_loss,
)
from turngym.trainers.losses.surrogates import sequence_ids
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import Aggregation, LossConfig, RegularizerConfig

LENGTHS = (4, 2)
LOGP = torch.tensor([-0.4, -1.0, -2.0, -0.2, -0.3, -0.7], dtype=torch.float64)
PROX = torch.tensor([-0.7, -1.0, -1.5, -0.3, -1.6, -0.4], dtype=torch.float64)
BEHAVIOUR = torch.tensor([-0.9, -0.8, -1.5, -0.3, -1.0, -1.2], dtype=torch.float64)
ADVANTAGES = torch.tensor([1, 1, 1, 1, -1, -1], dtype=torch.float64)
NO_REGULARIZER = RegularizerConfig()


def sample(
    turns: Sequence[int], *, index: int, weight: float = 1.0, group: int = 0
) -> TrainingSample:
    """Return a sample whose tokens belong to ``turns``, -1 for a token that was not drawn."""
    turn_ids = np.array([-1, *turns])
    zeros = np.zeros(turn_ids.shape, dtype=np.float32)
    return TrainingSample(
        token_ids=np.ones(turn_ids.shape, dtype=np.int64),
        loss_mask=turn_ids >= 0,
        turn_ids=turn_ids,
        behaviour_logprobs=zeros,
        advantages=zeros,
        policy_versions=np.where(turn_ids >= 0, 0, -1),
        trajectory=index,
        group=group,
        weight=weight,
    )


F1 = [sample([0, 0, 1, 1], index=0, group=0), sample([0, 1], index=1, group=1)]
"""Two turns each."""


def coefficients(
    samples: Sequence[TrainingSample], mode: Aggregation, constant: int | None = None
) -> torch.Tensor:
    """Return the coefficients of the drawn tokens, laid out flat."""
    arrays = aggregation_coefficients(samples, mode, constant_length=constant)
    picked = [array[s.loss_mask] for array, s in zip(arrays, samples, strict=True)]
    return torch.from_numpy(np.concatenate(picked)).double()


def f1_terms(config: LossConfig, **changes: torch.Tensor) -> TokenTerms:
    """Return F1 as the loss sees it."""
    ids = sequence_ids(F1)
    sequences = np.concatenate([i[s.loss_mask] for i, s in zip(ids, F1, strict=True)])
    terms = TokenTerms(
        policy_logprobs=LOGP,
        old_logprobs=BEHAVIOUR if config.old_policy == "behaviour" else PROX,
        advantages=ADVANTAGES,
        coefficients=coefficients(F1, config.aggregation, config.constant_length),
        sequences=torch.from_numpy(sequences),
    )
    return replace(terms, **changes)


def f1_loss(
    config: LossConfig, regularizer: RegularizerConfig = NO_REGULARIZER, **changes: torch.Tensor
) -> tuple[LossParts, list[float]]:
    """Return the loss of F1 and its gradient with respect to the log-probs."""
    logprobs = changes.pop("policy_logprobs", LOGP).clone().requires_grad_(True)
    terms = f1_terms(config, policy_logprobs=logprobs, **changes)
    parts = policy_loss(terms, config, regularizer)
    parts.total.backward()
    assert logprobs.grad is not None
    return parts, logprobs.grad.tolist()
