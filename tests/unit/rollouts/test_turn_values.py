"""Values of states and turns of a game whose values are known."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from turngym.agents.policy import EpisodeContext, PolicyTurn
from turngym.errors import EpisodeError
from turngym.rollouts.episode import EpisodeSpec, rollout
from turngym.rollouts.replay import TurnValues, turn_values
from turngym.rollouts.scheduler.config import BudgetConfig
from turngym.seeding import generator
from turngym.tasks.base import Task
from turngym.types import Message, Trajectory, Turn

TASK = Task(id="two/train/0", seed=0, split="train")


class TwoTurns:
    """Pays 1 for ``up`` and then ``up``; after ``down`` nothing helps."""

    def __init__(self, *, breaks_after: str = "") -> None:
        self._breaks_after = breaks_after

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._said: list[str] = []
        return {"text": "begin"}, {}

    async def step(self, action: str) -> Any:
        if self._said and self._said[0] == self._breaks_after:
            raise RuntimeError("the board fell")
        self._said.append(action)
        is_over, won = len(self._said) == 2, self._said == ["up", "up"]
        return {"text": "go on"}, float(won), is_over, False, {"score": float(won)}

    async def close(self) -> None:
        """Nothing is open."""


class Coin:
    """Says ``up`` or ``down``, each half of the time."""

    def start(self, context: EpisodeContext) -> CoinSession:
        return CoinSession(context.seed)


class CoinSession:
    def __init__(self, seed: int) -> None:
        self._rng = generator(seed, "coin")

    async def act(self, observation: Any, info: Any) -> PolicyTurn:
        said = "up" if self._rng.random() < 0.5 else "down"
        seen = (Message(role="user", content=observation["text"]),)
        return PolicyTurn(observation=seen, action=Message(role="assistant", content=said))

    def replay(self, observation: Any, info: Any, turn: Turn) -> None:
        """It remembers nothing."""

    async def close(self) -> None:
        """Nothing is open."""


def episodes() -> list[Trajectory]:
    """Return one episode of each kind: up up, up down, down up, down down."""
    found: dict[tuple[str, ...], Trajectory] = {}
    for seed in range(64):
        spec = EpisodeSpec(env_id="two", task=TASK, env_seed=7, policy_seed=seed)
        played = asyncio.run(rollout(TwoTurns(), Coin(), spec))
        found.setdefault(tuple(turn.action.content for turn in played.turns), played)
    return [found[key] for key in sorted(found, reverse=True)]


def values(attempts: int, **env: str) -> TurnValues:
    played = episodes()
    make_env = lambda: TwoTurns(**env)  # noqa: E731
    return asyncio.run(turn_values(make_env, Coin(), played, [TASK] * 4, attempts=attempts, seed=3))


def test_states_and_turns_are_worth_what_the_game_says() -> None:
    found = values(800)
    # From the start a quarter wins, after one ``up`` half, after ``down`` none.
    wanted = [[0.25, 0.5, 0], [0.25, 0.5, 0], [0.25, 0, 0], [0.25, 0, 0]]
    for values_HS, wanted_S in zip(found.values, wanted, strict=True):
        assert values_HS.shape == (2, 3)
        np.testing.assert_allclose(values_HS.mean(axis=0), wanted_S, atol=0.05)
    turns = [[0.25, 0.5], [0.25, -0.5], [-0.25, 0], [-0.25, 0]]
    for found_HT, wanted_T in zip(found.advantages(episodes()), turns, strict=True):
        np.testing.assert_allclose(found_HT.mean(axis=0), wanted_T, atol=0.08)


def test_what_began_alike_is_played_on_once_and_the_halves_are_two_samples() -> None:
    found = values(20)
    assert found.episodes == 20 * 3  # from the start, after up, after down
    assert found.values[0][:, :2].tolist() == found.values[1][:, :2].tolist()
    assert found.values[0][0].tolist() != found.values[0][1].tolist()
    again = values(20)
    assert [v.tolist() for v in again.values] == [v.tolist() for v in found.values]


def test_a_continuation_spends_what_its_episode_has_left() -> None:
    for budget, start in (
        (BudgetConfig(max_turns=1), 0.0),
        (BudgetConfig(max_turns=1, extra_turns=1), 0.0),  # nothing was earned by then
        (BudgetConfig(max_turns=2), 0.25),
    ):
        one = [episodes()[0]]
        made = turn_values(TwoTurns, Coin(), one, [TASK], attempts=400, seed=3, budget=budget)
        found = asyncio.run(made).values[0].mean(axis=0)
        np.testing.assert_allclose(found[0], start, atol=0.06)


def test_a_continuation_that_breaks_is_no_value_of_zero() -> None:
    with pytest.raises(EpisodeError, match=r"two/train/0, after [01] turns: .*the board fell"):
        values(2, breaks_after="down")
    with pytest.raises(ValueError, match="attempts=3: wanted an even number"):
        values(3)
