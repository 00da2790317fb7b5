"""Agent programs, unchanged, as environments of their own model: played, resumed and trained."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.envs import LadderEnv
from helpers.models import model, policy, policy_on, tokenizer
from helpers.signals import SIGNALS, register_for_a_while
from helpers.tools import TOOLS, WALKS, Scripted, renderer, sampled, template
from helpers.tools import tokenizer as tokenizer_of
from turngym.agents.call_forms import FoundCall
from turngym.agents.chat.agent import ChatAgent, EngineModel
from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import build_tiny_model
from turngym.agents.engine.protocol import Sampling, vision_of
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.agents.rendering import Renderer
from turngym.agents.serving.http import serving
from turngym.agents.templates import rendered
from turngym.agents.tool_calls import action_text, called_row, result_row, with_tools
from turngym.config import load_config
from turngym.environments.gym.face import as_gym
from turngym.environments.gym.registration import make
from turngym.errors import ConfigError, EnvironmentFault, Interrupted
from turngym.pictures import data_url
from turngym.rollouts.episode import EpisodeSpec, rollout
from turngym.rollouts.gateway.asking import ProgramSide, program_app
from turngym.rollouts.gateway.program import ProgramEnv
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.checkpoints import find_model
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.forward import score
from turngym.types import Message, StopReason, Trajectory

pytestmark = [pytest.mark.extra("starlette", "uvicorn")]

HEAD = """
import http.client, json, os, sys, urllib.parse
task = json.loads(os.environ["TURNGYM_TASK"])
def post(path, body, base=os.environ["TURNGYM_URL"]):
    url = urllib.parse.urlsplit(base + path)
    line = http.client.HTTPConnection(url.hostname, url.port)
    line.request("POST", url.path, json.dumps(body), {"content-type": "application/json"})
    answer = line.getresponse()
    said = answer.read()
    if answer.status == 410:
        sys.exit("it is over")
    return json.loads(said)
def ask(said, **more):
    body = post("/v1/chat/completions", {"model": "any", "messages": said, **more})
    return body["choices"][0]["message"] if "choices" in body else body
def row(text, role="user"):
    return {"role": role, "content": text}
"""
"""What the programs begin with. No client library, which takes a second to start."""

PLAYS = """
said = [row(task["instructions"], "system"), row(task["observation"])]
while True:
    said.append(row(ask(said)["content"], "assistant"))
    found = post("/act", {"action": said[-1]["content"]})
    said.append(row(found["observation"]))
    if found["is_over"]:
        break
"""
"""Does what its model says, word for word."""

REWRITES = PLAYS.replace("    if found", "    said = [said[0], said[-1]]\n    if found")
"""Forgets all but the last observation."""

OWN = """
answers = [ask([row(f"say {n} in {task['split']}")])["content"] for n in range(2)]
post("/end", {"score": float(answers == ["0", "1"]), "reward": 2.0})
"""
"""Has an environment of its own, and two conversations."""


@pytest.fixture(autouse=True)
def lights(monkeypatch: pytest.MonkeyPatch) -> None:
    register_for_a_while(monkeypatch)


@pytest.fixture
def program(tmp_path: Path) -> Any:
    """Return what makes an environment of a program's text."""

    def make(text: str, **settings: Any) -> ProgramEnv:
        return ProgramEnv(command(tmp_path, text), **settings)

    return make


def command(folder: Path, text: str) -> list[str]:
    file = folder / "agent.py"
    file.write_text(HEAD + text)
    return [sys.executable, "-S", "-E", str(file)]


async def played(env: ProgramEnv, *answers: str) -> list[Any]:
    """Return what the steps of an episode give."""
    await env.reset(seed=0)
    return [await env.step(answer) for answer in answers]


async def test_a_program_is_played_and_another_one_goes_on_where_it_stands(program: Any) -> None:
    env = program(PLAYS, inner="text/maze")
    observation, info = await env.reset(seed=1)
    assert [message.role for message in info["messages"]] == ["system", "user"]
    assert info["messages"][1].content in observation["text"]
    assert info["instructions"] == ""
    assert info["state_key"]
    assert env.expert_action() in info["legal_actions"]
    observation, *_ = await env.step(env.expert_action())
    [other] = await env.fork(1)
    for one in (env, other):
        over, info = False, {}
        while not over:
            observation, reward, over, _, info = await one.step(one.expert_action())
            assert reward == float(over)
            if not over:
                assert [message.role for message in info["messages"]] == ["user"]
        assert observation["text"] == "The program is over."
        assert (info["stop_reason"], info["score"]) == ("terminated", 1.0)
        await one.close()


async def test_a_limit_adds_no_words_to_those_of_the_program(tmp_path: Path) -> None:
    with closing(
        make("turngym:ProgramEnv", command=command(tmp_path, PLAYS), inner="text/maze", max_turns=1)
    ) as env:
        _, info = env.reset(seed=1)
        assert info["instructions"] == ""
        *_, info = env.step("go north")
        assert info["stop_reason"] == "truncated_turns"


async def test_it_is_a_gymnasium_environment_and_ends_at_limits(program: Any) -> None:
    face = as_gym(program(PLAYS, inner="text/maze", inner_options={"max_turns": 2}))
    face.reset(seed=1)
    face.step("go nowhere")
    *_, terminated, truncated, info = face.step("go nowhere")
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "truncated_env")
    assert info["score"] == 0.0
    face.close()


async def test_what_the_inner_environment_judged_at_its_limit_is_known_as_judged(
    program: Any,
) -> None:
    inner = {"inner": "helpers.broken_envs:Switch", "inner_options": {"max_turns": 1}}
    env = program(PLAYS, **inner)
    [(_, reward, _, truncated, info)] = await played(env, "press")
    assert (reward, truncated, info["judged_at_limit"]) == (1.0, True, True)
    await env.close()


async def test_sampled_tokens_are_kept_and_a_history_that_is_rewritten_opens_a_segment(
    program: Any,
) -> None:
    def whole(trajectory: Trajectory) -> list[list[tuple[int, float]]]:
        """Return each conversation as tokens with their log-probs, NaN where none was sampled."""
        found: list[list[tuple[int, float]]] = []
        for number, turn in enumerate(trajectory.turns):
            if turn.starts_segment or number == 0:
                found.append([])
            for span in turn.spans:
                logprobs = span.logprobs if span.sampled else [math.nan] * len(span.token_ids)
                found[-1] += zip(span.token_ids, logprobs, strict=True)
        return found

    short = 'row(task["instructions"], "system"), '  # for the context of the model
    for text, segments in ((PLAYS, 1), (REWRITES, 4)):
        env = program(text.replace(short, ""), inner=SIGNALS)
        task = env.task("train", 5)
        spec = EpisodeSpec(env_id="program", task=task, env_seed=1, policy_seed=2)
        trajectory = await rollout(env, policy(), spec)
        assert trajectory.stop_reason is StopReason.TRUNCATED_ENV
        assert len(trajectory.turns) == 4
        conversations = whole(trajectory)
        assert len(conversations) == segments
        first = trajectory.turns[0]
        opening = Renderer(tokenizer()).opening(first.observation)
        assert first.spans[0].token_ids == opening
        reasons = [turn.segment_reason or "" for turn in trajectory.turns]
        assert [reason[:39] for reason in reasons[1:]] == [
            "history was rewritten from message 1 of" if segments > 1 else ""
        ] * 3
        ids = [np.array([token for token, _ in one]) for one in conversations]
        told = [np.array([logprob for _, logprob in one]) for one in conversations]
        masks = [~np.isnan(one) for one in told]
        own = score(model(), ids, masks, max_tokens=4096)
        for mine, theirs, mask in zip(own, told, masks, strict=True):
            np.testing.assert_allclose(mine[mask], theirs[mask], atol=1e-5)
        await env.close()


async def test_tools_reach_the_program_as_calls_and_streams_are_whole(program: Any) -> None:
    tool = {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}
    env = program(f"""
tools = [{tool!r}]
said = [row("play", "system"), row("where to?")]
answer = ask(said, tools=tools)
call = answer["tool_calls"][0]["function"]
found = post("/act", {{"name": call["name"], "arguments": json.loads(call["arguments"])}})
said += [answer | {{"content": None}}, {{"role": "tool", "content": found["observation"]}}]
said.append(ask(said, tools=tools))
said += [row("?")]
said.append(ask(said, temperature=0.5, stop="END"))
assert said[-1]["content"] == "three ", said
said[-1]["content"] += "END"
ask([*said, row("!")])
""", inner="text/maze")  # fmt: skip
    _, info = await env.reset(seed=1)
    assert [message.content for message in info["messages"]] == ["play", "where to?"]
    assert info["tools"] == [tool]
    call = json.dumps({"name": "go", "arguments": {"direction": "east"}})
    _, _, _, _, info = await env.step(f"I go. {call}")
    assert "rewritten" not in info
    assert [message.role for message in info["messages"]] == ["tool"]
    _, _, _, _, info = await env.step("two")
    assert info["rewritten"] == "the tools are others"
    _, _, _, _, info = await env.step("<think>no</think>three END four")
    assert info["rewritten"] == "history was rewritten from message 6 of 7 on"
    _, _, terminated, _, info = await env.step("five")
    assert terminated
    assert info["score"] == 0.0
    await env.close()


@pytest.mark.parametrize("native", [True, False])
async def test_tools_of_a_program_are_called_as_its_model_does_or_in_words(
    program: Any, native: bool
) -> None:
    env = program(f"""
tools = {TOOLS!r}
said = [row("play", "system"), row("where to?")]
for walks in ({WALKS[:1]!r}, {WALKS[1:]!r}):
    answer = ask(said, tools=tools)
    calls = [json.loads(call["function"]["arguments"]) for call in answer["tool_calls"]]
    assert calls == walks, answer
    said += [answer, *({{"role": "tool", "content": f"room {{n}}"}} for n in range(len(calls)))]
said = said[:1] + said[2:]
ask(said, tools=tools)
post("/end", {{"score": 1.0}})
""")  # fmt: skip
    one = Renderer(tokenizer_of(template("tags")), tool_calls=native)
    turns = (WALKS[:1], WALKS[1:])
    calls = [sampled(renderer("tags"), *walks) for walks in turns]
    told = ["\n".join(action_text("go", walk) for walk in walks) for walks in turns]
    answers = calls if native else [one.closed(text) for text in told]
    engine: Any = Scripted(*answers, one.closed("Done."))
    agent = ChatAgent(EngineModel(engine, one, sampling=Sampling(max_new_tokens=9)))
    spec = EpisodeSpec(env_id="program", task=env.task("train", 5), env_seed=1, policy_seed=2)
    trajectory = await rollout(env, agent, spec)
    assert trajectory.score == 1.0, trajectory.error
    assert [turn.starts_segment for turn in trajectory.turns] == [False, False, True]
    rows: list[Any] = [("user", "where to?")]
    for walks, text in zip(turns, told, strict=True):
        found = [FoundCall(name="go", arguments=walk) for walk in walks]
        rows.append(called_row(found, "") if native else ("assistant", text))
        rows += [
            result_row(call, f"room {n}") if native else ("tool", f"room {n}")
            for n, call in enumerate(found)
        ]
    [noted] = with_tools([Message(role="system", content="play")], () if native else TOOLS)
    shown: Any = {"tools": TOOLS} if native else {}
    for ids, seen in zip(engine.read_ids, (rows[:3], rows[1:]), strict=True):
        whole = [("system", noted.content), *seen]
        text = one.tokenizer.decode(ids)
        assert text.startswith(rendered(one.tokenizer, whole, generate=True, **shown))
    await env.close()


LOOKS = """
urls = json.loads(os.environ["URLS"])
images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
look = lambda *which: row([{"type": "text", "text": "look"}, *(images[one] for one in which)])
said = [row("see", "system"), look(0)]
said += [row(ask(said)["content"], "assistant"), look(1)]
said += [row(ask(said)["content"], "assistant"), row("and?")]
said += [row(ask(said)["content"], "assistant"), look(0)]
said[1] = look(1)
ask(said)
"""
"""Shows pictures, and another one in an earlier place at last."""


@pytest.mark.extra("PIL")
async def test_pictures_are_seen_and_a_changed_one_opens_a_segment(program: Any) -> None:
    black, white = np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8)
    both = json.dumps([data_url(black), data_url(white)])
    env = program(LOOKS, pictures=True, variables={"URLS": both})
    observation, info = await env.reset(seed=0)
    assert list(info["pictures"]) == [1]
    steps = [(observation, 0, 0, 0, info), *[await env.step("so") for _ in range(3)]]
    shown = [step[0].get("image") for step in steps]
    assert shown[2] is None
    for image, wanted in zip(shown[:2] + shown[3:], (black, white, black), strict=True):
        np.testing.assert_array_equal(image, wanted)
    last = steps[3][4]
    assert last["rewritten"] == "history was rewritten from message 1 of 7 on"
    assert list(last["pictures"]) == [1, 3, 7]
    assert all(one[0] in env.observation_space for one in steps)
    words = train_tokenizer(["see look and"] * 9, 280, images=True)
    shape = TinyModelConfig(hidden=32, layers=2, heads=2, context=256, image_size=8)
    engine = LocalEngine(build_tiny_model(shape, words, seed=0), words, context=256)
    agent = policy_on(engine, Renderer(words), sampling=Sampling(max_new_tokens=4))
    spec = EpisodeSpec(env_id="p", task=env.task("train", 0), env_seed=1, policy_seed=2)
    trajectory = await rollout(env, agent, spec)
    numbers = [vision_of(words).pictures.keep(one) for one in (black, white)]  # type: ignore[union-attr]
    seen = [
        [numbers.index(-token) for span in turn.spans for token in span.token_ids if token < 0]
        for turn in trajectory.turns
    ]
    assert seen == [[0], [1], [], [1, 1, 0]]
    await env.close()


async def test_a_task_of_any_length_and_its_pictures_reach_the_program(program: Any) -> None:
    env = program("""
import urllib.request
whole = json.loads(urllib.request.urlopen(os.environ["TURNGYM_URL"] + "/task").read())
found = post("/act", {"action": "go north"})
images = [one["image"][:14] for one in (whole, found)]
ask([row(" ".join([*sorted(task), whole["observation"], *images]))])
""", inner="text/maze", inner_options={"picture": True})  # fmt: skip
    png = "data:image/png"
    for rules, keys in (
        ("short", "id instructions observation seed split tools"),
        ("long " * 30_000, "id seed split"),
    ):
        env._hosted.env.unwrapped.rules = rules
        observation, _ = await env.reset(seed=0)
        assert observation["text"] == f"{keys} Look at the picture. {png} {png}"
    await env.close()


@pytest.mark.extra("PIL")
async def test_pictures_that_cannot_be_shown_are_named(program: Any) -> None:
    url = data_url(np.zeros((2, 2, 3), np.uint8))
    for text, settings, message in (
        ("look(0)", {}, "messages.0.content: this model reads text only, not image_url"),
        ("look(0, 0)", {"pictures": True}, "2 images in one message; one is shown"),
    ):
        short = f"{LOOKS.partition('said')[0]}\nask([row(ask([{text}])['error']['message'])])"
        env = program(short, variables={"URLS": json.dumps([url])}, **settings)
        observation, _ = await env.reset(seed=0)
        assert message in observation["text"]
        await env.close()
    broken = json.dumps(["data:image/png;base64,AAAA"])
    env = program(LOOKS, pictures=True, variables={"URLS": broken})
    with pytest.raises(EnvironmentFault, match="no picture that can be read"):
        await env.reset(seed=0)
    await env.close()


@pytest.mark.extra("openai")
async def test_the_client_library_and_its_dialects(program: Any) -> None:
    env = program("""
from openai import OpenAI
client = OpenAI(max_retries=0)
rows = [row("hello")]
stream = client.chat.completions.create(model="any", messages=rows, stream=True)
rows.append(row("".join(one.choices[0].delta.content or "" for one in stream), "assistant"))
assert rows[-1]["content"] == "hi", rows
made = client.responses.create(model="any", input=[*rows, row("go on")])
assert made.output_text == "on", made
with client.responses.stream(model="any", input="more", previous_response_id=made.id) as events:
    assert events.get_final_response().output_text == "more"
post("/end", {"score": 0.5})
""")
    env.command[1:3] = []  # which hide installed packages
    steps = await played(env, "hi", "on", "more")
    assert not any("rewritten" in info for *_, info in steps)
    assert [reward for _, reward, *_ in steps] == [0.0] * 3
    assert steps[-1][4]["score"] == 0.5
    await env.close()


async def test_a_question_that_comes_after_the_end_waits_for_nothing(program: Any) -> None:
    forever = PLAYS.replace('    if found["is_over"]:\n        break\n', "")
    env = program(forever, inner="text/maze", inner_options={"max_turns": 1})
    for _ in range(3):
        [(_, _, _, truncated, _)] = await played(env, "go north")
        assert truncated
    waiting = [str(task.get_coro()) for task in asyncio.all_tasks()]
    for _ in range(500):  # the answer to the last one may be under way
        if not any("run_asgi" in one for one in waiting):
            break
        await asyncio.sleep(0.01)
        waiting = [str(task.get_coro()) for task in asyncio.all_tasks()]
    else:
        pytest.fail(f"questions of ended episodes wait for ever: {waiting}")
    await env.close()


async def test_a_program_is_given_what_to_do_in_words(program: Any) -> None:
    env = program("ask([row(os.environ['TURNGYM_PROMPT'])])", inner="text/maze")
    observation, _ = await env.reset(seed=0)
    rules = make("text/maze").unwrapped.rules
    assert observation["text"].startswith(f"{rules}\n\nkey ")
    await env.close()


class Bytes(LadderEnv):
    """Shows what no variable holds."""

    rules = "a\0b"


async def test_what_no_variable_holds_is_a_question_mark_in_the_words(program: Any) -> None:
    env = program("ask([row(os.environ['TURNGYM_PROMPT'])])", inner=f"{__name__}:Bytes")
    observation, _ = await env.reset(seed=0)
    assert observation["text"].startswith("a?b")
    await env.close()


async def test_a_program_may_speak_anthropics_dialect(program: Any) -> None:
    env = program("""
tools = [{"name": "go", "description": "Walk.", "input_schema": {"type": "object"}}]
said, base = [row("hello")], os.environ["ANTHROPIC_BASE_URL"]
while True:
    body = {"model": "any", "max_tokens": 9, "system": "be quick", "messages": said, "tools": tools}
    assert post("/v1/messages/count_tokens", body, base)["input_tokens"] > 0
    answer = post("/v1/messages", body, base)
    said.append(row(answer["content"], "assistant"))
    calls = [one["id"] for one in answer["content"] if one["type"] == "tool_use"]
    if not calls:
        break
    results = [{"type": "tool_result", "tool_use_id": one, "content": "a wall"} for one in calls]
    said.append(row([*results, {"type": "text", "text": "go on"}]))
post("/end", {"score": 1.0 if answer["stop_reason"] == "end_turn" else 0.0})
""")
    steps = await played(env, 'I go. {"name": "go", "arguments": {"way": "north"}}', "done")
    assert [(one.role, one.content) for one in steps[0][4]["messages"]] == [
        ("tool", "a wall"), ("user", "go on"),
    ]  # fmt: skip
    assert not any("rewritten" in info for *_, info in steps)
    assert steps[-1][4]["score"] == 1.0
    await env.close()


async def test_a_program_with_its_own_environment_says_how_well_it_did(program: Any) -> None:
    env = program(OWN)
    (_, _, over, _, info), last = await played(env, "0", "1")
    assert not over
    assert info["rewritten"] == "history was rewritten from message 0 of 2 on"
    assert last[1:3] == (2.0, True)
    assert last[4]["score"] == 1.0
    assert env.task("test", 3).split == "test"
    silent = program('ask([row("hello")])')
    [last] = await played(silent, "hi")
    assert last[4]["score"] is None
    await env.close()
    await silent.close()


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("print('no luck')", {}, "ended before it asked its model anything: no luck"),
        ("ask([row('a')]); raise KeyError('x')", {}, "exit code 1: KeyError: 'x'"),
        ("ask([row('a')]); post('/end', {'error': 'no disk'})", {}, "it broke: no disk"),
        ("ask([row('a')]); __import__('time').sleep(1000)", {"timeout_s": 2}, "within 2 s"),
    ],
)
async def test_a_program_that_breaks_is_a_fault_and_no_reward_of_0(
    program: Any, text: str, settings: Any, message: str
) -> None:
    env = program(text, **settings)
    with pytest.raises(EnvironmentFault, match=message):
        await played(env, "b")
    await env.close()


async def test_a_crash_may_be_an_end(program: Any) -> None:
    env = program("ask([row('a')]); sys.exit(3)", inner="text/maze", crash="end")
    [(_, reward, terminated, _, info)] = await played(env, "b")
    assert (reward, terminated, info["score"]) == (0.0, True, 0.0)
    await env.close()


async def test_what_cannot_be_started_and_what_is_refused_is_one_line(
    program: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="command is empty"):
        ProgramEnv("")
    for settings, what in (({}, "no-such-program"), ({"folder": str(tmp_path / "none")}, "none")):
        wrong = ProgramEnv("no-such-program", **settings)
        with pytest.raises(ConfigError, match=f"program: '.*{what}' cannot be used: No such file"):
            await wrong.reset(seed=0)
        await wrong.close()
    for variables, what in (({"A": 1}, "not int"), ({"A": "\0"}, "embedded null byte")):
        wrong = program("", variables=variables)
        with pytest.raises(ConfigError, match=f"program: command or variables: .*{what}"):
            await wrong.reset(seed=0)
        await wrong.close()
    env = program("""
found = [post("/act", {"action": "x"}), post("/end", {"score": 2}), post("/end", {"score": "1"}),
         ask([row("a")], n=2), ask([row("a")], response_format={"type": "json_object"}),
         ask([row("a")], logprobs=True)]
ask([row(one["error"]["message"]) for one in found])
""")
    observation, _ = await env.reset(seed=0)
    assert observation["text"].split("\n\n") == [
        "act: this program was given no environment (inner=...)",
        "score: Input should be less than or equal to 1",
        "score: Input should be a valid number",
        "n: Input should be less than or equal to 1",
        "response_format: this server cannot do that; leave it out",
        "logprobs: they are of the policy's own; leave it out",
    ]
    await env.close()


async def test_a_question_that_its_program_no_longer_waits_for_is_not_answered() -> None:
    openai: Any = pytest.importorskip("openai")
    side = ProgramSide(None, {})
    async with serving(program_app(lambda: side)) as url:
        base = f"{url}/episodes/{side.key}/v1"
        client = openai.AsyncOpenAI(base_url=base, api_key="x", max_retries=0)

        async def ask(text: str, **how: Any) -> Any:
            rows: Any = [{"role": "user", "content": text}]
            return await client.chat.completions.create(model="any", messages=rows, **how)

        with pytest.raises(openai.APITimeoutError):
            await ask("one", timeout=0.5)
        asking = asyncio.create_task(ask("two", timeout=900))
        while side.questions.qsize() < 2:
            await asyncio.sleep(0.01)
        asked = await side.next_question()
        assert [message.content for message in asked.messages] == ["two"]
        side.shown(asked)
        side.answer("2")
        assert (await asking).choices[0].message.content == "2"
        await client.close()


async def test_a_program_that_asks_on_when_all_is_over_is_ended(program: Any) -> None:
    forever = PLAYS.replace('    if found["is_over"]:\n        break\n', "")
    env = program(forever, inner=SIGNALS)
    *_, last = await played(env, "stop", "stop")
    assert last[2]
    assert env._running is None
    await env.close()


def settings(folder: Path) -> TrainConfig:
    found: dict[str, Any] = {
        "env": {
            "id": "turngym:ProgramEnv",
            "options": {"command": command(folder, PLAYS), "inner": SIGNALS},
        },
        "model": {"hidden": 32, "layers": 1, "heads": 2, "context": 160, "vocab_size": 280},
        "warm_start": {"episodes": 12, "max_steps": 10, "expert_noise": 0.2, "lr": 3e-3},
        "algo": "grpo",
        # Alone in a batch: whose question comes first depends on the clock.
        "rollout": {"groups_per_step": 2, "group_size": 2, "max_new_tokens": 6, "concurrency": 1},
        "evaluation": {"every": 9, "validation_tasks": 2, "held_out_tasks": 2},
        "run": {"steps": 2, "checkpoint_every": 1, "tensorboard": False},
    }
    return load_config(TrainConfig, [found])


class Stops:
    """Presses Ctrl-C when the first update is done."""

    def __init__(self) -> None:
        self.name = ""

    def phase(self, name: str, total: int | None) -> None:
        self.name = name

    def advance(self, done: int, metrics: Any) -> None:
        if (self.name, done) == ("reinforcement", 1):
            signal.raise_signal(signal.SIGINT)

    def note(self, text: str) -> None:
        pass


def test_a_run_trains_the_model_of_a_program_and_is_resumed_to_the_bit(tmp_path: Path) -> None:
    config = settings(tmp_path)
    train(config, out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, out=tmp_path / "parts", progress=Stops())
    train(config, out=tmp_path / "parts")
    runs = [tmp_path / name for name in ("whole", "parts")]
    for name in ("metrics.jsonl", "model.safetensors"):
        files = [(run if name == "metrics.jsonl" else find_model(run)) / name for run in runs]
        assert files[0].read_bytes() == files[1].read_bytes()
    rows = read_metrics(runs[0] / "metrics.jsonl")
    assert [row["rollout/faults"] for row in rows if "rollout/faults" in row] == [0.0, 0.0]
    assert sum(row.get("rollout/tokens", 0) for row in rows) > 0
