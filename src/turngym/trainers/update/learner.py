"""From samples to new weights: one update is one batch, in one or more optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.seeding import generator
from turngym.trainers.losses.aggregation import aggregation_coefficients
from turngym.trainers.losses.clip_bounds import solve_clip_bounds
from turngym.trainers.losses.corrections import (
    PolicyLogprobs,
    correction_weights,
    estimated_old_logprobs,
)
from turngym.trainers.losses.off_policy import (
    EpisodeWeights,
    with_balanced_advantages,
    without_rejected,
)
from turngym.trainers.losses.policy_loss import TokenTerms, policy_loss
from turngym.trainers.losses.ratios import (
    episode_log_ratios,
    flat,
    has_split_episodes,
    sequence_ids,
    unflat,
)
from turngym.trainers.metrics import MetricSums
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import LossConfig, PpoClip, RegularizerConfig
from turngym.trainers.settings.optimizer import LearnerConfig
from turngym.trainers.update.forward import MicroBatch, micro_batches, score, token_logprobs
from turngym.trainers.update.optimizer import Optimizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Scores = list[NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTerms:
    """What one mini-batch gives its micro-batches to pick from: arrays [L], one per sample."""

    loss: LossConfig
    """What is minimised in this step: adaptive clip bounds are solved."""
    coefficients: Scores
    old_logprobs: Scores | None
    """Old-policy log-probs of the importance ratio; None for those of the current policy, or for an
    estimate that is made with each micro-batch."""
    weights: list[NDArray[np.float64]] | None
    """As in ``TokenTerms``; None where each token's own can be computed with its loss."""
    references: Scores | None
    sequences: list[NDArray[np.int64]] | None
    """As in ``TokenTerms``."""
    sequence_log_ratios: list[NDArray[np.float64]] | None
    """As in ``TokenTerms``."""


class Learner:
    """Holds the policy that is trained, and its optimizer.

    The model stays in evaluation mode: with dropout the ratio of a token to itself would not be 1.

    Args:
        model: A causal language model; its weights with ``requires_grad`` are trained in place.
        config: Steps and sizes.
        loss: What is minimised.
        regularizer: What is added to it; None for nothing.
        temperature: At which the episodes are drawn.
        seed: Root of this learner's place in the seed tree; deals episodes to mini-batches.
        reference: Frozen policy; needed exactly when ``needs_reference`` says so.
        total_updates: Planned number of updates, for the learning-rate schedule.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnerConfig,
        loss: LossConfig,
        regularizer: RegularizerConfig | None = None,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        reference: PreTrainedModel | None = None,
        total_updates: int = 1,
    ) -> None:
        self._regularizer = regularizer or RegularizerConfig()
        if needs_reference(loss, self._regularizer) and reference is None:
            raise ValueError("kl_coefficient > 0, or a loss with balance, needs a reference policy")
        self.model = model.eval()
        self.config = config
        self.updates = 0
        """Updates done; the version of the weights."""
        self.optimizer = Optimizer(
            model, config, total_steps=total_updates * config.steps_per_batch
        )
        self._loss = loss
        self._temperature = temperature
        self._seed = seed
        self._reference = reference

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Change the weights once for a batch of episodes.

        Args:
            samples: The whole batch. Without any drawn token the weights stay as they are.

        Returns:
            Metrics ``train/*``.

        Raises:
            TrainingError: The loss or a gradient is not finite; the message names the step.
        """
        sums, lr = MetricSums(), self.optimizer.lr
        self.fit(samples, sums)
        return self.finish_update(samples, sums, lr=lr)

    def fit(
        self, samples: Sequence[TrainingSample], sums: MetricSums, *, is_first: bool = True
    ) -> None:
        """Take all optimizer steps of one batch, as a part of an update or as the whole of it.

        Args:
            samples: The batch; nothing happens when no token of it counts.
            sums: Where metrics are added.
            is_first: The weights are still those that the update began with.

        Raises:
            TrainingError: The loss or a gradient is not finite; the message names the step.
        """
        counted = [s for s in samples if s.weight > 0 and s.num_action_tokens]
        if not counted:
            return
        old_logprobs, references = self._old_logprobs(counted), self._references(counted)
        if self._loss.surrogate.type == "balance":
            assert references is not None
            beta = self._loss.surrogate.beta
            counted = with_balanced_advantages(
                counted, self.logprobs(counted), references, beta=beta
            )
        for number, batch in enumerate(self._minibatches(counted)):
            self._step(
                [counted[i] for i in batch],
                None if old_logprobs is None else [old_logprobs[i] for i in batch],
                None if references is None else [references[i] for i in batch],
                sums,
                is_first=is_first and number == 0,
            )

    def finish_update(
        self, samples: Sequence[TrainingSample], sums: MetricSums, *, lr: float
    ) -> dict[str, float]:
        """Count an update that ``fit`` has made, and return its metrics ``train/*``.

        Args:
            samples: The whole batch.
            sums: What ``fit`` added.
            lr: Learning rate that the update began with.
        """
        self.updates += 1
        counted = [s for s in samples if s.weight > 0 and s.num_action_tokens]
        return sums.result() | {
            "train/samples": float(len(counted)),
            "train/tokens": float(sum(sample.num_action_tokens for sample in counted)),
            "train/learning_rate": lr,
        }

    def logprobs(self, samples: Sequence[TrainingSample]) -> Scores:
        """Return the current policy's log-probs of the drawn tokens, one array [L] per sample."""
        return self._score(self.model, samples)

    def _score(self, model: PreTrainedModel, samples: Sequence[TrainingSample]) -> Scores:
        return score(
            model,
            [s.token_ids for s in samples],
            [s.loss_mask for s in samples],
            max_tokens=self.config.microbatch_tokens,
            temperature=self._temperature,
        )

    def _old_logprobs(self, samples: Sequence[TrainingSample]) -> Scores | None:
        """Return the log-probs of the old policy, or None when that is the current one.

        None also for an estimate, which is made with each micro-batch.
        """
        if self._loss.old_policy == "behaviour":
            return [s.behaviour_logprobs for s in samples]
        if self._loss.old_policy in ("current", "estimated") or self.config.steps_per_batch == 1:
            return None
        unbiased_kl = (
            self._regularizer.kl_coefficient > 0 and self._regularizer.kl_estimator == "k3_unbiased"
        )
        corrects = self._loss.correction.is_active
        if not self._loss.surrogate.has_ratio and not unbiased_kl and not corrects:
            return None  # no ratio, so nobody would read them
        return self.logprobs(samples)

    def _references(self, samples: Sequence[TrainingSample]) -> Scores | None:
        if self._reference is None or not needs_reference(self._loss, self._regularizer):
            return None
        return self._score(self._reference, samples)

    def _minibatches(self, samples: Sequence[TrainingSample]) -> Iterator[list[int]]:
        """Yield sample numbers for each optimizer step; segments of an episode stay together."""
        episodes = sorted({sample.trajectory for sample in samples})
        parts = min(self.config.num_minibatches, len(episodes))
        for epoch in range(self.config.num_epochs):
            order = episodes
            if parts > 1:
                rng = generator(self._seed, "minibatches", self.updates, epoch)
                order = [episodes[i] for i in rng.permutation(len(episodes))]
            for part in range(parts):
                chosen = set(order[part::parts])
                yield [i for i, sample in enumerate(samples) if sample.trajectory in chosen]

    def _step(
        self,
        samples: Sequence[TrainingSample],
        old_logprobs: Scores | None,
        references: Scores | None,
        sums: MetricSums,
        *,
        is_first: bool,
    ) -> None:
        """Take one optimizer step on one mini-batch, micro-batch by micro-batch."""
        known = self._known(samples, old_logprobs, references)
        self.optimizer.zero_grad()
        loss, policy, kl, episodes = 0.0, 0.0, 0.0, EpisodeWeights()
        for batch in micro_batches(
            [s.token_ids for s in samples],
            [s.loss_mask for s in samples],
            max_tokens=self.config.microbatch_tokens,
            device=self._device,
        ):
            terms = self._terms(batch, samples, known)
            parts = policy_loss(terms, known.loss, self._regularizer)
            parts.total.backward()  # type: ignore[no-untyped-call]
            loss += parts.total.item()
            policy += parts.policy.item()
            kl += parts.kl.item()
            sums.add_mean("train/clip_fraction", parts.clipped.item(), len(batch.targets_N))
            episodes.add(batch, samples, terms.policy_logprobs)
            self._watch(terms, batch, samples, sums, is_first=is_first)
        scale = episodes.step_scale(self._loss.step_scale)
        norm = self.optimizer.step(loss, where=f"update {self.updates}", scale=scale)
        sums.add_mean("train/effective_share", episodes.effective_share(), 1)
        sums.add_mean("train/loss", loss, 1)
        sums.add_mean("train/policy_loss", policy, 1)
        if references is not None:
            sums.add_mean("train/kl_ref", kl, 1)
        sums.add_mean("train/grad_norm", norm, 1)
        sums.add_mean("train/grad_clipped", float(norm > self.config.grad_clip), 1)

    def _known(
        self,
        samples: Sequence[TrainingSample],
        old_logprobs: Scores | None,
        references: Scores | None,
    ) -> BatchTerms:
        """Return what a step knows before any gradient; a forward pass where that needs one."""
        loss, weights = self._loss, None
        counted = list(samples)
        sequences = sequence_ids(samples) if self._reads_sequences else None
        by_episode = loss.ratio_level not in ("token", "turn") and has_split_episodes(samples)
        current = None
        if loss.needs_current_scores or (by_episode and old_logprobs is not None):
            current = self.logprobs(samples)
        if current is not None and not loss.correction.is_local:
            weights = self._weights(samples, current, old_logprobs)
            if loss.correction.denominator == "kept":
                counted = without_rejected(samples, weights)
        if current is not None and isinstance(loss.surrogate, PpoClip):
            gaps_N = flat(current, samples) - flat(old_logprobs or current, samples)
            clip = solve_clip_bounds(
                loss.surrogate, gaps_N, flat([s.advantages for s in samples], samples)
            )
            loss = loss.model_copy(update={"surrogate": clip})
        split = None
        if current is not None and by_episode and old_logprobs is not None:
            split = episode_log_ratios(samples, current, old_logprobs, loss)
        return BatchTerms(
            loss=loss,
            coefficients=aggregation_coefficients(
                counted, loss.aggregation, constant_length=loss.constant_length
            ),
            old_logprobs=old_logprobs,
            weights=weights,
            references=references,
            sequences=sequences,
            sequence_log_ratios=split,
        )

    def _weights(
        self, samples: Sequence[TrainingSample], current: Scores, old_logprobs: Scores | None
    ) -> list[NDArray[np.float64]]:
        """Return the corrections of a whole mini-batch."""
        logprobs = PolicyLogprobs(
            behaviour=flat([s.behaviour_logprobs for s in samples], samples),
            proximal=flat(old_logprobs or current, samples),
            current=flat(current, samples),
            advantages=flat([s.advantages for s in samples], samples),
            sequences=flat(sequence_ids(samples), samples),
        )
        return unflat(correction_weights(logprobs, self._loss.correction), samples)

    @property
    def _reads_sequences(self) -> bool:
        return self._loss.ratio_level != "token"

    def _terms(
        self, batch: MicroBatch, samples: Sequence[TrainingSample], known: BatchTerms
    ) -> TokenTerms:
        logprobs_N, entropies_N = token_logprobs(
            self.model,
            batch,
            temperature=self._temperature,
            entropy_gradient=self._regularizer.entropy_coefficient > 0,
        )

        def gather(arrays: Sequence[NDArray[np.generic]] | None) -> Tensor | None:
            return None if arrays is None else batch.gather(arrays)

        current_N = logprobs_N.detach()
        old_N = gather(known.old_logprobs)
        if old_N is None:
            old_N = self._estimated_old(current_N, batch, samples)
        advantages_N = batch.gather([s.advantages for s in samples])
        weights_N = gather(known.weights)
        if weights_N is None and self._loss.correction.is_active:
            logprobs = PolicyLogprobs(
                behaviour=batch.gather([s.behaviour_logprobs for s in samples]),
                proximal=old_N,
                current=current_N,
                advantages=advantages_N,
            )
            weights_N = correction_weights(logprobs, self._loss.correction)
        return TokenTerms(
            policy_logprobs=logprobs_N,
            old_logprobs=old_N,
            advantages=advantages_N,
            coefficients=batch.gather(known.coefficients),
            weights=weights_N,
            sequences=gather(known.sequences),
            sequence_log_ratios=gather(known.sequence_log_ratios),
            ref_logprobs=gather(known.references),
            entropies=entropies_N,
        )

    def _estimated_old(
        self, current_N: Tensor, batch: MicroBatch, samples: Sequence[TrainingSample]
    ) -> Tensor:
        """Return old log-probs that were not computed before: current ones, or an estimate."""
        if self._loss.old_policy != "estimated":
            return current_N
        return estimated_old_logprobs(
            current_N,
            batch.gather([s.behaviour_logprobs for s in samples]),
            batch.gather([s.policy_versions for s in samples]),
            self.updates,
        )

    def _watch(
        self,
        terms: TokenTerms,
        batch: MicroBatch,
        samples: Sequence[TrainingSample],
        sums: MetricSums,
        *,
        is_first: bool,
    ) -> None:
        """Add what is looked at but not trained on; gaps only while the weights are unchanged."""
        count = len(batch.targets_N)
        if terms.entropies is not None:
            sums.add_mean("train/entropy", terms.entropies.sum().item(), count)
        if terms.weights is not None:
            sums.add_mean("train/correction_mean", terms.weights.sum().item(), count)
            sums.add_mean("train/rejected_fraction", (terms.weights == 0).sum().item(), count)
        if not is_first:
            return
        behaviour_N = batch.gather([s.behaviour_logprobs for s in samples])
        gaps_N = (terms.policy_logprobs.detach() - behaviour_N).abs()
        sums.add_mean("train/behaviour_gap_mean", gaps_N.sum().item(), count)
        sums.add_max("train/behaviour_gap_max", gaps_N.max().item())
        versions_N = batch.gather([s.policy_versions for s in samples])
        sums.add_mean("train/policy_lag", (self.updates - versions_N).sum().item(), count)

    @property
    def _device(self) -> torch.device:
        weight: Tensor = next(iter(self.model.parameters()))
        return weight.device

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors; the weights are the model's own."""
        return self.optimizer.state()

    def load_state(self, tensors: Mapping[str, Tensor], *, updates: int, steps: int) -> None:
        """Take over what ``state`` returned after ``updates`` updates and ``steps`` steps."""
        self.updates = updates
        self.optimizer.load_state(tensors, steps=steps)


def needs_reference(loss: LossConfig, regularizer: RegularizerConfig) -> bool:
    """Say whether a learner reads the policy that reinforcement started from."""
    return regularizer.kl_coefficient > 0 or loss.surrogate.type == "balance"
