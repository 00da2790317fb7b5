"""An environment served as OpenEnv has it: whole episodes, faults, strangers."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import turngym
from helpers.broken_envs import Switch
from helpers.envs import LadderEnv
from helpers.raw_http import send
from turngym.agents.serving.http import serving
from turngym.api.agents import as_policy
from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import AsyncTurnEnv, Outcome
from turngym.environments.core.limits import TurnLimit
from turngym.rollouts.episode import EpisodeSpec, rollout
from turngym.rollouts.gateway.hosted import HostedEnv
from turngym.rollouts.gateway.openenv import OpenEnvServer
from turngym.tasks.base import Task
from turngym.types import StopReason

pytestmark = pytest.mark.extra("starlette", "uvicorn", "websockets")


class BrokenLadder(LadderEnv):
    """Breaks in its first turn."""

    def turn(self, action: Action) -> Outcome:
        raise OSError("the ladder broke")


def open_maze() -> HostedEnv:
    return HostedEnv(turngym.make("text/maze"), env_id="turngym/Maze-v0", split="test")


def open_broken() -> HostedEnv:
    return HostedEnv(BrokenLadder(), env_id="helpers/Broken-v0")


@asynccontextmanager
async def client(open_env: Any, **options: Any) -> AsyncIterator[tuple[Any, str]]:
    """Yield what sends a message and returns the answer, and the address."""
    import websockets

    server = OpenEnvServer(open_env, env_id="one", **options)
    async with (
        serving(server.app()) as url,
        websockets.connect(f"ws{url.removeprefix('http')}/ws") as socket,
    ):

        async def ask(kind: str, **data: Any) -> dict[str, Any]:
            await socket.send(json.dumps({"type": kind, "data": data}))
            found: dict[str, Any] = json.loads(await socket.recv())
            return found

        yield ask, url


async def test_an_episode_over_websocket_is_the_episode_here() -> None:
    env = turngym.make("text/maze")
    here, info = env.reset(seed=3, options={"task": "maze-easy/test/2"})
    async with client(open_maze) as (ask, _):
        found = (await ask("reset", seed=3, split="test", index=2))["data"]
        assert found["observation"]["text"] == here["text"]
        assert found["observation"]["instructions"] == info["instructions"]
        assert found["observation"]["tools"][0]["function"]["name"] == "go"
        assert (found["reward"], found["done"]) == (None, False)
        turns = 0
        while not found["done"]:
            action = env.unwrapped.expert_action()
            here, reward, terminated, _, info = env.step(action)
            found = (await ask("step", text=action))["data"]
            assert found["observation"]["text"] == here["text"]
            assert (found["reward"], found["done"]) == (reward, terminated)
            turns += 1
        assert found["metadata"] == {
            "task_id": "maze-easy/test/2", "stop_reason": "terminated", "truncated": False,
            "score": 1.0,
        }  # fmt: skip
        assert (await ask("state"))["data"]["step_count"] == turns
        over = await ask("step", text="go north")
        assert over["data"]["code"] == "VALIDATION_ERROR"
        assert "reset first" in over["data"]["message"]
    env.close()


async def test_a_tool_call_and_an_action_that_is_none_are_carried_out() -> None:
    async with client(open_maze) as (ask, _):
        legal = (await ask("reset", seed=1))["data"]["observation"]["legal_actions"]
        direction = legal[0].split()[-1]
        moved = (await ask("step", name="go", arguments={"direction": direction}))["data"]
        assert "invalid_action" not in moved["metadata"]
        said = (await ask("step", name="fly", arguments={}))["data"]
        assert "fly" in said["metadata"]["invalid_action"]


class Endless(AsyncTurnEnv):
    """Whose turn never ends, and which says what becomes of it."""

    action_format = Commands({"wait": "wait"})

    def __init__(self) -> None:
        super().__init__()
        self.began, self.closed = asyncio.Event(), asyncio.Event()

    async def begin(self, task: Task) -> Outcome:
        return Outcome(text="here")

    async def turn(self, action: Action) -> Outcome:
        self.began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        self.closed.set()


async def test_a_client_that_leaves_in_a_turn_makes_room_for_another() -> None:
    import websockets

    made: list[Endless] = []

    def open_endless() -> HostedEnv:
        made.append(Endless())
        return HostedEnv(made[-1], env_id="endless")

    async with serving(OpenEnvServer(open_endless, env_id="one", most=1).app()) as url:
        address = f"ws{url.removeprefix('http')}/ws"
        async with websockets.connect(address) as socket:
            await socket.send(json.dumps({"type": "reset"}))
            await socket.send(json.dumps({"type": "step", "data": {"text": "wait"}}))
            await socket.recv()
            await made[0].began.wait()
        await made[0].closed.wait()
        async with websockets.connect(address) as socket:
            await socket.send(json.dumps({"type": "reset"}))
            found = json.loads(await socket.recv())
    assert found["data"]["observation"]["text"] == "here"


class Half(LadderEnv):
    """Shows half of a unicode pair, as what is read from a file with other bytes may have."""

    def begin(self, task: Task) -> Outcome:
        super().begin(task)
        return Outcome(text="begin \ud800")

    def turn(self, action: Action) -> Outcome:
        return Outcome(text="turn \ud800")


async def test_what_cannot_be_sent_is_a_question_mark() -> None:
    async with client(lambda: HostedEnv(Half(), env_id="half")) as (_, url):
        for path, body in (("/reset", {}), ("/step", {"action": {"text": "up"}})):
            status, said = await send(url, path, body)
            assert status == 200, said
            assert said["observation"]["text"] in ("begin ?", "turn ?")


async def test_a_limit_is_a_truncation_with_its_reason() -> None:
    env = LadderEnv(slip=0.0)
    env.episode_limits = [TurnLimit(1)]
    async with client(lambda: HostedEnv(env, env_id="ladder")) as (ask, _):
        await ask("reset", seed=1)
        found = (await ask("step", text="up"))["data"]
        assert found["done"]
        assert found["metadata"]["stop_reason"] == "truncated_turns"
        assert found["metadata"]["truncated"]


async def test_what_a_server_of_ours_judged_at_a_limit_is_judged_for_its_client() -> None:
    from turngym.environments.tools.openenv import OpenEnvEnv

    env = Switch()
    env.episode_limits = [TurnLimit(1)]
    async with client(lambda: HostedEnv(env, env_id="switch")) as (_, url):
        far = OpenEnvEnv(url)
        await far.reset(seed=0)
        call = json.dumps({"name": "act", "arguments": {"text": "press"}})
        _, reward, _, truncated, info = await far.step(call)
        assert (reward, truncated, info["score"]) == (1.0, True, 1.0)
        assert info["judged_at_limit"]
        await far.close()


async def test_a_fault_is_an_error_and_never_a_reward() -> None:
    async with client(open_broken) as (ask, _):
        await ask("reset", seed=1)
        found = await ask("step", text="up")
        assert found["type"] == "error"
        assert found["data"]["code"] == "EXECUTION_ERROR"
        assert "the ladder broke" in found["data"]["message"]
        assert (await ask("step", text="up"))["data"]["code"] == "VALIDATION_ERROR"
        assert (await ask("reset", seed=1))["type"] == "observation"


@pytest.mark.parametrize(
    ("kind", "data", "code", "part"),
    [
        ("reset", {"indx": 1}, "VALIDATION_ERROR", "indx"),
        ("reset", {"seed": -1}, "VALIDATION_ERROR", "seed"),
        ("reset", {"task": "maze-easy/moon/1"}, "VALIDATION_ERROR", "moon"),
        ("reset", {"task": "maze-easy/test/1", "index": 1}, "VALIDATION_ERROR", "not both"),
        (
            "reset",
            {"task": "maze-easy/test/1", "split": "train"},
            "VALIDATION_ERROR",
            "is of split 'test'",
        ),
        ("step", {}, "VALIDATION_ERROR", "wanted"),
        ("step", {"text": "a", "name": "go"}, "VALIDATION_ERROR", "wanted"),
        ("jump", {}, "UNKNOWN_TYPE", "jump"),
    ],
)
async def test_bad_messages_are_named(kind: str, data: Any, code: str, part: str) -> None:
    async with client(open_maze) as (ask, _):
        found = (await ask(kind, **data))["data"]
        assert found["code"] == code
        assert part in found["message"]


async def test_a_message_of_bytes_is_read_as_one_of_text() -> None:
    import websockets

    async with (
        client(open_maze) as (_, url),
        websockets.connect(f"ws{url.removeprefix('http')}/ws") as socket,
    ):
        for body in (b'{"type": "state"}', b"\xff", '{"type": "state"}'):
            await socket.send(body)
        kinds = [json.loads(await socket.recv())["type"] for _ in range(3)]
    assert kinds == ["state", "error", "state"]


async def test_one_more_session_than_there_may_be_is_refused() -> None:
    import websockets

    async with client(open_maze, most=1) as (ask, url):
        await ask("reset", seed=1)
        async with websockets.connect(f"ws{url.removeprefix('http')}/ws") as other:
            assert json.loads(await other.recv())["data"]["code"] == "CAPACITY_REACHED"
        assert (await ask("state"))["type"] == "state"


async def test_a_page_of_another_site_gets_no_socket() -> None:
    import websockets

    async with client(open_maze) as (_, url):
        place = f"ws{url.removeprefix('http')}/ws"
        with pytest.raises(websockets.InvalidStatus):
            await websockets.connect(place, origin="https://evil.example")  # type: ignore[arg-type]
        async with websockets.connect(place, origin=url):  # type: ignore[arg-type]
            pass


async def test_the_same_over_http() -> None:

    def post(url: str, path: str, body: Any) -> Any:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    async with client(open_maze) as (_, url):
        first = await asyncio.to_thread(post, url, "/reset", {"seed": 3})
        action = {"action": {"text": first["observation"]["legal_actions"][0]}}
        assert (await asyncio.to_thread(post, url, "/step", action))["reward"] == 0
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        listed = await asyncio.to_thread(post, url, "/mcp", call)
        assert listed["result"]["tools"][0]["name"] == "go"
        call |= {"method": "tools/call", "params": {"name": "go", "arguments": {"direction": "up"}}}
        assert (await asyncio.to_thread(post, url, "/mcp", call))["result"]["isError"]
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            await asyncio.to_thread(post, url, "/reset", {"indx": 3})
        refused.value.close()


async def test_a_server_is_an_environment_of_ours_and_plays_the_same() -> None:
    from turngym.environments.tools.openenv import OpenEnvEnv

    env = turngym.make("text/maze")
    async with client(open_maze) as (_, url):
        far = OpenEnvEnv(url, reset={"task": "maze-easy/test/2", "seed": 3})
        seen, _ = await far.reset(seed=0)
        here, _ = env.reset(seed=3, options={"task": "maze-easy/test/2"})
        assert json.loads(seen["text"])["text"] == here["text"]
        terminated = False
        while not terminated:
            said = env.unwrapped.expert_action()
            here, reward, terminated, _, _ = env.step(said)
            call = json.dumps({"name": "act", "arguments": {"text": said}})
            seen, far_reward, far_terminated, _, info = await far.step(call)
            assert json.loads(seen["text"])["text"] == here["text"]
            assert (far_reward, far_terminated) == (reward, terminated)
        assert (info["score"], info["stop_reason"]) == (1.0, "terminated")
        await far.close()
    env.close()


async def test_what_the_server_breaks_at_is_a_fault_and_what_it_does_not_know_is_no_action() -> (
    None
):
    from turngym.environments.tools.openenv import OpenEnvEnv
    from turngym.errors import ConfigError, EnvironmentFault

    async with client(open_broken) as (_, url):
        far = OpenEnvEnv(url)
        await far.reset(seed=0)
        _, _, _, _, info = await far.step('{"name": "act", "arguments": {}}')
        assert "text" in info["invalid_action"], "the schema of the server is checked here"
        with pytest.raises(EnvironmentFault, match="the ladder broke"):
            await far.step('{"name": "act", "arguments": {"text": "up"}}')
        await far.close()
    with pytest.raises(EnvironmentFault, match="no OpenEnv server"):  # it was there
        await OpenEnvEnv(url).reset(seed=0)
    with pytest.raises(ConfigError, match="no OpenEnv server"):
        await OpenEnvEnv("http://127.0.0.1:9").reset(seed=0)
    with pytest.raises(ConfigError, match="wanted http"):
        OpenEnvEnv("127.0.0.1")


def tool_server_says(asked: Any) -> Any:
    """Answer as OpenEnv 0.10 does for an environment of MCP tools."""
    if asked["type"] == "mcp":
        known = {"a": {"type": "integer"}, "fails": {"pattern": r"^\p{L}"}}  # of JavaScript
        numbers = {"type": "object", "properties": known}
        return {"result": {"tools": [{"name": "double", "inputSchema": numbers}]}}
    if asked["type"] == "reset":
        return {"observation": {}, "metadata": {"message": "ready"}}
    assert asked["data"]["type"] == "call_tool"
    seen = {"tool_name": asked["data"]["tool_name"], "result": None, "error": None}
    if "a" in asked["data"]["arguments"]:
        said = str(2 * asked["data"]["arguments"]["a"])
        seen["result"] = {"content": [{"type": "text", "text": said}]}
    else:
        kind = asked["data"]["arguments"].get("fails", "invalid_args")
        seen["error"] = {"error_type": kind, "message": "a is missing"}
    return {"observation": seen}


@asynccontextmanager
async def tool_server(says: Any = tool_server_says) -> AsyncIterator[str]:
    from websockets.asyncio.server import serve

    def schema(connection: Any, request: Any) -> Any:
        found = {"action": {"properties": {"type": {"const": "call_tool"}}}}
        return connection.respond(200, json.dumps(found)) if request.path == "/schema" else None

    async def speak(socket: Any) -> None:
        async for message in socket:
            asked = json.loads(message)
            kind = "mcp" if asked["type"] == "mcp" else "observation"
            await socket.send(json.dumps({"type": kind, "data": says(asked)}))

    async with serve(speak, "127.0.0.1", 0, process_request=schema) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


async def test_tools_of_a_server_of_mcp_tools_are_the_actions() -> None:
    from turngym.environments.tools.openenv import OpenEnvEnv
    from turngym.errors import EnvironmentFault

    async with tool_server() as url:
        far = OpenEnvEnv(url)
        seen, info = await far.reset(seed=0)
        assert json.loads(seen["text"]) == {"message": "ready"}
        assert [tool["function"]["name"] for tool in info["tools"]] == ["double"]
        seen, *_ = await far.step('{"name": "double", "arguments": {"a": 21}}')
        assert seen["text"] == "42"
        *_, info = await far.step('{"name": "double", "arguments": {}}')
        assert info["invalid_action"] == "a is missing"
        *_, info = await far.step('{"name": "double", "arguments": {"fails": "execution_error"}}')
        assert "invalid_action" not in info
        with pytest.raises(EnvironmentFault, match="'double': timeout"):
            await far.step('{"name": "double", "arguments": {"fails": "timeout"}}')
        await far.close()


async def test_what_another_server_calls_a_score_is_no_success() -> None:
    from turngym.environments.tools.openenv import OpenEnvEnv

    def says(asked: Any) -> Any:
        if asked["type"] == "step":
            metadata = {"score": 350, "invalid_action": True}
            return {"observation": {"text": "eaten"}, "done": True, "metadata": metadata}
        return tool_server_says(asked)

    async with tool_server(says) as url:
        far = OpenEnvEnv(url)
        spec = EpisodeSpec(env_id="far", task=far.task("test", 0), env_seed=0, policy_seed=0)
        act = as_policy(lambda observation, info: '{"name": "double", "arguments": {"a": 1}}')
        played = await rollout(far, act, spec)
        await far.close()
    assert (played.stop_reason, played.score) == (StopReason.TERMINATED, None)
    assert played.turns[0].invalid_action == "True"


async def test_an_answer_that_nobody_waited_for_is_not_that_to_the_next_question() -> None:
    from turngym.environments.tools.openenv import OpenEnvEnv

    came = asyncio.Event()

    def says(asked: Any) -> Any:
        came.set()
        is_mcp = asked["type"] == "mcp"
        return tool_server_says(asked) if is_mcp else {"observation": {"text": asked["type"]}}

    async with tool_server(says) as url:
        far = OpenEnvEnv(url)
        await far.reset(seed=0)
        came.clear()
        step = asyncio.create_task(far.step('{"name": "double", "arguments": {"a": 1}}'))
        await came.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        seen, _ = await far.reset(seed=1)
        assert seen["text"] == "reset"
        await far.close()


async def test_a_server_that_lists_no_tools_is_asked_again_by_the_next_episode() -> None:
    from turngym.environments.tools.openenv import OpenEnvEnv
    from turngym.errors import EnvironmentFault

    answers = iter([{"code": "CAPACITY_REACHED"}])

    def full_at_first(asked: Any) -> Any:
        return next(answers, None) or tool_server_says(asked)

    async with tool_server(full_at_first) as url:
        far = OpenEnvEnv(url)
        with pytest.raises(EnvironmentFault, match="CAPACITY_REACHED"):
            await far.reset(seed=0)
        _, info = await far.reset(seed=0)
        assert [tool["function"]["name"] for tool in info["tools"]] == ["double"]
        await far.close()


async def test_a_full_server_is_a_fault_that_says_so() -> None:
    from turngym.environments.tools.openenv import OpenEnvEnv
    from turngym.errors import EnvironmentFault

    async with client(open_maze, most=1) as (_, url):  # which is one session
        far = OpenEnvEnv(url)
        for _ in range(3):
            with pytest.raises(EnvironmentFault, match="1 sessions are open; --sessions"):
                await far.reset(seed=0)
        await far.close()


async def test_an_episode_that_is_over_when_it_begins_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from turngym.environments.tools.openenv import OpenEnvEnv
    from turngym.errors import EnvironmentFault
    from turngym.rollouts.gateway.openenv import Session

    async def over(self: Session, data: dict[str, Any]) -> dict[str, Any]:
        return {"observation": {"text": "no desk is free"}, "reward": None, "done": True}

    monkeypatch.setattr(Session, "reset", over)
    async with client(open_maze) as (_, url):
        far = OpenEnvEnv(url)
        with pytest.raises(EnvironmentFault, match="over before it began: no desk is free"):
            await far.reset(seed=0)
        await far.close()


def test_a_call_that_the_end_of_a_server_cuts_off_leaves_no_traceback() -> None:
    from turngym.agents.serving.http import make_server

    make_server(OpenEnvServer(open_maze, env_id="one").app())
    said: list[str] = []
    logger, handler = logging.getLogger("uvicorn.error"), logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        logger.error("cut off", exc_info=asyncio.CancelledError())
        logger.error("broken", exc_info=OSError())
    finally:
        logger.removeHandler(handler)
    assert said == ["broken"]
