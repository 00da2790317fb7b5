"""Advantages of the off-policy methods and of whole batches, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.credit import algo, rows_of
from helpers.trajectories import episode, group, turn
from turngym.trainers.losses.surrogates import SurrogateInputs, tapered_weight
from turngym.trainers.settings.group import BatchScale, GroupRelative, Term
from turngym.trainers.settings.surrogates import TaperedWeight

REWARDS = (1.0, 0.0, 0.5, 0.0)


def attempts(rewards: tuple[float, ...], lengths: tuple[int, ...] = ()) -> object:
    sizes = lengths or (1,) * len(rewards)
    return group(
        *(
            episode([turn(reward, drawn=range(3, 3 + size))], member=i)
            for i, (reward, size) in enumerate(zip(rewards, sizes, strict=True))
        )
    )


@pytest.mark.parametrize(
    ("name", "overrides", "wanted"),
    [
        ("opmd", (), (0.625, -0.375, 0.125, -0.375)),
        ("opmd", ("terms.0.centre=log_mean_exp",), (0.535165, -0.464835, 0.035165, -0.464835)),
        ("asymre", (), (0.725, -0.275, 0.225, -0.275)),
        ("aipo", (), (0.625, -0.375, 0.125, -0.375)),
        ("tba", (), (0.625, -0.375, 0.125, -0.375)),
        ("m2po", (), (1.305580, -0.783348, 0.261116, -0.783348)),
    ],
)
def test_one_group(name: str, overrides: tuple[str, ...], wanted: tuple[float, ...]) -> None:
    found = [row[0] for row in rows_of(algo(name, *overrides), attempts(REWARDS))]
    assert found == pytest.approx(wanted, abs=1e-5)


def test_a_low_temperature_of_the_mean_comes_close_to_the_best() -> None:
    overrides = ("terms.0.centre=log_mean_exp", "terms.0.tau=0.01")
    found = [row[0] for row in rows_of(algo("opmd", *overrides), attempts(REWARDS))]
    assert found[0] == pytest.approx(0.01 * np.log(4), abs=1e-6)


def test_a_lower_baseline_praises_equal_attempts_a_little() -> None:
    found = [row[0] for row in rows_of(algo("asymre"), attempts((1.0, 1.0, 1.0)))]
    assert found == pytest.approx([0.1] * 3)
    assert [row[0] for row in rows_of(algo("asymre"), attempts((1.0,)))] == [0.0]


@pytest.mark.parametrize("name", ["opmd", "asymre", "aipo", "tba", "decoupled_ppo"])
def test_a_constant_on_all_rewards_changes_nothing(name: str) -> None:
    overrides = ("terms.0.centre=log_mean_exp",) if name == "opmd" else ()
    shifted = tuple(reward + 3.0 for reward in REWARDS)
    wanted = rows_of(algo(name, *overrides), attempts(REWARDS))
    found = rows_of(algo(name, *overrides), attempts(shifted))
    assert [row[0] for row in found] == pytest.approx([row[0] for row in wanted])


BATCH = (
    ((1.0, 0.0, 0.0, 0.0), (2, 4, 4, 2)),
    ((1.0, 1.0, 1.0, 0.0), (1, 3, 2, 2)),
)


@pytest.mark.parametrize(
    ("centre", "wanted"),
    [
        ("mean", [1.949359] + [-0.487340] * 3 + [0.731010] * 3 + [-1.705689]),
        ("none", [1.193734] + [-0.795822] * 3 + [1.193734] * 3 + [-0.795822]),
    ],
    ids=["REINFORCE++ baseline", "REINFORCE++"],
)
def test_whitening_over_the_tokens_of_a_batch(centre: str, wanted: list[float]) -> None:
    term = Term.model_validate({"centre": centre, "scale": "none"})
    method = algo("grpo").model_copy(
        update={"advantage": GroupRelative(terms=(term,), batch=BatchScale(unit="token"))}
    )
    groups = [attempts(rewards, lengths) for rewards, lengths in BATCH]
    found = [row[0] for row in rows_of(method, *groups)]
    assert found == pytest.approx(wanted, abs=1e-5)


def test_tapered_weights() -> None:
    logs = torch.tensor([0.5, -0.7, 1.2, -2.0], dtype=torch.float64)
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    current = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    inputs = SurrogateInputs(
        log_ratios=logs, policy_logprobs=current, old_logprobs=current.detach(), advantages=signs
    )
    losses, bounded = tapered_weight(inputs, TaperedWeight(type="is_taper"))
    losses.sum().backward()
    assert current.grad is not None
    assert (-current.grad).tolist() == pytest.approx([1, 1, -1, -0.135335], abs=1e-6)
    assert bounded.tolist() == [False, False, True, False]
    # Of fresh tokens ratios are 1 but for rounding, and half of them are a little more.
    fresh = replace(inputs, log_ratios=torch.tensor([1e-6, -1e-6, 1e-6, -1e-6]))
    _, bounded = tapered_weight(fresh, TaperedWeight(type="is_taper"))
    assert not bounded.any()
