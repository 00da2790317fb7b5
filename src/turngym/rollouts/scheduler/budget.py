"""What one episode may use, and when it is granted more."""

from __future__ import annotations

from turngym.rollouts.scheduler.config import BudgetConfig
from turngym.types import StopReason, Turn


class Allowance:
    """Turns and tokens of one episode.

    At its limit of turns an episode that got ahead since the last grant (its potential rose, or it
    earned a positive reward) gets ``extra_turns`` more, at most ``max_extensions`` times.
    """

    def __init__(self, config: BudgetConfig) -> None:
        self._config = config
        self._limit = config.max_turns
        self._grants = 0
        self._earned = 0.0
        self._best: float | None = None
        self._potential: float | None = None

    @property
    def grants(self) -> int:
        """How often turns were granted."""
        return self._grants

    def spend(self, turn: Turn, *, turns: int, tokens: int) -> StopReason | None:
        """Count a finished turn and return why the episode ends here, or None.

        Args:
            turn: The turn.
            turns: Turns so far, this one included.
            tokens: Drawn tokens so far.
        """
        self._earned += max(0.0, turn.reward)
        self._potential = turn.potential
        if self._best is None:
            self._best = turn.potential
        if self._config.max_tokens is not None and tokens >= self._config.max_tokens:
            return StopReason.TRUNCATED_TOKENS
        if self._limit is None or turns < self._limit or self._extend():
            return None
        return StopReason.TRUNCATED_TURNS

    def _extend(self) -> bool:
        config = self._config
        if not config.extra_turns or self._grants >= config.max_extensions:
            return False
        rose = (
            self._potential is not None and self._best is not None and self._potential > self._best
        )
        if not rose and self._earned <= 0:
            return False
        assert self._limit is not None
        self._limit += config.extra_turns
        self._grants += 1
        self._earned, self._best = 0.0, self._potential
        return True
