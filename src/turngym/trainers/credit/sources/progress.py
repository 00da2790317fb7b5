"""A learned estimator of how much each turn contributed to the outcome.

The estimator reads an episode and says one number after each action; their sum predicts the
episode's return. It learns from the newest episodes and judges a batch before it learns from it.

Axis letters: N turn of any episode or action of a rectangle, B episode, L token of a row, H width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.models import build_tiny_model
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
from turngym.trainers.credit.warm_up import WarmUp, correlation
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.optimizer import OptimizerConfig
from turngym.trainers.settings.rewards import Progress
from turngym.trainers.update.forward import BodyWithHead
from turngym.trainers.update.optimizer import Optimizer
from turngym.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ProgressSource(LearnedSource["ProgressEstimator"]):
    """The component ``progress``: ``contribution_weight * c_t + grounding_weight * g_t``.

    ``c_t`` is the estimator's contribution of the turn and ``g_t`` 1 when its action could be
    carried out, else 0. Truncated episodes teach with the return they had.

    Args:
        config: Weights, and how the estimator learns.
        context: Gives policy, tokenizer, seed and memory budget.

    Source:
        SPA-RL, arXiv:2505.20732. We follow the paper where the released code differs: the head
        reads the hidden state and not the logits, contributions are not overwritten by centred
        outcomes, and rewards are not multiplied by the number of turns that follow.
    """

    def __init__(self, config: Progress, context: CreditContext) -> None:
        waits = config
        if config.constant:  # the ablation has nothing to learn
            waits = config.model_copy(update={"warmup_updates": 0, "warmup_until": None})
        super().__init__(
            config.buffer_episodes, WarmUp(waits, "progress", ("correlation", correlation))
        )
        self._config = config
        self._context = context

    def read(self, turns: TurnBatch) -> Components:
        """Return the rewards of a batch, then let the estimator learn from it."""
        if self._warm_up.updates == 0:
            shown = self._context.demonstrations[: self._config.demonstrations]
            self._buffer.add([self._example(episode) for episode in shown])
        if self._config.constant:
            values_N = (turns.outcome_B / turns.length_B)[turns.episode_N]
            self._warm_up.end_update(turns.outcome_B, turns.outcome_B)
        else:
            values_N = self._judge_and_learn(turns)
        rewards_N = progress_rewards(values_N, turns, self._config)
        return {"progress": RewardComponent.everywhere(rewards_N)}

    def _new_learner(self) -> ProgressEstimator:
        config, context = self._config, self._context
        seed = derive_seed(context.seed, "progress")
        if config.body == "small":
            tokenizer = context.renderer.tokenizer
            model = build_tiny_model(TinyModelConfig(layers=2), tokenizer, seed=seed)
        else:
            model = context.model
        return ProgressEstimator(model, config, seed=seed, max_tokens=context.max_tokens)

    def _judge_and_learn(self, turns: TurnBatch) -> FloatArray:
        """Return contributions [N] of an estimator that has not seen the batch, then train it.

        A turn that is context alone has none.
        """
        is_read_B = turns.sums(turns.tokens_N) > 0
        examples = [self._example(turns.episodes[b]) for b in np.flatnonzero(is_read_B)]
        outcome_B = turns.outcome_B[is_read_B]
        # Judged before it learns: predictions of what it has seen would be the outcomes themselves.
        contributions = self._learner.contributions(examples)
        predicted_B = np.array([values_T.sum() for values_T in contributions])
        metrics = {}
        if contributions:
            spread = float(np.mean([values_T.std() for values_T in contributions]))
            metrics["credit/progress_spread"] = spread
        if found := correlation(predicted_B, outcome_B):
            metrics["credit/progress_correlation"] = found
        if self._warm_up.learns:
            self._buffer.add(examples)
            steps = self._warm_up.steps(self._config.steps_per_update)
            losses = [self._learner.step(self._buffer) for _ in range(steps)]
            metrics["credit/progress_loss"] = float(np.mean(losses))
        self._metrics = metrics | self._warm_up.end_update(predicted_B, outcome_B)
        values_N = np.zeros(turns.turn_N.shape)
        values_N[turns.tokens_N > 0] = np.concatenate([np.zeros(0), *contributions])
        return values_N

    def _example(self, episode: Trajectory) -> TrainingExample:
        rows, reads = episode_rows(episode), self._config.reads
        if reads is not None:
            rows = tuple(part for row in rows for part in _row_of_each_turn(row, reads))
        return TrainingExample(rows=rows, outcome=float(episode.episode_return))


def _row_of_each_turn(row: Row, reads: int) -> Iterator[Row]:
    """Yield for each action of ``row`` its last ``reads`` tokens, of which only it is judged."""
    for end in np.flatnonzero(last_tokens(row)) + 1:
        part = slice(max(0, end - reads), end)
        turn = row.turn_ids_L[end - 1]
        turns_L = np.where(row.turn_ids_L[part] == turn, turn, -1)
        yield replace(
            row,
            token_ids_L=row.token_ids_L[part],
            turn_ids_L=turns_L,
            reference_L=row.reference_L[part],
        )


class ProgressEstimator:
    """A copy of a model's body with a linear head on the hidden state behind each action.

    The head starts at 0, so all contributions do.

    Args:
        model: Its body is copied, adapters merged, and the copy trained whole.
        config: How it is trained.
        seed: Root of its place in the seed tree; samples episodes for each step.
        max_tokens: Tokens in memory at once, padding included.
    """

    def __init__(
        self, model: PreTrainedModel, config: Progress, *, seed: int, max_tokens: int
    ) -> None:
        self._net = BodyWithHead(model)
        self._config = config
        self._seed = seed
        self._max_tokens = max_tokens
        self._optimizer = Optimizer(self._net, OptimizerConfig(lr=config.lr), total_steps=1)

    def contributions(self, examples: Sequence[TrainingExample]) -> list[FloatArray]:
        """Return what each turn contributed, one array [T] per episode, without gradient."""
        found: dict[int, FloatArray] = {}
        with torch.no_grad():
            for numbers in packed(examples, max_tokens=self._max_tokens):
                values_N, owners_N = self._forward([examples[i] for i in numbers])
                values, owners = values_N.double().cpu().numpy(), owners_N.cpu().numpy()
                found |= {i: values[owners == place] for place, i in enumerate(numbers)}
        return [found[i] for i in range(len(examples))]

    def step(self, buffer: ExampleBuffer) -> float:
        """Take one optimizer step on episodes of ``buffer`` and return the loss before it.

        Raises:
            TrainingError: The loss or a gradient is not finite.
        """
        number = self._optimizer.steps
        rng = generator(self._seed, "episodes", number)
        examples = buffer.sample(self._config.batch_episodes, rng)
        losses = (
            self._loss([examples[i] for i in numbers]) / len(examples)
            for numbers in packed(examples, max_tokens=self._max_tokens)
        )
        return self._optimizer.descend(losses, where=f"progress estimator, step {number}")

    def _loss(self, examples: Sequence[TrainingExample]) -> Tensor:
        values_N, owners_N = self._forward(examples)
        outcomes_B = values_N.new_tensor([example.outcome for example in examples])
        return squared_error(values_N, owners_N, outcomes_B)

    def state(self) -> dict[str, Tensor]:
        """Return weights, moments and the number of steps."""
        parts = {"net": self._net.state_dict(), "optimizer": self._optimizer.state()}
        return joined(parts) | {"steps": torch.tensor(self._optimizer.steps)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._net.load_state_dict(below(tensors, "net"))
        steps = int(tensors["steps"].item())
        self._optimizer.load_state(below(tensors, "optimizer"), steps=steps)

    def _forward(self, examples: Sequence[TrainingExample]) -> tuple[Tensor, Tensor]:
        """Return contributions [N] and the place of the episode that each belongs to, [N].

        Episodes are in order, and the actions of each.
        """
        pairs = [(row, owner) for owner, example in enumerate(examples) for row in example.rows]
        rows = [row for row, _ in pairs]
        owners = [np.full(row.token_ids_L.shape, owner) for row, owner in pairs]
        batch = rectangle(rows, [last_tokens(row) for row in rows], self._net.device)
        owners_N, turns_N = batch.gather(owners), batch.gather([row.turn_ids_L for row in rows])
        # The longest row comes first in a rectangle, whichever part of its episode it is.
        order_N = torch.argsort(owners_N * (int(turns_N.max()) + 1) + turns_N)
        return self._net(batch, is_behind=True)[order_N], owners_N[order_N]


def progress_rewards(contributions_N: FloatArray, turns: TurnBatch, config: Progress) -> FloatArray:
    """Return ``alpha * c + beta * g`` of every turn, shape [N].

    Args:
        contributions_N: c, in units of return.
        turns: Says by ``invalid_N`` where g is 0.
        config: alpha and beta.
    """
    grounded_N = (~turns.invalid_N).astype(np.float64)
    return config.contribution_weight * contributions_N + config.grounding_weight * grounded_N


def squared_error(values_N: Tensor, owners_N: Tensor, outcomes_B: Tensor) -> Tensor:
    """Return the sum over episodes of ``(sum of contributions - outcome) ** 2``.

    Args:
        values_N: Contributions.
        owners_N: Episode of each, in [0, B).
        outcomes_B: Returns of the episodes.
    """
    predicted_B = torch.zeros_like(outcomes_B).index_add(0, owners_N, values_N)
    return (predicted_B - outcomes_B).square().sum()


def last_tokens(row: Row) -> NDArray[np.bool_]:
    """Return where the last token of each action is, shape [L]."""
    following_L = np.append(row.turn_ids_L[1:], -1)
    found: NDArray[np.bool_] = (row.turn_ids_L >= 0) & (row.turn_ids_L != following_L)
    return found
