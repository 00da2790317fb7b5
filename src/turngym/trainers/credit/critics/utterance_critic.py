"""An off-policy critic of whole utterances, twin Q and twin V on one encoder, and its replay.

Axis letters: K row of a batch; 2 for the twins; H width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from turngym.agents.engine.models import seeded
from turngym.seeding import derive_seed, generator
from turngym.trainers.credit.base import (
    Credit,
    CreditContext,
    TurnBatch,
    below,
    joined,
    trained_turns,
    unused_groups,
)
from turngym.trainers.credit.critics.replay import ReplayBuffer, Transition, transitions
from turngym.trainers.credit.critics.utterance_encoder import Encoder, new_encoder
from turngym.trainers.credit.sources.reward_sources import RewardSources
from turngym.trainers.credit.warm_up import WarmUp, correlation
from turngym.trainers.samples import FloatArray, TokenIds, TrainingSample
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.group import UtteranceCritic
from turngym.trainers.settings.optimizer import OptimizerConfig
from turngym.trainers.update.compute import compute_of
from turngym.trainers.update.optimizer import Optimizer
from turngym.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticValues:
    """What the critic says of K actions, without gradient. Shapes [2, K], one row per twin."""

    q_2K: FloatArray
    v_2K: FloatArray

    def advantage(self, join: Literal["min", "max"] = "min") -> FloatArray:
        """Return ``join(Q1, Q2) - join(V1, V2)``, shape [K]."""
        joined = np.min if join == "min" else np.max
        found: FloatArray = joined(self.q_2K, axis=0) - joined(self.v_2K, axis=0)
        return found


def q_targets(
    reward_K: Tensor, is_end_K: Tensor, next_v_2K: Tensor, *, gamma: float, pessimistic: bool
) -> Tensor:
    """Return ``r + gamma (1 - end) V(s')`` for both twins, shape [2, K].

    Args:
        reward_K: Reward of the turn.
        is_end_K: True where nothing comes after the turn.
        next_v_2K: Value of the next state by the target's twins.
        gamma: Discount per turn.
        pessimistic: Bootstrap both from the smaller twin instead of each from its own.
    """
    if pessimistic:
        next_v_2K = next_v_2K.min(dim=0).values.expand(2, -1)
    return reward_K + gamma * torch.where(is_end_K, 0.0, next_v_2K)


def critic_loss(q_2K: Tensor, q_targets_2K: Tensor, v_2K: Tensor, v_targets_2J: Tensor) -> Tensor:
    """Return the sum over the four heads of their mean squared errors.

    Args:
        q_2K: Q of the twins, with gradient.
        q_targets_2K: What they are regressed on.
        v_2K: V of the twins at J states, with gradient.
        v_targets_2J: What they are regressed on.
    """
    q_losses = (q_2K - q_targets_2K).square().mean(dim=1)
    v_losses = (v_2K - v_targets_2J).square().mean(dim=1)
    return q_losses.sum() + v_losses.sum()


def expectile_loss(gaps: Tensor, expectile: float) -> Tensor:
    """Return the mean of ``|expectile - 1[u < 0]| u ** 2`` over the last axis, for ``u = Q - V``.

    Args:
        gaps: u, any shape.
        expectile: Above 0.5 V follows the better actions, at 0.5 the mean.

    Source:
        Kostrikov et al. 2021, arXiv:2110.06169, as OfflineArcher uses it.
    """
    weights = torch.where(gaps < 0, 1 - expectile, expectile)
    return (weights * gaps.square()).mean(dim=-1)


@torch.no_grad()
def polyak(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move the weights of ``target`` by ``tau`` of the way to those of ``online``."""
    for old, new in zip(target.parameters(), online.parameters(), strict=True):
        old.lerp_(new, tau)


class CriticLearner:
    """The critic, its slowly following target, and the optimizer.

    Args:
        config: Steps.
        make_encoder: Makes the encoder; called once.
        seed: Of the weights.
        device: Where it lives.
        expectile: Learn V as this expectile of Q; None for its mean.
    """

    def __init__(
        self,
        config: UtteranceCritic,
        *,
        make_encoder: Callable[[], Encoder],
        seed: int,
        device: torch.device | None = None,
        expectile: float | None = None,
    ) -> None:
        with seeded(seed):
            self.online = _Net(make_encoder(), config).to(device).eval()
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        if config.freeze_encoder:
            self.target.encoder = self.online.encoder
        self._config = config
        self._expectile = expectile
        settings = OptimizerConfig(lr=config.lr, grad_clip=config.grad_clip)
        self._optimizer = Optimizer(self.online, settings, total_steps=1)

    @property
    def steps(self) -> int:
        """Critic steps so far."""
        return self._optimizer.steps

    def step(
        self,
        rows: Sequence[Transition],
        states: Sequence[TokenIds] | None = None,
        actions: Sequence[TokenIds] | None = None,
    ) -> float:
        """Take one step on replayed turns and return the loss before it.

        Args:
            rows: Turns that Q learns from.
            states: States that V learns at; None for those of ``rows``.
            actions: on-policy actions at ``states``; None for the played ones of ``rows``.

        Raises:
            TrainingError: The loss is not finite.
        """
        online, count = self.online, len(rows)
        own = [row.state for row in rows]
        vectors = online.encoder([*own, *(states or ())])
        q_2K = online.q(vectors[:count], online.encoder([row.action for row in rows]))
        v_2J = online.v(vectors if states is None else vectors[count:])
        yq_2K, yv_2J = self._targets(rows, own if states is None else states, actions)
        if self._expectile is None:
            loss = critic_loss(q_2K, yq_2K, v_2J, yv_2J)
        else:
            q_loss = (q_2K - yq_2K).square().mean(dim=1).sum()
            loss = q_loss + expectile_loss(yv_2J - v_2J, self._expectile).sum()
        found = self._optimizer.descend([loss], where=f"critic, step {self.steps}")
        if self.steps % self._config.polyak_every == 0:
            polyak(self.target, online, self._config.tau)
        return found

    @torch.no_grad()
    def _targets(
        self,
        rows: Sequence[Transition],
        states: Sequence[TokenIds],
        actions: Sequence[TokenIds] | None,
    ) -> tuple[Tensor, Tensor]:
        """Return what both Q and both V heads are regressed on."""
        target, config = self.target, self._config
        played = [row.action for row in rows] if actions is None else actions
        vectors = target.encoder([*(row.next_state for row in rows), *states])
        device = vectors.device
        reward_K = torch.tensor([row.reward for row in rows], device=device)
        ends = [row.is_end(bootstrap_truncated=config.bootstrap_truncated) for row in rows]
        yq_2K = q_targets(
            reward_K,
            torch.tensor(ends, device=device),
            target.v(vectors[: len(rows)]),
            gamma=config.gamma,
            pessimistic=config.pessimistic_targets,
        )
        yv_2J = target.q(vectors[len(rows) :], target.encoder(played))
        if config.pessimistic_targets:
            yv_2J = yv_2J.min(dim=0).values.expand(2, -1)
        return yq_2K, yv_2J

    @torch.no_grad()
    def values(self, states: Sequence[TokenIds], actions: Sequence[TokenIds]) -> CriticValues:
        """Return Q and V of the online critic for actions at states, one state per action.

        Args:
            states: Everything the policy saw, as tokens. A state that is given several times, as
                the same object, is read once.
            actions: As tokens, the end token included.
        """
        if not states:
            return CriticValues(q_2K=np.zeros((2, 0)), v_2K=np.zeros((2, 0)))
        distinct = {id(state): state for state in states}
        place = {key: n for n, key in enumerate(distinct)}
        vectors = self.online.encoder(list(distinct.values()))
        vectors = vectors[torch.tensor([place[id(state)] for state in states])]
        q_2K = self.online.q(vectors, self.online.encoder(actions))
        v_2K = self.online.v(vectors)
        return CriticValues(q_2K=q_2K.cpu().double().numpy(), v_2K=v_2K.cpu().double().numpy())

    def state(self) -> dict[str, Tensor]:
        """Return both nets, moments and the number of steps."""
        online, target = self.online.state_dict(), self.target.state_dict()
        if self._config.freeze_encoder:  # one for both, and a file holds no tensor twice
            target = {name: t for name, t in target.items() if not name.startswith("encoder.")}
        parts = {"online": online, "target": target, "optimizer": self._optimizer.state()}
        return joined(parts) | {"steps": torch.tensor([self.steps])}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self.online.load_state_dict(below(tensors, "online"))
        is_whole = not self._config.freeze_encoder
        self.target.load_state_dict(below(tensors, "target"), strict=is_whole)
        steps = int(tensors["steps"].item())
        self._optimizer.load_state(below(tensors, "optimizer"), steps=steps)


class ReplayedCritic:
    """A replay buffer and the critic that learns from it: what ArCHer and Digi-Q share.

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
        self._warm_up = WarmUp(config, "critic", ("correlation", correlation))
        self.buffer = ReplayBuffer(config.buffer_turns)
        self._config = config
        self._context = context
        self._replay = replay
        self._sources = RewardSources(algo.rewards, algo.gate, context)
        self._learner = CriticLearner(
            config,
            make_encoder=lambda: new_encoder(
                config, model=context.model, renderer=context.renderer, max_batch=context.max_tokens
            ),
            seed=derive_seed(context.seed, "critic"),
            device=compute_of(context.model).device,
            expectile=expectile,
        )
        self._newest: list[Transition] = []
        self._unused: dict[str, int] = {}
        """Groups of the newest batch that the policy learns nothing from, by reason."""
        self._metrics: dict[str, float] = {}

    @property
    def is_warm(self) -> bool:
        """True when the policy may learn in the update that has begun."""
        return self._warm_up.is_over

    @property
    def updates(self) -> int:
        """Batches that were read."""
        return self._warm_up.updates

    def add(self, groups: Sequence[TrajectoryGroup]) -> TurnBatch:
        """Keep a batch, and return its turns.

        Raises:
            TrainingError: A reward is not finite, or a turn has no sampled tokens.
        """
        if self.updates == 0:
            self._pretrain()
        turns = TurnBatch.of(trained_turns(groups))
        self._unused = unused_groups(len(groups), turns, is_warm=self.is_warm)
        if not self._replay:
            self.buffer.clear()
        self._newest = self._transitions(turns)
        self.buffer.add(self._newest)
        return turns

    def _pretrain(self) -> None:
        """Begin with the demonstrations in the buffer, and learn from them."""
        shown = [
            TrajectoryGroup(group_id="demonstrations", trajectories=(episode,))
            for episode in self._context.demonstrations[: self._config.demonstrations]
        ]
        self.buffer.add(self._transitions(TurnBatch.of(shown)))
        for step in range(self._config.pretrain_steps if len(self.buffer) else 0):
            rng = generator(self._context.seed, "critic_pretraining", step)
            self._learner.step(self.buffer.sample(self._config.batch_turns, rng))

    def _transitions(self, turns: TurnBatch) -> list[Transition]:
        return transitions(
            turns,
            self._sources.read(turns)["env"].values_N,
            self._context.renderer,
            gamma=self._config.gamma,
            context=self._context.engine.context,
        )

    def train(self, states: Sequence[TokenIds] = (), actions: Sequence[TokenIds] = ()) -> None:
        """Take the critic steps of one update.

        Args:
            states: States that V learns at, with ``value_actions="on_policy"``.
            actions: A fresh action at each of them.

        Raises:
            TrainingError: The loss is not finite.
        """
        config, losses = self._config, []
        q_K = np.zeros(0)
        if self._warm_up.waits:  # before it learns from them
            q_K = self.replayed_values(self._newest).q_2K.mean(axis=0)
        steps = self._warm_up.steps(config.steps_per_update)
        for step in range(steps if len(self.buffer) else 0):
            rng = generator(self._context.seed, "critic_step", self.updates, step)
            rows = self.buffer.sample(config.batch_turns, rng)
            if config.value_actions == "replayed":
                losses.append(self._learner.step(rows))
                continue
            chosen = rng.integers(0, len(states), config.batch_turns)
            at, fresh = [states[k] for k in chosen], [actions[k] for k in chosen]
            losses.append(self._learner.step(rows, at, fresh))
        returns_K = np.array([row.mc_return for row in self._newest])[: q_K.size]
        self._metrics = {
            "credit/buffer_turns": float(len(self.buffer)),
            **self._warm_up.end_update(q_K, returns_K),
        }
        if losses:
            self._metrics["credit/critic_loss"] = float(np.mean(losses))

    def sample(self, purpose: str, count: int) -> list[Transition]:
        """Return replayed turns; which ones depends on the seed, ``purpose`` and the update.

        None while nothing was played.
        """
        rng = generator(self._context.seed, purpose, self.updates)
        return self.buffer.sample(count, rng) if len(self.buffer) else []

    def values(self, states: Sequence[TokenIds], actions: Sequence[TokenIds]) -> CriticValues:
        """Return what the critic says of actions at states."""
        return self._learner.values(states, actions)

    def replayed_values(self, rows: Sequence[Transition]) -> CriticValues:
        """Return what the critic says of actions that were played."""
        return self.values([row.state for row in rows], [row.action for row in rows])

    def report(
        self, turns: TurnBatch, samples: Sequence[TrainingSample], metrics: Mapping[str, float]
    ) -> Credit:
        """Return the credit of an update, with the worth of what was played in its batch.

        Args:
            turns: The batch.
            samples: What the policy learns from.
            metrics: What else is to be logged.
        """
        values = self.replayed_values(self._newest)
        advantages = turns.split(values.advantage()) if turns.episodes else []
        returns = np.array([row.mc_return for row in self._newest])
        fit = {
            "credit/q_return_correlation": correlation(values.q_2K.mean(axis=0), returns),
            "credit/value_mean": float(values.v_2K.mean()) if returns.size else 0.0,
        }
        return Credit(
            samples=tuple(samples),
            trajectories=turns.episodes,
            advantages=tuple(advantages),
            dropped=self._unused,
            metrics=self._metrics | fit | dict(metrics),
        )

    def state(self) -> dict[str, Tensor]:
        """Return the buffer, the critic and the number of updates."""
        tensors = joined({"buffer": self.buffer.state(), "critic": self._learner.state()})
        return tensors | self._warm_up.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self.buffer.load_state(below(tensors, "buffer"))
        self._learner.load_state(below(tensors, "critic"))
        self._warm_up.load_state(tensors)


class _Net(nn.Module):
    """An encoder, and four heads on it."""

    def __init__(self, encoder: Encoder, config: UtteranceCritic) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(not config.freeze_encoder)
        self._interaction = config.interaction
        width = encoder.width
        q_width = (3 if config.interaction else 2) * width
        self.q_heads = nn.ModuleList([_head(q_width, width) for _ in range(2)])
        self.v_heads = nn.ModuleList([_head(width, width) for _ in range(2)])

    def q(self, state_KH: Tensor, action_KH: Tensor) -> Tensor:
        """Return Q of both twins, shape [2, K]."""
        both = torch.cat([state_KH, action_KH], dim=-1)
        if self._interaction:
            both = torch.cat([both, state_KH * action_KH], dim=-1)
        return torch.stack([head(both)[:, 0] for head in self.q_heads])

    def v(self, state_KH: Tensor) -> Tensor:
        """Return V of both twins, shape [2, K]."""
        return torch.stack([head(state_KH)[:, 0] for head in self.v_heads])


def _head(width_in: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width_in, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 1),
    )
