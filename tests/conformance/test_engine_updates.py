"""What becomes of running requests when weights change: each token is one of those it names.

The reference is a forward pass in torch of the very weights, in float32.
"""

from __future__ import annotations

import asyncio
import copy
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from helpers import flight, models, servers
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import add_lora
from turngym.agents.engine.protocol import Generation, Sampling, TrainableEngine
from turngym.trainers.update.optimizer import adapter_state, own_state

PROMPTS = [[7, 3, 6, 12, 9], [5, 5, 8], [30, 31, 32, 33], [9] * 20]
CONTEXT = 200
LONG = Sampling(max_new_tokens=170)
ON_VLLM = 1000
"""Its context: requests must still run when an update comes that nothing waits for."""
RANK = 8
BEFORE = 20
"""Tokens of each request that the old weights sample, at least or on average."""
TRIES = 30
WAYS = ("continue", "reread", "abort")
NOT_RUN = pytest.mark.skipif(not servers.VLLM, reason="make proof PART=vllm installs vLLM for it")
LATER = {"vllm": NOT_RUN, "vllm_adapters": NOT_RUN, "vllm_in_flight": flight.NOT_RUN}


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine under test."""

    engine: TrainableEngine
    weights: Callable[[int], Mapping[str, Any]]
    """What is published, others for each number."""
    model: Callable[[int], Any]
    """The same as a model of torch."""
    sampled: Callable[[], Awaitable[float]]
    """How many tokens were sampled where they are sampled, at this moment."""
    probes: int = 1
    """Tokens that a publication samples to measure itself."""
    hold: Callable[[], Awaitable[object]] | None = None
    """Stops the sampling until the update ends: a small model would be through before it comes."""
    sampling: Sampling = LONG


@asynccontextmanager
async def _local(running: str) -> AsyncIterator[Opened]:
    engine = LocalEngine(models.model(), models.tokenizer(), context=CONTEXT, max_sessions=4)
    yield Opened(engine, *plain(models.model()), _counter(engine), probes=0)


@asynccontextmanager
async def _server(running: str) -> AsyncIterator[Opened]:
    with tempfile.TemporaryDirectory() as folder:
        async with servers.policy_server(Path(folder), context=CONTEXT) as (url, behind):
            engine = servers.engine_on([url], folder, context=CONTEXT, running=running)
            try:
                yield Opened(engine, *plain(models.model()), _counter(behind), hold=behind.pause)
            finally:
                await engine.close()


def _counter(engine: LocalEngine) -> Callable[[], Awaitable[float]]:
    async def sampled() -> float:
        return engine.stats.sampled_tokens

    return sampled


@asynccontextmanager
async def _vllm(running: str, rank: int = 0, *, in_flight: bool = False) -> AsyncIterator[Opened]:
    settings: dict[str, Any] = {"running": running, "adapter_rank": rank}
    on_vllm = flight.engine_on_vllm if in_flight else servers.engine_on_vllm
    async with (
        on_vllm(context=ON_VLLM, max_sessions=8, **settings) as engine,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        url = engine._fleet.members[0].replica.url

        async def sampled() -> float:
            text = (await client.get(f"{url}/metrics")).text
            found = re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
            return sum(map(float, found))

        hold = partial(client.post, f"{url}/pause?mode=keep&clear_cache=false")
        yield Opened(
            engine,
            *(adapted(servers.wide_model(), rank) if rank else plain(servers.wide_model())),
            sampled,
            probes=8 if rank else 1,
            hold=None if rank else hold,
            sampling=Sampling(max_new_tokens=900),
        )


OPEN = {
    "local": _local,
    "server": _server,
    "vllm": _vllm,
    "vllm_adapters": partial(_vllm, rank=RANK),
    "vllm_in_flight": partial(_vllm, in_flight=True),
}
CASES = [("local", "continue"), *product(("server", "vllm"), WAYS)]
CASES += [("vllm_adapters", running) for running in ("reread", "abort")]
CASES += [("vllm_in_flight", running) for running in WAYS]


@pytest.fixture(
    params=[pytest.param(case, marks=LATER.get(case[0], []), id="-".join(case)) for case in CASES]
)
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    name, running = request.param
    async with OPEN[name](running) as made:
        await made.engine.publish(made.weights(0), 0)
        yield made


@pytest.fixture
def running(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["opened"][1])


Numbered = tuple[Callable[[int], Mapping[str, Any]], Callable[[int], Any]]


def plain(model: Any) -> Numbered:
    """Return state dicts that are all unlike, and their models."""

    def weights(number: int) -> dict[str, Any]:
        state = model.state_dict()
        return {n: value + 0.02 * number * torch.sin(value * 90) for n, value in state.items()}

    def model_of(number: int) -> Any:
        made = type(model)(model.config)
        made.load_state_dict(weights(number))
        return made.eval()

    return weights, model_of


def adapted(model: Any, rank: int) -> Numbered:
    """Return adapters that are all unlike, and the model with them, as ``peft`` computes it."""

    @cache
    def model_of(number: int) -> Any:
        made = add_lora(copy.deepcopy(model), rank, seed=number)
        generator = torch.Generator().manual_seed(number)
        for name, weight in own_state(made).items():
            if "lora_B" in name:
                weight.copy_(0.05 * torch.randn(weight.shape, generator=generator))
        return made.eval()

    return lambda number: adapter_state(model_of(number)), model_of


def logprobs(model: Any, ids: Sequence[int], past: Any = None, start: int = 0) -> Any:
    """Return log-probs of ``ids[start + 1:]``, of which ``past`` holds those before ``start``."""
    with torch.no_grad():  # the fourth argument has another name from transformers 5.24 on
        logits, past = model(torch.tensor([ids[start:]]), None, None, past, use_cache=True)[:2]
    rows = logits[0, :-1].log_softmax(-1)
    return rows.gather(-1, torch.tensor(ids[start + 1 :])[:, None])[:, 0].numpy(), past


async def switched(opened: Opened, crossing: int = 2) -> tuple[list[Generation], float]:
    """Sample while the weights change; return what came, and how much the server sampled.

    On a busy machine most requests may be through before: then it is done again.
    """
    for _ in range(TRIES):
        began = await opened.sampled()
        sessions = [opened.engine.open(seed) for seed in range(len(PROMPTS))]
        requests = [
            asyncio.create_task(session.generate(prompt, opened.sampling))
            for session, prompt in zip(sessions, PROMPTS, strict=True)
        ]
        while await opened.sampled() - began < BEFORE * len(PROMPTS):
            await asyncio.sleep(0)
        if opened.hold is not None:
            await opened.hold()
        await opened.engine.publish(opened.weights(1), 1)
        found = await asyncio.gather(*requests)
        sampled = await opened.sampled() - began - opened.probes
        if sum(0 < each.versions.count(0) < len(each.versions) for each in found) >= crossing:
            break
        for session in sessions:
            if (closing := session.close()) is not None:
                await closing
        await opened.engine.publish(opened.weights(0), 0)
    return found, sampled


async def test_every_token_is_one_of_the_weights_that_it_names(
    opened: Opened, running: str
) -> None:
    found, _ = await switched(opened)
    old, new = opened.model(0), opened.model(1)
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
                _, past = logprobs(old, ids[:start])
                after, _ = logprobs(new, ids, past, start)
            else:
                after = logprobs(new, ids)[0][at + cut :]
            expected = np.concatenate([expected, after])
        gap = max(gap, float(np.abs(np.array(each.logprobs) - expected).max()))
        np.testing.assert_allclose(each.logprobs, expected, atol=1e-5, rtol=0)
    assert crossed >= 2
    print(f"{running}: {crossed} requests crossed the update, largest difference {gap:.1e}")


async def test_what_an_update_cut_off_is_kept_and_sampled_once(opened: Opened) -> None:
    found, sampled = await switched(opened)
    longest = opened.sampling.max_new_tokens
    assert all(len(each.token_ids) == longest or each.finish == "end" for each in found)
    assert any(0 < each.versions.count(0) < len(each.versions) for each in found)
    assert sampled == sum(len(each.token_ids) for each in found), "a token was sampled twice"


@NOT_RUN
async def test_a_request_may_end_with_the_adapters_that_it_began_with() -> None:
    async with _vllm("continue", RANK) as opened:
        await opened.engine.publish(opened.weights(0), 0)
        began, _ = await switched(opened, crossing=0)
        assert {version for each in began for version in each.versions} == {0}
        later = await opened.engine.open(9).generate(PROMPTS[0], LONG)
        assert set(later.versions) == {1}
        for number, each in enumerate((began[0], later)):
            expected, _ = logprobs(opened.model(number), [*PROMPTS[0], *each.token_ids])
            cut = len(PROMPTS[0]) - 1
            np.testing.assert_allclose(each.logprobs, expected[cut:], atol=1e-5, rtol=0)
