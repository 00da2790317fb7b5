"""Settings of what is played and what of it is trained on."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel
from turngym.custom import CustomPart


class SelectionPart(StrictModel):
    """Base of the settings of a sampler, a budget, a replay or a condition."""

    builder: ClassVar[str | None] = None
    """``module:attribute`` of the class or function that does it; None where nothing is to do."""
    returns_to_tasks: ClassVar[bool] = False
    """Whether it makes sense only where tasks come back."""
    repeats_episodes: ClassVar[bool] = False
    """Whether an environment must begin the same each time that a task comes back."""


class Uniform(SelectionPart):
    """Every task in turn."""

    builder: ClassVar[str | None] = "turngym.trainers.selection.samplers:UniformSampler"

    type: Literal["uniform"] = "uniform"


class Thompson(SelectionPart):
    """The tasks that are likely to tell attempts apart (VADE).

    Success at each task is sampled from its posterior, and tasks are taken in the order
    of how informative a group would be if the sample were true.
    """

    builder: ClassVar[str | None] = "turngym.trainers.selection.samplers:ThompsonSampler"
    returns_to_tasks: ClassVar[bool] = True

    type: Literal["thompson"]
    score: Literal["informative", "variance"] = "informative"
    """``1 - p^n - (1 - p)^n``, the chance that n attempts differ, or ``p·(1 - p)``."""


class Bandit(SelectionPart):
    """Categories of tasks as arms of a bandit, which pay the size of the advantages (SEC)."""

    builder: ClassVar[str | None] = "turngym.trainers.selection.samplers:BanditSampler"
    returns_to_tasks: ClassVar[bool] = True

    type: Literal["bandit"]
    by: str = "difficulty"
    """Category of a task: ``difficulty`` for equal parts of the estimated success, or the name of
    one of the task's parameters."""
    parts: int = Field(default=5, ge=2)
    """Number of parts of ``difficulty``."""
    rate: float = Field(default=0.5, gt=0, le=1)
    """How much of an arm's value a new group replaces."""
    temperature: float = Field(default=0.4, gt=0)
    """Arms are sampled with probabilities ``softmax(value / temperature)``."""


class CustomSampler(CustomPart, SelectionPart):
    """A sampler of your own."""

    part: ClassVar[str] = "custom sampler"
    builder: ClassVar[str | None] = "turngym.trainers.selection.samplers:OwnSampler"

    type: Literal["custom"]
    function: str
    """``module:Class``, made once per run as ``Class(tasks, **settings)``, with the methods of
    ``UniformSampler``, which may be its base; ``tasks`` is a ``SampledTasks``."""


SamplerConfig = Annotated[Uniform | Thompson | Bandit | CustomSampler, Field(discriminator="type")]


class FixedBudget(SelectionPart):
    """``rollout.group_size`` attempts at each task."""

    builder: ClassVar[str | None] = "turngym.trainers.selection.policy:fixed"

    type: Literal["fixed"] = "fixed"


class _SharedBudget(SelectionPart):
    least: int = Field(default=2, ge=2)
    """Fewest attempts at a task."""
    most: int = Field(default=32, ge=2)
    """Most attempts at a task."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"budget: least={self.least} must not be more than most={self.most}")
        return self


class VarianceBudget(_SharedBudget):
    """Attempts in proportion to the estimated standard deviation of success (GDRO)."""

    builder: ClassVar[str | None] = "turngym.trainers.selection.policy:by_variance"
    returns_to_tasks: ClassVar[bool] = True

    type: Literal["variance"]


class ConfidenceBudget(_SharedBudget):
    """Attempts one by one to the task whose success would become clearer by most (XRPO)."""

    builder: ClassVar[str | None] = "turngym.trainers.selection.policy:by_confidence"
    returns_to_tasks: ClassVar[bool] = True

    type: Literal["confidence"]
    bonus: float = Field(default=0.1, ge=0)
    """Weight of ``sqrt(log(1 + all attempts) / attempts at this task)``."""


BudgetConfig = Annotated[
    FixedBudget | VarianceBudget | ConfidenceBudget, Field(discriminator="type")
]


class FilterConfig(StrictModel):
    """Which finished groups are trained on. Those that are not still teach how hard a task is."""

    spread: bool = False
    """Only groups whose members differ (DAPO's dynamic sampling)."""
    mean_low: float | None = Field(default=None, ge=0, le=1)
    """Only groups whose mean is at least this (online difficulty filtering)."""
    mean_high: float | None = Field(default=None, ge=0, le=1)
    """Only groups whose mean is at most this."""
    of: Literal["score", "return"] = "score"
    """What is looked at: success, or the return with everything that was paid for on the way."""
    max_rounds: int = Field(default=10, ge=1)
    """Groups played for one update, at most, in units of ``rollout.groups_per_step``. After that
    the update is made with what was kept."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = self.mean_low, self.mean_high
        if low is not None and high is not None and low > high:
            raise ValueError(f"filter: mean_low={low:g} must not be more than mean_high={high:g}")
        return self

    @property
    def is_active(self) -> bool:
        """Whether any group may be dropped."""
        return self.spread or self.mean_low is not None or self.mean_high is not None


class NoReplay(SelectionPart):
    """Nothing of the past."""

    type: Literal["none"] = "none"


class SuccessReplay(SelectionPart):
    """Earlier successes join new groups of the same task, and are compared with them (RLEP)."""

    builder: ClassVar[str | None] = "turngym.trainers.selection.past:SuccessReplayer"
    returns_to_tasks: ClassVar[bool] = True
    repeats_episodes: ClassVar[bool] = True

    type: Literal["successes"]
    per_group: int = Field(default=2, ge=1)
    """Successes that join a group, as far as there are any."""
    per_task: int = Field(default=8, ge=1)
    """Newest successes that are kept of each task."""
    max_age: int | None = Field(default=None, ge=1)
    """Updates after which a success is forgotten; None for never."""


class Imitation(SelectionPart):
    """Earlier attempts that beat the median of recent groups are trained on again (SPEAR).

    Their advantage is their return less that median, and their loss is added with a weight that
    rises from 0 to 1.
    """

    builder: ClassVar[str | None] = "turngym.trainers.selection.past:SelfImitation"

    type: Literal["imitation"]
    capacity: int = Field(default=512, ge=1)
    """Attempts in the buffer."""
    per_step: int = Field(default=32, ge=1)
    """Attempts that one update trains on again, at most."""
    max_age: int = Field(default=5, ge=1)
    """Updates after which an attempt is forgotten."""
    warmup: int = Field(default=200, ge=1)
    """Updates over which the weight rises, along half a cosine."""
    history: int = Field(default=10240, ge=1)
    """Groups whose means give the median."""


ReplayConfig = Annotated[NoReplay | SuccessReplay | Imitation, Field(discriminator="type")]


class NoCondition(SelectionPart):
    """Every episode begins at its beginning."""

    type: Literal["none"] = "none"


class PrefixCondition(SelectionPart):
    """Some groups begin where the first actions of an earlier success have led.

    The actions are carried out again in the environment and shown to the policy; they are never
    trained on. Such groups are compared among themselves and do not count for difficulty.
    """

    builder: ClassVar[str | None] = "turngym.trainers.selection.past:Prefixer"
    returns_to_tasks: ClassVar[bool] = True
    repeats_episodes: ClassVar[bool] = True

    type: Literal["prefix"]
    share: float = Field(default=0.5, gt=0, le=1)
    """Part of the groups, where a success is known."""
    below: float = Field(default=0.5, gt=0, le=1)
    """Only tasks whose estimated success is less; 1 for all."""
    cut: Literal["random", "staged"] = "random"
    """How many of the actions: any number (PrefixRL), or a part that gets smaller stage by stage as
    success holds up (JSRL)."""
    stages: int = Field(default=10, ge=1)
    """``staged``: number of stages, from nearly all to none."""
    tolerance: float = Field(default=0.05, ge=0, lt=1)
    """``staged``: the next stage comes when the mean of the last groups is at least
    ``(1 - tolerance)`` of the best that it was."""
    window: int = Field(default=16, ge=1)
    """``staged``: number of last groups."""
    until: int | None = Field(default=None, ge=1)
    """Group number from which on no group is conditioned; the share falls to 0 on the way. A policy
    that only ever begins in the middle comes to depend on it. None for never."""


ConditionConfig = Annotated[NoCondition | PrefixCondition, Field(discriminator="type")]


class SelectionConfig(StrictModel):
    """Which tasks are played, how often, and what of it is trained on."""

    sampler: SamplerConfig = Uniform()
    """Which tasks."""
    budget: BudgetConfig = FixedBudget()
    """How many attempts at each; on average ``rollout.group_size``."""
    filter: FilterConfig = FilterConfig()
    """Which groups are trained on; dropped ones are replaced."""
    keep_attempts: int | None = Field(default=None, ge=2)
    """Train on these many attempts of each group, those whose advantages differ most (D3S); what
    they are compared with are all. None for all."""
    replay: ReplayConfig = NoReplay()
    """What of the past is trained on besides."""
    condition: ConditionConfig = NoCondition()
    """Whether groups may begin where an earlier success has led."""
    decay: float = Field(default=0.2, ge=0, lt=1)
    """Part of what is known of a task's success that a new group replaces."""
    drift: float = Field(default=0.02, ge=0, lt=1)
    """Part of it that is forgotten with every update."""

    @property
    def is_plain(self) -> bool:
        """Whether it is the same as no selection at all."""
        return self == SelectionConfig(decay=self.decay, drift=self.drift)

    @property
    def returns_to_tasks(self) -> bool:
        """Whether it makes sense only where tasks come back."""
        return any(part.returns_to_tasks for part in self._parts)

    @property
    def repeats_episodes(self) -> bool:
        """Whether an environment must begin the same each time that a task comes back."""
        return any(part.repeats_episodes for part in self._parts)

    @property
    def _parts(self) -> tuple[SelectionPart, ...]:
        return (self.sampler, self.budget, self.replay, self.condition)
