"""What a credit method needs, on a tiny untrained policy, and batches of made-up dialogue."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers import models
from helpers.trajectories import episode, group, turn
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.protocol import Sampling
from turngym.agents.rendering import Renderer
from turngym.config import load_config
from turngym.trainers.credit.base import CreditContext
from turngym.trainers.settings.algo import AlgoConfig
from turngym.types import TrajectoryGroup


def context(*, max_sessions: int = 64, seed: int = 3) -> CreditContext:
    """Return the context of a run whose policy is ``models.model()``."""
    engine = LocalEngine(models.model(), models.tokenizer(), max_sessions=max_sessions)
    engine.load_weights(models.model().state_dict(), 4)
    return CreditContext(
        model=models.model(),
        renderer=Renderer(models.tokenizer()),
        engine=engine,
        sampling=Sampling(max_new_tokens=5),
        seed=seed,
        max_tokens=1024,
    )


def algo(advantage: dict[str, Any], **more: Any) -> AlgoConfig:
    """Return settings of a method."""
    return load_config(AlgoConfig, [{"advantage": advantage, **more}])


def matching_game(seed: int, *, episodes: int = 8, turns: int = 3) -> list[TrajectoryGroup]:
    """Return a group in which a turn is paid when the action repeats the token that was shown."""
    rng = np.random.default_rng(seed)
    attempts = []
    for number in range(episodes):
        made = []
        for _ in range(turns):
            shown, said = (int(token) for token in rng.integers(10, 13, 2))
            made.append(turn(float(shown == said), prompt=(1, shown, 2), drawn=(said, 3)))
        attempts.append(episode(made, member=number))
    return [group(*attempts)]
