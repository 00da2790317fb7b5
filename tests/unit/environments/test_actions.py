import json

import pytest

from turngym.environments.core.actions import (
    Action,
    ActionFormat,
    Commands,
    InvalidAction,
    JsonTools,
    function_tool,
)
from turngym.errors import ConfigError

WORLD = Commands(
    {
        "go": "go {direction:north|south|north west}",
        "guess": "guess {number:int}",
        "take": "take {thing}",
        "ask": "ask {whom} about {what...}",
        "look": "look",
    },
    help={"take": "picks something up"},
)

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find pages.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer", "minimum": 1},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    },
}
ANSWER = {
    "type": "function",
    "function": {"name": "answer", "description": "", "parameters": {"type": "object"}},
}
TOOLS = JsonTools([SEARCH, ANSWER])


def action(name, **arguments):
    return Action(name=name, arguments=arguments)


def test_both_formats_are_action_formats():
    assert isinstance(WORLD, ActionFormat)
    assert isinstance(TOOLS, ActionFormat)


# Commands.


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("look", action("look")),
        ("  LOOK  ", action("look")),
        ("Go   North", action("go", direction="north")),
        ("go north  west", action("go", direction="north west")),
        ("guess -12", action("guess", number=-12)),
        ("guess +7", action("guess", number=7)),
        ("take LAMP", action("take", thing="lamp")),
        ("ask bob about the old  mill", action("ask", whom="bob", what="the old mill")),
        ("Action: look", action("look")),
        ("> look", action("look")),
        ("`look`", action("look")),
        ("I could take the lamp.\n\ngo south\n\n", action("go", direction="south")),
        ("```\nlook\n```", action("look")),
        ("```text\ntake a\ntake b\n```\nThat was it.", action("take", thing="b")),
        ("```\nlook\n```\nor\n```\ntake c\n```", action("take", thing="c")),
        ("no fence is closed ```\nlook", action("look")),
        ("first\r\nlook\r\n", action("look")),
    ],
)
def test_a_command_is_understood(text, wanted):
    assert WORLD.parse(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n ",
        "fly",
        "go",
        "go up",
        "guess x",
        "guess 1.5",
        "guess 1 2",
        "take",
        "look here",
        "guess 1234567890123456789",
        "ask bob",
        "look\nfly",
    ],
)
def test_what_is_no_command_gets_a_reason_with_the_commands(text):
    found = WORLD.parse(text)
    assert isinstance(found, InvalidAction)
    assert "Commands: go <north|south|north west>; guess <number>" in found.reason


def test_captured_words_keep_their_letter_case_on_request():
    format = Commands({"write": "write {text...}"}, keep_case=True)
    assert format.parse("WRITE Dear Bob") == action("write", text="Dear Bob")


@pytest.mark.parametrize("keep_case", [False, True])
@pytest.mark.parametrize("said", ["play Bet", "PLAY BET", "**play bet**", "play bet."])
def test_a_choice_is_captured_as_it_is_listed(said, keep_case):
    game = Commands({"play": "play {move:Bet|Go  on}"}, keep_case=keep_case)
    assert game.parse(said) == action("play", move="Bet")
    assert game.parse(said.lower().replace("bet", "go on")) == action("play", move="Go  on")


def test_a_longer_choice_is_not_cut_to_a_shorter_one():
    format = Commands({"go": "go {way:north|northeast}"})
    assert format.parse("go northeast") == action("go", way="northeast")


def test_special_characters_of_a_template_stand_for_themselves():
    format = Commands({"add": "a+b (c) {x}."})
    assert format.parse("A+B (C) 7.") == action("add", x="7")
    assert isinstance(format.parse("aab c 7x"), InvalidAction)


@pytest.mark.parametrize(
    "text",
    [
        "take" + " " * 50_000 + "x y",
        "ask " + "about " * 20_000,
        "a" * 1_000_000,
        "```" * 200_000,
        "\n" * 500_000,
        "``" + "`" * 300_000 + "\n",
    ],
    ids=lambda text: f"{text[:8]!r}*{len(text)}",
)
@pytest.mark.timeout(120)
def test_a_huge_text_is_read_in_no_time(text):
    assert isinstance(WORLD.parse(text), InvalidAction | Action)


def test_a_line_that_is_too_long_is_refused_and_the_limit_is_named():
    found = WORLD.parse("take " + "x" * 10_000)
    assert isinstance(found, InvalidAction)
    assert "longer than 10000 characters" in found.reason


@pytest.mark.parametrize(
    "wanted",
    [
        action("look"),
        action("go", direction="north west"),
        action("guess", number=-3),
        action("ask", whom="bob", what="the old mill"),
    ],
)
def test_a_rendered_command_is_understood_as_what_it_was(wanted):
    assert WORLD.parse(WORLD.render(wanted)) == wanted


def test_the_instructions_list_every_command_and_its_help():
    lines = WORLD.instructions().splitlines()
    assert lines[1:] == [
        "  go <north|south|north west>",
        "  guess <number>",
        "  take <thing>  (picks something up)",
        "  ask <whom> about <what>",
        "  look",
    ]


def test_commands_are_tools_too():
    tools = JsonTools(WORLD.tools())
    assert tools.parse('{"name": "guess", "arguments": {"number": 3}}') == action("guess", number=3)
    assert tools.parse('{"name": "go", "arguments": {"direction": "south"}}') == action(
        "go", direction="south"
    )
    refused = tools.parse('{"name": "go", "arguments": {"direction": "up"}}')
    assert isinstance(refused, InvalidAction)
    described = {tool["function"]["name"]: tool["function"] for tool in WORLD.tools()}
    assert described["take"]["description"] == "picks something up"
    assert described["guess"]["parameters"]["required"] == ["number"]


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({}, "wanted {name: template, ...}, found {}"),
        ("look", "wanted {name: template, ...}, found 'look'"),
        ({"x": "x {y:float}"}, "command 'x': unknown slot kind 'float'; wanted int or a"),
        ({"x": "{y} and {y}"}, "command 'x': template '{y} and {y}'"),
    ],
)
def test_a_wrong_template_is_explained(templates, message):
    with pytest.raises(ConfigError, match=message):
        Commands(templates)


# JsonTools.


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (call("search", query="x"), action("search", query="x")),
        (f"I will search.\n```json\n{call('search', query='x')}\n```", action("search", query="x")),
        (f"<tool_call>{call('search', query='x')}</tool_call>", action("search", query="x")),
        (f"{call('search', query='a')} {call('answer')}", action("answer")),
        ('{"name": "answer"}', action("answer")),
        ('{ \n "name": "answer"}', action("answer")),
        (f"a set {{1, 2}} and {{ {call('answer')}", action("answer")),
        (f"{call('answer')} then {{oops", action("answer")),
        ('{"thought": {"name": 3}} ' + call("answer"), action("answer")),
        (call("search", query='{"name": "answer"}'), action("search", query='{"name": "answer"}')),
        (call("answer", deep={"name": "search"}), action("answer", deep={"name": "search"})),
        (call("search", query="x", limit=2.0), action("search", query="x", limit=2)),
        (call("search", query="中🙂"), action("search", query="中🙂")),
    ],
)
def test_a_tool_call_is_understood(text, wanted):
    assert TOOLS.parse(text) == wanted


def test_an_integer_written_with_a_point_becomes_an_int():
    found = TOOLS.parse(call("search", query="x", limit=2.0))
    assert isinstance(found, Action)
    assert type(found.arguments["limit"]) is int


@pytest.mark.parametrize(
    ("schema", "value", "meant"),
    [
        ({"type": ["integer", "null"]}, 2.0, "2"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 2.0, "2"),
        ({"type": "array", "items": {"type": "integer"}}, [2.0, 3], "[2, 3]"),
        ({"type": "object", "properties": {"x": {"type": "integer"}}}, {"x": 2.0}, "{'x': 2}"),
        ({"type": "number"}, 2.0, "2.0"),
        ({"type": ["integer", "number"]}, 2.0, "2.0"),
        ({"anyOf": [{"type": "integer"}, True]}, 2.5, "2.5"),
    ],
)
def test_so_does_one_that_may_be_missing_or_stands_inside(schema, value, meant):
    tools = JsonTools([function_tool("count", "Count.", {"n": schema}, ["n"])])
    found = tools.parse(call("count", n=value))
    assert isinstance(found, Action)
    assert str(found.arguments["n"]) == meant


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "No tool call found. Tools: search, answer."),
        ("{}", "No tool call found"),
        ("[1, 2]", "No tool call found"),
        ('{"name": 3}', "No tool call found"),
        ('{"name": "search", "arguments": {"query": NaN}}', "No tool call found"),
        ('{"name": "fly", "arguments": {}}', "Unknown tool 'fly'. Tools: search, answer."),
        ('{"name": "search", "arguments": [1]}', "arguments of 'search' must be a JSON object"),
        ('{"name": "search", "arguments": null}', "arguments of 'search' must be a JSON object"),
        (call("search"), "Tool 'search', arguments: 'query' is a required property"),
        (call("search", query=3), "Tool 'search', query: 3 is not of type 'string'"),
        (call("search", query="x", limit=0), "Tool 'search', limit: 0 is less than the minimum"),
        (call("search", query="x", limit=1.5), "Tool 'search', limit: 1.5 is not of type"),
        (call("search", query="x", limit=True), "Tool 'search', limit: True is not of type"),
        (call("search", query="x", tags=[1]), "Tool 'search', tags.0: 1 is not of type"),
        (call("search", query="x", more=1), "Tool 'search', arguments: Additional properties"),
        ('{"name": "search", "arguments": {"query": "\\ud83d"}}', "half of a unicode pair"),
    ],
)
def test_what_is_no_tool_call_gets_a_reason(text, reason):
    found = TOOLS.parse(text)
    assert isinstance(found, InvalidAction)
    assert reason in found.reason


@pytest.mark.parametrize(
    "text",
    [
        "{" * 1_000_000,
        '{"a":' * 200_000,
        ('{"a":' * 900 + "x") * 220,
        '{"name":"' * 100_000,
        '[{"a":' * 150_000,
        '{"name": "search", "arguments": ' * 30_000,
        "9" * 1_000_000,
        '{"name": "search", "arguments": {"query": ' + "9" * 100_000 + "}}",
    ],
    ids=lambda text: f"{text[:12]!r}*{len(text)}",
)
@pytest.mark.timeout(120)
def test_a_huge_text_with_braces_is_read_in_no_time(text):
    assert isinstance(TOOLS.parse(text), InvalidAction)


def test_a_call_after_much_talk_in_braces_is_found():
    talk = "for x in {1, 2}: f({x}); {'a': 1} " * 20_000
    assert TOOLS.parse(talk + call("answer")) == action("answer")


@pytest.mark.parametrize(
    "wanted", [action("answer"), action("search", query='say "hi"\n', tags=["a", "ü"])]
)
def test_a_rendered_call_is_understood_as_what_it_was(wanted):
    assert TOOLS.parse(TOOLS.render(wanted)) == wanted


def test_the_instructions_hold_every_tool_with_its_schema():
    text = TOOLS.instructions()
    assert '"name": "search"' in text
    assert '"minimum": 1' in text
    assert '"name": "answer"' in text


@pytest.mark.parametrize("tools", [[], "look", ["look"], {"a": 1}, [{"name": "look"}]])
def test_at_least_one_tool_is_needed(tools):
    with pytest.raises(ConfigError, match=r'wanted \[{"function": ...}, ...\], found'):
        JsonTools(tools)


def test_a_schema_that_refers_to_a_place_in_the_network_fetches_nothing():
    far = {
        "type": "function",
        "function": {"name": "t", "parameters": {"$ref": "http://[::1]:1/x"}},
    }
    found = JsonTools([far]).parse('{"name": "t"}')
    assert isinstance(found, InvalidAction)
    assert found.reason == "Tool 't': its JSON Schema has no 'http://[::1]:1/x'."


def test_schemas_of_older_drafts_and_arguments_of_any_kind_are_understood():
    parameters = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "pair": {"type": "array", "items": [{"type": "string"}, {"type": "number"}]},
            "value": True,
        },
    }
    tools = JsonTools([{"type": "function", "function": {"name": "t", "parameters": parameters}}])
    assert tools.parse(call("t", pair=["a", 1], value=1.5)) == action("t", pair=["a", 1], value=1.5)
    found = tools.parse(call("t", pair=[1, "a"]))
    assert isinstance(found, InvalidAction)
    assert "is not of type" in found.reason


def test_a_wrong_schema_is_the_authors_error():
    broken = {"type": "function", "function": {"name": "t", "parameters": {"type": "wrong"}}}
    with pytest.raises(ConfigError, match="tool 't': bad JSON Schema"):
        JsonTools([broken]).parse('{"name": "t"}')
