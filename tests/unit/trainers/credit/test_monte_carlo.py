"""VinePPO's credit is the growth of values that playing on measures, and counts what it plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.critics import algo, context
from helpers.trajectories import episode, group, turn
from turngym.config import load_config
from turngym.errors import TrainingError
from turngym.reports.runs import read_run
from turngym.rollouts.replay import TurnValues
from turngym.trainers.credit.base import CreditContext
from turngym.trainers.credit.critics.monte_carlo import MonteCarloCredit
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.settings.group import MonteCarlo
from turngym.trainers.settings.train import TrainConfig
from turngym.types import Trajectory

ASKED: list[tuple[int, int]] = []


async def play_on(episodes: Sequence[Trajectory], attempts: int, seed: int) -> TurnValues:
    """Say that a state is worth 0.25 for every turn that was played, half more and half less."""
    ASKED.append((attempts, seed))
    values = [0.25 * np.arange(len(t.turns) + 1.0) for t in episodes]
    for row in values:
        row[-1] = 0.0
    return TurnValues(values=tuple(np.stack([v * 1.5, v * 0.5]) for v in values), episodes=7)


def method(context: CreditContext, **settings: Any) -> MonteCarloCredit:
    made = algo({"type": "monte_carlo", **settings})
    assert isinstance(made.advantage, MonteCarlo)
    return MonteCarloCredit(made.advantage, made, context)


async def test_a_turn_earns_its_reward_and_the_growth_of_the_value() -> None:
    made = method(replace(context(), play_on=play_on), batch=None, continuations=4)
    credit = await made.assign([group(episode([0.0, 0.0, 1.0]), episode([0.5], member=1))])
    first, second = (row.tolist() for row in credit.advantages)
    assert first == pytest.approx([0.25, 0.25, 1.0 - 0.5])
    assert second == pytest.approx([0.5])
    assert credit.metrics["credit/episodes"] == 7
    # Halves differ by the value itself: 0.25, 0.25, 0.5 and nothing; the noise is half of the mean.
    assert credit.metrics["credit/advantage_noise"] == pytest.approx(1.0 / 4 / 2)
    trained = credit.samples[0]
    assert trained.advantages[trained.loss_mask][-1] == pytest.approx(0.5)


async def test_what_a_late_attempt_is_shown_with_is_not_played_on_again() -> None:
    asked: list[int] = []

    async def counting(episodes: Sequence[Trajectory], attempts: int, seed: int) -> TurnValues:
        asked.append(len(episodes))
        return await play_on(episodes, attempts, seed)

    first, late = group([1.0], [0.0]).trajectories
    context_alone = replace(first, turns=tuple(turn.as_context() for turn in first.turns))
    made = method(replace(context(), play_on=counting), batch=None)
    credit = await made.assign([group(context_alone, late)])
    assert (asked, len(credit.trajectories)) == ([1], 1)


@pytest.mark.parametrize("unit", ["episode", "turn", "token"])
async def test_advantages_are_whitened_over_what_counts_once(unit: str) -> None:
    made = method(replace(context(), play_on=play_on), batch={"unit": unit, "eps": 1e-9})
    attempts = [turn(0.0, drawn=(3,)), turn(0.0, drawn=(3, 4, 5)), turn(1.0, drawn=(3,))]
    credit = await made.assign([group(episode(attempts), episode([0.5], member=1))])
    raw = np.array([0.25, 0.25, 0.5, 0.5])
    counts = {"episode": [1 / 3, 1 / 3, 1 / 3, 1], "turn": [1, 1, 1, 1], "token": [1, 3, 1, 2]}
    weights = np.array(counts[unit], dtype=np.float64)
    centred = raw - np.average(raw, weights=weights)
    scale = np.sqrt((weights * centred**2).sum() / (weights.sum() - 1))
    assert np.concatenate(credit.advantages) == pytest.approx(centred / scale)


async def test_every_update_plays_on_with_seeds_of_its_own_also_after_a_resume() -> None:
    ASKED.clear()
    whole = method(replace(context(), play_on=play_on))
    for _ in range(3):
        await whole.assign([group([1.0], [0.0])])
    resumed = method(replace(context(), play_on=play_on))
    resumed.load_state({"updates": whole.state()["updates"] - 1})
    await resumed.assign([group([1.0], [0.0])])
    assert [attempts for attempts, _ in ASKED] == [8] * 4
    seeds = [seed for _, seed in ASKED]
    assert len(set(seeds)) == 3
    assert seeds[2] == seeds[3]


async def test_without_environments_it_is_refused() -> None:
    with pytest.raises(TrainingError, match="'monte_carlo' plays on, and there is no environment"):
        await method(context()).assign([group([1.0], [0.0])])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_a_run_counts_what_was_played_on(tmp_path: Path, mode: str) -> None:
    settings = {
        "env": {"mix": [{"id": "text/maze"}, {"id": "text/guessnumber"}]},
        "model": {"hidden": 16, "layers": 1, "heads": 1, "context": 512, "vocab_size": 300},
        "algo": "vineppo",
        "warm_start": {"episodes": 8, "max_steps": 4},
        "rollout": {"groups_per_step": 2, "group_size": 2, "max_new_tokens": 4, "mode": mode},
        "evaluation": {"every": 2, "validation_tasks": 2, "held_out_tasks": 2},
        "run": {"steps": 2, "tensorboard": False},
    }
    own = ["algo.advantage.continuations=2"]
    result = train(load_config(TrainConfig, [settings, *own]), tmp_path)
    assert (result.updates, result.faults) == (2, 0)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "credit/episodes" in row]
    assert len(rows) == 2
    assert all(row["credit/episodes"] >= 2 for row in rows)
    assert read_run(tmp_path).episodes == sum(
        row["credit/episodes"] + row["rollout/episodes"] for row in rows
    )
