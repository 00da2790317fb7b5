"""One run in memory: policy, engine, learner, where it stands, and how it is kept and taken up."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from turngym.agents.build import TRAINED_AS, prompting_of, with_parts
from turngym.agents.engine.chat import EngineModel
from turngym.agents.engine.models import load_model_dir, load_tokenizer
from turngym.agents.engine.protocol import Sampling, TrainableEngine
from turngym.agents.rendering import Renderer
from turngym.errors import CheckpointError
from turngym.rollouts.evaluation.evaluate import Evaluation, summarize
from turngym.seeding import derive_seed
from turngym.trainers.beside import beside
from turngym.trainers.credit.base import Credit, CreditContext, CreditMethod, build_credit
from turngym.trainers.metrics import (
    JsonLinesLogger,
    MetricsLogger,
    TensorBoardLogger,
    read_metrics,
)
from turngym.trainers.runs.arena import Arena
from turngym.trainers.runs.checkpoints import (
    Checkpoint,
    save_checkpoint,
)
from turngym.trainers.runs.curve import draw_curve
from turngym.trainers.runs.progress import HeldOut, TrainResult
from turngym.trainers.runs.rollout_metrics import evaluation_metrics
from turngym.trainers.runs.run_folder import RunFolder
from turngym.trainers.runs.run_state import Phase, RunState
from turngym.trainers.samples import TrainingSample
from turngym.trainers.selection.batches import Chosen, with_imitation
from turngym.trainers.selection.filters import down_sampled
from turngym.trainers.selection.policy import DataSelection
from turngym.trainers.settings.selection import Imitation
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.imitation import Imitator
from turngym.trainers.update.learner import TorchLearner, needs_reference
from turngym.trainers.update.lora import (
    ADAPTER,
    adapter_state,
    full_state,
    is_adapted,
    load_adapter_state,
    load_own_state,
    own_state,
    save_merged,
    write_adapter_config,
)
from turngym.trainers.update.protocol import Learner
from turngym.trainers.update.sequential import LastTurnFirstLearner
from turngym.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SECONDS_BETWEEN_CURVES = 30.0
"""A picture takes longer than a small update, and holds up the loop."""


class Run:
    """Everything one run holds. ``open_run`` makes it.

    Args:
        config: The settings.
        folder: Where it is kept; owned by the caller.
        arena: Plays the episodes.
        tokenizer: Of the model.
        model: The policy that is trained, with adapters or without.
        engine: Samples tokens; made from the model without adapters.
        state: Where the run stands.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        arena: Arena,
        *,
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel,
        engine: TrainableEngine,
        state: RunState,
    ) -> None:
        self.config = config
        self.folder = folder
        self.arena = arena
        self.model = model
        self.state = state
        self._last_curve_s = time.monotonic()
        self.imitator: Imitator | None = None
        self.learner: Learner | None = None
        self.credit: CreditMethod | None = None
        self.selection = DataSelection(
            config.selection,
            arena.pool,
            groups_per_step=config.rollout.groups_per_step,
            group_size=config.rollout.group_size,
            seed=derive_seed(config.run.seed, "selection"),
        )
        self.reference: PreTrainedModel | None = None
        self._tokenizer = tokenizer
        self._engine = engine
        self.renderer = Renderer(tokenizer)
        self.sampling = Sampling(
            temperature=config.rollout.temperature, max_new_tokens=config.rollout.max_new_tokens
        )
        self.sampled, self.greedy = (
            with_parts(EngineModel(engine, self.renderer, sampling=sampling), config.agent)
            for sampling in (self.sampling, replace(self.sampling, temperature=0.0))
        )
        self._metrics = JsonLinesLogger(folder.metrics, offset=state.metrics_bytes)
        folder.mark_logs(state.metrics_bytes, self._metrics.sha256)
        self._loggers: list[MetricsLogger] = []
        if config.run.tensorboard:
            self._loggers.append(TensorBoardLogger(folder.path / "tensorboard"))
        self._laps: dict[str, float] = {}
        self._since = time.perf_counter()

    async def close(self) -> None:
        """Close what is open. Safe to call twice."""
        await self._engine.close()
        self._metrics.close()
        for logger in self._loggers:
            logger.close()
        self.arena.close()

    async def publish(self) -> None:
        """Give the engine the model's weights; the number of updates is their version."""
        await self._engine.publish(full_state(self.model), self.state.step)

    def lap(self, name: str) -> None:
        """Count the seconds since the last lap under ``name``."""
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._since
        self._since = now

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write numbers, and apart from them the laps since the last time."""
        self.folder.outbox.write(self.folder.metrics, lambda: self._metrics.log(step, metrics))
        for logger in self._loggers:
            logger.log(step, metrics)
        if self._laps:
            seconds = sum(self._laps.values())
            row = {"phase": self.state.phase, "step": step, "seconds": seconds, **self._laps}
            self.folder.outbox.write(self.folder.timings, lambda: self.folder.add_timing(row))
            self._laps = {}

    async def validate(self, purpose: Literal["warm_start", "validation"], step: int) -> Evaluation:
        """Play the validation tasks with the newest weights, log and keep what was seen."""
        await self.publish()
        self.lap("update_s")
        trajectories = await self.arena.validation_episodes(self.sampled, purpose, step)
        self.lap("validation_s")
        found = summarize(trajectories)
        self.log(step, evaluation_metrics(purpose, found))
        label = f"{step:06d}" if purpose == "validation" else f"{purpose}-{step:06d}"
        self.folder.keep_trajectories(label, trajectories)
        self.state.validated = step
        return found

    async def assign_credit(self, chosen: Chosen) -> Credit:
        """Return what a batch of episodes teaches; keep a group of it as often as one validates.

        The tokens that the method drew of its own are ``credit/drawn_tokens``, where nobody else
        draws at the same time.
        """
        assert self.credit is not None
        before = self._engine.stats.sampled_tokens
        is_alone = self.config.rollout.mode == "sync"
        if is_alone or not getattr(self.credit, "in_thread", False):
            credit = await self.credit.assign(chosen.groups)
        else:  # episodes go on meanwhile
            credit = await beside(partial(self.credit.assign, chosen.groups))
        if is_alone:
            drawn = float(self._engine.stats.sampled_tokens - before)
            credit = replace(credit, metrics={**credit.metrics, "credit/drawn_tokens": drawn})
        if self.state.step % self.config.evaluation.every == 0:
            self.folder.keep_group(f"train-{self.state.step:06d}", credit)
        if self.config.selection.keep_attempts is not None:
            credit = down_sampled(credit, self.config.selection.keep_attempts)
        if isinstance(self.config.selection.replay, Imitation):
            baseline, weight = self.selection.imitation(self.state.step)
            credit = with_imitation(credit, chosen.imitated, baseline=baseline, weight=weight)
        return credit

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Change the weights once and return ``train/*``."""
        assert self.learner is not None
        metrics = self.learner.update(samples)
        self.lap("update_s")
        return metrics

    def finish_step(self, metrics: Mapping[str, float], groups: Sequence[TrajectoryGroup]) -> None:
        """Close a step: log and count. The new weights are neither published nor kept yet."""
        state = self.state
        self.log(state.step, metrics)
        state.step += 1
        state.episodes += sum(len(group.trajectories) for group in groups)
        state.faults += sum(len(g.trajectories) - len(g.usable) for g in groups)

    def keep(self) -> bool:
        """Keep the run when it is due, and say whether it was."""
        is_due = self.state.step % self.config.run.checkpoint_every == 0
        if is_due:
            self.save()
        return is_due

    def finish_measure(self, found: HeldOut, trajectories: Sequence[Trajectory]) -> None:
        """Close a held-out measurement and enter the next phase."""
        state = self.state
        self.lap("held_out_s")
        self.log(
            state.step,
            evaluation_metrics("held_out/sampled", found.sampled)
            | evaluation_metrics("held_out/greedy", found.greedy),
        )
        self.folder.keep_trajectories(f"held_out-{state.step:06d}", trajectories)
        if state.phase == "before":
            state.before = found.to_json()
            self.begin("train")
        else:
            state.after = found.to_json()
            self.begin("done")

    def conclude(self) -> None:
        """Write what came of a run that is done."""
        self.draw()
        self.folder.outbox.write(
            self.folder.summary, lambda: self.folder.conclude(self.result().to_json())
        )

    def draw_now_and_then(self) -> None:
        """Draw the learning curve, unless that was just done."""
        if time.monotonic() - self._last_curve_s >= SECONDS_BETWEEN_CURVES:
            self.draw()

    def draw(self) -> None:
        """Draw the learning curve as far as it goes."""
        self._last_curve_s = time.monotonic()
        state = self.state
        held_out = {
            step: HeldOut.from_json(content).sampled
            for step, content in ((0, state.before), (state.step, state.after))
            if content is not None
        }
        title = f"{self.config.env.id}, {self.config.algo.name}, seed {self.config.run.seed}"
        file, metrics = self.folder.curve, self.folder.metrics
        self.folder.outbox.write(
            file, lambda: draw_curve(file, read_metrics(metrics), title=title, held_out=held_out)
        )

    def result(self) -> TrainResult:
        """Return what came of a run that is done."""
        state = self.state
        assert state.before is not None
        assert state.after is not None
        return TrainResult(
            folder=self.folder.path,
            env=self.config.env.id,
            algo=self.config.algo.name,
            seed=self.config.run.seed,
            updates=state.step,
            episodes=state.episodes,
            faults=state.faults,
            warm_start_steps=state.warm_steps,
            warm_start_success=state.warm_success,
            reached_target=state.reached_target,
            before=HeldOut.from_json(state.before),
            after=HeldOut.from_json(state.after),
            seconds=self.folder.seconds(),
        )

    def start_imitation(self, episodes: Sequence[Trajectory]) -> Imitator:
        """Make what the warm start needs."""
        prompting = prompting_of(self.config.agent)
        system = prompting.opening(self.arena.instructions or "", (), native_tools=False)
        rendered = [self.renderer.render_episode(e, system) for e in episodes]
        seed = derive_seed(self.config.run.seed, "warm_start")
        self.imitator = Imitator(self.model, rendered, self.config.warm_start, seed=seed)
        return self.imitator

    def start_learning(self) -> Learner:
        """Make what reinforcement needs; the policy as it is now becomes the reference."""
        if needs_reference(self.config.algo.loss, self.config.regularizer):
            self.reference = copy.deepcopy(self.model).requires_grad_(False)
        advantage = self.config.algo.advantage
        kind = LastTurnFirstLearner if advantage.updates_last_turn_first else TorchLearner
        self.learner = kind(
            self.model,
            self.config.learner,
            self.config.algo.loss,
            self.config.regularizer,
            temperature=self.config.rollout.temperature,
            seed=derive_seed(self.config.run.seed, "learner"),
            reference=self.reference,
            total_updates=self.config.run.steps,
        )
        self.credit = build_credit(
            self.config.algo,
            CreditContext(
                model=self.model,
                renderer=self.renderer,
                engine=self._engine,
                sampling=self.sampling,
                seed=derive_seed(self.config.run.seed, "credit"),
                max_tokens=self.config.learner.microbatch_tokens,
                total_updates=self.config.run.steps,
            ),
        )
        return self.learner

    def begin(self, phase: Phase) -> None:
        """Enter a phase and keep the run."""
        self.state.phase = phase
        self.state.validated = -1
        if phase == "train":
            self.imitator = None
            self.start_learning()
        self.save()

    def save(self) -> None:
        """Write a checkpoint. It may wait for room; nothing may change before it is written.

        Raises:
            CheckpointError: It could not be written for another reason; earlier ones are intact.
        """
        self.folder.outbox.write(self.folder.checkpoints, self._save)

    def _save(self) -> None:
        state, trainer = self.state, self.learner or self.imitator
        state.metrics_bytes, state.metrics_sha256 = self._metrics.offset, self._metrics.sha256
        state.optimizer_steps = 0 if trainer is None else trainer.steps
        tensors: dict[str, Mapping[str, Tensor]] = {}
        if trainer is not None:
            tensors["optimizer"] = trainer.state()
        if is_adapted(self.model):
            tensors[ADAPTER] = adapter_state(self.model)
        if self.reference is not None:
            tensors["reference"] = own_state(self.reference)
        if self.credit is not None and (learned := self.credit.state()):
            tensors["credit"] = learned
        step = state.warm_steps if state.phase == "warm_start" else state.step
        save_checkpoint(
            self.folder.checkpoints,
            f"{state.phase}-{step}",
            state={
                "run": asdict(state),
                "config": self.config.model_dump(mode="json"),
                "selection": {} if self.config.selection.is_plain else self.selection.state(),
            },
            tensors=tensors,
            write_model=self._write_model,
            keep=self.config.run.keep_checkpoints,
        )
        self.folder.mark_logs(state.metrics_bytes, state.metrics_sha256)

    def _write_model(self, path: Path) -> None:
        save_merged(self.model, self._tokenizer, path)
        rollout = self.config.rollout
        trained = self.config.agent.model_dump(mode="json") | {
            "max_new_tokens": rollout.max_new_tokens,
            "context": self.config.model.context,
        }
        (path / TRAINED_AS).write_text(json.dumps(trained) + "\n", encoding="utf-8")
        if is_adapted(self.model):
            write_adapter_config(self.model, path.parent / Path(ADAPTER).parent)

    async def restore(self, checkpoint: Checkpoint, episodes: Sequence[Trajectory]) -> None:
        """Take up weights and optimizer where ``checkpoint`` left them.

        Raises:
            CheckpointError: It was made with another tokenizer, or lacks what training on needs.
        """
        if load_tokenizer(checkpoint.model_dir).get_vocab() != self._tokenizer.get_vocab():
            raise CheckpointError(
                f"{checkpoint.path}: was made with another tokenizer than the one of this run; the "
                "expert episodes or the model that it came from have changed: restore them from a "
                "copy"
            )
        if is_adapted(self.model):
            load_adapter_state(
                self.model, checkpoint.tensors(ADAPTER) or checkpoint.tensors("adapter")
            )
        else:
            self.model.load_state_dict(load_model_dir(checkpoint.model_dir)[0].state_dict())
        steps, moments = self.state.optimizer_steps, checkpoint.tensors("optimizer")
        if self.state.phase == "warm_start" and self.config.warm_start.imitates:
            self.start_imitation(episodes).load_state(moments, steps=steps)
        elif self.state.phase not in ("warm_start", "before"):
            is_longer = self.state.phase != checkpoint.state["run"]["phase"]
            if is_longer and not moments and self.state.metrics_sha256 is None:
                raise CheckpointError(  # of an earlier version, which did not keep it to the end
                    f"{checkpoint.path}: holds no optimizer, so the run cannot be made longer"
                )
            learner = self.start_learning()
            learner.load_state(moments, updates=self.state.step, steps=steps)
            if self.reference is not None:
                load_own_state(self.reference, checkpoint.tensors("reference"))
            assert self.credit is not None
            self.credit.load_state(checkpoint.tensors("credit"))
            if selection := checkpoint.state.get("selection"):
                self.selection.load_state(selection)
        await self.publish()
