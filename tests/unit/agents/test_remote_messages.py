"""A model behind Anthropic's ``/messages``: what is sent and read, what goes back as it came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from helpers.fake_server import FakeServer, Reply, answer, fake_server, refuse, send_json
from helpers.models import policy
from helpers.outside import bench, gateway, segments_match
from turngym.agents.chat.prompting import ChatMessage
from turngym.agents.config import ANTHROPIC_URL, ChatAgentConfig, ChatConfig
from turngym.agents.policy import ContextOverflow
from turngym.agents.remote.messages import RemoteMessages
from turngym.agents.tool_calls import NOT_CARRIED_OUT
from turngym.api.agents import make_policy
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.types import Message, Turn

pytestmark = pytest.mark.extra("openai")

TOOLS = [
    {
        "type": "function",
        "function": {"name": "search", "description": "Look.", "parameters": {"type": "object"}},
    }
]
THOUGHT = {"type": "thinking", "thinking": "Where?", "signature": "xyz"}
CACHED = {"cache_control": {"type": "ephemeral"}}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def use(number: int) -> dict[str, Any]:
    found = {"type": "tool_use", "id": f"toolu_{number}", "name": "search"}
    return {**found, "input": {"query": "maze"}}


def message(*blocks: Any, stop: str | None = "end_turn", **usage: int) -> Reply:
    body = {"id": "m", "type": "message", "role": "assistant", "model": "tiny", "stop_reason": stop}
    counted = {"input_tokens": 100, "output_tokens": 10, **usage}
    return send_json({**body, "content": list(blocks), "usage": counted})


def entry(role: Any, said: str, **more: Any) -> ChatMessage:
    return ChatMessage(message=Message(role=role, content=said), **more)


def model(url: str, **settings: Any) -> RemoteMessages:
    config = {"model": "tiny", "retry_wait_s": 0.01, "turn_timeout_s": 20.0, **settings}
    return RemoteMessages(ChatConfig(type="anthropic", base_url=url, **config))


async def close(conversation: Any) -> None:
    if (closing := conversation.close()) is not None:
        await closing


async def test_calls_and_thoughts_go_back_as_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-key")
    first = [THOUGHT, text("I look."), use(0), use(1)]
    replies = [message(*first, stop="tool_use", cache_read_input_tokens=900), message(text("done"))]
    async with fake_server(*replies) as server:
        conversation = model(server.url, input_usd_per_mtok=1.0, cached_usd_per_mtok=0.1).open(7)
        asked = [entry("system", "Rules."), entry("user", "hi")]
        one = await conversation.complete(asked, tools=TOOLS)
        two = await conversation.complete([entry("tool", "found")], tools=TOOLS)
        await close(conversation)
    assert one.message.content == (
        '<think>\nWhere?\n</think>\n\nI look.\n{"name": "search", "arguments": {"query": "maze"}}'
    )
    assert [found.name for found in one.message.tool_calls] == ["search", "search"]
    assert (one.usage["prompt_tokens"], one.usage["cached_tokens"]) == (1000.0, 900.0)
    assert one.usage["cost_usd"] == pytest.approx((100 + 900 * 0.1) / 1e6)
    assert two.message.content == "done"
    before, after = server.bodies
    headers = server.asked[0].headers
    assert (server.asked[0].path, headers["x-api-key"]) == ("/v1/messages", "sk-ant-key")
    assert "authorization" not in headers
    assert headers["anthropic-version"] == "2023-06-01"
    assert before["system"] == [text("Rules.", **CACHED)]
    assert before["messages"] == [{"role": "user", "content": [text("hi", **CACHED)]}]
    assert before["tools"] == [
        {"name": "search", "description": "Look.", "input_schema": {"type": "object"}}
    ]
    assert (before["max_tokens"], before["temperature"]) == (1024, 0.0)
    results = [
        {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": said}
        for n, said in enumerate(["found", NOT_CARRIED_OUT])
    ]
    assert after["messages"] == [
        {"role": "user", "content": [text("hi")]},
        {"role": "assistant", "content": first},
        {"role": "user", "content": [results[0], {**results[1], **CACHED}]},
    ]


async def test_a_history_that_is_written_anew_and_one_of_another_agent() -> None:
    async with fake_server(
        message(THOUGHT, text("I look."), use(0)), message(text("done"))
    ) as there:
        conversation: Any = model(there.url, stop=("END",)).open(7)
        one = await conversation.complete([entry("user", "hi")], tools=TOOLS)
        await conversation.restart()
        before = ChatMessage(message=one.message, call_ids=one.call_ids)
        pixels = np.zeros((2, 2, 3), np.uint8)
        again = [
            entry("user", " "), entry("assistant", "<think>\nHm.\n</think>\n\nWell."),
            entry("user", "hi"), before, entry("tool", "found", image=pixels),
        ]  # fmt: skip
        await conversation.complete(again, tools=TOOLS)
        await close(conversation)
    assert there.bodies[1]["stop_sequences"] == ["END"]
    blank, other, said, answered, found = there.bodies[1]["messages"]
    assert (blank["content"], other["content"]) == ([text("(nothing)")], [text("Well.")])
    assert said["content"] == [text("hi")]
    assert answered["content"] == [THOUGHT, text("I look."), use(0)]
    result, shown = found["content"]
    assert result == {"type": "tool_result", "tool_use_id": "toolu_0", "content": "found"}
    assert shown["source"]["media_type"] == "image/png"
    assert len(shown["source"]["data"]) > 40


async def test_calls_are_said_in_words_where_no_tools_are_given() -> None:
    first = [THOUGHT, text("I look."), use(0)]
    async with fake_server(message(*first, stop="tool_use"), message(text("a lesson"))) as there:
        conversation = model(there.url).open(7)
        one = await conversation.complete([entry("user", "hi")], tools=TOOLS)
        aside: Any = model(there.url).open(8)  # as of a summary or a lesson
        before = ChatMessage(message=one.message, call_ids=one.call_ids)
        rows = [entry("user", "hi"), before, entry("tool", "found"), entry("user", "Sum up.")]
        await aside.complete(rows)
        await close(conversation)
        await close(aside)
    call = '{"name": "search", "arguments": {"query": "maze"}}'
    assert "tools" not in there.bodies[1]
    assert [one["content"] for one in there.bodies[1]["messages"]] == [
        [text("hi")], [text(f"I look.\n{call}")], [text("found"), text("Sum up.", **CACHED)],
    ]  # fmt: skip


async def test_an_answer_that_was_all_thought_is_no_empty_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut = message(THOUGHT, text(""), stop="max_tokens")
    async with fake_server(cut, message(text("done"))) as there:
        conversation = model(there.url).open(7)
        one = await conversation.complete([entry("user", "hi")])
        await conversation.complete([entry("user", "and?")])
        await close(conversation)
    assert one.message.content.startswith("<think>")
    assert there.bodies[1]["messages"][1]["content"] == [text("(no answer)")]
    assert any("was cut at max_new_tokens" in record.getMessage() for record in caplog.records)


async def test_a_resumed_conversation_sends_what_was_said_before() -> None:
    async with fake_server(message(text("done"))) as there:
        conversation = model(there.url).open(7)
        turn = Turn(observation=(), action=Message(role="assistant", content="I look."))
        conversation.resume([entry("user", "hi")], turn)
        await conversation.complete([entry("user", "and?")])
        await close(conversation)
    said = [(one["role"], one["content"][0]["text"]) for one in there.bodies[0]["messages"]]
    assert said == [("user", "hi"), ("assistant", "I look."), ("user", "and?")]


async def test_half_answers_are_asked_for_again_and_refusals_are_one_line() -> None:
    async def ask(*replies: Reply) -> tuple[str, FakeServer]:
        async with fake_server(*replies) as there:
            conversation = model(there.url, max_retries=1).open(7)
            try:
                found = await conversation.complete([entry("user", "hi")])
            finally:
                await close(conversation)
            return found.message.content, there

    said, there = await ask(message(text("go"), stop=None), message(text("go north")))
    assert (said, len(there.bodies)) == ("go north", 2)
    with pytest.raises(ConfigError, match="set ANTHROPIC_API_KEY"):
        await ask(refuse(401, "invalid x-api-key"))
    with pytest.raises(ContextOverflow):
        await ask(refuse(400, "prompt is too long: 210000 tokens > 200000 maximum"))


async def test_our_own_gateway_is_a_server_of_it() -> None:
    made = policy(context=256)
    engine = {"engine": made.model.engine, "renderer": made.model.renderer, "max_new_tokens": 6}
    async with bench(**engine) as found:
        conversation = model(f"{found.url}/v1", max_new_tokens=6).open(7)
        said = [await conversation.complete([entry("user", one)]) for one in ("north", "south")]
        await close(conversation)
        episodes, served = found.episodes, found.served
    (trajectory,) = episodes.finished
    segments_match(trajectory, served)
    assert [turn.action.content for turn in trajectory.turns] == [
        one.message.content for one in said
    ]
    calling = answer("", calls=[("search", '{"query": "maze"}')], finish="tool_calls")
    async with fake_server(calling, answer("done")) as upstream, gateway(upstream.url) as found:
        conversation = model(f"{found.url}/v1").open(7)
        one = await conversation.complete([entry("user", "hi")], tools=TOOLS)
        await conversation.complete([entry("tool", "found")], tools=TOOLS)
        await close(conversation)
    assert one.message.tool_calls[0].arguments == {"query": "maze"}
    assert upstream.bodies[1]["messages"][2]["content"] == "found"


def test_the_name_stands_for_address_key_and_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    found = load_config(ChatAgentConfig, [{"type": "anthropic", "model": "claude-x"}])
    assert (found.api, found.url, found.api_key_env) == (
        "messages", ANTHROPIC_URL, "ANTHROPIC_API_KEY",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="set ANTHROPIC_API_KEY"):
        make_policy("anthropic:claude-x")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/")
    made: Any = make_policy("anthropic:claude-x max_new_tokens=7")
    assert isinstance(made.model, RemoteMessages)
    assert (made.model.config.url, made.model.config.max_new_tokens) == ("http://127.0.0.1:9/v1", 7)
    with pytest.raises(ValidationError, match="api='messages' has no token_ids"):
        ChatConfig(type="anthropic", model="claude-x", token_ids=True)
