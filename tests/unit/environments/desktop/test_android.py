"""An Android device over adb, against a double of an adb server (``helpers/adb_double.py``).

The double speaks adb's wire protocol, so that requests, transports, files and failures are real;
what Android itself would answer is only imitated.
"""

from __future__ import annotations

import time

import pytest

from turngym.agents.scripted import ExpertPolicy
from turngym.environments.core.actions import Action
from turngym.environments.desktop.android.device import read_hierarchy
from turngym.environments.desktop.observation import view_text
from turngym.errors import ConfigError, EnvironmentFault, MissingExtraError
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.tasks.sets import ListedSet

pytest.importorskip("adbutils", reason="needs adbutils: make extras")
pytest.importorskip("PIL", reason="needs PIL: make extras")

from helpers.adb_double import HEIGHT, SERIAL, WIDTH, AdbDouble
from turngym.environments.desktop.android.device import AndroidDevice
from turngym.environments.desktop.android.env import AndroidEnv, AndroidProblem


@pytest.fixture
def double():
    with AdbDouble() as server:
        yield server


@pytest.fixture
def device(double):
    device = AndroidDevice(SERIAL, port=double.port)
    yield device
    device.close()


def named(view, name):
    return next(one for one in view.elements if one.name == name)


def tasks():
    def tap(name):
        return lambda view: Action(name="click", arguments={"mark": named(view, name).mark})

    problem = AndroidProblem(
        prompt='Turn on airplane mode and call the device "red fox".',
        prepare=(("settings", "put", "global", "airplane_mode_on", "0"),),
        files={"notes/a.txt": b"a"},
        launch=("com.settings",),
        script=(
            tap("Airplane mode"),
            tap("Device name"),
            lambda _view: Action(name="type", arguments={"text": "red fox"}),
            tap("Save"),
        ),
        is_done=lambda world: (
            world.device.state("setting global airplane_mode_on") == "1"
            and world.device.state("setting global device_name") == "red fox"
        ),
    )
    return ListedSet("android", [("settings", problem)])


def new_env(double, **options):
    return AndroidEnv(
        tasks=tasks(), serial=SERIAL, size=(WIDTH, HEIGHT), port=double.port, **options
    )


def test_a_screen_is_read_as_elements_with_marks_and_as_pixels(device):
    device.launch("com.settings")
    device.click(10, 10)
    view = device.look()
    assert view_text(view, 1_000).splitlines() == [
        "Window: com.settings/com.settings.Main",
        '[1] switch "Airplane mode" checked',
        '[2] switch "Dark theme"',
        '[3] text "Device name"',
        '[4] button "Save"',
    ]
    pixels = device.pixels()
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert pixels[30, 30].tolist() == [0, 128, 0]
    assert pixels[90, 30].tolist() == [128, 128, 128]


def test_a_screen_that_is_turned_is_read_and_touched_to_its_edge(device, double):
    device.launch("com.settings")
    double.phone.turned = True
    view = device.look()
    assert len(view.elements) == 4
    assert view.elements[0].width == HEIGHT
    assert view.notes == (
        f"The screen is turned, {HEIGHT} x {WIDTH}; pictures stay {WIDTH} x {HEIGHT} and show no "
        "more of it.",
    )
    assert device.click(HEIGHT - 1, 10) is None
    assert "off the screen" in device.click(10, WIDTH)
    assert device.pixels().shape == (HEIGHT, WIDTH, 3)
    double.phone.turned = False
    assert device.look().notes == ()
    assert "off the screen" in device.click(WIDTH, 10)


def test_a_picture_is_found_behind_a_warning(device, double):
    double.phone.warning = b"[Warning] Multiple displays were found\n"
    assert device.pixels().shape == (HEIGHT, WIDTH, 3)


def test_a_row_is_called_by_the_words_in_it_and_a_dump_that_is_none_is_refused():
    inner = '<node class="a.TextView" text="Alarm" bounds="[0,0][9,9]" enabled="true"/>'
    row = (
        '<hierarchy><node class="a.LinearLayout" clickable="true" enabled="false" '
        f'bounds="[0,0][100,50]">{inner}{inner}</node></hierarchy>'
    )
    (element,) = read_hierarchy(row)
    assert (element.role, element.name, element.mark) == ("item", "Alarm, Alarm", 1)
    assert element.box == (0, 0, 100, 50)
    assert element.states == ("disabled",)
    with pytest.raises(ValueError, match="no hierarchy"):
        read_hierarchy("ERROR: could not get idle state.")


def test_touches_keys_and_text_reach_the_device_as_they_were_meant(device, double):
    log = double.phone.log
    log.clear()
    assert device.click(5, 6, button="right") is None
    assert device.click(5, 6, times=2) is None
    assert device.drag((1, 2), (3, 4)) is None
    assert device.scroll(100, 300, up=False) is None
    assert device.press("back") is None
    assert log == [
        "input swipe 5 6 5 6 900", "input tap 5 6 && input tap 5 6", "input swipe 1 2 3 4 400",
        "input swipe 100 406 100 194 400", "input keyevent 4",
    ]  # fmt: skip
    device.launch("com.settings")
    device.click(10, 130)
    text = "a 50%s 'quoted' \"b\" $HOME; rm -rf / & " + "x" * 9_000
    assert device.type_text(text) is None
    assert double.phone.name == text


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda d: d.click(WIDTH, 0), "off the screen"),
        (lambda d: d.drag((0, 0), (0, -1)), "off the screen"),
        (lambda d: d.move(1, 1), "no pointer"),
        (lambda d: d.type_text("é"), "ASCII only"),
        (lambda d: d.type_text("x" * 10_001), "10000 at most"),
        (lambda d: d.press("hyper"), "Unknown key"),
        (lambda d: d.press("ctrl+a"), "takes no chords"),
    ],
)
def test_what_cannot_be_done_is_told(device, act, words):
    assert words in act(device)


def test_files_are_pushed_listed_and_pulled(device):
    device.write_files({"a.txt": b"a" * 10_000, "docs/b.txt": b"b", "empty": None})
    assert device.tree() == {
        "a.txt": b"a" * 10_000, "docs": None, "docs/b.txt": b"b", "empty": None,
    }  # fmt: skip
    assert device.read_file("../secret") is None
    assert device.read_file("none") is None


def test_state_is_asked_of_the_system(device):
    assert device.state("window") == "com.launcher/.Home"
    assert device.state("setting global nothing") is None
    assert device.state("property ro.product.model") == "Double"
    assert device.state("nonsense") is None
    assert device.run("nothing", "x") == 127


def test_crash_and_hang_dialogs_are_told_and_a_restless_screen_costs_no_fault(device, double):
    double.phone.window = "Application Not Responding: com.settings"
    double.phone.dumps_fail = 1
    view = device.look()
    assert view.notes == ("com.settings does not answer.",)
    assert view.elements
    double.phone.window = "Application Error: com.settings"
    double.phone.dumps_fail = 9
    view = device.look()
    assert view.notes[0] == "com.settings has crashed."
    assert "does not keep still" in view.notes[1]


def test_what_cannot_be_started_is_one_line(device):
    with pytest.raises(EnvironmentFault, match=r"com\.nothing cannot be started"):
        device.launch("com.nothing")
    with pytest.raises(EnvironmentFault, match=r"\.Private cannot be started: Exception occurred"):
        device.launch("com.settings/.Private")
    device.launch("com.settings/.ErrorReports")  # no error, though it is called so
    assert device.state("window") == "com.settings/com.settings.Main"


def test_a_device_that_is_not_there_is_one_line_and_starts_no_server(double):
    with pytest.raises(EnvironmentFault, match=r"device other is gone \(device 'other' not found"):
        AndroidDevice("other", port=double.port)
    with pytest.raises(EnvironmentFault, match=r"no adb server at 127\.0\.0\.1:1 "):
        AndroidDevice(SERIAL, port=1)


def test_one_device_is_held_once(double, device):
    with pytest.raises(EnvironmentFault, match="in use by another environment"):
        AndroidDevice(SERIAL, port=double.port)
    device.close()
    AndroidDevice(SERIAL, port=double.port).close()


def test_a_device_that_hangs_is_a_fault_in_time(double, monkeypatch):
    monkeypatch.setattr("turngym.environments.desktop.android.device.ANSWER_S", 0.3)
    device = AndroidDevice(SERIAL, port=double.port)
    monkeypatch.setattr(type(double.phone), "run", lambda _phone, _line: time.sleep(3) or b"")
    with pytest.raises(EnvironmentFault, match="is gone"):
        device.look()
    device.close()


async def test_an_episode_is_played_and_judged_on_settings(double):
    env = new_env(double, screenshot="plain", scale=0.5)
    specs = group_specs("android", env.task("test", 0), seed=0, group_size=2)
    played = await collect(lambda: env, ExpertPolicy(), specs, concurrency=1)
    assert [(t.error, t.score, len(t.turns)) for t in played] == [(None, 1.0, 5)] * 2
    assert double.phone.files["/sdcard/Documents/turngym/notes/a.txt"] == b"a"
    env = new_env(double)
    try:
        await env.reset(seed=0)
        assert (await env.step("stop"))[1:3] == (0.0, True)
    finally:
        await env.close()
    assert double.phone.window == "com.launcher/.Home"


@pytest.mark.parametrize("command", ["input", "uiautomator", "settings get"])
async def test_a_device_that_is_unplugged_is_a_fault_without_a_score(double, command):
    env = new_env(double)
    double.phone.dies_at = command
    specs = group_specs("android", env.task("test", 0), seed=0, group_size=1)
    (played,) = await collect(lambda: env, ExpertPolicy(), specs, concurrency=1)
    assert played.stop_reason.is_error
    assert played.score is None
    assert f"device {SERIAL} is gone (it went away in the middle of a command)" in played.error
    double.phone.plugged, double.phone.dies_at = True, ""
    (again,) = await collect(lambda: new_env(double), ExpertPolicy(), specs, concurrency=1)
    assert again.is_success


async def test_another_screen_size_is_one_line(double):
    env = AndroidEnv(tasks=tasks(), serial=SERIAL, port=double.port)
    try:
        with pytest.raises(ConfigError, match=r"pass size=\(360, 640\)"):
            await env.reset(seed=0)
    finally:
        await env.close()


def test_a_missing_client_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "adbutils", None)
    with pytest.raises(MissingExtraError, match=r"turngym\[android\]"):
        AndroidDevice(SERIAL)
