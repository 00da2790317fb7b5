"""What settings of reward sources and of advantages say about themselves, and those of the user's.

Each names its ``builder``, so that a reward source or an advantage is one settings class and one
file, ours and a plug-in's alike.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from turngym.config import StrictModel

Need = Literal["anchor", "ground_truth", "potential", "expert_match"]
"""What an environment can give beyond rewards; see ``EnvEntry.provides``."""


class RewardSettings(StrictModel):
    """Base of the settings of a reward source."""

    builder: ClassVar[str]
    """``module:Class`` of the ``RewardSource``, called with the settings and the context."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    """What the environment must give."""
    asks_model: ClassVar[bool] = True
    """Whether the source uses the policy or a model of its own; False for functions of episodes."""


class AdvantageSettings(StrictModel):
    """Base of the settings of an advantage, with what other settings depend on."""

    builder: ClassVar[str]
    """``module:Class`` of the ``CreditMethod``, called as ``Class(settings, algo, context)``."""
    keeps_groups: ClassVar[bool] = False
    """Samples belong to groups, which may be averaged, thinned out and conditioned as such."""

    @property
    def judges_unfinished(self) -> bool:
        """Whether a critic says what the state after an episode's first turns is worth."""
        return False

    @property
    def demonstrations(self) -> int:
        """Episodes of the expert that it learns from."""
        return 0

    @property
    def acts_anew(self) -> bool:
        """Whether each sample is an action that serves one optimizer step alone."""
        return False

    @property
    def components(self) -> frozenset[str]:
        """Reward components that it reads, by the ``type`` of their source."""
        return frozenset({"env"})

    @property
    def compares_attempts(self) -> bool:
        """Whether an attempt is measured by the others of its group."""
        return False

    @property
    def is_per_episode(self) -> bool:
        """Whether all turns of an episode have one advantage."""
        return False

    @property
    def updates_last_turn_first(self) -> bool:
        """Whether one update goes turn by turn, from the last to the first."""
        return False


class CustomReward(StrictModel):
    """A reward for every turn, from a function or a class of your own."""

    builder: ClassVar[str] = "turngym.trainers.credit.custom:custom_source"
    asks_model: ClassVar[bool] = True

    type: Literal["custom"]
    function: str
    """``module:function``, called as ``function(turns, **settings)``; it returns one value per turn
    [N], or a ``RewardComponent`` where some turns have none. A class is made once per run, as
    ``Class(context, **settings)``, is a ``RewardSource`` and may learn."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """More arguments."""
    needs: tuple[Need, ...] = ()
    """What the environment must give."""


class CustomAdvantage(AdvantageSettings):
    """An advantage for every turn, from a function or a class of your own."""

    builder: ClassVar[str] = "turngym.trainers.credit.custom:custom_credit"

    type: Literal["custom"]
    function: str
    """``module:function``, called as ``function(turns, components, **settings)``; it returns one
    value per turn [N]. A class is made once per run, as ``Class(algo, context, **settings)``, is a
    ``CreditMethod`` and may learn."""
    rewards: tuple[str, ...] = ("env",)
    """Reward sources, by ``type``, that it reads."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """More arguments."""
    needs: tuple[Need, ...] = ()
    """What the environment must give."""

    @property
    def components(self) -> frozenset[str]:
        """The rewards that are named."""
        return frozenset(self.rewards)
