"""The issue tracker: a real program, judged on its database.

The normal suite plays a few kinds of tasks; ``make conformance`` plays all of them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing

import pytest

from turngym import registry
from turngym.agents.scripted import OraclePolicy
from turngym.environments.checks import check_fork, check_turn_env
from turngym.environments.web.browser import BrowserHost
from turngym.environments.web.chromium import NEED
from turngym.environments.web.sites.program import Slot
from turngym.environments.web.sites.tracker.env import TrackerEnv
from turngym.environments.web.sites.tracker.kinds import TRACKER_KINDS
from turngym.environments.web.sites.tracker.program import TRACKER
from turngym.environments.web.sites.tracker.state import read_state
from turngym.environments.web.sites.tracker.tasks import TEMPLATES
from turngym.errors import ConfigError
from turngym.rollouts.collect import collect, group_specs
from turngym.tasks.base import procedural_task

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
SOLVED = TRACKER_KINDS if IS_FULL else ("bulk", "file")

needs_tracker = pytest.mark.skipif(
    not TRACKER.is_installed,
    reason="needs Trac: python -m turngym.environments.web.sites.install tracker",
)
pytestmark = [pytest.mark.extra("playwright", NEED), pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def browser():
    """Share one browser among all tests here."""
    host = BrowserHost.lease()
    yield host
    host.release()


def test_every_kind_is_registered_and_there_are_at_least_fifteen():
    names = {entry.short_name for entry in registry.match("web/*")}
    assert {f"web/tracker-{kind}" for kind in TRACKER_KINDS} <= names
    assert set(TRACKER_KINDS) == set(TEMPLATES)
    assert len(TRACKER_KINDS) >= 15


def test_a_missing_program_is_named_with_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"python -m turngym\.environments\.web\.sites\.install"):
        TrackerEnv(kind="close")


@needs_tracker
@pytest.mark.parametrize("kind", SOLVED)
async def test_the_expert_does_the_job(kind):
    specs = [
        spec
        for index in range(5 if IS_FULL else 1)
        for spec in group_specs(
            f"turngym/Tracker-{kind}-v0",
            procedural_task(f"tracker-{kind}", "test" if index % 2 else "train", index),
            seed=0,
            group_size=1,
        )
    ]
    played = await collect(lambda: TrackerEnv(kind=kind), OraclePolicy(), specs, concurrency=1)
    assert [t.error for t in played if t.error] == []
    assert [(t.task_id, t.score) for t in played if not t.is_success] == []
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []


@needs_tracker
async def test_idle_half_done_and_damage_score_nothing_and_a_reset_forgets_them():
    env = TrackerEnv(kind="retarget")
    try:
        await env.reset(seed=0)
        _, reward, terminated, _, _ = await env.step("stop")
        assert (reward, terminated) == (0.0, True)

        async def play(damage: str) -> float:
            await env.reset(seed=0)
            with closing(sqlite3.connect(env._slot.database)) as connection:
                assert read_state(connection) == env._before
            action = env.oracle_action()
            while action != "stop":
                await env.step(action)
                action = env.oracle_action()
            with closing(sqlite3.connect(env._slot.database, timeout=10)) as connection:
                connection.execute(damage)
                connection.commit()
            return (await env.step("stop"))[1]

        assert await play("SELECT 1") == 1.0
        assert await play("UPDATE ticket SET milestone = '' WHERE id = 1") == 0.0
        assert await play("DELETE FROM wiki WHERE name = 'OnCall'") == 0.0
        assert await play("INSERT INTO milestone (name, due, completed) VALUES ('x', 0, 0)") == 0.0
    finally:
        await env.close()


@needs_tracker
async def test_two_episodes_at_once_never_see_each_other():
    one, two = TrackerEnv(kind="comment"), TrackerEnv(kind="comment")
    try:
        await asyncio.gather(one.reset(seed=1), two.reset(seed=1))
        action = one.oracle_action()
        while action != "stop":
            await one.step(action)
            action = one.oracle_action()
        _, reward, _, _, _ = await two.step("stop")
        assert reward == 0.0
        _, reward, _, _, _ = await one.step("stop")
        assert reward == 1.0
    finally:
        await one.close()
        await two.close()


@needs_tracker
async def test_a_server_that_died_is_started_again_by_the_next_reset():
    slot = Slot(TRACKER)
    await slot.reset()
    assert slot._process is not None
    slot._process.kill()
    await slot._process.wait()
    port = slot.port
    await slot.reset()
    assert slot.port != port
    folder = slot.database.parent
    await slot.stop()
    assert not folder.exists()


if IS_FULL:

    @needs_tracker
    def test_the_tracker_keeps_every_promise():
        check_turn_env("web/tracker-close", episodes=1, tasks=3, max_turns=6).raise_on_failure()
        check_fork("web/tracker-close", episodes=2, max_turns=4).raise_on_failure()
