"""The settings of the scheduler, and the inequalities without which it could not make progress."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from turngym.config import StrictModel
from turngym.errors import ConfigError

Barrier = Literal["none", "batch", "turn"]
StaleAction = Literal["mask_stale", "drop", "train_partial", "train"]
Interruption = Literal["continue_partial", "drain", "abort_requeue"]
LateAction = Literal["carry", "drop"]


class InOrder(StrictModel):
    """Groups are stamped with the step that trains them, at most ``staleness`` steps ahead.

    Nothing is ever stale, and which groups a step trains does not depend on speed: slow episodes
    are waited for. 0 is synchronous training, 1 the classic one step off.
    """

    type: Literal["in_order"] = "in_order"
    staleness: int = Field(default=0, ge=0)
    """Most versions between a token's weights and the weights that train on it."""


class ReadyFirst(StrictModel):
    """The bound of ``in_order``, but a step takes whatever is ready first, stragglers included."""

    type: Literal["ready_first"] = "ready_first"
    staleness: int = Field(default=1, ge=0)
    """As for ``in_order``; what a straggler exceeds falls under ``stale``."""


class Windowed(StrictModel):
    """No bound but the buffer; a step takes what is ready and was begun inside the window."""

    type: Literal["windowed"] = "windowed"
    staleness: int = Field(default=2, ge=0)
    """Width of the window in versions."""
    pace: bool = True
    """Begin no more than the window can consume (as ``capacity``), instead of throwing it away."""
    freshest: bool = False
    """Take the newest groups first."""


class Capacity(StrictModel):
    """Bounds what is begun: ``(staleness + version + 1) * groups_per_step`` groups in all.

    Source:
        AReaL (Fu et al. 2025, arXiv:2505.24298), section on staleness-aware scheduling; we count
        what was really consumed, so that small batches and resumed runs leave no slack.
    """

    type: Literal["capacity"] = "capacity"
    staleness: int = Field(default=2, ge=0)
    """Their eta; what a straggler exceeds falls under ``stale``."""


AdmissionConfig = Annotated[InOrder | ReadyFirst | Windowed | Capacity, Field(discriminator="type")]


class GroupConfig(StrictModel):
    """When a group is complete."""

    quorum: int | None = Field(default=None, ge=1)
    """Finished attempts that are enough once ``patience`` has run out, and the fewest that are
    trained on when others broke. None: all that did not break, at least 2."""
    patience: float | None = Field(default=None, gt=0)
    """A group with its quorum closes after so many median episode times. None: never early."""
    redundancy: int = Field(default=0, ge=0)
    """Attempts that are begun on top; the slowest are dropped. Favours short episodes."""
    late: LateAction = "carry"
    """What becomes of attempts that end after their group closed: trained in a later step, compared
    with those it closed with, or dropped."""


class RetryConfig(StrictModel):
    """What is done about faults of infrastructure."""

    max_tries: int = Field(default=3, ge=1)
    """Tries of one episode before it is dropped."""
    quarantine_after: int = Field(default=6, ge=1)
    """Faults of the environment on one task, after which its attempts are not tried again."""


class FailureConfig(StrictModel):
    """When there are too many faults to go on."""

    window: int = Field(default=200, ge=1)
    """Tries that are looked back on."""
    fraction: float = Field(default=0.2, ge=0, le=1)
    """The run stops when more of them than this ended by a fault; of a full window, or, where
    nothing else happened, of as many as are alive at once and at least 20."""


class BudgetConfig(StrictModel):
    """What one episode may use."""

    max_turns: int | None = Field(default=None, ge=1)
    """Turns; None for the environment's own limit alone."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens; checked after each turn."""
    extra_turns: int = Field(default=0, ge=0)
    """Turns granted at the limit to an episode that got ahead since the last grant: its potential
    rose, or it earned a reward."""
    max_extensions: int = Field(default=1, ge=0)
    """Most grants for one episode."""


class DeadlineConfig(StrictModel):
    """Seconds that one call may take; past it the call is a fault. None for no limit."""

    reset_s: float | None = Field(default=None, gt=0)
    """Of a reset."""
    act_s: float | None = Field(default=None, gt=0)
    """Of one action of the policy."""
    step_s: float | None = Field(default=None, gt=0)
    """Of one step of the environment."""
    close_s: float = Field(default=10.0, gt=0)
    """Closing an environment; past it, it is abandoned."""


class WorkersConfig(StrictModel):
    """Workers on Ray's nodes that hold the environments of ``rollout.isolation="ray"``."""

    resource: str = "environments"
    """Label of the nodes: ``ray start --resources='{"environments": 8}'``."""
    amount: float = Field(default=1.0, gt=0)
    """How much of it a worker takes. It has one event loop, and so at most one core."""
    number: int | None = Field(default=None, ge=1)
    """How many workers; None for as many as nodes have room for."""
    isolation: Literal["inline", "thread", "process"] = "inline"
    """Where environments that compute run in a worker; those that block get threads of their
    own."""
    patience_s: float = Field(default=120.0, gt=0)
    """For a worker to come up. While none answers, an episode waits so long before it is a
    fault."""


class PlayConfig(StrictModel):
    """How episodes are played, for training, evaluation and simulation alike."""

    concurrency: int = Field(default=128, ge=1)
    """Episodes alive at once."""
    groups_per_step: int = Field(default=16, ge=1)
    """Groups, each of one task, that one update consumes."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Wall-clock limit of one episode in seconds, past which it is truncated, or a fault where it
    has not begun; makes results depend on the machine's speed."""
    interruption: Interruption = "continue_partial"
    """What new weights do to running episodes: they go on and their tokens carry two versions; they
    are waited for; or they are stopped between two turns, and resumed where they stood."""
    oversampling: float = Field(default=1.0, ge=1)
    """Groups started for each one needed. Favours short episodes."""
    buffer_groups: int | None = Field(default=None, ge=1)
    """Most groups that are running or wait to be trained on; None for what the admission needs."""
    group: GroupConfig = GroupConfig()
    retry: RetryConfig = RetryConfig()
    failures: FailureConfig = FailureConfig()
    budget: BudgetConfig = BudgetConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    watchdog_s: float | None = Field(default=120.0, gt=0)
    """Seconds without any event, after which the stacks of the stuck tasks are logged."""
    keep_packed: int = Field(default=256, ge=1)
    """Groups waiting to be trained on that stay in memory; with a ledger the rest is read back."""


class SchedulerConfig(PlayConfig):
    """How a scheduler plays episodes while a trainer consumes them."""

    barrier: Barrier = "none"
    """``none``: a free slot is filled at once. ``batch``: when all slots are free. ``turn``: and
    all episodes take their turns together. The last two exist to be compared with."""
    admission: AdmissionConfig = InOrder()
    stale: StaleAction = "mask_stale"
    """What becomes of tokens older than the bound: the turns before the last stale one are context
    only, or the episode is dropped; ``train_partial`` trains the finished turns of a running
    episode just before they get too old; ``train`` lifts the bound."""

    @property
    def groups_started(self) -> int:
        """Groups that are begun for one step."""
        return math.ceil(self.groups_per_step * self.oversampling - 1e-9)

    @property
    def buffer(self) -> int:
        """Most groups that are running or waiting."""
        return self.buffer_groups or self.required_buffer

    @property
    def required_buffer(self) -> int:
        """Groups that the admission rule needs room for."""
        return self.groups_started * (self.admission.staleness + 1)

    @property
    def bound(self) -> int | None:
        """Most versions between a trained token and its trainer; None where it was lifted."""
        return None if self.stale == "train" else self.admission.staleness


def check_schedule(config: SchedulerConfig, group_size: int) -> None:
    """Make sure that a run with these settings can go on for ever.

    Args:
        config: The settings.
        group_size: Attempts of the smallest group.

    Raises:
        ConfigError: It cannot; the message names the inequality that fails.
    """
    quorum = config.group.quorum
    if quorum is not None and quorum > group_size:
        raise ConfigError(
            f"scheduler: no group would ever close: wanted group.quorum <= group_size, got "
            f"{quorum} > {group_size} of the smallest group"
        )
    if config.group.patience is not None and quorum is None:
        raise ConfigError("scheduler: group.patience needs group.quorum, how many are enough")
    needed = config.groups_started if config.admission.type == "windowed" else None
    needed = needed if needed is not None else config.required_buffer
    if config.buffer_groups is not None and config.buffer_groups < needed:
        staleness = config.admission.staleness
        raise ConfigError(
            f"scheduler: admission {config.admission.type!r} needs buffer_groups >= "
            f"groups_per_step * oversampling * (staleness + 1) = {needed}, got "
            f"{config.buffer_groups} (staleness {staleness})"
            if needed == config.required_buffer
            else f"scheduler: a step needs buffer_groups >= groups_per_step * oversampling = "
            f"{needed}, got {config.buffer_groups}"
        )
    if config.stale == "train_partial" and config.admission.type == "in_order":
        raise ConfigError(
            "scheduler: stale='train_partial' does nothing with admission.type='in_order', under "
            "which no token gets stale; use 'ready_first', 'windowed' or 'capacity'"
        )
    if config.budget.extra_turns and config.budget.max_turns is None:
        raise ConfigError("scheduler: budget.extra_turns extends budget.max_turns, which is None")
