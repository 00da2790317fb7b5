import json
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turngym.environments.core.actions import Action, Commands, InvalidAction, JsonTools
from turngym.environments.desktop.actions import NAMES, device_commands
from turngym.environments.search.base import COMMANDS as SEARCHING
from turngym.environments.swe.env import RUN_TESTS
from turngym.environments.web.acting import COMMANDS as BROWSING
from turngym.environments.workspace.actions import BASH, CREATE, EDIT, SUBMIT, VIEW
from turngym.environments.workspace.tools import ToolText

WORDS = st.text(string.ascii_lowercase + string.digits + "äß中🙂'-", min_size=1, max_size=8)
LINES = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
ANYTHING = st.text(max_size=200) | st.text("{}[]\"':,name arguments\\u\n`0.e-", max_size=200)

WORLD = Commands(
    {
        "go": "go {direction:north|south|up stairs}",
        "guess": "guess {number:int}",
        "give": "give {thing} to {whom}",
        "say": "say {words...}",
        "look": "look",
    }
)
TOOLS = JsonTools(WORLD.tools())
FORMATS = [WORLD, TOOLS]

ACTIONS = st.one_of(
    st.just(Action(name="look")),
    st.sampled_from(["north", "south", "up stairs"]).map(
        lambda way: Action(name="go", arguments={"direction": way})
    ),
    st.integers(-(10**17), 10**17).map(lambda n: Action(name="guess", arguments={"number": n})),
    st.builds(lambda a, b: Action(name="give", arguments={"thing": a, "whom": b}), WORDS, WORDS),
    LINES.map(lambda words: Action(name="say", arguments={"words": words})),
)
TALK = st.text(st.characters(exclude_characters="`", exclude_categories=["Cs"]), max_size=60)


@pytest.mark.parametrize("format", FORMATS, ids=["words", "tools"])
@given(text=ANYTHING)
def test_any_text_is_an_action_or_a_reason(format, text):
    found = format.parse(text)
    assert isinstance(found, Action | InvalidAction)
    if isinstance(found, InvalidAction):
        assert found.reason
    else:
        assert found.name in WORLD.templates


@pytest.mark.parametrize("format", FORMATS, ids=["words", "tools"])
@given(action=ACTIONS)
def test_what_is_rendered_is_parsed_as_what_it_was(format, action):
    assert format.parse(format.render(action)) == action


@given(TALK, ACTIONS)
def test_talk_before_a_command_on_a_line_of_its_own_does_not_matter(talk, action):
    assert WORLD.parse(f"{talk}\n{WORLD.render(action)}") == action


@given(TALK.filter(lambda talk: "{" not in talk), TALK.filter(lambda t: "{" not in t), ACTIONS)
def test_talk_around_a_tool_call_does_not_matter(before, after, action):
    assert TOOLS.parse(before + TOOLS.render(action) + after) == action


@given(ACTIONS, st.data())
def test_letter_case_and_blanks_of_a_command_do_not_matter(action, data):
    words = WORLD.render(action).split()
    blanks = [data.draw(st.sampled_from([" ", "  ", "\t "])) for _ in words]
    text = "".join(word + blank for word, blank in zip(words, blanks, strict=True))
    shouted = text.swapcase() if text.isascii() else text
    assert WORLD.parse(shouted) == action


def test_blanks_inside_of_text_to_type_and_of_raw_text_stay() -> None:
    format = Commands({"answer": "answer {text...:raw}", "type": "type {what...:text} now"})
    assert format.parse("> answer   x  y\tz").arguments == {"text": "x  y\tz"}
    assert format.parse('type  " a  b "   now').arguments == {"what": " a  b "}


@given(st.lists(ACTIONS, min_size=1, max_size=4))
def test_the_last_call_counts(actions):
    text = " and then ".join(TOOLS.render(action) for action in actions)
    assert TOOLS.parse(text) == actions[-1]


@given(
    st.dictionaries(
        st.sampled_from(["number", "words", "more"]),
        st.integers() | st.text(max_size=5) | st.none() | st.floats() | st.lists(st.integers()),
    )
)
def test_arguments_that_pass_have_the_types_of_the_schema(arguments):
    found = TOOLS.parse(json.dumps({"name": "guess", "arguments": arguments}))
    if isinstance(found, Action):
        assert found.arguments.keys() == {"number"}
        assert type(found.arguments["number"]) is int
        assert found.arguments["number"] == arguments["number"]


@given(st.lists(st.sampled_from(['{"a":', "{", "}", '"', "[", "]", '{"name":', '"x"', ","])))
def test_pieces_of_json_are_never_an_error(pieces):
    assert isinstance(TOOLS.parse("".join(pieces)), Action | InvalidAction)
    assert isinstance(JsonTools(TOOLS.tools()).parse(" ".join(pieces)), Action | InvalidAction)


# What models put around a command.

MARKS = ['"', "'", "\u201c", "\u201d"]
QUOTED_WORDS = st.text([*"aB7.,:/-", *MARKS], min_size=1, max_size=8)
DEVICE, WORKSPACE = device_commands(NAMES), ToolText((BASH, VIEW, EDIT, CREATE, RUN_TESTS, SUBMIT))
WRAPPINGS = [
    "**{}**", "*{}*", "`{}`", "__{}__", "\n**{}**.", '"{}"', "{}.", "**{}.**", "Action: {}",
    "**Action:** {}", "> {}", "> `{}`", "```\n{}\n```", "```text\n{}\n```",
    "I go on.\n```\n{}\n```\n",
]  # fmt: skip
LEGAL = [
    (
        BROWSING,
        ["click 3", "stop", "scroll down in 3", "click at 12 -3", "switch_tab 1", "go_back"],
    ),
    (DEVICE, ["click 3", "drag 3 to 5", "scroll up", "wait", "double_click at 3 4", "stop"]),
    (WORKSPACE, ["submit", "run_tests", "view a.py 3", "view a.py 3 9"]),
    (WORLD, ["go north", "go up stairs", "guess 12", "look", "say it's me", "give tea to bob"]),
]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize(("format", "actions"), LEGAL, ids=["web", "device", "work", "game"])
def test_a_wrapping_does_not_matter(wrapping, format, actions):
    for action in actions:
        found = format.parse(wrapping.format(action))
        assert isinstance(found, Action), (wrapping.format(action), found)
        assert found == format.parse(action)


@pytest.mark.parametrize("wrapping", [one for one in WRAPPINGS if "{}." not in one])
@given(action=ACTIONS)
@example(action=Action(name="say", arguments={"words": "' '"}))
def test_any_command_may_be_wrapped(wrapping, action):
    assert WORLD.parse(wrapping.format(WORLD.render(action))) == action


@pytest.mark.parametrize(
    ("format", "text", "wanted"),
    [
        (BROWSING, 'answer "45.50"', {"text": "45.50"}),
        (BROWSING, "answer 'Rue \u00e9'", {"text": "Rue \u00e9"}),
        (BROWSING, 'answer ""45.50""', {"text": '"45.50"'}),
        (BROWSING, 'answer "a" or "b"', {"text": '"a" or "b"'}),
        (BROWSING, 'select 15 "Newest"', {"mark": "15", "option": "Newest"}),
        (BROWSING, 'select "15" "Newest"', {"mark": "15", "option": "Newest"}),
        (BROWSING, 'press "Enter"', {"keys": "Enter"}),
        (BROWSING, "click '3'", {"mark": "3"}),
        (BROWSING, "click 3.", {"mark": "3"}),
        (BROWSING, 'switch_tab "1"', {"tab": 1}),
        (BROWSING, 'type 3 "a b"', {"mark": "3", "text": "a b"}),
        (BROWSING, "type 3 'a b'", {"mark": "3", "text": "'a b'"}),
        (BROWSING, "type 3 The end.", {"mark": "3", "text": "The end."}),
        (BROWSING, "type 3 x = `a`", {"mark": "3", "text": "x = `a`"}),
        (BROWSING, "answer `ls`", {"text": "`ls`"}),
        (BROWSING, "click 3`", {"mark": "3"}),
        (DEVICE, 'key "enter"', {"keys": "enter"}),
        (DEVICE, 'type ""hi""', {"text": '"hi"'}),
        (SEARCHING, 'find "a b" in "c d"', {"text": "a b", "doc": "c d"}),
        (WORKSPACE, 'view "a b.py" 3', {"path": "a b.py", "start": 3}),
        (WORKSPACE, "```\nview 'a b.py'\n```\nThat shows it.", {"path": "a b.py"}),
        (WORKSPACE, "bash echo `date`", {"command": "echo `date`"}),
        (WORKSPACE, '```\nbash echo "a"\n```', {"command": 'echo "a"'}),
        (WORKSPACE, "```\ncreate a.txt\none\ntwo\n```", {"path": "a.txt", "content": "one\ntwo"}),
        (WORLD, 'go "up stairs".', {"direction": "up stairs"}),
        (WORLD, 'give "old tea" to bob.', {"thing": "old tea", "whom": "bob"}),
    ],
)
def test_quotes_and_full_stops_are_read_as_meant(format, text, wanted):
    found = format.parse(text)
    assert isinstance(found, Action), found
    assert found.arguments == wanted


@given(
    st.sampled_from(
        [(BROWSING, "answer"), (SEARCHING, "answer"), (DEVICE, "answer"), (DEVICE, "type")]
    ),
    QUOTED_WORDS,
)
def test_an_argument_may_hold_quotes(command, text):
    format, name = command
    if name == "type":
        text = text.replace(".", "")
    action = Action(name=name, arguments={"text": text})
    assert format.parse(format.render(action)) == action


@given(QUOTED_WORDS, st.integers(1, 9))
def test_a_path_may_hold_quotes_or_blanks_but_not_both(path, line):
    one = "".join(mark for mark in path if mark != '"') or "x"
    for name in (path.strip("\"'") or "x", f"{one.strip(MARKS[1])} b".strip()):
        action = Action(name="view", arguments={"path": name, "start": line})
        assert WORKSPACE.parse(WORKSPACE.render(action)) == action
