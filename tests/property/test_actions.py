import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.environments.actions import Action, Commands, InvalidAction, JsonTools

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
TOOLS = WORLD.as_tools()
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
