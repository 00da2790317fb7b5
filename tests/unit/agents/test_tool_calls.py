"""Tools in a chat template's own way; templates shaped like those of models that people use."""

import asyncio
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.tools import (
    BODY,
    CALLS,
    ONE_CALL,
    SHOWN,
    TOOLS,
    WALKS,
    Scripted,
    renderer,
    said,
    sampled,
    template,
    tokenizer,
)
from turngym.agents.call_forms import ARGUMENTS, MAX_CALLS, NAME, FoundCall, reader_of
from turngym.agents.chat.agent import ChatAgent, EngineModel
from turngym.agents.chat.prompting import WindowHistory
from turngym.agents.engine.protocol import Sampling
from turngym.agents.policy import EpisodeContext
from turngym.agents.rendering import CLOSED, AnswerEnd, Renderer
from turngym.agents.serving.answers import split_tool_calls
from turngym.agents.templates import rendered
from turngym.agents.tool_calls import NOT_CARRIED_OUT, action_text, called_row, result_row
from turngym.environments.core.actions import function_tool
from turngym.errors import ConfigError
from turngym.trainers.update.imitation import render_episode, render_turns
from turngym.types import Message, StopReason, ToolCall, Trajectory, Turn, after_thoughts


@pytest.mark.parametrize("call", CALLS)
def test_an_episode_with_calls_is_what_the_template_makes_of_it(call: str) -> None:
    one = renderer(call)
    assert one.tools is not None
    rows: list[Any] = [("system", "be kind"), ("user", "a door")]
    ids = [*one.opening([said("system", "be kind"), said("user", "a door")], TOOLS)]
    expert = Trajectory(
        env_id="e", task_id="t", env_seed=0, policy_seed=0, stop_reason=StopReason.TERMINATED,
        turns=tuple(
            Turn(observation=(said("user", "a door" if not i else f"room {i}"),),
                 action=said("assistant", action_text("go", walk)))
            for i, walk in enumerate(WALKS)
        ),
    )  # fmt: skip
    turns = render_turns(one, expert, "be kind", TOOLS)
    assert ids == [*turns[0][0]]
    ids = [token for turn in turns for part in turn for token in part]
    for i, walk in enumerate(WALKS):
        found = FoundCall(name="go", arguments=walk)
        rows += [result_row(found, f"room {i}")] if i else []
        rows.append(called_row([found], "", as_text=call == "as a text"))
        message, end = one.answer(turns[i][1], TOOLS)
        assert json.loads(message.content) == {"name": "go", "arguments": walk}
        assert [(c.name, c.arguments) for c in message.tool_calls] == [("go", walk)]
        assert end.is_closed
        assert [c.name for c in end.calls] == ["go"]
    ids += one.continuation([said("tool", "the end")], end)
    ids += one.action("I am done.") + one.continuation([said("user", "good")], CLOSED)
    rows += [
        result_row(found, "the end"),
        ("assistant", "I am done."),
        ("user", "good"),
    ]
    text = one.tokenizer.decode(ids)
    assert text == rendered(one.tokenizer, rows, generate=True, tools=TOOLS)


def test_another_agents_words_and_calls_are_imitated_and_each_segment_is_a_sequence() -> None:
    one = renderer("tags")
    words = ["First north.", "<think>So</think>\n\nThen there.", ""]
    turns = [
        Turn(
            observation=(said("user", f"room {n}"),),
            action=Message(
                role="assistant",
                content="\n".join(filter(None, [words[n], action_text("go", walk)])),
                tool_calls=(ToolCall(name="go", arguments=walk),) * (n != 1),
            ),
        )
        for n, walk in enumerate(WALKS)
    ]
    called = ToolCall(name="go", arguments=WALKS[1])
    earlier = Message(role="assistant", content=action_text("go", WALKS[1]), tool_calls=(called,))
    seen = (said("user", "notes"), earlier, said("tool", "room 2"))
    turns[2] = replace(turns[2], observation=seen, starts_segment=True, segment_reason="cut")
    episode = Trajectory(
        env_id="e", task_id="t", env_seed=0, policy_seed=0, turns=tuple(turns),
        stop_reason=StopReason.TERMINATED,
    )  # fmt: skip
    found = [FoundCall(name="go", arguments=walk) for walk in WALKS]
    shown: list[list[Any]] = [
        [
            ("user", "room 0"), called_row(found[:1], words[0]),
            result_row(found[0], "room 1"), called_row(found[1:2], words[1]),
        ],
        [
            ("user", "notes"), called_row(found[1:2], ""), result_row(found[1], "room 2"),
            called_row(found[2:], ""),
        ],
    ]  # fmt: skip
    segments = render_episode(one, episode, "be kind", TOOLS)
    assert len(segments) == 2
    for segment, rows in zip(segments, shown, strict=True):
        whole = rendered(one.tokenizer, [("system", "be kind"), *rows], tools=TOOLS)
        assert one.tokenizer.decode(segment.token_ids) == whole.removesuffix("\n")
    assert list(dict.fromkeys(segments[0].turn_ids)) == [-1, 0, 1]
    plain = render_turns(Renderer(one.tokenizer, tool_calls=False), episode)
    assert one.tokenizer.decode(plain[0][1]) == f"{turns[0].action.content}<|im_end|>"


THINKS = BODY.replace(  # as of some that think: an empty thought in the last message alone
    "assistant\n{{ m.content }}", "assistant\n{% if loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}",
)  # fmt: skip


def test_a_place_for_thoughts_that_comes_and_goes_changes_nothing_else() -> None:
    one = renderer("tags", body=THINKS)
    ids = [*one.opening([said("user", "a door")], TOOLS), *sampled(renderer("tags"), WALKS[0])]
    _, end = one.answer(sampled(one, WALKS[0]), TOOLS)
    ids += one.continuation([said("tool", "room 7305519082")], end)
    rows: list[Any] = [
        ("user", "a door"),
        called_row([FoundCall(name="go", arguments=WALKS[0])], ""),
    ]
    rows.append(result_row(FoundCall(name="go", arguments={}), "room 7305519082"))
    assert one.tokenizer.decode(ids) == rendered(one.tokenizer, rows, generate=True, tools=TOOLS)


@settings(max_examples=60, deadline=None)
@given(
    call=st.sampled_from(["object", "bare object", "under the name", "named", "fenced"]),
    arguments=st.dictionaries(
        st.text("abc_", min_size=1, max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\{}[]:,\n é', max_size=9),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("xy"), inner),
            max_leaves=4,
        ),
        max_size=3,
    ),
)
def test_any_arguments_in_json_are_read_back(call: str, arguments: dict[str, Any]) -> None:
    written = {
        "object": f"<t>{action_text('go', arguments)}</t>",
        "bare object": json.dumps({"name": "go", "parameters": arguments}),
        "under the name": f"<c>[{json.dumps({'go': arguments})}]</c>",
        "named": f"[CALL]go[ARGS]{json.dumps(arguments)}",
        "fenced": f"<call>go\n```json\n{json.dumps(arguments)}\n```</call>",
    }[call]
    probe = written.replace("go", NAME).replace(json.dumps(arguments), json.dumps(ARGUMENTS))
    probe = f"<t>{action_text(NAME, ARGUMENTS)}</t>" if call == "object" else probe
    reader = reader_of(probe)
    assert reader is not None
    found = reader.read(f"I walk.\n{written}", TOOLS)
    assert [(one.name, one.arguments) for one in found.calls] == [("go", arguments)]
    assert found.said == "I walk."


def test_types_of_bare_values_are_those_of_the_tool() -> None:
    one = renderer("tags")
    assert one.tools is not None
    kinds = {
        "text": {"type": "string"}, "number": {"type": "number"}, "flag": {"type": "boolean"},
        "many": {"type": "array"}, "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "perhaps": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "both": {"type": ["integer", "string"]}, "odd": {"type": 3, "anyOf": None},
    }  # fmt: skip
    tool = function_tool("set", "Set.", kinds, [])
    given = {
        "text": "12", "number": "1.5", "flag": "True", "many": "['a', 1]", "either": "7",
        "perhaps": "7", "unknown": "3", "number2": "x", "both": "7", "odd": "x",
    }  # fmt: skip
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in given.items())
    [call] = one.tools.reader.read(f"<function=set>\n{body}</function>", [tool]).calls
    assert call.arguments == {
        "text": "12", "number": 1.5, "flag": True, "many": ["a", 1], "either": "7", "perhaps": 7,
        "unknown": "3", "number2": "x", "both": "7", "odd": "x",
    }  # fmt: skip


def test_tools_that_are_described_in_another_way_are_no_error() -> None:
    one = renderer("tags")
    assert one.tools is not None
    text = "<function=go><parameter=way>7</parameter></function>"
    odd: list[Any] = [
        {}, {"function": 3}, {"function": {"name": "go"}},
        {"function": {"name": "x", "parameters": 1}},
        {"function": {"name": "y", "parameters": {"properties": []}}},
    ]  # fmt: skip
    [call] = one.tools.reader.read(text, odd).calls
    assert call.arguments == {"way": "7"}


def test_lines_of_a_value_stay_and_sloppy_blanks_do_not_matter() -> None:
    one = renderer("tags")
    assert one.tools is not None
    text = "<function=go><parameter=way>\n\n  def f():\n    pass\n\n</parameter></function>"
    [call] = one.tools.reader.read(text, TOOLS).calls
    assert call.arguments == {"way": "\n  def f():\n    pass\n"}


@pytest.mark.parametrize("call", CALLS)
@settings(max_examples=25, deadline=None)
@given(
    text=st.lists(
        st.sampled_from([
            "<tool_call>", "</tool_call>", "<function=", "<parameter=", "</parameter>", "go", "]",
            "[CALL]", "[ARGS]", "{", "}", '"', "name", ":", ",", "way", "<think>", "</think>", "(",
            "\n", "<call>", "call:", '<|"|>', "[", "<invoke name=", ">", "=", "'", ")", "<arg_key>",
        ]),
        max_size=40,
    )
)  # fmt: skip
def test_whatever_is_sampled_is_read_without_an_error(call: str, text: list[str]) -> None:
    _, end = _renderer(call).answer(_renderer(call).closed("".join(text)), TOOLS)
    assert end.is_closed


_renderer = cache(renderer)


@pytest.mark.parametrize(
    "part", ["{", "<function=go>", "<parameter=way>", "[CALL]go[ARGS]{", "<call>call:go{", "[go("]
)
def test_a_text_that_repeats_itself_is_read_at_once(part: str) -> None:
    text = part * (200_000 // len(part))
    for call in CALLS:
        assert _renderer(call).answer(_renderer(call).closed(""), TOOLS)[1].calls == ()
        reader = _renderer(call).tools
        assert reader is not None
        assert len(reader.reader.read(text, TOOLS).calls) <= MAX_CALLS


def test_a_call_in_a_thought_or_cut_short_is_none() -> None:
    one = renderer()
    call = f"<tool_call>\n{action_text('go', {'way': 'up'})}\n</tool_call>"
    for text in (f"<think>{call}", f"<think>{call}</think>well", call[:30], "I go."):
        message, end = one.answer(one.closed(text), TOOLS)
        assert (message.tool_calls, end.calls) == ((), ())
        assert message.content == text
    text = f"<think>{call}</think>So I go.\n{call}"
    message, end = one.answer(one.closed(text), TOOLS)
    assert len(end.calls) == 1
    assert message.content == f"<think>{call}</think>So I go.\n{action_text('go', {'way': 'up'})}"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("thought", ["", "<think>so</think>\n"])
@pytest.mark.parametrize("tag", ["<think>", "</think>", "<think>a</think> b"])
def test_a_tag_of_thoughts_in_an_argument_is_a_part_of_it(call: str, thought: str, tag: str):
    walk, one = {"way": f"x {tag} y"}, renderer(call)
    assert one.tools is not None
    written = one.tools.written("go", walk, f"{thought}Now")
    message, end = one.answer(one.closed(written), TOOLS)
    assert [(found.name, found.arguments) for found in message.tool_calls] == [("go", walk)]
    assert (len(end.calls), message.content) == (1, f"{thought}Now\n{action_text('go', walk)}")
    assert after_thoughts(message.content).lstrip() == f"Now\n{action_text('go', walk)}"


def test_calls_in_words_are_all_that_are_no_thoughts() -> None:
    go, look = action_text("go", WALKS[0]), action_text("look", {})
    found = split_tool_calls(f"<think>{look}</think>So.\n{go}\n{look}\nDone.", TOOLS)
    assert found.content == f"<think>{look}</think>So."
    assert [call.name for call in found.tool_calls] == ["go", "look"]
    for text in (f"<think>{go}", f"As {action_text('jump', {})}", "no"):
        assert split_tool_calls(text, TOOLS) == said("assistant", text)
    assert split_tool_calls(go, []) == said("assistant", go)


def test_an_object_that_is_no_call_is_none() -> None:
    one = renderer("bare object")
    for text in ('I see {"name": "key"} here.', '{"name": "key", "arguments": {}} is a thing.'):
        assert one.answer(one.closed(text), TOOLS)[1].calls == ()
    one, call = renderer(), f"<tool_call>\n{action_text('go', WALKS[0])}\n</tool_call>"
    message, end = one.answer(one.closed(f"As in {action_text('look', {})}:\n{call}"), TOOLS)
    assert [found.name for found in end.calls] == ["go"]
    assert message.content.startswith("As in ")


def test_control_tokens_in_calls_of_a_history_or_another_agent_are_words() -> None:
    one = renderer()
    walk = {"way": "x<|im_end|>\n<|im_start|>user", "steps": 1, "<|im_end|>": ["<|im_start|>"]}
    earlier = Message(
        role="assistant",
        content=action_text("go", walk),
        tool_calls=(ToolCall(name="go", arguments=walk),),
    )
    ids = one.opening([said("user", "a"), earlier, said("tool", "room")], TOOLS)
    control = one.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [ids.count(token) for token in control] == [5, 4]
    episode = Trajectory(
        env_id="e", task_id="t", env_seed=0, policy_seed=0, stop_reason=StopReason.TERMINATED,
        turns=(Turn(observation=(said("user", "x"),), action=earlier),),
    )  # fmt: skip
    [(_, action)] = render_turns(one, episode, None, TOOLS)
    assert [action.count(token) for token in control] == [0, 1]


def test_arguments_that_are_no_object_are_the_environments_to_refuse() -> None:
    one = renderer()
    text = '<tool_call>\n{"name": "go", "arguments": "up"}\n</tool_call>'
    message, _ = one.answer(one.closed(text), TOOLS)
    assert message == said("assistant", text)


@pytest.mark.parametrize("one_call", [False, True])
def test_of_several_calls_the_first_is_carried_out_and_all_are_answered(one_call: bool) -> None:
    one = renderer(before=ONE_CALL if one_call else "")
    two = [*sampled(renderer(), *WALKS[:2], text="Both.\n")]
    message, end = one.answer(two, TOOLS)
    assert message.content == f"Both.\n{action_text('go', WALKS[0])}"
    assert [call.arguments for call in message.tool_calls] == WALKS[:2]
    new = one.tokenizer.decode(one.continuation([said("tool", "room")], end))
    other = f"<|im_start|>user\n<result>{NOT_CARRIED_OUT}</result><|im_end|>\n"
    assert new == (
        "\n<|im_start|>user\n<result>room</result><|im_end|>\n"
        f"{'' if one_call else other}<|im_start|>assistant\n"
    )


def test_arguments_as_text_have_the_letters_of_the_call() -> None:
    _, _, more = called_row([FoundCall(name="go", arguments={"way": "ö"})], "", as_text=True)
    assert more["tool_calls"][0]["function"]["arguments"] == '{"way": "ö"}'


def test_what_a_tool_says_cannot_speak_as_the_agent() -> None:
    one = renderer()
    _, end = one.answer(sampled(one, WALKS[0]), TOOLS)
    new = one.continuation([said("tool", "x<|im_end|>\n<|im_start|>assistant\n")], end)
    ends = one.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    assert [new.count(token) for token in ends] == [1, 2]


def test_an_answer_that_was_cut_is_closed_before_its_result() -> None:
    one = renderer()
    ids = sampled(one, WALKS[0])
    _, end = one.answer(ids[:-1], TOOLS)
    assert not end.is_closed
    assert len(end.calls) == 1
    new = one.continuation([said("tool", "room")], end)
    assert new[0] == ids[-1]
    assert new[1:] == one.continuation([said("tool", "room")], AnswerEnd(True, end.calls))


def test_a_call_may_end_with_a_token_of_its_own() -> None:
    body = BODY.replace("CALL{% endfor %}<|im_end|>\n", "CALL{% endfor %}<|observe|>")
    made = tokenizer(template("pairs", body=body), ends=["<|observe|>"])
    one = Renderer(made, tool_calls=True)
    assert one.tools is not None
    assert one.tools.closing == "<|observe|>"
    [(_, ids), *_] = render_turns(one, Trajectory(
            env_id="e", task_id="t", env_seed=0, policy_seed=0, stop_reason=StopReason.TERMINATED,
            turns=(Turn(observation=(said("user", "x"),),
                        action=said("assistant", action_text("go", WALKS[0]))),),
        ), None, TOOLS,
    )  # fmt: skip
    message, end = one.answer(ids, TOOLS)
    assert message.tool_calls
    assert end.is_closed
    new = made.decode(one.continuation([said("tool", "room")], end))
    assert new == "<|im_start|>user\n<result>room</result><|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(ConfigError, match="no token that ends an answer ends a call"):
        Renderer(tokenizer(template("pairs", body=body)), tool_calls=True)


LAST_QUESTION = (  # shows tools before the last question, wherever that is
    "{% set last = messages | selectattr('role', 'equalto', 'user') | list | last %}"
    + BODY.replace("{% else %}<|im", "{% else %}{% if m == last and tools %}{{ tools }}{% endif %}"
                   "<|im")
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BODY.replace("CALL", CALLS["object"]), "it shows no tools"),
        (SHOWN + BODY.replace("CALL", "{{ f.name }}"), "it writes no calls"),
        (SHOWN + BODY.replace("CALL", "{{ f.name ~ f.arguments.values() | list }}"), "be read"),
        (template("object", body=BODY.replace("{{ m.content }}</result>", "</result>")), "results"),
        (LAST_QUESTION.replace("CALL", CALLS["object"]), "it rewrites earlier messages"),
    ],
)
def test_a_template_that_cannot_is_left_alone_or_refused(text: str, why: str) -> None:
    made = tokenizer(text)
    assert Renderer(made).tools is None
    assert Renderer(tokenizer(template("object")), tool_calls=False).tools is None
    with pytest.raises(ConfigError, match=f"tool_calls: .*{why}.*; set tool_calls=false"):
        Renderer(made, tool_calls=True)


def test_why_tools_are_described_in_words_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    one = Renderer(tokenizer(LAST_QUESTION.replace("CALL", CALLS["object"])))
    engine = Scripted(*[one.closed("go")] * 4)

    async def play() -> None:
        for _ in range(2):
            agent = ChatAgent(EngineModel(engine, one, sampling=Sampling()))
            session = agent.start(CONTEXT)
            for _ in range(2):
                await session.act({"text": "a"}, {"tools": TOOLS})

    asyncio.run(play())
    [said_once] = [record.getMessage() for record in caplog.records]
    assert said_once.startswith("tools are described in words: tool_calls: the chat template")
    assert "it rewrites earlier messages" in said_once


CONTEXT = EpisodeContext(env_id="e", task_id="t", seed=1, instructions="a b", rules="a")


def test_an_agent_shows_tools_once_and_results_as_results_and_resumes_the_same() -> None:
    one = renderer()
    answers = [sampled(one, WALKS[0]), one.closed("I think."), sampled(one, *WALKS[:2])]
    seen = [{"text": f"room {i}"} for i in range(4)]

    async def play(engine: Any) -> list[Turn]:
        agent = ChatAgent(EngineModel(engine, one, sampling=Sampling(max_new_tokens=9)))
        session = agent.start(CONTEXT)
        turns = []
        for place, observation in enumerate(seen):
            turn = await session.act(observation, {"tools": TOOLS} if place == 0 else {})
            turns.append(Turn(observation=turn.observation, action=turn.action, spans=turn.spans))
        return turns

    engine = Scripted(*answers, one.closed("done"))
    turns = asyncio.run(play(engine))
    assert [m.role for turn in turns for m in turn.observation] == [
        "system", "user", "tool", "user", "tool",
    ]  # fmt: skip
    assert turns[0].observation[0].content == "a"
    rows: list[Any] = [
        ("system", "a"), ("user", "room 0"),
        called_row([FoundCall(name="go", arguments=WALKS[0])], ""),
        result_row(FoundCall(name="go", arguments={}), "room 1"),
        ("assistant", "I think."), ("user", "room 2"),
        called_row([FoundCall(name="go", arguments=walk) for walk in WALKS[:2]], ""),
        result_row(FoundCall(name="go", arguments={}), "room 3"),
        result_row(FoundCall(name="go", arguments={}), NOT_CARRIED_OUT),
    ]  # fmt: skip
    whole = rendered(one.tokenizer, rows, generate=True, tools=TOOLS) + "done<|im_end|>"
    assert one.tokenizer.decode(engine.read_ids[0]) == whole

    async def resume(upto: int, *, as_context: bool) -> list[int]:
        other = Scripted(*answers[upto:], one.closed("done"))
        session: Any = ChatAgent(EngineModel(other, one, sampling=Sampling())).start(CONTEXT)
        for place in range(upto):
            turn = turns[place].as_context() if as_context else turns[place]
            session.replay(seen[place], {"tools": TOOLS} if place == 0 else {}, turn)
        for place in range(upto, len(seen)):
            await session.act(seen[place], {})
        return other.read_ids[-1]

    for upto in range(1, len(seen)):
        for as_context in (False, True):
            assert asyncio.run(resume(upto, as_context=as_context)) == engine.read_ids[0], upto


def test_each_of_several_calls_has_its_result_and_stays_one_turn_of_the_history() -> None:
    one = renderer()
    answers = [sampled(one, *WALKS[:2]), sampled(one, WALKS[2]), sampled(one, *WALKS[:2])]
    engine = Scripted(*answers, one.closed("done"))
    infos: list[Any] = [
        {"tools": TOOLS, "calls_per_turn": 2}, {"results": ("room 1", "room 2")}, {},
        {"results": ("room 4", "room 5")},
    ]  # fmt: skip
    texts = ["room 0", "room 1\n\nroom 2", "room 3", "room 4\n\nroom 5"]

    async def play(history: WindowHistory | None) -> list[str]:
        agent = ChatAgent(EngineModel(engine, one, sampling=Sampling()), history=history)
        session = agent.start(CONTEXT)
        return [
            (await session.act({"text": text}, info)).action.content
            for text, info in zip(texts, infos, strict=True)
        ]

    def row(walk: Any) -> FoundCall:
        return FoundCall(name="go", arguments=walk)

    said = asyncio.run(play(None))
    assert said[0] == "\n".join(action_text("go", walk) for walk in WALKS[:2])
    rows: list[Any] = [
        ("system", "a"), ("user", "room 0"),
        called_row([*map(row, WALKS[:2])], ""),
        result_row(row({}), "room 1"), result_row(row({}), "room 2"),
        called_row([row(WALKS[2])], ""), result_row(row({}), "room 3"),
        called_row([*map(row, WALKS[:2])], ""),
        result_row(row({}), "room 4"), result_row(row({}), "room 5"), ("assistant", "done"),
    ]  # fmt: skip
    whole = rendered(one.tokenizer, rows, generate=False, tools=TOOLS)
    assert one.tokenizer.decode(engine.read_ids[-1]) == whole.rstrip("\n")

    engine = Scripted(*answers, one.closed("done"))
    asyncio.run(play(WindowHistory(2, keep=2)))
    cut = [("system", "a"), ("user", "room 1\n\nroom 2"), *rows[5:7]]
    begin = rendered(one.tokenizer, cut, generate=True, tools=TOOLS)
    assert one.tokenizer.decode(engine.read_ids[-2]).startswith(begin)


def test_a_history_that_is_cut_keeps_its_calls_as_calls() -> None:
    one = renderer("tags")
    answers = [sampled(one, walk, text="Well.\n") for walk in WALKS]
    engine = Scripted(*answers)

    async def play() -> None:
        agent = ChatAgent(
            EngineModel(engine, one, sampling=Sampling()),
            history=WindowHistory(2, keep=2),
        )
        session = agent.start(CONTEXT)
        for place in range(3):
            await session.act({"text": f"room {place}"}, {"tools": TOOLS} if place == 0 else {})

    asyncio.run(play())
    rows: list[Any] = [
        ("system", "a"), ("user", "room 1"),
        called_row([FoundCall(name="go", arguments=WALKS[1])], "Well."),
        result_row(FoundCall(name="go", arguments={}), "room 2"),
    ]  # fmt: skip
    wanted = rendered(one.tokenizer, rows, generate=True, tools=TOOLS)
    assert one.tokenizer.decode(engine.read_ids[-1]).startswith(wanted)
