"""How a run begins, and how it is resumed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from turngym.agents.build import build_engine
from turngym.agents.engine.config import (
    LocalEngineConfig,
    PretrainedModelConfig,
    TinyModelConfig,
    VllmEngineConfig,
)
from turngym.agents.engine.devices import device_of
from turngym.agents.engine.models import (
    PREFIX,
    add_lora,
    build_tiny_model,
    check_model_path,
    load_model_dir,
    load_tokenizer,
)
from turngym.agents.engine.protocol import vision_of
from turngym.agents.engine.small_tokenizer import small_action, train_tokenizer
from turngym.agents.rendering import Renderer
from turngym.agents.scripted import ExpertPolicy
from turngym.errors import CheckpointError, ConfigError, RecordError, TrainingError
from turngym.nodes import alive, check_room, connect
from turngym.pictures import PictureFolder, number_of
from turngym.records import read_trajectories, write_trajectories
from turngym.registry import find
from turngym.rollouts.players import by_player
from turngym.rollouts.recorded import FOREIGN
from turngym.rollouts.recorded import episodes as recorded_episodes
from turngym.seeding import derive_seed
from turngym.trainers.runs.checkpoints import (
    MODEL,
    Checkpoint,
    RunState,
    advice,
    latest_checkpoint,
    load_checkpoint,
)
from turngym.trainers.runs.episode_runner import EpisodeRunner
from turngym.trainers.runs.needs import check_change
from turngym.trainers.runs.run import Run
from turngym.trainers.runs.run_folder import RunFolder
from turngym.trainers.settings.optimizer import WarmStartConfig
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.compute import place
from turngym.trainers.update.forward import check_packing
from turngym.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from turngym.trainers.distributed.group import Group

logger = logging.getLogger(__name__)

_TOKENIZER_EPISODES = 64
"""Expert episodes that a tokenizer is trained on when none are imitated."""


def check_devices(config: TrainConfig, out: Path) -> None:
    """Make sure that the devices, model and nodes for environments are there which settings name.

    Args:
        config: The settings.
        out: Folder of the run, which may hold the model already.

    Raises:
        MissingExtraError: Ray is wanted, and not installed.
        ConfigError: One is not.
    """
    if isinstance(config.model, PretrainedModelConfig):
        path = _model_path(config.model, latest_checkpoint(out / "checkpoints"))
        if isinstance(path, str):
            check_model_path(path, context=config.model.context)
            if not path.startswith(PREFIX):  # whether it is there and can chat, before it plays
                Renderer(load_tokenizer(path, config.model), tool_calls=config.agent.tool_calls)
    elif config.model.tokenizer:
        load_tokenizer(config.model.tokenizer)
    is_rank = "WORLD_SIZE" in os.environ
    last = None if is_rank else config.learner.ranks - 1
    device_of(config.learner.device, setting="learner.device", number=last)
    if isinstance(config.engine, LocalEngineConfig):
        device_of(config.engine.device, setting="engine.device")
    else:
        _check_gpus(config)
    if config.rollout.isolation == "ray":
        workers = config.rollout.workers
        found = alive(connect("rollout.isolation='ray'"))
        needed = {workers.resource: workers.amount}
        check_room(found, needed, workers.number, setting="rollout.workers")


def _model_path(model: PretrainedModelConfig, newest: Path | None) -> str | Path:
    """Return what to load a model from: the newest checkpoint, which holds all of it.

    So ``model.path`` may be gone when a run resumes, unless it is what adapters belong to.
    """
    return model.path if newest is None or model.lora_rank else newest / MODEL


def _check_gpus(config: TrainConfig) -> None:
    """Make sure that weights in flight have a GPU to start from, and those that they go to."""
    engine = config.placed_engine
    if not isinstance(engine, VllmEngineConfig) or engine.weights == "files":
        return
    is_far = engine.urls or engine.resource
    wanted = 1 if is_far else engine.gpus_of(engine.replicas - 1).stop
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < wanted:
        raise ConfigError(
            f"engine.weights={engine.weights!r}: wanted {wanted} GPUs here, for the learner and "
            f"for servers, torch {torch.__version__} finds {found or 'none'}; set "
            "engine.weights=files, or fewer engine.replicas or engine.gpus"
        )


async def build_run(config: TrainConfig, folder: RunFolder, group: Group | None = None) -> Run:
    """Return a run at its beginning, or where its newest checkpoint left it.

    Args:
        config: The settings.
        folder: Where it is kept.
        group: The ranks that train; None for this process alone.

    Raises:
        ConfigError: Environment or model do not exist, or do not fit.
        CheckpointError: The newest checkpoint is broken.
        TrainingError: The expert's episodes could not be played.
    """
    async with AsyncExitStack() as opened:  # and closed again where one of these fails
        runner = EpisodeRunner(config, folder.path)
        opened.callback(runner.close)
        newest = latest_checkpoint(folder.checkpoints)
        checkpoint = None if newest is None else load_checkpoint(newest)
        state = _state_of(checkpoint, config)
        folder.check_metrics(state.metrics_bytes, state.metrics_sha256, newest)
        episodes = await _expert_episodes(config, folder, runner)
        tokenizer, model = _build_policy(config, episodes, runner, newest)
        _check_teacher(config, tokenizer)
        _share_pictures(runner, tokenizer)
        engine = build_engine(
            config.placed_engine,
            model,
            tokenizer,
            context=config.model.context,
            max_sessions=config.open_sessions * runner.selves,
        )
        if isinstance(config.model, PretrainedModelConfig) and config.model.lora_rank:
            seed = derive_seed(config.run.seed, "lora")
            model = add_lora(model, config.model.lora_rank, seed=seed)
        place(model, config.learner, move=group is None)
        if group is None:
            check_packing(model)
        else:
            from turngym.trainers.distributed.sharding import check_shards

            check_shards(model)
        run = Run(
            config,
            folder,
            runner,
            tokenizer=tokenizer,
            model=model,
            engine=engine,
            state=state,
            group=group,
        )
        opened.push_async_callback(run.close)
        run.demonstrations = episodes[: config.algo.demonstrations]
        if checkpoint is not None:
            await run.restore(checkpoint, episodes)
        elif config.warm_start.imitates:
            run.start_imitation(episodes)
        opened.pop_all()
    return run


def _check_teacher(config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make sure that a teacher which is a folder reads the tokens of the policy.

    Raises:
        ConfigError: It has another tokenizer.
    """
    teacher = config.algo.teacher
    if teacher is None or teacher.server is not None:
        return
    if load_tokenizer(teacher.model).get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            f"algo.teacher {teacher.model!r}: has another tokenizer than the policy, and would "
            "read other texts; wanted a model of the same family, or a tiny one with "
            f"model.tokenizer={teacher.model}"
        )


def _share_pictures(runner: EpisodeRunner, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a model that sees look at the pictures of the run; say so where it does not see them."""
    vision = vision_of(tokenizer)
    if vision is not None and runner.pictures is not None:
        vision.pictures = runner.pictures
    elif runner.unseen:
        logger.warning(
            "%s shows pictures, and the model reads text alone: set model.images (of a tiny one "
            "model.image_size) to show them, or turn them off in env.options",
            ", ".join(runner.unseen),
        )


def _state_of(checkpoint: Checkpoint | None, config: TrainConfig) -> RunState:
    """Return where the run stands; one that was done trains on where it has more updates now.

    Raises:
        CheckpointError: The checkpoint is of a run of other settings.
    """
    if checkpoint is None:
        return RunState()
    try:
        check_change(checkpoint.path, checkpoint.state["config"], config.model_dump(mode="json"))
    except ConfigError as error:
        found = str(error).splitlines()[0].partition("; ")[0]
        raise CheckpointError(f"{found}; {advice(checkpoint.path)}") from error
    state = RunState(**checkpoint.state["run"])
    is_over = state.phase in ("after", "done") and not state.reached_target
    if is_over and state.step < config.run.steps:
        state.phase, state.after, state.validated = "train", None, state.step
    return state


async def _expert_episodes(
    config: TrainConfig, folder: RunFolder, runner: EpisodeRunner
) -> list[Trajectory]:
    """Return the expert's episodes: for imitation, tokenizer and credit; played once and kept."""
    start, file = config.warm_start, folder.expert
    imitated = start.episodes if start.imitates else 0
    is_new = isinstance(config.model, TinyModelConfig) and not config.model.tokenizer
    wanted = {
        "warm_start.episodes": imitated,
        "the tokenizer of model.type='tiny'": (imitated or _TOKENIZER_EPISODES) if is_new else 0,
        f"demonstrations of algo {config.algo.name!r}": config.algo.demonstrations,
    }
    count = max(wanted.values())
    if count == 0:
        return []
    if file.exists():
        folder.manifest.check(file, advice="delete it to have its episodes played again")
    else:
        was_kept = file in folder.manifest
        if was_kept:
            logger.warning("%s: is missing; its episodes are played again", file)
        expert = ExpertPolicy(start.expert_noise, start.noise_commands)
        try:
            if start.trajectories:
                played = await asyncio.to_thread(_recorded_episodes, start, runner, count)
            else:
                played = await runner.expert_episodes(expert, count=count)
        except ConfigError as error:
            if start.trajectories:
                raise ConfigError(f"warm_start.trajectories: {error}") from error
            whose = ", ".join(what for what, number in wanted.items() if number)
            raise ConfigError(f"{error} (the expert plays for {whose})") from error
        if all(one.stop_reason.is_error for one in played):
            raise TrainingError(
                f"{folder.path}: every one of the expert's {count} episodes broke, so there is "
                f"nothing to learn from: {played[0].error}"
            )
        write_trajectories(file, played)
        if was_kept:
            try:
                folder.manifest.check(file, advice="restore it from a copy")
            except RecordError:
                file.unlink()
                raise
    if file not in folder.manifest:
        folder.manifest.add(file)
    found = [t for t in read_trajectories(file) if not t.stop_reason.is_error]
    return [side for one in found for side in by_player(one)]


def _recorded_episodes(
    start: WarmStartConfig, runner: EpisodeRunner, count: int
) -> list[Trajectory]:
    """Return recorded episodes as an expert's, without the system messages of who played them."""
    measured, speaking = runner.measured, runner.speaking
    names = {find(own).short_name: own for own in runner.make_env} | {o: o for o in runner.make_env}
    found: list[Trajectory] = []
    left: Counter[str] = Counter()
    for path in map(Path, start.trajectories):
        pictures = PictureFolder(path if path.is_dir() else path.parent)
        for _, one in recorded_episodes(path):
            is_foreign = one.env_id.startswith(FOREIGN) and len(runner.make_env) == 1
            own = runner.env_id if is_foreign else names.get(one.env_id)
            score = -1.0 if one.score is None else one.score
            if own is None:
                left[f"of {one.env_id}"] += 1
            elif one.task_id in measured:
                left["of tasks that this run measures on"] += 1
            elif one.stop_reason.is_error or not one.turns:
                left["that broke"] += 1
            elif start.min_score is not None and score < start.min_score:
                left[f"with a score below {start.min_score:g}, or none"] += 1
            else:
                one = _as_expert(replace(one, env_id=own), speaks=own in speaking)
                found.append(_with_pictures(one, pictures, runner.pictures))
    why = ", ".join(f"{number} {what}" for what, number in left.most_common())
    if not found:
        raise ConfigError(
            f"nothing to imitate; left out: {why or 'none'}"
            + (" (warm_start.min_score=null takes all)" if "score" in why else "")
        )
    if why or len(found) > count:
        logger.warning(
            "warm_start.trajectories: %d episodes of %d are imitated; left out: %s",
            min(count, len(found)), len(found) + left.total(),
            why or "those above warm_start.episodes",
        )  # fmt: skip
    return found[:count]


def _as_expert(one: Trajectory, *, speaks: bool) -> Trajectory:
    """Return an episode as if an expert had played it: no tokens, no prompt of its own.

    Args:
        one: As another agent played it.
        speaks: The environment says who speaks, so that its messages stay as they are.
    """
    turns = []
    for number, turn in enumerate(one.turns):
        seen = [message for message in turn.observation if speaks or message.role != "system"]
        if number and not turn.starts_segment and not speaks and seen:
            seen[0] = replace(seen[0], role="user")
        turns.append(replace(turn, observation=tuple(seen), spans=()))
    return replace(one, turns=tuple(turns))


def _with_pictures(
    one: Trajectory, theirs: PictureFolder, ours: PictureFolder | None
) -> Trajectory:
    """Return an episode with its pictures among ``ours``; with none where the model sees none."""

    def moved(name: str | None) -> str | None:
        seen = name is not None and ours is not None
        return ours(theirs.pixels(number_of(name))) if seen else None  # type: ignore[misc, arg-type]

    turns = tuple(replace(turn, picture=moved(turn.picture)) for turn in one.turns)
    return replace(one, turns=turns, final_picture=None)


def _build_policy(
    config: TrainConfig, episodes: Sequence[Trajectory], runner: EpisodeRunner, newest: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    if isinstance(config.model, PretrainedModelConfig):
        path = _model_path(config.model, newest)
        chat = config.model if path == config.model.path else None  # a checkpoint's has it
        model, tokenizer = load_model_dir(path, chat, images=config.model.images)
        return tokenizer, model
    seed = derive_seed(config.run.seed, "model")
    if config.model.tokenizer:
        taken = load_tokenizer(config.model.tokenizer)
        return taken, build_tiny_model(config.model, taken, seed=seed)
    turns = [turn for episode in episodes for turn in episode.turns]
    texts, calls = list[str](), config.agent.tool_calls is not False
    for turn in turns:
        texts += [message.content for message in turn.observation]
        texts.append(small_action(turn.action) if calls else turn.action.content)
    if config.agent.instructions:
        texts += [str(info.get("instructions", "")) for info in runner.introductions.values()]
    small = train_tokenizer(texts, config.model.vocab_size, images=config.model.images)
    return small, build_tiny_model(config.model, small, seed=seed)
