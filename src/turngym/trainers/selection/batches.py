"""Which of the attempts that were compared are trained on, and attempts of the past besides.

Axis letter: G attempts of one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from turngym.trainers.credit.base import Credit
from turngym.trainers.samples import FloatArray, TrainingSample, to_samples
from turngym.trainers.settings.selection import FilterConfig
from turngym.types import Trajectory

EQUAL = 1e-6
"""Values that differ by less are the same: float rewards are not exact."""


def reason_to_drop(
    scores: Sequence[float | None], returns: Sequence[float], config: FilterConfig
) -> str | None:
    """Return why a group is not trained on, or None when it is.

    A group with an unscored attempt is judged by its returns.

    Args:
        scores: Success of the attempts.
        returns: Their returns.
        config: The filter.

    Source:
        Spread: DAPO, arXiv:2503.14476. Mean: balanced online difficulty filtering,
        arXiv:2504.03380.
    """
    if not config.is_active or not returns:
        return None
    judged = [score for score in scores if score is not None]
    values = judged if config.of == "score" and len(judged) == len(scores) else list(returns)
    mean = sum(values) / len(values)
    if config.spread and max(values) - min(values) < EQUAL:
        return "no_spread"
    if config.mean_low is not None and mean < config.mean_low:
        return "too_hard"
    if config.mean_high is not None and mean > config.mean_high:
        return "too_easy"
    return None


def most_varied(values_G: FloatArray, keep: int) -> list[int]:
    """Return the places of the ``keep`` values with the largest variance, in ascending order.

    They are some of the highest and some of the lowest.

    Args:
        values_G: One per attempt of a group.
        keep: How many stay.

    Source:
        D3S, arXiv:2509.22115.
    """
    request = np.argsort(values_G, kind="stable")
    if keep >= len(request):
        return list(range(len(request)))
    best: list[int] = []
    largest = -1.0
    for low in range(keep + 1):
        high = keep - low
        places = [*request[:low].tolist(), *request[len(request) - high :].tolist()]
        spread = float(np.var(values_G[places]))
        if spread > largest + 1e-12:
            best, largest = places, spread
    return sorted(best)


def down_sampled(credit: Credit, keep: int) -> Credit:
    """Return the credit with ``keep`` attempts of each group, those that differ most.

    Advantages stay as they are: the attempts that go were compared with.

    Args:
        credit: Of a batch, one sample or more per attempt.
        keep: Attempts of a group that stay, 2 or more.
    """
    groups: dict[int, list[int]] = {}
    for sample in credit.samples:
        if sample.trajectory not in groups.setdefault(sample.group, []):
            groups[sample.group].append(sample.trajectory)
    means = [float(values_T.mean()) for values_T in credit.advantages]
    kept: set[int] = set()
    for members in groups.values():
        values_G = np.array([means[member] for member in members])
        kept |= {members[place] for place in most_varied(values_G, keep)}
    numbers = {old: new for new, old in enumerate(sorted(kept))}
    trained = sum(map(len, groups.values()))  # others are context, as siblings of late ones are
    return replace(
        credit,
        samples=tuple(
            replace(s, trajectory=numbers[s.trajectory])
            for s in credit.samples
            if s.trajectory in kept
        ),
        trajectories=tuple(credit.trajectories[i] for i in sorted(kept)),
        advantages=tuple(credit.advantages[i] for i in sorted(kept)),
        metrics={**credit.metrics, "selection/attempts_left_out": float(trained - len(kept))},
    )


def with_imitation(
    credit: Credit, trajectories: Sequence[Trajectory], *, baseline: float, weight: float
) -> Credit:
    """Return the credit with samples of attempts that are trained on apart.

    None while the policy waits for what judges it.

    Args:
        credit: Of a batch.
        trajectories: The attempts.
        baseline: Their advantage is what they earned beyond it; where that is not more than 0 they
            are left out.
        weight: Of their loss beside that of the new ones.
    """
    added: list[TrainingSample] = []
    if not credit.samples and credit.dropped.get("warmup"):
        trajectories = ()
    first = 1 + max((sample.trajectory for sample in credit.samples), default=-1)
    for number, trajectory in enumerate(trajectories, start=first):
        advantage = trajectory.episode_return - baseline
        if advantage > 0 and weight > 0:
            values_M = np.full(trajectory.num_sampled_tokens, advantage)
            added += [
                replace(sample, weight=weight, replayed=True)
                for sample in to_samples(trajectory, values_M, index=number)
            ]
    metrics: Mapping[str, float] = {
        **credit.metrics,
        "selection/imitated_attempts": float(len({s.trajectory for s in added})),
        "selection/imitation_weight": weight,
    }
    return replace(credit, samples=(*credit.samples, *added), metrics=metrics)
