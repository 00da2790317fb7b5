"""A phone-shaped browser: its applications for real, judged on what they keep.

The normal suite plays a few kinds of tasks; ``PART=conformance`` all of them over three seeds.
"""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest

from helpers.web import kill_browser
from turngym.agents.scripted import ExpertPolicy
from turngym.environments.checks.check import check_fork, check_turn_env
from turngym.environments.desktop.names import PHONE_TASK_TYPES
from turngym.environments.web.chromium import NEED
from turngym.environments.web.egress import Response
from turngym.errors import EnvironmentFault
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
SEEDS = 3 if IS_FULL else 1
SOLVED = PHONE_TASK_TYPES if IS_FULL else ("note-delete", "setting-switch", "shopping-remove")

pytestmark = [
    pytest.mark.extra("playwright", NEED),
    pytest.mark.timeout(1800 if IS_FULL else 1200),
]


def new(kind, **kwargs):
    from turngym.environments.desktop.phone.env import PhoneEnv

    return PhoneEnv(kind=kind, **kwargs)


@pytest.fixture
def phone():
    """A phone with one page of a text field, 60 rows, and what it was touched with."""
    from turngym.environments.desktop.phone.env import WebPhone
    from turngym.environments.web.browser import BrowserHost

    body = (
        "<meta charset=utf-8><meta name=viewport content='width=device-width'><title>Page</title>"
        "<textarea aria-label=Field></textarea><button id=b>Touch</button>"
        + "".join(f"<p>Row {i}</p>" for i in range(60))
        + "<script>b.onclick=()=>localStorage.setItem('touched','tap');"
        "b.oncontextmenu=(e)=>{e.preventDefault();localStorage.setItem('touched','held')}</script>"
    )
    host = BrowserHost.lease()
    device = None
    try:
        device = WebPhone(host, {"page.test": lambda _: Response(body=body.encode())},
                          "http://page.test/")  # fmt: skip
        yield device
    finally:
        if device is not None:
            device.close()
            device.close()
        host.release()


@pytest.fixture
def browser():
    """A browser that stays, however many environments come and go."""
    from turngym.environments.web.browser import BrowserHost

    host = BrowserHost.lease()
    yield
    host.release()


def place(phone, name):
    return next(one for one in phone.look().elements if one.name == name).center


@pytest.mark.parametrize("kind", SOLVED)
async def test_the_expert_does_the_job_and_stops(kind):
    env = new(kind)
    tasks = [env.task("test" if seed % 2 else "train", seed) for seed in range(SEEDS)]
    specs = [s for t in tasks for s in group_specs(f"turngym/{kind}-v0", t, seed=0, group_size=1)]
    played = await collect(lambda: new(kind), ExpertPolicy(), specs, concurrency=1)
    assert [t.error for t in played if t.error] == []
    assert [(t.task_id, t.score) for t in played if not t.is_success] == []
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []


async def test_doing_nothing_half_of_it_or_too_much_scores_nothing():
    env = new("setting-switch")
    try:
        for extra in (0, 1, 2, 3):
            await env.reset(seed=0)
            steps = len(env.problem.expert())  # opens the settings, turns one, turns another
            while env._said < min(extra, steps):
                await env.step(env.expert_action())
            if extra == 3:
                other = next(one for one in env.view.elements if one.role == "switch")
                await env.step(env.say("click", mark=other.mark))
            assert (await env.step("stop"))[1:3] == (0.0, True)
        await env.reset(seed=0)
        assert (await env.step("answer done"))[1] == 0.0
    finally:
        await env.close()


async def test_an_empty_line_at_the_end_of_a_note_does_not_matter():
    env, said, is_over = new("note-add"), list[str](), False
    try:
        await env.reset(seed=0)
        while not is_over:
            said.append(env.expert_action())
            is_over = (await env.step(said[-1]))[2]
        await env.reset(seed=0)
        scores = [(await env.step(one + "\\n" * ("\\n" in one)))[1] for one in said]
        assert scores[-1] == 1.0
    finally:
        await env.close()


async def test_the_same_seed_shows_the_same_pixels_and_text():
    one, two = (new("contact-find", screenshot="marks", scale=0.5) for _ in range(2))
    try:
        (first, _), (second, _) = await asyncio.gather(one.reset(seed=3), two.reset(seed=3))
        assert first["text"] == second["text"]
        assert np.array_equal(first["image"], second["image"])
        assert one.observation_space.contains(first)
        actions = [one.expert_action(), "scroll down"]
        for action in actions:
            (after, *_), (other, *_) = await asyncio.gather(one.step(action), two.step(action))
            assert after["text"] == other["text"]
            assert np.array_equal(after["image"], other["image"])
        assert not np.array_equal(after["image"], first["image"])
    finally:
        await asyncio.gather(one.close(), two.close())


def test_touches_are_touches(phone):
    x, y = place(phone, "Touch")
    assert phone.click(x, y) is None
    phone.look()
    assert phone.state("storage touched") == "tap"
    phone.click(x, y, button="right")
    phone.look()
    assert phone.state("storage touched") == "held"
    assert phone.state("window") == "http://page.test/"
    assert any(one.name == "Row 2" for one in phone.look().elements)
    assert phone.scroll(200, 400, up=False) is None
    names = {one.name for one in phone.look().elements}
    assert "Row 2" not in names
    assert "Row 15" in names
    phone.drag((200, 200), (200, 700))
    assert any(one.name == "Touch" for one in phone.look().elements)


def where(phone):
    phone.look()
    return phone._in_tab(lambda tab: tab.main("scrollY"))


def test_a_touch_on_a_slow_machine_is_the_same_touch(phone):
    session = phone._session.tab._session
    send = session.send

    async def slowly(method, *arguments):
        answer = await send(method, *arguments)
        await asyncio.sleep(0.6 * (method == "Input.dispatchTouchEvent"))
        return answer

    session.send = slowly
    phone.click(*place(phone, "Touch"))
    phone.look()
    assert phone.state("storage touched") == "tap"
    phone.drag((200, 600), (200, 200))
    assert where(phone) > 200  # thirteen answers, which together take longer than one may


def test_a_scroll_is_half_of_the_screen(phone):
    half = phone.height // 2
    for number in (1, 2, 3):
        phone.scroll(200, 400, up=False)
        assert where(phone) == number * half
    phone.scroll(200, 400, up=True)
    assert where(phone) == 2 * half


def test_ten_thousand_characters_and_any_letter_arrive_as_they_were_typed(phone):
    phone.click(*place(phone, "Field"))
    text = "äß€→漢字 ñ 'quoted' \"too\"\n" + "abc XYZ " * 1_240
    assert phone.type_text("x" * 10_001).endswith("one action types 10000 at most.")
    assert "cannot be typed" in phone.type_text("\x07")
    assert phone.type_text(text) is None
    shown = next(one for one in phone.look().elements if one.name == "Field").value
    assert shown == text[: len(shown)]
    assert len(shown) >= 2_000
    asked = "document.querySelector('textarea').value"
    assert phone._in_tab(lambda tab: tab.main(asked)) == text
    phone.press("ctrl+a")
    phone.press("backspace")
    assert phone._in_tab(lambda tab: tab.main(asked)) == ""


def test_what_a_phone_cannot_do_is_told(phone):
    assert "off the screen" in phone.click(412, 0)
    assert "off the screen" in phone.drag((0, 0), (0, 732))
    assert "no pointer" in phone.move(1, 1)
    assert "Unknown key" in phone.press("hyper+q")
    assert "Unknown key" in phone.press("é")
    assert phone.press("back") is None
    assert phone.state("window") == "http://page.test/"
    with pytest.raises(EnvironmentFault, match="may not be opened"):
        phone.launch("http://elsewhere.test/")


async def test_a_browser_that_dies_is_a_fault_without_a_score_and_the_next_reset_works():
    env = new("alarm-switch")
    try:
        await env.reset(seed=0)
        await env._host.run(kill_browser(env._host))
        with pytest.raises(EnvironmentFault):
            await env.step("scroll down")
        await env.reset(seed=0)
        await env.step("scroll down")
    finally:
        await env.close()


def test_phone_tasks_keep_every_promise(browser):
    quick = {} if IS_FULL else {"episodes": 1, "tasks": 2, "max_turns": 2, "processes": 1}
    check_turn_env("phone/alarm-switch", **quick).raise_on_failure()


def test_forks_are_equal_and_independent(browser):
    quick = {} if IS_FULL else {"episodes": 1, "max_turns": 2, "depths": [1]}
    check_fork("phone/note-delete", **quick).raise_on_failure()
