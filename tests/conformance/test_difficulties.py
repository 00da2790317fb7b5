"""A game made in another difficulty than its id's has the turns of that difficulty."""

from __future__ import annotations

import gymnasium
import pytest

import turngym
from turngym.registry import EnvEntry, entries

CORE = [e for e in entries() if e.family == "text" and e.extra is None and "-" in e.short_name]
GRADED = [e for e in CORE if e.id.startswith("turngym/") and "difficulty" in e.kwargs]


@pytest.mark.parametrize("entry", GRADED, ids=lambda entry: entry.short_name)
def test_the_expert_solves_every_difficulty_of_the_plain_id_within_its_turns(
    entry: EnvEntry,
) -> None:
    plain = entry.id.rpartition("-v")[0].rpartition("-")[0] + "-v0"
    env = turngym.make(plain, difficulty=entry.kwargs["difficulty"])
    try:
        assert env.get_wrapper_attr("episode_limits")[0].max_turns == entry.max_turns
        assert env.spec is not None
        again = gymnasium.make(env.spec)  # as it is made in another process
        assert again.get_wrapper_attr("episode_limits")[0].max_turns == entry.max_turns
        again.close()
        for seed in range(6):
            env.reset(seed=seed)
            over = False
            while not over:
                _, _, terminated, truncated, info = env.step(
                    env.get_wrapper_attr("expert_action")()
                )
                over = terminated or truncated
            if "players" in info:  # the expert was all of them, and somebody may have lost
                assert info["stop_reason"] == "terminated"
            else:
                assert info["score"] == 1.0, f"seed {seed}: {info['stop_reason']}"
    finally:
        env.close()


@pytest.mark.parametrize(
    ("name", "kwargs", "turns"),
    [
        ("search/world-2hop", {"kind": "4hop"}, 20),
        ("search/world-2hop-hard", {"kind": "3hop"}, 16),
        ("search/world-2hop", {"reward": "f1"}, 12),
        ("text/maze-hard", {"difficulty": "easy"}, 14),
    ],
)
def test_turns_follow_what_was_asked_for(name: str, kwargs: dict[str, str], turns: int) -> None:
    env = turngym.make(name, **kwargs)
    assert env.get_wrapper_attr("episode_limits")[0].max_turns == turns
    env.close()
