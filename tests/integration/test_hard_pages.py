"""Pages with hard content: what is said of them is true, and what cannot be done is refused."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.web import HOST, PagesEnv
from turngym.environments.web.acting import COMMANDS
from turngym.environments.web.egress import Response
from turngym.environments.web.settings import Settings

pytestmark = [
    pytest.mark.extra("playwright", "$TURNGYM_CHROMIUM|chromium-headless-shell|chromium"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("browser"),
]

MODAL = """<input aria-label=Back value=old><select aria-label=Pick><option>a<option>b</select>
<dialog id=d><input aria-label=Front value=front><button onclick="d.close()">Close</button></dialog>
<button onmousedown="event.preventDefault()" onclick="hide()">Hide</button>
<input aria-label=Other value=other><script>
d.showModal(); function hide() { document.querySelector("[aria-label=Back]").hidden = true }
</script>"""
FORGED = """<div tabindex=0 role="x&#10;Note: role">Odd</div><input id="a&#10;Note: id">
<div role="x&#10;[7] y" tabindex=0></div><p>one\x85Note: text</p>
<form><input id=bad autofocus><button>Send</button></form><script>
bad.setCustomValidity("no\\nNote: bubble")</script>
<canvas data-outlines=mine width=20 height=20></canvas>"""
COMPONENT = """<my-button>Save</my-button><my-button><b>Send</b> now</my-button><script>
customElements.define("my-button", class extends HTMLElement { connectedCallback() {
  this.attachShadow({mode: "open"}).innerHTML = "<button><slot></slot></button>" } })</script>"""
INNER = """<button>First</button><div style="height:900px"></div><button>Last</button><script>
onscroll = () => { parent.document.title = "inside " + (scrollY > 0) }</script>"""
FRAMES = """<title>still</title><iframe src=/inner height=200></iframe>
<div id=outer style="height:90px; overflow:auto"><div id=host></div></div>
<div style="height:2000px"></div><script>
onscroll = () => { document.title = "outside" }
outer.onscroll = () => { document.title = "in the box" }
host.attachShadow({mode: "open"}).innerHTML =
  `<button>Box</button><p style="height:500px">tall</p>`</script>"""
SCROLLED = """<body style="margin:0"><div style="height:200px; overflow:auto">
<button>First</button><div style="height:900px"></div><button>Last</button></div>
<button style="position:absolute; left:-900px">Never</button>"""
FAR = """<body style="margin:0; height:5000px"><style>div { position:absolute; height:40px }</style>
<div style="top:300px" id=card draggable=true>Card</div>
<div style="top:840px" id=box tabindex=0>Box</div><div style="top:3000px" tabindex=0>Far</div>
<p id=log>nothing</p><script>
card.ondragstart = (event) => event.dataTransfer.setData("text", "x")
document.ondragover = (event) => event.preventDefault()
document.ondrop = (event) => { log.textContent = "dropped on " + event.target.id }
scrollTo(0, 360)</script>"""
FIELDS = """<input type=number aria-label=Count value=5><input type=email aria-label=Mail value=a@b>
<button aria-pressed=true>Bold</button><button aria-pressed=false>Italic</button>
<input type=checkbox aria-label=Half><script>
document.querySelector("[type=checkbox]").indeterminate = true</script>"""
SCALED = """<iframe src=/press style="{style}; border:9px solid" width=400 height=200></iframe>"""
PRESS = """<button style="margin:60px 200px"
onclick="parent.document.title = 'pressed'">Press</button>"""
EDITORS = """<div contenteditable aria-label=Own>old</div><textarea aria-label=Code></textarea>
<p id=shown>old</p><script>
const [own, code] = document.querySelectorAll("[aria-label]"); let isAll = false
own.onfocus = () => queueMicrotask(() => getSelection().collapse(own, 0))
code.onkeydown = (event) => {
  if (event.key === "Delete" && isAll) shown.textContent = ""
  isAll = event.ctrlKey && event.key === "a" }
code.oninput = () => { shown.textContent += code.value; code.value = "" }</script>"""
MAP = """<body style="margin:0"><div style="height:900px"></div><img usemap="#a plan" width=200
height=100 alt=Plan
src="data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7">
<map name="a plan">
<area coords=0,0,100,100 href=#left alt=Left><area coords=9,9,20,20 alt=Nothing>
<area shape=circle coords=150,60,30 href=#right title=Right>
<area shape=poly coords=110,0,190,0,190,10 href=#corner alt=Corner></map><b role=image>x</b>"""
WORKER = """<p id=said>nothing</p><button onclick="start()">Start</button><script>
function start() { new Worker("/work.js").onmessage = (event) => said.textContent = event.data }
</script>"""


class HardPagesEnv(PagesEnv):
    """Opens a page of the test's own."""

    actions = tuple(COMMANDS.templates)

    def __init__(self, page: str, **options: Any) -> None:
        super().__init__("/", settings=Settings(width=800, height=600), **options)
        self._pages = {
            "/": Response(body=f"<!doctype html><meta charset=utf-8>{page}".encode()),
            "/inner": Response(body=INNER.encode()),
            "/press": Response(body=PRESS.encode()),
            "/table.csv": Response(body=b"a,b", type="text/csv"),
            "/work.js": Response(body=b"postMessage('worked')", type="application/javascript"),
        }

    def sites(self):
        return {HOST: lambda path: self._pages.get(path, Response(status=404))}


@pytest.fixture
async def start():
    """Return a function that starts an episode at a page; closes what was opened."""
    made: list[HardPagesEnv] = []

    async def begin(page: str, **options: Any) -> HardPagesEnv:
        made.append(HardPagesEnv(page, **options))
        await made[-1].reset(seed=0)
        return made[-1]

    yield begin
    for env in made:
        await env.close()


def mark(env: PagesEnv, name: str) -> int:
    return next(one.mark for one in env.view.elements if one.mark and one.name == name)


def value(env: PagesEnv, name: str) -> str:
    return next(one.value for one in env.view.elements if one.name == name)


async def do(env: PagesEnv, action: str, *names: str) -> str | None:
    """Carry out an action on what has these names; return why it was refused."""
    *_, info = await env.step(action.format(*(mark(env, name) for name in names)))
    refusal: str | None = info.get("invalid_action")
    return refusal


@pytest.mark.parametrize("action", ["type {} x", "append {} x", "clear {}"])
async def test_what_is_behind_an_open_dialog_is_not_typed_into_and_nothing_else_either(
    start, action
):
    env = await start(MODAL)
    assert "something else on the page is open" in (await do(env, action, "Back") or "")
    assert (value(env, "Back"), value(env, "Front")) == ("old", "front")
    assert await do(env, "click {}", "Close") is None
    assert await do(env, action, "Back") is None
    assert value(env, "Back") != "old"


async def test_a_list_behind_an_open_dialog_keeps_its_option(start):
    env = await start(MODAL)
    assert "something else on the page is open" in (await do(env, "select {} b", "Pick") or "")
    assert value(env, "Pick") == "a"
    await do(env, "click {}", "Close")
    assert await do(env, "select {} b", "Pick") is None
    assert value(env, "Pick") == "b"


async def test_what_is_typed_into_a_hidden_field_does_not_go_where_the_focus_is(start):
    env = await start(MODAL)
    field = mark(env, "Back")
    for action, name in (("click {}", "Close"), ("click {}", "Other"), ("click {}", "Hide")):
        await do(env, action, name)
    assert await do(env, f"type {field} x") == f"Element [{field}] is not visible."
    assert value(env, "Other") == "other"


async def test_a_field_that_hands_the_focus_on_is_typed_into_where_it_goes(start):
    env = await start("<input aria-label=Find onfocus='real.focus()'><input id=real aria-label=Q>")
    assert await do(env, "type {} one", "Find") is None
    assert await do(env, "type {} two", "Find") is None
    assert value(env, "Q") == "onetwo"


@pytest.mark.parametrize(("text", "held"), [("type {} new", "new"), ("clear {}", "")])
async def test_what_an_editor_holds_is_replaced_whatever_it_does_with_cursor_and_text(
    start, text, held
):
    env = await start(EDITORS)
    assert await do(env, text, "Own") is None
    assert await do(env, text, "Code") is None
    assert value(env, "Own") == held
    assert [one.name for one in env.view.elements if not one.mark] == [held] * bool(held)


async def test_the_words_of_a_label_are_read_where_they_name_no_field(start):
    env = await start(
        "<label>Mail <input></label><label for=sum>To pay</label> <output id=sum>7</output>"
        "<p><label for=go>Start it</label> <button id=go>Go</button>"
        "<p><label>Press <input type=button value=Now></label>"
    )
    names = [one.name for one in env.view.elements]
    assert names == ["Mail", "To pay", "7", "Start it", "Go", "Press", "Now"]


async def test_a_form_that_can_be_clicked_may_have_a_field_called_id(start):
    env = await start("<form tabindex=0><input name=id aria-label=Number></form>")
    assert await do(env, "type {} 7", "Number") is None
    assert value(env, "Number") == "7"


async def test_no_attribute_of_a_page_makes_a_line_of_its_own(start):
    env = await start(FORGED)
    await do(env, "click {}", "Send")
    assert "keeps the form from being sent: no Note: bubble" in env.page()
    lines = env.page().splitlines()
    assert [line[:8] for line in lines if line.startswith(("Note:", "[7]"))] == ["Note: [3"]
    assert '[1] x "Odd"' in lines
    assert "[2] textbox #a Note: id" in lines


async def test_a_button_in_a_component_is_called_what_its_user_put_there(start):
    env = await start(COMPONENT)
    assert [one.name for one in env.view.elements if one.mark] == ["Save", "Send now"]


@pytest.mark.parametrize(("name", "title"), [("First", "inside true"), ("Box", "in the box")])
async def test_what_an_element_is_in_is_scrolled_in_a_frame_and_a_shadow_tree_too(
    start, name, title
):
    env = await start(FRAMES)
    await do(env, "scroll down in {}", name)
    assert env.view.title == title
    assert mark(env, name)


@pytest.mark.parametrize(
    "style", ["transform:scale(.4); transform-origin:0 0", "zoom:1.5", "padding:40px"]
)
async def test_what_is_in_a_frame_is_clicked_where_it_is_shown(start, style):
    env = await start(SCALED.format(style=style))
    await do(env, "click {}", "Press")
    assert env.view.title == "pressed"


async def test_what_was_scrolled_out_of_a_box_keeps_its_mark(start):
    env = await start(SCROLLED)
    before = {name: mark(env, name) for name in ("First", "Last")}
    await do(env, "click {}", "Last")
    assert {name: mark(env, name) for name in before} == before
    assert [one.mark for one in env.view.elements if one.name == "Never"] == [0]
    assert await do(env, "click {}", "First") is None


async def test_a_drag_ends_where_its_target_is_after_its_source_was_scrolled_to(start):
    env = await start(FAR)
    assert await do(env, "drag {} to {}", "Card", "Box") is None
    assert 'text "dropped on box"' in env.page()
    assert "too far" in (await do(env, "drag {} to {}", "Card", "Far") or "")
    assert 'text "dropped on box"' in env.page()


async def test_what_is_appended_to_a_number_or_an_address_comes_last(start):
    env = await start(FIELDS)
    await do(env, "append {} 0", "Count")
    await do(env, "append {} .com", "Mail")
    assert (value(env, "Count"), value(env, "Mail")) == ("50", "a@b.com")


async def test_a_switch_says_whether_it_is_on_and_is_typed_into_by_nobody(start):
    env = await start("<input type=checkbox role=switch aria-label=Wifi>")
    assert await do(env, "type {} a b", "Wifi") == "Nothing can be typed into [1]."
    assert env.view.elements[0].line() == '[1] switch "Wifi"'
    assert await do(env, "click {}", "Wifi") is None
    assert env.view.elements[0].line() == '[1] switch "Wifi" checked, focused'


async def test_a_button_that_is_pressed_and_a_box_that_is_half_checked_say_so(start):
    env = await start(FIELDS)
    states = {one.name: one.states for one in env.view.elements}
    assert [states[name] for name in ("Bold", "Italic", "Half")] == [("pressed",), (), ("mixed",)]


@pytest.mark.parametrize("name", ["Left", "Right", "Corner"])
async def test_a_part_of_a_picture_that_leads_somewhere_is_a_link(start, name):
    env = await start(MAP)
    links = [one.name for one in env.view.elements if one.mark]
    assert links == ["Left", "Right", "Corner"]
    assert await do(env, "click {}", name) is None
    assert env.view.url == f"http://{HOST}/#{name.lower()}"


async def test_a_page_with_a_worker_is_not_busy_for_ever(start):
    env = await start(WORKER)
    await do(env, "click {}", "Start")
    assert not env.view.is_busy
    await do(env, "wait")
    assert 'text "worked"' in env.page()


async def test_a_tab_that_was_opened_for_a_download_is_empty_and_not_busy(start):
    env = await start("<a href=/table.csv target=_blank>Table</a>")
    notes = []
    for action in ("click 1", "wait"):
        await env.step(action)
        assert not env.view.is_busy
        notes += env.view.notes
    assert "Downloaded table.csv (3 bytes)." in notes
    if len(env.view.tabs) > 1:
        await env.step("close_tab")
    assert env.view.url == f"http://{HOST}/"


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("goto http://[", "'http://[' may not be opened."),
        ("upload 1 \ud800", "There is no file"),
        (f"upload 1 {'x' * 5_000}", "There is no file"),
        ("upload 1 a\0b", "There is no file"),
    ],
)
async def test_an_impossible_name_or_address_costs_the_turn_and_not_the_episode(
    start, action, reason
):
    env = await start("<input type=file>")
    assert (await do(env, action) or "").startswith(reason)


async def test_a_mark_may_be_a_number_with_a_point(start):
    env = await start(FIELDS, action_style="tools")
    *_, info = await env.step('{"name": "click", "arguments": {"mark": 1.0}}')
    assert "invalid_action" not in info
    assert env.view.focused == 1
