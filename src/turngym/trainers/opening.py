"""How a run begins, how it is taken up again, and how its policy is loaded for use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from turngym.agents.engine import LocalEngine, Sampling
from turngym.agents.local import LocalPolicy
from turngym.agents.models import (
    PretrainedModelConfig,
    TinyModelConfig,
    add_lora,
    build_tiny_model,
)
from turngym.agents.rendering import Renderer
from turngym.agents.scripted import OraclePolicy
from turngym.agents.tokenizers import train_tokenizer
from turngym.config import load_config
from turngym.records import read_trajectories, write_trajectories
from turngym.seeding import derive_seed
from turngym.trainers.arena import Arena
from turngym.trainers.checkpoints import find_model, latest_checkpoint, load_checkpoint
from turngym.trainers.config import TrainConfig
from turngym.trainers.model_files import read_model
from turngym.trainers.run import Run
from turngym.trainers.run_folder import RunFolder
from turngym.trainers.run_state import RunState
from turngym.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TOKENIZER_EPISODES = 64
"""Expert episodes that a tokenizer is trained on when none are imitated."""


async def open_run(config: TrainConfig, folder: RunFolder) -> Run:
    """Return a run at its beginning, or where its newest checkpoint left it.

    Raises:
        ConfigError: Environment or model do not exist, or do not fit.
        CheckpointError: The newest checkpoint is broken.
        TrainingError: The expert's episodes could not be played.
    """
    arena = Arena(config)
    try:
        return await _open(config, folder, arena)
    except BaseException:
        arena.close()
        raise


async def _open(config: TrainConfig, folder: RunFolder, arena: Arena) -> Run:
    newest = latest_checkpoint(folder.checkpoints)
    checkpoint = None if newest is None else load_checkpoint(newest)
    state = RunState() if checkpoint is None else RunState(**checkpoint.state["run"])
    episodes = await _expert_episodes(config, folder, arena)
    tokenizer, model = _build_policy(config, episodes, arena.instructions)
    overlaps = config.rollout.mode == "overlap"  # then validation plays beside the rollouts
    engine = LocalEngine(
        model,
        tokenizer,
        context=config.model.context,
        max_sessions=config.rollout.concurrency * (2 if overlaps else 1),
    )
    if isinstance(config.model, PretrainedModelConfig) and config.model.lora_rank:
        seed = derive_seed(config.run.seed, "lora")
        model = add_lora(model, config.model.lora_rank, seed=seed)
    run = Run(config, folder, arena, tokenizer=tokenizer, model=model, engine=engine, state=state)
    if checkpoint is not None:
        run.restore(checkpoint, episodes)
    elif config.warm_start.episodes:
        run.start_imitation(episodes)
    return run


def load_policy(path: Path, *, greedy: bool = True) -> LocalPolicy:
    """Return the policy of a run's newest checkpoint, or of one checkpoint.

    Args:
        path: Folder of a run or of a checkpoint.
        greedy: Take the likeliest token; otherwise sample as in training.

    Raises:
        CheckpointError: There is none, or it is broken.
    """
    model_dir = find_model(path)
    checkpoint = load_checkpoint(model_dir.parent)
    config = load_config(TrainConfig, [checkpoint.state["config"]])
    model, tokenizer = read_model(model_dir)
    return LocalPolicy(
        LocalEngine(model, tokenizer, context=config.model.context),
        Renderer(tokenizer),
        sampling=Sampling(
            temperature=0.0 if greedy else config.rollout.temperature,
            max_new_tokens=config.rollout.max_new_tokens,
        ),
        system_prompt=config.rollout.system_prompt,
    )


async def _expert_episodes(
    config: TrainConfig, folder: RunFolder, arena: Arena
) -> list[Trajectory]:
    """Return the episodes to imitate and to train a tokenizer on, played once and then kept."""
    count = config.warm_start.episodes
    if isinstance(config.model, TinyModelConfig):
        count = count or _TOKENIZER_EPISODES
    if count == 0:
        return []
    file = folder.trajectories / "expert.jsonl"
    if not file.exists():
        start = config.warm_start
        expert = OraclePolicy(start.oracle_noise, start.noise_commands)
        write_trajectories(file, await arena.expert_episodes(expert, count=count))
    return [t for t in read_trajectories(file) if not t.stop_reason.is_error]


def _build_policy(
    config: TrainConfig, episodes: Sequence[Trajectory], instructions: str | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    if isinstance(config.model, PretrainedModelConfig):
        model, tokenizer = read_model(config.model.path)
        return tokenizer, model
    turns = [turn for episode in episodes for turn in episode.turns]
    texts = [message.content for turn in turns for message in (*turn.observation, turn.action)]
    small = train_tokenizer([*texts, instructions or ""], config.model.vocab_size)
    seed = derive_seed(config.run.seed, "model")
    return small, build_tiny_model(config.model, small, seed=seed)
