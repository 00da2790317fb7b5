"""Every credit method by the ``type`` of its settings, and what it needs of an environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from turngym.trainers.settings.critics import Archer, BestOfN, Gae
from turngym.trainers.settings.custom import CustomAdvantage, CustomReward, Need
from turngym.trainers.settings.group import GroupRelative
from turngym.trainers.settings.rewards import RewardConfig

AdvantageConfig = Annotated[
    GroupRelative | Gae | Archer | BestOfN | CustomAdvantage, Field(discriminator="type")
]

_CHANNEL_NEEDS: dict[str, Need] = {
    "info_gain": "ground_truth",
    "privileged": "ground_truth",
    "potential": "potential",
}


def used_channels(advantage: AdvantageConfig) -> set[str]:
    """Return the reward channels that a method reads."""
    if isinstance(advantage, GroupRelative):
        return {name for t in advantage.terms for name in (*t.rewards, *t.immediate)}
    if isinstance(advantage, Gae | CustomAdvantage):
        return set(advantage.rewards)
    return {"env"}


def needs_of(rewards: Sequence[RewardConfig], advantage: AdvantageConfig) -> list[Need]:
    """Return what a method needs of its environment, sorted."""
    found: set[Need] = {_CHANNEL_NEEDS[r.type] for r in rewards if r.type in _CHANNEL_NEEDS}
    if isinstance(advantage, GroupRelative):
        found |= set(_group_needs(advantage))
    for part in (*rewards, advantage):
        if isinstance(part, CustomReward | CustomAdvantage):
            found |= set(part.needs)
    return sorted(found)


def _group_needs(advantage: GroupRelative) -> Iterable[Need]:
    for term in advantage.terms:
        if term.group_by in ("state", "history"):
            yield "anchor"
        if term.returns == "segmented":
            yield "expert_match"
