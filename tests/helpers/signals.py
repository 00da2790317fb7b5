"""A game that a tiny model learns in seconds: answer each light with what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium.envs.registration
import numpy as np
import pytest

import turngym
from turngym import registry
from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import GridGame
from turngym.tasks.base import Task

MEANING = {"red": "stop", "amber": "wait", "green": "go"}
SHADES = {"red": (230, 20, 20), "amber": (255, 230, 90), "green": (10, 130, 90)}
SIGNALS = "lab/signals"
OVERLAPPED: dict[str, Any] = {
    "env": {"id": SIGNALS, "num_train_tasks": 24},
    "model": {"hidden": 32, "layers": 1, "heads": 2, "context": 64, "vocab_size": 280},
    "warm_start": {"episodes": 64, "max_steps": 40, "evaluate_every": 40, "lr": 3e-3},
    "algo": "decoupled_ppo",
    "rollout": {
        "mode": "overlap",
        "staleness": 2,
        "groups_per_step": 4,
        "group_size": 4,
        "concurrency": 16,
        "max_new_tokens": 6,
    },
    "evaluation": {"every": 100, "validation_tasks": 6, "held_out_tasks": 6},
    "run": {"checkpoint_every": 2, "tensorboard": False},
}
"""A run that samples while it learns; each test adds what it is about."""


@dataclass
class Lights:
    """Two lights and how the answers were so far."""

    colours: tuple[str, ...]
    serial: int
    shown: int = 0
    right: bool = True


class SignalsEnv(GridGame):
    """Two lights, one after the other.

    Action: ``stop``, ``wait`` or ``go``.
    Observation: the colour of the light.
    Reward: 1 after the second light when both answers were right, else 0.
    Start: random colours.
    End: terminated after the second answer.
    """

    name = "signals"
    rules = painted = "Answer each light."
    commands = Commands({action: action for action in MEANING.values()})
    state: Lights

    def new_game(self, rng: np.random.Generator) -> Lights:
        """Draw two colours, and a number that makes the problem one of many."""
        colours = rng.choice(list(MEANING), size=2)
        return Lights(tuple(str(c) for c in colours), int(rng.integers(1 << 30)))

    def describe(self) -> str:
        """Return the light that is on."""
        if self.shows_picture:
            return "light."
        return f"light {self.state.colours[self.state.shown]}."

    def cells_shape(self) -> tuple[int, int]:
        """Return the size of a picture."""
        return 2, 2

    def cells(self) -> np.ndarray:
        """Return the light that is on; the last one, when it is over."""
        colours = self.state.colours
        shown = SHADES[colours[min(self.state.shown, len(colours) - 1)]]
        return np.full((2, 2, 3), shown, dtype=np.uint8)

    def turn(self, action: Action) -> Outcome:
        """Judge one answer and show the next light."""
        s = self.state
        s.right = s.right and action.name == MEANING[s.colours[s.shown]]
        s.shown += 1
        if s.shown < len(s.colours):
            return Outcome(text=self.describe())
        return Outcome(text="over.", reward=float(s.right), terminated=True)

    def score(self) -> float:
        """Return 1 when every answer was right and all were given."""
        return float(self.state.right and self.state.shown == len(self.state.colours))

    def legal_actions(self) -> list[str]:
        """Return the three answers."""
        return [self.action_format.render(Action(name=one)) for one in MEANING.values()]

    def expert_action(self) -> str:
        """Return the right answer."""
        last = len(self.state.colours) - 1
        name = MEANING[self.state.colours[min(self.state.shown, last)]]
        return self.action_format.render(Action(name=name))


class ToldSignalsEnv(SignalsEnv):
    """The same game, with the true answer of its first light for who asks."""

    name = "told-signals"

    def opening_info(self) -> dict[str, Any]:
        """Return the right answer to the first light, and itself as its wording."""
        first = MEANING[self.state.colours[0]]
        return {"ground_truth": first, "answer": first}


class BrokenSignalsEnv(SignalsEnv):
    """The same game on a machine that breaks in every third problem."""

    name = "broken-signals"

    def begin(self, task: Task) -> Outcome:
        """Break, or begin."""
        outcome = super().begin(task)
        if self.state.serial % 3 == 0:
            raise OSError("the lamp blew")
        return outcome


def register_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the games until ``monkeypatch`` is undone."""
    games: dict[str, Any] = dict(gymnasium.envs.registration.registry)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(gymnasium.envs.registration, "registry", games)
    register_signals()


def register_signals() -> None:
    """Register the games."""
    for name in ("Signals", "BrokenSignals"):
        entry_point = f"helpers.signals:{name}Env"
        turngym.register(f"lab/{name}-v0", entry_point, family="lab", max_turns=4)
