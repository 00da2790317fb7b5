"""What one GPU does: four parts, at most ten minutes each, written for one H200.

    h200.py smoke    every token through an update, in each way and precision, against torch
    h200.py rollout  sampled tokens a second of episodes of four turns, by shape and concurrency
    h200.py learner  trained tokens a second, share of the GPU's arithmetic, peak memory
    h200.py loop     the demo's maze: engine and learner on one GPU, in turns and overlapped

    --dry            tiny shapes on the CPU, to see that it runs; no number of it means anything
    --python PATH    interpreter of an environment with vLLM 0.32 or later; without one, servers are
                     ours, and ``transformers`` samples beside them
    --out FOLDER     where ``PART.json`` goes, with machine, driver and versions; $OUT by default

Weights are random but for the maze, which is learned. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

import numpy as np
import torch

from episodes import make_tokenizer
from harness import child_environment, machine, versions
from turngym.agents.engine.config import LocalEngineConfig, VllmEngineConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import add_lora
from turngym.agents.engine.protocol import Generation, Sampling, TrainableEngine
from turngym.agents.engine.vllm.engine import VllmEngine
from turngym.trainers.metrics import read_metrics
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.optimizer import LearnerConfig
from turngym.trainers.update.compute import place
from turngym.trainers.update.learner import TorchLearner

SHAPES = {
    "tiny": (64, 2, 2, 2, 160, 330, True),
    "0.5B": (896, 24, 14, 2, 4864, 151936, True),
    "1.5B": (1536, 28, 12, 2, 8960, 151936, True),
    "7B": (3584, 28, 28, 4, 18944, 151936, False),
}
"""Width, layers, heads, key-value heads, inner width, vocabulary, tied: of Qwen2.5."""
TURNS, OBSERVATION, ACTION, CONTEXT = 4, 300, 64, 2048
PEAK = 790e12
"""Operations a second in bfloat16 that large matrix products reached on an H200."""
Row = dict[str, Any]


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--python", default="")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "runs/gpu")))
    arguments = parser.parse_args()
    if not arguments.dry and not torch.cuda.is_available():
        print("NOT RUN: there is no GPU; --dry shows on a CPU that it runs", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for row in PARTS[arguments.part](arguments):
        rows.append(row)
        print(json.dumps(row), flush=True)
        write(arguments, rows)  # a call that is cut short has what it measured so far
    return 0


def write(arguments: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Write what is measured so far."""
    driver = ""
    if not arguments.dry:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "is_dry": arguments.dry,
        "machine": machine(),
        "gpu": driver,
        "versions": versions("turngym", "torch", "transformers", "peft", "vllm"),
        "rows": rows,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / f"{arguments.part}.json"
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


# Models and engines.


def model_of(shape: str, *, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model of random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    hidden, layers, heads, kv_heads, inner, vocabulary, tied = SHAPES[shape]
    tokenizer = make_tokenizer()
    config = AutoConfig.for_model(
        "qwen2",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def device_of(arguments: argparse.Namespace) -> str:
    """Return where models run."""
    return "cpu" if arguments.dry else "cuda"


@contextmanager
def running(
    make: Callable[[], TrainableEngine],
) -> Iterator[tuple[asyncio.Runner, TrainableEngine]]:
    """Make an engine in an event loop of its own, and close it."""
    with asyncio.Runner() as runner:
        engine = make()
        try:
            yield runner, engine
        finally:
            runner.run(engine.close())


def served(arguments: argparse.Namespace, model: Any, **settings: Any) -> VllmEngine:
    """Return an engine on a server that is started: vLLM where there is one, else ours."""
    own: Row = {"python": arguments.python, "gpus": 0 if arguments.dry else 1, "gpu_memory": 0.4}
    if not arguments.python:
        own = {"server": "turngym"}
    config = VllmEngineConfig(type="vllm", **{**own, "max_requests": 512, **settings})
    return VllmEngine(config, model, make_tokenizer(), context=CONTEXT, max_sessions=1024)


# smoke


def smoke(arguments: argparse.Namespace) -> Iterator[Row]:
    """Compare every token around an update with torch."""
    device = device_of(arguments)
    for dtype in ("float32", "bfloat16"):
        if dtype == "bfloat16" and not arguments.python:
            continue  # our own server computes in float32
        model = model_of("tiny", device=device)
        for way in ("continue", "reread", "abort"):
            make = partial(served, arguments, model, running=way, dtype=dtype)
            with running(make) as (loop, one):
                yield {"dtype": dtype, "running": way, **loop.run(_around_an_update(one, model))}


async def _around_an_update(engine: TrainableEngine, model: Any) -> Row:
    """Return how far log-probs are from torch's, before and after an update."""
    states = [
        {
            n: value + 0.02 * number * torch.sin(value * 90)
            for n, value in model.state_dict().items()
        }
        for number in (0, 1)
    ]
    await engine.publish(states[0], 0)
    prompts = [[7 + seed, 3, 6, 12, 9] for seed in range(8)]
    sampling = Sampling(max_new_tokens=600)
    requests = [
        asyncio.create_task(engine.open(seed).generate(prompt, sampling))
        for seed, prompt in enumerate(prompts)
    ]
    await asyncio.sleep(1.0)
    began = time.perf_counter()
    await engine.publish(states[1], 1)
    seconds = time.perf_counter() - began
    found = await asyncio.gather(*requests)
    gaps = [_gaps(model, states, p, each) for p, each in zip(prompts, found, strict=True)]
    return {
        "publish_s": seconds,
        "crossed": sum(0 < each.versions.count(0) < len(each.versions) for each in found),
        "gap_before": max(before for before, _ in gaps),
        "gap_after": max(after for _, after in gaps),  # of reread and abort; continue keeps a cache
    }


def _gaps(
    model: Any, states: Sequence[Mapping[str, Any]], prompt: list[int], found: Generation
) -> tuple[float, float]:
    ids = torch.tensor([[*prompt, *found.token_ids]], device=next(model.parameters()).device)
    cut, gaps = found.versions.count(0), [0.0, 0.0]
    own = np.array(found.logprobs)
    for number, part in enumerate((slice(0, cut), slice(cut, len(own)))):
        with torch.no_grad():
            scored = torch.func.functional_call(
                model, dict(states[number]), (ids,), tie_weights=False
            )
            logits = scored.logits
        rows = logits[0, :-1].float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].cpu()
        expected = rows.numpy()[len(prompt) - 1 :]
        if own[part].size:
            gaps[number] = float(np.abs(own[part] - expected[part]).max())
    return gaps[0], gaps[1]


# rollout


def rollout(arguments: argparse.Namespace) -> Iterator[Row]:
    """Measure sampled tokens a second."""
    device = device_of(arguments)
    shapes = ("tiny",) if arguments.dry else ("0.5B", "1.5B", "7B")
    sizes = (4,) if arguments.dry else (32, 128, 512)
    dtype = "float32" if arguments.dry else "bfloat16"
    for shape in shapes:
        model = model_of(shape, device=device, dtype=getattr(torch, dtype))
        local = LocalEngineConfig(dtype=dtype)
        size = {"context": CONTEXT, "max_sessions": 1024}
        makers: dict[str, Callable[[], TrainableEngine]] = {
            "local": partial(LocalEngine, model, make_tokenizer(), config=local, **size)
        }
        if arguments.python:
            on_vllm = partial(served, arguments, model, dtype=dtype)
            makers["vllm"] = on_vllm
            makers["vllm, no prefix cache"] = partial(on_vllm, args=("--no-enable-prefix-caching",))
        for name, make in makers.items():
            with running(make) as (loop, engine):
                for concurrency in sizes:
                    loop.run(_play(engine, min(sizes), turns=1))  # warm-up
                    row = loop.run(_play(engine, concurrency, turns=TURNS))
                    yield {"shape": shape, "engine": name, "concurrency": concurrency, **row}
        for concurrency in sizes:
            row = _transformers(model, concurrency)
            yield {"shape": shape, "engine": "transformers", "concurrency": concurrency, **row}
        del model


async def _play(engine: TrainableEngine, concurrency: int, *, turns: int) -> Row:
    rng = np.random.default_rng(concurrency)
    before = engine.stats.reused_tokens

    async def episode(seed: int) -> int:
        session, sampled = engine.open(seed), 0
        for _ in range(turns):
            new = rng.integers(10, 300, OBSERVATION).tolist()
            found = await session.generate(new, Sampling(max_new_tokens=ACTION))
            sampled += len(found.token_ids)
        if (closing := session.close()) is not None:
            await closing
        return sampled

    began = time.perf_counter()
    sampled = sum(await asyncio.gather(*map(episode, range(concurrency))))
    seconds = time.perf_counter() - began
    reused = engine.stats.reused_tokens - before
    return {"tokens_per_s": sampled / seconds, "seconds": seconds, "reused_tokens": reused}


def _transformers(model: Any, concurrency: int) -> Row:
    """Sample the first turn of as many episodes with the continuous batching of transformers."""
    from transformers import GenerationConfig

    rng = np.random.default_rng(concurrency)
    prompts = [rng.integers(10, 300, OBSERVATION).tolist() for _ in range(concurrency)]
    config = GenerationConfig(max_new_tokens=ACTION, do_sample=True, eos_token_id=-1)
    began = time.perf_counter()
    try:
        found = model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
    except Exception as error:  # noqa: BLE001 - foreign code; what it says is the finding
        return {"not_run": f"{type(error).__name__}: {error}".splitlines()[0]}
    seconds = time.perf_counter() - began
    sampled = sum(len(one.generated_tokens) for one in found.values())
    return {"tokens_per_s": sampled / seconds, "seconds": seconds, "turns": 1}


# learner


def learner(arguments: argparse.Namespace) -> Iterator[Row]:
    """Measure trained tokens a second, and what share of the arithmetic that is."""
    device = device_of(arguments)
    cases = [("0.5B", 0), ("1.5B", 0), ("7B", 16)]
    for shape, rank in [("tiny", 0), ("tiny", 4)] if arguments.dry else cases:
        for budget in (256,) if arguments.dry else (8192, 16384, 32768):
            yield {"shape": shape, "lora_rank": rank, **_update(device, shape, rank, budget)}


def _update(device: str, shape: str, rank: int, budget: int) -> Row:
    model = model_of(shape, device=device)
    weights = sum(weight.numel() for weight in model.parameters())
    if rank:
        model = add_lora(model, rank, seed=0)
    is_gpu = device == "cuda"
    config = LearnerConfig(
        dtype="bfloat16" if is_gpu else "float32",
        recompute=is_gpu,
        microbatch_tokens=budget,
        lr=1e-5,
    )
    place(model, config)
    trainer = TorchLearner(model, config, LossConfig())
    samples = [_sample(seed) for seed in range(64 if is_gpu else 4)]
    tokens = sum(sample.token_ids.size for sample in samples)
    seconds = []
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        began = time.perf_counter()
        trainer.update(samples)
        if is_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    best = sorted(seconds[1:])[1]
    passes = 4 if rank else 6  # of the model itself; what is computed again is no merit
    return {
        "microbatch_tokens": budget,
        "tokens_per_s": tokens / best,
        "mfu": passes * weights * tokens / best / PEAK if is_gpu else None,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if is_gpu else None,
    }


def _sample(seed: int) -> TrainingSample:
    rng = np.random.default_rng(seed)
    turn = np.r_[np.zeros(OBSERVATION, bool), np.ones(ACTION, bool)]
    mask = np.tile(turn, TURNS)
    return TrainingSample(
        token_ids=rng.integers(10, 300, mask.size),
        loss_mask=mask,
        turn_ids=np.where(mask, np.repeat(np.arange(TURNS), turn.size), -1),
        behaviour_logprobs=np.where(mask, -5.0, 0.0).astype(np.float32),
        advantages=np.where(mask, rng.choice([-1.0, 1.0]), 0.0).astype(np.float32),
        policy_versions=np.where(mask, 0, -1),
        trajectory=seed,
    )


# loop


def loop(arguments: argparse.Namespace) -> Iterator[Row]:
    """Train the demo's maze in several arrangements."""
    served = ["engine.type=vllm", "engine.server=turngym"]
    if arguments.python:
        served = ["engine.type=vllm", f"engine.python={arguments.python}"]
        if not arguments.dry:
            served += ["engine.gpus=1", "engine.first_gpu=0", "engine.gpu_memory=0.3"]
    overlap = ["rollout.mode=overlap", "rollout.staleness=1", "algo=decoupled_ppo"]
    brief = [f"learner.dtype={'float32' if arguments.dry else 'bfloat16'}"]
    cases = {
        "local": [],
        "served": served,
        "served, ipc": [*served, "engine.weights=ipc"],  # without a GPU it says why it cannot be
        "served, overlapped": [*served, *overlap],
        "served, bfloat16": [*served, *brief],
    }
    for name, settings in cases.items():
        yield {"case": name, **_train(arguments, settings)}


def _train(arguments: argparse.Namespace, settings: Sequence[str]) -> Row:
    short = [f"run.steps={2 if arguments.dry else 20}", "run.tensorboard=false"]
    if arguments.dry:
        short += ["warm_start.max_steps=2", "rollout.groups_per_step=2", "rollout.group_size=4"]
        short += ["evaluation.validation_tasks=4"]
    short.append(f"evaluation.held_out_tasks={4 if arguments.dry else 64}")
    folder = Path(tempfile.mkdtemp(prefix="turngym-gpu-"))
    command = [sys.executable, "-m", "turngym", "train", "demo", *settings, *short]
    done = subprocess.run(
        [*command, "--out", str(folder / "run")],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        if done.returncode:
            return {"not_run": done.stderr.strip().splitlines()[-1]}
        summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
        rows = [r for r in read_metrics(folder / "run" / "metrics.jsonl") if "train/tokens" in r]
        spent = read_metrics(folder / "run" / "timings.jsonl")
        return {
            "before": summary["before"]["sampled"]["success"],
            "after": summary["after"]["sampled"]["success"],
            "step_s": [r["seconds"] for r in spent if "rollout_s" in r],
            "publish_s": rows[-1].get("engine/publish_s"),
            "mismatch": {k: v for k, v in rows[-1].items() if k.startswith("mismatch/")},
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


PARTS = {"smoke": smoke, "rollout": rollout, "learner": learner, "loop": loop}

if __name__ == "__main__":
    sys.exit(main())
