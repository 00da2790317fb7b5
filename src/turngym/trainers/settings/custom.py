"""Settings of credit that the user wrote: a Python function by name."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from turngym.config import StrictModel

Need = Literal["anchor", "ground_truth", "potential", "expert_match"]
"""What an environment can give beyond rewards; see ``EnvEntry.provides``."""


class CustomReward(StrictModel):
    """A reward for every turn, from a function or a class of your own."""

    type: Literal["custom"]
    function: str
    """``module:function``, called as ``function(turns, **settings)``; it returns one value per turn
    [N], or a ``Channel`` where some turns have none. A class is made once per run, as
    ``Class(context, **settings)``, is a ``ChannelSource`` and may learn."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """More arguments."""
    needs: tuple[Need, ...] = ()
    """What the environment must give."""


class CustomAdvantage(StrictModel):
    """An advantage for every turn, from a function or a class of your own."""

    type: Literal["custom"]
    function: str
    """``module:function``, called as ``function(turns, channels, **settings)``; it returns one
    value per turn [N]. A class is made once per run, as ``Class(algo, context, **settings)``, is a
    ``CreditMethod`` and may learn."""
    rewards: tuple[str, ...] = ("env",)
    """Channels, by ``type``, that it reads."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """More arguments."""
    needs: tuple[Need, ...] = ()
    """What the environment must give."""
