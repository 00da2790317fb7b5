"""Log-probs of conversations with pictures: vLLM beside the learner, for models that see.

    python benchmarks/engine/seeing_served.py --vllm VENV/bin/python [--only qwen3_vl] [--out FILE]

The small models of ``seeing.py``, wide enough for vLLM's kernels, each with random weights, behind
one server of vLLM; five sequences of which four have pictures. Both environments want torchvision.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import seeing_models
from seeing import built

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.vision import Vision, give_vision
from turngym.agents.engine.vllm.engine import VllmEngine
from turngym.errors import TurnGymError
from turngym.trainers.update.forward import score

MODELS = ("qwen2_5_vl", "qwen3_vl", "internvl", "idefics3")
WIDE = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 96, "num_key_value_heads": 2}
SIZES = ((), ((56, 56),), ((28, 84),), ((64, 96),), ((56, 56), (28, 84)))
LETTERS = 62


def widen(name: str) -> None:
    """Give a model heads that vLLM has kernels for."""
    seeing_models.TEXT |= WIDE
    seeing_models.EYES |= {"hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 64}
    own = seeing_models.SEEING[name]
    if "rope_parameters" in own["text"]:
        own["text"] = copy.deepcopy(own["text"])
        own["text"]["rope_parameters"] |= {"mrope_section": [4, 6, 6]}
        # transformers has it for Qwen3-VL whatever its configuration says; vLLM reads it.
        own["text"]["rope_parameters"] |= {"mrope_interleaved": name == "qwen3_vl"}


def sequences(vision: Vision) -> list[list[int]]:
    """Return texts of random letters with pictures of noise."""
    rng = np.random.default_rng(0)
    made: list[list[int]] = []
    for sizes in SIZES:
        ids = rng.integers(0, LETTERS, 10).tolist()
        for size in sizes:
            number = vision.pictures.keep(rng.integers(0, 256, (*size, 3), np.uint8))
            ids += [*vision.tokens(number), *rng.integers(0, LETTERS, 12).tolist()]
        made.append(ids)
    return made


async def measured(name: str, python: str) -> dict[str, Any]:
    """Return how far log-probs of letters are apart, at most."""
    widen(name)
    model, tokenizer, processor = built(name)
    give_vision(model, processor)
    vision = tokenizer._turngym_vision
    config = VllmEngineConfig(type="vllm", python=python, probe=100.0)
    engine = VllmEngine(config, model, tokenizer, context=1024, max_sessions=8)
    try:
        made = sequences(vision)
        served = await engine.score(made)
    finally:
        await engine.close()
    ids = [np.array(one) for one in made]
    masks = [(np.arange(one.size) > 0) & (one >= 0) for one in ids]
    own = score(model, ids, masks, max_tokens=4096)
    gaps = [
        float(np.abs(theirs - ours[1:])[mask[1:]].max())
        for theirs, ours, mask in zip(served, own, masks, strict=True)
    ]
    return {"apart": max(gaps), "without_pictures": gaps[0]}


def main() -> None:
    """Print a line for each model, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", required=True, help="interpreter of vLLM's environment")
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    for name in asked.only.split(","):
        try:
            found[name] = asyncio.run(measured(name, asked.vllm))
        except TurnGymError as error:
            found[name] = {"error": str(error)}
        print(name, json.dumps(found[name]), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
