"""Which architectures of ``transformers`` the local engine and the learner run, and run right.

    python benchmarks/engine/architectures.py [--only qwen3,gemma2] [--out FILE]

Of each one a model of two layers with random weights plays three turns in three conversations at
once. The log-probs that the engine reports, and those that the learner computes of the same tokens,
are compared with one forward pass of ``transformers``; then the learner takes a step of imitation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.protocol import Sampling
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.trainers.update.forward import micro_batches, read_tokens, score

PROMPT = "key north east. exits north"
TOKENIZER = train_tokenizer([PROMPT] * 3, 270)
SIZE = {
    "vocab_size": len(TOKENIZER), "hidden_size": 32, "intermediate_size": 48, "head_dim": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}  # fmt: skip
ENDS = {f"{name}_token_id": TOKENIZER.eos_token_id for name in ("eos", "pad", "bos")}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256}
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 2,
}  # fmt: skip
LINEAR = {
    "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ROPE}
WINDOW = {"sliding_window": 16}
VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14, "depth": 1, "num_heads": 2, "out_hidden_size": 32,
}  # fmt: skip
SCALED = {"query_pre_attn_scalar": 16}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, rope of 3.1": {"rope_parameters": LLAMA3},
    "qwen2": {},
    "qwen2, yarn": {"rope_parameters": {"rope_type": "yarn", **ROPE}},
    "qwen3": {},
    "mistral": {"sliding_window": None},
    "mistral, windowed": WINDOW,
    "smollm3": {},
    "gemma": {},
    "gemma2": WINDOW | SCALED,
    "gemma3_text": WINDOW | SCALED,
    "gemma3": {"text_config": SIZE | WINDOW | SCALED, "vision_config": VISION},
    "phi": {},
    "phi3": {"sliding_window": None, "original_max_position_embeddings": 256},
    "glm4": {"partial_rotary_factor": 0.5},
    "olmo2": {},
    "olmo3": WINDOW,
    "granite": {"logits_scaling": 2.0, "embedding_multiplier": 2.0},
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25, **WINDOW},
    "exaone4": {"sliding_window": 16, "sliding_window_pattern": 2},
    "ernie4_5": {},
    "hunyuan_v1_dense": {},
    "seed_oss": {},
    "nemotron": {},
    "stablelm": {},
    "gpt2": GPT,
    "gpt_neox": {},
    "bloom": {"n_layer": 2, "n_head": 2},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "qwen2_moe": EXPERTS,
    "qwen3_moe": EXPERTS,
    "mixtral": EXPERTS,
    "olmoe": EXPERTS,
    "gpt_oss": EXPERTS | WINDOW,
    "glm4_moe": EXPERTS | {"partial_rotary_factor": 0.5},
    "deepseek_v3": EXPERTS | LATENT,
    "qwen3_next": EXPERTS | LINEAR,
    "qwen3_5_text": LINEAR,
    "qwen3_5": {"text_config": SIZE | LINEAR, "vision_config": VISION},
    "lfm2": {
        "layer_types": ["conv", "full_attention"],
        "conv_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 16,
    },
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 2,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "lm_head_multiplier": 0.5,
    },
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1},
}
"""Name, up to the comma that of ``transformers``, to what makes it small."""


def built(name: str) -> Any:
    """Return a model of random weights."""
    own = ARCHITECTURES[name]
    settings = {**({} if "text_config" in own else SIZE), **ENDS, **own}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name.partition(",")[0], **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # as they come all tokens are about as likely, whatever was read
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return model


async def conversations(engine: LocalEngine) -> list[tuple[list[int], list[float | None]]]:
    """Return three conversations of three turns: ids, and log-probs of those that were sampled."""

    async def talk(seed: int) -> tuple[list[int], list[float | None]]:
        session, ids, logprobs = engine.open(seed), [], []
        for turn in range(3):
            prompt = TOKENIZER.encode(PROMPT[: 5 + 3 * seed + turn], add_special_tokens=False)
            answer = await session.generate(prompt, Sampling(max_new_tokens=6 + seed))
            ids += [*prompt, *answer.token_ids]
            logprobs += [*[None] * len(prompt), *answer.logprobs]
        session.close()
        return ids, logprobs

    return await asyncio.gather(*map(talk, range(3)))


def measured(name: str) -> dict[str, Any]:
    """Return the decoder of one architecture, and how far off engine and learner are at most."""
    model = built(name)
    engine = LocalEngine(model, TOKENIZER, context=128)
    played = asyncio.run(conversations(engine))
    ids = [np.array(one) for one, _ in played]
    masks = [np.array([logprob is not None for logprob in found]) for _, found in played]
    learned = score(model, ids, masks, max_tokens=4096)
    of_engine = of_learner = spread = 0.0
    for tokens, mask, found, (_, sampled) in zip(ids, masks, learned, played, strict=True):
        with torch.no_grad():
            table = model(input_ids=torch.tensor(tokens[None])).logits[0].float().log_softmax(-1)
        places = np.flatnonzero(mask)
        true = table[torch.tensor(places - 1), torch.tensor(tokens[places])].numpy()
        spread = max(spread, float(true.std()))
        reported = np.array([logprob for logprob in sampled if logprob is not None])
        of_engine = max(of_engine, float(np.abs(true - reported).max()))
        of_learner = max(of_learner, float(np.abs(true - found[places]).max()))
    decoder = type(engine._decoder).__name__
    return {
        "decoder": decoder,
        "engine": of_engine,
        "learner": of_learner,
        "spread": spread,
        "grad_norm": gradient(model, ids, masks),
    }


def gradient(model: Any, ids: list[Any], masks: list[Any]) -> float:
    """Return the norm of the gradient of imitating what was sampled, as the learner computes it."""
    loss: Any = torch.zeros(())
    for batch in micro_batches(ids, masks, max_tokens=4096, device=torch.device("cpu")):
        logprobs = read_tokens(model, batch)[0]
        loss = loss - logprobs.sum()
    loss.backward()
    squares = [float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None]
    return math.sqrt(sum(squares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="Names with commas; all by default.")
    parser.add_argument("--out", type=Path, help="JSON file to write.")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    found = {}
    for name in ARCHITECTURES:
        if not arguments.only or name in arguments.only.split(","):
            found[name] = one = measured(name)
            print(
                f"{name:20} {one['decoder']:14} engine {one['engine']:.1e} "
                f"learner {one['learner']:.1e} spread {one['spread']:.1f} "
                f"gradient {one['grad_norm']:.3g}",
                flush=True,
            )
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    if wrong := [name for name, one in found.items() if max(one["engine"], one["learner"]) > 1e-4]:
        raise SystemExit(f"not what transformers computes: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
