"""What goes where, and how much memory it takes: computed from settings, nothing is started.

Weights, gradients, moments and caches follow from shapes. Activations are an estimate for
transformers with gated layers; models that a credit method has of its own are not counted.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from turngym.agents.engine.config import (
    LocalEngineConfig,
    ModelConfig,
    PretrainedModelConfig,
    VllmEngineConfig,
)
from turngym.agents.engine.models import empty_model
from turngym.agents.engine.vllm.children import CPU_CACHE, CPU_CACHE_GIB, SETTING, needed
from turngym.errors import ConfigError
from turngym.nodes import GPU, Node, check_room
from turngym.trainers.settings.loss import needs_reference
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.forward import CHUNK_LOGITS

GIB = 2**30
MAIN = "main memory"
_BYTES = {"float32": 4, "bfloat16": 2}
_LOGIT_COPIES = 4
_SENT = "weights to send"
COORDINATOR = 120 * 2**20
"""One process that plays, before its episodes: measured, see ``docs/scheduler.md``."""
_BUFFERS = {"nccl": 2 * GIB, "ipc": GIB}
"""What vLLM packs weights into, here and at a server."""
_LIMITS = {"H200": (4.3e12, 790e12)}
"""By a part of a GPU's name: bytes a second that it reads, operations in bfloat16 a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the memory of a model depends on."""

    weights: int
    trained: int
    """Of ``weights``, or the weights of its adapters."""
    layers: int
    hidden: int
    inner: int
    """Width of the gated layers."""
    cached: int
    """Numbers of one token in the cache of one layer: keys and values."""
    vocabulary: int

    @classmethod
    def of(cls, config: ModelConfig) -> Shape:
        """Return the shape of a model.

        Raises:
            ConfigError: There is no such model.
        """
        model = empty_model(config)
        found: Any = model.config.get_text_config()
        heads = found.num_attention_heads
        width = getattr(found, "head_dim", None) or found.hidden_size // heads
        weights = sum(weight.numel() for weight in model.parameters())
        rank = config.lora_rank if isinstance(config, PretrainedModelConfig) else 0
        adapters = sum(
            rank * (module.in_features + module.out_features)
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and not name.endswith("lm_head")
        )
        return cls(
            weights=weights + adapters,
            trained=adapters or weights,
            layers=found.num_hidden_layers,
            hidden=found.hidden_size,
            inner=found.intermediate_size,
            cached=2 * (getattr(found, "num_key_value_heads", None) or heads) * width,
            vocabulary=found.vocab_size,
        )

    def activations(self, tokens: int, *, dtype: str, recompute: bool) -> int:
        """Return about how many bytes a forward pass keeps for its gradient.

        A layer keeps what its two norms read and made of it, queries, keys and values, what
        attention returned, and four times the width of the gated part. Attention itself keeps
        nothing of the size of tokens times tokens.
        """
        size = _BYTES[dtype]
        layer = 4 * 4 * self.hidden + size * (5 * self.hidden + self.cached + 4 * self.inner)
        kept = layer + self.layers * 4 * self.hidden if recompute else self.layers * layer
        logits = _LOGIT_COPIES * 4 * min(CHUNK_LOGITS, tokens * self.vocabulary)
        return tokens * (kept + 3 * 4 * self.hidden) + logits

    def cache(self, tokens: int, *, dtype: str) -> int:
        """Return the bytes of the keys and values of ``tokens``."""
        return tokens * self.layers * self.cached * _BYTES[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part of a run takes on one device, in bytes."""

    name: str
    device: str
    weights: int = 0
    gradients: int = 0
    moments: int = 0
    activations: int = 0
    """An estimate."""
    cache: int = 0
    program: int = 0
    """Of a process that has no model."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, one.name) for one in fields(self)[2:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts of a run, and what else is to be said of it."""

    parts: tuple[Part, ...]
    devices: Mapping[str, int]
    """Bytes of memory, by the name of a device."""
    notes: tuple[str, ...]


def plan_run(config: TrainConfig, *, gpus: Sequence[int], names: Sequence[str] = ()) -> Plan:
    """Return what goes where.

    Args:
        config: The settings.
        gpus: Bytes of each GPU.
        names: What the GPUs are called.

    Raises:
        ConfigError: A part has no device, or a device is too small; one line.
    """
    shape = Shape.of(config.model)
    devices = {f"cuda:{number}": size for number, size in enumerate(gpus)}
    devices[MAIN] = _main_memory()
    parts = [*_learner(config, shape, len(gpus)), *_engine(config, shape, devices)]
    if (count := config.rollout.coordinators) > 1:
        parts += [
            Part(name=f"coordinator {number}", device=MAIN, program=COORDINATOR)
            for number in range(count)
        ]
    _check(parts, devices)
    notes = ["activations are an estimate; models of a credit method's own are not counted"]
    notes += _travel(config)
    notes.append(_speed(config, shape, names))
    return Plan(parts=tuple(parts), devices=devices, notes=tuple(notes))


def _travel(config: TrainConfig) -> list[str]:
    """Return how weights get to servers; nothing where there are none."""
    engine = config.placed_engine
    if not isinstance(engine, VllmEngineConfig):
        return []
    sender = "rank 0" if config.learner.ranks > 1 else "the learner"
    ways = {
        "files": f"{sender} writes them to {engine.folder or 'memory'}, servers read them there",
        "nccl": f"{sender} sends them to each server by vLLM's NCCL transfer",
        "ipc": f"{sender} shares them with the server on its GPU by vLLM's CUDA IPC transfer",
    }
    return [f"weights ({engine.weights}): {ways[engine.weights]}"]


def plan_nodes(
    config: TrainConfig, found: Sequence[Node], *, gpu: int, here: int = 0
) -> list[tuple[Node, Plan]]:
    """Return what goes where on several nodes: the learner to the first, the rest by labels.

    Args:
        config: The settings.
        found: The nodes.
        gpu: Bytes of each of their GPUs.
        here: GPUs of the first node, where Ray may know of fewer.

    Raises:
        ConfigError: A node is too small, or there is no room for something; one line.
    """
    engine, rollout, nodes = config.engine, config.rollout, list(found)
    gpus = [int(node.resources.get(GPU, 0)) for node in nodes]
    gpus[0] = max(gpus[0], here)
    parts: list[list[Part]] = [
        [*plan_run(config, gpus=[gpu] * gpus[0]).parts],
        *([] for _ in gpus[1:]),
    ]
    if isinstance(engine, VllmEngineConfig) and engine.resource:
        wanted = needed(engine)
        check_room(nodes, wanted, engine.replicas, setting=SETTING)
        shape = Shape.of(config.model)
        for number in range(engine.replicas):
            # Ray spreads: the node with the most room is next.
            at = max(range(len(nodes)), key=lambda i: nodes[i].room(wanted))
            first = int(found[at].resources.get(GPU, 0) - nodes[at].resources.get(GPU, 0))
            nodes[at] = nodes[at].without(wanted)
            own = engine.model_copy(update={"resource": "", "replicas": 1, "first_gpu": first})
            alone = config.model_copy(update={"engine": own})
            devices = _devices(found[at], gpus[at], gpu)
            parts[at] += [
                replace(part, name=f"server {number}") for part in _engine(alone, shape, devices)
            ]
    if rollout.isolation == "ray":
        setting, label = "rollout.workers", {rollout.workers.resource: rollout.workers.amount}
        for number in range(check_room(nodes, label, rollout.workers.number, setting=setting)):
            at = max(range(len(nodes)), key=lambda i: nodes[i].room(label))
            nodes[at] = nodes[at].without(label)
            parts[at].append(Part(name=f"environments {number}", device=MAIN))
    plans = []
    for node, mine, count in zip(found, parts, gpus, strict=True):
        devices = _devices(node, count, gpu)
        _check(mine, devices)
        plans.append((node, Plan(parts=tuple(mine), devices=devices, notes=())))
    return plans


def _devices(node: Node, gpus: int, gpu: int) -> dict[str, int]:
    devices = {f"cuda:{number}": gpu for number in range(gpus)}
    return devices | {MAIN: int(node.resources.get("memory", 0)) or _main_memory()}


def _main_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _device(wanted: str, gpus: int, number: int, setting: str, *, of: int = 1) -> str:
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return MAIN
    if number >= gpus:
        raise ConfigError(f"{setting}: wanted {of} GPUs, found {gpus}")
    return f"cuda:{number}"


def _learner(config: TrainConfig, shape: Shape, gpus: int) -> list[Part]:
    settings = config.learner
    frozen = shape.weights if needs_reference(config.algo.loss, config.regularizer) else 0
    cast = 0 if settings.dtype == "float32" else 2 * shape.weights  # kept while a batch is computed
    tokens = max(settings.microbatch_tokens, config.model.context)
    activations = shape.activations(tokens, dtype=settings.dtype, recompute=settings.recompute)
    ranks = settings.ranks
    share = {
        "weights": (4 * (shape.weights + frozen) + cast) // ranks,
        "gradients": 4 * shape.trained // ranks,
        "moments": 8 * shape.trained // ranks,
    }
    parts = []
    for rank in range(ranks):
        name = f"learner, rank {rank}" if ranks > 1 else "learner"
        device = _device(settings.device, gpus, rank, "learner.ranks", of=ranks)
        if settings.offload:
            parts.append(Part(name=f"{name}, offloaded", device=MAIN, **share))
        own = {} if settings.offload else share
        parts.append(Part(name=name, device=device, activations=activations, **own))
    if ranks > 1:
        parts.append(Part(name="whole policy of rank 0", device=MAIN, weights=4 * shape.weights))
    if (teacher := config.algo.teacher) is not None and teacher.model:
        whose = PretrainedModelConfig(
            type="pretrained", path=teacher.model, context=config.model.context
        )
        device = _device(settings.device, gpus, 0, "learner.device")
        parts.append(Part(name="teacher", device=device, weights=4 * Shape.of(whose).weights))
    return parts


def _engine(config: TrainConfig, shape: Shape, devices: Mapping[str, int]) -> list[Part]:
    engine, gpus = config.placed_engine, len(devices) - 1
    context, dtype = config.model.context, engine.dtype
    weights = _BYTES[dtype] * shape.weights
    if dtype != "float32":
        weights += 4 * shape.vocabulary * shape.hidden  # the head stays float32
    cache = shape.cache(config.open_sessions * context, dtype=dtype)
    if isinstance(engine, LocalEngineConfig):
        where = _device(engine.device, gpus, 0, "engine.device")
        return [Part(name="local engine", device=where, weights=weights, cache=cache)]
    if engine.urls or engine.resource:
        return _in_flight(config, shape, gpus)  # others see to them
    if not engine.gpus:
        if engine.server == "vllm":
            cache = int(float(os.environ.get(CPU_CACHE, CPU_CACHE_GIB)) * GIB)
        else:
            cache //= engine.replicas
        return [
            Part(name=f"server {number}", device=MAIN, weights=weights, cache=cache)
            for number in range(engine.replicas)
        ]
    servers = _servers_on_gpus(engine, weights, shape.cache(context, dtype=dtype), devices)
    return [*_in_flight(config, shape, gpus), *servers]


def _in_flight(config: TrainConfig, shape: Shape, gpus: int) -> list[Part]:
    """Return what the learner keeps to send: a copy, beside it the next one, and buffers."""
    engine, settings = config.placed_engine, config.learner
    if not isinstance(engine, VllmEngineConfig) or engine.weights == "files":
        return []
    device, copy = _device(settings.device, gpus, 0, "engine.weights"), _BYTES[engine.dtype]
    copies, buffers = 2 * copy * shape.weights, min(_BUFFERS[engine.weights], copy * shape.weights)
    if settings.ranks == 1:
        return [Part(name=_SENT, device=device, weights=copies + buffers)]
    kept = Part(name=_SENT, device=MAIN, weights=copies)  # beside the whole policy
    return [kept, Part(name=_SENT, device=device, weights=buffers)]


def _servers_on_gpus(
    engine: VllmEngineConfig, weights: int, conversation: int, devices: Mapping[str, int]
) -> list[Part]:
    """Return servers that take their share of each GPU whole; what weights leave is the cache."""
    parts, of = [], max(engine.gpus_of(engine.replicas - 1)) + 1
    for number in range(engine.replicas):
        for gpu in engine.gpus_of(number):
            device = _device("cuda", len(devices) - 1, gpu, "engine.gpus", of=of)
            own = weights // engine.gpus
            cache = int(engine.gpu_memory * devices[device]) - own
            if cache < conversation // engine.gpus:
                raise ConfigError(
                    f"engine.gpu_memory={engine.gpu_memory:g}: of {gib(devices[device])} GiB on "
                    f"{device} it leaves no room for one conversation ({gib(conversation)} GiB) "
                    f"beside the weights ({gib(own)} GiB): raise it, engine.gpus, or lower "
                    "model.context"
                )
            parts.append(Part(name=f"server {number}", device=device, weights=own, cache=cache))
    return parts


_NUMBER = re.compile(r" \d+\b")
_REMEDIES = {
    "weights": "raise learner.ranks or engine.gpus",
    "gradients": "raise learner.ranks, or set model.lora_rank",
    "moments": "raise learner.ranks, or set model.lora_rank",
    "activations": "lower learner.microbatch_tokens, or set learner.recompute=true",
    "cache": "lower rollout.concurrency, model.context or engine.gpu_memory",
    "program": "lower rollout.coordinators",
}


def _check(parts: Sequence[Part], devices: Mapping[str, int]) -> None:
    on: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        on[part.device].append(part)
    for device, mine in on.items():
        if (total := sum(part.total for part in mine)) > devices[device]:
            largest = max(_REMEDIES, key=lambda kind: sum(getattr(p, kind) for p in mine))
            is_spread = device == MAIN and any(part.name == "learner, rank 1" for part in mine)
            fewer = ", or lower learner.ranks" if is_spread else ""
            raise ConfigError(
                f"{device}: has {gib(devices[device])} GiB, wanted {gib(total)} ({_listed(mine)}), "
                f"most of it {largest}: {_REMEDIES[largest]}{fewer}"
            )


def _listed(parts: Sequence[Part]) -> str:
    """Return the parts by name and size; those that are alike but for their number together."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for part in parts:
        alike[_NUMBER.sub("", part.name), gib(part.total)].append(part.name)
    return ", ".join(
        f"{names[0]} {size}" if len(names) == 1 else f"{len(names)} times {kind} {size}"
        for (kind, size), names in alike.items()
    )


def _speed(config: TrainConfig, shape: Shape, names: Sequence[str]) -> str:
    """Return the most tokens a second that memory and arithmetic of a known GPU allow."""
    known = next((found for part, found in _LIMITS.items() if part in " ".join(names)), None)
    if known is None or config.learner.dtype != "bfloat16":
        return "tokens a second: not known here"
    size = _BYTES[config.engine.dtype]
    servers = config.engine.replicas if isinstance(config.engine, VllmEngineConfig) else 1
    # A decode step reads all weights, for as many tokens as there are conversations.
    sampled = config.open_sessions / (size * shape.weights / known[0]) if servers else 0.0
    passes = (4 if shape.trained < shape.weights else 6) + 2 * config.learner.recompute
    trained = config.learner.ranks * known[1] / (passes * shape.weights)
    return (
        f"tokens a second: at most {sampled:,.0f} sampled and {trained:,.0f} trained, by the "
        "GPU's memory and arithmetic; nothing is measured yet"
    )


def gib(size: float) -> str:
    """Return bytes as GiB."""
    return f"{size / GIB:.3g}"
