"""How many turns an episode has, and how that is told and extended.

*Fixed*: so many turns, untold. *Reminders*: every observation says how many are left. *Dynamic*:
few turns at first; who has not submitted when they are spent gets an extension. Time and tokens are
limited by ``turngym.environments.gym.wrappers`` and by ``rollout``.
"""

from __future__ import annotations

from dataclasses import dataclass

from turngym.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Turns of one episode. An action that was not understood is a turn, too."""

    turns: int = 30
    is_told: bool = True
    """Say after every turn how many are left."""
    extensions: int = 0
    """How often more turns are granted to who has not submitted yet."""
    extension_turns: int = 10

    def __post_init__(self) -> None:
        for name, least in (("turns", 1), ("extensions", 0), ("extension_turns", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"budget.{name}: wanted at least {least}, got {getattr(self, name)}"
                )

    @property
    def most(self) -> int | None:
        """Turns with all extensions; None when they are not told."""
        return self.turns + self.extensions * self.extension_turns if self.is_told else None

    def left(self, turns: int, extended: int) -> int:
        """Return the turns that are left after ``turns`` and so many extensions."""
        return self.turns + extended * self.extension_turns - turns

    def told(self, left: int) -> str:
        """Return what an observation says about the turns that are left."""
        return f"\n[{left} turns left]" if self.is_told else ""
