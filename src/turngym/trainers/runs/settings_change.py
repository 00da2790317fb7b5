"""What may change in the settings of a run that has begun: what only makes it longer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turngym.errors import ConfigError

_KEPT_FREE = frozenset(
    {
        "learner.offload",
        "learner.ranks",
        "run.checkpoint_every",
        "run.keep_checkpoints",
        "run.tensorboard",
    }
)
"""Settings on which no result depends, or by rounding only."""
_MOST_LINES = 10
_LONGEST_VALUE = 60


def check_change(
    path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Return how ``found`` differs from ``wanted``, as ``key: [before, now]``, only longer.

    Raises:
        ConfigError: One does more than that; the message has a line for each of the first ten.
    """
    before, now = flat(found), flat(wanted)
    changed = {
        key: [before.get(key), now.get(key)]
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    }
    refused = [key for key, (old, new) in changed.items() if not _may_change(key, old, new)]
    if refused:
        lines = [
            f"{key}={_short(changed[key][0])}, not {_short(changed[key][1])}" for key in refused
        ]
        raise ConfigError(_refusal(path, lines))
    if "run.steps" in changed and now.get("learner.lr_schedule") == "cosine":
        old, new = changed["run.steps"]
        raise ConfigError(
            f"{path}: holds a run with run.steps={old}, not {new}, and its "
            "learner.lr_schedule='cosine' falls to 0 at the last step, so that more steps are "
            "another run; choose another folder, or keep the steps"
        )
    return changed


def extends(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether ``wanted`` has more updates than ``found``."""
    return bool(wanted["run"]["steps"] > found["run"]["steps"])


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of a tree of tables by their full names, after ``prefix``."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _may_change(key: str, old: Any, new: Any) -> bool:
    if key == "run.steps":
        return bool(new > old)
    if key == "rollout.timeout_s":
        return old is not None and (new is None or new > old)
    if key.startswith("engine."):  # which servers sample decides nothing, but what they are does
        return key not in ("engine.type", "engine.dtype")
    return key in _KEPT_FREE


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _refusal(path: Path, lines: list[str]) -> str:
    advice = "choose another folder, or the same settings to resume"
    if len(lines) == 1:
        return f"{path}: holds a run with {lines[0]}; {advice}"
    more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return "\n".join(
        [f"{path}: holds a run with other settings; {advice}", *lines[:_MOST_LINES], *more]
    )
