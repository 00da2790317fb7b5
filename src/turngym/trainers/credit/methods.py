"""From settings to a credit method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turngym.trainers.credit.base import CreditContext, CreditMethod
from turngym.trainers.settings.critics import Archer, BestOfN, Gae
from turngym.trainers.settings.custom import CustomAdvantage

if TYPE_CHECKING:
    from turngym.trainers.settings.train import AlgoConfig


def build_credit(algo: AlgoConfig, context: CreditContext) -> CreditMethod:
    """Return the method that ``algo`` describes.

    Args:
        algo: The settings.
        context: What the method may use.
    """
    if isinstance(algo.advantage, Gae):
        from turngym.trainers.credit.critics.gae import GaeCredit

        return GaeCredit(algo, context)
    if isinstance(algo.advantage, Archer):
        from turngym.trainers.credit.critics.archer import ArcherCredit

        return ArcherCredit(algo, context)
    if isinstance(algo.advantage, BestOfN):
        from turngym.trainers.credit.critics.best_of_n import BestOfNCredit

        return BestOfNCredit(algo, context)
    if isinstance(algo.advantage, CustomAdvantage):
        from turngym.trainers.credit.custom import custom_credit

        return custom_credit(algo, context)
    from turngym.trainers.credit.group.group_relative import GroupRelativeCredit

    return GroupRelativeCredit(algo, context)
