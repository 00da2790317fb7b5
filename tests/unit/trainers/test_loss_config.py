"""Losses that cannot work, or would not do what they say, are refused in one line."""

from __future__ import annotations

import pytest

from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.surrogates import (
    ClippedWeight,
    DivergenceMask,
    PpoClip,
    SoftGate,
)
from turngym.trainers.settings.train import TrainConfig


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (['surrogate={"type": "ppo_clip", "dual_clip": 1.1}'], r"dual_clip=1.1 must be at least"),
        (['surrogate={"type": "pg", "dual_clip": 3}'], r"surrogate.dual_clip: unknown key"),
        (["aggregation=seq_mean_token_sum_const"], "constant_length belongs to"),
        (["constant_length=8"], "constant_length belongs to"),
        (["surrogate.clip_low=-0.2"], r"surrogate.clip_low: .*greater than 0 \(got -0.2\)"),
        (['surrogate={"type": "is_clip", "high": 0.2}'], r"surrogate.high: .*greater than 1"),
        (['surrogate={"type": "is_zero", "low": 1.5}'], r"surrogate.low: .*less than 1"),
        (["ratio_level=sequence_geo"], "aggregation='token_mean' would weigh it by length"),
        (
            ["ratio_level=sequence_prod", "aggregation=prompt_mean"],
            "ratio_level='sequence_prod' .* use a 'seq_mean_\\*' aggregation",
        ),
        (['surrogate={"type": "pg"}', "ratio_level=turn"], "'pg' has no ratio"),
        (['surrogate={"type": "pg"}', "old_policy=behaviour"], "'pg' has no ratio"),
        (['surrogate={"type": "div_mask"}', "ratio_level=turn"], "judges single tokens"),
        (['surrogate={"type": "log_clip_geo"}'], "wanted ratio_level='sequence_geo' or 'turn'"),
        (
            ["old_policy=behaviour", "correction.weight=truncate"],
            "correction.weight='truncate' would do it again",
        ),
        (
            ["old_policy=behaviour", 'correction.reject=[{"high": 2.0}]'],
            "wanted correction.reject with pair='current_behaviour'",
        ),
        (
            ["old_policy=estimated", 'correction={"weight": "raw", "level": "turn"}'],
            "'estimated' spares a forward pass",
        ),
        (["old_policy=estimated", "ratio_level=turn"], "'estimated' spares a forward pass"),
        (
            ["old_policy=estimated", "surrogate.bounds.type=second_moment"],
            "'estimated' spares a forward pass",
        ),
        (["correction.reject=[{}]"], "wanted low, high or both, got neither"),
        (['correction.reject=[{"low": 2, "high": 1}]'], "low=2 must be less than high=1"),
        (["correction.normalize=true"], "need a correction.weight"),
        (["correction.denominator=kept"], "needs something that leaves tokens out"),
        (
            ['surrogate={"type": "ppo_clip", "dual_clip": 2, "bounds": {"type": "balanced"}}'],
            "dual_clip=2 must be at least bounds.high_end = 3",
        ),
        (
            ['surrogate.bounds={"type": "balanced", "low_end": 0.5}'],
            "must not be less than their starts",
        ),
        (['surrogate={"type": "balance"}'], "wanted aggregation='seq_mean_token_sum'"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(LossConfig, overrides)
    assert "\n" not in str(caught.value)


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, ["env.id=text/maze", *overrides])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo=cispo", "learner.num_minibatches=2"], "'is_clip' has no trust region"),
        (
            ['algo.loss.surrogate={"type": "is_zero"}', "learner.num_epochs=3"],
            "make 3 optimizer steps per batch",
        ),
        (["algo.loss.old_policy=current", "learner.num_epochs=2"], "'current' makes every ratio 1"),
        (
            ["algo.advantage.turn_order=reverse", "algo.loss.old_policy=behaviour"],
            "turn_order='reverse' .* got 'behaviour'",
        ),
        (["algo=seeupo", "algo.loss.correction.weight=raw"], "leave loss.correction out"),
        (["algo=tba", "learner.num_epochs=2"], "make it one, or use 'ppo_clip'$"),
        (["algo=topr", "learner.num_epochs=2"], "or use 'ppo_clip', set regularizer.kl_coef"),
        (["algo=topr", "learner.num_minibatches=2"], "'is_taper' has no trust region"),
        (
            [
                "algo=tba",
                "algo.advantage.terms.0.returns=reward_to_go",
                "algo.advantage.terms.0.group_by=task_turn",
            ],
            "needs one number per attempt",
        ),
        (
            ["algo.advantage.type=archer", "algo.loss.aggregation=prompt_mean"],
            "'prompt_mean' needs advantage.type='group_relative', got 'archer'",
        ),
    ],
)
def test_losses_that_do_not_fit_the_run_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*overrides)


def test_a_divergence_from_the_start_lets_unbounded_surrogates_take_several_steps() -> None:
    found = config("algo=cispo", "learner.num_minibatches=2", "regularizer.kl_coefficient=0.01")
    assert found.learner.steps_per_batch == 2


def test_leaving_tokens_out_by_the_live_policy_is_a_trust_region() -> None:
    rejects = 'algo.loss.correction.reject=[{"pair": "current_behaviour", "high": 2.0}]'
    assert config("algo=aipo", "learner.num_epochs=2", rejects).learner.steps_per_batch == 2
    only_prox = 'algo.loss.correction.reject=[{"pair": "proximal_behaviour", "high": 2.0}]'
    with pytest.raises(ConfigError, match="no trust region"):
        config("algo=cispo", "learner.num_epochs=2", only_prox)


def test_presets_choose_the_losses_of_their_papers() -> None:
    losses = {name: config(f"algo={name}").algo.loss for name in ("gspo", "cispo", "sapo", "dapo")}
    assert losses["gspo"] == LossConfig(
        surrogate=PpoClip(clip_low=3e-4, clip_high=4e-4),
        ratio_level="sequence_geo",
        aggregation="seq_mean_token_mean",
    )
    assert losses["cispo"] == LossConfig(surrogate=ClippedWeight(type="is_clip", low=0, high=5))
    assert losses["sapo"] == LossConfig(
        surrogate=SoftGate(type="soft_gate", temperature_positive=1.0, temperature_negative=1.05),
        aggregation="seq_mean_token_mean",
    )
    assert losses["dapo"] == LossConfig(
        surrogate=PpoClip(clip_low=0.2, clip_high=0.28, dual_clip=10.0)
    )


def test_methods_that_judge_turns_take_ratios_of_turns() -> None:
    turn_ppo, seeupo = (config(f"algo={name}").algo for name in ("turn_ppo", "seeupo"))
    assert turn_ppo.loss == LossConfig(ratio_level="turn", aggregation="turn_mean")
    assert seeupo.loss.ratio_level == "sequence_geo"
    assert seeupo.loss.aggregation == "seq_mean_token_mean"
    assert seeupo.advantage.updates_last_turn_first
    assert not turn_ppo.advantage.updates_last_turn_first


def test_dppo_is_a_choice_of_parts() -> None:
    found = config('algo.loss.surrogate={"type": "div_mask"}', "algo.loss.old_policy=behaviour")
    assert found.algo.loss.surrogate == DivergenceMask(type="div_mask", low=0.2, high=0.2)
