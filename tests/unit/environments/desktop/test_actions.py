"""Actions in words and as tools mean the same, and reach a device as pixels."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from turngym.environments.core.actions import Action, InvalidAction
from turngym.environments.desktop.actions import (
    NAMES,
    act,
    as_tool_call,
    device_commands,
    device_tools,
)
from turngym.environments.desktop.observation import Element, View, view_text
from turngym.environments.desktop.problems import typed

WORDS, TOOLS = device_commands((*NAMES, "box")), device_tools((*NAMES, "box"))
VIEW = View(
    active="Notes",
    elements=(
        Element(role="button", name="Save", mark=1, x=10, y=20, width=40, height=20),
        Element(role="label", name="Name:"),
        Element(role="text", value="hello", states=("focused",), mark=2, x=100, y=100, width=50),
    ),
)


@dataclass
class Recorder:
    """A device that remembers what it was told."""

    width: int = 1000
    height: int = 500
    told: list = field(default_factory=list)

    def __getattr__(self, name):
        def method(*args, **kwargs):
            self.told.append((name, *args, *kwargs.values()))

        return method


@pytest.mark.parametrize(
    "words",
    [
        "click 1", "click at 3 4", "right_click 2", "move at 1 2", "drag 1 to 2",
        "drag at 1 2 to 3 4", "scroll up", "scroll down in 1", "scroll up at 5 6", "type some text",
        "key ctrl+s", "box 1 2 3 4", "wait", "answer 42", "stop",
    ],
)  # fmt: skip
def test_words_and_tools_do_the_same(words):
    said = WORDS.parse(words)
    call = as_tool_call(said)
    assert TOOLS.parse(json.dumps({"name": call.name, "arguments": dict(call.arguments)})) == call
    if said.name not in ("answer", "stop", "wait", "box"):
        one, two = Recorder(), Recorder()
        assert act(one, VIEW, said) is act(two, VIEW, call) is None
        assert one.told == two.told


def test_a_mark_becomes_the_middle_of_its_element_after_that_was_revealed():
    device = Recorder()
    act(device, VIEW, WORDS.parse("double_click 1"))
    assert device.told == [("reveal", VIEW.elements[0]), ("click", 30, 30, "left", 2)]


def test_pixels_of_a_smaller_picture_are_scaled_to_the_screen():
    device = Recorder()
    act(device, VIEW, WORDS.parse("click at 50 20"), scale=0.5)
    assert device.told == [("click", 100, 40, "left", 1)]


@pytest.mark.parametrize("mark", ["7", "0", "x", "-1", "99999999999"])
def test_a_mark_that_is_none_is_told(mark):
    problem = act(Recorder(), VIEW, Action(name="click", arguments={"mark": mark}))
    assert problem is not None
    assert mark[:40] in problem


def test_a_tool_call_without_a_place_is_refused():
    assert isinstance(TOOLS.parse('{"name": "click", "arguments": {}}'), InvalidAction)
    assert isinstance(TOOLS.parse('{"name": "click", "arguments": {"x": 3}}'), InvalidAction)


def test_quotes_keep_blanks_and_a_backslash_n_is_a_line_break():
    for said, wanted in (('" a\\nb "', " a\nb "), ("plain", "plain"), ('""x""', '"x"')):
        screen = Recorder()
        action = WORDS.parse(f"type {said}")
        assert isinstance(action, Action)
        act(screen, VIEW, action)
        assert screen.told == [("type_text", wanted)]


@pytest.mark.parametrize(
    "text",
    ["check the engine 45", " a\nb \n", "\nlast", "=SUM(B2:B5)", '"quoted"', '""', "it's", "7"],
)
def test_what_an_expert_types_arrives_as_it_is_in_words_and_as_a_tool_call(text):
    (step,) = typed(text)
    for style, action in ((WORDS, step), (TOOLS, as_tool_call(step))):
        screen, parsed = Recorder(), style.parse(style.render(action))
        assert isinstance(parsed, Action)
        act(screen, VIEW, parsed)
        assert screen.told == [("type_text", text)]


def test_the_view_is_told_in_whole_lines_within_the_budget():
    text = view_text(VIEW, 1_000)
    assert text.splitlines() == [
        "Window: Notes",
        '[1] button "Save"',
        'label "Name:"',
        "[2] text = 'hello' focused",
    ]
    assert view_text(VIEW, 20).splitlines()[1:] == [
        '[1] button "Save"',
        "... 2 more elements; the text is cut here",
    ]


def test_no_name_of_a_file_or_a_window_makes_a_line_of_its_own():
    name = 'a.txt"\n[7] button "Pay'
    cell = Element(role="cell", name=name, value="x\ny", mark=1)
    text = view_text(View(active=name, windows=(name,), notes=(name,), elements=(cell,)), 1_000)
    assert len(text.splitlines()) == 4
    assert text.endswith("""[1] cell "a.txt" [7] button "Pay" = 'x\\ny'""")
