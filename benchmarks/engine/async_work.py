"""What both sides of ``async_peer.py`` play, and what they are measured by.

Episodes of ``TURNS`` turns: an opening of a few words, an action of exactly ``ACTION`` tokens, the
words in another order, and so on. The reward is the share of characters with an even code, so it
differs between the episodes of a group. The model never ends a turn by itself, so every action has
the same length.
"""

from __future__ import annotations

import argparse
import os
import signal
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TURNS, ACTION = 4, 16
GROUPS, GROUP = 8, 8
"""Tasks of a step, and episodes of each."""
ROWS = 16
"""Episodes that are trained on at once."""
STALENESS = 1
LEARNING_RATE = 1e-4
CONTEXT = 256
LONGEST = 192
"""Tokens that no episode exceeds; checked in each run."""
MODEL: dict[str, Any] = {"hidden": 128, "layers": 4, "heads": 4, "vocab_size": 330}
WORDS = ["red", "amber", "green", "blue", "stop", "wait", "go", "turn", "north", "east", "south"]
SPOKEN = 8
"""Words of an observation."""
LIMITS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Of every process on either side: one thread for what a model computes."""


def opening(seed: int) -> str:
    """Return the first observation of a task."""
    return " ".join(np.random.default_rng(seed).choice(WORDS, size=SPOKEN))


def observation(first: str, turn: int) -> str:
    """Return what is seen before turn number ``turn``, 0 or later, of the task of ``first``."""
    words = first.split()
    return " ".join(words[turn:] + words[:turn])


def score(actions: Sequence[str]) -> float:
    """Return the share of characters with an even code; 0 where there is none."""
    text = "".join(actions)
    return sum(ord(char) % 2 == 0 for char in text) / max(1, len(text))


def save_model(folder: Path) -> None:
    """Write the model that both sides train, and its tokenizer."""
    from turngym.agents.engine.config import TinyModelConfig
    from turngym.agents.engine.models import build_tiny_model, save_model_dir
    from turngym.agents.engine.small_tokenizer import train_tokenizer

    tokenizer = train_tokenizer([" ".join(WORDS)] * 4, MODEL["vocab_size"])
    tokenizer.add_tokens([f"<extra-{i}>" for i in range(MODEL["vocab_size"] - len(tokenizer))])
    model = build_tiny_model(TinyModelConfig(**MODEL, context=CONTEXT), tokenizer, seed=0)
    never_end(model)
    save_model_dir(model, tokenizer, folder)


def never_end(model: PreTrainedModel) -> None:
    """Make the end token one that is never sampled, by the weights alone.

    Number 0 of the residual stream is the same positive one for all tokens, no layer writes to it,
    and the head, which is the embedding, has a negative one there for the end token.
    """
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_tokens" in name:
                weight[:, 0] = 0.5
                weight[model.config.eos_token_id, 0] = -5.0
            elif "o_proj" in name or "down_proj" in name:
                weight[0] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one side is to do in its process."""

    model: Path
    """Folder of the model; new weights are handed over in the folder above it."""
    output: Path
    """Where it writes what it measured."""
    steps: int
    warm_up: int
    """Of these steps, not counted."""
    kill_at: int = 0
    """The engine is killed in the step after this one; 0 for never."""
    vllm: str = ""
    """Interpreter of vLLM's environment, where the side starts the server itself."""
    url: str = ""
    """Address of the server, where it was started for the side."""
    server: int = 0
    """Its process."""
    queue: int = 0
    """Episodes that TRL's queue between worker and trainer may hold; 0 for its default of 1024."""

    def words(self) -> list[str]:
        """Return the order as arguments."""
        return [f"--{name.replace('_', '-')}={getattr(self, name)}" for name in self.__slots__]


def order_of(arguments: Sequence[str] | None = None) -> Order:
    """Return the order in the arguments of this process, or in ``arguments``."""
    parser = argparse.ArgumentParser()
    for name, kind in get_type_hints(Order).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    return Order(**vars(parser.parse_args(arguments)))


@dataclass(slots=True, kw_only=True)
class Measured:
    """One run of one side."""

    side: str
    step_s: list[float] = field(default_factory=list)
    """From the end of one step to that of the next, warm-up steps left out."""
    waited_s: list[float] = field(default_factory=list)
    """Of each, in which the trainer had no episodes to train on."""
    publish_s: list[float] = field(default_factory=list)
    """Of each, in which new weights were handed to the server."""
    trained: list[float] = field(default_factory=list)
    """Sampled tokens that each step trained on."""
    sampled: float = 0.0
    """Tokens that the server sampled in all these steps, by its own count."""
    prompted: float = 0.0
    """Tokens of prompts that it was sent."""
    more: dict[str, Any] = field(default_factory=dict)


def server_counts(url: str) -> dict[str, float]:
    """Return the counts of a vLLM server that say how much it did.

    Raises:
        OSError: It does not answer.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        return counts_of(answer.read().decode())


def counts_of(text: str) -> dict[str, float]:
    """Return ``sampled`` and ``prompted`` from a page of Prometheus metrics."""
    names = {"vllm:generation_tokens_total": "sampled", "vllm:prompt_tokens_total": "prompted"}
    found = dict.fromkeys(names.values(), 0.0)
    for line in text.splitlines():
        name = names.get(line.partition("{")[0].partition(" ")[0])
        if name is not None:
            found[name] += float(line.rpartition(" ")[2])
    return found


def kill_engine(root: int) -> list[int]:
    """Send SIGKILL to the engine processes of the vLLM servers below process ``root``.

    Returns:
        Their ids.
    """
    parents: dict[int, int] = {}
    engines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"EngineCore" in line:
            engines.append(int(folder.name))
    found = [pid for pid in engines if is_below(pid, root, parents)]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def is_below(pid: int, root: int, parents: Mapping[int, int]) -> bool:
    """Return whether ``root`` started ``pid``, or what started it, and so on."""
    while pid in parents:
        pid = parents[pid]
        if pid == root:
            return True
    return False
