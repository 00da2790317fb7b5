"""Credit with a learned value: what is an end, what is a step, and when the policy may learn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.critics import algo, context, matching_game
from helpers.trajectories import episode, group, turn
from turngym.errors import ConfigError
from turngym.trainers.credit.base import Credit
from turngym.trainers.credit.controls import build_credit
from turngym.trainers.credit.critics.gae import GaeCredit
from turngym.trainers.credit.critics.values import final_prompt
from turngym.trainers.metrics import rollout_metrics
from turngym.trainers.selection.past import as_context
from turngym.trainers.settings.group import Gae
from turngym.types import Message, StopReason

LEVELS = ["token", "turn", "bilevel"]


def method(level: str = "turn", *, warmup: int = 0, **settings: Any) -> GaeCredit:
    critic = {"warmup_updates": warmup, "minibatches": 2}
    advantage = {"type": "gae", "level": level, "critic": critic, **settings}
    settings = algo(advantage)
    assert isinstance(settings.advantage, Gae)
    return GaeCredit(settings.advantage, settings, context())


def with_constant_value(made: GaeCredit, value: float) -> GaeCredit:
    """Return ``made`` with a critic that says ``value`` everywhere."""
    made.load_state(made.state() | {"values/net/bias": torch.tensor([value])})
    return made


async def advantages(made: GaeCredit, *episodes: Any) -> list[list[float]]:
    credit = await made.assign([group(*episodes)])
    return [values.tolist() for values in credit.advantages]


STARPO = [[1.0, 0.0, 0.0, 1.0], [1.0] * 4, [1.0, 0.9, 1.0, 1.0], [0.0] * 4]
"""Outcomes of four groups, with deviations .5774, 0, .05 and 0."""


def starpo(**settings: Any) -> GaeCredit:
    plain = {"level": "token", "gamma": 1.0, "lam": 1.0, "batch": None}
    return with_constant_value(method(**plain, **settings), 0.5)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [({"keep_top": 0.25}, [0]), ({"keep_top": 0.5}, [0, 2]), ({"min_std": 0.04}, [0, 2])],
)
async def test_groups_that_differ_most_are_judged(filters: dict[str, Any], kept: list[int]) -> None:
    groups = [group(*[[reward] for reward in rewards]) for rewards in STARPO]
    credit = await starpo(filter=filters).assign(groups)
    assert credit.dropped == {"filtered": 4 - len(kept)}
    wanted = [[reward - 0.5] for number in kept for reward in STARPO[number]]
    assert [values.tolist() for values in credit.advantages] == wanted
    assert len(credit.samples) == 4 * len(kept)


async def test_without_a_filter_all_groups_are_judged_and_with_one_perhaps_none() -> None:
    groups = [group(*[[reward] for reward in rewards]) for rewards in STARPO]
    credit = await starpo().assign(groups)
    assert (credit.dropped, len(credit.samples)) == ({}, 16)
    credit = await starpo(filter={"min_std": 1.0}).assign(groups)
    assert (credit.dropped, credit.samples) == ({"filtered": 4}, ())
    with pytest.raises(ConfigError, match="first_return' needs terms"):
        starpo(filter={"of": "first_return"})


@pytest.mark.parametrize(
    ("settings", "metadata", "bootstraps"),
    [
        ({}, {}, False),
        ({"time_limit": "bootstrap"}, {}, True),
        ({}, {"partial": True}, True),  # rollout.stale=train_partial: no limit ended it
        ({"time_limit": "drop"}, {"partial": True}, True),
    ],
)
async def test_a_limit_is_an_end_unless_it_is_to_be_bootstrapped(
    settings: dict[str, Any], metadata: dict[str, Any], bootstraps: bool
) -> None:
    made = with_constant_value(method(gamma=1.0, lam=1.0, batch=None, **settings), 2.0)
    cut = replace(
        episode([0.0, 1.0], member=1, stop=StopReason.TRUNCATED_TURNS),
        final_observation=(Message(role="user", content="go on"),),
        metadata=metadata,
    )
    ended, going_on = await advantages(made, episode([0.0, 1.0]), cut)
    assert ended == pytest.approx([1.0 - 2.0, 1.0 - 2.0])
    assert going_on == pytest.approx([1.0, 1.0] if bootstraps else ended)


@pytest.mark.parametrize("time_limit", ["end", "bootstrap", "drop"])
@pytest.mark.parametrize("paid", [{"score": 1.0}, {"score": 0.4, "judged_at_limit": True}])
async def test_what_is_solved_or_judged_at_a_limit_has_no_more_to_earn(
    time_limit: str, paid: dict[str, Any]
) -> None:
    made = with_constant_value(method(gamma=1.0, lam=1.0, batch=None, time_limit=time_limit), 2.0)
    ended = replace(episode([0.0, 1.0], stop=StopReason.TRUNCATED_TURNS), **paid)
    assert await advantages(made, ended) == [pytest.approx([1.0 - 2.0, 1.0 - 2.0])]


async def test_a_limit_without_an_answer_is_bootstrapped_after_the_last_token() -> None:
    bootstraps = method(gamma=0.5, lam=1.0, batch=None, time_limit="bootstrap")
    made = with_constant_value(bootstraps, 2.0)
    cut = episode([1.0], stop=StopReason.TRUNCATED_CONTEXT)
    assert await advantages(made, cut) == [pytest.approx([1.0 + 0.5 * 2.0 - 2.0])]


@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize("is_cut", [True, False])
async def test_values_are_read_where_the_states_are(level: str, is_cut: bool) -> None:
    """Against the recursion over values that the critic gives for the whole text."""
    made = method(level, gamma=0.9, lam=0.8, batch=None, time_limit="bootstrap")
    weight = torch.randn(1, 32, generator=torch.Generator().manual_seed(1))
    made.load_state(made.state() | {"values/net/weight": weight})
    attempt = episode([turn(0.5, drawn=(3, 4, 5)), turn(0.0), turn(1.0, drawn=(6, 7, 8))])
    text, starts = [1, 2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 6, 7, 8], {2: 0.5, 7: 0.0, 11: 1.0}
    rewards = starts if level == "turn" else {2: 0, 3: 0, 4: 0.5, 7: 0, 8: 0, 11: 0, 12: 0, 13: 1.0}
    if is_cut:
        seen = (Message(role="user", content="go on"),)
        attempt = replace(attempt, stop_reason=StopReason.TRUNCATED_TURNS, final_observation=seen)
        text += final_prompt(attempt, made._context.renderer, context=1024)
    # What follows the last state is not read.
    everywhere = [np.arange(len(text) + 1) >= 1]
    [found] = made._values.read([np.array([*text, 0])], everywhere)
    values = [math.nan, *found.tolist()]
    following, ahead, wanted = values[len(text)] if is_cut else 0.0, 0.0, []
    for place, reward in reversed(rewards.items()):
        ahead = reward + 0.9 * following - values[place] + 0.9 * 0.8 * ahead
        following = values[place]
        wanted.insert(0, ahead)
    credit = await made.assign([group(attempt)])
    [sample] = credit.samples
    if level == "turn":
        assert credit.advantages[0].tolist() == pytest.approx(wanted, abs=1e-5)
    else:
        assert sample.advantages[sample.loss_mask].tolist() == pytest.approx(wanted, abs=1e-5)
    before = np.array([values[place] for place in rewards])
    targets = before + wanted
    explained = 1 - np.var(wanted) / np.var(targets)
    assert credit.metrics["credit/value_mean"] == pytest.approx(before.mean(), abs=1e-5)
    assert credit.metrics["credit/value_explained_variance"] == pytest.approx(explained, rel=1e-4)
    assert credit.metrics["credit/advantage_mean"] == pytest.approx(np.mean(wanted), abs=1e-5)
    assert credit.metrics["credit/advantage_std"] == pytest.approx(np.std(wanted), abs=1e-5)


async def test_turns_and_tokens_are_discounted_as_steps_of_their_level() -> None:
    attempt = episode([turn(0.0, drawn=(3, 4, 5)), turn(1.0, drawn=(6, 7))])
    settings: dict[str, Any] = {"gamma": 0.5, "lam": 1.0, "batch": None}
    by_turn = await method("turn", **settings).assign([group(attempt)])
    assert by_turn.samples[0].advantages.tolist() == [0, 0, 0.5, 0.5, 0.5, 0, 0, 1, 1]
    by_token = await method("token", **settings).assign([group(attempt)])
    assert by_token.samples[0].advantages.tolist() == pytest.approx(
        [0, 0, 1 / 16, 1 / 8, 1 / 4, 0, 0, 0.5, 1]
    )
    both = await method("bilevel", turn_gamma=0.8, **settings).assign([group(attempt)])
    assert both.samples[0].advantages.tolist() == pytest.approx([0, 0, 0.2, 0.4, 0.8, 0, 0, 0.5, 1])
    assert [values.tolist() for values in by_turn.advantages] == [[0.5, 1.0]]


@pytest.mark.parametrize("level", LEVELS)
async def test_turns_after_a_head_that_is_not_trained_are_judged_as_in_the_whole(
    level: str,
) -> None:
    turns = [turn(1.0), turn(2.0, drawn=(5, 6, 7)), turn(3.0)]
    whole, head = episode(turns), episode([*as_context(turns[:1]), *turns[1:]])
    settings: dict[str, Any] = {"gamma": 0.9, "batch": None}
    [all_of_it] = (await method(level, **settings).assign([group(whole)])).samples
    lost = episode(as_context(turns), member=1)
    credit = await method(level, **settings).assign([group(head, lost)])
    [rest] = credit.samples
    assert rest.token_ids.tolist() == all_of_it.token_ids.tolist()
    assert rest.loss_mask.tolist() == [False] * 4 + all_of_it.loss_mask.tolist()[4:]
    kept = rest.loss_mask
    assert rest.advantages[kept] == pytest.approx(all_of_it.advantages[kept])
    assert [values.size for values in credit.advantages] == [2]


@pytest.mark.parametrize("level", LEVELS)
async def test_the_policy_waits_for_the_critic(level: str) -> None:
    made = method(level, warmup=2)
    found = [await made.assign(matching_game(seed)) for seed in range(3)]
    assert [len(credit.samples) for credit in found] == [0, 0, 8]
    assert all(len(credit.advantages) == 8 for credit in found)


@pytest.mark.parametrize("made", ["gae", "archer", "task_value"])
async def test_groups_that_nothing_is_learned_from_are_counted(made: str) -> None:
    critic = {"warmup_updates": 1}
    advantage: dict[str, Any] = {"type": made}
    if made == "archer":
        critic |= {"hidden": 16, "max_tokens": 16, "steps_per_update": 1, "batch_turns": 4}
        advantage["actor_turns"] = 2
    if made != "task_value":
        advantage["critic"] = critic
    credit_method = build_credit(algo(advantage), context())
    batch = [*matching_game(0), group(episode([0.0, 1.0], error="broke")), *matching_game(1)]
    waiting = await credit_method.assign(batch)
    learning = await credit_method.assign(batch)
    assert learning.dropped == {"too_small": 1}
    found = rollout_metrics(batch, advantages=learning.advantages, dropped=learning.dropped)
    assert found["rollout/groups_used"] == 2
    assert found["rollout/groups_too_small"] == 1
    assert found["rollout/advantage_abs_mean"] > 0
    if made == "task_value":
        return
    assert (waiting.samples, waiting.dropped) == ((), {"too_small": 1, "warmup": 2})
    found = rollout_metrics(batch, advantages=waiting.advantages, dropped=waiting.dropped)
    assert found["rollout/groups_used"] == found["rollout/advantage_abs_mean"] == 0


@pytest.mark.parametrize("tokens", range(1, 60))
async def test_one_episode_is_whitened_whatever_its_length(tokens: int) -> None:
    """A share of 1/49 for each of 49 tokens adds up to a little less than 1."""
    turns = [turn(0.0, drawn=range(3, 3 + tokens)), turn(1.0)]
    credit = await method(gamma=0.5, batch={"unit": "episode"}).assign([group(episode(turns))])
    assert np.abs(credit.samples[0].advantages).max() > 0.1


async def test_a_group_of_one_is_enough() -> None:
    credit = await method(batch=None).assign([group(episode([0.0, 1.0]))])
    assert len(credit.samples) == 1
    assert np.abs(credit.samples[0].advantages).sum() > 0


async def test_a_batch_is_whitened_over_what_counts_once() -> None:
    for unit in ("turn", "token", "episode"):
        credit = await method(batch={"unit": unit}).assign(matching_game(0))
        flat = np.concatenate([s.advantages[s.loss_mask] for s in credit.samples])
        assert flat.mean() == pytest.approx(0, abs=1e-5)  # all turns have two tokens
    by_turn = await method(batch={"unit": "turn"}).assign(matching_game(0))
    assert np.concatenate(by_turn.advantages).std(ddof=1) == pytest.approx(1, abs=1e-4)


async def test_a_rewritten_history_keeps_its_place_in_the_episode() -> None:
    turns = [turn(0.0), turn(0.0, starts_segment=True), turn(1.0)]
    credit = await method(gamma=0.5, lam=1.0, batch=None).assign([group(episode(turns))])
    assert [values.tolist() for values in credit.advantages] == [[0.25, 0.5, 1.0]]
    assert [sample.turn_ids.max() for sample in credit.samples] == [0, 2]


async def test_broken_episodes_and_empty_batches_teach_nothing() -> None:
    made = method()
    credit = await made.assign([group(episode([1.0], error="the sandbox died"))])
    assert credit.samples == ()
    assert (await made.assign([])).samples == ()


@pytest.mark.parametrize("level", LEVELS)
async def test_values_come_to_explain_returns(level: str) -> None:
    made = method(level, lam=1.0, critic={"epochs": 12, "minibatches": 4, "lr": 3e-3})
    batch = matching_game(1, episodes=24)
    first = (await made.assign(batch)).metrics
    for _ in range(4):
        last = (await made.assign(batch)).metrics
    assert first["credit/value_explained_variance"] == pytest.approx(0)
    assert last["credit/value_explained_variance"] > 0.3
    assert last["credit/critic_loss"] < first["credit/critic_loss"]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_resumed_method_goes_on_to_the_bit(level: str, tmp_path: Path) -> None:
    made = method(level, warmup=1)
    await made.assign(matching_game(0))
    save_file(made.state(), tmp_path / "credit.safetensors")
    again = method(level, warmup=1)
    again.load_state(load_file(tmp_path / "credit.safetensors"))
    for seed in (1, 2):
        a = await made.assign(matching_game(seed))
        b = await again.assign(matching_game(seed))
        assert_equal(a, b)
    assert all(torch.equal(t, again.state()[name]) for name, t in made.state().items())


def assert_equal(a: Credit, b: Credit) -> None:
    """Compare what two methods gave, to the bit."""
    assert len(a.samples) == len(b.samples) > 0
    for one, other in zip(a.samples, b.samples, strict=True):
        assert np.array_equal(one.token_ids, other.token_ids)
        assert np.array_equal(one.advantages, other.advantages)
    assert a.metrics == b.metrics
