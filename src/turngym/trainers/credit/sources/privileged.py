"""A critic that sees the true answer and says how good each turn was.

The critic is a language model itself: what a turn was worth is how much likelier it finds the
turn's tokens than a frozen copy does, both given the true answer before the episode begins. It
learns from pairs of attempts at one task, the best against each that did worse.

Axis letters: N turn of any episode or token of a rectangle, P pair, T turn of one episode, L token
of a row.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from turngym.agents.engine.models import positions
from turngym.agents.rendering import Renderer
from turngym.seeding import derive_seed, generator
from turngym.trainers.credit.base import (
    Components,
    CreditContext,
    RewardComponent,
    TurnBatch,
    below,
    joined,
)
from turngym.trainers.credit.sources.learned import (
    ExampleBuffer,
    LearnedSource,
    Row,
    TrainingExample,
    episode_rows,
    packed,
    rectangle,
)
from turngym.trainers.credit.warm_up import WarmUp, ranked_right
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.optimizer import OptimizerConfig
from turngym.trainers.settings.rewards import Privileged
from turngym.trainers.update.compute import compute_of
from turngym.trainers.update.forward import read_tokens, score
from turngym.trainers.update.optimizer import Optimizer, load_own_state, own_state
from turngym.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Objective = Literal["turn_sum", "token_mean"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Judged:
    """One episode of a batch after the critic has read it."""

    number: int
    """Its place in the batch."""
    rows: tuple[Row, ...]
    advantages_T: FloatArray
    total: float
    """What the objective compares."""


class PrivilegedSource(LearnedSource["PrivilegedCritic"]):
    """The component ``privileged``: per turn the mean over its tokens of ``log pi - log pi_ref``.

    The critic judges a batch before it learns from it. An episode has no value without a true
    answer, or when it is too long for the model with the answer before it;
    ``credit/privileged_fallbacks`` counts them. A turn that is context has none either.

    Critic and reference are copies of the policy as it is in the first update; of a policy with
    adapters the critic trains the adapters alone.

    Args:
        config: How the critic learns.
        context: Gives policy, renderer, seed and memory budget.

    Source:
        SWEET-RL, arXiv:2503.15478, the critic of its first stage. The authors rank sampled actions
        by it and train by DPO; here it scores the turns that were played.
    """

    def __init__(self, config: Privileged, context: CreditContext) -> None:
        super().__init__(
            config.buffer_pairs, WarmUp(config, "privileged", ("ranked_right", ranked_right))
        )
        self._config = config
        self._context = context

    def read(self, turns: TurnBatch) -> Components:
        """Return the advantages of a batch, then let the critic learn from it."""
        # Before it learns from the batch: afterwards it would know which attempt was better.
        judged = self._judge(turns, self._learner)
        values_N = np.zeros(turns.turn_N.shape)
        has_value_N = np.zeros(turns.turn_N.shape, dtype=np.bool_)
        for one in judged:
            own_N = (turns.episode_N == one.number) & (turns.tokens_N > 0)
            values_N[own_N], has_value_N[own_N] = one.advantages_T, True
        self._metrics = self._learn(turns, judged, self._learner)
        return {"privileged": RewardComponent(values_N=values_N, has_value_N=has_value_N)}

    def _new_learner(self) -> PrivilegedCritic:
        context = self._context
        seed = derive_seed(context.seed, "privileged")
        return PrivilegedCritic(
            context.model, self._config, seed=seed, max_tokens=context.max_tokens
        )

    def _judge(self, turns: TurnBatch, critic: PrivilegedCritic) -> list[_Judged]:
        """Return the episodes that have a true answer and fit, with their advantages."""
        found = {number: self._rows(episode) for number, episode in enumerate(turns.episodes)}
        flat = critic.with_reference([row for rows in found.values() for row in rows])
        scored = iter(zip(flat, critic.log_ratios(flat), strict=True))
        return [
            self._judged(number, [next(scored) for _ in rows])
            for number, rows in found.items()
            if rows
        ]

    def _judged(self, number: int, scored: Sequence[tuple[Row, NDArray[np.float32]]]) -> _Judged:
        """Return one episode from its rows and their log-ratios [L]."""
        turns_M = np.concatenate([row.turn_ids_L for row, _ in scored])
        ratios_M = np.concatenate([ratios_L for _, ratios_L in scored])[turns_M >= 0]
        advantages_T = turn_means(ratios_M, turns_M[turns_M >= 0])
        is_sum = self._config.objective == "turn_sum"
        return _Judged(
            number=number,
            rows=tuple(row for row, _ in scored),
            advantages_T=advantages_T,
            total=float(advantages_T.sum() if is_sum else ratios_M.mean()),
        )

    def _rows(self, episode: Trajectory) -> tuple[Row, ...]:
        """Return the episode behind its true answer; nothing when it has none or does not fit.

        Nor where all of it is context.
        """
        if not (episode.ground_truth and episode.num_sampled_tokens):
            return ()
        prefix = truth_prefix(self._context.renderer, episode.ground_truth)
        rows = episode_rows(episode, prefix=prefix)
        room = positions(self._context.model)
        too_long = room is not None and max(row.token_ids_L.size for row in rows) > room
        return () if too_long else rows

    def _learn(
        self, turns: TurnBatch, judged: Sequence[_Judged], critic: PrivilegedCritic
    ) -> dict[str, float]:
        pairs = best_and_worse(turns, judged)
        if self._warm_up.learns:
            self._buffer.add([pair_example(better.rows, worse.rows) for better, worse in pairs])
        steps = self._warm_up.steps(self._config.steps_per_update) if len(self._buffer) else 0
        losses = [critic.step(self._buffer) for _ in range(steps)]
        metrics = {
            "credit/privileged_fallbacks": float(len(turns.episodes) - len(judged)),
            "credit/privileged_pairs": float(len(pairs)),
        }
        totals_P2 = np.array([(a.total, b.total) for a, b in pairs]).reshape(-1, 2)
        if pairs:
            metrics["credit/privileged_ranked_right"] = ranked_right(*totals_P2.T)
        if losses:
            metrics["credit/privileged_loss"] = float(np.mean(losses))
        return metrics | self._warm_up.end_update(*totals_P2.T)


class PrivilegedCritic:
    """A trainable copy of a policy beside a frozen one.

    Args:
        model: The policy; neither copy touches it.
        config: Objective, beta and how the copy is trained.
        seed: Root of its place in the seed tree; samples pairs for each step.
        max_tokens: Tokens in memory at once, padding included.
    """

    def __init__(
        self, model: PreTrainedModel, config: Privileged, *, seed: int, max_tokens: int
    ) -> None:
        device = compute_of(model).device
        self._model: PreTrainedModel = copy.deepcopy(model).to(device).eval()
        self._reference: PreTrainedModel = copy.deepcopy(self._model).requires_grad_(False)
        self._config = config
        self._seed = seed
        self._max_tokens = max_tokens
        self._optimizer = Optimizer(self._model, OptimizerConfig(lr=config.lr), total_steps=1)

    def with_reference(self, rows: Sequence[Row]) -> list[Row]:
        """Return ``rows`` with the log-probs of the frozen copy, once and for all."""
        scored = self._score(self._reference, rows)
        return [replace(row, reference_L=theirs) for row, theirs in zip(rows, scored, strict=True)]

    def log_ratios(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        """Return ``log pi - log pi_ref`` of the sampled tokens, one array [L] per row.

        Args:
            rows: From ``with_reference``.
        """
        scored = self._score(self._model, rows)
        return [ours - row.reference_L for ours, row in zip(scored, rows, strict=True)]

    def step(self, buffer: ExampleBuffer) -> float:
        """Take one optimizer step on pairs of ``buffer`` and return the loss before it.

        Raises:
            TrainingError: The loss or a gradient is not finite.
        """
        config, number = self._config, self._optimizer.steps
        pairs = buffer.sample(config.batch_pairs, generator(self._seed, "pairs", number))
        margins = (
            self._margins([pairs[i] for i in numbers])
            for numbers in packed(pairs, max_tokens=self._max_tokens)
        )
        losses = (ranking_loss(part_P, beta=config.beta).sum() / len(pairs) for part_P in margins)
        return self._optimizer.descend(losses, where=f"privileged critic, step {number}")

    def state(self) -> dict[str, Tensor]:
        """Return both copies' weights, moments and the number of steps."""
        trained, frozen = own_state(self._model), own_state(self._reference)
        parts = {"model": trained, "reference": frozen, "optimizer": self._optimizer.state()}
        return joined(parts) | {"steps": torch.tensor(self._optimizer.steps)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        load_own_state(self._model, below(tensors, "model"))
        load_own_state(self._reference, below(tensors, "reference"))
        steps = int(tensors["steps"].item())
        self._optimizer.load_state(below(tensors, "optimizer"), steps=steps)

    def _margins(self, pairs: Sequence[TrainingExample]) -> Tensor:
        """Return by how much the better side of each pair is ahead, shape [P]."""
        rows = [row for pair in pairs for row in pair.rows]
        owners = [
            np.full(row.token_ids_L.shape, p) for p, pair in enumerate(pairs) for row in pair.rows
        ]
        weights = [w for pair in pairs for w in pair_weights(pair, self._config.objective)]
        device = compute_of(self._model).device
        batch = rectangle(rows, [row.turn_ids_L >= 0 for row in rows], device)
        frozen_N = batch.gather([row.reference_L for row in rows])
        ratios_N = read_tokens(self._model, batch)[0] - frozen_N
        margins_P = torch.zeros(len(pairs), device=device)
        return margins_P.index_add(0, batch.gather(owners), ratios_N * batch.gather(weights))

    def _score(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        token_ids = [row.token_ids_L for row in rows]
        masks = [row.turn_ids_L >= 0 for row in rows]
        return score(model, token_ids, masks, max_tokens=self._max_tokens)


def truth_prefix(renderer: Renderer, truth: str) -> tuple[int, ...]:
    """Return the tokens that state ``truth``, for before the first message."""
    return renderer.closed(f"The true answer: {truth}")


def turn_means(values_M: NDArray[np.float32], turns_M: NDArray[np.int64]) -> FloatArray:
    """Return the mean over the sampled tokens of each turn that has any, shape [T].

    Args:
        values_M: One number per sampled token.
        turns_M: 0-based turn of each.
    """
    places_M = np.unique(turns_M, return_inverse=True)[1]
    means_T: FloatArray = np.bincount(places_M, values_M) / np.bincount(places_M)
    return means_T


def ranking_loss(margins_P: Tensor, *, beta: float) -> Tensor:
    """Return ``-log sigmoid(beta * margin)`` of each pair, shape [P].

    Args:
        margins_P: Summed advantage of the better attempt minus that of the worse.
        beta: Sharpness, more than 0.
    """
    return -functional.logsigmoid(beta * margins_P)


def best_and_worse(turns: TurnBatch, judged: Sequence[_Judged]) -> list[tuple[_Judged, _Judged]]:
    """Return the best attempt of each group with every attempt that earned strictly less.

    Args:
        turns: The batch.
        judged: Its episodes that the critic could read.
    """
    outcome_B, pairs = turns.outcome_B, []
    for group in np.unique(turns.group_B):
        members = [one for one in judged if turns.group_B[one.number] == group]
        if members:
            best = max(members, key=lambda one: float(outcome_B[one.number]))
            worse = [m for m in members if outcome_B[m.number] < outcome_B[best.number]]
            pairs += [(best, one) for one in worse]
    return pairs


def pair_example(better: Sequence[Row], worse: Sequence[Row]) -> TrainingExample:
    """Return a pair of attempts as one example."""
    return TrainingExample(rows=(*better, *(replace(row, sign=-1) for row in worse)))


def pair_weights(pair: TrainingExample, objective: Objective) -> list[NDArray[np.float32]]:
    """Return each token's weight in the margin of ``objective``, one array [L] per row.

    ``turn_sum``: ``1 / n`` in a turn of n tokens. ``token_mean``: one over the sampled tokens of
    the whole attempt. Negative on the worse side.
    """
    sampled = {
        sign: sum(int((row.turn_ids_L >= 0).sum()) for row in pair.rows if row.sign == sign)
        for sign in (1, -1)
    }
    weights = []
    for row in pair.rows:
        turn_L = row.turn_ids_L
        size_L = np.full(turn_L.shape, sampled[row.sign])
        if objective == "turn_sum":
            size_L = np.bincount(turn_L + 1, minlength=1)[turn_L + 1]
        found = np.where(turn_L >= 0, row.sign / np.maximum(size_L, 1), 0.0)
        weights.append(found.astype(np.float32))
    return weights
