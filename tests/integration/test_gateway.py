"""Outside agents through the gateway: every call is recorded, as it was served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turngym
from helpers.envs import AsyncLadderEnv
from helpers.fake_server import (
    answer,
    answer_body,
    chunk,
    fake_server,
    refuse,
    send_json,
    stream,
)
from helpers.models import policy
from helpers.outside import CONTROL, Bench, bench, gateway, segments_match
from helpers.raw_http import send
from turngym.agents.chat.prompting import ChatMessage
from turngym.agents.config import ChatConfig, EndpointConfig
from turngym.agents.remote.endpoint import Endpoint
from turngym.agents.remote.responses import RemoteResponses
from turngym.environments.core.env import Outcome
from turngym.records import read_trajectories
from turngym.rollouts.gateway.app import Gateway
from turngym.rollouts.gateway.episodes import FILE, Episodes
from turngym.rollouts.gateway.hosted import HostedEnv
from turngym.trainers.samples import to_samples
from turngym.types import Message, StopReason, Trajectory

pytestmark = [pytest.mark.extra("openai", "starlette", "uvicorn", "mcp")]

AGENT_KEY = "sk-agent-key-0123456789"
IDS = {"return_token_ids": True}


def client(url: str, key: str = AGENT_KEY) -> Any:
    import openai

    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=900)


async def control(found: Bench, path: str, body: Any) -> Any:
    """Speak to the gateway as whoever runs the agent."""
    async with client(found.url, CONTROL) as speaker:
        return await speaker.post(path, body=body, cast_to=object)


def local(**settings: Any) -> dict[str, Any]:
    made = policy(context=256)
    return {
        "engine": made.model.engine,
        "renderer": made.model.renderer,
        "max_new_tokens": 6,
        **settings,
    }


def row(role: str, content: str) -> Any:
    return {"role": role, "content": content}


async def test_chat_agent_is_recorded_token_for_token(tmp_path: Path) -> None:
    async with bench(out=tmp_path, **local()) as found:
        opened = await control(found, "/episodes", {"task": "tidy", "env": "desk"})
        async with client(opened["base_url"]) as agent:
            rows = [row("system", "tidy up"), row("user", "key north")]
            for turn in range(4):
                streams = turn % 2 == 1
                made = await agent.chat.completions.create(
                    model="whatever", messages=rows, stream=streams
                )
                if streams:
                    text = "".join([c.choices[0].delta.content or "" async for c in made])
                else:
                    text = made.choices[0].message.content
                    assert made.choices[0].logprobs is None  # the agent did not ask
                rows += [row("assistant", text), row("user", "and now?")]
        name = opened["episode"]
        await control(found, f"/episodes/{name}/reward", {"reward": 0.25})
        ended = await control(found, f"/episodes/{name}/end", {"score": 1.0, "reward": 1.0})
        assert ended["turns"] == 4
        assert ended["segments"] == 1
        served = found.served
    (trajectory,) = read_trajectories(tmp_path / FILE)
    segments_match(trajectory, served)
    assert (trajectory.env_id, trajectory.task_id) == ("desk", "tidy")
    assert (trajectory.score, trajectory.episode_return) == (1.0, 1.25)
    assert [len(turn.observation) for turn in trajectory.turns] == [2, 1, 1, 1]
    (sample,) = samples_of(trajectory)
    assert sample.loss_mask.sum() == trajectory.num_sampled_tokens


def samples_of(trajectory: Trajectory) -> list[Any]:
    advantages_M = np.ones(trajectory.num_sampled_tokens, dtype=np.float32)
    return to_samples(trajectory, advantages_M, index=0, group=0)


async def test_agent_that_rewrites_history_opens_a_segment() -> None:
    async with bench(**local()) as found:
        async with client(f"{found.url}/v1") as agent:
            rows = [row("user", "key north")]
            for text in ("go", "went"):
                made = await agent.chat.completions.create(model="m", messages=rows)
                said = made.choices[0].message.content
                rows = [*rows, row("assistant", said), row("user", text)]
            rows[1] = row("assistant", "I never said that")
            await agent.chat.completions.create(model="m", messages=rows)
        served = found.served
        episodes = found.episodes
    (trajectory,) = episodes.finished  # the default episode, ended with the gateway
    segments_match(trajectory, served)
    assert [turn.starts_segment for turn in trajectory.turns] == [False, False, True]
    reason = trajectory.turns[2].segment_reason
    assert reason is not None
    assert reason.startswith(("history was rewritten", "an answer came back in other tokens"))
    assert trajectory.stop_reason is StopReason.TRUNCATED_TIME
    assert trajectory.metadata["unfinished"] == "the gateway was stopped"


async def test_responses_agent_is_recorded_too() -> None:
    async with bench(**local()) as found:
        async with client(f"{found.url}/v1") as agent:
            first = await agent.responses.create(model="m", instructions="be quick", input="north?")
            assert first.output_text == served_text(found, 0)
            second = await agent.responses.create(
                model="m",
                instructions="be quick",
                previous_response_id=first.id,
                input=[{"role": "user", "content": [{"type": "input_text", "text": "go on"}]}],
            )
            text = ""
            async with agent.responses.stream(
                model="m", instructions="be quick", previous_response_id=second.id, input="more"
            ) as events:
                async for event in events:
                    if event.type == "response.output_text.delta":
                        text += event.delta
            assert event.type == "response.incomplete"  # six tokens are never the end of it
            last = event.response
            assert last.output_text == text == served_text(found, 2)
            assert last.usage.output_tokens == len(found.served[2].generation.token_ids)
        served, episodes = found.served, found.episodes
    (trajectory,) = episodes.finished
    segments_match(trajectory, served)
    assert not any(turn.starts_segment for turn in trajectory.turns)


def served_text(found: Bench, place: int) -> str:
    return found.served[place].message.content


async def test_our_own_agent_speaks_responses_and_each_answer_goes_on_from_the_last() -> None:
    async with bench(**local()) as found:
        config = ChatConfig(
            model="m", base_url=f"{found.url}/v1", api="responses", max_new_tokens=6
        )
        conversation = RemoteResponses(config).open(7)
        said = []
        for text in ("north", "south"):
            message = Message(role="user", content=text)
            said.append(await conversation.complete([ChatMessage(message=message)]))
        await conversation.close()  # type: ignore[misc]
        episodes, served = found.episodes, found.served
    (trajectory,) = episodes.finished
    segments_match(trajectory, served)
    assert [t.action.content for t in trajectory.turns] == [one.message.content for one in said]
    assert [turn.starts_segment for turn in trajectory.turns] == [False, False]
    assert said[0].usage["prompt_tokens"] > 0


async def test_tool_calls_go_through_both_interfaces() -> None:
    call = answer("", calls=[("search", '{"query": "x"}')], finish="tool_calls")
    tool = {"type": "function", "name": "search", "parameters": {"type": "object"}}
    async with fake_server(call, answer("done")) as upstream, gateway(upstream.url) as found:
        async with client(f"{found.url}/v1") as agent:
            made = await agent.responses.create(model="m", input="find", tools=[tool])
            (item,) = made.output
            assert (item.type, item.name, item.arguments) == (
                "function_call",
                "search",
                '{"query": "x"}',
            )
            output = {"type": "function_call_output", "call_id": item.call_id, "output": "found"}
            await agent.responses.create(
                model="m",
                input=[row("user", "find"), item.model_dump(), output],
                tools=[tool],
            )
        rows = upstream.bodies[1]["messages"]
        assert [r["role"] for r in rows] == ["user", "assistant", "tool"]
        assert rows[2]["tool_call_id"] == rows[1]["tool_calls"][0]["id"]
        episodes = found.episodes
    (trajectory,) = episodes.finished
    assert trajectory.turns[0].action.tool_calls[0].name == "search"
    assert not trajectory.turns[1].starts_segment
    assert trajectory.turns[0].spans == ()  # upstream told no ids


async def test_upstream_that_refuses_the_question_is_recorded_without_tokens() -> None:
    refusal = refuse(400, "Unknown parameter: 'return_token_ids'")
    async with fake_server(refusal, answer("ok")) as upstream, gateway(upstream.url) as found:
        async with client(f"{found.url}/v1") as agent:
            made = await agent.chat.completions.create(model="m", messages=[row("user", "hi")])
            assert made.choices[0].message.content == "ok"
        assert [("return_token_ids" in body) for body in upstream.bodies] == [True, False]
        episodes = found.episodes
    assert episodes.finished[0].turns[0].spans == ()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_was_on_its_way_does_without_token_ids_too(streamed: bool) -> None:
    second_came, first_answered = asyncio.Event(), asyncio.Event()
    waits = iter([second_came, first_answered])

    async def upstream_reply(asked: Any, writer: asyncio.StreamWriter) -> None:
        if "return_token_ids" not in asked.body:
            end = stream(chunk("ok"), chunk("", finish="stop")) if streamed else answer("ok")
            return await end(asked, writer)
        wait = next(waits)
        if wait is first_answered:
            second_came.set()
        await wait.wait()
        return await refuse(400, "Unknown parameter: 'return_token_ids'")(asked, writer)

    body = {"model": "m", "messages": [row("user", "hi")], "stream": streamed}
    async with fake_server(upstream_reply) as upstream, gateway(upstream.url) as found:
        asking = [
            asyncio.create_task(send(found.url, "/v1/chat/completions", body)) for _ in range(2)
        ]
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        first_answered.set()
        assert [status for status, _ in await asyncio.gather(*asking)] == [200, 200]
        assert len(done) == 1
        episodes = found.episodes
    assert len(episodes.finished[0].turns) == 2


async def test_what_one_agent_asks_too_much_takes_no_tokens_from_the_others() -> None:
    async with bench(**local(), tokens="auto") as found, client(f"{found.url}/v1") as agent:
        import openai

        rows: Any = [{"role": "user", "content": "north?"}]
        with pytest.raises(openai.BadRequestError, match="top_logprobs"):
            await agent.chat.completions.create(
                model="any", messages=rows, logprobs=True, top_logprobs=3
            )
        await agent.chat.completions.create(model="any", messages=rows)
        episodes = found.episodes
    assert episodes.finished[0].num_sampled_tokens > 0


async def test_half_a_stream_is_told_to_the_agent_and_is_no_turn() -> None:
    half = stream(chunk("go"), chunk(" nor"), done=False)
    whole = stream(chunk("go"), chunk(" north", finish="stop"))
    async with fake_server(half, whole) as upstream, gateway(upstream.url) as found:
        async with client(f"{found.url}/v1") as agent:
            import openai

            ask = agent.chat.completions.create
            with pytest.raises(openai.APIError):
                async for _ in await ask(model="m", messages=[row("user", "hi")], stream=True):
                    pass
            async for _ in await ask(model="m", messages=[row("user", "hi")], stream=True):
                pass
        episodes = found.episodes
    (trajectory,) = episodes.finished
    assert [turn.action.content for turn in trajectory.turns] == ["go north"]
    assert "a stream failed" in trajectory.metadata["faults"][0]


@pytest.mark.parametrize("streamed", [False, True])
async def test_thoughts_that_a_server_says_apart_are_recorded(streamed: bool) -> None:
    first = answer_body("go north")
    first["choices"][0]["message"]["reasoning_content"] = f"A wall? {AGENT_KEY}"
    pieces = [chunk(""), chunk("go"), chunk(" north", finish="stop")]
    pieces[0]["choices"][0]["delta"] = {"reasoning_content": f"A wall? {AGENT_KEY}"}
    replies = [stream(*pieces) if streamed else send_json(first), answer("go up")]
    async with fake_server(*replies) as upstream, gateway(upstream.url) as found:
        async with client(f"{found.url}/v1") as agent:
            said, ask = [row("user", "hi")], agent.chat.completions.create
            if streamed:
                async for _ in await ask(model="m", messages=said, stream=True):
                    pass
            else:
                made = await ask(model="m", messages=said)
                assert AGENT_KEY in made.choices[0].message.reasoning_content
            said += [row("assistant", "go north"), row("user", "and?")]
            await ask(model="m", messages=said)
        episodes = found.episodes
    (trajectory,) = episodes.finished
    one, two = trajectory.turns
    assert one.action.content == "<think>\nA wall? [secret]\n</think>\n\ngo north"
    assert (two.action.content, two.starts_segment) == ("go up", False)
    assert [message.content for message in two.observation] == ["and?"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kept", ["all", "the opaque text", "by the gateway"])
async def test_thoughts_go_through_the_responses_interface_and_back(
    streamed: bool, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = answer_body("", calls=[("look", "{}")], finish="tool_calls")
    message = whole["choices"][0]["message"]
    message["reasoning_content"] = "A wall?"
    pieces = [chunk(""), chunk(""), chunk("", finish="tool_calls")]
    pieces[0]["choices"][0]["delta"] = {"reasoning_content": "A wall?"}
    pieces[1]["choices"][0]["delta"] = {"tool_calls": [{"index": 0, **message["tool_calls"][0]}]}
    first = stream(*pieces) if streamed else send_json(whole)
    replies = [first, refuse(400, "reasoning_content is not supported"), answer("a door")]
    async with (
        fake_server(*replies) as upstream,
        gateway(upstream.url) as found,
        client(f"{found.url}/v1") as agent,
    ):
        asked: Any = {"model": "m", "input": [row("user", "hi")]}
        if streamed:
            async with agent.responses.stream(**asked) as events:
                async for _ in events:
                    pass
                made = await events.get_final_response()
        else:
            made = await agent.responses.create(**asked)
        thought, call = [item.model_dump() for item in made.output]
        assert (thought["type"], call["type"]) == ("reasoning", "function_call")
        assert thought["content"] == [{"type": "reasoning_text", "text": "A wall?"}]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "no"}
        if kept == "by the gateway":
            asked = {"model": "m", "previous_response_id": made.id, "input": [result]}
        else:
            sent = thought if kept == "all" else {**thought, "content": None}
            asked["input"] += [sent, call, result]
        await agent.responses.create(**asked)
    sent = [body["messages"][1] for body in upstream.bodies[1:]]
    assert [row.get("reasoning_content") for row in sent] == ["A wall?", None]
    assert all(row["tool_calls"][0]["function"]["name"] == "look" for row in sent)
    assert sum("thoughts of earlier answers" in one.getMessage() for one in caplog.records) == 1


async def test_files_hold_no_key_even_when_an_agent_says_it(tmp_path: Path) -> None:
    async with (
        fake_server(answer(f"your key is {AGENT_KEY}")) as upstream,
        gateway(upstream.url, tmp_path) as found,
    ):
        opened = await control(found, "/episodes", {})
        async with client(opened["base_url"]) as agent:
            told = f"Authorization: Bearer abcdef123456 and {AGENT_KEY}"
            await agent.chat.completions.create(model="m", messages=[row("user", told)])
        end = {"error": f"it broke with {AGENT_KEY} and {CONTROL}"}
        await control(found, f"/episodes/{opened['episode']}/end", end)
    text = (tmp_path / FILE).read_text()
    for secret in (AGENT_KEY, CONTROL, "abcdef123456"):
        assert secret not in text
    assert "[secret]" in text


async def test_tokens_of_a_call_that_held_a_secret_are_not_kept() -> None:
    async with bench(**local()) as found:
        async with client(f"{found.url}/v1") as agent:
            for text in ("north", f"key {AGENT_KEY}", "south"):
                await agent.chat.completions.create(model="m", messages=[row("user", text)])
        episodes = found.episodes
    turns = episodes.finished[0].turns
    assert [bool(turn.spans) for turn in turns] == [True, False, True]
    assert turns[2].segment_reason == "a call before held a secret, so its tokens are not kept"


async def test_agent_cannot_judge_itself() -> None:
    import openai

    async with bench(**local()) as found:
        opened = await control(found, "/episodes", {})
        async with client(found.url) as agent:
            for path in ("/episodes", f"/episodes/{opened['episode']}/end"):
                with pytest.raises(openai.AuthenticationError, match="control key is wrong"):
                    await agent.post(path, body={"score": 1.0}, cast_to=object)


# Environments over MCP.


def open_maze() -> HostedEnv:
    return HostedEnv(turngym.make("text/maze"), env_id="turngym/Maze-v0", split="test")


async def test_environment_s_tools_are_offered_over_mcp_and_its_rewards_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from mcp.client.client import Client

    expert = turngym.make("text/maze")
    async with bench(out=tmp_path, env=open_maze, **local()) as found:
        opened = await control(found, "/episodes", {"task": "maze-easy/test/0"})
        assert opened["observation"]
        expert.reset(seed=0, options={"task": opened["task"]})
        async with Client(opened["mcp_url"]) as tools, client(opened["base_url"]) as agent:
            names = [tool.name for tool in (await tools.list_tools()).tools]
            assert names == [t["function"]["name"] for t in opened["tools"]]
            assert not {"reset", "step", "score"} & set(names)
            bad = await tools.call_tool("fly", {"direction": "up"})
            assert bad.is_error
            over = False
            while not over:
                rows = [row("user", "what now?")]
                await agent.chat.completions.create(model="m", messages=rows)
                action = expert.unwrapped.expert_action()
                parsed: Any = expert.unwrapped.action_format.parse(action)
                answered = await tools.call_tool(parsed.name, dict(parsed.arguments))
                seen, _, terminated, truncated, _ = expert.step(action)
                over = terminated or truncated
                assert answered.content[0].text == seen["text"]
            late = await tools.call_tool(parsed.name, dict(parsed.arguments))
            assert late.is_error, "an agent that does not know reads it"
            assert "it is over" in late.content[0].text
            assert (await tools.list_tools()).tools == []
    assert "Traceback" not in caplog.text
    (trajectory,) = read_trajectories(tmp_path / FILE)
    assert trajectory.env_id == "turngym/Maze-v0"
    assert trajectory.score == 1.0
    assert trajectory.episode_return > 0
    assert trajectory.turns[-1].reward > 0
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert json.loads((tmp_path / FILE).read_text().splitlines()[0])["version"] == 1


async def test_an_end_without_a_score_judges_and_pays_what_is_left(tmp_path: Path) -> None:
    from mcp.client.client import Client

    def open_room() -> HostedEnv:
        return HostedEnv(turngym.make("text/mailroom"), env_id="turngym/MailRoom-v0")

    async with bench(out=tmp_path, env=open_room, **local()) as found:
        opened = await control(found, "/episodes", {})
        async with Client(opened["mcp_url"]) as tools, client(opened["base_url"]) as agent:
            await agent.chat.completions.create(model="m", messages=[row("user", "send it")])
            await tools.call_tool("send", {"carrier": "coach"})
        ended = await control(found, f"/episodes/{opened['episode']}/end", {})
    assert ended["return"] == ended["score"] > 0


async def test_an_end_that_is_asked_for_again_while_it_is_judged_pays_once() -> None:
    from starlette.requests import Request

    judging = asyncio.Event()

    class Slow(AsyncLadderEnv):
        async def end_at_limit(self) -> Outcome:
            await judging.wait()
            return Outcome(text="", reward=0.5)

    endpoint = Endpoint(EndpointConfig(model="m", base_url="http://127.0.0.1:9/v1"))
    episodes = Episodes(
        out=None,
        scrubber=endpoint.scrubber,
        open_env=lambda: HostedEnv(Slow(), env_id="slow"),
    )
    served = Gateway(endpoint, episodes, control_key=CONTROL)
    episode = await episodes.open("one")
    message = Message(role="assistant", content="up")
    episode.recorder.call([], message, prompt_ids=None, generation=None, usage={})
    scope = {
        "type": "http",
        "headers": [(b"authorization", f"Bearer {CONTROL}".encode())],
        "path_params": {"name": "one"},
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"reward": 1.0}'}

    ends = [asyncio.create_task(served._end(Request(scope, receive))) for _ in range(2)]
    for _ in range(20):  # both are under way
        await asyncio.sleep(0)
    judging.set()
    assert [json.loads((await end).body)["return"] for end in ends] == [1.5, 1.5]
