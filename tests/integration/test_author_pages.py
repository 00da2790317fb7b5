"""Pages of an author: what is seen of them, what can be done there, and what is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turngym.environments.web.pages import PagesEnv
from turngym.errors import TaskFault
from turngym.tasks.problem import PageProblem, PageWorld
from turngym.tasks.sets import ListedSet

pytestmark = [
    pytest.mark.extra("playwright", "$TURNGYM_CHROMIUM|chromium-headless-shell|chromium"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("browser"),
]

FORM = """<!doctype html><meta charset=utf-8><title>Form</title>
<p>{words}</p><table><tr><td>{words}<td>last</table>
<label><input type=radio> {words}</label>
<label>Day <input type=date value=2024-01-31></label>
<label>Tint <input type=color value="#112233"></label>
<label>Level <input type=range min=0 max=10 step=2 value=6></label>
<label>Group <select><optgroup label=X disabled><option>gone</optgroup><option>here</select></label>
<fieldset disabled><label>Code <input value=fixed></label></fieldset>
<details><summary>More</summary><p>folded</p><button>Inside</button></details>
<form><label>Mail <input type=email required></label> <label>Age <input required></label>
<button>Send</button></form>
<iframe srcdoc="<input value=framed aria-label=Framed>"></iframe>
<div id=host></div><p id=log>nothing</p>
<script>
  host.attachShadow({mode: "open"}).innerHTML = "<input value=shadowed aria-label=Shadowed>"
</script>"""
DRAG = """<!doctype html><meta charset=utf-8><title>Drag</title>
<div id=card draggable=true>Card</div><div id=box tabindex=0>Box</div>
<canvas id=sheet width=300 height=150></canvas><p id=log>nothing</p>
<script>
  card.ondragstart = (event) => event.dataTransfer.setData("text", "card")
  box.ondragover = (event) => event.preventDefault()
  box.ondrop = (event) => { log.textContent = "dropped " + event.dataTransfer.getData("text") }
  sheet.onclick = (event) => { log.textContent = `at ${event.offsetX}` }
</script>"""
FILES = """<!doctype html><meta charset=utf-8><title>Files</title>
<style>.gone { position: absolute; width: 1px; height: 1px; opacity: 0 }</style>
<a href=index.html>Start</a> <label for=one>Your letter</label><input id=one type=file hidden>
<form><input class=gone type=file id=two>
<button type=button onclick="two.click()">Attach</button></form>
<label>Name <input></label><label>Colour <input class=gone type=radio></label><p id=log>nothing</p>
<script>
  for (const field of [one, two])
    field.onchange = () => { log.textContent = field.id + " " + field.files[0].name }
</script>"""
WORDS = " ".join(f"word{number}" for number in range(150))


class Pages(PageProblem):
    """Reach a state of the first page."""

    prompt = "Do it."

    def __init__(self, folder: Path, expression: str = "done") -> None:
        self.pages, self.expression = str(folder), expression

    async def judge(self, world: PageWorld) -> bool:
        return await world.evaluate(self.expression) == 1

    def expert(self) -> list[Any]:
        return []


@pytest.fixture
async def start(tmp_path):
    """Return a function that starts an episode at the first page; closes what was opened."""
    first = "<title>First</title><a href=form.html>on</a><script>var done = 1</script>"
    (tmp_path / "index.html").write_text(first)
    (tmp_path / "form.html").write_text(FORM.replace("{words}", WORDS))
    (tmp_path / "drag.html").write_text(DRAG)
    (tmp_path / "files.html").write_text(FILES)
    made: list[PagesEnv] = []

    async def begin(*actions: str, **problem: str) -> PagesEnv:
        env = PagesEnv(tasks=ListedSet("pages", [("one", Pages(tmp_path, **problem))]))
        made.append(env)
        await env.reset(seed=0)
        for action in actions:
            await env.step(action)
        return env

    yield begin
    for env in made:
        await env.close()


async def do(env: PagesEnv, action: str, name: str = "") -> tuple[str, str | None]:
    """Carry out an action on what is called ``name``; return the page and why it was refused."""
    mark = next((one.mark for one in env.view.elements if name and one.name == name), 0)
    observation, *_, info = await env.step(action.replace("NAME", str(mark)))
    return observation["text"], info.get("invalid_action")


@pytest.mark.parametrize("last", ["new_tab", "goto http://task.test/gone", "click 1"])
async def test_who_has_left_the_page_before_the_judge_asks_it_has_lost(start, last):
    env = await start(last)
    _, reward, terminated, _, info = await env.step("stop")
    assert (reward, terminated, info["score"]) == (0.0, True, 0.0)


async def test_a_judge_that_asks_the_first_page_for_what_it_never_has_is_a_fault_in_one_line(start):
    env = await start(expression="bougth")
    with pytest.raises(TaskFault, match=r"judge: RuntimeError: ReferenceError: bougth.*\)$"):
        await env.step("stop")


async def test_an_address_without_a_file_is_the_first_page_of_its_folder(start):
    env = await start("goto http://task.test/")
    assert env.view.title == "First"
    await env.step("stop")


async def test_a_card_is_dragged_and_a_place_of_a_drawing_clicked(start):
    env = await start("goto http://task.test/drag.html")
    card, box = (one.mark for one in env.view.elements if one.name in ("Card", "Box"))
    assert "dropped card" in (await do(env, f"drag {card} to {box}"))[0]
    sheet = next(one for one in env.view.elements if one.role == "canvas")
    assert "at 40" in (await do(env, f"click at {sheet.x + 40} {sheet.y + 9}"))[0]


async def test_a_long_text_is_read_to_its_end(start):
    env = await start("goto http://task.test/form.html")
    names = [one.name for one in env.view.elements]
    assert [WORDS, f"{WORDS} | last", WORDS] == names[:3]


async def test_what_a_group_disables_is_said_and_refused(start):
    env = await start("goto http://task.test/form.html")
    code = next(one for one in env.view.elements if one.name == "Code")
    assert "disabled" in code.states
    assert "cannot be changed" in ((await do(env, "type NAME other", "Code"))[1] or "")
    text, refused = await do(env, "select NAME gone", "Group")
    assert "cannot be chosen" in (refused or "")
    assert "select \"Group\" = 'here'" in text


async def test_what_is_folded_up_is_not_shown_until_it_is_opened(start):
    env = await start("goto http://task.test/form.html")
    assert [one.name for one in env.view.elements if one.role == "button"] == ["More", "Send"]
    assert '"Inside"' in (await do(env, "click NAME", "More"))[0]


@pytest.mark.parametrize(
    ("name", "text", "held"),
    [
        ("Day", "2024-02-31", "2024-01-31"),
        ("Tint", "red", "#112233"),
        ("Level", "5", "6"),
    ],
)
async def test_a_value_that_a_field_does_not_take_leaves_it_as_it_was(start, name, text, held):
    env = await start("goto http://task.test/form.html")
    _, refused = await do(env, f"type NAME {text}", name)
    assert f"did not take {text!r}; it holds {held!r}." in (refused or "")
    shown, _ = await do(env, "wait")
    assert f"\"{name}\" = '{held}'" in shown


async def test_a_colour_in_capitals_is_taken(start):
    env = await start("goto http://task.test/form.html")
    shown, refused = await do(env, "type NAME #FF0000", "Tint")
    assert refused is None
    assert "\"Tint\" = '#ff0000'" in shown


async def test_a_file_for_an_element_that_is_not_there_is_told(start):
    env = await start("goto http://task.test/form.html")
    (env.session.folder / "a.txt").write_text("a")
    _, refused = await do(env, "upload 999 a.txt")
    assert refused == "There is no element [999] on this page."


@pytest.mark.parametrize(("name", "field"), [("Your letter", "one"), ("Attach", "two")])
async def test_a_label_or_a_button_stands_for_a_field_of_files_that_is_hidden(start, name, field):
    env = await start("goto http://task.test/files.html")
    (env.session.folder / "a.txt").write_text("a")
    shown, refused = await do(env, "upload NAME a.txt", name)
    assert refused is None
    assert f"{field} a.txt" in shown
    if field == "one":
        assert "file \"Your letter\" = 'a.txt'" in shown


@pytest.mark.parametrize("name", ["Start", "Name"])
async def test_what_stands_for_no_field_of_files_takes_none(start, name):
    env = await start("goto http://task.test/files.html")
    (env.session.folder / "a.txt").write_text("a")
    shown, refused = await do(env, "upload NAME a.txt", name)
    assert "takes no file" in (refused or "")
    assert "Colour" in shown  # a label's words are read, though its field is not seen
    assert "nothing" in shown


@pytest.mark.parametrize("name", ["Framed", "Shadowed"])
async def test_what_is_typed_into_in_a_frame_or_a_shadow_tree_has_the_focus_and_is_copied(
    start, name
):
    env = await start("goto http://task.test/form.html")
    text, _ = await do(env, "click NAME", name)
    mark = next(one.mark for one in env.view.elements if one.name == name)
    assert f"Focus: [{mark}]" in text
    for keys in ("Control+A", "Control+C"):
        await env.step(f"press {keys}")
    assert env.session.clipboard == name.lower()


@pytest.mark.parametrize("keys", ["Shift+Insert", "Control+Shift+V", "Control+KeyV", "Control+v"])
async def test_what_one_episode_copies_another_cannot_paste(start, keys):
    one, other = [await start("goto http://task.test/form.html") for _ in range(2)]
    await do(one, "click NAME", "Framed")
    for pressed in ("Control+A", "Control+Insert", "End"):
        await one.step(f"press {pressed}")
    assert "'framedframed'" in (await do(one, f"press {keys}"))[0]
    await do(other, "type NAME own", "Shadowed")
    assert "'own'" in (await do(other, f"press {keys}"))[0]


async def test_nothing_is_cut_and_the_clipboard_kept_where_nothing_is_selected(start):
    env = await start("goto http://task.test/form.html")
    await do(env, "click NAME", "Framed")
    for keys in ("Control+A", "Control+C", "Home", "Control+X"):
        text, _ = await do(env, f"press {keys}")
    assert "'framed'" in text
    assert env.session.clipboard == "framed"


async def test_a_field_that_keeps_a_form_from_being_sent_is_told_until_it_is_mended(start):
    env = await start("goto http://task.test/form.html")
    mail = next(one.mark for one in env.view.elements if one.name == "Mail")
    empty = f"Note: [{mail}] keeps the form from being sent: Please fill out this field."
    assert "Note:" not in env.page()
    assert empty in (await do(env, "click NAME", "Send"))[0]
    assert "Note:" not in (await do(env, "type NAME a@b.test", "Mail"))[0]
    age = next(one.mark for one in env.view.elements if one.name == "Age")
    assert empty.replace(f"[{mail}]", f"[{age}]") in (await do(env, "click NAME", "Send"))[0]
    sent, _ = await do(env, "submit NAME 7", "Age")
    assert "Note:" not in sent
    assert "form.html?" in sent
