"""Seven points in which the authors' code once differed from ours, by numbers."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from helpers.credit import algo, credit_of
from helpers.critics import algo as made_of
from helpers.critics import context, matching_game
from helpers.losses import f1_loss
from helpers.trajectories import episode, group, turn
from turngym.config import load_config, toml_files
from turngym.errors import ConfigError
from turngym.trainers.credit.critics.gae import GaeCredit, bilevel_gae, gae
from turngym.trainers.credit.group.normalize import normalize
from turngym.trainers.losses.policy_loss import aggregation_coefficients
from turngym.trainers.losses.surrogates import SurrogateInputs, ppo_clip
from turngym.trainers.settings.group import Gae, GroupRelative
from turngym.trainers.settings.surrogates import PpoClip
from turngym.trainers.settings.train import TrainConfig
from turngym.types import StopReason, TrajectoryGroup


@pytest.mark.parametrize(("choice", "size"), [("drop", 1 / 32), ("count", 1 / 128)])
def test_groups_without_signal_count_in_the_means_of_the_loss_where_one_says_so(
    choice: str, size: float
) -> None:
    """One informative group of four; eight attempts of four tokens each."""

    def attempts(*rewards: float) -> TrajectoryGroup:
        made = [turn(reward, drawn=(3, 4, 5, 6)) for reward in rewards]
        return group(*[episode([t], member=number) for number, t in enumerate(made)])

    groups = [attempts(1, *[0] * 7), *[attempts(*[0] * 8)] * 3]
    credit = credit_of(algo("grpo", f"signal_free={choice}"), *groups)
    coefficients = aggregation_coefficients(credit.samples, "token_mean")
    assert coefficients[0].max() == pytest.approx(size)
    assert credit.dropped == ({"zero_spread": 3} if choice == "drop" else {})
    assert credit.metrics["credit/groups_with_signal"] == 0.25
    advantages = np.concatenate([s.advantages for s in credit.samples])
    assert np.count_nonzero(advantages) == 32


LEAVES_OUT = {
    # Their authors filter such groups, or take their tokens out of the means.
    *(
        "dapo",
        "ace",
        "fapo",
        "clip_cov",
        "kl_cov",
        "scale_rl",
        "starpo_s",
        "ui_s1",
        "dppo",
        "maxrl",
    ),
    *("tba", "filtered_bc"),
    *("dpo", "dmpo"),  # a pair is two that differ
    # No authors' code to follow; `grpo` and what is built on it stay as they are.
    *("grpo", "g_ra", "grpo_demos", "potential", "sweet", "tis", "icepop", "mis", "opsm"),
}


@pytest.mark.parametrize("name", sorted(toml_files(files("turngym.trainers") / "presets")))
def test_groups_without_signal_count_where_the_authors_count_them(name: str) -> None:
    advantage = algo(name).advantage
    if isinstance(advantage, GroupRelative):
        assert (advantage.signal_free == "drop") == (name in LEAVES_OUT)


def test_the_gradient_of_a_batch_with_few_informative_groups_is_the_authors() -> None:
    """GiGPO's code takes the mean over all tokens of the batch: 1/8 of each, and not 1/4."""
    flat = group([0.0], [0.0])
    made = credit_of(algo("gigpo"), group([1.0], [0.0]), flat)
    coefficients = aggregation_coefficients(made.samples, "token_mean")
    assert {float(c[s.loss_mask][0]) for c, s in zip(coefficients, made.samples, strict=True)} == {
        1 / 8
    }


def test_a_filter_drops_groups_also_where_those_without_signal_count() -> None:
    method = algo("starpo_s", "signal_free=count", "filter.keep_top=0.5")
    credit = credit_of(method, group([1.0], [0.0]), group([0.0], [0.0]))
    assert (len(credit.samples), credit.dropped) == (2, {"filtered": 1})


def test_igpo_does_not_blow_up_a_spread_that_is_next_to_nothing() -> None:
    config = algo("igpo").advantage
    assert isinstance(config, GroupRelative)
    one_pool = np.zeros(2, dtype=np.int64)
    tiny = normalize(np.array([0.0, 2e-5]), one_pool, config.terms[0])
    assert_allclose(tiny, [-0.0985234, 0.0985234], atol=1e-6)
    paper = config.terms[0].model_copy(update={"variance_eps": 0.0})
    assert_allclose(normalize(np.array([0.0, 2e-5]), one_pool, paper), [-1 / 1.1, 1 / 1.1])
    wide = normalize(np.array([0.0, 0.2]), one_pool, config.terms[0])
    assert_allclose(wide, [-1, 1], atol=2e-5)


@pytest.mark.parametrize("name", ["igpo", "gigpo", "hgpo", "infopo", "ui_s1", "bapo"])
def test_a_token_that_is_pushed_down_pushes_no_more_above_the_dual_clip(name: str) -> None:
    clip = algo(name).loss.surrogate
    assert isinstance(clip, PpoClip)
    old = torch.zeros(2)
    policy = torch.tensor([5.0, 2.0]).log().requires_grad_()
    inputs = SurrogateInputs(
        log_ratios=policy - old,
        policy_logprobs=policy,
        old_logprobs=old,
        advantages=torch.tensor([-1.0, -1.0]),
    )
    losses, clipped = ppo_clip(inputs, clip)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert losses.tolist() == pytest.approx([3.0, 2.0])
    assert policy.grad is not None
    assert policy.grad.tolist() == pytest.approx([0.0, 2.0])
    assert clipped.tolist() == [True, False]


def test_vcpo_averages_the_tokens_of_an_attempt() -> None:
    """Ratios exp(-0.1) and exp(1.2), mean log-probs -0.9 and -0.5, advantages 1 and -1."""
    parts, _ = f1_loss(algo("vcpo").loss)
    wanted = (np.exp(-0.1) * 0.9 - np.exp(1.2) * 0.5) / 2
    assert parts.total.item() == pytest.approx(wanted, abs=1e-6)


def test_archer_takes_three_actor_steps_on_actions_of_their_own() -> None:
    def demo(*overrides: str) -> TrainConfig:
        return load_config(TrainConfig, ["demo", "algo=archer", *overrides])

    config = demo()
    assert config.algo.advantage.actor_turns == 3 * 256  # type: ignore[union-attr]
    assert config.learner.steps_per_batch == 3
    with pytest.raises(ConfigError, match="make 2 optimizer steps per batch"):
        demo("learner.num_epochs=2")
    with pytest.raises(ConfigError, match="make 3 optimizer steps per batch"):
        load_config(TrainConfig, ["demo", "algo=rloo", "learner.num_minibatches=3"])


CUT = {"rewards": [0.0, 0.0, 0.0], "values": [0.3, 0.4, 0.2]}
DROPPED = [-0.093981, -0.202, 0.0]
"""``.99 * .2 - .4`` at the second turn, and ``.99 * .4 - .3 + .99 * .95 * -.202`` at the first."""


def test_vl_dac_learns_nothing_of_a_turn_that_a_limit_cut_off() -> None:
    rewards, values = np.array(CUT["rewards"]), np.array(CUT["values"])
    found = gae(rewards, values, None, gamma=0.99, lam=0.95)
    assert_allclose(found, DROPPED, atol=1e-6)
    ended = gae(rewards, values, 0.0, gamma=0.99, lam=0.95)
    assert ended[-1] == pytest.approx(-0.2)
    assert gae(rewards[:1], values[:1], None, gamma=0.99, lam=0.95).tolist() == [0.0]
    lengths = np.array([1, 1, 1])
    both = bilevel_gae(rewards, values, lengths, None, gamma=1, lam=0.95, turn_gamma=0.99)
    assert_allclose(both, DROPPED, atol=1e-6)


async def test_a_time_limit_drops_the_last_turn_alone() -> None:
    settings = made_of(
        {"type": "gae", "time_limit": "drop", "batch": None, "critic": {"warmup_updates": 0}}
    )
    assert isinstance(settings.advantage, Gae)
    made = GaeCredit(settings.advantage, settings, context())
    made.load_state(made.state() | {"values/net/bias": torch.tensor([2.0])})
    cut = episode([1.0, 5.0], stop=StopReason.TRUNCATED_TURNS)
    credit = await made.assign([group(cut, episode([1.0, 5.0], member=1))])
    assert [values.tolist() for values in credit.advantages] == [
        pytest.approx([1.0, 0.0]),
        pytest.approx([1.0 + 0.95 * 3.0, 3.0]),
    ]


async def test_estimator_and_critic_warm_up_side_by_side() -> None:
    progress = {"type": "progress", "warmup_updates": 3, "steps_per_update": 1}
    advantage = {
        "type": "gae",
        "level": "token",
        "rewards": ["progress"],
        "critic": {"warmup_updates": 2, "minibatches": 2},
    }
    settings = made_of(advantage, rewards=[progress])
    assert isinstance(settings.advantage, Gae)
    made = GaeCredit(settings.advantage, settings, context())
    found = [await made.assign(matching_game(seed)) for seed in range(4)]
    assert [bool(credit.samples) for credit in found] == [False, False, False, True]
    assert all("credit/critic_loss" in credit.metrics for credit in found)
