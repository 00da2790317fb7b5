"""Pages that storm, hang, crash, redirect and never go quiet: a defined outcome for each."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import time
from base64 import b64encode
from hashlib import sha1
from pathlib import Path

import pytest

from helpers.web import HOST, PagesEnv, kill_browser
from turngym.environments.checks.probes import children_of
from turngym.environments.core.actions import Action
from turngym.environments.web.acting import MAX_TABS, act
from turngym.environments.web.egress import EgressProxy, Server
from turngym.environments.web.session import MAX_DIALOGS, Prewarming, context_key
from turngym.environments.web.settings import LOCAL, Settings
from turngym.errors import EnvironmentFault

pytestmark = [
    pytest.mark.extra("playwright", "$TURNGYM_CHROMIUM|chromium-headless-shell|chromium"),
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("browser"),
]


@pytest.fixture
async def open_page():
    """Return a function that starts an episode at a page; closes what was opened."""
    made: list[PagesEnv] = []

    async def start(page: str, **kwargs):
        env = PagesEnv(page, **kwargs)
        made.append(env)
        observation, _ = await env.reset(seed=0)
        return env, observation["text"]

    yield start
    for env in made:
        await env.close()


async def say(env, action: str) -> tuple[str, dict]:
    observation, _, _, _, info = await env.step(action)
    return observation["text"], info


async def test_what_a_page_asked_for_is_waited_for_before_it_reaches_the_gate(
    open_page, monkeypatch
):
    counted = EgressProxy._counted

    async def late(proxy, request, reader, writer):
        if request.target.endswith("/late"):  # a browser's network process that gets no processor
            await asyncio.sleep(0.5)
        return await counted(proxy, request, reader, writer)

    monkeypatch.setattr(EgressProxy, "_counted", late)
    for _ in range(2):
        _, text = await open_page("/fetching", settings=Settings())
        assert "Page: Filled" in text


def mark(env, name: str) -> int:
    return next(one.mark for one in env.view.elements if one.name == name and one.mark)


async def test_a_page_is_read_and_left_by_its_marks(open_page):
    env, text = await open_page("/plain")
    assert text.splitlines() == [
        "Goal: Look around.",
        f"Page: Plain http://{HOST}/plain",
        'heading "Hello"',
        '[1] button "One"',
        '[2] link "to the form"',
    ]
    text, _ = await say(env, "click 2")
    assert f"Page: Form http://{HOST}/form" in text
    text, _ = await say(env, "go_back")
    assert "Page: Plain" in text


async def test_a_form_is_filled_in_every_way(open_page):
    env, _ = await open_page("/form")
    (env.session.folder / "cv.txt").write_text("me")
    for action in (
        f"type {mark(env, 'Name')} Ada Lovelace",
        f"type {mark(env, 'Bio')} first\\nsecond",
        f"append {mark(env, 'Bio')} line",
        f"select {mark(env, 'Size')} large",
        f"click {mark(env, 'agree')}",
        f"type {mark(env, 'Day')} 2026-03-04",
        f"upload {mark(env, 'File')} cv.txt",
    ):
        text, info = await say(env, action)
        assert "invalid_action" not in info, (action, text)
    assert "\"Name\" = 'Ada Lovelace'" in text
    assert "\"Bio\" = 'first\\nsecondline'" in text
    assert "\"Size\" = 'large' of small | large" in text
    assert '"agree" checked' in text
    assert "\"Day\" = '2026-03-04'" in text
    assert "\"File\" = 'cv.txt'" in text
    text, _ = await say(env, f"submit {mark(env, 'Name')} Grace")
    assert "Thank you" in text
    assert "name=Grace" in text


async def test_a_field_that_a_script_puts_elsewhere_meanwhile_gets_the_whole_text(open_page):
    env, _ = await open_page("/moving-field")
    text, _ = await say(env, f"type {mark(env, 'Name')} Adeline Karlsen")
    assert "= 'Adeline Karlsen'" in text


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("click 99", "There is no element [99]"),
        ("click x", "'x' is not the number of an element"),
        ("type 5 x", "holds"),
        ("select 1 x", "no list of options"),
        ("select 3 huge", "no option 'huge'; options: small | large"),
        ("type 7 x", "Nothing can be typed"),
        ("upload 6 ../../etc/passwd", "There is no file"),
        ("upload 1 x", "There is no file"),
        ("press Hyper+Q", "Unknown key"),
        ("switch_tab 4", "There is no tab 4"),
        ("close_tab", "last tab"),
        ("goto javascript:alert(1)", "may not be opened"),
        ("goto file:///etc/passwd", "may not be opened"),
        ("goto http://127.0.0.1:9/", "may not be opened"),
        ("goto https://example.org/", "may not be opened"),
        ("fly away", "Not a command"),
    ],
)
async def test_what_cannot_be_done_is_told_and_costs_the_turn_only(open_page, action, reason):
    env, _ = await open_page("/form")
    text, info = await say(env, action)
    assert reason in info["invalid_action"]
    assert reason in text
    assert "Page: Form" in text  # and the page is shown again


@pytest.mark.parametrize("far", [-1e9, 1e308], ids=str)
async def test_a_drag_to_a_place_far_off_ends_at_the_rim_and_no_page_with_it(
    open_page, browser, far
):
    env, before = await open_page("/plain")
    ends = {"x": 1, "y": 1, "to_x": far, "to_y": far}
    problem = await browser.run(act(env.session, Action(name="drag_at", arguments=ends)))
    assert (problem, (await say(env, "wait"))[0]) == (None, before)


async def test_a_stale_mark_is_told_and_numbers_are_never_given_twice(open_page):
    env, _ = await open_page("/gone")
    text, _ = await say(env, "click 1")
    assert '[2] button "Second"' in text
    text, info = await say(env, "click 1")
    assert info["invalid_action"] == "Element [1] is gone; the page has changed."


async def test_what_lies_above_an_element_gets_the_click_and_is_told(open_page):
    env, _ = await open_page("/covered")
    text, info = await say(env, "click 1")
    assert "Note: [1] is covered by" in text
    assert "invalid_action" not in info
    text, info = await say(env, "click 99")
    assert "invalid_action" in info
    assert "is covered by" not in text  # that was the turn before


async def test_an_element_of_which_only_the_rim_shows_is_clicked_there(open_page):
    env, _ = await open_page("/rim")
    text, _ = await say(env, "click 1")
    assert "Page: 1 " in text
    assert "covered" not in text


async def test_frames_and_shadow_trees_are_part_of_the_page(open_page):
    env, text = await open_page("/frame")
    assert '  [1] textbox "Name"' in text
    text, _ = await say(env, "type 1 framed")
    assert "'framed'" in text
    env, _ = await open_page("/shadow")
    text, _ = await say(env, "click 1")
    assert "Page: 7 " in text


async def test_what_lies_below_the_window_in_a_long_frame_is_scrolled_to(open_page):
    env, _ = await open_page("/low-frame")
    text, _ = await say(env, f"click {mark(env, 'Below')}")
    assert "Reached" in text


async def test_marks_follow_the_page_as_it_is_shown_not_as_it_was_while_it_loaded(open_page):
    _, text = await open_page("/slow-part", settings=Settings())
    assert '[1] button "First"\n[2] button "Second"' in text


async def test_a_long_page_is_cut_and_scrolling_reads_on(open_page):
    env, text = await open_page("/long", max_chars=2_000)
    assert len(text) < 2_300
    assert "Paragraph 0 " in text
    assert "lines below; scroll down to read them" in text
    for _ in range(30):
        text, _ = await say(env, "scroll down")
        if "Paragraph 60 " in text:
            break
    assert "Paragraph 60 " in text
    assert "lines above; scroll up to read them" in text


async def test_an_alert_loop_costs_the_tab_and_not_the_episode(open_page):
    env, _ = await open_page("/alert-loop")
    text, _ = await say(env, "click 1")
    assert f"more than {MAX_DIALOGS} dialogs and was closed" in text
    text, _ = await say(env, f"goto {HOST}/plain")
    assert '"One"' in text


async def test_a_storm_of_dialogs_at_the_start_ends(open_page):
    _, text = await open_page("/alert-storm")
    assert "dialogs and was closed" in text


async def test_confirm_is_accepted_and_prompt_gets_nothing(open_page):
    env, _ = await open_page("/dialogs")
    text, _ = await say(env, "click 1")
    assert "Page: true/null" in text
    assert "(confirm, accepted): 'Sure?'" in text


async def test_endless_redirects_end(open_page):
    env, _ = await open_page("/plain")
    text, _ = await say(env, f"goto {HOST}/redirect")
    assert "could not be opened: net::ERR_TOO_MANY_REDIRECTS" in text
    text, _ = await say(env, f"goto {HOST}/plain")
    assert '"One"' in text


async def test_a_page_that_reloads_itself_forever_is_bounded(open_page):
    started = time.monotonic()
    env, _ = await open_page("/reload")
    text, _ = await say(env, f"goto {HOST}/plain")
    assert '"One"' in text
    assert time.monotonic() - started < 600


async def test_fifty_megabytes_are_shown_in_part_or_closed(open_page):
    env, text = await open_page("/fifty-megabytes", settings=Settings(cap_ms=4_000))
    assert "long long" in text or "did not answer" in text
    assert len(text) < 9_000
    text, _ = await say(env, f"goto {HOST}/plain")
    assert '"One"' in text


async def test_downloads_go_to_the_episodes_folder_and_nowhere_else(open_page):
    env, _ = await open_page("/download")
    folder = env.session.folder
    text, _ = await say(env, "click 1")
    for _ in range(5):
        if "Downloaded" in text:
            break
        text, _ = await say(env, "wait")
    assert "Downloaded _.._file.bin (1000 bytes)." in text
    text, _ = await say(env, "click 2")
    for _ in range(5):
        if "too large" in text:
            break
        text, _ = await say(env, "wait")
    assert "_.._huge.bin was too large" in text
    assert [file.name for file in folder.iterdir()] == ["_.._file.bin"]
    await env.close()
    assert not folder.exists()


async def test_a_download_takes_no_other_ones_place(open_page):
    env, _ = await open_page("/download", settings=LOCAL)
    for name in ("_.._file.bin", "_.._file-1.bin", "_.._file-2.bin"):
        text, _ = await say(env, "click 1")
        while "Downloaded" not in text:
            text, _ = await say(env, "wait")
        assert f"Downloaded {name} (1000 bytes)." in text


async def test_how_far_something_is_is_shown(open_page):
    _, text = await open_page("/progress")
    for line in (
        "progressbar \"Upload\" = '25 %'",
        'progressbar "Waiting"',
        "meter \"Disk\" = '6 of 8'",
        "progressbar \"Steps\" = '3'",
    ):
        assert line in text


async def test_fields_that_a_page_shows_in_its_own_style_are_known_and_used(open_page):
    env, text = await open_page("/styled")
    assert text.splitlines()[2:] == [
        '[1] checkbox "Terms, read them"',
        '  [2] link "read them"',
        '[3] radio "Small"',
        "[4] slider \"Volume\" = '5'",
        "[5] select \"Colour\" = 'red' of red | grey",
        '[6] button "Behind" disabled',
    ]
    for number in (1, 3):
        text, _ = await say(env, f"click {number}")
    assert '[1] checkbox "Terms, read them" checked' in text
    assert '[3] radio "Small" checked' in text
    _, info = await say(env, "select 5 grey")
    assert info["invalid_action"] == "That option of [5] cannot be chosen."


async def test_a_page_may_speak_with_its_own_sites_by_web_socket(open_page):
    async def serve(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = re.search(r"Sec-WebSocket-Key: (\S+)", head)[1]
        accept = sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        lines = [
            "HTTP/1.1 101 Switching Protocols",
            *("Upgrade: websocket", "Connection: Upgrade"),
            f"Sec-WebSocket-Accept: {b64encode(accept).decode()}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await reader.readexactly(2 + 4 + len("any?"))  # a frame that is masked
        writer.write(b"\x81\x05snows")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        live = Server(server.sockets[0].getsockname()[1])
        env, text = await open_page("/live", settings=LOCAL, others={"live.test": live})
        while '"snows"' not in text:
            text, _ = await say(env, "wait")
        assert "busy" not in text  # for as long as it may stay open
        await env.close()
    _, text = await open_page("/live", settings=LOCAL)
    assert "live.test may not be reached." in text


async def test_pop_ups_become_tabs_up_to_a_limit(open_page):
    env, _ = await open_page("/popups")
    text, _ = await say(env, "click 1")
    assert "too many tabs are open" in text
    while f"Tab {MAX_TABS - 1}:" not in text:
        text, _ = await say(env, "wait")
    assert f"Tab {MAX_TABS}:" not in text
    text, _ = await say(env, "switch_tab 0")
    assert '"Open"' in text
    await say(env, "close_tab")
    assert len(env.view.tabs) == MAX_TABS - 1


async def test_a_tab_that_a_click_opens_is_seen_in_the_same_turn(open_page):
    env, _ = await open_page("/link", settings=Settings(cap_ms=120_000))
    for _ in range(5):
        text, _ = await say(env, "click 1")
        assert "Tab 1:" in text
        await say(env, "close_tab")


async def test_a_page_that_never_goes_quiet_is_shown_at_the_cap(open_page):
    env, text = await open_page("/never-quiet")
    assert "Note: The page is still busy." in text
    assert '"Still here"' in text
    _, info = await say(env, f"click {mark(env, 'Still here')}")
    assert "invalid_action" not in info


async def test_a_request_that_is_never_answered_is_not_waited_for(open_page):
    _, text = await open_page("/hanging-fetch")
    assert '"Still here"' in text


async def test_a_first_page_that_does_not_answer_is_a_fault(open_page):
    with pytest.raises(EnvironmentFault, match=r"first page of the task: .*/never could not be"):
        await open_page("/never", settings=Settings(load_s=0.5))


async def test_an_answer_that_no_page_reads_is_not_waited_for(open_page):
    # A cap so far away that only waiting for the answer itself would come to it.
    env, _ = await open_page("/saving", settings=LOCAL)
    for _ in range(2):
        text, _ = await say(env, f"click {mark(env, 'Save')}")
        assert "busy" not in text


@pytest.mark.slow
async def test_a_page_that_is_slow_with_each_key_gets_the_whole_text(open_page):
    env, _ = await open_page("/slow-keys")
    text, _ = await say(env, f"type {mark(env, 'Name')} {'abcde' * 8}")  # 14 s in all
    assert f"= '{'abcde' * 8}'" in text


async def test_a_page_that_hangs_is_closed_and_the_episode_goes_on(open_page):
    env, _ = await open_page("/busy")
    text, _ = await say(env, "click 1")
    assert "did not answer" in text
    text, _ = await say(env, f"goto {HOST}/plain")
    assert '"One"' in text


async def test_a_crashed_page_is_replaced(open_page, browser):
    env, _ = await open_page("/plain")

    async def crash():
        with pytest.raises(Exception, match="crash"):
            await env.session.tab.page.goto("chrome://crash", timeout=5_000)

    await browser.run(crash())
    text, _ = await say(env, "click 1")
    assert "crash" in text.lower()
    text, _ = await say(env, f"goto {HOST}/plain")
    assert '"One"' in text


async def test_only_the_tasks_own_hosts_can_be_reached(open_page):
    reached = []
    server = await asyncio.start_server(lambda *_: reached.append(1), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, text = await open_page(f"/elsewhere?{port}")
    assert "elsewhere.test may not be reached." in text
    assert "127.0.0.1 may not be reached." in text
    assert reached == []


async def test_nothing_is_left_of_an_earlier_episode(open_page):
    env, text = await open_page("/memory")
    assert "seen no" in text
    text, _ = await say(env, f"goto {HOST}/memory")
    assert "seen yes seen=yes" in text
    observation, _ = await env.reset(seed=0)
    assert "seen no" in observation["text"]


async def test_a_context_made_ahead_is_given_once_and_never_one_that_died(open_page, browser):
    first, _ = await open_page("/plain")
    kind = context_key(first.session.settings)

    def waiting():  # the browser is shared: others keep contexts of other kinds
        return [one for one in browser.kept if isinstance(one, Prewarming) and one.kind == kind]

    (ahead,) = waiting()
    second, _ = await open_page("/plain")
    assert ahead not in waiting()
    contexts = {env.session.tab.page.context for env in (first, second)}
    assert len(contexts) == 2
    (ahead,) = waiting()
    fresh = await browser.run(made(ahead))
    assert fresh.tab.page.url == "about:blank"
    await browser.run(fresh.context.close())
    third, text = await open_page("/plain")
    assert "Hello" in text
    assert third.session.tab.page.context not in {fresh.context, *contexts}


async def made(ahead: Prewarming):
    return await ahead._making


async def test_a_dead_browser_is_started_again_and_no_episode_is_lost(open_page, browser):
    first, _ = await open_page("/form")
    second, _ = await open_page("/plain")
    await say(first, "type 1 Ada")
    launches = browser.launches
    await browser.run(kill_browser(browser))
    text, info = await say(first, "append 1 Lovelace")
    assert "'AdaLovelace'" in text
    assert "invalid_action" not in info
    text, _ = await say(second, "click 2")
    assert "Page: Form" in text
    assert browser.launches == launches + 1


def end_driver() -> None:
    for child in children_of(os.getpid()):
        if b"run-driver" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGTERM)


async def test_a_dead_driver_is_started_again_without_a_word(open_page, browser, caplog):
    await open_page("/form")
    launches = browser.launches
    end_driver()
    env, _ = await open_page("/form")
    text, _ = await say(env, "type 1 Ada")
    assert "'Ada'" in text
    assert browser.launches == launches + 1
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_driver_that_died_is_noticed_at_the_first_page_and_in_a_step(open_page, browser):
    await open_page("/form")
    for waiting in browser.kept:
        if isinstance(waiting, Prewarming):
            await browser.run(made(waiting))  # so that the next episode takes it
    end_driver()
    env, _ = await open_page("/form")
    await say(env, "type 1 Ada")
    end_driver()
    text, info = await say(env, "append 1 Lovelace")
    assert "'AdaLovelace'" in text
    assert "invalid_action" not in info


async def test_many_episodes_share_the_browser_and_nothing_else(open_page):
    async def play(number: int) -> str:
        env, _ = await open_page("/form")
        await say(env, f"type 1 number{number}")
        text, _ = await say(env, "click 7")
        return text

    texts = await asyncio.gather(*(play(number) for number in range(6)))
    assert all(f"name=number{number}&" in text for number, text in enumerate(texts))


async def test_an_answer_ends_the_episode(open_page):
    env, _ = await open_page("/plain")
    _, reward, terminated, _, info = await env.step("answer yes")
    assert (reward, terminated, info["score"]) == (1.0, True, 1.0)
