"""When groups begin and which ones a step takes, case by case."""

from __future__ import annotations

import pytest

from helpers.trajectories import turn
from turngym.rollouts.scheduler.admission import (
    Admitted,
    Candidate,
    LagCounts,
    SchedulerLoad,
    make_admission,
)
from turngym.rollouts.scheduler.config import (
    Capacity,
    InOrder,
    ReadyFirst,
    SchedulerConfig,
    Windowed,
)


def config(admission: object, **options: object) -> SchedulerConfig:
    return SchedulerConfig(groups_per_step=2, admission=admission, **options)  # type: ignore[arg-type]


def load(
    version: int = 0, running: int = 0, ready: int = 0, taken: int = 0, **targets: int
) -> SchedulerLoad:
    steps = {int(name[1:]): count for name, count in targets.items()}
    return SchedulerLoad(version=version, running=running, ready=ready, taken=taken, targets=steps)


def candidate(
    index: int, *, closed: int = 0, start_version: int = 0, target: int | None = None
) -> Candidate:
    return Candidate(index=index, closed=closed, start_version=start_version, target=target)


def test_lag_is_counted_by_token_and_by_episode() -> None:
    counts = LagCounts()
    counts.add(
        [turn(drawn=(3, 4, 5), version=2), turn(drawn=(6,), version=4)], step=4, start_version=1
    )
    counts.add([turn(drawn=(7, 8), version=4)], step=4, start_version=4)
    counts.add([], step=4, start_version=0)
    assert counts.metrics() == pytest.approx(
        {
            "lag/tokens_mean": 1.0,  # 2 for three of six
            "lag/tokens_max": 2.0,
            "lag/start_version_mean": 7 / 3,
            "lag/start_version_max": 4.0,
            "lag/oldest_mean": 1.0,
            "lag/oldest_max": 2.0,
            "lag/newest_mean": 0.0,
            "lag/newest_max": 0.0,
            "lag/tokens_at_0": 0.5,
            "lag/tokens_at_2": 0.5,
        }
    )
    assert LagCounts().metrics() == {}


@pytest.mark.parametrize(
    ("staleness", "batch", "version", "accepted", "running", "room"),
    [(0, 4, 0, 0, 0, 4), (2, 4, 0, 0, 0, 12), (2, 4, 0, 8, 4, 0), (2, 4, 1, 8, 4, 4),
     (2, 4, 3, 12, 8, 4)],
)  # fmt: skip
def test_capacity_leaves_room_for_what_can_be_consumed_in_time(
    staleness: int, batch: int, version: int, accepted: int, running: int, room: int
) -> None:
    rule = make_admission(
        SchedulerConfig(groups_per_step=batch, admission=Capacity(staleness=staleness))
    )
    waiting = accepted - version * batch  # every version consumed one batch
    begun = 0
    while rule.admit(load(version=version, running=running + begun, ready=waiting)):
        begun += 1
    assert begun == room


def test_in_order_stamps_the_first_step_that_lacks_a_group() -> None:
    rule = make_admission(config(InOrder(staleness=1)))
    assert rule.admit(load()) == Admitted(0)
    assert rule.admit(load(running=2, t0=2)) == Admitted(1)
    assert rule.admit(load(running=4, t0=2, t1=2)) is None
    assert rule.admit(load(running=3, t0=1, t1=2)) == Admitted(0)  # one was dropped: replaced


def test_in_order_0_begins_nothing_while_a_batch_is_trained() -> None:
    rule = make_admission(config(InOrder(staleness=0)))
    assert rule.admit(load(taken=2, t0=2)) is None
    assert rule.admit(load(taken=2, t0=1)) is None  # a left-over of a taken step is not replaced
    assert rule.admit(load(version=1)) == Admitted(1)


def test_in_order_takes_the_groups_of_the_step_whoever_closed_first() -> None:
    rule = make_admission(config(InOrder(staleness=1)))
    ready = [candidate(3, closed=1, target=1), candidate(0, closed=3, target=0)]
    assert rule.select(ready, 0, 2) is None
    ready.append(candidate(1, closed=4, target=0))
    chosen = rule.select(ready, 0, 2)
    assert chosen is not None
    assert [c.index for c in chosen] == [0, 1]
    assert rule.expired(candidate(9, target=0), 1)


def test_ready_first_takes_what_closed_first() -> None:
    rule = make_admission(config(ReadyFirst(staleness=1)))
    ready = [candidate(0, closed=9), candidate(5, closed=1), candidate(3, closed=2)]
    chosen = rule.select(ready, 4, 2)
    assert chosen is not None
    assert [c.index for c in chosen] == [3, 5]
    assert not rule.expired(candidate(0), 99)


def test_capacity_takes_what_began_first() -> None:
    rule = make_admission(config(Capacity(staleness=1)))
    ready = [candidate(4, closed=1), candidate(0, closed=9), candidate(3, closed=2)]
    chosen = rule.select(ready, 4, 2)
    assert chosen is not None
    assert [c.index for c in chosen] == [0, 3]


@pytest.mark.parametrize("freshest", [False, True])
def test_windowed_takes_the_oldest_or_the_freshest(freshest: bool) -> None:
    rule = make_admission(config(Windowed(staleness=2, freshest=freshest)))
    ready = [candidate(n, closed=n) for n in range(4)]
    chosen = rule.select(ready, 0, 2)
    assert chosen is not None
    assert [c.index for c in chosen] == ([2, 3] if freshest else [0, 1])


def test_windowed_evicts_what_was_begun_before_the_window() -> None:
    rule = make_admission(config(Windowed(staleness=2)))
    assert not rule.expired(candidate(0, start_version=3), 5)
    assert rule.expired(candidate(0, start_version=2), 5)


def test_pacing_begins_no_more_than_the_window_consumes() -> None:
    paced = make_admission(config(Windowed(staleness=1), buffer_groups=100))
    free = make_admission(config(Windowed(staleness=1, pace=False), buffer_groups=100))
    assert paced.admit(load(running=2, ready=1, taken=1)) is None
    assert free.admit(load(running=2, ready=1, taken=1)) == Admitted()
    assert free.admit(load(running=60, ready=40)) is None  # back-pressure of the buffer


@pytest.mark.parametrize("rule", [ReadyFirst(staleness=1), Capacity(staleness=1), Windowed()])
def test_a_dropped_group_gives_its_place_back(rule: ReadyFirst | Capacity | Windowed) -> None:
    admission = make_admission(config(rule))
    most = 2 * (rule.staleness + 1)
    assert admission.admit(load(version=7, running=most)) is None
    assert admission.admit(load(version=7, running=most - 1)) is not None


def test_oversampling_begins_more_groups_for_each_step() -> None:
    rule = make_admission(config(InOrder(), oversampling=1.5))
    assert rule.admit(load(running=2, t0=2)) == Admitted(0)
    assert rule.admit(load(running=3, t0=3)) is None
