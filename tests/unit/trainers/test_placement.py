"""What a run puts where, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import models
from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.models import add_lora, build_tiny_model, empty_model
from turngym.agents.engine.vllm.children import command
from turngym.cli.main import main
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.nodes import Node
from turngym.trainers.runs.build_run import check_devices
from turngym.trainers.runs.placement import (
    COORDINATOR,
    GIB,
    MAIN,
    Plan,
    Shape,
    plan_nodes,
    plan_run,
)
from turngym.trainers.settings.optimizer import ComputeConfig
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.compute import computing, place

TINY = TinyModelConfig(hidden=96, layers=3, heads=3, vocab_size=300, context=64)
SERVERS = {"type": "vllm", "replicas": 2, "gpus": 1}


def planned(*sources: Any, gpus: int = 0, names: Sequence[str] = ()) -> Plan:
    config = load_config(TrainConfig, ["demo", *sources])
    return plan_run(config, gpus=[80 * GIB] * gpus, names=names)


def test_an_empty_model_has_the_shape_of_the_real_one() -> None:
    tokenizer = models.tokenizer()
    config = TINY.model_copy(update={"vocab_size": len(tokenizer)})
    real = build_tiny_model(config, tokenizer, seed=0)
    shape = Shape.of(config)
    assert shape.weights == shape.trained == sum(w.numel() for w in real.parameters())
    assert all(weight.is_meta for weight in empty_model(config).parameters())
    assert shape.cached == 2 * 96


@pytest.mark.extra("peft")
def test_adapters_are_counted_as_they_are_made(tmp_path: Path) -> None:
    adapted: Any = add_lora(build_tiny_model(TINY, models.tokenizer(), seed=0), 4, seed=0)
    own = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    build_tiny_model(TINY, models.tokenizer(), seed=0).save_pretrained(str(tmp_path))
    model = {"type": "pretrained", "path": str(tmp_path), "lora_rank": 4, "context": 64}
    learner = planned({"model": model}).parts[0]
    assert learner.gradients == 4 * own
    assert learner.moments == 8 * own
    with pytest.raises(ConfigError, match="context=999 is more than the model's 64"):
        planned({"model": {**model, "context": 999}})


def test_what_ranks_offload_is_in_main_memory() -> None:
    ranks = ["learner.ranks=2", "learner.device=cuda"]
    before, after = (
        planned(*ranks, *more, gpus=2).parts for more in ([], ["learner.offload=true"])
    )
    assert after[0].device == MAIN
    assert after[0].moments == before[0].moments > 0
    assert (after[1].device, after[1].total) == ("cuda:0", before[0].activations)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_estimate_of_activations_is_near_what_a_forward_pass_keeps(recompute: bool) -> None:
    model: Any = build_tiny_model(TINY, models.tokenizer(), seed=0)
    place(model, ComputeConfig(recompute=recompute))
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.zeros((4, 64), dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        computing(model.model),
    ):
        hidden = model.model(ids, use_cache=False).last_hidden_state
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    measured = sum(size for address, size in kept.items() if address not in own)
    assert hidden.requires_grad

    def estimate(layers: int, *, recompute: bool) -> int:
        shape = replace(Shape.of(TINY), layers=layers, vocabulary=0)
        return shape.activations(ids.numel(), dtype="float32", recompute=recompute)

    one_layer = estimate(1, recompute=False) - estimate(0, recompute=False)
    measured += recompute * one_layer  # the one that is computed again for its gradient
    assert estimate(3, recompute=recompute) == pytest.approx(measured, rel=0.1)


def test_the_demo_needs_main_memory_alone() -> None:
    found = planned()
    learner, engine = found.parts
    assert {part.device for part in found.parts} == {MAIN}
    assert (learner.name, engine.name) == ("learner", "local engine")
    assert learner.moments == 2 * learner.gradients == 2 * learner.weights
    assert engine.cache == 128 * 512 * 3 * 2 * 96 * 4
    assert any("not known" in note for note in found.notes)


def test_ranks_come_first_and_servers_have_the_gpus_behind_them() -> None:
    found = planned({"engine": SERVERS}, "learner.ranks=2", gpus=4)
    assert [part.device for part in found.parts] == ["cuda:0", "cuda:1", MAIN, "cuda:2", "cuda:3"]
    alone = planned(gpus=1)
    assert found.parts[0].moments == alone.parts[0].moments // 2
    assert found.parts[3].total == int(0.85 * 80 * GIB)


def test_processes_that_play_are_in_main_memory() -> None:
    split = ["rollout.mode=overlap", "algo=decoupled_ppo", "rollout.coordinators=2"]
    one, several = (
        planned({"engine": SERVERS}, *split[: len(split) - 1 + more], gpus=3) for more in (0, 1)
    )
    assert several.parts[:-2] == one.parts
    assert [part.name for part in several.parts[-2:]] == ["coordinator 0", "coordinator 1"]
    assert {(part.device, part.total) for part in several.parts[-2:]} == {(MAIN, COORDINATOR)}


def test_servers_see_the_gpus_that_the_plan_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(TrainConfig, ["demo", {"engine": SERVERS}, "learner.ranks=2"])
    engine: Any = config.placed_engine
    where: Any = {"context": 64, "port": 1, "folder": tmp_path, "number": 1}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert command(engine, tmp_path, **where)[1]["CUDA_VISIBLE_DEVICES"] == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert command(engine, tmp_path, **where)[1]["CUDA_VISIBLE_DEVICES"] == "7"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    with pytest.raises(ConfigError, match="wanted GPU 3, CUDA_VISIBLE_DEVICES names 3"):
        command(engine, tmp_path, **where)


@pytest.mark.parametrize(
    ("settings", "gpus", "gib", "said"),
    [
        (["learner.ranks=8"], 2, 80, "learner.ranks: wanted 8 GPUs, found 2"),
        ([{"engine": SERVERS | {"replicas": 4}}], 2, 80, "engine.gpus: wanted 5 GPUs, found 2"),
        (
            [{"engine": SERVERS}, "engine.first_gpu=0", "engine.gpu_memory=1"],
            2,
            1,
            "cuda:0: has 1 GiB, wanted 1.48 (learner 0.484, server 0 1), most of it cache: lower "
            "rollout.concurrency, model.context or engine.gpu_memory",
        ),
        (
            ["learner.ranks=9999"],
            0,
            0,
            "(9999 times learner, rank 0.479, whole policy of rank 0 0.00136, local engine 0.142), "
            "most of it activations: lower learner.microbatch_tokens, or set "
            "learner.recompute=true, or lower learner.ranks",
        ),
        (
            ["learner.microbatch_tokens=1000000"],
            1,
            20,
            "most of it activations: lower learner.microbatch_tokens, or set learner.recompute",
        ),
        (
            [
                "model.hidden=4096",
                "model.heads=32",
                "model.layers=50",
                "engine.type=vllm",
                "engine.server=turngym",
                "learner.microbatch_tokens=512",
            ],
            1,
            80,
            "most of it moments: raise learner.ranks, or set model.lora_rank",
        ),
        (
            [{"engine": SERVERS}, "engine.gpu_memory=0.001"],
            3,
            1,
            "it leaves no room for one conversation",
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_what_to_change(
    settings: list[Any], gpus: int, gib: float, said: str
) -> None:
    config = load_config(TrainConfig, ["demo", *settings])
    with pytest.raises(ConfigError) as caught:
        plan_run(config, gpus=[int(gib * GIB)] * gpus)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_limits_of_a_known_gpu_are_named() -> None:
    settings = ["learner.dtype=bfloat16", "engine.dtype=bfloat16"]
    [_, speed] = planned(*settings, gpus=1, names=["NVIDIA H200"]).notes
    assert speed.startswith("tokens a second: at most")
    assert "nothing is measured yet" in speed
    [_, unknown] = planned(*settings, gpus=1, names=["Another"]).notes
    assert "not known" in unknown


NODES = [
    Node(name="a", resources={"GPU": 2}),
    Node(name="b", resources={"GPU": 4, "engine": 4}),
    Node(name="c", resources={"environments": 2}),
]
FAR = {
    "engine": {"type": "vllm", "gpus": 2, "replicas": 2, "resource": "engine", "folder": "/shared"},
    "rollout": {"isolation": "ray"},
}


def on_nodes(*sources: Any, nodes: Sequence[Node] = NODES) -> dict[str, list[tuple[str, str]]]:
    config = load_config(TrainConfig, ["demo", FAR, *sources])
    plans = plan_nodes(config, nodes, gpu=80 * GIB)
    return {node.name: [(p.name, p.device) for p in plan.parts] for node, plan in plans}


def test_each_part_goes_to_a_node_with_its_label() -> None:
    found = on_nodes("learner.ranks=2", "learner.device=cuda")
    assert found["a"][:2] == [("learner, rank 0", "cuda:0"), ("learner, rank 1", "cuda:1")]
    assert found["b"] == [(f"server {n // 2}", f"cuda:{n}") for n in range(4)]
    assert found["c"] == [("environments 0", MAIN), ("environments 1", MAIN)]


@pytest.mark.parametrize("nodes", ["GPU", "GPU=x", "GPU=-1", "GPU=nan", "=inf", "GPU=8,GPU=2"])
def test_nodes_that_cannot_be_are_one_line(nodes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "demo", "--dry-run", "--nodes", nodes]) == 2
    assert "wanted NAME=AMOUNT" in capsys.readouterr().err


def test_parts_are_spread_over_nodes() -> None:
    twins = [NODES[0], *(replace(NODES[1], name=name) for name in "bd"), NODES[2]]
    found = on_nodes(nodes=twins)
    assert [len(found[name]) for name in "bd"] == [2, 2]
    assert {name for name, _ in found["b"]} != {name for name, _ in found["d"]}


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["engine.replicas=3"], r"engine.resource: wants 3 with 1 'engine' and 2 'GPU' each, .*2:"),
        (
            ["rollout.workers.number=3"],
            r"rollout.workers: wants 3 .* have room for 2: .*resources=",
        ),
        (["rollout.workers.resource=none"], r"wants at least 1 with 1 'none' each"),
        (["learner.ranks=3", "learner.device=cuda"], "learner.ranks: wanted 3 GPUs, found 2"),
        (["engine.gpu_memory=1e-5"], r"engine.gpu_memory=1e-05: .* leaves no room"),
    ],
)
def test_what_has_no_room_on_nodes_is_one_line(sources: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        on_nodes(*sources)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("weights=nccl", "wanted gpus of 1 or more"),
        ("weights=nccl gpus=1 first_gpu=0", "cannot send to the GPU that it sends from"),
        ("weights=nccl gpus=1 adapter_rank=8", "adapters travel as files"),
        ("weights=nccl server=turngym", "reads weights from files"),
        ("weights=ipc", "shares the learner's GPU with one server"),
        ("weights=ipc gpus=1 replicas=2", "shares the learner's GPU with one server"),
        ('urls=["a:1"] folder=/x', "urls: wanted http:// before each"),
        ('weights=ipc gpus=1 urls=["http://a:1"]', "no urls, no resource"),
        ("weights=ipc gpus=1 resource=engine folder=/x", "no urls, no resource"),
        ("weights=ipc gpus=1 first_gpu=1", "wanted learner.ranks=1 and engine.first_gpu=0"),
    ],
)
def test_weights_that_could_not_travel_are_refused_in_one_line(settings: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        planned("engine.type=vllm", *(f"engine.{one}" for one in settings.split()), gpus=4)
    assert "\n" not in str(caught.value)


def test_weights_in_flight_start_at_a_gpu_of_one_learner_or_of_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = ["engine.type=vllm", "engine.gpus=1"]
    with pytest.raises(ConfigError, match="sends from a GPU"):
        planned(*served, "engine.weights=nccl", "learner.device=cpu", gpus=4)
    with pytest.raises(ConfigError, match="got 2 and 0; 'nccl' reaches others"):
        planned(*served, "engine.weights=ipc", "learner.ranks=2", gpus=4)
    config = load_config(TrainConfig, ["demo", *served, "engine.weights=nccl", "engine.replicas=3"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError, match=r"wanted 4 GPUs here, .* finds 3"):
        check_devices(config, Path("runs"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"engine.weights='nccl': .* finds none") as caught:
        check_devices(config, Path("runs"))
    assert "\n" not in str(caught.value)


def test_the_plan_says_how_weights_travel_and_what_is_kept_for_it() -> None:
    def sent(*settings: str) -> tuple[str, dict[str, int]]:
        plan = planned("engine.type=vllm", "engine.gpus=1", *settings, gpus=4)
        [note] = [note for note in plan.notes if note.startswith("weights (")]
        parts = [part for part in plan.parts if part.name == "weights to send"]
        return note, {part.device: part.total for part in parts}

    weights = Shape.of(load_config(TrainConfig, ["demo"]).model).weights
    note, kept = sent()
    assert note == "weights (files): the learner writes them to memory, servers read them there"
    assert not kept
    note, kept = sent("engine.weights=ipc")
    assert "CUDA IPC" in note
    assert kept == {"cuda:0": 3 * 4 * weights}  # two copies, and buffers for one more
    note, kept = sent("engine.weights=nccl", "learner.ranks=2", "engine.dtype=bfloat16")
    assert note.startswith("weights (nccl): rank 0 sends them")
    assert kept == {MAIN: 2 * 2 * weights, "cuda:0": 2 * weights}
    assert not [note for note in planned().notes if note.startswith("weights (")]


@pytest.mark.parametrize("command", [["plan"], ["launch", "--dry-run"]])
def test_a_run_that_could_not_begin_is_not_planned(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "demo", "env.id=text/mze"]) == 2
    shown = capsys.readouterr()
    assert shown == ("", "error: unknown environment 'text/mze'. Did you mean 'text/maze'?\n")


def test_memory_of_no_gpus_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "demo", "--gpu-gib", "40"]) == 2
    assert "--gpu-gib is of the GPUs to plan for: wanted --gpus" in capsys.readouterr().err
