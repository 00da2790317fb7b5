"""When a policy begins to learn from a model that learns beside it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turngym.config import StrictModel


class WarmUpSettings(StrictModel):
    """Updates in which a model learns and the policy stays as it is, and what follows.

    Source:
        The stages before the policy's in SPA-RL (arXiv:2505.20732), SWEET-RL (arXiv:2503.15478),
        Digi-Q (arXiv:2502.15760) and offline ArCHer (arXiv:2402.19446).
    """

    warmup_updates: int = Field(default=1, ge=0)
    """Updates in which only the model learns; with 0 it says the same of everything at first. With
    ``warmup_until`` the fewest."""
    warmup_until: float | None = Field(default=None, gt=0, lt=1)
    """The policy waits until the model is this good on what is new, each time judged before the
    model learned from it. What is played meanwhile counts as any other episodes."""
    warmup_window: int = Field(default=64, ge=2)
    """Newest judgements that ``warmup_until`` is about."""
    most_warmup_updates: int = Field(default=64, ge=1)
    """With ``warmup_until``: the policy waits no longer, and a warning says what was reached."""
    warmup_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps per batch while the policy waits; None for ``steps_per_update``."""
    after_warmup: Literal["learn", "freeze"] = "learn"
    """``freeze``: the model stays as it is once the policy learns, as the papers' does."""
