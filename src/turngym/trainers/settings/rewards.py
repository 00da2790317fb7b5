"""Settings of reward sources, and what those and settings of advantages say about themselves.

Each names its ``builder``, so that a reward source or an advantage is one settings class and one
file, ours and a plug-in's alike.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from turngym.config import StrictModel
from turngym.custom import CustomPart


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


Need = Literal["state_key", "ground_truth", "potential", "expert_match"]
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
    returns_to_tasks: ClassVar[bool] = False
    """It learns of tasks, and makes sense only where they come back."""
    replays: ClassVar[bool] = False
    """Samples are single turns out of a buffer, and not the episodes of the batch."""
    acts_anew: ClassVar[bool] = False
    """Each sample is an action that serves one optimizer step alone."""

    @property
    def judges_unfinished(self) -> bool:
        """Whether a critic says what the state after an episode's first turns is worth."""
        return False

    @property
    def demonstrations(self) -> int:
        """Episodes of the expert that it learns from."""
        return 0

    @property
    def components(self) -> frozenset[str]:
        """Reward components that it reads, by the ``type`` of their source: its ``rewards``."""
        return frozenset(getattr(self, "rewards", ("env",)))

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


class CustomReward(CustomPart):
    """A reward for every turn, from a function or a class of your own."""

    part: ClassVar[str] = "custom reward"
    may_wait: ClassVar[bool] = True
    builder: ClassVar[str] = "turngym.trainers.credit.custom:custom_source"
    asks_model: ClassVar[bool] = True

    type: Literal["custom"]
    function: str
    """``module:function``, called as ``function(turns, **settings)``, plain or ``async``; returns
    one value per turn [N], or a ``RewardComponent`` where some turns have none. A class is made
    once per run, as ``Class(context, **settings)``, is a ``RewardSource`` and may learn."""
    needs: tuple[Need, ...] = ()
    """What the environment must give."""


class CustomAdvantage(CustomPart, AdvantageSettings):
    """An advantage for every turn, from a function or a class of your own."""

    part: ClassVar[str] = "custom advantage"
    given: ClassVar[int] = 2
    may_wait: ClassVar[bool] = True
    builder: ClassVar[str] = "turngym.trainers.credit.custom:custom_credit"

    type: Literal["custom"]
    function: str
    """``module:function``, called as ``function(turns, components, **settings)``, plain or
    ``async``; it returns one value per turn [N]. A class is made once per run, as
    ``Class(algo, context, **settings)``, is a ``CreditMethod`` and may learn."""
    rewards: tuple[str, ...] = ("env",)
    """Reward sources, by ``type``, that it reads."""
    needs: tuple[Need, ...] = ()
    """What the environment must give."""


class EnvReward(RewardSettings):
    """What the environment paid for each turn."""

    builder: ClassVar[str] = "turngym.trainers.credit.sources.reward_sources:EnvSource"
    asks_model: ClassVar[bool] = False

    type: Literal["env"] = "env"
    part: str | None = None
    """Only this named part of the reward; None for all of it."""


class OutcomeReward(RewardSettings):
    """The whole return of an episode, on its last turn alone; other turns have no value."""

    builder: ClassVar[str] = "turngym.trainers.credit.sources.reward_sources:OutcomeSource"
    asks_model: ClassVar[bool] = False

    type: Literal["outcome"]


class RewardParts(RewardSettings):
    """Each named part of the environment's reward as a component of its own, summed per episode."""

    builder: ClassVar[str] = "turngym.trainers.credit.sources.reward_sources:PartsSource"
    asks_model: ClassVar[bool] = False

    type: Literal["parts"]


class InvalidPenalty(RewardSettings):
    """Minus ``penalty`` on a turn whose action could not be carried out."""

    builder: ClassVar[str] = "turngym.trainers.credit.sources.reward_sources:InvalidSource"
    asks_model: ClassVar[bool] = False

    type: Literal["invalid"]
    penalty: float = Field(default=0.1, ge=0)
    """In units of reward."""


class FlawPenalty(RewardSettings):
    """Minus ``penalty`` on the last turn of a success in which an action could not be carried out.

    Source:
        FAPO, arXiv:2510.22543, where a model finds the flaw in a right answer.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.sources.reward_sources:FlawSource"
    asks_model: ClassVar[bool] = False

    type: Literal["flawed"]
    penalty: float = Field(default=0.5, ge=0)
    """In units of reward; half a success puts it half way between success and failure."""
    above: float = 0.0
    """An episode whose return is more than this is a success."""


class LengthPenalty(RewardSettings):
    """Minus a price for each sampled token, on the last turn: the easier the task, the higher.

    With p the share of the group's attempts that succeeded and K their number an attempt of L
    tokens pays ``price * L * max(p, 1 / K)``.

    Source:
        ALP, arXiv:2506.05256.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.sources.reward_sources:LengthSource"
    asks_model: ClassVar[bool] = False

    type: Literal["length"]
    price: float = Field(default=1e-5, ge=0)
    """Reward per token where all attempts succeed."""
    above: float = 0.5
    """An episode whose return is more than this is a success."""


class PotentialShaping(RewardSettings):
    """``gamma * potential(next state) - potential(state)``; leaves the best policy as it is.

    Needs an environment that gives ``info["potential"]``. A terminal state has potential 0.

    Source:
        Ng, Harada and Russell 1999, ICML.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.sources.reward_sources:PotentialSource"
    needs: ClassVar[frozenset[Need]] = frozenset({"potential"})
    asks_model: ClassVar[bool] = False

    type: Literal["potential"]
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn; the best policy stays the best when returns have the same."""


class InfoGain(RewardSettings):
    """How much a turn raised the policy's own likelihood of the true answer.

    Needs an environment that gives ``info["ground_truth"]`` and ``info["answer"]``, the action that
    states it. The last turn has no value.

    Source:
        IGPO, arXiv:2510.14967.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.sources.gains:InfoGainSource"
    needs: ClassVar[frozenset[Need]] = frozenset({"ground_truth"})

    type: Literal["info_gain"]
    form: Literal["prob_diff", "log_prob_diff"] = "log_prob_diff"
    """Growth of the geometric-mean probability of the answer's tokens, or of its logarithm."""
    shuffled: bool = False
    """Ablation: the values of a batch are dealt out anew among its turns."""


class FeedbackGain(RewardSettings):
    """How much the answer to a turn changed what the policy did next.

    Mean log-ratio of the next action with the real feedback and with a placeholder in its place.

    Source:
        InfoPO, arXiv:2603.00656.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.sources.gains:FeedbackGainSource"

    type: Literal["feedback_gain"]
    placeholder: str = "No information found."
    """Cut to the length of the feedback in tokens, or filled up with its last token."""


class Progress(RewardSettings, WarmUpSettings):
    """Contributions of a learned estimator that sum to its prediction of the outcome.

    ``warmup_until`` is a correlation of predictions and outcomes, of ``warmup_window`` episodes.

    Source:
        SPA-RL, arXiv:2505.20732.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.sources.progress:ProgressSource"

    type: Literal["progress"]
    contribution_weight: float = 1.0
    """alpha: weight of a turn's contribution."""
    grounding_weight: float = 0.5
    """beta: paid for an action that could be carried out."""
    body: Literal["policy", "small"] = "policy"
    """What the estimator starts as: a copy of the policy's body as it is in the first update, or a
    transformer of two layers from scratch, for a policy that is too large to copy."""
    constant: bool = False
    """Ablation: every turn contributes the outcome divided by the number of turns."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of the estimator."""
    steps_per_update: int = Field(default=8, ge=1)
    """Optimizer steps of the estimator per batch of episodes."""
    batch_episodes: int = Field(default=32, ge=1)
    """Episodes per optimizer step, sampled from the buffer."""
    buffer_episodes: int = Field(default=1024, ge=1)
    """Newest finished episodes that it learns from."""
    demonstrations: int = Field(default=0, ge=0)
    """Episodes of the expert that the estimator learns from besides, from the first update on."""
    reads: int | None = Field(default=None, ge=1)
    """Most tokens that it reads of an episode, up to the end of the action; None for all there are,
    as the paper's does. Where the last observation says what the action is worth, a reader of more
    may put into one turn what others did: all sums are the same to it."""


class Privileged(RewardSettings, WarmUpSettings):
    """Advantages of a model that sees the true answer, learned from better and worse attempts.

    Needs an environment that gives ``info["ground_truth"]``. ``warmup_until`` is the share of pairs
    that are ranked right, of ``warmup_window`` pairs.

    Source:
        SWEET-RL, arXiv:2503.15478: the critic of its first stage.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.sources.privileged:PrivilegedSource"
    needs: ClassVar[frozenset[Need]] = frozenset({"ground_truth"})

    type: Literal["privileged"]
    beta: float = Field(default=0.1, gt=0)
    """Sharpness: the loss of a pair is ``-log sigmoid(beta * margin)``."""
    objective: Literal["turn_sum", "token_mean"] = "turn_sum"
    """Of a pair: the sum over turns (paper) or the mean over tokens (released code)."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of the critic."""
    steps_per_update: int = Field(default=4, ge=1)
    """Optimizer steps of the critic per batch of episodes."""
    batch_pairs: int = Field(default=16, ge=1)
    """Pairs per optimizer step, sampled from the buffer."""
    buffer_pairs: int = Field(default=512, ge=1)
    """Newest pairs of a better and a worse attempt that it learns from."""


class OutcomeGate(StrictModel):
    """Pay the other rewards only in episodes whose outcome passed.

    Source:
        G-RA, arXiv:2508.10548.
    """

    above: float = 0.0
    """The episode's environment return must be more than this; one that a limit cut off unsolved
    and unjudged never passes."""


RewardConfig = Annotated[
    EnvReward
    | OutcomeReward
    | RewardParts
    | InvalidPenalty
    | FlawPenalty
    | LengthPenalty
    | PotentialShaping
    | InfoGain
    | FeedbackGain
    | Progress
    | Privileged
    | CustomReward,
    Field(discriminator="type"),
]
