"""One rank of a small learner: ``python -m helpers.rank_process WHAT...``, started by ``ranks``.

Rank 0 does the same alone and with the others, and prints both as JSON.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from helpers import models, warm
from helpers.cli import SOURCE
from helpers.samples import random_samples
from turngym.agents.engine.models import add_lora
from turngym.agents.engine.protocol import vision_of
from turngym.config import load_config
from turngym.errors import TurnGymError
from turngym.trainers.distributed.group import Group
from turngym.trainers.distributed.launch import free_port, rank_environment
from turngym.trainers.distributed.learner import ImitatorGroup, LearnerGroup
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import needs_reference
from turngym.trainers.settings.optimizer import LearnerConfig, WarmStartConfig
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update import forward, learner
from turngym.trainers.update.compute import place
from turngym.trainers.update.imitation import Demonstrations, Imitator, RenderedEpisode
from turngym.trainers.update.learner import TorchLearner
from turngym.trainers.update.optimizer import own_state
from turngym.trainers.update.sequential import LastTurnFirstLearner

QUICK = {
    "grpo": ["algo=grpo", "learner.num_minibatches=2", "learner.microbatch_tokens=32"],
    "lora": ["algo=grpo"],
    "kl": ["regularizer.kl_coefficient=0.1", "regularizer.entropy_coefficient=0.01"],
    "offload": ["learner.offload=true", "learner.ranks=2", "learner.microbatch_tokens=32"],
    "fewer samples than ranks": ["algo=grpo"],
    "pictures": ["algo=grpo", "learner.microbatch_tokens=24"],
    "pictures, whole logits": ["algo=grpo", "learner.microbatch_tokens=24"],
}
CASES = QUICK | {
    "dapo": ["algo=dapo", "learner.num_epochs=2"],
    "gspo": ["algo=gspo", "learner.num_epochs=2"],
    "seeupo": ["algo=seeupo"],
    "cispo": ["algo=cispo"],
    "tba": ["algo=tba"],
    "vcpo": ["algo=vcpo"],
    "m2po": ["algo=m2po"],
    "mis": ["algo=mis"],
    "bapo": ["algo=bapo"],
    "split episodes": ["algo=gspo", "learner.num_epochs=2"],
    "recompute": ["learner.recompute=true", "regularizer.entropy_coefficient=0.01"],
    "packing": ["learner.packing=always", "learner.microbatch_tokens=64"],
    "bfloat16": ["learner.dtype=bfloat16"],
    "imitation beside": ["algo=grpo_demos", "learner.microbatch_tokens=32"],
    "selected tokens": ["algo=forking_tokens"],
    "chunks": ["regularizer.entropy_coefficient=0.01"],
    "routing": ["learner.routing=replay", "learner.recompute=true", "learner.microbatch_tokens=64"],
    "routing, lora": ["learner.routing=replay", "learner.recompute=true"],
}
EPISODES = [
    RenderedEpisode(
        token_ids=(5, 6 + n, 7, 8 + n, *range(20, 20 + 3 * n)),
        action_mask=(False, False, True, True, *(k % 2 == 0 for k in range(3 * n))),
        turn_ids=(-1, -1, 0, 0, *(1 if k % 2 == 0 else -1 for k in range(3 * n))),
    )
    for n in range(9)
]


def ranks(number: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run this program as ``number`` ranks; return what rank 0 printed, and the worst exit code."""
    port = free_port()
    paths = os.pathsep.join([SOURCE, str(Path(__file__).parents[1])])
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "helpers.rank_process", *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": paths} | rank_environment(rank, number, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(number)
    ]
    found = [process.communicate(timeout=900) for process in processes]
    code = max(abs(process.returncode) for process in processes)
    errors = "".join(error for _, error in found)
    return subprocess.CompletedProcess(arguments, code, found[0][0], errors)


def warm_ranks(
    number: int, folder: Path, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """As ``ranks``, in processes that begin with torch imported and end without Python's cleanup.

    Args:
        number: How many.
        folder: Where they leave what they print.
        arguments: As of ``ranks``.
    """
    port = free_port()
    outs, errors = (
        [folder / f"{name}-{rank}" for rank in range(number)] for name in ("out", "err")
    )
    for file in (*outs, *errors):
        file.write_text("")
    processes = [
        warm.start(
            main,
            [*map(str, arguments)],
            out=outs[rank],
            err=errors[rank],
            env=rank_environment(rank, number, port),
        )
        for rank in range(number)
    ]
    codes = []
    for process in processes:
        process.join(900)
        assert process.exitcode is not None, "a rank did not end"
        codes.append(abs(process.exitcode))
    said = "".join(file.read_text() for file in errors)
    return subprocess.CompletedProcess(arguments, max(codes), outs[0].read_text(), said)


def main(arguments: Sequence[str]) -> int:
    what, *rest = arguments
    torch.set_num_threads(1)
    group = Group(LearnerConfig(ranks=int(os.environ["WORLD_SIZE"]), device="cpu"))
    if what == "fail" and group.number == 1:
        fail_once(rest[0])
    if group.number:
        group.obey()
    else:
        doing: Callable[..., Any] = {
            "compare": compare,
            "write": write,
            "read": read,
            "fail": fail,
        }[what]
        print(json.dumps(doing(group, *rest)), flush=True)
    group.close()
    return 0


def compare(group: Group, *names: str) -> dict[str, Any]:
    return {name: imitate(group) if name == "imitation" else update(group, name) for name in names}


def update(group: Group, name: str) -> dict[str, Any]:
    config, model, make = learner_of(name)
    samples = samples_of(name)
    group.run(set_up, config.learner, 290 * 5 if name == "chunks" else 2**24)
    alone, spread = copy.deepcopy(model), copy.deepcopy(model)
    wants = needs_reference(config.algo.loss, config.regularizer)
    reference = {"reference": copy.deepcopy(model).requires_grad_(False)} if wants else {}
    single = make(model=place(alone, config.learner), **reference)
    place(spread, config.learner, move=False)
    several = LearnerGroup(group, make, {"model": spread, **reference})
    found = [[each.update(samples) for _ in range(3)] for each in (single, several)]
    return {"metrics": found, "apart": apart(model, alone, spread)}


def set_up(group: Group, config: LearnerConfig, chunk: int) -> None:
    """Compute on this rank as a case wants it, in place of a group of its own for each."""
    group._config = config
    forward.CHUNK_LOGITS = chunk


def imitate(group: Group) -> dict[str, Any]:
    model = models.model()
    config = WarmStartConfig(batch_episodes=4, lr=3e-3, max_steps=9, microbatch_tokens=24)
    make = partial(Imitator, episodes=EPISODES, config=config, seed=1)
    alone, spread = copy.deepcopy(model), copy.deepcopy(model)
    single, several = make(model=alone), ImitatorGroup(group, make, {"model": spread})
    found = [[each.step() for _ in range(4)] for each in (single, several)]
    several.catch_up()
    return {"metrics": found, "apart": apart(model, alone, spread)}


def write(group: Group, folder: str) -> dict[str, float]:
    """Write the moments after two updates, and return what the third one says."""
    _, model, make = learner_of("grpo")
    made = LearnerGroup(group, make, {"model": model})
    for _ in range(2):
        made.update(samples_of("grpo"))
    torch.save(own_state(model), Path(folder) / "weights.pt")
    made.write_shards(Path(folder) / "learner")
    return made.update(samples_of("grpo"))


def read(group: Group, folder: str) -> dict[str, float]:
    """Go on from what ``write`` wrote; from the whole state where there is one."""
    _, model, make = learner_of("grpo")
    model.load_state_dict(torch.load(Path(folder) / "weights.pt"), strict=False)
    made = LearnerGroup(group, make, {"model": model})
    counters, whole = {"updates": 2, "steps": 4}, Path(folder) / "whole.pt"
    if whole.exists():
        made.load_state(torch.load(whole), **counters)
    else:
        made.read_shards(Path(folder) / "learner", **counters)
    return made.update(samples_of("grpo"))


def fail(group: Group, how: str) -> dict[str, Any]:
    """Say what rank 0 hears of a failure of rank 1, and whether the ranks go on after it."""
    _, model, make = learner_of("grpo")
    before = copy.deepcopy(model.state_dict())
    made = LearnerGroup(group, make, {"model": model})
    try:
        made.update(samples_of("grpo"))
        error = ""
    except TurnGymError as raised:
        error = str(raised)
    if how == "die":
        return {"error": error}
    made.catch_up()
    same = all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    return {"error": error, "same": same, "after": made.update(samples_of("grpo"))["train/loss"]}


def fail_once(how: str) -> None:
    kept = learner.policy_loss

    def broken(*_: Any) -> Any:
        if how == "die":
            os._exit(7)
        learner.policy_loss = kept
        raise ValueError("no such loss")

    learner.policy_loss = broken


def learner_of(name: str) -> tuple[TrainConfig, Any, Callable[..., TorchLearner]]:
    overrides = ["env.id=text/maze", "learner.lr=1e-3", "learner.device=cpu"]
    config = load_config(TrainConfig, [*overrides, *CASES[name]])
    made = {"routing": mixture, "pictures": models.seeing}.get(name.partition(",")[0], models.model)
    model = copy.deepcopy(made())
    if name == "pictures, whole logits":  # as of architectures that change them after the head
        model.config.get_text_config().logit_scale = 0.5
    if "lora" in name:
        model = add_lora(model, 3, seed=1)
    backward = config.algo.advantage.updates_last_turn_first
    make = partial(
        LastTurnFirstLearner if backward else TorchLearner,
        config=config.learner,
        loss=config.algo.loss,
        regularizer=config.regularizer,
        temperature=0.9,
        seed=3,
        total_updates=4,
        demonstrations=demonstrations(config),
    )
    return config, model, make


def mixture() -> Any:
    """Return a small mixture of four experts, of which two are chosen."""
    config = MixtralConfig(
        vocab_size=330,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MixtralForCausalLM(config).float().eval()


def demonstrations(config: TrainConfig) -> Demonstrations | None:
    term = config.algo.loss.imitation
    shown = random_samples(models.model(), count=9, seed=11)
    return Demonstrations(shown, term, seed=3) if term.weight else None


def samples_of(name: str) -> list[TrainingSample]:
    count = 1 if name == "fewer samples than ranks" else 10
    samples = random_samples(models.model(), count=count, seed=7)
    rng = np.random.default_rng(1)
    noisy = []
    for n, sample in enumerate(samples):
        noise = rng.normal(0, 0.3, sample.token_ids.size).astype(np.float32)
        behaviour = np.where(sample.loss_mask, sample.behaviour_logprobs + noise, 0)
        own = n // 2 if name == "split episodes" else n
        group = own // 2
        one = replace(sample, behaviour_logprobs=behaviour, trajectory=own, group=group)
        if name.startswith("pictures") and n % 2:  # those of one rank have none
            vision = vision_of(models.seeing())
            picture = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            ids = sample.token_ids.copy()
            ids[[1]] = vision.tokens(vision.pictures.keep(picture))
            one = replace(one, token_ids=ids)
        if name.startswith("routing"):
            first = rng.integers(0, 4, (sample.token_ids.size, 2, 1))
            experts = np.concatenate([first, (first + 1) % 4], axis=-1).astype(np.uint16)
            one = replace(one, routing=experts)
        noisy.append(one)
    return noisy


def apart(before: Any, one: Any, other: Any) -> float:
    """Return how far two models are apart, as a share of how far they came."""
    first, a, b = (dict(model.named_parameters()) for model in (before, one, other))
    moved = sum((a[name] - first[name]).square().sum().item() for name in first)
    between = sum((a[name] - b[name]).square().sum().item() for name in first)
    return float((between / moved) ** 0.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
