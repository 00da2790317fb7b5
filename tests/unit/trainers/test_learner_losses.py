"""The learner gives each loss the ratios of whole turns and episodes, however a step is cut."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import models
from helpers.samples import random_samples
from turngym.config import load_config
from turngym.trainers.losses.token_weights import with_selected_tokens
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.corrections import CovarianceConfig, TokenSelection
from turngym.trainers.settings.loss import LossConfig, OldPolicyName, RegularizerConfig
from turngym.trainers.settings.optimizer import LearnerConfig
from turngym.trainers.settings.surrogates import PolicyGradient, PpoClip, Squared
from turngym.trainers.update.learner import TorchLearner

RNG = np.random.default_rng(11)
STALE = [
    replace(
        s,
        behaviour_logprobs=np.where(
            s.loss_mask, s.behaviour_logprobs + RNG.normal(0, 0.3, s.loss_mask.shape), 0
        ).astype(np.float32),
    )
    for s in random_samples(models.model(), count=6)
]
"""Sampled by another policy, so that ratios differ from 1."""


def cut_in_segments(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Return each episode as two samples, one for each of its turns; contexts stay the same."""
    return [
        replace(
            s,
            loss_mask=s.turn_ids == turn,
            turn_ids=np.where(s.turn_ids == turn, turn, -1),
        )
        for s in samples
        for turn in (0, 1)
    ]


def learner(loss: LossConfig, **config: float) -> TorchLearner:
    settings = LearnerConfig(**{"lr": 1e-3, "grad_clip": 1e9, **config})  # type: ignore[arg-type]
    return TorchLearner(copy.deepcopy(models.model()), settings, loss)


def outcome(made: TorchLearner, samples: Sequence[TrainingSample]) -> tuple[float, torch.Tensor]:
    """Return the loss and the gradient of one update."""
    loss = made.update(samples)["train/loss"]
    weights = made.model.parameters()
    return loss, torch.cat([p.grad.flatten() for p in weights if p.grad is not None])


SEQUENCES = [
    LossConfig(
        ratio_level="sequence_geo", old_policy="behaviour", aggregation="seq_mean_token_mean"
    ),
    LossConfig(
        surrogate=Squared(type="squared"),
        ratio_level="sequence_prod",
        old_policy="behaviour",
        aggregation="seq_mean_token_sum",
    ),
    LossConfig(ratio_level="turn", old_policy="behaviour", aggregation="turn_mean"),
    LossConfig(old_policy="behaviour", aggregation="prompt_mean"),
]
SELECTING = [
    LossConfig(token_selection=TokenSelection(score="entropy", share=0.3)),
    LossConfig(token_selection=TokenSelection(score="advantage_entropy", unit="turn", share=0.5)),
]


HOLDING_BACK = [
    LossConfig(
        old_policy="behaviour", covariance=CovarianceConfig(rule="clip", share=0.3, low=0, high=99)
    ),
    LossConfig(old_policy="behaviour", covariance=CovarianceConfig(rule="kl", share=0.3)),
]


@pytest.mark.parametrize(
    "loss",
    [*SEQUENCES, *HOLDING_BACK, *SELECTING],
    ids=lambda c: f"{c.ratio_level}-{c.covariance.rule}-{c.token_selection.score}",
)
@pytest.mark.parametrize("microbatch_tokens", [1, 50, 100])
def test_segments_and_micro_batches_do_not_change_the_gradient(
    loss: LossConfig, microbatch_tokens: int
) -> None:
    wanted, gradient = outcome(learner(loss), STALE)
    for samples in (STALE, cut_in_segments(STALE)):
        found, other = outcome(learner(loss, microbatch_tokens=microbatch_tokens), samples)
        assert found == pytest.approx(wanted, rel=1e-6)
        torch.testing.assert_close(other, gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("loss", HOLDING_BACK, ids=lambda c: c.covariance.rule)
def test_tokens_that_are_held_back_change_the_step(loss: LossConfig) -> None:
    plain = outcome(learner(loss.model_copy(update={"covariance": CovarianceConfig()})), STALE)
    found = outcome(learner(loss), STALE)
    assert not torch.allclose(found[1], plain[1], atol=1e-6)
    again = outcome(learner(loss), STALE)
    torch.testing.assert_close(again[1], found[1])


def test_tokens_are_selected_by_the_entropy_of_the_policy_that_the_update_begins_with() -> None:
    made = learner(SELECTING[0], num_epochs=2)
    model = models.model()
    entropies = []
    for sample in STALE:
        logits = model(input_ids=torch.from_numpy(sample.token_ids)[None]).logits[0, :-1].detach()
        before = torch.special.entr(logits.softmax(-1)).sum(-1).numpy()
        entropies.append(np.where(sample.loss_mask, np.append(0, before), 0))
    chosen = with_selected_tokens(STALE, entropies, SELECTING[0].token_selection)
    tokens = sum(s.num_action_tokens for s in STALE)
    left = sum(np.count_nonzero(s.advantages) for s in chosen)
    assert left == pytest.approx(0.3 * tokens, abs=1)
    found = outcome(made, STALE)
    wanted = outcome(learner(LossConfig(), num_epochs=2), chosen)
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    torch.testing.assert_close(found[1], wanted[1], atol=1e-6, rtol=1e-4)


def test_a_policy_that_is_its_own_reference_blames_failures_by_the_logarithm_of_two_more() -> None:
    """c is 0 for every attempt, and softplus(0) is log 2."""
    loss, plain = LossConfig(confidence_penalty=1.0), LossConfig()
    settings = LearnerConfig(lr=1e-3, grad_clip=1e9)
    made = TorchLearner(
        copy.deepcopy(models.model()), settings, loss, reference=copy.deepcopy(models.model())
    )
    blamed = [
        replace(s, advantages=np.where(s.advantages < 0, 1 + np.log(2), 1) * s.advantages)
        for s in STALE
    ]
    found, wanted = outcome(made, STALE), outcome(learner(plain), blamed)
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    torch.testing.assert_close(found[1], wanted[1], atol=1e-6, rtol=1e-4)
    with pytest.raises(ValueError, match="confidence_penalty needs a reference policy"):
        learner(loss)


def test_an_episode_that_has_left_the_band_is_clipped_as_one() -> None:
    loss = LossConfig(
        surrogate=PpoClip(clip_low=3e-4, clip_high=4e-4),
        ratio_level="sequence_geo",
        old_policy="behaviour",
        aggregation="seq_mean_token_mean",
    )
    found = learner(loss).update(STALE)
    clipped = 0
    for sample in STALE:
        mask = sample.loss_mask
        [now] = learner(loss).logprobs([sample])
        ratio = np.exp((now - sample.behaviour_logprobs)[mask].mean())
        praised = sample.advantages[mask][0] > 0
        if (praised and ratio > 1 + 4e-4) or (not praised and ratio < 1 - 3e-4):
            clipped += sample.num_action_tokens
    assert clipped > 0
    assert found["train/clip_fraction"] == pytest.approx(
        clipped / sum(s.num_action_tokens for s in STALE)
    )


def test_a_current_old_policy_ignores_who_drew_the_tokens() -> None:
    current, _ = outcome(learner(LossConfig(old_policy="current")), STALE)
    one_step, _ = outcome(learner(LossConfig()), STALE)
    behaviour, _ = outcome(learner(LossConfig(old_policy="behaviour")), STALE)
    assert current == one_step != behaviour


@pytest.mark.parametrize(("old_policy", "clips"), [("proximal", True), ("current", False)])
def test_an_old_policy_that_moves_along_never_clips(old_policy: OldPolicyName, clips: bool) -> None:
    made = learner(LossConfig(old_policy=old_policy), num_epochs=4, lr=0.01)
    assert (made.update(STALE)["train/clip_fraction"] > 0) == clips


def test_the_level_changes_nothing_in_one_step_per_batch() -> None:
    mode = "seq_mean_token_mean"
    wanted = outcome(learner(LossConfig(aggregation=mode)), STALE)
    found = outcome(learner(LossConfig(aggregation=mode, ratio_level="sequence_geo")), STALE)
    assert found[0] == pytest.approx(wanted[0], abs=1e-7)
    torch.testing.assert_close(found[1], wanted[1], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("surrogate", ["ppo_clip", "pg"])
def test_an_unbiased_divergence_knows_the_policy_that_the_batch_began_with(surrogate: str) -> None:
    """Its ratio starts at 1; k3 and its unbiased form part from the second step on."""
    updates = {}
    for kind in ("k3", "k3_unbiased"):
        made = TorchLearner(
            copy.deepcopy(models.model()),
            LearnerConfig(lr=3e-3, num_epochs=2),
            LossConfig.model_validate({"surrogate": {"type": surrogate}}),
            RegularizerConfig.model_validate({"kl_coefficient": 1.0, "kl_estimator": kind}),
            reference=models.model(),
        )
        first = made.update(STALE)["train/kl_ref"]
        updates[kind] = first
    assert updates["k3_unbiased"] != pytest.approx(updates["k3"], rel=1e-3)


CORRECTIONS = {
    "token": {"weight": "truncate", "high": 1.2},
    "turn": {"weight": "raw", "level": "turn"},
    "sequence": {"weight": "truncate", "level": "sequence_prod", "high": 1.5},
    "normalized": {"weight": "truncate", "high": 1.2, "normalize": True},
    "kept": {"weight": "band", "low": 0.8, "high": 1.2, "denominator": "kept"},
    "one_sided": {
        "reject": [
            {
                "pair": "current_behaviour",
                "statistic": "k2",
                "level": "sequence_mean",
                "high": 0.03,
                "only_negative": True,
            }
        ]
    },
    "veto": {"reject": [{"level": "any_token", "high": 1.6}]},
    "probability": {"reject": [{"statistic": "abs_dp", "high": 0.001}]},
}


def correcting(name: str, **loss: object) -> LossConfig:
    return load_config(LossConfig, [{"correction": CORRECTIONS[name], **loss}])


def gradient_of(
    loss: LossConfig, samples: Sequence[TrainingSample], **config: float
) -> torch.Tensor:
    return outcome(learner(loss, **config), samples)[1]


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("microbatch_tokens", [1, 60])
def test_corrections_do_not_depend_on_how_a_step_is_cut(name: str, microbatch_tokens: int) -> None:
    loss = correcting(name)
    wanted = gradient_of(loss, STALE)
    assert not torch.allclose(wanted, gradient_of(LossConfig(), STALE), atol=1e-5)
    for samples in (STALE, cut_in_segments(STALE)):
        found = gradient_of(loss, samples, microbatch_tokens=microbatch_tokens)
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", [n for n in CORRECTIONS if n != "probability"])
def test_no_correction_changes_anything_on_policy(name: str) -> None:
    samples = random_samples(models.model(), count=6)
    found = gradient_of(correcting(name), samples)
    torch.testing.assert_close(found, gradient_of(LossConfig(), samples), atol=1e-5, rtol=1e-3)


ON_POLICY = [
    {"old_policy": "estimated"},
    {"surrogate": {"type": "ppo_clip", "bounds": {"type": "second_moment"}}},
    {"surrogate": {"type": "ppo_clip", "bounds": {"type": "balanced"}}},
    {"surrogate": {"type": "is_taper"}, "old_policy": "behaviour"},
    {"surrogate": {"type": "is_clip"}, "ratio_level": "prefix_min", "old_policy": "behaviour"},
    {"step_scale": {"rule": "sqrt"}},
]


@pytest.mark.parametrize("settings", ON_POLICY, ids=str)
def test_every_off_policy_loss_is_the_plain_one_on_policy(settings: dict[str, object]) -> None:
    samples = random_samples(models.model(), count=6)
    found = gradient_of(load_config(LossConfig, [settings]), samples)
    torch.testing.assert_close(found, gradient_of(LossConfig(), samples), atol=1e-5, rtol=1e-3)


def test_bounds_are_found_from_the_ratios_that_they_clip() -> None:
    """Those of episodes hardly differ from 1 but for one, unlike those of tokens."""
    bounds = {"type": "second_moment", "budget": 0.1}
    loss = {
        "surrogate": {"type": "ppo_clip", "bounds": bounds},
        "ratio_level": "sequence_geo",
        "old_policy": "behaviour",
        "aggregation": "seq_mean_token_mean",
    }
    samples = []
    for number, s in enumerate(random_samples(models.model(), count=6)):
        swings_L = (-1.0) ** np.cumsum(s.loss_mask) - 0.45 * (number == 1)
        behaviour_L = np.where(s.loss_mask, s.behaviour_logprobs + swings_L, 0)
        advantages_L = np.where(s.loss_mask, [-1.0, 1.0][number % 2], 0)
        samples.append(
            replace(
                s,
                behaviour_logprobs=behaviour_L.astype(np.float32),
                advantages=advantages_L.astype(np.float32),
            )
        )
    found = learner(load_config(LossConfig, [loss])).update(samples)
    assert found["train/clip_fraction"] == 0


def test_a_fully_rejected_batch_moves_nothing() -> None:
    nothing = {"reject": [{"level": "token", "low": 1e8}]}
    loss, gradient = outcome(learner(load_config(LossConfig, [{"correction": nothing}])), STALE)
    assert loss == 0.0
    assert not gradient.any()


def test_a_decoupled_step_is_the_plain_one_times_the_ratio() -> None:
    """Everybody drew with probabilities that are e^0.1 times too small."""
    stale = [
        replace(s, behaviour_logprobs=np.where(s.loss_mask, s.behaviour_logprobs - 0.1, 0).astype(
            np.float32))
        for s in random_samples(models.model(), count=6)
    ]  # fmt: skip
    raw = load_config(LossConfig, [{"correction": {"weight": "raw"}}])
    found, plain = gradient_of(raw, stale), gradient_of(LossConfig(), stale)
    torch.testing.assert_close(found, plain * np.exp(0.1), atol=1e-5, rtol=1e-3)


def test_several_steps_measure_from_the_policy_that_the_batch_began_with() -> None:
    """With the recomputed old policy the second step's weights are those of the first."""
    made = learner(correcting("token"), num_epochs=2, lr=0.01)
    once = learner(correcting("token")).update(STALE)["train/correction_mean"]
    assert made.update(STALE)["train/correction_mean"] == pytest.approx(once, rel=1e-5)
    current = {"reject": [{"pair": "current_proximal", "low": 0.999, "high": 1.001}]}
    moved = learner(load_config(LossConfig, [{"correction": current}]), num_epochs=2, lr=0.01)
    found = moved.update(STALE)["train/rejected_fraction"]
    assert 0.2 < found <= 0.5  # nothing in the first of two steps, most in the second


def test_few_effective_episodes_make_a_small_step() -> None:
    def moved(rule: str) -> tuple[float, float]:
        config = load_config(LossConfig, [{"step_scale": {"rule": rule}}])
        made = learner(config)
        before = torch.cat([p.detach().flatten().clone() for p in made.model.parameters()])
        share = made.update(STALE)["train/effective_share"]
        after = torch.cat([p.detach().flatten() for p in made.model.parameters()])
        return float((after - before).norm()), share

    (whole, share), (root, _), (linear, _) = moved("none"), moved("sqrt"), moved("linear")
    assert 0 < share < 0.9
    assert root == pytest.approx(whole * share**0.5, rel=1e-3)
    assert linear == pytest.approx(whole * share, rel=1e-3)


def test_trajectory_balance_pulls_towards_the_reference_and_the_reward() -> None:
    """At the reference only rewards count; then the gradient is that of a policy gradient."""
    samples = [
        replace(s, group=0, advantages=np.where(s.loss_mask, i - 2.5, 0).astype(np.float32))
        for i, s in enumerate(random_samples(models.model(), count=6))
    ]
    balance = load_config(
        LossConfig,
        [{"surrogate": {"type": "balance", "beta": 0.5}, "aggregation": "seq_mean_token_sum"}],
    )
    plain = LossConfig(surrogate=PolicyGradient(type="pg"), aggregation="seq_mean_token_sum")
    settings = LearnerConfig(lr=1e-3, grad_clip=1e9)
    made = TorchLearner(copy.deepcopy(models.model()), settings, balance, reference=models.model())
    found = outcome(made, samples)[1]
    torch.testing.assert_close(found, 4 * gradient_of(plain, samples), atol=1e-4, rtol=1e-3)
    level = [replace(s, advantages=np.zeros_like(s.advantages)) for s in samples]
    pulled = outcome(made, level)[1]
    assert pulled.norm() > 0  # away from the reference by now
