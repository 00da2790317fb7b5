"""The engine on servers, over our own policy server: real tokens through vLLM's wire."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import json
import shutil
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from helpers import credit, critics, models, servers, trajectories
from helpers.fake_server import fake_server, send_json
from turngym.agents.engine.config import TinyModelConfig, VllmEngineConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import add_lora, build_tiny_model
from turngym.agents.engine.protocol import Sampling
from turngym.agents.engine.vllm import fleet, preflight
from turngym.agents.engine.vllm import weights as handover
from turngym.agents.engine.vllm.children import command
from turngym.agents.engine.vllm.engine import VllmEngine
from turngym.agents.engine.vllm.preflight import check
from turngym.agents.engine.vllm.replica import (
    ConnectionLost,
    Replica,
    ReplicaError,
    RequestRefused,
)
from turngym.agents.rendering import Renderer
from turngym.agents.serving.http import BadRequest, serving
from turngym.agents.serving.policy_server import PolicyServer
from turngym.agents.serving.weights import WeightRoutes
from turngym.config import load_config
from turngym.errors import ConfigError, EnginesLost, PolicyFault
from turngym.trainers.credit.controls import build_credit
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.optimizer import adapter_state, own_state

PROMPTS = [[7, 3, 6, 12, 9], [5, 5, 8], [30, 31, 32, 33], [9] * 20]
Open = Callable[..., Awaitable[VllmEngine]]
LONG = Sampling(max_new_tokens=120)
CONTEXT = 200


def weights(number: int) -> dict[str, Any]:
    state = models.model().state_dict()
    return {name: value + 0.02 * number * torch.sin(value * 90) for name, value in state.items()}


def model_of(number: int) -> Any:
    model = type(models.model())(models.model().config)
    model.load_state_dict(weights(number))
    return model.eval()


def logprobs(model: Any, ids: Sequence[int]) -> Any:
    """Return log-probs of ``ids[1:]``."""
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return rows.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[str, LocalEngine]]:
    async with servers.policy_server(tmp_path, context=CONTEXT) as found:
        yield found


@pytest.fixture
async def open_engine(tmp_path: Path) -> AsyncIterator[Open]:
    made: list[VllmEngine] = []

    async def opened(urls: list[str], **settings: Any) -> VllmEngine:
        made.append(servers.engine_on(urls, str(tmp_path), context=CONTEXT, **settings))
        await made[-1].publish(weights(0), 0)
        return made[-1]

    yield opened
    for one in made:
        await one.close()


def loads_nothing(routes: WeightRoutes, before: Mapping[str, Any]) -> None:
    routes._staged = before


def loads_no_head(routes: WeightRoutes, before: Mapping[str, Any]) -> None:
    decoder: Any = routes._engine._decoder  # type: ignore[attr-defined]
    head, publish = decoder._head, decoder.load_weights

    def stale(state: Mapping[str, Any]) -> None:
        publish(state)
        decoder._head = head

    decoder.load_weights = stale


@pytest.mark.parametrize("spoil", [loads_nothing, loads_no_head])
async def test_a_server_that_did_not_load_what_it_says_gets_no_requests(
    tmp_path: Path, open_engine: Open, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., None]
) -> None:
    """Such a server answers 200 to everything and counts the version up."""
    finish, bad = WeightRoutes._finish, []

    async def spoiled(routes: WeightRoutes, request: Any) -> Any:
        if routes in bad:
            spoil(routes, weights(0))
        return await finish(routes, request)

    init = WeightRoutes.__init__

    def note(routes: WeightRoutes, *args: Any, **options: Any) -> None:
        init(routes, *args, **options)
        made.append(routes)

    made: list[WeightRoutes] = []
    monkeypatch.setattr(WeightRoutes, "__init__", note)
    monkeypatch.setattr(WeightRoutes, "_finish", spoiled)
    async with (
        servers.policy_server(tmp_path, context=CONTEXT) as (good_url, good),
        servers.policy_server(tmp_path, context=CONTEXT) as (bad_url, spoilt),
    ):
        engine = await open_engine([good_url, bad_url], patience_s=5.0)
        while engine.metrics()["engine/serving"] < 2:
            await asyncio.sleep(0.01)
        bad.append(made[1])
        await engine.publish(weights(1), 1)
        tokens = spoilt.stats.sampled_tokens
        found = [await engine.open(seed).generate(PROMPTS[0], LONG) for seed in range(4)]
        assert all(set(each.versions) == {1} for each in found)
        probes = engine.metrics()["engine/reloads"] + engine.metrics()["engine/ejected"]
        assert probes >= 1
        assert spoilt.stats.sampled_tokens <= tokens + 20, "it was asked for more than its probe"
        assert good.stats.sampled_tokens > 40
        bad.append(made[0])
        with pytest.raises(EnginesLost, match="not, or not all, loaded"):
            await engine.publish(weights(2), 2)


async def test_a_server_that_was_away_for_longer_than_the_patience_serves_again(
    tmp_path: Path, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model takes longer to be loaded than one waits for the last server."""
    away: list[str] = []
    send = Replica._send

    async def sent(self: Replica, method: str, path: str, *more: Any) -> Any:
        if self.url in away:
            raise ReplicaError("no route")
        return await send(self, method, path, *more)

    monkeypatch.setattr(Replica, "_send", sent)
    monkeypatch.setattr(fleet, "_LOOK_S", 0.01)
    async with (
        asyncio.timeout(60),
        servers.policy_server(tmp_path, context=CONTEXT) as (url, _),
        servers.policy_server(tmp_path, context=CONTEXT) as (other, _),
    ):
        engine = await open_engine([url, other], patience_s=0.1)
        while engine.metrics()["engine/serving"] < 2:
            await asyncio.sleep(0.01)
        away.append(other)
        await engine.publish(weights(1), 1)
        while engine.metrics()["engine/ejected"] < 5:
            await asyncio.sleep(0.01)
        away.clear()
        while engine.metrics()["engine/serving"] < 2:
            await asyncio.sleep(0.01)


async def test_a_server_that_serves_is_asked_for_an_update_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each request waits for a processor on both sides."""
    asked: list[str] = []
    send = Replica._send

    async def noted(self: Replica, method: str, path: str, *more: Any) -> Any:
        asked.append(path.partition("?")[0])
        return await send(self, method, path, *more)

    monkeypatch.setattr(Replica, "_send", noted)
    update = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update"]
    update += ["/resume", "/inference/v1/generate"]
    known = ["/version", "/weight_info", "/v1/models", "/init_weight_transfer_engine"]
    async with servers.engine_on_a_server() as engine:
        for version, wanted in ((1, [*known, *update]), (2, update)):
            await engine.publish(weights(version), version)
            assert asked == wanted
            asked.clear()
        engine.suspect(0, "a request failed")  # then it is looked at
        await engine.publish(weights(3), 3)
        assert asked[: len(known)] == known


async def test_an_update_that_a_killed_run_began_is_ended(
    served: tuple[str, LocalEngine], open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, finish, start = [True], WeightRoutes._finish, WeightRoutes._start

    async def refuses(self: WeightRoutes, request: Any) -> Any:  # as vLLM does
        if began:
            raise BadRequest("called while a weight update is already active", status=500)
        return await start(self, request)

    async def ends(self: WeightRoutes, request: Any) -> Any:
        began.clear()
        return await finish(self, request)

    monkeypatch.setattr(WeightRoutes, "_start", refuses)
    monkeypatch.setattr(WeightRoutes, "_finish", ends)
    engine = await open_engine([served[0]])
    assert engine.metrics()["engine/ejected"] == 0


async def test_a_session_stays_where_its_prefix_is_and_leaves_when_that_server_dies(
    tmp_path: Path, open_engine: Open
) -> None:
    async with servers.policy_server(tmp_path, context=CONTEXT) as (first, one):
        stack = servers.policy_server(tmp_path, context=CONTEXT)
        second, other = await stack.__aenter__()
        engine = await open_engine([first, second])
        while engine.metrics()["engine/serving"] < 2:
            await asyncio.sleep(0.01)
        short = Sampling(max_new_tokens=5)
        sessions = [engine.open(seed) for seed in range(4)]
        for _ in range(3):
            await asyncio.gather(*(each.generate([7, 3], short) for each in sessions))
        assert one.stats.reused_tokens > 0
        assert other.stats.reused_tokens > 0
        read = one.stats.read_tokens + other.stats.read_tokens
        assert read < 4 * 3 * 20, "the prefix was read again"
        requests = [asyncio.create_task(each.generate([9], LONG)) for each in sessions]
        await asyncio.sleep(0.05)
        await stack.__aexit__(None, None, None)
        found = await asyncio.gather(*requests)
        model = model_of(0)
        for session, each in zip(sessions, found, strict=True):
            scored = logprobs(model, session.ids)
            np.testing.assert_allclose(each.logprobs, scored[-len(each.token_ids) :], atol=1e-5)


async def test_a_server_that_came_back_with_a_shorter_context_gets_no_requests(
    tmp_path: Path, open_engine: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        servers.policy_server(tmp_path, context=64) as (short, _),
        servers.policy_server(tmp_path, context=CONTEXT) as (good, _),
    ):
        engine = await open_engine([short, good])
        while "has a context of 64, wanted 200" not in caplog.text:
            await asyncio.sleep(0.01)
        sessions = [engine.open(seed) for seed in range(4)]
        await asyncio.gather(*(one.generate([7] * 100, LONG) for one in sessions))


async def test_a_server_keeps_what_the_conversations_of_a_whole_batch_have_read(
    served: tuple[str, LocalEngine], open_engine: Open
) -> None:
    url, behind = served
    engine = await open_engine([url], max_sessions=80)
    sessions = [engine.open(seed) for seed in range(80)]
    short = Sampling(max_new_tokens=3)
    for _ in range(3):
        await asyncio.gather(*(one.generate([7, 3], short) for one in sessions))
    read = behind.stats.read_tokens
    assert read < 80 * 3 * 3 + 60, "conversations were read again"  # the last token, and a probe


async def test_a_connection_that_closes_under_a_request_takes_no_server_out(
    served: tuple[str, LocalEngine], open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server closes idle connections, perhaps as the next request is on its way over one."""
    engine = await open_engine([served[0]])
    replica = engine._fleet.members[0].replica
    ask, broken = replica._ask, [aiohttp.ServerDisconnectedError()]

    async def breaking(method: str, path: str, body: Any) -> Any:
        if path == "/inference/v1/generate" and broken:
            raise broken.pop()
        return await ask(method, path, body)

    monkeypatch.setattr(replica, "_ask", breaking)
    assert (await engine.open(0).generate(PROMPTS[0], LONG)).token_ids
    assert engine.metrics()["engine/retried_requests"] == 1
    assert engine.metrics()["engine/serving"] == 1
    broken += [aiohttp.ClientOSError(), aiohttp.ClientPayloadError()]
    assert (await engine.open(0).generate(PROMPTS[0], LONG)).token_ids
    assert engine.metrics()["engine/retried_requests"] == 3


def test_requests_that_run_when_a_client_is_closed_leave_no_connection_open() -> None:
    async def close_in_the_middle(after_s: float) -> list[BaseException | Any]:
        async with fake_server(send_json({})) as server:
            replica = Replica(server.url, config())
            waiting = [asyncio.create_task(replica.get("/")) for _ in range(16)]
            await asyncio.sleep(after_s)
            await replica.close()
            return await asyncio.gather(*waiting, replica.get("/"), return_exceptions=True)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for tick in range(20):
            *_, last = asyncio.run(close_in_the_middle(tick / 1000))
            assert isinstance(last, ConnectionLost)
        gc.collect()
    assert not [str(one.message) for one in warned]


async def test_weights_of_another_run_are_not_taken_for_ones_own(
    served: tuple[str, LocalEngine], open_engine: Open
) -> None:
    url, _ = served
    mine = await open_engine([url])
    other = await open_engine([url])
    await other.publish(weights(3), 7)
    session = mine.open(0)
    found = await session.generate(PROMPTS[0], Sampling(max_new_tokens=8))
    assert mine.metrics()["engine/retried_requests"] >= 1
    scored = logprobs(model_of(0), session.ids)
    np.testing.assert_allclose(found.logprobs, scored[len(PROMPTS[0]) - 1 :], atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/update_weights", {"update_info": {"name": "../x"}}, "is not below the folder"),
        ("/update_weights", {"update_info": {"name": "none"}}, "cannot be read"),
        ("/finish_weight_update", {"weight_version": "1"}, "no weights were given"),
        ("/pause?mode=wait", {}, "wanted 'abort' or 'keep'"),
        (
            "/init_weight_transfer_engine",
            {"init_info": {"name": "a", "text": "b"}},
            "does not hold",
        ),
        (
            "/inference/v1/generate",
            {"token_ids": [9999], "sampling_params": {"max_tokens": 1}},
            "0..",
        ),
        (
            "/inference/v1/generate",
            {"token_ids": [1], "sampling_params": {"max_tokens": 1, "min_p": 1}},
            "min_p",
        ),
    ],
)
async def test_what_a_server_refuses_it_says_in_one_line(
    served: tuple[str, LocalEngine], open_engine: Open, path: str, body: Any, said: str
) -> None:
    engine = await open_engine([served[0]])
    with pytest.raises(Exception, match=said.replace(".", r"\.")) as caught:
        await engine._fleet.members[0].replica.post(path, body)
    assert "\n" not in str(caught.value)


async def test_a_server_with_another_model_says_so_of_new_weights(
    tmp_path: Path, open_engine: Open
) -> None:
    other = build_tiny_model(
        TinyModelConfig(hidden=32, layers=1, heads=2), models.tokenizer(), seed=0
    )
    engine = LocalEngine(other, models.tokenizer(), context=CONTEXT)
    served = PolicyServer(engine, Renderer(models.tokenizer()), name="policy", weights=tmp_path)
    async with serving(served.app()) as url:
        with pytest.raises(
            EnginesLost,
            match=r"the weights are those of another model: .*missing, or of another shape",
        ):
            await open_engine([url], patience_s=0.1)


async def test_what_ended_a_server_is_said_beside_what_came_of_it(
    served: tuple[str, LocalEngine], open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine([served[0]], patience_s=0.1)
    causes = iter(["500: a kernel of it broke"])

    async def sent(self: Replica, *asked: Any) -> Any:
        raise ReplicaError(next(causes, "nothing listens"))

    monkeypatch.setattr(Replica, "_send", sent)
    monkeypatch.setattr(fleet, "_LOOK_S", 0.01)
    async with asyncio.timeout(60):
        with pytest.raises(EnginesLost, match="a kernel of it broke; later nothing listens"):
            await engine.open(0).generate([7], LONG)


async def test_a_request_that_is_refused_is_a_fault_of_its_episode(
    served: tuple[str, LocalEngine], open_engine: Open
) -> None:
    engine = await open_engine([served[0]])
    with pytest.raises(PolicyFault, match="token_ids"):
        await engine.open(0).generate([10**6], LONG)
    assert (await engine.open(1).generate([7], LONG)).token_ids


def test_what_a_killed_run_left_in_memory_is_removed_and_what_lives_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_SHARED_MEMORY", tmp_path)
    made = [handover.Handover(config(), models.model(), models.tokenizer()) for _ in range(2)]
    killed, living = made
    assert killed._lock is not None
    killed._lock.close()  # as the kernel does for a process that is killed
    third = handover.Handover(config(), models.model(), models.tokenizer())
    assert sorted(tmp_path.iterdir()) == sorted([living.folder, third.folder])
    living.close()
    third.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_without_room_for_weights_is_named_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**18))
    with pytest.raises(ConfigError, match=r"MiB more are wanted, 0 are free\); name a folder"):
        handover.Handover(config(), models.model(), models.tokenizer())
    assert not list(tmp_path.iterdir())


async def test_weights_wait_for_room_on_a_full_disk(
    served: tuple[str, LocalEngine],
    open_engine: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = await open_engine([served[0]])
    monkeypatch.setattr("turngym.agents.engine.vllm.engine.RETRY_S", 0.01)
    save, tries = handover.save_file, itertools.count()

    def full_twice(tensors: Any, file: str) -> None:
        if next(tries) < 2:
            Path(file).write_bytes(b"half")
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save(tensors, file)

    monkeypatch.setattr(handover, "save_file", full_twice)
    await engine.publish(weights(1), 1)
    assert engine.version == 1
    assert caplog.text.count("is full; the run waits") == 1
    await engine.publish(weights(2), 2)
    assert len(list(engine._handover.folder.glob("weights-*"))) == 2  # and no halves


async def test_weights_that_can_never_be_written_end_the_run_with_its_state(
    served: tuple[str, LocalEngine], open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine([served[0]])
    monkeypatch.setattr(engine._handover, "folder", Path("/nowhere"))
    with pytest.raises(EnginesLost, match="no weights can be written to /nowhere"):
        await engine.publish(weights(1), 1)


async def test_a_score_that_is_refused_takes_no_server_out(
    served: tuple[str, LocalEngine], open_engine: Open
) -> None:
    engine = await open_engine([served[0]])
    with pytest.raises(PolicyFault, match="of a context of"):
        await engine.score([[1] * (CONTEXT + 5)])
    assert engine.metrics()["engine/ejected"] == engine.metrics()["engine/retried_requests"] == 0


def test_vllm_is_started_as_training_needs_it(tmp_path: Path) -> None:
    where = {"context": 512, "port": 8000, "folder": tmp_path}
    line, more = command(config(python="py"), tmp_path / "m", **where)
    assert line[:3] == ["py", "-m", "vllm.entrypoints.openai.api_server"]
    assert line[line.index("--host") + 1] == "127.0.0.1", "anybody could change the weights"
    assert line[line.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert line[line.index("--generation-config") + 1] == "vllm", "a card's top_k would be taken"
    assert "--enable-scale-out" in line
    assert "--no-enable-chunked-prefill" in line, "a seeded request would end the CPU build"
    assert more["VLLM_CPU_KVCACHE_SPACE"], "the CPU build would ask for nearly all of the memory"
    assert more["TORCHDYNAMO_DISABLE"] == "1", "without a compiler its first request would end it"
    assert (Path(more["PYTHONPATH"]) / "turngym_vllm.py").is_file()
    assert more["PYTHONSAFEPATH"] == "1"
    line, more = command(config(gpus=2, dtype="bfloat16"), tmp_path / "m", **where)
    assert line[line.index("--tensor-parallel-size") + 1] == "2"
    assert "head_dtype" in line[line.index("--hf-overrides") + 1]
    assert "--no-enable-chunked-prefill" not in line
    assert not {"VLLM_CPU_KVCACHE_SPACE", "TORCHDYNAMO_DISABLE"} & set(more)


@pytest.mark.extra("peft")
def test_adapters_are_handed_over_as_peft_reads_them(tmp_path: Path) -> None:
    from peft import PeftModel

    given = handover.Handover(
        config(folder=str(tmp_path), adapter_rank=4), models.model(), models.tokenizer()
    )
    adapted = add_lora(copy.deepcopy(models.model()), 4, seed=1)
    for name, weight in own_state(adapted).items():
        weight.add_(0.1 * torch.sin(torch.arange(weight.numel()) * 7.0).view_as(weight))
        assert "lora" in name
    new = given.prepare(adapter_state(adapted), 1)
    read = PeftModel.from_pretrained(copy.deepcopy(models.model()), new.adapters).eval()
    with torch.no_grad():
        logits = [model(torch.tensor([new.probe])).logits for model in (read, models.model())]
    expected, plain = (each[0, -len(new.expected) :].log_softmax(-1).numpy() for each in logits)
    np.testing.assert_allclose(new.expected, expected, atol=1e-5)
    assert np.abs(new.expected - plain).max() > 0.01
    zero = given.prepare(handover.zero_adapters(models.model(), 4), 2)
    np.testing.assert_allclose(zero.expected, plain, atol=1e-5)
    given.prepare(adapter_state(adapted), 3)
    assert not Path(new.adapters).exists()
    given.close()
    assert not list(tmp_path.iterdir())


def test_weights_in_flight_are_a_copy_that_the_learner_does_not_change() -> None:
    given = handover.Handover(
        config(weights="nccl", urls=["http://a"], dtype="bfloat16"),
        models.model(),
        models.tokenizer(),
    )
    state = {name: value.clone() for name, value in models.model().state_dict().items()}
    new = given.prepare(state, 3)
    before = {name: value.to(torch.bfloat16) for name, value in state.items()}
    for value in state.values():
        value.zero_()
    assert new.weights is not None
    assert new.weights.keys() == dict(models.model().named_parameters()).keys()
    for name, value in new.weights.items():
        assert torch.equal(value, before[name])
    assert given.bytes_published == sum(2 * value.numel() for value in new.weights.values())
    assert new.file == ""
    assert new.label.endswith(".3")
    given.close()


def test_servers_take_adapters_of_the_model_alone(tmp_path: Path) -> None:
    where: Any = {"context": 64, "port": 1, "folder": tmp_path}
    line, more = command(config(adapter_rank=12), tmp_path, **where)
    assert line[line.index("--max-lora-rank") + 1] == "16"
    assert more["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    model = {"type": "pretrained", "path": "m", "lora_rank": 8}
    settings: Any = ["demo", {"model": model}, "engine.type=vllm"]
    load_config(TrainConfig, [*settings, "engine.adapter_rank=8"])
    with pytest.raises(ConfigError, match=r"adapter_rank=4 .*got 8 and 1"):
        load_config(TrainConfig, [*settings, "engine.adapter_rank=4"])
    with pytest.raises(ConfigError, match="takes merged weights"):
        load_config(TrainConfig, [*settings, "engine.adapter_rank=8", "engine.server=turngym"])


@pytest.mark.parametrize("temperature", [0.009, 2.1])
def test_temperatures_that_vllm_does_not_sample_at_are_refused(temperature: float) -> None:
    settings = ["demo", "engine.type=vllm", f"rollout.temperature={temperature}"]
    with pytest.raises(ConfigError, match=r"vLLM samples at 0\.01 to 2\.0 alone"):
        load_config(TrainConfig, settings)
    load_config(TrainConfig, [*settings, "engine.server=turngym"])


def test_servers_are_started_for_weights_in_flight(tmp_path: Path) -> None:
    where: Any = {"context": 64, "port": 1, "folder": tmp_path}
    for way in ("files", "nccl", "ipc"):
        line, more = command(config(weights=way, gpus=1), tmp_path, **where)
        backend = json.loads(line[line.index("--weight-transfer-config") + 1])["backend"]
        assert backend == ("turngym_files" if way == "files" else way)
        assert ("VLLM_ALLOW_INSECURE_SERIALIZATION" in more) == (way == "ipc")


async def test_both_ends_of_a_transfer_are_one_release_of_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = {"py": "0.32.0+cu130", sys.executable: ""}
    monkeypatch.setattr(preflight, "_version_at", has.__getitem__)
    wanted: Any = {"weights": "ipc", "gpus": 1, "python": "py"}
    found = await looked(**wanted)
    assert "wanted vllm==0.32.0 beside turngym as at engine.python='py', found none at" in found
    monkeypatch.setattr(preflight.nodes, "connect", lambda setting: None)
    monkeypatch.setattr(preflight.nodes, "alive", lambda ray: [])
    monkeypatch.setattr(preflight.nodes, "check_room", lambda *args, **more: 1)
    far: Any = {"weights": "nccl", "gpus": 1, "resource": "engine", "folder": str(tmp_path)}
    assert "wanted the same vllm beside turngym as at the nodes, found none" in await looked(**far)
    has[sys.executable] = "0.33.1"
    assert "1 servers to start on nodes" in check(config(**far), context=CONTEXT)[0]
    assert "as at engine.python='py', found 0.33.1 at" in await looked(**wanted)
    has[sys.executable] = "0.32.0"
    assert check(config(**wanted), context=CONTEXT) == ["vLLM 0.32.0+cu130, 1 to start"]


async def test_our_own_server_takes_weights_from_files_alone(tmp_path: Path) -> None:
    async with servers.policy_server(tmp_path, context=CONTEXT) as (url, _):
        found = await looked(urls=[url], weights="nccl")
        assert "takes no weights by NCCL" in found
        assert "takes weights from files alone" in found
        assert "set engine.weights=files" in found


async def test_a_server_of_weights_by_nccl_complains_of_an_empty_greeting_and_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "_version_at", lambda python: "0.32.0")
    answers = {
        "/version": {"version": "0.32.0"},
        "/weight_info": {"weight_version": "default"},
        "/v1/models": {"data": [{"id": "policy", "max_model_len": CONTEXT}]},
        "/tokenize": {"tokens": [1]},
    }

    async def post(self: Replica, path: str, body: Any = None) -> Any:
        if path == "/inference/v1/generate":
            raise RequestRefused("no tokens")
        if path == "/init_weight_transfer_engine":
            raise ReplicaError("Invalid init_info for NCCLWeightTransferEngine: missing")
        return answers[path]

    async def get(self: Replica, path: str) -> Any:
        return answers[path]

    monkeypatch.setattr(Replica, "post", post)
    monkeypatch.setattr(Replica, "get", get)
    wanted: Any = {"weights": "nccl", "urls": ["http://127.0.0.1:9"]}
    found = await asyncio.to_thread(check, config(**wanted), context=CONTEXT)
    assert found == [f"http://127.0.0.1:9: 0.32.0, policy, {CONTEXT}"]
    answers["/version"] = {"version": "0.32.1"}
    found_line = await looked(**wanted)
    assert "wanted vllm==0.32.1 beside turngym as at http://127.0.0.1:9, found 0.32.0" in found_line


async def test_a_vllm_that_was_started_otherwise_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"logprobs_mode": "raw_logprobs", "dtype": "torch.bfloat16"}
    how: dict[str, Any] = {"model_config": model, "lora_config": None}
    get = Replica.get

    async def answered(self: Replica, path: str) -> Any:
        return {"vllm_config": how} if path.startswith("/server_info") else await get(self, path)

    monkeypatch.setattr(Replica, "get", answered)
    async with servers.policy_server(tmp_path, context=CONTEXT) as (url, _):
        wanted: dict[str, Any] = {"urls": [url], "folder": str(tmp_path)}
        assert "wanted --logprobs-mode processed_logprobs" in await looked(**wanted)
        model["logprobs_mode"] = "processed_logprobs"
        assert "computes in torch.bfloat16: wanted engine.dtype=float32" in await looked(**wanted)
        model["dtype"] = "torch.float32"
        await asyncio.to_thread(check, config(**wanted), context=CONTEXT)
        assert "rank 0 at most" in await looked(**wanted, adapter_rank=4)
        how["lora_config"] = {"max_lora_rank": 8}
        await asyncio.to_thread(check, config(**wanted, adapter_rank=8), context=CONTEXT)
        assert "no whole weights: wanted engine.adapter_rank=0" in await looked(**wanted)
        assert "takes adapters of rank 8 at most" in await looked(**wanted, adapter_rank=16)


def test_ports_of_several_servers_end_where_ports_end() -> None:
    with pytest.raises(ValueError, match="port=65535 with replicas=2: 65536 is no port"):
        config(port=65535, replicas=2)


def config(**settings: Any) -> VllmEngineConfig:
    return VllmEngineConfig.model_validate({"type": "vllm", **settings}, strict=False)


async def looked(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        await asyncio.to_thread(check, config(**settings), context=CONTEXT)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_servers_that_will_not_do_are_named_before_anything_starts(tmp_path: Path) -> None:
    folder, other = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    other.mkdir()
    async with (
        servers.policy_server(folder, context=CONTEXT) as (good, _),
        servers.policy_server(folder, context=64) as (small, _),
        servers.policy_server(folder, context=CONTEXT, name="another") as (another, _),
        servers.policy_server(other, context=CONTEXT) as (elsewhere, _),
    ):
        assert "there is no such folder" in await looked(urls=[good], folder=str(tmp_path / "c"))
        assert "context of 64 tokens" in await looked(urls=[good, small], folder=str(folder))
        assert "all must have one model" in await looked(urls=[good, another], folder=str(folder))
        assert "does not see" in await looked(urls=[good, elsewhere], folder=str(folder))
        nobody = "http://127.0.0.1:9"
        assert f"{nobody}/version" in await looked(urls=[nobody], folder=str(folder))
        port = int(good.rpartition(":")[2])
        assert f"{port} is taken" in await looked(server="turngym", port=port)
        assert "has no vLLM" in await looked()
        assert "cannot be written to" in await looked(server="turngym", folder="/proc")
        assert "is no Python that runs" in await looked(python="/nowhere/python")
        found = await asyncio.to_thread(
            check, config(urls=[good], folder=str(folder)), context=CONTEXT
        )
        assert len(found) == 1
        assert "policy" in found[0]


@pytest.mark.skipif(not servers.VLLM, reason="make proof PART=vllm installs vLLM for it")
async def test_a_teacher_on_vllm_says_what_it_says_here() -> None:
    url, folder = await asyncio.to_thread(servers.vllm_server)
    turns = [trajectories.turn(prompt=(7, 3, 6), drawn=(12, 9)), trajectories.turn(prompt=(5,))]
    played = trajectories.group(trajectories.episode(turns), [0.0, 0.0])
    served = {"server": {"model": "policy", "base_url": f"{url}/v1"}}
    found = []
    for teacher in ({"model": f"{folder}/model"}, served):
        settings = {**credit.algo("opd").model_dump(), "teacher": teacher}
        made = build_credit(AlgoConfig.model_validate(settings), critics.context())
        found.append((await made.assign([played])).samples)
    for here, there in zip(*found, strict=True):
        np.testing.assert_allclose(here.advantages, there.advantages, atol=1e-4)
    assert min(np.abs(sample.advantages).max() for sample in found[0]) > 0.1
