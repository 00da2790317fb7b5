"""Every credit method by the ``type`` of its settings, and what it needs of an environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from turngym.trainers.credit.critic_config import Archer, BestOfN, Gae
from turngym.trainers.credit.group_config import GroupRelative
from turngym.trainers.credit.reward_config import RewardConfig

AdvantageConfig = Annotated[
    GroupRelative | Gae | Archer | BestOfN, Field(discriminator="type")
]

Need = Literal["anchor", "ground_truth", "potential", "expert_match"]
"""What an environment can give beyond rewards; see ``EnvEntry.provides``."""

_CHANNEL_NEEDS: dict[str, Need] = {
    "info_gain": "ground_truth",
    "privileged": "ground_truth",
    "potential": "potential",
}


def used_channels(advantage: AdvantageConfig) -> set[str]:
    """Return the reward channels that a method reads."""
    if isinstance(advantage, GroupRelative):
        return {name for term in advantage.terms for name in term.rewards}
    return set(advantage.rewards) if isinstance(advantage, Gae) else {"env"}


def needs_of(rewards: Sequence[RewardConfig], advantage: AdvantageConfig) -> list[Need]:
    """Return what a method needs of its environment, sorted."""
    found: set[Need] = {_CHANNEL_NEEDS[r.type] for r in rewards if r.type in _CHANNEL_NEEDS}
    if isinstance(advantage, GroupRelative):
        found |= _group_needs(advantage)
    return sorted(found)


def _group_needs(advantage: GroupRelative) -> Iterable[Need]:
    for term in advantage.terms:
        if term.group_by in ("anchor", "history"):
            yield "anchor"
        if term.returns == "segmented":
            yield "expert_match"
