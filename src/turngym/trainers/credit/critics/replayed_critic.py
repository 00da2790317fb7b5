"""A ring of played turns and the critic that learns from it: what ArCHer and Digi-Q share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from turngym.seeding import derive_seed, generator
from turngym.trainers.credit.base import Credit, CreditContext
from turngym.trainers.credit.channels import Channels
from turngym.trainers.credit.critics.replay import PlayedTurn, TurnRing, played_turns
from turngym.trainers.credit.critics.utterance_critic import CriticLearner, Judgement
from turngym.trainers.credit.critics.utterance_encoder import Ids, new_encoder
from turngym.trainers.credit.sources.learned import below
from turngym.trainers.credit.turns import Turns
from turngym.trainers.samples import FloatArray, TrainingSample
from turngym.trainers.settings.critics import UtteranceCritic

if TYPE_CHECKING:
    from torch import Tensor

    from turngym.trainers.settings.train import AlgoConfig
    from turngym.types import TrajectoryGroup


class ReplayedCritic:
    """Keeps what was played, and learns from it at every update.

    Args:
        config: Of the critic.
        algo: Gives the rewards.
        context: What may be used.
        expectile: Learn V as this expectile of Q; None for its mean.
        replay: False keeps the newest batch alone.
    """

    def __init__(
        self,
        config: UtteranceCritic,
        algo: AlgoConfig,
        context: CreditContext,
        *,
        expectile: float | None = None,
        replay: bool = True,
    ) -> None:
        self.updates = 0
        """Batches that were learned from."""
        self.ring = TurnRing(config.buffer_turns)
        self._config = config
        self._context = context
        self._replay = replay
        self._channels = Channels(algo.rewards, algo.gate, context)
        self._learner = CriticLearner(
            config,
            make_encoder=lambda: new_encoder(
                config,
                model=context.model,
                renderer=context.renderer,
                max_batch=context.max_tokens,
            ),
            seed=derive_seed(context.seed, "critic"),
            device=next(context.model.parameters()).device,
            expectile=expectile,
        )
        self._newest: list[PlayedTurn] = []
        self._metrics: dict[str, float] = {}

    @property
    def is_warm(self) -> bool:
        """True when the policy may learn in the update that has begun."""
        return self.updates >= self._config.warmup_updates

    def add(self, groups: Sequence[TrajectoryGroup]) -> Turns:
        """Keep a batch, and return its turns.

        Raises:
            TrainingError: A reward is not finite, or a turn has no drawn tokens.
        """
        turns = Turns.of(groups)
        reward_N = self._channels.read(turns)["env"].values_N
        if not self._replay:
            self.ring.clear()
        self._newest = played_turns(
            turns,
            reward_N,
            self._context.renderer,
            gamma=self._config.gamma,
            context=self._context.engine.context,
        )
        self.ring.add(self._newest)
        return turns

    def train(self, states: Sequence[Ids] = (), actions: Sequence[Ids] = ()) -> None:
        """Take the critic steps of one update.

        Args:
            states: States that V learns at, with ``value_actions="on_policy"``.
            actions: A fresh action at each of them.

        Raises:
            TrainingError: The loss is not finite.
        """
        config, losses = self._config, []
        for step in range(config.steps_per_update if len(self.ring) else 0):
            rng = generator(self._context.seed, "critic_step", self.updates, step)
            rows = self.ring.sample(config.batch_turns, rng)
            if config.value_actions == "replayed":
                losses.append(self._learner.step(rows))
                continue
            chosen = rng.integers(0, len(states), config.batch_turns)
            at, fresh = [states[k] for k in chosen], [actions[k] for k in chosen]
            losses.append(self._learner.step(rows, at, fresh))
        self._metrics = {
            "credit/critic_loss": float(np.mean(losses)) if losses else 0.0,
            "credit/buffer_turns": float(len(self.ring)),
        }
        self.updates += 1

    def sample(self, purpose: str, count: int) -> list[PlayedTurn]:
        """Return replayed turns; which ones depends on the seed, ``purpose`` and the update.

        None while nothing was played.
        """
        rng = generator(self._context.seed, purpose, self.updates)
        return self.ring.sample(count, rng) if len(self.ring) else []

    def judge(self, states: Sequence[Ids], actions: Sequence[Ids]) -> Judgement:
        """Return what the critic says of actions at states."""
        return self._learner.judge(states, actions)

    def judge_played(self, rows: Sequence[PlayedTurn]) -> Judgement:
        """Return what the critic says of actions that were played."""
        return self.judge([row.state for row in rows], [row.action for row in rows])

    def report(
        self,
        turns: Turns,
        samples: Sequence[TrainingSample],
        metrics: Mapping[str, float],
    ) -> Credit:
        """Return the credit of an update, with the worth of what was played in its batch.

        Args:
            turns: The batch.
            samples: What the policy learns from.
            metrics: What else is to be told.
        """
        judged = self.judge_played(self._newest)
        advantages = turns.split(judged.advantage()) if turns.episodes else []
        return Credit(
            samples=tuple(samples),
            trajectories=turns.episodes,
            advantages=tuple(advantages),
            metrics=self._metrics | self._fit(judged) | dict(metrics),
        )

    def _fit(self, judged: Judgement) -> dict[str, float]:
        returns = np.array([row.mc_return for row in self._newest])
        return {
            "credit/q_return_correlation": correlation(judged.q_2K.mean(axis=0), returns),
            "credit/value_mean": float(judged.v_2K.mean()) if returns.size else 0.0,
        }

    def state(self) -> dict[str, Tensor]:
        """Return the ring, the critic and the number of updates."""
        tensors = {f"ring/{name}": t for name, t in self.ring.state().items()}
        tensors |= {f"critic/{name}": t for name, t in self._learner.state().items()}
        return tensors | {"updates": torch.tensor([self.updates])}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned."""
        self.ring.load_state(below(tensors, "ring"))
        self._learner.load_state(below(tensors, "critic"))
        self.updates = int(tensors["updates"].item())


def correlation(a: FloatArray, b: FloatArray) -> float:
    """Return Pearson's correlation, 0 where one of them does not vary."""
    if a.size < 2 or a.std() < 1e-9 or b.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
