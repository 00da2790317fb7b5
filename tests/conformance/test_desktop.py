"""Desktops: real programs on private displays, judged on state.

The normal suite plays a few kinds of tasks; ``PART=conformance`` plays all of them over three
seeds, and ``make proof PART=desktop`` five hundred episodes with kills.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from helpers import plain_user
from turngym.agents.scripted import ExpertPolicy
from turngym.environments.checks.check import check_fork, check_turn_env
from turngym.environments.checks.probes import children_of
from turngym.environments.desktop.display import DisplayGone
from turngym.environments.desktop.env import DisplayPool
from turngym.environments.desktop.names import GROUNDING_APPS, PROGRAMS, TASK_TYPES
from turngym.environments.desktop.problems import find
from turngym.environments.desktop.x11_device import cells
from turngym.errors import EnvironmentFault
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.sandbox.backends.launcher_client import SANDBOX_UID

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
IS_SOAK = os.environ.get("TURNGYM_SOAK") == "full"
EPISODES = int(os.environ.get("TURNGYM_SOAK_EPISODES", "500"))
SEEDS = 3 if IS_FULL else 1
SOLVED = TASK_TYPES if IS_FULL else (
    "across-compute-into-note", "files-move", "notes-append", "settings-theme", "sheet-sum",
)  # fmt: skip
FORKED = ("calc-product", "files-rename", "notes-append", "sheet-sum") if IS_FULL else (
    "calc-product",
)  # fmt: skip

pytestmark = [
    pytest.mark.extra("Xlib", "jeepney", *PROGRAMS),
    pytest.mark.timeout(3600 if IS_FULL or IS_SOAK else 1200),
]


def new(kind: str, **kwargs):
    from turngym.environments.desktop.env import DesktopEnv

    return DesktopEnv(kind=kind, **kwargs)


def new_device():
    from turngym.environments.desktop.x11_device import X11Device

    return X11Device()


def children(pid: int) -> set[int]:
    """Return the processes in the pid namespace of ``pid``, as the host counts."""
    namespace = Path(f"/proc/{pid}/ns/pid").readlink()
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if (path / "ns/pid").readlink() == namespace:
                    found.add(int(path.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("kind", SOLVED)
async def test_the_expert_does_the_job_and_stops(kind):
    env = new(kind)
    tasks = [env.task("test" if seed % 2 else "train", seed) for seed in range(SEEDS)]
    await env.close()
    specs = [s for t in tasks for s in group_specs(f"turngym/{kind}-v0", t, seed=0, group_size=1)]
    played = await collect(lambda: new(kind), ExpertPolicy(), specs, concurrency=1)
    assert [t.error for t in played if t.error] == []
    assert [(t.task_id, t.score) for t in played if not t.is_success] == []
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []


async def test_doing_nothing_half_of_it_or_damage_scores_nothing():
    env = new("notes-append")
    try:
        await env.reset(seed=0)
        assert (await env.step("stop"))[1:3] == (0.0, True)
        await env.reset(seed=0)
        for action in ("key ctrl+end", env.say("type", text="something else"), "key ctrl+s"):
            await env.step(action)
        assert (await env.step("stop"))[1] == 0.0
        await env.reset(seed=0)
        env.device.write_files({"extra.txt": b"left behind"})
        action = env.expert_action()
        while action != "stop":
            await env.step(action)
            action = env.expert_action()
        assert (await env.step("stop"))[1] == 0.0
    finally:
        await env.close()


async def reward_of_script(env) -> float:
    """Do from here on what the expert does; return what that earns."""
    for step in env.problem.script:
        made = step(env.view) if callable(step) else step
        await env.step(env.say(made.name, **made.arguments))
    return (await env.step("stop"))[1]


FOLLOW = "Focus windows when the mouse pointer moves over them"


@pytest.mark.parametrize(
    ("kind", "names", "reward"),
    [
        ("desktops", [], 1.0),
        ("desktops", ["Mouse", FOLLOW], 0.0),
        ("desktops", ["Mouse", FOLLOW, FOLLOW], 1.0),
        ("line-numbers", ["View", "Statusbar"], 0.0),
        ("line-numbers", ["View", "Statusbar"] * 2, 1.0),
    ],
)
async def test_a_setting_that_was_not_asked_for_costs_the_reward_until_it_is_put_back(
    kind, names, reward
):
    env = new(f"settings-{kind}")
    try:
        await env.reset(seed=0)
        for name in names:
            await env.step(env.say("click", mark=find(env.view, name).mark))
        assert await reward_of_script(env) == reward
    finally:
        await env.close()


@pytest.mark.parametrize(("typed", "reward"), [("", 1.0), ("7", 0.0)])
async def test_a_workbook_that_is_saved_unchanged_is_left_as_it_is(typed, reward):
    env = new("across-sheet-into-note")
    try:
        await env.reset(seed=0)
        await env.step("click at 250 500")  # into the sheet
        for action in (env.say("type", text=typed), "key enter") if typed else ():
            await env.step(action)
        await env.step("key ctrl+s")
        assert await reward_of_script(env) == reward
    finally:
        await env.close()


async def test_the_same_seed_shows_the_same_pixels_and_text():
    one, two = new("files-rename", screenshot="plain"), new("files-rename", screenshot="plain")
    try:
        (first, _), (second, _) = await asyncio.gather(one.reset(seed=3), two.reset(seed=3))
        assert first["text"] == second["text"]
        assert np.array_equal(first["image"], second["image"])
        assert one.observation_space.contains(first)
        (after, *_), (other, *_) = await asyncio.gather(one.step("key down"), two.step("key down"))
        assert np.array_equal(after["image"], other["image"])
        assert not np.array_equal(after["image"], first["image"])
    finally:
        await asyncio.gather(one.close(), two.close())


async def test_the_list_of_window_themes_is_as_long_as_what_is_shown_of_it():
    """A longer one was now and then looked at before it had scrolled to the theme in use."""
    env = new("settings-theme")
    try:
        observation, _ = await env.reset(seed=0)
        shown = re.findall(r'cell "(.*?)"', observation["text"])
        assert shown == ["Clearlooks", "Clearlooks-3.4", "Clearlooks-Olive", "Mikachu"]
    finally:
        await env.close()


async def test_the_cells_of_a_workbook_are_part_of_the_text():
    env = new("sheet-sum")
    try:
        observation, _ = await env.reset(seed=0)
        assert "Cells of" in observation["text"]
        for row in cells(next(iter(env.problem.files.values()))).values():
            assert row in observation["text"]
    finally:
        await env.close()


async def test_marks_are_drawn_and_a_smaller_picture_is_the_space_of_clicks():
    env = new("calc-product", screenshot="marks", scale=0.5)
    try:
        observation, _ = await env.reset(seed=0)
        assert observation["image"].shape == (384, 512, 3)
        seven = next(one for one in env.view.elements if one.name == "7")
        x, y = (side // 2 for side in seven.center)
        observation, *_ = await env.step(f"click at {x} {y}")
        assert "= '7'" in observation["text"]
        assert env.observation_space.contains(observation)
    finally:
        await env.close()


async def test_places_off_the_screen_unknown_marks_and_keys_cost_a_turn_and_are_told():
    env = new("notes-append", action_style="tools")
    try:
        await env.reset(seed=0)
        for call, words in (
            ('{"name": "click", "arguments": {"x": 5000, "y": 3}}', "off the screen"),
            ('{"name": "click", "arguments": {"mark": 4711}}', "no element [4711]"),
            ('{"name": "key", "arguments": {"keys": "hyper+q"}}', "Unknown key"),
            ('{"name": "type", "arguments": {"text": "\\u0007"}}', "cannot be typed"),
        ):
            observation, reward, terminated, _, info = await env.step(call)
            assert words in info["invalid_action"]
            assert words in observation["text"]
            assert "Window:" in observation["text"]
            assert (reward, terminated) == (0.0, False)
    finally:
        await env.close()


def test_ten_thousand_characters_and_any_letter_arrive_as_they_were_typed():
    device = new_device()
    try:
        device.write_files({"a.txt": b""})
        device.launch("mousepad", "a.txt")
        long = "".join(random.Random(0).choices("abc XYZ 123,.!?\n", k=9_980)) + "äß€→漢字 ñ\n"
        assert device.type_text("x" * 10_001).endswith("one action types 10000 at most.")
        assert device.type_text(long) is None
        device.press("ctrl+s")
        device.rest()
        assert device.read_file("a.txt").decode().rstrip("\n") == long.rstrip("\n")
    finally:
        device.close()


def test_a_sign_of_a_chord_has_the_shift_that_it_needs():
    device = new_device()
    try:
        device.write_files({"a.txt": b"words\n"})
        device.launch("mousepad", "a.txt")
        device.rest()
        before = device.pixels()
        assert device.press("ctrl++") is None  # larger letters
        device.rest()
        assert (device.pixels() != before).any()
    finally:
        device.close()


async def test_a_sum_typed_into_the_calculator_loses_none_of_its_equal_keys():
    env = new("calc-product")
    try:
        await env.reset(seed=0)
        observation, *_ = await env.step(env.say("type", text="887*877="))
        assert "= '777899'" in observation["text"]
    finally:
        await env.close()


def test_an_application_that_hangs_is_told_and_the_others_go_on():
    device = new_device()
    try:
        device.launch("mousepad")
        device.launch("galculator")
        pid = process(device, "mousepad")
        os.kill(pid, signal.SIGSTOP)
        view = device.look()
        assert any("does not answer" in note for note in view.notes)
        assert any(one.name == "7" for one in view.elements)
        device.screen.activate(next(w.id for w in device.screen.windows() if "Mousepad" in w.title))
        said = device.type_text("x" * 10_000)
        assert said == "The window stopped answering after 200 characters."
        os.kill(pid, signal.SIGCONT)
        assert device.look().notes == ()
    finally:
        device.close()


def test_a_screen_is_read_when_no_program_has_anything_left_to_do():
    device = new_device()
    try:
        device.launch("mousepad")
        device.display.launch("bash", "-c", "env sleep 0.6; touch /tmp/late")
        deadline = time.monotonic() + 60
        while "sleep" not in names(device) and not (device.display.root / "tmp/late").exists():
            assert time.monotonic() < deadline
        device.look()
        assert device.run("test", "-e", "/tmp/late") == 0
    finally:
        device.close()


def names(device) -> list[str]:
    found = []
    for pid in children(device.display.pid):
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def test_an_application_that_crashes_is_told_and_the_episode_goes_on():
    device = new_device()
    try:
        device.launch("galculator")
        os.kill(process(device, "galculator"), signal.SIGSEGV)
        device.rest()
        view = device.look()
        assert view.notes == ("galculator ended with exit status 139.",)
        assert view.elements == ()
        assert device.click(10, 10) is None
    finally:
        device.close()


def test_a_desktop_is_more_than_its_files_so_snapshots_are_replays():
    """What was saved can be opened again, but not what it was before: undo lives in the program."""
    one, two = new_device(), new_device()
    try:
        one.write_files({"a.txt": b"old\n"})
        one.launch("mousepad", "a.txt")
        one.type_text("new ")
        one.press("ctrl+s")
        one.rest()
        two.write_files(one.tree())
        two.launch("mousepad", "a.txt")
        assert one.tree() == two.tree() == {"a.txt": b"new old\n"}
        for device in (one, two):
            device.press("ctrl+z")
            device.press("ctrl+s")
            device.rest()
        assert one.read_file("a.txt") != two.read_file("a.txt") == b"new old\n"
    finally:
        one.close()
        two.close()


async def answered(env, action):
    """Step, and wait while a busy machine keeps the program from saying what it shows."""
    observation, *_ = await env.step(action)
    for _ in range(5):
        if "does not answer" in observation["text"]:
            observation, *_ = await env.step("wait")
    return observation


async def test_a_modal_dialog_is_part_of_the_screen_and_can_be_answered():
    env = new("notes-append")
    try:
        await env.reset(seed=0)
        await env.step(env.say("type", text="unsaved"))
        observation = await answered(env, "key alt+f4")
        assert "dialog" in observation["text"]
        observation = await answered(env, "key escape")
        assert "dialog" not in observation["text"]
        assert "unsaved" in observation["text"]
    finally:
        await env.close()


async def test_a_display_that_was_killed_is_a_fault_without_score_and_the_next_reset_works():
    env = new("calc-product")
    try:
        await env.reset(seed=0)
        os.kill(env.device.display.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFault):
            await env.step("click 5")
        await env.reset(seed=0)
        await env.step("click 5")
    finally:
        await env.close()


@pytest.mark.parametrize("name", ["Xvfb", "dbus-daemon", "openbox", ""])
def test_a_spare_desktop_that_died_is_replaced(name):
    pool = DisplayPool.lease(640, 480)
    try:
        pool.take().close()
        deadline = time.monotonic() + 120
        while not pool._ready and time.monotonic() < deadline:
            time.sleep(0.01)
        spare = pool._ready[0]
        os.kill(process(spare, name) if name else spare.display.pid, signal.SIGKILL)
        if name:  # what the desktop says of it; until then nobody can know
            assert select.select([spare.display._process.stdout], [], [], 120)[0]
        else:  # its parent, our child, ends a moment later
            os.waitid(os.P_PID, spare.display._process.pid, os.WEXITED | os.WNOWAIT)
        device = pool.take()
        assert device is not spare
        device.launch("galculator")
        device.close()
    finally:
        pool.release()


async def test_nothing_is_left_when_an_environment_closes():
    env = new("calc-product")
    await env.reset(seed=0)
    inside = children(env.device.display.pid)
    assert len(inside) >= 5
    await env.close()
    await env.close()
    assert not {pid for pid in inside if Path(f"/proc/{pid}").exists()}


def test_nothing_is_left_when_the_process_is_killed(tmp_path):
    script = (
        "import sys, time\n"
        "from turngym.environments.desktop.x11_device import X11Device\n"
        "device = X11Device(); device.launch('galculator')\n"
        "print(device.display.pid, flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [os.sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    inside = children(int(holder.stdout.readline()))
    holder.kill()
    holder.communicate()
    gone = all(not Path(f"/proc/{pid}").exists() for pid in inside)
    for _ in range(2_400):
        gone = all(not Path(f"/proc/{pid}").exists() for pid in inside)
        if gone:
            break
        subprocess.run(["sleep", "0.05"], check=True)
    assert gone
    assert list(tmp_path.iterdir()) == []


def test_a_desktop_sees_no_network_no_host_process_and_no_host_home():
    device = new_device()
    try:
        assert device.run("sh", "-c", "ls /sys/class/net 2>/dev/null | grep -v lo") != 0
        assert device.run("sh", "-c", "test $(ls -d /proc/[0-9]* | wc -l) -lt 20") == 0
        assert device.run("sh", "-c", "test -e /root -o -e /work -o -e /srv") != 0
        assert device.run("sh", "-c", "touch /usr/x || touch /etc/x") != 0
        assert device.run("sh", "-c", "test $(id -u) = 1000") == 0
        assert device.run("sh", "-c", "grep -q '^Seccomp:.*2' /proc/self/status") == 0
        assert device.run("unshare", "--user", "true") not in (0, None)
        assert device.run("sh", "-c", "test $(ulimit -v) = 2000000 -a $(ulimit -c) = 0") == 0
        assert device.run("sh", "-c", "grep -q '^CapEff:.*0000000000000000' /proc/self/status") == 0
    finally:
        device.close()


def test_a_desktop_is_the_user_of_all_sandboxes_and_opens_no_setting_of_the_kernel():
    device = new_device()
    try:
        owner = int(Path(f"/proc/{device.display.pid}/uid_map").read_text().split()[1])
        assert owner == (SANDBOX_UID if os.geteuid() == 0 else os.geteuid())
        settings = (
            "fs/suid_dumpable", "kernel/core_pattern", "kernel/hostname",
            "kernel/randomize_va_space", "vm/drop_caches",
        )  # fmt: skip
        for name in settings:
            assert device.run("sh", "-c", f": >> /proc/sys/{name}") not in (0, None), name
        assert device.run("sh", "-c", ": >> /proc/self/oom_score_adj") == 0  # the control
        assert device.run("sh", "-c", "grep -q '^NoNewPrivs:.*1' /proc/self/status") == 0
        assert device.run("grep", "-q", " /proc/sys ro,", "/proc/self/mountinfo") == 0
        device.write_files({"a/b.txt": b"ours"})
        assert device.run("sh", "-c", "echo >> a/b.txt && touch a/c && rm -r a") == 0
    finally:
        device.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests are this one already")
def test_a_plain_user_has_the_same_desktop():
    script = (
        "from turngym.environments.desktop.x11_device import X11Device\n"
        "device = X11Device()\n"
        "device.write_files({'a.txt': b'written by a plain user'})\n"
        "device.launch('mousepad', 'a.txt')\n"
        "assert device.run('sh', '-c', 'cat /proc/1/environ') not in (0, None)\n"
        "assert device.run('sh', '-c', ': >> /proc/sys/kernel/core_pattern') not in (0, None)\n"
        "print(device.look())\n"
        "device.close()\n"
    )
    command = plain_user.command([os.sys.executable, "-c", script])
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "written by a plain user" in told.stdout, told.stderr[-2000:]


def test_a_desktop_tells_nothing_of_the_hosts_environment(monkeypatch):
    monkeypatch.setenv("TURNGYM_TEST_SECRET", "bf7a2c")
    control = subprocess.run(["cat", "/proc/self/environ"], capture_output=True, check=True)
    assert b"bf7a2c" in control.stdout
    device = new_device()
    try:
        device.launch("mousepad")
        device.run("sh", "-c", "cat /proc/[0-9]*/environ")
        said = device.run_output("/run/app2.log")
        assert b"bf7a2c" not in said
        assert b"DISPLAY=:0" in said  # the control
        for pid in children(device.display.pid):
            with suppress(ProcessLookupError):  # it has just ended
                assert b"bf7a2c" not in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        device.close()


def test_a_desktop_that_cannot_start_leaves_nothing_open(monkeypatch):
    from turngym.environments.desktop import x11_device

    def gone(*args):
        raise DisplayGone("desktop: its message bus is gone")

    monkeypatch.setattr(x11_device, "Accessibility", gone)
    with pytest.raises(DisplayGone):
        new_device()
    gc.collect()  # an open socket is a warning, and so an error


def test_a_program_cannot_say_that_another_one_ended():
    device = new_device()
    try:
        device.launch("galculator")
        forged = "lost xvfb\\nended 1 0\\n"
        attack = f"for one in /proc/[0-9]*/fd/[0-9]*; do printf '{forged}' >> $one; done; true"
        assert device.run("timeout", "20", "sh", "-c", attack) is not None
        assert b"lost xvfb" in device.run_output("/run/bus.log")  # the control: others are open
        view = device.look()
        assert view.notes == ()
        assert any(one.name == "7" for one in view.elements)
    finally:
        device.close()


def process(device, name: str) -> int:
    """Return the process of a program in a device's sandbox, as the host counts."""
    for pid in children(device.display.pid):
        if Path(f"/proc/{pid}/comm").read_text().strip() == name:
            return pid
    raise LookupError(name)


@pytest.mark.parametrize("app", GROUNDING_APPS if IS_FULL else ("calculator",))
async def test_pointing_is_rewarded_by_place(app):
    from turngym.environments.desktop.grounding import GroundingEnv

    env = GroundingEnv(app=app, reward="distance")
    try:
        for seed in range(3):
            await env.reset(seed=seed)
            _, reward, terminated, _, info = await env.step(env.expert_action())
            assert (reward, terminated, info["score"]) == (1.0, True, 1.0)
        await env.reset(seed=0)
        left, top, right, bottom = env._target.box
        _, reward, _, _, info = await env.step(f"click at {right + 30} {bottom + 30}")
        assert 0.0 < reward < 0.5
        assert info["score"] == 0.0
        await env.reset(seed=0)
        _, reward, _, _, info = await env.step(f"box {left} {top} {right} {bottom}")
        assert (reward, info["score"]) == (1.0, 1.0)
    finally:
        await env.close()


if IS_FULL:

    def test_desktop_tasks_keep_every_promise():
        check_turn_env("desktop/notes-append", timeout_s=600.0).raise_on_failure()


def test_pointing_keeps_every_promise():
    quick = {} if IS_FULL else {"episodes": 1, "tasks": 2, "max_turns": 3, "processes": 1}
    check_turn_env("desktop/grounding-calculator", **quick).raise_on_failure()


@pytest.mark.parametrize(
    "kind", ("notes-append", "files-rename", "sheet-sum") if IS_FULL else ("calc-product",)
)
def test_forks_are_equal_and_independent(kind):
    quick = {} if IS_FULL else {"episodes": 1, "max_turns": 2, "depths": [1]}
    check_fork(f"desktop/{kind}", **quick).raise_on_failure()


if IS_SOAK:

    async def test_five_hundred_episodes_with_kills_leave_nothing(tmp_path, monkeypatch):
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        rng = random.Random(0)
        kinds = ("calc-product", "notes-append", "files-delete")
        envs = {kind: new(kind) for kind in kinds}
        kills = faults = 0
        inside: set[int] = set()
        for episode in range(EPISODES):
            env = envs[kinds[episode % len(kinds)]]
            try:
                await env.reset(seed=episode)
                inside |= children(env.device.display.pid)
                if rng.random() < 0.2:
                    kills += 1
                    victims = sorted(children(env.device.display.pid))
                    os.kill(rng.choice(victims), signal.SIGKILL)
                await env.step(env.expert_action())
                _, reward, terminated, _, info = await env.step("stop")
            except EnvironmentFault:
                faults += 1
            else:
                assert (reward, terminated, info["score"]) == (0.0, True, 0.0)
        for env in envs.values():
            await env.close()
        assert kills > EPISODES // 10
        assert 0 < faults <= kills
        assert not {pid for pid in inside if display_of(pid)}
        assert children_of(os.getpid()) == set()
        assert list(tmp_path.iterdir()) == []


def display_of(pid: int) -> str:
    """Return the display that process ``pid`` draws on; "" for none, also when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((line.decode() for line in lines if line == b"DISPLAY=:0"), "")
