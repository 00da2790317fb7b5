"""ArCHer: what the policy is given to learn from, and what a run keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import models
from helpers.critics import algo, context, matching_game
from helpers.trajectories import episode, group
from turngym.agents.engine.protocol import Generation
from turngym.config import load_config
from turngym.coroutines import beside
from turngym.errors import ConfigError
from turngym.trainers.credit.base import Credit
from turngym.trainers.credit.critics.off_policy import (
    ArcherCredit,
    action_sample,
    less_baseline,
    sample_actions,
)
from turngym.trainers.losses.policy_loss import aggregation_coefficients
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.group import Archer
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.forward import score
from turngym.types import Trajectory

CRITIC = {
    "hidden": 16,
    "max_tokens": 16,
    "steps_per_update": 3,
    "batch_turns": 8,
    "warmup_updates": 0,
    "gamma": 0.5,
}


def method(
    *, max_sessions: int = 64, shown: Sequence[Trajectory] = (), **settings: Any
) -> ArcherCredit:
    critic = {**CRITIC, **settings.pop("critic", {})}
    advantage = {"type": "archer", "actor_turns": 6, "critic": critic, **settings}
    settings = algo(advantage)
    assert isinstance(settings.advantage, Archer)
    given = replace(context(max_sessions=max_sessions), demonstrations=tuple(shown))
    return ArcherCredit(settings.advantage, settings, given)


def sample(advantage: float, logprobs: list[float]) -> Any:
    ids = np.arange(2, 2 + len(logprobs))
    versions = [0] * len(logprobs)
    return action_sample(np.array([1]), ids, logprobs, versions, advantage, index=0)


def test_the_loss_of_the_actor_is_that_of_the_paper() -> None:
    advantages, sums = [0.01, 0.08, 0.15], [-2.0, -1.0, -3.0]
    samples = [
        replace(sample(a, [s / 2, s / 2]), trajectory=k)
        for k, (a, s) in enumerate(zip(advantages, sums, strict=True))
    ]
    weights = aggregation_coefficients(samples, "seq_mean_token_sum", constant_length=None)
    loss = -sum(
        float((w * s.advantages * s.behaviour_logprobs).sum())
        for w, s in zip(weights, samples, strict=True)
    )
    assert loss == pytest.approx(0.183333, abs=1e-6)


def test_the_token_baseline_is_subtracted_token_by_token() -> None:
    one = sample(0.01, [-1.2, -0.8])
    (lowered,) = less_baseline([one], [np.array([0.02, -0.01])])
    assert lowered.advantages.tolist() == pytest.approx([0.0, -0.01, 0.02])
    loss = -float((lowered.advantages * lowered.behaviour_logprobs).sum())
    assert loss == pytest.approx(0.0040, abs=1e-6)


async def test_samples_are_fresh_actions_at_states_that_were_seen() -> None:
    batch = matching_game(0)
    seen = {
        tuple(span_ids[:end])
        for t in batch[0].trajectories
        for span_ids in [[i for span in t.spans for i in span.token_ids]]
        for end in (3, 8, 13)
    }
    credit = await method().assign(batch)
    assert len(credit.samples) == 6
    for number, one in enumerate(credit.samples):
        drawn = np.flatnonzero(one.loss_mask)
        assert drawn.tolist() == list(range(drawn[0], one.token_ids.size))
        assert 1 <= drawn.size <= 5
        assert tuple(one.token_ids[: drawn[0]].tolist()) in seen
        assert len(set(one.advantages[drawn].tolist())) == 1
        assert set(one.policy_versions[drawn].tolist()) == {4}
        assert one.trajectory == number
    assert len({float(one.advantages[-1]) for one in credit.samples}) > 1


async def test_log_probs_are_those_of_a_forward_pass() -> None:
    samples = (await method().assign(matching_game(0))).samples
    wanted = score(
        models.model(),
        [one.token_ids for one in samples],
        [one.loss_mask for one in samples],
        max_tokens=512,
    )
    for one, values in zip(samples, wanted, strict=True):
        assert one.behaviour_logprobs == pytest.approx(values, abs=1e-4)


async def test_the_policy_waits_for_the_critic() -> None:
    made = method(critic={"warmup_updates": 2})
    found = [await made.assign(matching_game(seed)) for seed in range(3)]
    assert [len(credit.samples) for credit in found] == [0, 0, 6]
    assert found[-1].metrics["credit/buffer_turns"] == 3 * 24
    assert {"credit/critic_loss", "credit/q_return_correlation"} <= set(found[-1].metrics)


EXPLORES = {
    "warmup_until": 0.6,
    "warmup_window": 48,
    "warmup_steps": 20,
    "steps_per_update": 1,
    "most_warmup_updates": 12,
    "lr": 3e-3,
    "gamma": 0.0,
}


@pytest.mark.parametrize("after", ["learn", "freeze"])
async def test_the_policy_waits_until_the_critic_judges_new_turns_well(after: str) -> None:
    made, seed = method(critic=EXPLORES | {"after_warmup": after}), 0
    explored = []
    while not (credit := await made.assign(matching_game(seed))).samples:
        explored.append(credit.metrics["credit/critic_explored_correlation"])
        assert credit.metrics["credit/critic_explored"] == 24 * (seed + 1)
        seed += 1
    assert all(found < 0.6 for found in explored[:-1])
    assert explored[-1] >= 0.6
    assert 2 <= len(explored) < 12
    assert "credit/critic_explored" not in credit.metrics
    learned = {"learn": 1, "freeze": 0}[after]
    assert made.state()["critic/steps"].item() == 20 * len(explored) + learned


SHOWN = matching_game(7)[0].trajectories


async def test_demonstrations_are_in_the_buffer_before_the_first_update(tmp_path: Path) -> None:
    critic = {"demonstrations": 5, "pretrain_steps": 4}
    made = method(shown=SHOWN, critic=critic)
    credit = await made.assign(matching_game(0))
    assert credit.metrics["credit/buffer_turns"] == (5 + 8) * 3
    assert made.state()["critic/steps"].item() == 4 + 3
    save_file(made.state(), tmp_path / "credit.safetensors")
    again = method(shown=SHOWN, critic=critic)
    again.load_state(load_file(tmp_path / "credit.safetensors"))
    one, other = [await each.assign(matching_game(1)) for each in (made, again)]
    assert one.metrics == other.metrics
    assert one.metrics["credit/buffer_turns"] == (5 + 8 + 8) * 3
    assert again.state()["critic/steps"].item() == 4 + 3 + 3


async def test_a_critic_that_learned_from_demonstrations_knows_what_pays() -> None:
    critic = {"demonstrations": 8, "steps_per_update": 0, "lr": 3e-3, "gamma": 0.0}
    for steps, least, most in ((0, -1.0, 0.4), (150, 0.6, 1.0)):
        made = method(shown=SHOWN, critic=critic | {"pretrain_steps": steps})
        found = (await made.assign(matching_game(0))).metrics["credit/q_return_correlation"]
        assert least <= found <= most


async def test_offline_the_actions_of_demonstrations_are_imitated() -> None:
    made = method(
        shown=SHOWN,
        mode="offline",
        critic={"demonstrations": 8, "value_actions": "replayed"},
    )
    nothing_played = group(episode([1.0], error="the sandbox died"))
    credit = await made.assign([nothing_played])
    assert len(credit.samples) == 6
    assert all(one.advantages[one.loss_mask].min() > 0 for one in credit.samples)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (["algo.advantage.critic.pretrain_steps=5"], "pretrain_steps=5 needs something to learn"),
        (
            ["algo.advantage.critic.demonstrations=5", "algo.loss.correction.weight=truncate"],
            "actions of the expert, which have no log-probs",
        ),
        (
            [
                *("algo.advantage.critic.demonstrations=5", "warm_start.episodes=0"),
                "agent.show_legal_actions=true",
            ],
            "warm_start.episodes=0 and no demonstrations",
        ),
    ],
)
def test_demonstrations_that_cannot_serve_are_refused(wrong: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        load_config(TrainConfig, ["demo", "algo=archer", *wrong])


async def test_the_batch_itself_is_judged_for_those_who_look() -> None:
    credit = await method().assign(matching_game(0))
    assert [values.shape for values in credit.advantages] == [(3,)] * 8
    assert len(credit.trajectories) == 8
    assert np.isfinite(np.concatenate(credit.advantages)).all()


async def test_without_replay_only_the_newest_batch_is_there() -> None:
    made = method(replay=False)
    for seed in range(2):
        credit = await made.assign(matching_game(seed))
    assert credit.metrics["credit/buffer_turns"] == 24


async def test_actions_do_not_depend_on_how_many_are_drawn_at_once() -> None:
    states = [np.array([1, 5, 2]), np.array([1, 6, 2, 9, 9]), np.array([7]), np.array([1, 5, 2])]
    many = await sample_actions(context(), states, seed=9)
    few = await sample_actions(context(max_sessions=2), states, seed=9)
    assert [g.token_ids for g in many] == [g.token_ids for g in few]
    alone = await sample_actions(context(), states[:1], seed=9)
    shared, home = context(), asyncio.get_running_loop()

    async def there() -> list[Generation]:
        assert asyncio.get_running_loop() is not home
        return await sample_actions(shared, states, seed=9)

    assert await beside(there) == many
    assert alone[0].token_ids == many[0].token_ids
    assert many[0].token_ids != many[3].token_ids  # one state, two draws


async def test_episodes_keep_their_sessions_while_a_method_samples() -> None:
    shared = replace(context(max_sessions=5), max_sessions=2)
    sampling = asyncio.ensure_future(sample_actions(shared, [np.array([1, 5, 2])] * 6, seed=9))
    free = set()
    while not sampling.done():
        free.add(shared.engine.free_sessions)
        await asyncio.sleep(0)
    assert len(sampling.result()) == 6
    assert min(free) == 3


async def test_normalized_advantages_have_mean_0_and_spread_1() -> None:
    samples = (await method(normalize=True).assign(matching_game(0))).samples
    advantages = np.array([one.advantages[-1] for one in samples])
    assert advantages.mean() == pytest.approx(0, abs=1e-5)
    assert advantages.std() == pytest.approx(1, abs=1e-3)


async def actor_advantages(**settings: Any) -> FloatArray:
    made = method(**settings)
    await made.assign(matching_game(0))
    return np.array([one.advantages[-1] for one in (await made.assign(matching_game(1))).samples])


async def test_advantages_are_normalized_where_that_is_set_alone() -> None:
    raw, scaled = [await actor_advantages(normalize=found) for found in (False, True)]
    assert np.ptp(raw) > 0
    assert scaled == pytest.approx((raw - raw.mean()) / (raw.std() + 1e-8), rel=1e-4)


async def test_values_are_expectiles_offline_alone() -> None:
    for mode, critic, is_one in (("offline", "replayed", False), ("online", "on_policy", True)):
        high, low = [
            await actor_advantages(
                mode=mode, critic={"value_actions": critic, "lr": 3e-3}, expectile=tau
            )
            for tau in (0.95, 0.55)
        ]
        assert np.array_equal(high, low) == is_one


async def test_the_token_baseline_learns_the_advantage() -> None:
    made = method(token_baseline={"lr": 3e-3, "epochs": 4})
    first = await made.assign(matching_game(0))
    second = await made.assign(matching_game(0))
    assert all(len(set(one.advantages[one.loss_mask])) == 1 for one in first.samples)
    spreads = [np.ptp(one.advantages[one.loss_mask]) for one in second.samples]
    assert max(spreads) > 0
    assert first.metrics["credit/baseline_loss"] > 0


async def test_offline_weighs_the_actions_that_were_played() -> None:
    critic = {"value_actions": "replayed"}
    made = method(mode="offline", critic=critic, awr_inverse_temperature=3.0)
    samples = (await made.assign(matching_game(0))).samples
    assert len(samples) == 6
    for one in samples:
        assert one.token_ids[one.loss_mask].tolist()[1] == 3
        assert one.behaviour_logprobs[one.loss_mask].tolist() == [-0.5, -0.5]
        assert set(one.policy_versions[one.loss_mask].tolist()) == {0}
        assert one.advantages[one.loss_mask].min() > 0
    bounded = method(mode="offline", critic=critic, awr_max_weight=0.01)
    weights = [s.advantages.max() for s in (await bounded.assign(matching_game(0))).samples]
    assert max(weights) <= 0.01 + 1e-6


async def test_an_empty_batch_teaches_nothing() -> None:
    credit = await method().assign([group(episode([1.0], error="gone"))])
    assert (credit.samples, credit.advantages) == ((), ())


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="online"),
        pytest.param({"mode": "offline"}, id="offline"),
        pytest.param({"critic": {"warmup_until": 0.9, "most_warmup_updates": 2}}, id="explored"),
        pytest.param({"token_baseline": {"epochs": 1}}, id="token baseline"),
        pytest.param({"critic": {"encoder": "policy", "freeze_encoder": True}}, id="frozen"),
    ],
)
async def test_a_resumed_method_goes_on_to_the_bit(settings: Any, tmp_path: Path) -> None:
    made = method(**settings)
    await made.assign(matching_game(0))
    save_file(made.state(), tmp_path / "credit.safetensors")
    again = method(**settings)
    again.load_state(load_file(tmp_path / "credit.safetensors"))
    for seed in (1, 2):
        wanted = await made.assign(matching_game(seed))
        assert_equal(wanted, await again.assign(matching_game(seed)))
    assert wanted.samples
    assert all(torch.equal(t, again.state()[name]) for name, t in made.state().items())


def assert_equal(a: Credit, b: Credit) -> None:
    """Compare what two methods gave, to the bit."""
    assert len(a.samples) == len(b.samples)
    for one, other in zip(a.samples, b.samples, strict=True):
        assert np.array_equal(one.token_ids, other.token_ids)
        assert np.array_equal(one.behaviour_logprobs, other.behaviour_logprobs)
        assert np.array_equal(one.advantages, other.advantages)
    assert a.metrics == b.metrics


@pytest.mark.parametrize(
    ("name", "steps"),
    [("archer", "num_epochs"), ("offline_archer", "num_epochs"), ("digi_q", "num_minibatches")],
)
def test_with_a_plain_policy_gradient_no_action_serves_two_steps(name: str, steps: str) -> None:
    load_config(TrainConfig, ["env.id=text/maze", f"algo={name}"])
    with pytest.raises(ConfigError, match="has no trust region"):
        load_config(TrainConfig, ["env.id=text/maze", f"algo={name}", f"learner.{steps}=2"])
