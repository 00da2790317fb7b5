"""How much each sampled token counts in a loss, fixed by a whole batch before any backward pass.

Axis letters: L position in a sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import Aggregation


def aggregation_coefficients(
    samples: Sequence[TrainingSample],
    mode: Aggregation,
    *,
    constant_length: int | None = None,
) -> list[NDArray[np.float32]]:
    """Return what each token's loss is multiplied with before everything is summed.

    With L_i sampled tokens in episode i (over all its segments) and B episodes that have any:
    ``token_mean`` 1/ΣL_j; ``seq_mean_token_mean`` 1/(B·L_i); ``seq_mean_token_sum`` 1/B;
    ``seq_mean_token_sum_const`` 1/(B·S); ``prompt_mean`` 1/(number of groups · tokens of the
    group); ``turn_mean`` 1/(number of turns · tokens of the turn). Samples of weight 0 count
    nowhere; other weights multiply the result. Replayed samples are counted apart from the others.

    Args:
        samples: One whole optimizer batch, never a part of one.
        mode: The aggregation.
        constant_length: S, for ``seq_mean_token_sum_const``.

    Returns:
        One array [L] per sample, 0 where ``loss_mask`` is False; all 0 when nothing was sampled.

    Raises:
        ValueError: ``prompt_mean`` meets a sample that belongs to no group.

    Source:
        GRPO arXiv:2402.03300 (seq_mean_token_mean), DAPO arXiv:2503.14476 (token_mean),
        Dr. GRPO arXiv:2503.20783 (seq_mean_token_sum_const), ScaleRL (prompt_mean).
    """
    counted = [s for s in samples if s.weight > 0 and s.num_action_tokens]
    if mode == "prompt_mean" and any(s.group < 0 for s in counted):
        raise ValueError("aggregation='prompt_mean' needs samples that say their group, got -1")
    counts = {
        replayed: _Counts.of([s for s in counted if s.replayed == replayed])
        for replayed in (False, True)
    }
    results = [np.zeros(sample.token_ids.shape, dtype=np.float32) for sample in samples]
    for sample, result in zip(samples, results, strict=True):
        if sample.weight > 0 and sample.num_action_tokens:
            sizes = counts[sample.replayed].sizes(sample, mode, constant_length or 1)
            result[sample.loss_mask] = sample.weight / sizes
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Drawn tokens of a batch, by episode, by group and by turn."""

    episodes: Counter[int] = field(default_factory=Counter)
    groups: Counter[int] = field(default_factory=Counter)
    turns: Counter[tuple[int, int]] = field(default_factory=Counter)

    @classmethod
    def of(cls, samples: Sequence[TrainingSample]) -> _Counts:
        counts = cls()
        for sample in samples:
            counts.episodes[sample.trajectory] += sample.num_action_tokens
            counts.groups[sample.group] += sample.num_action_tokens
            for turn in sample.turn_ids[sample.loss_mask].tolist():
                counts.turns[sample.trajectory, turn] += 1
        return counts

    def sizes(
        self, sample: TrainingSample, mode: Aggregation, constant_length: int
    ) -> float | NDArray[np.float64]:
        """Return by what the loss of the sample's sampled tokens is divided."""
        match mode:
            case "token_mean":
                return float(self.episodes.total())
            case "seq_mean_token_mean":
                return float(len(self.episodes) * self.episodes[sample.trajectory])
            case "seq_mean_token_sum" | "seq_mean_token_sum_const":
                return float(len(self.episodes) * constant_length)
            case "prompt_mean":
                return float(len(self.groups) * self.groups[sample.group])
            case "turn_mean":
                turns = sample.turn_ids[sample.loss_mask].tolist()
                tokens = [self.turns[sample.trajectory, turn] for turn in turns]
                return len(self.turns) * np.array(tokens, dtype=np.float64)
