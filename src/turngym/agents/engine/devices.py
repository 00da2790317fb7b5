"""Where models run, in what precision, and what their files say to other programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from turngym.agents.engine.config import DeviceName, DtypeName
from turngym.errors import ConfigError

DTYPES: dict[DtypeName, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device_of(wanted: DeviceName, *, setting: str, number: int | None = None) -> torch.device:
    """Return the device that a setting names; ``auto`` is a GPU where torch finds one.

    Of several GPUs each process of a group on one node takes the one of its own number.

    Args:
        wanted: The setting.
        setting: Its full name, for the error.
        number: Of the process on this node; None for what its launcher says.

    Raises:
        ConfigError: There is no GPU, or fewer than processes.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not count):
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0")) if number is None else number
    if number >= count:
        found = f"finds {count or 'no'} GPU{'s' * (count > 1)}"
        here = f", and process {number} of this node wants one of its own" if number else ""
        raise ConfigError(
            f"{setting}={wanted!r}: torch {torch.__version__} {found}{here}; set {setting}=cpu"
        )
    return torch.device("cuda", number)


def in_full(kind: Any, path: str, *, trust_remote_code: bool, **more: Any) -> tuple[Any, Any]:
    """Return a model whose weights are read in full precision, and what there is to say of loading.

    On a GPU transformers would keep FP8 and MXFP4 as they are: numbers without their scale.

    Args:
        kind: Its class of transformers, an automatic one.
        path: As transformers takes it.
        trust_remote_code: Whether programs that come with it are run.
        more: Other arguments of ``from_pretrained``.

    Raises:
        ConfigError: Its weights are quantised in another way.
    """
    from transformers import AutoConfig

    own = {"trust_remote_code": trust_remote_code}
    shape = AutoConfig.from_pretrained(path, **own)
    kept = getattr(shape, "quantization_config", None)
    if isinstance(kept, dict) and kept.get("quant_method") in ("fp8", "mxfp4"):
        kept["dequantize"] = True
    model, report = kind.from_pretrained(
        path, config=shape, dtype=torch.float32, output_loading_info=True, **own, **more
    )
    if getattr(model, "is_quantized", False):
        raise ConfigError(
            f"model {path!r} cannot be loaded: its weights are quantised, and can be neither "
            "sampled with nor trained here; wanted the model that they were made from"
        )
    head = model.get_output_embeddings()
    if head is not None and head.weight is not model.get_input_embeddings().weight:
        model.config.tie_word_embeddings = False  # else programs that it is written for tie them
    return model, report


def add_old_names(file: Path) -> None:
    """Say of rotary positions what transformers 4 said, beside the new, in a ``config.json``.

    A program of its time (vLLM with it, say) reads the rest, and takes 10000 for the base.
    """
    about = json.loads(file.read_text(encoding="utf-8"))
    for part in (about, about.get("text_config") or {}):
        rope = part.get("rope_parameters") or {}  # by kind of layer, it had no such names
        own = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
        more = {key: value for key, value in rope.items() if key not in own}
        if own:
            part.update(own if more == {"rope_type": "default"} else {**own, "rope_scaling": more})
    file.write_text(json.dumps(about, indent=2, sort_keys=True) + "\n", encoding="utf-8")
