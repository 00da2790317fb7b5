"""The reserved keys of ``info`` and their check.

| key | value | when |
| --- | --- | --- |
| ``task_id`` | str | every reset and step |
| ``instructions`` | str: rules and action format, for a system prompt | reset |
| ``tools`` | list of JSON tool descriptions | reset, when actions are JSON tool calls |
| ``legal_actions`` | list[str], non-empty unless the episode is over | when they can be listed |
| ``anchor`` | str, history-free key of the current state | when the state can be keyed |
| ``reward_parts`` | dict[str, float] that sums to the reward | step, when there is more than one |
| ``stop_reason`` | a ``StopReason`` value | the step that ends the episode |
| ``invalid_action`` | str: why the action was not carried out | step, when it was not |
| ``score`` | float in [0, 1], or None for not scored | the step that ends the episode |
| ``ground_truth`` | anything; for training only, never in the observation | reset |
| ``usage`` | dict[str, float]: seconds, bytes or counts of what was spent | any |

Other keys are free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from turngym.types import StopReason

Info = dict[str, Any]

RESERVED_KEYS = frozenset(
    {
        "task_id",
        "instructions",
        "tools",
        "legal_actions",
        "anchor",
        "reward_parts",
        "stop_reason",
        "invalid_action",
        "score",
        "ground_truth",
        "usage",
    }
)


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
    for key in ("anchor", "invalid_action", "instructions"):
        if key in info and not isinstance(info[key], str):
            problems.append(f"{key} must be a str when present, got {info[key]!r}")
    legal = info.get("legal_actions")
    if legal is not None and (
        not isinstance(legal, list) or not all(isinstance(action, str) for action in legal)
    ):
        problems.append("legal_actions must be a list of str")
    problems += _reward_part_problems(info, reward)
    problems += _end_problems(info, over=over, truncated=truncated)
    return problems


def _reward_part_problems(info: Mapping[str, Any], reward: float) -> list[str]:
    parts = info.get("reward_parts")
    if parts is None:
        return []
    if not isinstance(parts, Mapping):
        return ["reward_parts must map names to floats"]
    if not math.isclose(sum(parts.values()), reward, rel_tol=1e-6, abs_tol=1e-6):
        return [f"reward_parts sum to {sum(parts.values())}, not to the reward {reward}"]
    return []


def _end_problems(info: Mapping[str, Any], *, over: bool, truncated: bool) -> list[str]:
    problems = []
    if not over:
        return ["stop_reason is set on a step that does not end"] if "stop_reason" in info else []
    try:
        reason = StopReason(info.get("stop_reason", ""))
    except ValueError:
        return [f"stop_reason must be a StopReason value, got {info.get('stop_reason')!r}"]
    if reason.is_truncated != truncated:
        problems.append(f"stop_reason {reason.value!r} contradicts truncated={truncated}")
    score = info.get("score")
    if score is not None and not 0.0 <= float(score) <= 1.0:
        problems.append(f"score must lie in [0, 1] or be None, got {score!r}")
    return problems
