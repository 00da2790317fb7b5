"""How one run is saved and its model restored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngym.agents.build import TRAINED_AS
from turngym.agents.engine.models import load_model_dir, load_tokenizer
from turngym.errors import CheckpointError
from turngym.trainers.runs.checkpoints import Checkpoint, RunState, save_checkpoint
from turngym.trainers.runs.phases import SHARDS, Learning
from turngym.trainers.runs.run_folder import RunFolder
from turngym.trainers.runs.run_log import RunLog
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.imitation import Imitator
from turngym.trainers.update.optimizer import (
    ADAPTER,
    adapter_state,
    is_adapted,
    load_adapter_state,
    save_merged,
    write_adapter_config,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from turngym.trainers.distributed.learner import ImitatorGroup

    Trainer = Imitator | ImitatorGroup | Learning


class Checkpointer:
    """Writes checkpoints of one run, and reads its model out of them.

    Args:
        config: The run's settings.
        folder: Where they go, through its outbox.
        state: Where the run stands.
        log: What belongs to a checkpoint of it.
        model: The policy, with adapters or without.
        tokenizer: Of the model.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        state: RunState,
        log: RunLog,
        *,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self._config = config
        self._folder = folder
        self._state = state
        self._log = log
        self._model = model
        self._tokenizer = tokenizer

    def save(self, trainer: Trainer | None, selection: Mapping[str, Any]) -> None:
        """Write a checkpoint.

        Args:
            trainer: What the phase trains with; None between phases.
            selection: What the data selection learned.

        Raises:
            CheckpointError: It could not be written; earlier ones are intact.
        """
        state = self._state
        state.metrics_bytes, state.metrics_sha256 = self._log.mark()
        state.optimizer_steps = 0 if trainer is None else trainer.steps
        tensors: dict[str, Mapping[str, Tensor]] = {} if trainer is None else trainer.tensors()
        shards = trainer.learner if isinstance(trainer, Learning) else trainer
        write_shards = getattr(shards, "write_shards", None)
        if is_adapted(self._model):
            tensors[ADAPTER] = adapter_state(self._model)
        step = state.warm_steps if state.phase == "warm_start" else state.step
        save_checkpoint(
            self._folder.checkpoints,
            f"{state.phase}-{step}",
            state={
                "run": asdict(state),
                "config": self._config.model_dump(mode="json"),
                "selection": selection,
            },
            tensors=tensors,
            write_model=partial(self._write_model, write_shards),
            keep=self._config.run.keep_checkpoints,
        )
        self._folder.mark_logs(state.metrics_bytes, state.metrics_sha256)

    def _write_model(self, write_shards: Callable[[Path], None] | None, path: Path) -> None:
        if write_shards is not None:
            write_shards(path.parent / SHARDS)
        save_merged(self._model, self._tokenizer, path)
        trained = self._config.agent.model_dump(mode="json") | {
            "max_new_tokens": self._config.rollout.max_new_tokens,
            "context": self._config.model.context,
        }
        (path / TRAINED_AS).write_text(json.dumps(trained) + "\n", encoding="utf-8")
        if is_adapted(self._model):
            write_adapter_config(self._model, path.parent / Path(ADAPTER).parent)

    def load_model(self, checkpoint: Checkpoint) -> None:
        """Give the policy the weights of ``checkpoint``.

        Raises:
            CheckpointError: It was made with another tokenizer.
        """
        if load_tokenizer(checkpoint.model_dir).get_vocab() != self._tokenizer.get_vocab():
            raise CheckpointError(
                f"{checkpoint.path}: was made with another tokenizer than the one of this run; the "
                "expert episodes or the model that it came from have changed: restore them from a "
                "copy"
            )
        if is_adapted(self._model):
            tensors = checkpoint.tensors(ADAPTER) or checkpoint.tensors("adapter")
            load_adapter_state(self._model, tensors)
        else:
            self._model.load_state_dict(load_model_dir(checkpoint.model_dir)[0].state_dict())
