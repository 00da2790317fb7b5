"""Several scorers as one: all of them, or a weighted sum with gates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from turngym.errors import ConfigError
from turngym.tasks.problem import JudgeResult, World

W = TypeVar("W", bound=World)
Scorer = Callable[[W], Awaitable[JudgeResult]]
"""What a judge is made of."""


def all_of(*scorers: Scorer[W]) -> Scorer[W]:
    """Return the scorer that gives the lowest score; those after a 0 are not asked."""

    async def score(world: W) -> JudgeResult:
        lowest = JudgeResult(score=1.0)
        for scorer in scorers:
            found = await scorer(world)
            lowest = min(lowest, found, key=lambda one: one.score)
            if lowest.score == 0:
                break
        return lowest

    return score


def weighted(
    parts: Mapping[str, tuple[float, Scorer[W]]], *, gates: Collection[str] = ()
) -> Scorer[W]:
    """Return the scorer that gives ``sum(weight * score) / sum(weight)``.

    Args:
        parts: Name to weight, above 0, and scorer.
        gates: Parts that must have a score of 1; else the sum is 0.

    Raises:
        ConfigError: A weight is not above 0, or a gate is no part.
    """
    for name, (weight, _) in parts.items():
        if weight <= 0:
            raise ConfigError(f"scorer: part {name!r} has the weight {weight}, wanted more than 0")
    if unknown := sorted(set(gates) - parts.keys()):
        raise ConfigError(f"scorer: gate {unknown[0]!r} is no part; parts: {', '.join(parts)}")
    total = sum(weight for weight, _ in parts.values())

    async def score(world: W) -> JudgeResult:
        found = {name: await scorer(world) for name, (_, scorer) in parts.items()}
        is_open = all(found[name].score == 1 for name in gates)
        value = sum(parts[name][0] * one.score for name, one in found.items()) / total
        amiss = [f"{name}: {one.evidence}" for name, one in found.items() if one.score < 1]
        return JudgeResult(
            score=min(1.0, value) if is_open else 0.0,
            parts={name: one.score for name, one in found.items()},
            evidence="; ".join(amiss),
        )

    return score
