"""Outside agents that show pictures: recorded in token ids, and trained on as they were seen."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turngym
from helpers.fake_server import answer, answer_body, fake_server, send_json
from helpers.models import policy
from helpers.outside import CONTROL, Bench, bench, gateway
from helpers.raw_http import send
from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import build_tiny_model
from turngym.agents.engine.protocol import vision_of
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.agents.rendering import Renderer
from turngym.pictures import PictureFolder, data_url, name_of
from turngym.records import read_trajectories
from turngym.rollouts.gateway.episodes import FILE
from turngym.rollouts.gateway.hosted import HostedEnv
from turngym.trainers.samples import TrainingSample, to_samples
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.optimizer import LearnerConfig
from turngym.trainers.update.learner import TorchLearner
from turngym.types import Trajectory

pytestmark = [pytest.mark.extra("openai", "starlette", "uvicorn", "mcp", "PIL")]

PLACES = 4
"""Tokens of a picture."""


def seeing() -> Any:
    """Return a small model that sees."""
    shape = TinyModelConfig(hidden=32, layers=2, heads=2, context=1024, image_size=16, patch_size=8)
    tokenizer = train_tokenizer(["what do you see", "go north"] * 3, 280, images=True)
    return build_tiny_model(shape, tokenizer, seed=0), tokenizer


def served(model: Any, tokenizer: Any, **settings: Any) -> Any:
    """Return what ``bench`` runs in front of a model."""
    engine = LocalEngine(model, tokenizer, context=1024)
    return bench(engine, Renderer(tokenizer), max_new_tokens=6, **settings)


def client(url: str) -> Any:
    import openai

    return openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0, timeout=900)


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8)


def shown(*pictures: np.ndarray, text: str = "what do you see") -> Any:
    """Return a chat message with pictures."""
    images = [{"type": "image_url", "image_url": {"url": data_url(one)}} for one in pictures]
    return {"role": "user", "content": [*images, {"type": "text", "text": text}]}


def row_of(said: str) -> Any:
    """Return the chat message of an answer."""
    return {"role": "assistant", "content": said}


def check(trajectory: Trajectory, found: Bench) -> None:
    """Assert that the trajectory holds what was served, and pictures where these are."""
    ids = list[int]()
    for number, (turn, one) in enumerate(zip(trajectory.turns, found.served, strict=True)):
        if number == 0 or turn.starts_segment:
            ids = []
        ids += [token for span in turn.spans for token in span.token_ids]
        places = [place for of_image in one.image_places for place in of_image]
        assert [place for place, token in enumerate(ids) if token < 0] == places
        pairs = zip(ids, [*one.prompt_ids, *one.generation.token_ids], strict=True)
        assert all(token == served or token < 0 for token, served in pairs)


def as_input(row: Any) -> Any:
    """Return a chat message as the Responses API has it."""
    if isinstance(row["content"], str):
        return row
    parts = [
        {"type": "input_image", "detail": "auto", "image_url": part["image_url"]["url"]}
        if part["type"] == "image_url"
        else {"type": "input_text", "text": part["text"]}
        for part in row["content"]
    ]
    return {**row, "content": parts}


async def test_pictures_are_recorded_in_token_ids_whatever_the_agent_speaks(tmp_path: Path) -> None:
    model, tokenizer = seeing()
    async with served(model, tokenizer, out=tmp_path) as found, client(f"{found.url}/v1") as agent:
        rows = [{"role": "system", "content": "look"}, shown(noise(0), noise(1))]
        made = await agent.chat.completions.create(model="m", messages=rows)
        assert not hasattr(made, "image_places")  # for which the agent did not ask
        rows += [row_of(made.choices[0].message.content), shown(noise(2), noise(0))]
        made = await agent.chat.completions.create(model="m", messages=rows, stream=True)
        text = "".join([one.choices[0].delta.content or "" async for one in made])
        rows += [row_of(text), shown(noise(3))]
        made = await agent.responses.create(model="m", input=[*map(as_input, rows)])
        await agent.responses.create(model="m", previous_response_id=made.id, input="and now?")
    (trajectory,) = read_trajectories(tmp_path / FILE)
    check(trajectory, found)
    assert not any(turn.starts_segment for turn in trajectory.turns)
    numbers = [PictureFolder(tmp_path).keep(noise(seed)) for seed in (0, 1, 2, 0, 3)]
    seen = [-token for span in trajectory.spans for token in span.token_ids if token < 0]
    assert seen == [number for number in numbers for _ in range(PLACES)]
    assert [turn.picture for turn in trajectory.turns] == [
        *(name_of(numbers[last]) for last in (1, 3, 4)),
        None,
    ]
    first = trajectory.turns[0].observation[1].content
    assert first == "\n".join(
        [*(f"[picture {name_of(n)}]" for n in numbers[:2]), "what do you see"]
    )


async def test_another_picture_in_the_history_opens_a_segment(tmp_path: Path) -> None:
    model, tokenizer = seeing()
    async with served(model, tokenizer, out=tmp_path) as found, client(f"{found.url}/v1") as agent:
        rows = [shown(noise(0))]
        made = await agent.chat.completions.create(model="m", messages=rows)
        said = row_of(made.choices[0].message.content)
        for seed in (0, 1):
            rows = [shown(noise(seed)), said, shown(noise(2))]
            await agent.chat.completions.create(model="m", messages=rows)
    (trajectory,) = read_trajectories(tmp_path / FILE)
    check(trajectory, found)
    assert [turn.starts_segment for turn in trajectory.turns] == [False, False, True]
    reason = trajectory.turns[2].segment_reason
    assert reason is not None
    assert reason.startswith("history was rewritten")


@pytest.mark.parametrize(
    "url",
    ["https://example.org/a.png", "data:image/png;base64,AAAA", "data:image/png;base64,?", None],
)
async def test_a_picture_that_cannot_be_read_is_refused_before_it_is_asked(url: Any) -> None:
    async with fake_server(answer("ok")) as upstream, gateway(upstream.url) as found:
        rows = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        asked = {"model": "m", "messages": rows}
        status, said = await send(found.url, "/v1/chat/completions", asked)
        assert status == 400
        message = said["error"]["message"]
        assert message.startswith("messages.0.content: wanted an image as data:image/png;base64")
        assert "\n" not in message
        image = {"type": "input_image", "image_url": url}
        asked = {"model": "m", "input": [{"role": "user", "content": [image]}]}
        assert await send(found.url, "/v1/responses", asked) == (status, said)
        assert not upstream.bodies


async def test_a_picture_for_a_model_that_reads_text_alone_is_refused_in_one_line() -> None:
    blind = policy().model
    async with bench(blind.engine, blind.renderer) as found:
        asked = {"model": "m", "messages": [shown(noise(0))]}
        status, said = await send(found.url, "/v1/chat/completions", asked)
    assert status == 400
    assert "this model reads text only, not image_url (an image)" in said["error"]["message"]
    assert "\n" not in said["error"]["message"]


@pytest.mark.parametrize("tokens", ["auto", "yes"])
async def test_tokens_of_which_none_is_known_to_be_of_a_picture_are_not_recorded(
    tokens: Any, tmp_path: Path
) -> None:
    body = answer_body("a cat")
    body["prompt_token_ids"] = [1, 9, 9, 2]
    body["choices"][0] |= {"token_ids": [3], "logprobs": {"content": [{"logprob": -1.0}]}}
    async with (
        fake_server(send_json(body)) as upstream,
        gateway(upstream.url, tmp_path, tokens=tokens) as found,
    ):
        asked = {"model": "m", "messages": [shown(noise(0))]}
        status, said = await send(found.url, "/v1/chat/completions", asked)
    if tokens == "yes":
        assert status == 400
        assert "no places of the request's 1 image(s) in its tokens" in said["error"]["message"]
        return
    (trajectory,) = read_trajectories(tmp_path / FILE)
    (turn,) = trajectory.turns
    assert turn.spans == ()
    assert turn.picture == name_of(PictureFolder(tmp_path).keep(noise(0)))


# An agent program, and what is learned from it.


def open_maze() -> HostedEnv:
    env = turngym.make("text/maze", picture=True)
    return HostedEnv(env, env_id="turngym/Maze-v0")


async def play(found: Bench, member: int) -> None:
    """Play a maze of pictures: each is shown to the model, and moves go to the environment."""
    from mcp.client.client import Client

    body = {"task": "maze-easy/train/0", "member": member}
    async with client(found.url) as runner:
        runner.api_key = CONTROL
        opened = await runner.post("/episodes", body=body, cast_to=object)
        url = opened["image"]
        rows = [{"role": "system", "content": opened["instructions"]}]
        async with Client(opened["mcp_url"]) as tools, client(opened["base_url"]) as agent:
            for move in ("north", "east", "south"):
                image = {"type": "image_url", "image_url": {"url": url}}
                rows.append({"role": "user", "content": [image]})
                made = await agent.chat.completions.create(model="m", messages=rows)
                rows.append(made.choices[0].message.model_dump(exclude_none=True))
                _, seen = (await tools.call_tool("go", {"direction": move})).content
                url = f"data:{seen.mime_type};base64,{seen.data}"
        end = {"score": float(member), "reward": float(member)}
        await runner.post(f"/episodes/{opened['episode']}/end", body=end, cast_to=object)


def samples_of(trajectory: Trajectory, index: int) -> list[TrainingSample]:
    advantage = 2 * trajectory.episode_return - 1
    advantages_M = np.full(trajectory.num_sampled_tokens, advantage, dtype=np.float32)
    return to_samples(trajectory, advantages_M, index=index, group=0)


async def test_a_program_that_looks_at_pictures_is_trained_on_what_it_saw(tmp_path: Path) -> None:
    model, tokenizer = seeing()
    async with served(model, tokenizer, out=tmp_path, env=open_maze) as found:
        for member in (0, 1):
            await play(found, member)
    played = list(read_trajectories(tmp_path / FILE))
    vision = vision_of(tokenizer)
    assert vision is not None
    vision.pictures = PictureFolder(tmp_path)
    samples = [one for index, t in enumerate(played) for one in samples_of(t, index)]
    assert [int((one.token_ids < 0).sum()) for one in samples] == [3 * PLACES] * 2
    learner = TorchLearner(copy.deepcopy(model), LearnerConfig(lr=1e-3), LossConfig())
    before = learner.logprobs(samples)
    for sample, logprobs in zip(samples, before, strict=True):
        np.testing.assert_allclose(
            logprobs[sample.loss_mask], sample.behaviour_logprobs[sample.loss_mask], atol=1e-5
        )
    assert learner.update(samples)["train/behaviour_gap_max"] < 1e-5
    for sample, old, new in zip(samples, before, learner.logprobs(samples), strict=True):
        assert np.sign((new - old).sum()) == np.sign(sample.advantages[sample.loss_mask][0])
