"""The contract of turn credit: a batch of turns in, reward components and advantages out.

Axis letters: B episode, N turn of any episode (in episode order, then turn order), T turn of one
episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from turngym.errors import TrainingError
from turngym.trainers.samples import FloatArray, IntArray, TrainingSample, per_token, to_samples
from turngym.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from turngym.agents.engine.protocol import Sampling, TrainableEngine
    from turngym.agents.rendering import Renderer
    from turngym.rollouts.replay import PlayOn

ConfigT = TypeVar("ConfigT")
ScoredT = TypeVar("ScoredT")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditContext:
    """What a method may use besides the episodes. Nothing of it is changed but by its owner."""

    model: PreTrainedModel
    """The policy that is trained, in evaluation mode; to copy, or for its shape. Never to step."""
    renderer: Renderer
    engine: TrainableEngine
    """Samples actions with the newest published weights, those of ``model``. It belongs to the
    event loop of the episodes: ``sample_actions`` asks it from anywhere."""
    sampling: Sampling
    """How the episodes were sampled."""
    seed: int
    """Root of the method's place in the seed tree."""
    max_sessions: int = 1024
    """Sessions of the engine that the method may have at once; the others are for episodes."""
    max_tokens: int = 16384
    """Tokens in memory at once when something is scored or trained, padding included."""
    total_updates: int = 1
    """Planned number of updates of the run."""
    demonstrations: tuple[Trajectory, ...] = ()
    """Episodes of the expert, as many as the settings ask for, with tokens as if the policy had
    sampled them; their log-probs are 0 and mean nothing."""
    play_on: PlayOn | None = None
    """Plays the newest policy on from every state of episodes; to be awaited by ``at_home``. None
    where there are no environments."""
    scorer: Callable[..., Any] | None = None
    """``score`` of the policy that is spread over several ranks; None where ``model`` is it."""

    def score(self, function: Callable[..., ScoredT], /, *args: Any, **kwargs: Any) -> ScoredT:
        """Return ``function(model, *args, ranks=..., **kwargs)`` of the policy as it is now.

        Args:
            function: Of a module; computes with the policy, and does its share of the work only.
            args: Of the function; other ranks get them as well.
            kwargs: Likewise.
        """
        from turngym.trainers.update.compute import ALONE  # loads torch

        if self.scorer is not None:
            found: ScoredT = self.scorer(function, *args, **kwargs)
            return found
        return function(self.model, *args, ranks=ALONE, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnBatch:
    """The turns of B usable episodes, N in all, laid out flat. Turns are counted, never guessed."""

    episodes: tuple[Trajectory, ...]
    """The B episodes; none of them is an error or has no turn."""
    group_B: IntArray
    """Number of the group of each episode; members of one group stand together."""
    episode_N: IntArray
    """Which episode a turn belongs to."""
    turn_N: IntArray
    """0-based place of a turn in its episode."""
    tokens_N: IntArray
    """Tokens of a turn that are trained on."""
    reward_N: FloatArray
    """Reward of the environment."""
    invalid_N: NDArray[np.bool_]
    """The action could not be carried out."""

    @classmethod
    def of(cls, groups: Sequence[TrajectoryGroup]) -> TurnBatch:
        """Return the turns of all usable episodes of ``groups``; empty episodes are left out.

        Raises:
            TrainingError: A reward is not finite.
        """
        pairs = [(n, t) for n, group in enumerate(groups) for t in group.usable if t.turns]
        episodes = tuple(t for _, t in pairs)
        turns = [turn for t in episodes for turn in t.turns]
        lengths = [len(t.turns) for t in episodes]
        reward_N = np.array([turn.reward for turn in turns], dtype=np.float64)
        found = cls(
            episodes=episodes,
            group_B=np.array([n for n, _ in pairs], dtype=np.int64),
            episode_N=np.repeat(np.arange(len(episodes)), lengths),
            turn_N=np.concatenate([np.arange(n) for n in lengths] or [np.zeros(0, np.int64)]),
            tokens_N=np.array([turn.num_sampled_tokens for turn in turns], dtype=np.int64),
            reward_N=reward_N,
            invalid_N=np.array([turn.invalid_action is not None for turn in turns], dtype=np.bool_),
        )
        found.check_finite(reward_N, "reward")
        return found

    @property
    def group_N(self) -> IntArray:
        """Number of the group of each turn."""
        return self.group_B[self.episode_N]

    @property
    def length_B(self) -> IntArray:
        """Number of turns T of each episode."""
        return np.bincount(self.episode_N, minlength=len(self.episodes))

    @property
    def start_B(self) -> IntArray:
        """Number of the first turn of each episode, among the N."""
        return np.cumsum(self.length_B) - self.length_B

    @property
    def is_last_N(self) -> NDArray[np.bool_]:
        """True on the last turn of each episode."""
        return np.equal(self.turn_N, self.length_B[self.episode_N] - 1)

    @property
    def is_open_B(self) -> NDArray[np.bool_]:
        """True where the last state still has a value (``Trajectory.is_open``)."""
        return np.array([t.is_open for t in self.episodes], dtype=np.bool_)

    @property
    def said_N(self) -> FloatArray:
        """Tokens that were sampled for a turn, also where it is context now."""
        said = [turn.num_said_tokens for t in self.episodes for turn in t.turns]
        return np.array(said, dtype=np.float64)

    @property
    def outcome_B(self) -> FloatArray:
        """Undiscounted sum of the environment's rewards."""
        return self.sums(self.reward_N)

    def sums(self, values_N: NDArray[Any]) -> FloatArray:
        """Return the sum of ``values_N`` over the turns of each episode, shape [B]."""
        sums_B = np.bincount(self.episode_N, values_N, minlength=len(self.episodes))
        return sums_B.astype(np.float64)

    def counts(self, unit: str) -> FloatArray:
        """Return how often each turn counts where what counts once is a ``unit``, shape [N]."""
        if unit in ("token", "length"):
            return self.tokens_N.astype(np.float64) if unit == "token" else self.said_N
        return np.where((self.turn_N == 0) | (unit == "turn"), 1.0, 0.0)

    def split(self, values_N: NDArray[np.generic]) -> list[FloatArray]:
        """Return ``values_N`` as one array [T] per episode."""
        cuts = np.cumsum(self.length_B)[:-1]
        return [np.asarray(part, dtype=np.float64) for part in np.split(values_N, cuts)]

    def check_finite(self, values_N: FloatArray, what: str) -> None:
        """Raise when a value is NaN or infinite, or would be as float32, in which losses are.

        Args:
            values_N: One value per turn.
            what: What the values are, for the message.

        Raises:
            TrainingError: Names the task, the attempt and the turn.
        """
        bad = np.flatnonzero(~(np.abs(values_N) <= np.finfo(np.float32).max))
        if bad.size:
            episode = self.episodes[int(self.episode_N[bad[0]])]
            raise TrainingError(
                f"{episode.task_id}, attempt {episode.member}, turn {int(self.turn_N[bad[0]])}: "
                f"{what} is {values_N[bad[0]]}; nothing was trained on it. "
                "Look at the environment's rewards and the policy's log-probs"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewardComponent:
    """One source's rewards for N turns.

    A turn without a value takes part in no comparison, while a turn whose value is 0 does.
    """

    values_N: FloatArray
    has_value_N: NDArray[np.bool_]
    """False where the source has no value for the turn; ``values_N`` is 0 there."""

    @classmethod
    def everywhere(cls, values_N: FloatArray) -> RewardComponent:
        """Return a component with a value on every turn."""
        return cls(values_N=values_N, has_value_N=np.ones(values_N.shape, dtype=np.bool_))

    @classmethod
    def where_finite(cls, values_N: FloatArray) -> RewardComponent:
        """Return a component without a value where ``values_N`` is NaN or infinite."""
        has_value_N = np.isfinite(values_N)
        return cls(values_N=np.where(has_value_N, values_N, 0.0), has_value_N=has_value_N)


Components = Mapping[str, RewardComponent]
"""Reward components by name."""


class RewardSource(Protocol):
    """Computes one reward component of a batch, or several. May learn from it."""

    @property
    def is_ready(self) -> bool:
        """False while it still has to learn before the policy may learn from its rewards."""

    def read(self, turns: TurnBatch) -> Components:
        """Return components by name. Called once per update.

        Raises:
            TrainingError: A value is not finite.
        """

    def metrics(self) -> Mapping[str, float]:
        """Return ``credit/*`` about the last batch."""

    def state(self) -> Mapping[str, Tensor]:
        """Return what was learned and collected."""

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""


class StatelessSource(Generic[ConfigT]):
    """What reward sources share that learn nothing; a subclass writes ``read``."""

    is_ready = True

    def __init__(self, config: ConfigT, context: CreditContext | None = None) -> None:
        self._config = config
        self._metrics: dict[str, float] = {}

    def metrics(self) -> Mapping[str, float]:
        """Return what the last ``read`` noted."""
        return self._metrics

    def state(self) -> Mapping[str, Tensor]:
        """Return nothing: nothing is learned."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What one batch of episodes teaches."""

    samples: tuple[TrainingSample, ...]
    """What the learner trains on; may hold more or other episodes than the batch (replay)."""
    trajectories: tuple[Trajectory, ...] = ()
    """Episodes of the batch that carry advantages, in batch order."""
    advantages: tuple[FloatArray, ...] = ()
    """One array [T] per trajectory: the mean advantage of the tokens of each turn."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Groups that are not trained on, by reason: ``too_small``, ``zero_spread``, ``filtered``,
    or ``warmup`` while a reward source or a critic still has to learn."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """``credit/*``."""


def unused_groups(
    count: int, turns: TurnBatch, *, is_warm: bool = True, filtered: int = 0
) -> dict[str, int]:
    """Return how many of ``count`` groups are not trained on, by reason: ``Credit.dropped``.

    Args:
        count: Groups of the batch.
        turns: Those that are left of it. A group without a turn there is ``too_small``.
        is_warm: Whether the policy may learn.
        filtered: Groups that a filter left out.
    """
    left = len(np.unique(turns.group_B))
    reasons = {
        "too_small": count - filtered - left,
        "filtered": filtered,
        "warmup": 0 if is_warm else left,
    }
    return {reason: number for reason, number in reasons.items() if number}


def credit_of_turns(
    turns: TurnBatch,
    values_N: FloatArray,
    *,
    keep_B: NDArray[np.bool_] | None = None,
    dropped: Mapping[str, int] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Credit:
    """Return credit in which every sampled token of a turn has the turn's advantage.

    Args:
        turns: The batch.
        values_N: Advantage of each turn.
        keep_B: Episodes that are trained on; None for all.
        dropped: Groups that are not, by reason.
        metrics: ``credit/*``.

    Raises:
        TrainingError: A value is not finite, or a turn has no tokens.
    """
    turns.check_finite(values_N, "advantage")
    rows = turns.split(values_N)
    kept = range(len(rows)) if keep_B is None else np.flatnonzero(keep_B).tolist()
    episodes = tuple(turns.episodes[b] for b in kept)
    samples = [
        sample
        for index, b in enumerate(kept)
        for sample in to_samples(
            turns.episodes[b],
            per_token(turns.episodes[b], rows[b]),
            index=index,
            group=int(turns.group_B[b]),
        )
    ]
    return Credit(
        samples=tuple(samples),
        trajectories=episodes,
        advantages=tuple(rows[b] for b in kept),
        dropped=dropped or {},
        metrics=metrics or {},
    )


def trained_turns(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return the episodes from their first turn on that is trained on, for a critic.

    What a critic says of a turn depends on what follows. Turns before that, which are too old or
    were trained early, are what the first one reads; an episode of them alone has no turn left.
    """
    return [
        replace(group, trajectories=tuple(without_head(t) for t in group.trajectories))
        for group in groups
    ]


def trained_episodes(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return groups with the episodes alone of which something is trained on.

    The others are there for late members to be compared with; their own update has seen them.
    """

    def is_context(trajectory: Trajectory) -> bool:
        return bool(trajectory.spans) and not trajectory.num_sampled_tokens

    return [
        replace(group, trajectories=tuple(t for t in group.trajectories if not is_context(t)))
        for group in groups
    ]


def without_head(trajectory: Trajectory) -> Trajectory:
    """Return an episode from its first turn on that is trained on, as ``trained_turns`` does."""
    turns = trajectory.turns
    head = list(takewhile(lambda turn: not turn.num_sampled_tokens, turns))
    if not head:
        return trajectory
    rest = turns[len(head) :]
    if rest:
        starts = [n for n, turn in enumerate(turns[: len(head) + 1]) if turn.starts_segment]
        read = turns[max(starts, default=0) : len(head) + 1]
        first = replace(rest[0], spans=tuple(span for turn in read for span in turn.spans))
        rest = (first, *rest[1:])
    return replace(trajectory, turns=rest)


class CreditMethod(Protocol):
    """Assigns an advantage to every sampled token of a batch. May learn from the batch itself.

    Of overlapped runs ``assign`` runs in a thread, with an event loop of its own, while episodes go
    on. The model holds the weights that the update begins with, and nothing changes or reads them
    meanwhile; actions are sampled through ``sample_actions`` alone.
    """

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return what ``groups`` teach. Called once per update, in order.

        Raises:
            TrainingError: A reward or a log-prob is not finite; the message names the episode.
        """

    def state(self) -> Mapping[str, Tensor]:
        """Return everything that was learned or collected so far, for a checkpoint."""

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned; the next ``assign`` goes on to the bit."""


def advantage_metrics(values: FloatArray) -> dict[str, float]:
    """Return ``credit/*`` of some advantages, of any shape."""
    return {
        "credit/advantage_mean": float(values.mean()),
        "credit/advantage_std": float(values.std()),
    }


def joined(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of all parts, each under ``PART/NAME``."""
    return {f"{part}/{k}": tensor for part, own in parts.items() for k, tensor in own.items()}


def below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return those of ``tensors`` under ``name/``, without it."""
    prefix = f"{name}/"
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
