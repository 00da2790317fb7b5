"""Settings that could not make progress are refused with the inequality that fails."""

from __future__ import annotations

from typing import Any

import pytest

from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.rollouts.scheduler.config import SchedulerConfig, check_schedule


def checked(group_size: int = 4, **settings: Any) -> SchedulerConfig:
    config = load_config(SchedulerConfig, [settings])
    check_schedule(config, group_size)
    return config


def test_the_defaults_make_progress() -> None:
    assert checked().required_buffer == 16


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"groups_per_step": 4, "buffer_groups": 7, "admission": {"staleness": 1}},
            "buffer_groups >= groups_per_step * oversampling * (staleness + 1) = 8, got 7",
        ),
        (
            {"groups_per_step": 4, "buffer_groups": 3, "admission": {"type": "windowed"}},
            "buffer_groups >= groups_per_step * oversampling = 4, got 3",
        ),
        ({"group": {"quorum": 5}}, "group.quorum <= group_size, got 5 > 4"),
        ({"group": {"patience": 2.0}}, "group.patience needs group.quorum"),
        (
            {"stale": "train_partial"},
            "stale='train_partial' does nothing with admission.type='in_order'",
        ),
        ({"budget": {"extra_turns": 2}}, "budget.extra_turns extends budget.max_turns"),
    ],
)
def test_what_cannot_make_progress_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(**settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"concurrency": 0}, "concurrency: Input should be greater than or equal to 1 (got 0)"),
        ({"budget": {"max_turns": 0}}, "budget.max_turns: Input should be greater than or equal"),
        ({"barrier": "sometimes"}, "barrier: Input should be 'none', 'batch' or 'turn'"),
        ({"admission": {"type": "capacty"}}, "Did you mean 'capacity'?"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(**settings)
    assert words in str(caught.value)


def test_only_a_lifted_bound_is_no_bound() -> None:
    assert checked(admission={"type": "windowed", "staleness": 3}).bound == 3
    assert checked(admission={"type": "windowed"}, stale="train").bound is None
