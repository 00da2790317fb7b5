"""An episode that was broken off goes on as if it had not been."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers import models
from helpers.envs import AsyncReplayLadderEnv, LadderEnv
from helpers.policies import Saying
from helpers.scheduling import scenario
from turngym.agents.policy import Policy
from turngym.agents.scripted import RandomPolicy
from turngym.errors import RecordError
from turngym.rollouts.episode import CannotReplay, EpisodeSpec, ReplayedTurn, digest_of, rollout
from turngym.rollouts.scheduler.audit import audit
from turngym.rollouts.scheduler.groups import FilterDecision, ReadyGroup, UniformSelection
from turngym.rollouts.scheduler.ledger import Ledger
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.rollouts.scheduler.recovery import recover
from turngym.rollouts.scheduler.scheduler import RolloutScheduler
from turngym.rollouts.simulation.simulate import SimEngine, SimEnv, SimPolicy, run_virtually
from turngym.tasks.base import procedural_task
from turngym.types import Trajectory

SPEC = EpisodeSpec(
    env_id="ladder", task=procedural_task("ladder", "train", 3), env_seed=5, policy_seed=9
)


def played(episode: Trajectory, count: int) -> list[ReplayedTurn]:
    return [
        ReplayedTurn(turn, digest_of({"text": turn.observation[-1].content}))
        for turn in episode.turns[:count]
    ]


@pytest.mark.parametrize("policy", [RandomPolicy(), models.policy(max_new_tokens=4)])
async def test_the_rest_of_an_episode_is_the_same_to_the_token(policy: Policy) -> None:
    class Short(LadderEnv):
        def __init__(self) -> None:
            super().__init__(top=9)
            self.left = 5

        def step(self, action: str) -> Any:
            self.left -= 1
            observation, reward, terminated, truncated, info = super().step(action)
            if self.left == 0 and not terminated:
                truncated = True
                info |= {"stop_reason": "truncated_turns"}
            return observation, reward, terminated, truncated, info

    whole = await rollout(Short(), policy, SPEC)
    assert len(whole.turns) >= 3
    again = await rollout(Short(), policy, SPEC, played=played(whole, 2))
    assert [turn.action for turn in again.turns] == [turn.action for turn in whole.turns]
    ids = [[span.token_ids for span in turn.spans] for turn in whole.turns]
    assert [[span.token_ids for span in turn.spans] for turn in again.turns] == ids
    drawn = [p for span in whole.spans for p in span.logprobs]
    assert [p for span in again.spans for p in span.logprobs] == pytest.approx(drawn, abs=1e-5)


async def test_an_environment_that_answers_otherwise_is_found_out() -> None:
    whole = await rollout(LadderEnv(), RandomPolicy(), SPEC)
    elsewhere = procedural_task("ladder", "train", 4)
    spec = EpisodeSpec(env_id="ladder", task=elsewhere, env_seed=5, policy_seed=9)
    with pytest.raises(CannotReplay, match="turn 0 saw"):
        await rollout(LadderEnv(), RandomPolicy(), spec, played=played(whole, 1))


async def test_a_session_without_replay_cannot_be_taken_up() -> None:
    whole = await rollout(AsyncReplayLadderEnv(), Saying("jump 3"), SPEC)
    with pytest.raises(CannotReplay, match="sessions of Session have no replay"):
        await rollout(AsyncReplayLadderEnv(), Saying("jump 3"), SPEC, played=played(whole, 1))


class Judged(SimEnv):
    """Gets ahead in every second turn; where it is cut off, its judge takes a second."""

    async def step(self, action: str) -> Any:
        *answer, info = await super().step(action)
        return *answer, info | {"potential": float(self._turns // 2)}

    async def end_at_limit(self) -> None:
        await asyncio.sleep(1.0)


LIMITS = {"budget": {"max_turns": 2, "extra_turns": 2, "max_extensions": 2}}
BROKEN = {"raise_share": 0.08}
SHUT_OUT = {
    "admission": {"staleness": 0},
    "retry": {"quarantine_after": 2},
    "failures": {"fraction": 1.0},
}


@pytest.mark.parametrize(
    ("env", "profile", "limits", "quarters"),
    [
        (SimEnv, {}, {}, range(1, 80, 2)),
        (SimEnv, BROKEN, {}, range(1, 80, 9)),
        (SimEnv, BROKEN, {"barrier": "batch"}, range(1, 80, 9)),
        (SimEnv, {"raise_share": 0.1}, SHUT_OUT, range(1, 80, 10)),
        (Judged, {}, LIMITS, range(1, 80, 7)),
    ],
)
def test_a_run_that_is_stopped_at_any_moment_ends_as_one_that_was_not(
    tmp_path: Path, env: type[SimEnv], profile: Any, limits: Any, quarters: range
) -> None:
    """`in_order` trains the same batches, stopped or not; every episode is used once.

    Where a stop loses updates, turns of the lost weights count as older, so that fewer of them may
    be trained on: then only the account has to be right.
    """
    parts = {"admission": {"staleness": 1}, **limits}
    run = scenario(scheduler=parts, profile=profile, steps=6)
    wanted = play(tmp_path / "whole", run, [], env=env)
    ended_alike = 0
    for quarter in quarters:
        moment = quarter / 4
        lost: list[int] = []
        path = tmp_path / f"stopped_at_{moment}"
        found = play(path, run, [moment, moment + 2.0], lost=lost, env=env)
        report = audit(path)
        assert report.problems == []
        assert report.steps["checkpointed"] == len(found) == 6
        assert report.lineages == 3
        if not any(lost):
            assert found == wanted, moment
            ended_alike += 1
    assert ended_alike >= len(quarters) / 4


def test_a_late_member_that_was_trained_stays_so_where_its_group_got_stale(tmp_path: Path) -> None:
    parts = {
        "admission": {"type": "ready_first", "staleness": 0},
        "concurrency": 5,
        "oversampling": 1.4,
        "barrier": "turn",
        "interruption": "drain",
        "group": {"quorum": 3, "patience": 3.0},
    }
    run = scenario(scheduler=parts, profile={"max_turns": 2}, steps=6)
    play(tmp_path / "l", run, [12.0, 22.0])
    report = audit(tmp_path / "l")
    assert report.problems == []
    assert report.groups["dropped"] > 0


class Dropping(UniformSelection):
    """Drops every third group."""

    def admit(self, group: ReadyGroup) -> FilterDecision:
        return FilterDecision.keep(group) if group.index % 3 else FilterDecision.drop("third")


@pytest.mark.parametrize("moment", [0.5, 3.0, 5.5, 8.0, 10.5, 13.0])
def test_groups_are_dropped_while_members_of_theirs_still_run(
    tmp_path: Path, moment: float
) -> None:
    run = scenario(scheduler={"group": {"quorum": 2, "patience": 0.5}}, steps=6)
    play(tmp_path / "l", run, [moment, moment + 2.0], selection=Dropping)
    report = audit(tmp_path / "l")
    assert report.problems == []
    assert report.drops["filtered_third"] > 0


def test_an_older_checkpoint_trains_on_what_was_trained_on_since(tmp_path: Path) -> None:
    run = scenario(steps=6)
    play(tmp_path / "l", run, [], checkpoints=3)
    ledger = Ledger(tmp_path / "l", threaded=False)
    found = recover(ledger, 2, seed=lambda index: index)
    ledger.abandon()
    assert sorted(found.batches) == [2, 3, 4, 5]
    assert all(len(batch) == 3 for batch in found.batches.values())
    report = audit(tmp_path / "l")
    assert report.problems == []
    assert report.steps == {"checkpointed": 2, "reserved": 4}


def test_turns_that_no_checkpoint_needs_lose_their_content(tmp_path: Path) -> None:
    path = tmp_path / "l"
    play(path, scenario(steps=6), [], checkpoints=2)  # at updates 4 and 6
    assert audit(path).problems == []
    with closing(sqlite3.connect(path)) as db:
        query = "SELECT step, MIN(length(packed)), MAX(length(packed)) FROM turns JOIN uses "
        sizes = db.execute(f"{query} USING (grp, member) GROUP BY step ORDER BY step").fetchall()
    assert [(least > 0, most > 0) for _, least, most in sizes] == [(False,) * 2] * 4 + [
        (True,) * 2
    ] * 2
    ledger = Ledger(path, threaded=False)
    assert sorted(recover(ledger, 4, seed=lambda index: index).batches) == [4, 5]
    with pytest.raises(RecordError, match="its turns are gone, since it was done before the"):
        recover(ledger, 2, seed=lambda index: index)
    ledger.abandon()
    assert "may be trained on, but turns of it are gone" in audit(path).problems[0]


def play(
    path: Path,
    run: Any,
    stops: list[float],
    *,
    lost: list[int] | None = None,
    env: type[SimEnv] = SimEnv,
    selection: type[UniformSelection] = UniformSelection,
    checkpoints: int = 1,
) -> list[Any]:
    """Train 6 steps; stop without warning after each of ``stops`` seconds, checkpoint every 2.

    The ledger keeps what the newest ``checkpoints`` need.
    Appends to ``lost``, for each part, how many updates had no checkpoint when it ended.
    """
    trained: dict[int, Any] = {}
    checkpoint = 0
    for stop in [*stops, None]:

        async def part(stop: float | None = stop, version: int = checkpoint) -> int:
            engine = SimEngine()
            engine.load(version)
            saved = version
            ledger = Ledger(path, threaded=False, checkpoints=checkpoints)
            pool = EnvPool(lambda: env(run.profile), size=run.scheduler.concurrency)
            try:
                async with (
                    asyncio.timeout(stop),
                    RolloutScheduler(
                        pool,
                        SimPolicy(engine, run.profile),
                        selection(lambda i: procedural_task("simulated", "train", i), group_size=4),
                        run.scheduler,
                        env_id="turngym/Simulated-v0",
                        seed=0,
                        version=version,
                        ledger=ledger,
                    ) as scheduler,
                ):
                    while version < 6:
                        batch = await scheduler.take()
                        assert batch is not None
                        assert scheduler.metrics()["waste/share"] <= 1
                        content = [
                            (group.index, member.number, [t.action.content for t in member.trained])
                            for group in batch.groups
                            for member in group.members
                        ]
                        assert trained.setdefault(version, content) == content
                        await asyncio.sleep(0.5)
                        version += 1
                        await scheduler.publish(version, load=partial(engine.load, version))
                        if version % 2 == 0:
                            await ledger.flush()
                            scheduler.mark_checkpointed(version)
                            saved = version
            except TimeoutError:
                await asyncio.sleep(0)  # what was written in this breath; the rest is lost
            finally:
                if lost is not None:
                    lost.append(version - saved)
                ledger.abandon()
            return saved

        checkpoint = run_virtually(part())
    return [trained[step] for step in sorted(trained)]
