"""The web applications: real programs, judged on their databases.

The normal suite plays a few kinds of tasks in three of them; ``PART=sites`` plays all in all
four, five seeds each.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from contextlib import closing, suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from turngym import registry
from turngym.agents.scripted import ExpertPolicy
from turngym.environments.checks.check import check_fork, check_turn_env
from turngym.environments.checks.probes import children_of
from turngym.environments.web import SITES
from turngym.environments.web.chromium import NEED
from turngym.environments.web.sites.catalogue import PROGRAMS, env_class
from turngym.environments.web.sites.install import main as install
from turngym.environments.web.sites.program import DATABASES, Slot
from turngym.errors import ConfigError, EnvironmentFault
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.tasks.base import procedural_task

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
ALL = [(site, kind) for site, kinds in SITES.items() for kind in kinds]
QUICK = [("tracker", "file"), ("forum", "poll"), ("shop", "order")]
LONG_ENOUGH = {"tracker": "explain", "forum": "edit", "shop": "moved", "wiki": "discuss"}
"""A kind whose expert fills a form, so that half of it can be done."""
DAMAGE = {
    "tracker": (
        "UPDATE ticket SET milestone = '' WHERE id = 1",
        "DELETE FROM wiki WHERE name = 'OnCall'",
        "INSERT INTO milestone (name, due, completed) VALUES ('x', 0, 0)",
    ),
    "forum": (
        "DELETE FROM forum_conversation_topic_subscribers",
        "UPDATE forum_conversation_post SET content = 'x' WHERE id = 1",
        "UPDATE auth_user SET is_active = 0 WHERE username = 'ben'",
    ),
    "shop": (
        "DELETE FROM wishlists_line",
        "UPDATE partner_stockrecord SET price = 1 WHERE id = 1",
        "UPDATE basket_line SET quantity = 9",
        "UPDATE address_useraddress SET state = 'x' WHERE id = 1",
    ),
    "wiki": (
        "DELETE FROM user_groups",
        "DELETE FROM page WHERE page_title = 'Nordra'",
        "UPDATE user SET user_real_name = 'x' WHERE user_name = 'Dan'",
    ),
}
INSTALLED = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            not program.is_installed,
            reason=f"needs it: python -m turngym.environments.web.sites.install {name}",
        ),
    )
    for name, program in PROGRAMS.items()
    if IS_FULL or name != "wiki"  # which needs PHP
]
pytestmark = [
    pytest.mark.extra("playwright", NEED),
    pytest.mark.timeout(2400),
    pytest.mark.usefixtures("browser"),
]


async def finish(env) -> tuple[float, list[str]]:
    """Let the expert do the rest; return the reward and its actions."""
    done: list[str] = []
    terminated, reward = False, 0.0
    while not terminated:
        done.append(env.expert_action())
        _, reward, terminated, _, info = await env.step(done[-1])
        assert "invalid_action" not in info, (done, info["invalid_action"])
    return reward, done


@pytest.mark.parametrize("site", SITES)
def test_every_kind_is_registered_and_there_are_at_least_fifteen(site):
    names = {entry.short_name for entry in registry.match("web/*")}
    assert {f"web/{site}-{kind}" for kind in SITES[site]} <= names
    assert all(callable(env_class(site).generator(kind)) for kind in SITES[site])
    assert len(SITES[site]) >= 15


@pytest.mark.parametrize("site", SITES)
def test_a_missing_program_is_named_with_the_command(site, monkeypatch, tmp_path):
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path))
    command = rf"python -m turngym\.environments\.web\.sites\.install {site}"
    with pytest.raises(ConfigError, match=command):
        env_class(site)(kind=SITES[site][0])


def test_an_unknown_program_or_kind_is_named():
    with pytest.raises(ConfigError, match="'shopp'"):
        install(["shopp"])
    with pytest.raises(ConfigError, match="'buy'"):
        env_class("shop")(kind="buy")


def test_a_wiki_without_php_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNGYM_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt-get install php-cli"):
        install(["wiki"])


@pytest.mark.parametrize("site", INSTALLED)
def test_every_kind_has_several_problems_in_both_splits_and_none_is_solved_already(site):
    make = env_class(site)
    for kind in SITES[site]:
        tasks = make(kind=kind).tasks
        for split in ("train", "test"):
            problems = [tasks.problem(tasks.task(split, index)) for index in range(60)]
            assert len({one.prompt for one in problems}) >= 3, (kind, split)
            for one in problems:
                assert one.truth or one.wanted != make.content(one.number), kind


@pytest.mark.parametrize("site", INSTALLED)
def test_no_constant_answer_is_mostly_right_and_every_database_is_another(site):
    make = env_class(site)
    data = [make.content(number) for number in range(DATABASES)]
    assert all(one != other for one, other in combinations(data, 2))
    for kind in SITES[site]:
        tasks = make(kind=kind).tasks
        for split in ("train", "test"):
            problems = [tasks.problem(tasks.task(split, index)) for index in range(60)]
            truths = [one.truth for one in problems if one.truth]
            if truths:
                assert max(map(truths.count, truths)) < 0.5 * len(truths), (kind, split)


@pytest.mark.parametrize(("site", "kind"), ALL if IS_FULL else QUICK)
async def test_the_expert_does_the_job(site, kind):
    if not PROGRAMS[site].is_installed:
        pytest.skip(f"needs it: python -m turngym.environments.web.sites.install {site}")
    specs = [
        spec
        for index in range(5 if IS_FULL else 1)
        for spec in group_specs(
            f"turngym/{site.capitalize()}-{kind}-v0",
            procedural_task(f"{site}-{kind}", "test" if index % 2 else "train", index),
            seed=0,
            group_size=1,
        )
    ]
    make = env_class(site)
    played = await collect(lambda: make(kind=kind), ExpertPolicy(), specs, concurrency=1)
    assert [t.error for t in played if t.error] == []
    assert [(t.task_id, t.score) for t in played if not t.is_success] == []
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []


@pytest.mark.parametrize("site", INSTALLED)
async def test_idle_half_done_and_damage_score_nothing_and_a_reset_forgets_them(site):
    env = env_class(site)(kind=LONG_ENOUGH[site])
    try:
        await env.reset(seed=0)
        before = env.data()
        _, reward, terminated, _, _ = await env.step("stop")
        assert (reward, terminated) == (0.0, True)

        await env.reset(seed=0)
        reward, done = await finish(env)
        assert reward == 1.0

        await env.reset(seed=0)
        assert env.data() == before
        for action in done[:-2]:  # all but the last click
            await env.step(action)
        assert (await env.step("stop"))[1] == 0.0

        for harm in DAMAGE[site]:
            await env.reset(seed=0)
            for action in done[:-1]:
                await env.step(action)
            assert env.data() == env.problem.wanted
            with closing(env.slot.connect()) as connection:
                connection.execute(harm)
                connection.commit()
            assert (await env.step("stop"))[1] == 0.0, harm
            if not IS_FULL:
                break
    finally:
        await env.close()


@pytest.mark.parametrize("site", INSTALLED if IS_FULL else INSTALLED[1:2])
async def test_two_episodes_at_once_never_see_each_other(site):
    make = env_class(site)
    one, two = make(kind=LONG_ENOUGH[site]), make(kind=LONG_ENOUGH[site])
    try:
        await asyncio.gather(one.reset(seed=1), two.reset(seed=1))
        assert (await finish(one))[0] == 1.0
        assert (await two.step("stop"))[1] == 0.0
    finally:
        await one.close()
        await two.close()


@pytest.mark.parametrize("site", INSTALLED if IS_FULL else INSTALLED[1:2])
async def test_a_fork_goes_on_from_a_half_filled_form_without_its_parent(site):
    env = env_class(site)(kind=LONG_ENOUGH[site])
    children = []
    try:
        await env.reset(seed=0)
        _, done = await finish(env)
        await env.reset(seed=0)
        for action in done[:-2]:
            await env.step(action)
        state = pickle.loads(pickle.dumps(await env.snapshot()))
        assert state.kind == "fs"
        assert state.state.on_page > 0
        children = [env.clone(), *await env.fork(1)]
        await children[0].restore(state)
        assert [child.page() for child in children] == [env.page()] * 2
        assert (await finish(children[0]))[0] == 1.0
        assert (await children[1].step("stop"))[1] == 0.0
        assert (await finish(env))[0] == 1.0
    finally:
        for one in (env, *children):
            await one.close()


async def test_going_back_in_a_fork_leads_where_it_leads_in_the_parent():
    if not PROGRAMS["forum"].is_installed:
        pytest.skip("needs it: python -m turngym.environments.web.sites.install forum")
    env = env_class("forum")(kind="reply")
    child = env.clone()
    try:
        await env.reset(seed=0)
        for action in ("click 1", "goto http://forum.test/search/"):
            await env.step(action)
        await child.restore(await env.snapshot())
        for _ in range(3):
            here, there = await env.step("go_back"), await child.step("go_back")
            assert here[0] == there[0]
    finally:
        await env.close()
        await child.close()


@pytest.mark.parametrize("site", INSTALLED if IS_FULL else INSTALLED[1:2])
async def test_nothing_is_left_of_a_server_where_there_is_no_sandbox(site, monkeypatch):
    monkeypatch.setattr("turngym.environments.web.sites.program._jails", lambda: False)
    for by_itself in (False, True):
        slot = Slot(PROGRAMS[site])
        await slot.reset(0)
        pids = list(below(slot.pid))
        if by_itself:  # as when this process dies: its end of standard input goes
            slot._process.stdin.close()
            await slot._process.wait()
        await slot.stop()
        assert [pid for pid in pids if is_running(pid)] == []


def below(pid: int):
    """Yield a process and all that it started."""
    yield pid
    for child in children_of(pid):
        yield from below(child)


def is_running(pid: int) -> bool:
    """Say whether a process is there and no mere record of one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_server_waits_for_the_next_environment_and_ends_with_the_browser(browser):
    if not PROGRAMS["forum"].is_installed:
        pytest.skip("needs it: python -m turngym.environments.web.sites.install forum")
    env = env_class("forum")(kind="lock")
    await env.reset(seed=0)
    slot, folder = env.slot, env.slot.folder
    await env.close()
    assert slot in browser.kept
    again = env_class("forum")(kind="lock")
    await again.reset(seed=0)
    assert again.slot is slot
    await again.close()
    await browser.run(stop_kept(browser))
    assert slot.pid is None
    assert not folder.exists()


async def stop_kept(host) -> None:
    """Do what the end of the browser does."""
    while host.kept:
        await host.kept.pop().stop()


@pytest.mark.parametrize("site", INSTALLED if IS_FULL else INSTALLED[1:2])
async def test_a_server_that_died_is_started_again_by_the_next_reset(site):
    slot = Slot(PROGRAMS[site])
    await slot.reset(0)
    first, folder = slot.pid, slot.folder
    assert first is not None
    slot._process.kill()
    await slot._process.wait()
    await slot.reset(0)
    assert slot.pid not in (None, first)
    assert not folder.exists()
    folder = slot.folder
    await slot.stop()
    assert not folder.exists()


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("site", INSTALLED if IS_FULL else INSTALLED[1:2])
async def test_a_server_that_dies_or_hangs_is_a_fault_and_no_reward_of_0(site, stop, monkeypatch):
    monkeypatch.setattr("turngym.environments.web.sites.program._ANSWER_S", 0.5)
    cls = env_class(site)
    env = cls(kind=LONG_ENOUGH[site], settings=replace(cls.looks, cap_ms=2_000))
    try:
        await env.reset(seed=0)
        for pid in [*below(env.slot.pid)][1:]:
            with suppress(ProcessLookupError):  # it ended with its parent, killed just before
                os.kill(pid, stop)
        says = "gives no answer" if stop == signal.SIGSTOP else "ended while it was used"
        with pytest.raises(EnvironmentFault, match=says):
            await played_on(env)
        await env.reset(seed=0)
        assert await played_on(env) == 1.0
    finally:
        await env.close()


@pytest.mark.parametrize("site", [one for one in INSTALLED if one.values[0] == "tracker"])
async def test_a_page_outside_that_a_link_leads_to_is_no_obstacle_to_going_back(site):
    env = env_class(site)(kind=LONG_ENOUGH[site])
    try:
        await env.reset(seed=0)
        [link] = [one for one in env.view.elements if one.name == "https://trac.edgewall.org/"]
        seen, *_ = await env.step(f"click {link.mark}")
        assert "trac.edgewall.org may not be reached" in seen["text"]
        snapshot = await env.snapshot()
        await env.reset(seed=1)
        await env.restore(snapshot)
        assert env.page() == seen["text"]
    finally:
        await env.close()


async def played_on(env) -> float:
    """Have the expert play to the end; return the last reward."""
    while True:
        _, reward, is_over, _, _ = await env.step(env.expert_action())
        if is_over:
            return reward


@pytest.mark.parametrize("site", INSTALLED if IS_FULL else INSTALLED[1:2])
async def test_where_there_is_a_sandbox_a_server_sees_no_network_and_no_other_slot(site):
    from turngym.environments.web.sites import program

    if not program._jails():
        pytest.skip("NOT RUN: bubblewrap does not work here")
    one, two = Slot(PROGRAMS[site]), Slot(PROGRAMS[site])
    try:
        await asyncio.gather(one.reset(0), two.reset(0))
        look = program._jail(one.folder, PROGRAMS[site].home)
        command = f"cat /proc/net/dev; ls {two.folder} {one.folder}; touch /etc/turngym-was-here"
        process = await asyncio.create_subprocess_exec(
            *look, "sh", "-c", command, stdout=-1, stderr=-1
        )
        said, problem = await process.communicate()
        assert b"eth0" not in said
        assert b"socket" in said
        assert f"{two.folder}': No such file".encode() in problem
        assert b"Read-only file system" in problem
    finally:
        await one.stop()
        await two.stop()


if IS_FULL:

    @pytest.mark.parametrize("site", INSTALLED)
    def test_a_site_keeps_every_promise(site):
        env_id = f"web/{site}-{LONG_ENOUGH[site]}"
        check_turn_env(env_id, episodes=1, tasks=3, max_turns=6).raise_on_failure()
        check_fork(env_id, episodes=2, max_turns=5).raise_on_failure()
