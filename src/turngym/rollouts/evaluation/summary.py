"""The table of an evaluation: a pure function of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turngym.rollouts.evaluation.rows import EpisodeRow
from turngym.rollouts.evaluation.statistics import Measure, bootstrap_ratio, pass_at_measure

Groups = list[list[EpisodeRow]]
"""Rows of each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the episodes in one environment say about an agent.

    Episodes that broke are in no mean and are no failures; episodes that could not be judged are
    left out of success and pass@k alone.
    """

    episodes: int
    tasks: int
    faults: int
    faults_by_kind: dict[str, Measure]
    """Share of all episodes."""
    unscored: int
    solved: int
    success: Measure | None
    """Solved share of the judged episodes."""
    pass_at: dict[int, Measure]
    """From k = 1 to the most judged attempts at any task."""
    score: Measure | None
    """Partial success."""
    episode_return: Measure | None
    turns: Measure | None
    prompt_tokens: Measure | None
    completion_tokens: Measure | None
    cost_usd: Measure | None
    """Of one episode."""
    total_cost_usd: float | None
    """Of all, those that broke included; None when the agent does not know."""
    seconds: Measure | None
    total_seconds: float
    truncated: int
    invalid_actions: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; an interval is a list of two numbers.

        All that a clock decided is under ``time``.
        """
        return {
            "episodes": self.episodes,
            "tasks": self.tasks,
            "faults": self.faults,
            "faults_by_kind": {kind: m.to_json() for kind, m in self.faults_by_kind.items()},
            "unscored": self.unscored,
            "solved": self.solved,
            **_pair("success", self.success),
            "pass_at": {str(k): measure.to_json() for k, measure in self.pass_at.items()},
            **_pair("mean_score", self.score),
            **_pair("mean_return", self.episode_return),
            **_pair("mean_turns", self.turns),
            **_pair("mean_prompt_tokens", self.prompt_tokens),
            **_pair("mean_completion_tokens", self.completion_tokens),
            **_pair("mean_cost_usd", self.cost_usd),
            "total_cost_usd": self.total_cost_usd,
            "truncated": self.truncated,
            "invalid_actions": self.invalid_actions,
            "time": {**_pair("mean_seconds", self.seconds), "total_seconds": self.total_seconds},
        }


def summarize_rows(rows: Sequence[EpisodeRow]) -> Summary:
    """Return what the rows of one environment say."""
    usable = [row for row in rows if not row.is_fault]
    tasks: dict[str, list[EpisodeRow]] = {}
    for row in usable:
        tasks.setdefault(row.task_id, []).append(row)
    groups = list(tasks.values())
    judged = [[row for row in group if row.is_judged] for group in groups]
    counts = [(len(group), sum(row.is_success for row in group)) for group in judged if group]
    kinds = Counter(row.stop_reason.value for row in rows if row.is_fault)
    costs = [row.cost_usd for row in rows if row.cost_usd is not None]
    return Summary(
        episodes=len(rows),
        tasks=len({row.task_id for row in rows}),
        faults=len(rows) - len(usable),
        faults_by_kind={
            kind: share
            for kind, count in sorted(kinds.items())
            if (share := Measure.share(count, len(rows))) is not None
        },
        unscored=len(usable) - sum(n for n, _ in counts),
        solved=sum(c for _, c in counts),
        success=_success(counts),
        pass_at=_pass_at(counts),
        score=_mean(judged, lambda row: row.score),
        episode_return=_mean(groups, lambda row: row.episode_return),
        turns=_mean(groups, lambda row: row.turns),
        prompt_tokens=_mean(groups, lambda row: row.prompt_tokens),
        completion_tokens=_mean(groups, lambda row: row.completion_tokens),
        cost_usd=_mean(groups, lambda row: row.cost_usd),
        total_cost_usd=sum(costs) if costs else None,
        seconds=_mean(groups, lambda row: row.seconds),
        total_seconds=round(sum(row.seconds for row in rows), 3),
        truncated=sum(row.stop_reason.is_truncated for row in usable),
        invalid_actions=sum(row.invalid_actions for row in usable),
    )


def _success(counts: Sequence[tuple[int, int]]) -> Measure | None:
    """Return the solved share: Wilson's interval with one attempt a task, else a bootstrap.

    Where every attempt at every task ended alike, tasks are the trials of Wilson's interval.
    """
    trials, solved = sum(n for n, _ in counts), sum(c for _, c in counts)
    if trials == len(counts):
        return Measure.share(solved, trials)
    if all(c in (0, n) for n, c in counts):
        share = Measure.share(sum(c > 0 for _, c in counts), len(counts))
        return Measure(value=solved / trials, interval=None if share is None else share.interval)
    judged_T, solved_T = np.array(counts, dtype=np.float64).T
    return Measure(value=solved / trials, interval=bootstrap_ratio(solved_T, judged_T))


def _pass_at(counts: Sequence[tuple[int, int]]) -> dict[int, Measure]:
    most = max((n for n, _ in counts), default=0)
    found = ((k, pass_at_measure(k, counts)) for k in range(1, most + 1))
    return {k: measure for k, measure in found if measure is not None}


def _mean(groups: Groups, value: Callable[[EpisodeRow], float | None]) -> Measure | None:
    return Measure.mean(
        [[float(v) for row in group if (v := value(row)) is not None] for group in groups]
    )


def _pair(name: str, measure: Measure | None) -> dict[str, Any]:
    interval = None if measure is None or measure.interval is None else list(measure.interval)
    return {name: None if measure is None else measure.value, f"{name}_ci95": interval}
