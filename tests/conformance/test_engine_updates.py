"""What becomes of running requests when weights change: each token is one of those it names.

The reference is a forward pass in torch of the very weights, in float32.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from helpers import models, servers
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.protocol import Generation, Sampling, TrainableEngine

PROMPTS = [[7, 3, 6, 12, 9], [5, 5, 8], [30, 31, 32, 33], [9] * 20]
CONTEXT = 200
LONG = Sampling(max_new_tokens=170)
BEFORE = 20
"""Tokens of each request that the old weights sample, at least or on average."""
WAYS = ("continue", "reread", "abort")
NOT_RUN = pytest.mark.skipif(not servers.VLLM, reason="make proof PART=vllm installs vLLM for it")


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine under test."""

    engine: TrainableEngine
    model: Any
    sampled: Callable[[], Awaitable[float]]
    """How many tokens were sampled where they are sampled, at this moment."""
    probes: int = 1
    """Tokens that a publication samples to measure itself."""
    hold: Callable[[], Awaitable[None]] | None = None
    """Stops the sampling until the update ends: a small model would be through before it comes."""


@asynccontextmanager
async def _local(running: str) -> AsyncIterator[Opened]:
    engine = LocalEngine(models.model(), models.tokenizer(), context=CONTEXT, max_sessions=4)
    yield Opened(engine, models.model(), _counter(engine), probes=0)


@asynccontextmanager
async def _server(running: str) -> AsyncIterator[Opened]:
    with tempfile.TemporaryDirectory() as folder:
        async with servers.policy_server(Path(folder), context=CONTEXT) as (url, behind):
            engine = servers.engine_on([url], folder, context=CONTEXT, running=running)
            try:
                yield Opened(engine, models.model(), _counter(behind), hold=behind.pause)
            finally:
                await engine.close()


def _counter(engine: LocalEngine) -> Callable[[], Awaitable[float]]:
    async def sampled() -> float:
        return engine.stats.sampled_tokens

    return sampled


@asynccontextmanager
async def _vllm(running: str) -> AsyncIterator[Opened]:
    async with (
        servers.engine_on_vllm(context=CONTEXT, running=running) as engine,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        url = engine._fleet.members[0].replica.url

        async def sampled() -> float:
            text = (await client.get(f"{url}/metrics")).text
            found = re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
            return sum(map(float, found))

        yield Opened(engine, servers.wide_model(), sampled)


OPEN = {"local": _local, "server": _server, "vllm": _vllm}
CASES = [("local", "continue"), *product(("server", "vllm"), WAYS)]


@pytest.fixture(
    params=[
        pytest.param(case, marks=[NOT_RUN] if case[0] == "vllm" else [], id="-".join(case))
        for case in CASES
    ]
)
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    name, running = request.param
    async with OPEN[name](running) as made:
        await made.engine.publish(weights(made.model, 0), 0)
        yield made


@pytest.fixture
def running(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["opened"][1])


def weights(model: Any, number: int) -> dict[str, Any]:
    state = model.state_dict()
    return {name: value + 0.02 * number * torch.sin(value * 90) for name, value in state.items()}


def model_of(model: Any, number: int) -> Any:
    made = type(model)(model.config)
    made.load_state_dict(weights(model, number))
    return made.eval()


def logprobs(model: Any, ids: Sequence[int], past: Any = None, start: int = 0) -> Any:
    """Return log-probs of ``ids[start + 1:]``, of which ``past`` holds those before ``start``."""
    with torch.no_grad():
        found = model(input_ids=torch.tensor([ids[start:]]), past_key_values=past, use_cache=True)
    rows = found.logits[0, :-1].log_softmax(-1)
    return rows.gather(-1, torch.tensor(ids[start + 1 :])[:, None])[:, 0].numpy(), found


async def switched(opened: Opened, prompts: Sequence[Sequence[int]]) -> list[Generation]:
    """Sample while the weights change in the middle of it."""
    began = await opened.sampled()
    requests = [
        asyncio.create_task(opened.engine.open(seed).generate(prompt, LONG))
        for seed, prompt in enumerate(prompts)
    ]
    while await opened.sampled() - began < BEFORE * len(prompts):
        await asyncio.sleep(0)
    if opened.hold is not None:
        await opened.hold()
    await opened.engine.publish(weights(opened.model, 1), 1)
    return await asyncio.gather(*requests)


async def test_every_token_is_one_of_the_weights_that_it_names(
    opened: Opened, running: str
) -> None:
    found = await switched(opened, PROMPTS)
    old, new = model_of(opened.model, 0), model_of(opened.model, 1)
    crossed, gap = 0, 0.0
    for prompt, each in zip(PROMPTS, found, strict=True):
        ids, cut = [*prompt, *each.token_ids], each.versions.count(0)
        assert each.versions == (0,) * cut + (1,) * (len(each.versions) - cut)
        crossed += 0 < cut < len(each.versions)
        before, _ = logprobs(old, ids)
        at = len(prompt) - 1
        expected = before[at : at + cut]
        if cut < len(each.versions):
            if running == "continue" and cut:
                # What the old weights read stays, up to the last token that they sampled: that one
                # is read by the new ones.
                start = len(prompt) + cut - 1
                _, read = logprobs(old, ids[:start])
                after, _ = logprobs(new, ids, read.past_key_values, start)
            else:
                after = logprobs(new, ids)[0][at + cut :]
            expected = np.concatenate([expected, after])
        gap = max(gap, float(np.abs(np.array(each.logprobs) - expected).max()))
        np.testing.assert_allclose(each.logprobs, expected, atol=1e-5, rtol=0)
    assert crossed >= 2
    print(f"{running}: {crossed} requests crossed the update, largest difference {gap:.1e}")


async def test_what_an_update_cut_off_is_kept_and_sampled_once(opened: Opened) -> None:
    began = await opened.sampled()
    [found] = await switched(opened, PROMPTS[:1])
    assert len(found.token_ids) == LONG.max_new_tokens or found.finish == "end"
    assert BEFORE <= found.versions.count(0) < len(found.versions)
    sampled = await opened.sampled() - began - opened.probes
    assert sampled == len(found.token_ids), "a token was sampled twice"
