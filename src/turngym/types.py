"""The data that crosses package boundaries, and its invariants.

    Message, ToolCall        what is said
    TokenSpan                tokens that share one source, with log-probs when they were sampled
    Routing                  experts that a mixture-of-experts model chose for them
    Turn                     one action of the agent and what came of it
    Trajectory               one episode, with its StopReason
    TrajectoryGroup          attempts at one task that share the environment seed

Everything is frozen. ``turngym.records`` writes and reads it as JSON lines.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


class StopReason(StrEnum):
    """Why an episode ended. The prefix says how a trainer must treat it.

    ``terminated``: the environment reached an end of its own. ``truncated_*``: a limit cut the
    episode, which could have gone on. ``error_*``: infrastructure broke; the episode has no reward
    and is left out of its group.
    """

    TERMINATED = "terminated"
    TRUNCATED_TURNS = "truncated_turns"
    TRUNCATED_TOKENS = "truncated_tokens"
    TRUNCATED_CONTEXT = "truncated_context"
    TRUNCATED_TIME = "truncated_time"
    TRUNCATED_TOOL_CALLS = "truncated_tool_calls"
    TRUNCATED_INVALID = "truncated_invalid"
    TRUNCATED_ENV = "truncated_env"
    ERROR_ENV = "error_env"
    ERROR_POLICY = "error_policy"
    ERROR_REWARD = "error_reward"

    @property
    def is_error(self) -> bool:
        """True when the episode must be masked, never scored."""
        return self.value.startswith("error_")

    @property
    def is_truncated(self) -> bool:
        """True when a limit ended the episode."""
        return self.value.startswith("truncated_")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of one tool with JSON arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One entry of a conversation."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


LESSON = "lesson"
"""What of a trajectory's metadata later attempts at its task are shown."""
THOUGHT, THOUGHT_ENDS = "<think>", "</think>"
THOUGHT_TAG = re.compile("</?think>")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_OBJECT = re.compile(r"\{\s*[\"}]")
# Bounds on the work that one text can cause: a model that repeats itself sends a megabyte of "{".
_MAX_BROKEN_CHARS, _LEAST_CHARS = 1_000_000, 1_000


def json_object_at(text: str, start: int) -> tuple[dict[str, Any], int]:
    """Return the JSON object that begins at ``start``, and where it ends.

    Args:
        text: Any text.
        start: Index of its ``{``.

    Raises:
        ValueError: There is none.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError("it is too deep") from error
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value, end


def json_objects(text: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the JSON objects in ``text`` that lie in no other, and where each begins."""
    return ((value, start) for value, start, _ in _objects(text))


def after_thoughts(text: str) -> str:
    """Return what a model says after its thoughts; nothing where the last one is not closed.

    A tag inside of a JSON object, as in an argument of a call, is no thought.
    """
    if "think>" not in text:  # which every turn of every environment asks
        return text
    objects = [(start, end) for _, start, end in _objects(text)]
    for tag in reversed([*THOUGHT_TAG.finditer(text)]):
        before = bisect(objects, (tag.start(),)) - 1
        if before < 0 or objects[before][1] <= tag.start():
            return "" if tag[0] == THOUGHT else text[tag.end() :]
    return text


def with_thought(thought: str, said: str) -> str:
    """Return ``said`` with ``thought`` in tags before it, where there is one."""
    thought = THOUGHT_TAG.sub("", thought).strip()
    return f"{THOUGHT}\n{thought}\n{THOUGHT_ENDS}\n\n{said}" if thought else said


def thought_apart(text: str) -> tuple[str, str]:
    """Return the thought of a text, without tags and empty for none, and what is said after it."""
    said = after_thoughts(text)
    if said == text:
        return "", text
    return THOUGHT_TAG.sub("", text.removesuffix(said)).strip(), said.lstrip("\n")


def sum_by_name(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the sums of two sets of numbers, such as usage or parts of rewards.

    Args:
        one: Numbers by name.
        other: The same; a name that is missing counts as 0.
    """
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in {**one, **other}}


def whole(score: float) -> float:
    """Return 0 or 1 for what misses them by the rounding of a sum of weights, else the score."""
    return next((end for end in (0.0, 1.0) if abs(score - end) < 1e-9), score)


def _objects(text: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    broken = 0  # characters that were read for nothing: deep objects are all read
    start = _OBJECT.search(text)
    while start is not None and broken < _MAX_BROKEN_CHARS:
        try:
            value, end = json_object_at(text, start.start())
        except ValueError as error:
            end = start.start() + 1
            is_deep = isinstance(error.__cause__, RecursionError)
            at = len(text) if is_deep else getattr(error, "pos", end)
            broken += max(_LEAST_CHARS, at - end)
        else:
            yield value, start.start(), end
        start = _OBJECT.search(text, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Experts that a mixture-of-experts model chose on its way to each token of a span.

    Numbers of experts [L, layers, top_k], uint8 where that holds them, else little-endian uint16.
    Row ``t`` is of the pass that led to token ``t``, at the token before it: a sampled token has
    the experts that it was sampled with. The first token of a conversation has none, but a row.
    """

    layers: int
    """All layers of the model; those without experts have zeros."""
    top_k: int
    """Experts of a token in a layer."""
    experts: str
    """The bytes of the array, in base64."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return len(self.experts) // 4 * 3 - self.experts[-2:].count("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Consecutive tokens that all come from one source.

    Shapes: ``token_ids`` [L]; ``logprobs`` [L] if sampled, else [0]; ``routing`` is of all L.
    """

    token_ids: tuple[int, ...]
    sampled: bool
    """True: sampled from the policy and trained on. False: prompt, template or observation."""
    logprobs: tuple[float, ...] = ()
    """Natural-log probability of each token under the distribution it was sampled from."""
    policy_version: int | None = None
    """Version of the weights that sampled the tokens; None exactly when ``sampled`` is False."""
    routing: Routing | None = None
    """Where the engine reports it: of all tokens, since those that were read have experts, too."""

    def __post_init__(self) -> None:
        expected = len(self.token_ids) if self.sampled else 0
        if len(self.logprobs) != expected:
            raise ValueError(
                f"TokenSpan(sampled={self.sampled}) needs {expected} logprobs for "
                f"{len(self.token_ids)} tokens, got {len(self.logprobs)}"
            )
        if self.sampled != (self.policy_version is not None):
            raise ValueError(
                f"TokenSpan(sampled={self.sampled}) has policy_version={self.policy_version}; "
                "sampled tokens carry a version, others carry None"
            )
        if self.logprobs and not _are_logprobs(self.logprobs):
            raise ValueError("TokenSpan.logprobs must be finite and at most 0: these were sampled")
        if self.routing is not None:
            self._check(self.routing)

    def _check(self, routing: Routing) -> None:
        numbers = len(self.token_ids) * routing.layers * routing.top_k
        if routing.num_bytes not in (numbers, 2 * numbers):
            raise ValueError(
                f"TokenSpan.routing has {routing.num_bytes} bytes: wanted one or two for each of "
                f"{len(self.token_ids)} tokens x {routing.layers} layers x {routing.top_k} experts"
            )


def given(spans: tuple[TokenSpan, ...]) -> tuple[TokenSpan, ...]:
    """Return spans as if none of their tokens was sampled, so that none is trained."""
    return tuple(replace(s, sampled=False, logprobs=(), policy_version=None) for s in spans)


def _are_logprobs(logprobs: tuple[float, ...]) -> bool:
    """Return whether all of ``logprobs`` are finite and at most 0, up to rounding."""
    if max(logprobs) <= 1e-4 and math.isfinite(sum(logprobs)):  # the fast way, nearly always
        return True
    return all(-math.inf < logprob <= 1e-4 for logprob in logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One action of the agent, what it saw before and what followed."""

    observation: tuple[Message, ...]
    """Messages the agent had not seen before this turn."""
    action: Message
    spans: tuple[TokenSpan, ...] = ()
    """Tokens this turn appended, in order: observation first, then the action. Empty when the
    policy has no tokens (scripted, human, remote without token ids)."""
    reward: float = 0.0
    """Reward of ``env.step`` for this action."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward; when given they sum to ``reward``."""
    player: str | None = None
    """Who acted, in a game of several; None where there is one."""
    other_rewards: Mapping[str, float] = field(default_factory=dict)
    """What this action paid to other players, by name."""
    invalid_action: str | None = None
    """Why the action could not be carried out, or None when it could."""
    state_key: str | None = None
    """History-free key of the state in which the action was chosen."""
    potential: float | None = None
    """How promising the environment calls that state, for reward shaping."""
    picture: str | None = None
    """Name of the PNG file of what the agent saw, where pictures are kept."""
    starts_segment: bool = False
    """True when the history was rewritten, so earlier tokens are not a prefix of this turn."""
    segment_reason: str | None = None
    """Why the history was rewritten, in words; only with ``starts_segment``."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """What the policy spent on this turn, where it counts: ``prompt_tokens``, ``cached_tokens`` of
    them, ``completion_tokens``, ``requests``, ``retries``, ``seconds``, ``cost_usd``."""

    def __post_init__(self) -> None:
        if self.segment_reason is not None and not self.starts_segment:
            raise ValueError("Turn.segment_reason is given, but the turn starts no segment")
        if self.action.role != "assistant":
            raise ValueError(f"Turn.action must be an assistant message, got {self.action.role!r}")
        for name in ("invalid_action", "state_key", "player"):  # else they could not be read back
            if not isinstance(found := getattr(self, name), str | None):
                raise TypeError(f"Turn.{name} must be a str, got {found!r}")
        for reward in (self.reward, *self.other_rewards.values()):
            if not math.isfinite(reward):
                raise ValueError(f"Turn.reward must be finite, got {reward}")
        if self.reward_parts and not math.isclose(
            sum(self.reward_parts.values()), self.reward, rel_tol=1e-6, abs_tol=1e-6
        ):
            raise ValueError(
                f"Turn.reward_parts sum to {sum(self.reward_parts.values())}, "
                f"not to the reward {self.reward}"
            )

    @property
    def num_sampled_tokens(self) -> int:
        """Number of tokens the policy sampled in this turn."""
        return sum(len(span.token_ids) for span in self.spans if span.sampled)

    def reward_of(self, player: str | None) -> float:
        """Return what this action paid ``player``; None is the one who acts."""
        if player is None or player == self.player:
            return self.reward
        return self.other_rewards.get(player, 0.0)

    @property
    def num_said_tokens(self) -> int:
        """Number of tokens that were sampled for the turn, also where they are context now."""
        return self.num_sampled_tokens or int(self.usage.get("completion_tokens", 0))

    def as_context(self) -> Turn:
        """Return the turn as it was, but with tokens that were given, so that none is trained."""
        usage = {**self.usage, "completion_tokens": float(self.num_said_tokens)}
        return replace(self, spans=given(self.spans), usage=usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Everything one episode produced."""

    env_id: str
    task_id: str
    env_seed: int
    policy_seed: int
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    member: int = 0
    """Place inside the group, 0-based."""
    final_observation: tuple[Message, ...] = ()
    """What the environment answered to the last action; the agent never saw it."""
    score: float | None = None
    """Success in [0, 1] as the task judges it; None means not scored, which is not 0."""
    player: str | None = None
    """Whose episode this is, in a game of several: score, return and what is trained are this
    player's. None where there is one player, or where the policy was all of them; score and return
    are then those of who acted first."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Score of each player, in a game of several that came to its end."""
    ground_truth: str | None = None
    """The true answer, where the task has one. For training; the agent never saw it."""
    answer: str | None = None
    """The action that states ``ground_truth``. For training; the agent never saw it."""
    judged_at_limit: bool = False
    """Whether the last reward has what the state was worth where a limit ended the episode."""
    final_picture: str | None = None
    """Name of the PNG file of what the last action led to, where pictures are kept."""
    final_potential: float | None = None
    """How promising the environment calls the state after the last action."""
    error: str | None = None
    """What broke, exactly when ``stop_reason.is_error``."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """For people: the viewer shows it, and nothing but ``LESSON`` and ``partial`` is read again."""

    def __post_init__(self) -> None:
        if self.stop_reason.is_error != (self.error is not None):
            raise ValueError(
                f"Trajectory with stop_reason {self.stop_reason.value!r} and error={self.error!r}: "
                "an error text belongs to an error_* stop reason and to no other"
            )
        if self.stop_reason.is_error and self.score is not None:
            raise ValueError("a trajectory that ended by an error has no score")
        for score in (self.score, *self.scores.values()):
            if score is not None and not 0.0 <= score <= 1.0:
                raise ValueError(f"Trajectory.score must lie in [0, 1], got {score}")

    @property
    def is_open(self) -> bool:
        """Whether a limit cut it off before its task was solved or its state judged.

        Then the last state has a value; else all that there is to earn was paid.
        """
        return self.stop_reason.is_truncated and not (self.is_success or self.judged_at_limit)

    @property
    def is_partial(self) -> bool:
        """Whether it is the first turns of an episode that went on after them."""
        return "partial" in self.metadata

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """The turns of ``player``; all of them where it is None."""
        return tuple(turn for turn in self.turns if self.player in (None, turn.player))

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the turn rewards, in a game of several of one player's."""
        whose = self.player or (self.turns[0].player if self.turns else None)
        return sum((turn.reward_of(whose) for turn in self.turns), 0.0)

    @property
    def is_success(self) -> bool:
        """True when the task is fully solved."""
        return self.score is not None and self.score >= 1.0

    @property
    def spans(self) -> tuple[TokenSpan, ...]:
        """All token spans in the order the engine saw them."""
        return tuple(span for turn in self.turns for span in turn.spans)

    @property
    def num_sampled_tokens(self) -> int:
        """Number of tokens the policy sampled in the episode."""
        return sum(turn.num_sampled_tokens for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """Attempts at one task that share the environment seed and differ in the policy seed."""

    group_id: str
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        keys = {(t.env_id, t.task_id, t.env_seed) for t in self.trajectories}
        if len(keys) > 1:
            raise ValueError(
                f"group {self.group_id!r} mixes {len(keys)} tasks or environment seeds; "
                "members must share both"
            )
        seeds = [t.policy_seed for t in self.trajectories]
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"group {self.group_id!r} repeats a policy seed")

    @property
    def usable(self) -> tuple[Trajectory, ...]:
        """Members that have a reward: everything that did not end by an error."""
        return tuple(t for t in self.trajectories if not t.stop_reason.is_error)
