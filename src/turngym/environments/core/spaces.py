"""Spaces for language: any unicode text, the observation; and the reserved keys of ``info``.

| key | value | when |
| --- | --- | --- |
| ``task_id`` | str | every reset and step |
| ``instructions`` | str: rules and action format, for a system prompt | reset |
| ``max_turns`` | int: turns after which the episode ends; None: the agent is not informed | reset |
| ``tools`` | list of JSON tool descriptions | reset, when actions are JSON tool calls |
| ``rules`` | str: ``instructions`` without the action format | reset, with ``tools`` |
| ``calls_per_turn`` | int: tool calls that an answer may hold | reset, when they are several |
| ``player`` | str: who acts next | every reset and step, in a game of several |
| ``players`` | tuple[str, ...]: the names of all who play | every reset and step, likewise |
| ``other_rewards`` | dict[str, float]: what the action paid to other players | step, likewise |
| ``scores`` | dict[str, float]: the score of each player | the step that ends it, likewise |
| ``results`` | tuple[str, ...]: what came of each call | step, when there were several |
| ``legal_actions`` | list[str], non-empty unless the episode is over | when they can be listed |
| ``state_key`` | str, history-free key of the current state | when the state can be keyed |
| ``reward_parts`` | dict[str, float] that sums to the reward | step, when there is more than one |
| ``stop_reason`` | a ``StopReason`` value | the step that ends the episode |
| ``invalid_action`` | str: why the action was not carried out | step, when it was not |
| ``score`` | float in [0, 1], or None for not scored | the step that ends the episode |
| ``judged_at_limit`` | True: the reward has what the state that is left is worth | that step |
| ``ground_truth`` | anything; for training only, never in the observation | reset |
| ``answer`` | str: the action that states ``ground_truth``; for training only | reset |
| ``potential`` | float: how promising the current state is, for reward shaping | any |
| ``messages`` | tuple[Message, ...]: what is new, of one that says itself who speaks | any |
| ``pictures`` | dict[int, Image]: what some of the ``messages`` show, by their place | any |
| ``rewritten`` | str: why ``messages`` are the whole conversation anew | step, where they are |
| ``usage`` | dict[str, float]: seconds, bytes or counts of what the episode has spent | any |

Other keys are free.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping
from typing import Any, SupportsFloat

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from turngym.errors import ConfigError
from turngym.types import Message, StopReason, sum_by_name, whole

_SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyz ABC 0123456789 .,:;!?'\"{}[]()\n\té中🙂"


class Unicode(Space[str]):
    """Any text up to a length, newlines and the empty string included.

    ``gymnasium.spaces.Text`` rejects spaces, newlines and non-ASCII letters by default, so it
    cannot hold what an agent says or sees.

    Args:
        max_chars: Longest text, in unicode code points.
        seed: Seeds ``sample``.
    """

    def __init__(self, max_chars: int = 1_000_000, *, seed: int | None = None) -> None:
        if max_chars < 1:
            raise ValueError(f"Unicode(max_chars={max_chars}): wanted at least 1")
        self.max_chars = max_chars
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a random text of at most 40 characters; without mask and ``probability``.

        Raises:
            ValueError: A mask or probability is given.
        """
        if mask is not None or probability is not None:
            raise ValueError("Unicode.sample takes no mask and no probability")
        length = int(self.np_random.integers(0, min(40, self.max_chars) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[i] for i in picks)

    def contains(self, x: Any) -> bool:
        """Return True when ``x`` is a str that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_chars

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and other.max_chars == self.max_chars

    def __hash__(self) -> int:
        return hash((Unicode, self.max_chars))

    def __repr__(self) -> str:
        return f"Unicode({self.max_chars})"


def text_observation_space(*, image_hw: tuple[int, int] | None = None) -> spaces.Dict:
    """Return the observation space of a turn environment.

    Args:
        image_hw: Height and width in pixels when there is a picture; then the key ``image``
            holds uint8 [H, W, 3].
    """
    parts: dict[str, Space[Any]] = {"text": Unicode()}
    if image_hw is not None:
        height, width = image_hw
        parts["image"] = spaces.Box(0, 255, (height, width, 3), np.uint8)
    return spaces.Dict(parts)


Image = NDArray[np.uint8]


class ShownText(Space[dict[str, Any]]):
    """Text, with a picture of any size or without one: ``{"text": str}`` and perhaps ``image``.

    Args:
        seed: Seeds ``sample``.
    """

    def __init__(self, *, seed: int | None = None) -> None:
        self._text = Unicode()
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:
        """Return a random text, and in half of the cases a random picture; see `Unicode.sample`."""
        found: dict[str, Any] = {"text": self._text.sample(mask, probability)}
        if self.np_random.random() < 0.5:
            found["image"] = self.np_random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        return found

    def contains(self, x: Any) -> bool:
        """Return True when ``x`` holds a text, and no more than a picture besides."""
        if not isinstance(x, dict) or not {"text"} <= x.keys() <= {"text", "image"}:
            return False
        image = x.get("image", np.zeros((1, 1, 3), np.uint8))
        is_image = isinstance(image, np.ndarray) and image.dtype == np.uint8
        return x["text"] in self._text and is_image and image.ndim == 3 and image.shape[2] == 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShownText)

    def __hash__(self) -> int:
        return hash(ShownText)

    def __repr__(self) -> str:
        return "ShownText()"


Info = dict[str, Any]


def info_problems(
    info: Mapping[str, Any], *, reward: float = 0.0, over: bool = False, truncated: bool = False
) -> list[str]:
    """Return what is wrong with one ``info``, empty when nothing is.

    Args:
        info: From ``reset`` or ``step``.
        reward: Reward of the same step; 0 for a reset.
        over: The step terminated or truncated the episode.
        truncated: The step truncated the episode.
    """
    problems = []
    if not isinstance(info.get("task_id"), str):
        problems.append(f"task_id must be a str, got {info.get('task_id')!r}")
    problems += [
        f"{key} must be a str when present, got {info[key]!r}"
        for key in ("state_key", "answer", "invalid_action", "instructions", "rules", "rewritten")
        if key in info and not isinstance(info[key], str)
    ]
    said = info.get("messages", ())
    if not isinstance(said, tuple) or not all(isinstance(one, Message) for one in said):
        problems.append(f"messages must be a tuple of Message, got {said!r}")
    results = info.get("results", ())
    if not isinstance(results, tuple) or not all(isinstance(one, str) for one in results):
        problems.append(f"results must be a tuple of str, got {results!r}")
    if not math.isfinite(reward):
        problems.append(f"the reward must be finite, got {reward}")
    problems += _legal_action_problems(info, over=over)
    problems += _number_problems(info, reward)
    problems += _player_problems(info)
    problems += _end_problems(info, over=over, truncated=truncated)
    return problems


def _legal_action_problems(info: Mapping[str, Any], *, over: bool) -> list[str]:
    legal = info.get("legal_actions")
    if legal is None:
        return []
    if not isinstance(legal, list) or not all(isinstance(action, str) for action in legal):
        return ["legal_actions must be a list of str"]
    if over and legal:
        return [f"legal_actions must be empty when the episode is over, got {legal[:3]!r}"]
    if not over and not legal:
        return ["legal_actions must not be empty while the episode goes on"]
    return []


def _number_problems(info: Mapping[str, Any], reward: float) -> list[str]:
    problems = []
    for key in ("reward_parts", "usage"):
        numbers = info.get(key, {})
        if not isinstance(numbers, Mapping) or not all(
            isinstance(name, str) and isinstance(number, int | float)
            for name, number in numbers.items()
        ):
            problems.append(f"{key} must map names to numbers, got {numbers!r}")
        elif key == "reward_parts" and key in info:
            total = sum(numbers.values())
            if not math.isclose(total, reward, rel_tol=1e-6, abs_tol=1e-6):
                problems.append(f"reward_parts sum to {total}, not to the reward {reward}")
    return problems


def _player_problems(info: Mapping[str, Any]) -> list[str]:
    players = info.get("players", ())
    if not isinstance(players, tuple) or not all(isinstance(one, str) for one in players):
        return [f"players must be a tuple of str, got {players!r}"]
    problems = []
    if (player := info.get("player")) not in (players or (None,)):
        problems.append(f"player must be one of players {players!r}, got {player!r}")
    for key in ("other_rewards", "scores"):
        if not isinstance(numbers := info.get(key, {}), Mapping) or not {*numbers} <= {*players}:
            problems.append(f"{key} must map some of {players!r} to numbers, got {numbers!r}")
        elif not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers.values()):
            problems.append(f"{key} must be finite numbers, got {numbers!r}")
    return problems


def _end_problems(info: Mapping[str, Any], *, over: bool, truncated: bool) -> list[str]:
    problems = []
    if not over:
        return ["stop_reason is set on a step that does not end"] if "stop_reason" in info else []
    try:
        reason = StopReason(info.get("stop_reason", ""))
    except ValueError:
        return [f"stop_reason must be a StopReason value, got {info.get('stop_reason')!r}"]
    if reason.is_error:
        problems.append(f"stop_reason {reason.value!r}: a fault is raised, it is not a step")
    elif reason.is_truncated != truncated:
        problems.append(f"stop_reason {reason.value!r} contradicts truncated={truncated}")
    score = info.get("score", "nothing")
    if score is not None and not (isinstance(score, int | float) and 0.0 <= score <= 1.0):
        problems.append(f"score must lie in [0, 1] or be None, got {score!r}")
    return problems


def announce_calls(info: Info, most: int, name: str) -> None:
    """Say in the ``info`` of a reset that an answer may hold several calls.

    Args:
        info: Is added to.
        most: Calls that are carried out, 2 or more.
        name: Of the environment.

    Raises:
        ConfigError: Its actions are no tool calls, or several play.
    """
    if "players" in info:
        raise ConfigError(f"{name}: calls_per_turn={most}: its players act in turn; wanted 1")
    if "tools" not in info:
        raise ConfigError(
            f"{name}: calls_per_turn={most}, but its actions are no tool calls; set "
            "action_style=tools where it has that option"
        )
    info["calls_per_turn"] = most
    for key in ("instructions", "rules"):
        info[key] += f"\nAn answer may hold up to {most} tool calls, each of them a turn."


def joined_info(info: Mapping[str, Any], more: Mapping[str, Any], reward: float) -> Info:
    """Return the ``info`` of a turn with that of its end at a limit, whose state was judged.

    Args:
        info: Of the turn.
        more: Of the end.
        reward: Of both, to which parts sum where one of them has any.
    """
    joined = {**info, "judged_at_limit": True, **more}
    if "reward_parts" in joined:
        parts = {**info.get("reward_parts", {}), **more.get("reward_parts", {})}
        rest = reward - sum(parts.values())
        joined["reward_parts"] = {**parts, "end": rest} if abs(rest) > 1e-9 else parts
    if "other_rewards" in joined:
        others = (info.get("other_rewards", {}), more.get("other_rewards", {}))
        joined["other_rewards"] = sum_by_name(*others)
    return joined


def score_of(found: object) -> float | None:
    """Return what an author's ``score`` returned as a number, rounded; None where it is that.

    Raises:
        TypeError: It is neither.
    """
    if found is None or isinstance(found, SupportsFloat | str):
        return None if found is None else whole(float(found))
    if isinstance(found, Coroutine):
        found.close()  # else Python warns that it was never awaited
    raise TypeError(f"score returned {type(found).__name__}, wanted a number or None")


def checked_score(score: Any) -> float | None:
    """Return a score as a number, ``whole`` where it is nearly that, or None.

    Raises:
        ValueError: It does not lie in [0, 1].
    """
    if score is None:
        return None
    if not 0.0 <= (found := whole(float(score))) <= 1.0:
        raise ValueError(f"score must lie in [0, 1] or be None, got {score!r}")
    return found
