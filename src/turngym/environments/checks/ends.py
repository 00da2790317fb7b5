"""Checks of how episodes end, and of which problems they are about; for ``TurnChecks``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from turngym.check_report import Broken, NotRun
from turngym.environments.checks.probes import Episode, as_expert, plain_steps, play, replaying

AnyEnv = gymnasium.Env[Any, Any]

_MAX_TURNS = 300
"""Turns after which an episode that should reach its limit is left."""
_OUTSIDE = ("observation", "reward", "terminated", "truncated")
"""What of a step the agent can see."""


def must_agree(env: AnyEnv, played: Sequence[Episode]) -> None:
    """Find an episode whose return and score disagree about whether the goal was reached.

    Looked at are the expert's episode, the same without its last turn up to the limit of turns, and
    those ``played``. A score of 1 must earn something. Where the contract is sparse (the expert is
    paid its score, with its last turn), a score of 1 and a return of 1 come together.
    """
    expert = play(env, as_expert(env), name="expert", max_turns=_MAX_TURNS, seed=0)
    best = _return(expert)
    if not _is_scored(expert) or best <= 0:
        raise NotRun("its expert earns nothing, or its episodes have no score")
    pays_score = best == 1.0 == expert.end.info["score"]
    is_sparse = pays_score and not any(at.reward for at in expert.steps[:-1])
    actions = expert.actions[:-1] + [""] * _MAX_TURNS
    late = play(
        env,
        replaying(actions),
        name="the expert's episode without its last turn",
        max_turns=len(actions),
        seed=0,
    )
    for episode in (expert, late, *played):
        if not _is_scored(episode):
            continue
        won, earned = episode.end.info["score"] == 1.0, _return(episode)
        if (won and earned <= 0) or (is_sparse and won != (earned >= 1.0)):
            reason = episode.end.info.get("stop_reason")
            raise Broken(
                f"{episode.name}: ends ({reason}) with a score of {episode.end.info['score']:g} "
                f"and a return of {earned:g}; an environment whose agent says when it is done "
                "judges at a limit, too (end_at_limit)"
            )


def must_differ(env: AnyEnv, task_ids: Sequence[str], actions: list[str]) -> None:
    """Refuse tasks of which nothing differs: not the opening, not what the ``actions`` bring."""
    seen = []
    for task_id in task_ids:
        episode = play(
            env,
            replaying(actions),
            name=task_id,
            max_turns=len(actions),
            seed=0,
            options={"task": task_id},
        )
        seen.append([{key: at[key] for key in _OUTSIDE} for at in plain_steps(episode.steps)])
    if all(one == seen[0] for one in seen):
        raise Broken(f"{', '.join(task_ids)} are the same problem: nothing differs between them")
    raise NotRun("openings, anchors and ground truths do not tell the problems apart")


def _return(episode: Episode) -> float:
    return sum(float(at.reward) for at in episode.steps)


def _is_scored(episode: Episode) -> bool:
    return episode.end.is_over and episode.end.info.get("score") is not None
