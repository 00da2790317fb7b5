"""What the scheduler promises its consumer, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.scheduling import run_audited, scenario
from turngym.agents.policy import EpisodeContext
from turngym.errors import ConfigError
from turngym.rollouts.scheduler.config import GroupConfig, SchedulerConfig
from turngym.rollouts.scheduler.dispatch import Dispatcher
from turngym.rollouts.scheduler.groups import (
    FilterDecision,
    GroupRequest,
    OpenGroup,
    ReadyGroup,
    UniformSelection,
)
from turngym.rollouts.scheduler.ledger import Ledger
from turngym.rollouts.scheduler.metrics import ListSchedule, Stuck, Timeline, TooManyFaults
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.rollouts.simulation.simulate import (
    Scenario,
    SimEngine,
    SimEnv,
    SimPolicy,
    SimProfile,
    play_scenario,
    run_virtually,
    simulate,
)
from turngym.tasks.base import Task, procedural_task


def task(index: int) -> Task:
    return procedural_task("simulated", "train", index)


class Chosen(UniformSelection):
    """Remembers what it was asked and told; drops what it is told to drop."""

    def __init__(self, *, group_size: int = 4, drop: Sequence[int] = (), **options: Any) -> None:
        super().__init__(task, group_size=group_size, **options)
        self.drop = drop
        self.seen: list[ReadyGroup] = []

    def observe(self, group: ReadyGroup) -> None:
        self.seen.append(group)

    def admit(self, group: ReadyGroup) -> FilterDecision:
        return (
            FilterDecision.drop("dull") if group.index in self.drop else FilterDecision.keep(group)
        )


AHEAD = {"admission": {"staleness": 1}}
"""Episodes begin before the consumer asks."""


def scheduler_for(
    run: Scenario, selection: Any = None, *, ledger: Ledger | None = None
) -> tuple[RolloutScheduler, SimEngine]:
    engine = SimEngine()
    pool = EnvPool(lambda: SimEnv(run.profile), size=run.scheduler.concurrency)
    made = RolloutScheduler(
        pool,
        SimPolicy(engine, run.profile),
        selection or UniformSelection(task, group_size=run.group_size),
        run.scheduler,
        env_id="turngym/Simulated-v0",
        seed=run.seed,
        ledger=ledger,
    )
    return made, engine


def test_the_same_scenario_takes_the_same_course(tmp_path: Path) -> None:
    run = scenario(profile={"raise_share": 0.05}, scheduler={"failures": {"fraction": 1.0}})
    first, second = simulate(run), simulate(run)
    assert (first.digest, first.wall_s) == (second.digest, second.wall_s)
    assert simulate(scenario(seed=1)).digest != first.digest
    folders = [tmp_path / name for name in ("a", "b")]
    for path in folders:
        run_audited(run, path)
    tables = ("groups", "samples", "tries", "turns", "steps", "uses")
    assert dump(folders[0], tables) == dump(folders[1], tables)


def dump(path: Path, tables: Sequence[str]) -> list[Any]:
    ledger = Ledger(path)
    rows = [list(ledger.connection.execute(f"SELECT * FROM {name}")) for name in tables]
    ledger.abandon()
    return rows


def test_in_order_trains_the_same_groups_however_far_it_plays_ahead() -> None:
    digests = {
        simulate(scenario(scheduler={"admission": {"staleness": k}})).digest for k in (0, 1, 3)
    }
    assert len(digests) == 1


def test_playing_ahead_is_faster_than_waiting() -> None:
    sync = simulate(scenario(update_s=2.0))
    ahead = simulate(scenario(update_s=2.0, scheduler={"admission": {"staleness": 2}}))
    assert ahead.wall_s < 0.75 * sync.wall_s


@pytest.mark.parametrize("staleness", [0, 2])
def test_rollout_mode_is_as_fast_as_the_bound(staleness: int) -> None:
    walls = {barrier: one_pass(barrier, staleness) for barrier in ("none", "batch", "turn")}
    assert walls["none"][0] == pytest.approx(walls["none"][1], rel=1e-6)
    assert walls["batch"][0] > 1.3 * walls["none"][0]
    assert walls["turn"][0] > 1.3 * walls["batch"][0]
    assert walls["batch"][1] == pytest.approx(walls["none"][1])  # the very same episodes


def one_pass(barrier: str, staleness: int) -> tuple[float, float]:
    """Return the wall time of one step of 40 episodes on 8 slots, and the lower bound's."""
    run = scenario(
        steps=1,
        group_size=1,
        update_s=0.0,
        groups=40,
        scheduler={
            "barrier": barrier,
            "concurrency": 8,
            "groups_per_step": 40,
            "admission": {"staleness": staleness},
        },
    )
    timeline = Timeline()
    wall = run_virtually(play_scenario(run, timeline=timeline)).wall_s
    durations: dict[str, float] = {}
    for event in timeline.to_json()["traceEvents"]:
        if event["ph"] == "X" and event.get("cat") != "learner":
            key = event["name"].split()[1]
            durations[key] = durations.get(key, 0.0) + event["dur"] / 1e6
    in_order = [durations[key] for key in sorted(durations, key=lambda k: int(k.split(".")[0]))]
    return wall, ListSchedule(8, in_order).wall


def test_groups_hold_no_two_members_of_one_seed() -> None:
    selection = Chosen(group_size=8)
    run_virtually(play_scenario(scenario(group_size=8, steps=3), selection=selection))
    for group in selection.seen:
        seeds = [t.policy_seed for t in group.trajectories]
        assert len(set(seeds)) == len(seeds)
        assert len({t.env_seed for t in group.trajectories}) == 1
    seeds = [t.policy_seed for group in selection.seen for t in group.trajectories]
    assert len(set(seeds)) == len(seeds)


def test_members_are_as_often_alike_as_independent_draws_are() -> None:
    """First tokens are uniform over 256: a pair of members agrees with probability 1/256."""
    selection = Chosen(group_size=8)
    run = scenario(group_size=8, steps=40, profile={"tokens_per_turn": 1, "max_turns": 1})
    run_virtually(play_scenario(run, selection=selection))
    pairs = alike = 0
    for group in selection.seen:
        first = [t.turns[0].spans[1].token_ids[0] for t in group.trajectories]
        pairs += 28
        alike += sum(a == b for i, a in enumerate(first) for b in first[:i])
    expected = pairs / 256
    assert abs(alike - expected) <= 4 * expected**0.5 + 1


def test_filtered_groups_are_replaced_and_accounted_for(tmp_path: Path) -> None:
    selection = Chosen(drop=range(1, 9, 2))
    result, report = run_audited(scenario(steps=4), tmp_path / "l", selection=selection)
    assert result.steps == 4
    assert report.problems == []
    assert report.drops["filtered_dull"] == 16
    assert {group.index for group in selection.seen} >= {1, 3, 5, 7}  # they were observed


def test_the_condition_is_part_of_the_key_of_a_group() -> None:
    class Hinted(Chosen):
        def allocate(self, index: int, task: Task) -> GroupRequest:
            return GroupRequest(task=task, size=2, condition="hint" if index % 2 else "")

    selection = Hinted()
    run_virtually(play_scenario(scenario(steps=2), selection=selection))
    assert {("+hint" in group.group_id) == bool(group.index % 2) for group in selection.seen} == {
        True
    }


def test_a_prefix_is_carried_out_and_never_trained_on(tmp_path: Path) -> None:
    source = Chosen(group_size=1)
    run = scenario(group_size=1, profile={"min_turns": 4})
    run_virtually(play_scenario(run, selection=source))
    success = source.seen[0]

    class Prefixed(Chosen):
        def allocate(self, index: int, task: Task) -> GroupRequest:
            prefix = success.trajectories[0].turns[:2]
            seed = success.trajectories[0].env_seed
            return GroupRequest(
                task=success.request.task, size=2, condition="prefix2", env_seed=seed, prefix=prefix
            )

    selection = Prefixed()
    _, report = run_audited(scenario(steps=2), tmp_path / "l", selection=selection)
    assert report.problems == []
    for group in selection.seen:
        for member in group.members:
            given = member.trajectory.turns[:2]
            assert member.first_turn == 2
            assert [t.action for t in given] == [
                t.action for t in success.trajectories[0].turns[:2]
            ]
            assert sum(turn.num_sampled_tokens for turn in given) == 0


def test_a_prefix_that_leads_elsewhere_is_not_played(tmp_path: Path) -> None:
    source = Chosen(group_size=1)
    run = scenario(group_size=1, profile={"min_turns": 4})
    run_virtually(play_scenario(run, selection=source))

    class Wrong(Chosen):
        def allocate(self, index: int, task: Task) -> GroupRequest:
            return GroupRequest(task=task, size=2, prefix=source.seen[0].trajectories[0].turns[:2])

    with pytest.raises(TooManyFaults, match="prefix: turn 0 saw"):
        run_audited(scenario(), tmp_path / "l", selection=Wrong())


def test_an_environment_that_always_fails_ends_the_run_with_a_table() -> None:
    with pytest.raises(TooManyFaults) as caught:
        simulate(scenario(profile={"raise_share": 1.0}))
    lines = str(caught.value).splitlines()
    assert "tries ended by a fault" in lines[0]
    assert "simulated error of a step" in lines[1]


def test_hanging_steps_are_ended_by_their_deadline(tmp_path: Path) -> None:
    run = scenario(
        profile={"hang_share": 0.05},
        scheduler={"deadlines": {"step_s": 5.0}, "failures": {"fraction": 1.0}},
    )
    result, report = run_audited(run, tmp_path / "l")
    assert result.steps == 6
    assert report.problems == []
    assert result.metrics["pool/timeouts"] > 0


def test_faults_cost_little_more_than_the_work_they_destroy() -> None:
    """10 % of steps raise and 2 % hang: the slots stay as full as list scheduling fills them."""
    run = scenario(
        steps=1,
        group_size=2,
        groups=60,
        update_s=0.0,
        profile={"raise_share": 0.1, "hang_share": 0.02, "max_turns": 6},
        scheduler={
            "concurrency": 16,
            "groups_per_step": 60,
            "deadlines": {"step_s": 3.0},
            "retry": {"max_tries": 9, "quarantine_after": 99},
            "failures": {"fraction": 1.0},
        },
    )
    timeline = Timeline()
    result = run_virtually(play_scenario(run, timeline=timeline))
    tries: dict[tuple[int, int], float] = {}
    events = [e for e in timeline.to_json()["traceEvents"] if e["ph"] == "X" and e["tid"] > 0]
    number = dict.fromkeys({event["tid"] for event in events}, 0)
    for event in sorted(events, key=lambda e: e["ts"]):
        if event["name"].startswith("reset"):
            number[event["tid"]] += 1
        place = (event["tid"], number[event["tid"]])
        tries[place] = tries.get(place, 0.0) + event["dur"] / 1e6
    assert any(event["cat"] == "fault" for event in events)
    assert ListSchedule(16, tries.values()).wall / result.wall_s >= 0.85


def test_faults_are_retried_up_to_the_limit(tmp_path: Path) -> None:
    run = scenario(
        groups=3,
        group_size=1,
        profile={"raise_share": 1.0},
        scheduler={"failures": {"fraction": 1.0}, "retry": {"max_tries": 2}},
    )
    _, report = run_audited(run, tmp_path / "l")
    assert report.drops == {"error_env": 3}
    assert report.tries == {"error_env": 6}


def test_a_task_that_keeps_breaking_is_shut_out(tmp_path: Path) -> None:
    run = scenario(
        profile={"reset_error_share": 0.3},
        scheduler={"failures": {"fraction": 1.0}, "retry": {"quarantine_after": 2}},
    )
    result, report = run_audited(run, tmp_path / "l")
    assert result.steps == 6
    assert report.problems == []
    assert report.drops["quarantined"] > 0
    assert result.metrics["sched/quarantined"] > 0


def test_in_turns_what_a_step_left_is_not_played_on_while_it_trains() -> None:
    run = scenario(profile={"env_sigma": 2.0, "max_turns": 10}, scheduler={"oversampling": 2.0})

    async def play() -> None:
        scheduler, _ = scheduler_for(run)
        async with scheduler:
            batch = await scheduler.take()
            assert batch is not None
            counts = scheduler.counts()
            assert counts["sched/groups_running"] == 0
            assert scheduler.stats.groups["dropped_oversampled"] > 0

    run_virtually(play())


def test_slow_members_come_late_with_those_that_their_group_closed_with() -> None:
    late: list[ReadyGroup] = []
    run = scenario(
        steps=12,
        profile={"env_sigma": 2.0, "max_turns": 10},
        scheduler={
            "admission": {"type": "ready_first", "staleness": 3},
            "group": {"quorum": 2, "patience": 1.0},
        },
    )

    async def play() -> None:
        scheduler, engine = scheduler_for(run)
        async with scheduler:
            for step in range(12):
                batch = await scheduler.take()
                assert batch is not None
                late.extend(group for group in batch.extra if group.kind == "late")
                await asyncio.sleep(0.5)
                await scheduler.publish(step + 1, load=lambda: engine.load(step + 1))  # noqa: B023

    run_virtually(play())
    assert late
    assert all(len(group.members) == 1 for group in late)
    for group in late:
        assert len(group.siblings) >= 2
        mates = {t.policy_seed for t in group.siblings}
        assert group.trajectories[0].policy_seed not in mates
        assert {t.env_seed for t in group.siblings} == {group.trajectories[0].env_seed}


def test_redundant_members_are_dropped_and_their_bias_is_measured(tmp_path: Path) -> None:
    run = scenario(steps=8, scheduler={"group": {"redundancy": 2}, "concurrency": 18})
    result, report = run_audited(run, tmp_path / "l")
    assert report.problems == []
    assert report.drops["redundant"] >= 2 * 8
    assert "group/dropped_to_kept_turns" in result.metrics


def test_a_finished_source_gives_what_is_left_and_then_nothing() -> None:
    run = scenario(groups=7, steps=99)
    taken: list[int] = []

    async def play() -> None:
        scheduler, engine = scheduler_for(run, UniformSelection(task, group_size=4, count=7))
        async with scheduler:
            while (batch := await scheduler.take()) is not None:
                taken.append(len(batch.groups))
                version = batch.step + 1
                await scheduler.publish(version, load=lambda v=version: engine.load(v))

    run_virtually(play())
    assert taken == [3, 3, 1]


@pytest.mark.parametrize(
    ("before", "within"),
    [
        ((700, 10, 10), (10_000, 10, 10)),
        ((20_000, 5, 50), (20_000, 10, 50)),
        ((0, 10, 10), (0, 10, 10)),
    ],
)
def test_garbage_is_collected_less_often_while_episodes_run(
    before: tuple[int, int, int], within: tuple[int, int, int]
) -> None:
    seen = []

    async def play() -> None:
        scheduler, _ = scheduler_for(scenario())
        async with scheduler:
            seen.append(gc.get_threshold())
        seen.append(gc.get_threshold())

    usual = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        run_virtually(play())
    finally:
        gc.set_threshold(*usual)
    assert seen == [within, before]


def test_an_engine_that_did_not_take_the_weights_is_found_out_by_its_versions() -> None:
    """A publication that never reaches the engine leaves old versions on the tokens."""

    async def play() -> object:
        scheduler, _ = scheduler_for(scenario(), UniformSelection(task, group_size=4, count=7))
        async with scheduler:
            await scheduler.take()
            await scheduler.publish(1, load=lambda: None)
            found = await scheduler.take()
            assert scheduler.metrics()["drop/stale"] == 16
            return found

    assert run_virtually(play()) is None


def test_taking_twice_without_publishing_is_refused() -> None:
    async def play() -> None:
        scheduler, _ = scheduler_for(scenario())
        async with scheduler:
            await scheduler.take()
            with pytest.raises(RuntimeError, match="step 0 was taken before"):
                await scheduler.take()
            with pytest.raises(ValueError, match="version 5 does not follow 0"):
                await scheduler.publish(5)

    run_virtually(play())


def test_settings_that_do_not_fit_are_refused() -> None:
    pool = EnvPool(lambda: SimEnv(SimProfile()), size=2)
    selection = UniformSelection(task, group_size=4)
    with pytest.raises(ConfigError, match="pool size >= concurrency, got 2 < 8"):
        RolloutScheduler(
            pool,
            SimPolicy(SimEngine(), SimProfile()),
            selection,
            SchedulerConfig(concurrency=8),
            env_id="e",
            seed=0,
        )
    with pytest.raises(ConfigError, match=r"quorum <= group_size, got 5 > 4"):
        RolloutScheduler(
            pool,
            SimPolicy(SimEngine(), SimProfile()),
            selection,
            SchedulerConfig(concurrency=2, group=GroupConfig(quorum=5)),
            env_id="e",
            seed=0,
        )


def test_a_hook_that_raises_stops_the_run_with_its_error() -> None:
    class Broken(Chosen):
        def admit(self, group: ReadyGroup) -> FilterDecision:
            raise ZeroDivisionError("in my filter")

    with pytest.raises(ZeroDivisionError, match="in my filter"):
        run_virtually(play_scenario(scenario(), selection=Broken()))


def test_a_full_disk_pauses_admission_and_says_so(tmp_path: Path) -> None:
    async def play() -> None:
        async with Ledger(tmp_path / "l", threaded=False) as ledger:
            scheduler, _ = scheduler_for(scenario(scheduler=AHEAD), ledger=ledger)
            async with scheduler:
                await asyncio.sleep(1.0)
                pages = ledger.connection.execute("PRAGMA page_count").fetchone()[0]
                ledger.connection.execute(f"PRAGMA max_page_count = {pages}")
                await asyncio.sleep(60.0)
                assert ledger.trouble is not None
                assert "full" in ledger.trouble
                episodes = scheduler.stats.episodes
                await asyncio.sleep(60.0)
                assert scheduler.stats.episodes == episodes
                ledger.connection.execute("PRAGMA max_page_count = 1000000")
                assert await scheduler.take() is not None
                assert ledger.trouble is None

    run_virtually(play())


def test_the_watchdog_prints_the_stacks_of_stuck_episodes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = scenario(profile={"hang_share": 1.0}, scheduler={**AHEAD, "watchdog_s": 30.0})

    async def play() -> None:
        scheduler, _ = scheduler_for(run)
        async with scheduler:
            await asyncio.sleep(31.0)

    with caplog.at_level(logging.WARNING):
        run_virtually(play())
    assert "nothing happened for 30.0 s; 12 episodes run" in caplog.text
    assert "SimEnv.step" in caplog.text


ADMISSIONS = ["in_order", "ready_first", "windowed", "capacity"]


def take_all(run: Scenario, spoil: Callable[[RolloutScheduler], None]) -> int:
    """Train on twelve groups of a scheduler that ``spoil`` broke; return the number of updates."""

    async def play() -> int:
        scheduler, engine = scheduler_for(run, UniformSelection(task, group_size=4, count=12))
        spoil(scheduler)
        updates = 0
        async with scheduler:
            while (batch := await scheduler.take()) is not None:
                updates, version = updates + 1, batch.step + 1
                await scheduler.publish(version, load=lambda v=version: engine.load(v))
        return updates

    return run_virtually(play())


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_a_take_that_waits_for_a_lost_episode_ends_with_a_table(
    admission: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_group = Dispatcher.add_group

    def lose_one(dispatch: Dispatcher, group: OpenGroup) -> None:
        add_group(dispatch, group)
        if group.index == 1:
            dispatch._jobs.pop()

    monkeypatch.setattr(Dispatcher, "add_group", lose_one)
    run = scenario(scheduler={"admission": {"type": admission, "staleness": 1}})
    with pytest.raises(Stuck, match="nothing can begin: 0 episodes run, 0 are queued") as caught:
        take_all(run, lambda _: None)
    row = next(line for line in str(caught.value).splitlines() if "simulated/train/1" in line)
    assert row.split()[0] == "1"
    assert row.split()[-3:] == ["3", "3", "simulated/train/1"]  # finished, missing, task


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_an_admission_that_lets_nothing_begin_ends_the_take(admission: str) -> None:
    def close(scheduler: RolloutScheduler) -> None:
        scheduler._admission.admit = lambda load: None  # type: ignore[method-assign]

    run = scenario(scheduler={"admission": {"type": admission, "staleness": 1}})
    with pytest.raises(Stuck, match=r"waits for 3 groups, has 0.*\n.*no group is open"):
        take_all(run, close)


def test_the_watchdog_ends_a_take_that_nobody_lets_go_on() -> None:
    run = scenario(scheduler={"watchdog_s": 30.0})
    with pytest.raises(Stuck, match="nothing can begin: 0 episodes run"):
        take_all(run, lambda scheduler: setattr(scheduler, "_held", 1))


def test_an_episode_that_will_not_end_is_left_behind_on_closing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stubborn(SimEnv):
        async def step(self, action: str) -> Any:
            while not released.is_set():
                with suppress(asyncio.CancelledError):
                    await released.wait()
            return await super().step(action)

    async def play() -> None:
        run = scenario(scheduler=AHEAD)
        pool = EnvPool(lambda: Stubborn(run.profile), size=run.scheduler.concurrency)
        policy = SimPolicy(SimEngine(), run.profile)
        selection = UniformSelection(task, group_size=4)
        async with RolloutScheduler(pool, policy, selection, run.scheduler, env_id="e", seed=0):
            await asyncio.sleep(5.0)
        released.set()

    released = asyncio.Event()
    with caplog.at_level(logging.WARNING):
        run_virtually(play())
    assert "left behind on closing" in caplog.text
    assert "Stubborn.step" in caplog.text


def test_a_cancellation_that_comes_while_environments_are_closed_leaves_none_open() -> None:
    closed: list[SimEnv] = []

    class Slow(SimEnv):
        async def close(self) -> None:
            await asyncio.sleep(1.0)
            closed.append(self)

    async def play() -> None:
        run = scenario(scheduler=AHEAD)
        pool = EnvPool(lambda: Slow(run.profile), size=run.scheduler.concurrency)
        policy = SimPolicy(SimEngine(), run.profile)
        selection = UniformSelection(task, group_size=4)

        async def use() -> None:
            async with RolloutScheduler(pool, policy, selection, run.scheduler, env_id="e", seed=0):
                await asyncio.sleep(5.0)

        using = asyncio.create_task(use())
        await asyncio.sleep(5.5)
        assert not closed
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
        assert len(closed) == pool.stats.made > 1

    run_virtually(play())


def test_the_timeline_is_a_trace_that_perfetto_opens(tmp_path: Path) -> None:
    timeline = Timeline()
    run_virtually(play_scenario(scenario(), timeline=timeline))
    timeline.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["cat"] for event in spans} == {"env", "policy", "learner"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
    assert {event["name"] for event in trace["traceEvents"] if event["ph"] == "i"} >= {"version 1"}
    ends: dict[int, float] = {}
    for event in sorted(spans, key=lambda e: e["ts"]):  # nothing overlaps inside a slot
        assert event["ts"] >= ends.get(event["tid"], 0.0) - 1
        ends[event["tid"]] = event["ts"] + event["dur"]


def test_extra_turns_and_limits_end_episodes_as_truncated() -> None:
    selection = Chosen()
    run = scenario(profile={"min_turns": 6}, scheduler={"budget": {"max_turns": 3}})
    run_virtually(play_scenario(run, selection=selection))
    stops = {t.stop_reason.value for group in selection.seen for t in group.trajectories}
    assert stops == {"truncated_turns"}
    assert {len(t.turns) for group in selection.seen for t in group.trajectories} == {3}


def test_turns_that_were_granted_stay_granted_where_an_episode_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = SimEnv.step

    async def pays_once(env: SimEnv, action: str) -> Any:
        observation, _, *rest = await step(env, action)
        return observation, float(env._turns == 1), *rest

    monkeypatch.setattr(SimEnv, "step", pays_once)
    run = scenario(
        update_s=0.4,
        profile={"policy_s": 1.0, "min_turns": 9, "max_turns": 9},
        scheduler={
            "interruption": "abort_requeue",
            "admission": {"type": "capacity", "staleness": 3},
            "budget": {"max_turns": 4, "extra_turns": 2},
        },
    )
    selection = Chosen()
    run_virtually(play_scenario(run, selection=selection))
    assert {len(t.turns) for group in selection.seen for t in group.trajectories} == {6}


def test_breaking_off_is_refused_for_a_policy_that_cannot_take_episodes_up() -> None:
    class Forgetful(SimPolicy):
        def start(self, context: EpisodeContext) -> Any:
            session = super().start(context)
            return SimpleNamespace(act=session.act, close=session.close)

    run = scenario(
        scheduler={
            "interruption": "abort_requeue",
            "admission": {"type": "capacity", "staleness": 2},
        }
    )

    async def play() -> None:
        pool = EnvPool(lambda: SimEnv(run.profile), size=run.scheduler.concurrency)
        engine = SimEngine()
        async with RolloutScheduler(
            pool,
            Forgetful(engine, run.profile),
            Chosen(),
            run.scheduler,
            env_id="turngym/Simulated-v0",
            seed=0,
        ) as scheduler:
            while (batch := await scheduler.take()) is not None:
                await asyncio.sleep(0.5)
                await scheduler.publish(batch.step + 1, partial(engine.load, batch.step + 1))

    with pytest.raises(ConfigError, match="sessions of SimpleNamespace have no replay"):
        run_virtually(play())


@pytest.mark.parametrize(
    ("interruption", "mixed"),
    [("continue_partial", True), ("drain", False), ("abort_requeue", False)],
)
def test_new_weights_cut_into_an_action_only_where_that_is_wanted(
    interruption: str, mixed: bool
) -> None:
    selection = Chosen()
    run = scenario(
        steps=10,
        update_s=0.4,
        profile={"policy_s": 1.0},
        scheduler={
            "interruption": interruption,
            "admission": {"type": "capacity", "staleness": 3},
        },
    )
    run_virtually(play_scenario(run, selection=selection))
    turns = [turn for group in selection.seen for t in group.trajectories for turn in t.turns]
    versions = [{s.policy_version for s in turn.spans if s.sampled} for turn in turns]
    assert any(len(found) > 1 for found in versions) == mixed
    episodes = [
        {s.policy_version for s in t.spans if s.sampled}
        for group in selection.seen
        for t in group.trajectories
    ]
    assert any(len(found) > 1 for found in episodes) == (interruption != "drain")


def test_a_group_that_never_closes_is_refused_when_it_is_requested() -> None:
    class Small(Chosen):
        def allocate(self, index: int, task: Task) -> GroupRequest:
            return GroupRequest(task=task, size=4 if index < 2 else 1)

    run = scenario(scheduler={"group": {"quorum": 3}})
    with pytest.raises(ConfigError, match="quorum <= group_size, got 3 > 1"):
        run_virtually(play_scenario(run, selection=Small()))


def test_a_group_may_be_larger_than_what_is_alive_at_once() -> None:
    run = scenario(scheduler={"concurrency": 2}, steps=2)
    result = run_virtually(play_scenario(run, selection=(selection := Chosen())))
    assert result.steps == 2
    assert all(len(group.members) == 4 for group in selection.seen)


def test_nothing_begins_outside_take_when_nothing_may_be_ahead() -> None:
    async def play() -> None:
        scheduler, engine = scheduler_for(scenario())
        async with scheduler:
            await asyncio.sleep(9)
            assert scheduler.metrics()["sched/running"] == 0
            assert await scheduler.take() is not None
            await scheduler.publish(1, load=partial(engine.load, 1))
            await asyncio.sleep(9)
            assert scheduler.metrics()["sched/running"] == 0

    run_virtually(play())
