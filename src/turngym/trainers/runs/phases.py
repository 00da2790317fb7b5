"""What the phases of a run train with: an imitator, then a learner with a credit method."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from turngym.agents.build import prompting_of
from turngym.agents.engine.protocol import Sampling, TrainableEngine
from turngym.agents.rendering import Renderer
from turngym.errors import CheckpointError, ConfigError
from turngym.seeding import derive_seed
from turngym.trainers.credit.base import CreditContext, CreditMethod
from turngym.trainers.credit.controls import build_credit
from turngym.trainers.runs.checkpoints import Checkpoint, RunState
from turngym.trainers.samples import to_samples
from turngym.trainers.settings.loss import needs_reference
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.imitation import (
    Demonstrations,
    Imitator,
    render_episode,
    render_turns,
    within,
)
from turngym.trainers.update.learner import TorchLearner
from turngym.trainers.update.optimizer import load_own_state, own_state
from turngym.trainers.update.sequential import LastTurnFirstLearner
from turngym.types import TokenSpan, Trajectory

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from turngym.rollouts.replay import PlayOn
    from turngym.trainers.distributed.group import Group
    from turngym.trainers.distributed.learner import ImitatorGroup, LearnerGroup

logger = logging.getLogger(__name__)

SHARDS = "learner"
"""Folder of a checkpoint in which ranks write their moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What reinforcement trains with."""

    learner: TorchLearner | LearnerGroup
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
        is_longer = state.phase != checkpoint.state["run"]["phase"]
        has_moments = (checkpoint.path / SHARDS).is_dir() or (
            "optimizer.safetensors" in checkpoint.files
        )
        if is_longer and not has_moments and state.metrics_sha256 is None:
            raise CheckpointError(  # of an earlier version, which did not keep it to the end
                f"{checkpoint.path}: holds no optimizer, so the run cannot be made longer"
            )
        if self.reference is not None:  # first: ranks begin with it as it is then
            load_own_state(self.reference, checkpoint.tensors("reference"))
        restore_moments(self.learner, checkpoint, updates=state.step, steps=state.optimizer_steps)
        self.credit.load_state(checkpoint.tensors("credit"))


def restore_moments(
    trainer: TorchLearner | LearnerGroup | Imitator | ImitatorGroup,
    checkpoint: Checkpoint,
    **counters: int,
) -> None:
    """Give a trainer the moments of a checkpoint, which another number of ranks may have written.

    Args:
        trainer: Of one process, or of ranks.
        checkpoint: Holds them, or none where no step was taken.
        counters: As of its ``load_state``.

    Raises:
        CheckpointError: They cannot be read, or belong to another model.
    """
    folder = checkpoint.path / SHARDS
    if not folder.is_dir():
        trainer.load_state(checkpoint.tensors("optimizer"), **counters)
    elif isinstance(trainer, TorchLearner | Imitator):
        from turngym.trainers.distributed.sharding import read_shards

        trainer.load_state(read_shards(trainer.optimizer, folder), **counters)
    else:
        trainer.read_shards(folder, **counters)


def begin_imitation(
    config: TrainConfig,
    model: PreTrainedModel,
    renderer: Renderer,
    episodes: Sequence[Trajectory],
    *,
    introductions: Mapping[str, Mapping[str, Any]],
    group: Group | None = None,
) -> Imitator | ImitatorGroup:
    """Return what the warm start trains with.

    What is beyond ``model.context`` no policy would have read, and is not imitated.

    Args:
        config: The run's settings.
        model: The policy.
        renderer: Encodes the episodes.
        episodes: Of the expert.
        introductions: By environment, the ``info`` of its reset; none where the agent goes without.
        group: The ranks that train; None for this process alone.

    Raises:
        ConfigError: Nothing is left.
    """
    opening = _openings(config, renderer, episodes, introductions)
    rendered = [
        segment for e in episodes for segment in render_episode(renderer, e, *opening[e.env_id])
    ]
    room = config.model.context
    short = [found for segment in rendered if (found := within(segment, room)) is not None]
    if not short:
        raise ConfigError(
            f"warm_start: no action of the episodes ends within model.context={room} tokens; set "
            "it to more"
        )
    if cut := sum(len(segment.token_ids) > room for segment in rendered):
        logger.warning(
            "warm_start: %d of %d conversations are longer than model.context=%d; what is beyond "
            "it is not imitated", cut, len(rendered), room,
        )  # fmt: skip
    seed = derive_seed(config.run.seed, "warm_start")
    make = partial(Imitator, episodes=short, config=config.warm_start, seed=seed)
    if group is None:
        return make(model=model)
    from turngym.trainers.distributed.learner import ImitatorGroup

    return ImitatorGroup(group, make, {"model": model})


def _openings(
    config: TrainConfig,
    renderer: Renderer,
    episodes: Sequence[Trajectory],
    introductions: Mapping[str, Mapping[str, Any]],
) -> dict[str, tuple[str, Sequence[Mapping[str, Any]]]]:
    """Return the system message and the tools of the environments that ``episodes`` are of."""
    prompting, found = prompting_of(config.agent), {}
    for env_id in {episode.env_id for episode in episodes}:
        info = introductions.get(env_id, {})
        tools = info.get("tools", ()) if renderer.tools is not None else ()
        said = str(info.get("rules" if tools else "instructions", ""))
        found[env_id] = prompting.opening(said, (), native_tools=bool(tools)), tools
    return found


def with_tokens(
    config: TrainConfig,
    renderer: Renderer,
    episodes: Sequence[Trajectory],
    *,
    introductions: Mapping[str, Mapping[str, Any]],
) -> Iterator[Trajectory]:
    """Yield episodes of the expert with tokens as if the policy had sampled them.

    Those that leave no room for another action are left out.

    Args:
        config: The run's settings.
        renderer: Encodes them.
        episodes: As they were played.
        introductions: As in ``begin_imitation``.
    """
    opening = _openings(config, renderer, episodes, introductions)
    room = config.model.context - config.rollout.max_new_tokens
    for episode in episodes:
        rendered = render_turns(renderer, episode, *opening[episode.env_id])
        turns = tuple(
            replace(turn, spans=(TokenSpan(token_ids=prompt, sampled=False), _as_sampled(action)))
            for turn, (prompt, action) in zip(episode.turns, rendered, strict=True)
        )
        if sum(len(prompt) + len(action) for prompt, action in rendered) <= room:
            yield replace(episode, turns=turns)


def _as_sampled(token_ids: tuple[int, ...]) -> TokenSpan:
    nothing = (0.0,) * len(token_ids)
    return TokenSpan(token_ids=token_ids, sampled=True, logprobs=nothing, policy_version=0)


def begin_learning(
    config: TrainConfig,
    model: PreTrainedModel,
    engine: TrainableEngine,
    *,
    renderer: Renderer,
    sampling: Sampling,
    demonstrations: Sequence[Trajectory] = (),
    play_on: PlayOn | None = None,
    group: Group | None = None,
) -> Learning:
    """Return what reinforcement trains with; the policy as it is now becomes the reference.

    Args:
        config: The run's settings.
        model: The policy.
        engine: Samples fresh actions for credit methods that want some.
        renderer: Encodes conversations.
        sampling: How the episodes are sampled.
        demonstrations: From ``with_tokens``, for credit methods that want some.
        play_on: For credit methods that play on.
        group: The ranks that train; None for this process alone.

    Raises:
        ConfigError: There should be demonstrations, and none is left.
    """
    if config.algo.demonstrations and not demonstrations:
        raise _no_room(config, "episode")
    reference = None
    if needs_reference(config.algo.loss, config.regularizer):
        reference = copy.deepcopy(model).requires_grad_(False)
    backward = config.algo.advantage.updates_last_turn_first
    make = partial(
        LastTurnFirstLearner if backward else TorchLearner,
        config=config.learner,
        loss=config.algo.loss,
        regularizer=config.regularizer,
        temperature=config.rollout.temperature,
        seed=derive_seed(config.run.seed, "learner"),
        total_updates=config.run.steps,
        demonstrations=_imitated(config, demonstrations),
    )
    learner, scorer = _learner(make, model, reference, group)
    context = CreditContext(
        model=model,
        renderer=renderer,
        engine=engine,
        sampling=sampling,
        seed=derive_seed(config.run.seed, "credit"),
        max_sessions=config.rollout.concurrency,
        max_tokens=config.learner.microbatch_tokens,
        total_updates=config.run.steps,
        demonstrations=tuple(demonstrations),
        play_on=play_on,
        scorer=scorer,
    )
    credit = build_credit(config.algo, context)
    return Learning(learner=learner, credit=credit, reference=reference)


def _imitated(config: TrainConfig, episodes: Sequence[Trajectory]) -> Demonstrations | None:
    """Return what a learner imitates beside what its policy plays, if anything."""
    term = config.algo.loss.imitation
    if not term.weight:
        return None
    samples = [
        sample
        for index, episode in enumerate(episodes[: term.demonstrations])
        if episode.is_success or not term.successes_only
        for sample in to_samples(episode, np.zeros(episode.num_sampled_tokens), index=index)
    ]
    if not samples:
        raise _no_room(config, "success")
    return Demonstrations(samples, term, seed=derive_seed(config.run.seed, "learner"))


def _no_room(config: TrainConfig, what: str) -> ConfigError:
    return ConfigError(
        f"demonstrations of algo {config.algo.name!r}: no {what} of the expert fits into "
        f"model.context={config.model.context} with room for rollout.max_new_tokens="
        f"{config.rollout.max_new_tokens}: raise the context, or set warm_start.expert_noise lower"
    )


def _learner(
    make: Callable[..., TorchLearner],
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    group: Group | None,
) -> tuple[TorchLearner | LearnerGroup, Callable[..., Any] | None]:
    """Return a learner, and what reaches its policy where ``model`` is not it."""
    if group is None:
        return make(model=model, reference=reference), None
    from turngym.trainers.distributed.learner import LearnerGroup

    models = {"model": model} | ({} if reference is None else {"reference": reference})
    learner = LearnerGroup(group, make, models)
    return learner, learner.score
