"""What the phases of a run train with: an imitator, then a learner with a credit method."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turngym.agents.build import prompting_of
from turngym.agents.engine.protocol import Sampling, TrainableEngine
from turngym.agents.rendering import Renderer
from turngym.errors import CheckpointError
from turngym.seeding import derive_seed
from turngym.trainers.credit.base import CreditContext, CreditMethod, build_credit
from turngym.trainers.runs.checkpoints import Checkpoint
from turngym.trainers.runs.run_state import RunState
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.imitation import Imitator
from turngym.trainers.update.learner import TorchLearner, needs_reference
from turngym.trainers.update.lora import load_own_state, own_state
from turngym.trainers.update.protocol import Learner
from turngym.trainers.update.sequential import LastTurnFirstLearner
from turngym.types import Trajectory

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What reinforcement trains with."""

    learner: Learner
    credit: CreditMethod
    reference: PreTrainedModel | None
    """The policy as it was when reinforcement began; None where the loss reads none."""

    @property
    def steps(self) -> int:
        """Optimizer steps done."""
        return self.learner.steps

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        """Return groups of tensors for a checkpoint."""
        groups: dict[str, Mapping[str, Tensor]] = {"optimizer": self.learner.state()}
        if self.reference is not None:
            groups["reference"] = own_state(self.reference)
        if learned := self.credit.state():
            groups["credit"] = learned
        return groups

    def restore(self, checkpoint: Checkpoint, state: RunState) -> None:
        """Take over what ``tensors`` returned when ``checkpoint`` was made.

        Args:
            checkpoint: Of this phase, or of a run that was done and is made longer.
            state: Where the run stands now.

        Raises:
            CheckpointError: It lacks what training on needs.
        """
        moments = checkpoint.tensors("optimizer")
        is_longer = state.phase != checkpoint.state["run"]["phase"]
        if is_longer and not moments and state.metrics_sha256 is None:
            raise CheckpointError(  # of an earlier version, which did not keep it to the end
                f"{checkpoint.path}: holds no optimizer, so the run cannot be made longer"
            )
        self.learner.load_state(moments, updates=state.step, steps=state.optimizer_steps)
        if self.reference is not None:
            load_own_state(self.reference, checkpoint.tensors("reference"))
        self.credit.load_state(checkpoint.tensors("credit"))


def begin_imitation(
    config: TrainConfig,
    model: PreTrainedModel,
    renderer: Renderer,
    episodes: Sequence[Trajectory],
    *,
    instructions: Mapping[str, str],
) -> Imitator:
    """Return what the warm start trains with.

    Args:
        config: The run's settings.
        model: The policy.
        renderer: Encodes the episodes.
        episodes: Of the expert.
        instructions: By environment; none where the agent goes without.
    """
    prompting = prompting_of(config.agent)
    system = {
        env_id: prompting.opening(instructions.get(env_id, ""), (), native_tools=False)
        for env_id in {episode.env_id for episode in episodes}
    }
    rendered = [renderer.render_episode(e, system[e.env_id]) for e in episodes]
    seed = derive_seed(config.run.seed, "warm_start")
    return Imitator(model, rendered, config.warm_start, seed=seed)


def begin_learning(
    config: TrainConfig,
    model: PreTrainedModel,
    engine: TrainableEngine,
    *,
    renderer: Renderer,
    sampling: Sampling,
) -> Learning:
    """Return what reinforcement trains with; the policy as it is now becomes the reference.

    Args:
        config: The run's settings.
        model: The policy.
        engine: Samples fresh actions for credit methods that want some.
        renderer: Encodes conversations.
        sampling: How the episodes are sampled.
    """
    reference = None
    if needs_reference(config.algo.loss, config.regularizer):
        reference = copy.deepcopy(model).requires_grad_(False)
    backward = config.algo.advantage.updates_last_turn_first
    learner = (LastTurnFirstLearner if backward else TorchLearner)(
        model,
        config.learner,
        config.algo.loss,
        config.regularizer,
        temperature=config.rollout.temperature,
        seed=derive_seed(config.run.seed, "learner"),
        reference=reference,
        total_updates=config.run.steps,
    )
    context = CreditContext(
        model=model,
        renderer=renderer,
        engine=engine,
        sampling=sampling,
        seed=derive_seed(config.run.seed, "credit"),
        max_sessions=config.rollout.concurrency,
        max_tokens=config.learner.microbatch_tokens,
        total_updates=config.run.steps,
    )
    credit = build_credit(config.algo, context)
    return Learning(learner=learner, credit=credit, reference=reference)
