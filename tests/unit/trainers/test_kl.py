"""Estimates of the divergence from the reference: their values, and their gradients as losses."""

from __future__ import annotations

import pytest
import torch

from helpers.losses import ADVANTAGES, LOGP
from turngym.trainers.losses.policy_loss import TokenTerms, kl_estimate, policy_loss
from turngym.trainers.settings.loss import KlEstimator, LossConfig, RegularizerConfig

LOGITS = torch.tensor([0.3, -0.5, 1.1, 0.0], dtype=torch.float64)
REFERENCE = torch.tensor([0.1, 0.4, 0.2, -0.9], dtype=torch.float64).log_softmax(0)
OLD = torch.tensor([0.0, 0.2, 0.9, -0.3], dtype=torch.float64).log_softmax(0)
"""Policy that drew the tokens, a few steps ago."""


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("k1", [0.1, -0.5, 2.0]),
        ("k2", [0.005, 0.125, 2.0]),
        ("k3", [0.004837, 0.148721, 1.135335]),
        ("k1_plus", [0.1, -0.5, 2.0]),
        ("k3_plus", [0.004837, 0.148721, 1.135335]),
        ("k3_unbiased", [0.004837, 0.148721, 1.135335]),
    ],
)
def test_kl_estimates_match_the_published_values(kind: KlEstimator, wanted: list[float]) -> None:
    gaps = torch.tensor([0.1, -0.5, 2.0], dtype=torch.float64)
    found = kl_estimate(gaps - 3, torch.full_like(gaps, -3), kind)
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


def test_k3_of_the_shared_vector() -> None:
    found = kl_estimate(torch.tensor([-1.0]), torch.tensor([-1.2]), "k3")
    assert found.item() == pytest.approx(0.018731, abs=1e-6)


@pytest.mark.parametrize("kind", ["k1_plus", "k3_plus"])
def test_the_plus_forms_have_the_gradient_of_k2(kind: KlEstimator) -> None:
    def gradient(estimator: KlEstimator) -> torch.Tensor:
        policy = LOGP.clone().requires_grad_(True)
        kl_estimate(policy, LOGP - ADVANTAGES, estimator).sum().backward()
        assert policy.grad is not None
        return policy.grad

    torch.testing.assert_close(gradient(kind), gradient("k2"))


def expected_gradient(estimator: KlEstimator, drawn_from: torch.Tensor) -> torch.Tensor:
    """Return what the loss's gradient is on average over tokens drawn from a policy.

    One term per entry of the vocabulary, weighted with how often it is drawn.
    """
    logits = LOGITS.clone().requires_grad_(True)
    terms = TokenTerms(
        policy_logprobs=logits.log_softmax(0),
        old_logprobs=drawn_from,
        advantages=torch.zeros_like(LOGITS),
        coefficients=drawn_from.exp(),
        ref_logprobs=REFERENCE,
    )
    regularizer = RegularizerConfig(kl_coefficient=1.0, kl_estimator=estimator)
    policy_loss(terms, LossConfig(), regularizer).total.backward()
    assert logits.grad is not None
    return logits.grad


def true_gradient() -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_(True)
    logprobs = logits.log_softmax(0)
    (logprobs.exp() * (logprobs - REFERENCE)).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_unbiased_k3_has_the_gradient_of_the_divergence_wherever_tokens_came_from() -> None:
    current = LOGITS.log_softmax(0)
    for drawn_from in (OLD, current):
        torch.testing.assert_close(expected_gradient("k3_unbiased", drawn_from), true_gradient())


@pytest.mark.parametrize("kind", ["k2", "k1_plus", "k3_plus"])
def test_k2_has_it_on_tokens_of_the_policy_itself(kind: KlEstimator) -> None:
    current = LOGITS.log_softmax(0)
    torch.testing.assert_close(expected_gradient(kind, current), true_gradient())


def test_k1_has_none_and_k3_another_one() -> None:
    current = LOGITS.log_softmax(0)
    assert expected_gradient("k1", current).abs().max() < 1e-12
    assert (expected_gradient("k3", current) - true_gradient()).abs().max() > 1e-3
