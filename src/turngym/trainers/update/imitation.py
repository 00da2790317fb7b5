"""Warm start: learn to act like a noisy expert before reinforcement begins.

Only optimizer steps are counted, never epochs: what a small model learns depends on how often it
steps (250 small steps do what 64 large ones cannot).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from turngym.agents.rendering import AnswerEnd, Renderer, as_result
from turngym.pictures import number_of
from turngym.seeding import generator
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import ImitationTerm
from turngym.trainers.settings.optimizer import WarmStartConfig
from turngym.trainers.update.compute import ALONE, Ranks, compute_of
from turngym.trainers.update.forward import backpropagate, micro_batches, read_tokens
from turngym.trainers.update.optimizer import Optimizer
from turngym.types import Message, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAILED_START = 0.15
"""Below this sampled success reinforcement hardly moves: the warm start counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedEpisode:
    """A segment of an episode as tokens, for imitation. All sequences have one length [L]."""

    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    """True on the tokens of assistant messages, the end token included."""
    turn_ids: tuple[int, ...]
    """0-based turn of an action token, -1 elsewhere."""


def render_episode(
    renderer: Renderer,
    trajectory: Trajectory,
    instructions: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[RenderedEpisode]:
    """Return the segments of an episode as ``ChatAgent`` would have fed and sampled them.

    Args:
        renderer: Of the model that imitates.
        trajectory: Its messages are used; token spans, if any, are not.
        instructions: Text of a system message before the first observation, or None.
        tools: What the agent can call.
    """
    segments: list[tuple[list[int], list[int]]] = []
    for number, (prompt, action) in enumerate(
        render_turns(renderer, trajectory, instructions, tools)
    ):
        if trajectory.turns[number].starts_segment or not segments:
            segments.append(([], []))
        ids, turn_ids = segments[-1]
        ids += [*prompt, *action]
        turn_ids += [-1] * len(prompt) + [number] * len(action)
    return [
        RenderedEpisode(
            token_ids=tuple(ids),
            action_mask=tuple(turn >= 0 for turn in turn_ids),
            turn_ids=tuple(turn_ids),
        )
        for ids, turn_ids in segments
    ]


def within(episode: RenderedEpisode, most: int) -> RenderedEpisode | None:
    """Return a segment without the turns that end beyond ``most`` tokens; None where all do."""
    turns = episode.turn_ids
    if len(turns) <= most:
        return episode
    ends = [n for n in range(1, most + 1) if turns[n - 1] >= 0 and turns[n] != turns[n - 1]]
    if not ends:
        return None
    return RenderedEpisode(
        token_ids=episode.token_ids[: ends[-1]],
        action_mask=episode.action_mask[: ends[-1]],
        turn_ids=turns[: ends[-1]],
    )


def render_turns(
    renderer: Renderer,
    trajectory: Trajectory,
    instructions: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return what is read before each action, and the action, as in ``render_episode``.

    Args:
        renderer: As in ``render_episode``.
        trajectory: The episode.
        instructions: As in ``render_episode``.
        tools: As in ``render_episode``.
    """
    shown = tools if renderer.tools is not None else ()
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    end: AnswerEnd | None = None
    for turn in trajectory.turns:
        seen = turn.observation
        if renderer.vision is not None and turn.picture is not None and seen:
            # Its pictures are in the run's folder.
            seen = (*seen[:-1], renderer.shown(seen[-1], number_of(turn.picture)))
        if end is None or turn.starts_segment:
            prompt = renderer.opening(with_system(instructions, seen), shown)
        else:
            prompt = renderer.continuation(as_result(seen) if end.calls else seen, end)
        action, end = renderer.imitated(turn.action, calls=bool(shown))
        found.append((prompt, action))
    return found


def with_system(instructions: str | None, observation: Sequence[Message]) -> tuple[Message, ...]:
    """Return ``observation`` behind a system message, when there are instructions."""
    if not instructions:
        return tuple(observation)
    return (Message(role="system", content=instructions), *observation)


class Demonstrations:
    """The auxiliary loss of a learner that imitates an expert as well.

    Args:
        samples: The expert's episodes.
        config: How much they weigh.
        seed: Root of which episodes a step takes.
    """

    def __init__(
        self, samples: Sequence[TrainingSample], config: ImitationTerm, *, seed: int
    ) -> None:
        self._token_ids = [sample.token_ids for sample in samples]
        self._action_masks = [sample.loss_mask for sample in samples]
        self._config = config
        self._seed = seed

    def backpropagate(
        self, model: PreTrainedModel, *, step: int, max_tokens: int, ranks: Ranks
    ) -> float:
        """Add the gradient of the loss to the model's, and return this rank's part of the loss.

        Args:
            model: The policy.
            step: Number of the optimizer step.
            max_tokens: In a micro-batch.
            ranks: Who else has a share of the model and of the batch.
        """
        order = generator(self._seed, "imitation", step).permutation(len(self._token_ids))
        chosen = order[: self._config.episodes_per_step].tolist()
        actions = [self._action_masks[i] for i in chosen]
        token_ids = [self._token_ids[i] for i in chosen]
        weights = imitation_weights(actions, token_ids, observation_weight=0)
        compute, loss = compute_of(model), 0.0
        for micro in micro_batches(
            token_ids,
            [array > 0 for array in weights],
            max_tokens=max_tokens,
            device=compute.device,
            packed=compute.packed,
            ranks=ranks,
        ):
            losses_N = -read_tokens(model, micro)[0]
            with ranks.agreed():
                total = self._config.weight * (micro.gather(weights) * losses_N).sum()
            backpropagate(total, micro)
            if not micro.is_filler:
                loss += total.item()
        return loss


class Imitator:
    """Steps a model towards the actions in a fixed set of episodes.

    Args:
        model: Its weights with ``requires_grad`` are trained in place.
        episodes: What to imitate.
        config: How.
        seed: Root of the order in which episodes are taken.
        ranks: Who else has a share of the model and of each batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        episodes: Sequence[RenderedEpisode],
        config: WarmStartConfig,
        *,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.model = model.eval()
        self.config = config
        self.optimizer = Optimizer(model, config, total_steps=config.max_steps)
        self._token_ids = [np.array(e.token_ids, dtype=np.int64) for e in episodes]
        self._action_masks = [np.array(e.action_mask, dtype=np.bool_) for e in episodes]
        self._seed = seed

    def step(self) -> dict[str, float]:
        """Take one optimizer step on the next episodes and return metrics ``warm_start/*``.

        Raises:
            TrainingError: The loss or a gradient is not finite.
        """
        number, config = self.optimizer.steps, self.config
        lr = self.optimizer.lr
        batch = self._batch(number)
        token_ids = [self._token_ids[i] for i in batch]
        actions = [self._action_masks[i] for i in batch]
        weights = imitation_weights(
            actions, token_ids, observation_weight=config.observation_weight
        )
        compute = compute_of(self.model)
        self.optimizer.zero_grad()
        loss, action_loss = 0.0, 0.0
        num_actions = sum(int(mask.sum()) for mask in actions)
        for micro in micro_batches(
            token_ids,
            [array > 0 for array in weights],
            max_tokens=config.microbatch_tokens,
            device=compute.device,
            packed=compute.packed,
            ranks=self.ranks,
        ):
            losses_N = -read_tokens(self.model, micro)[0]
            with self.ranks.agreed():
                total = (micro.gather(weights) * losses_N).sum()
            backpropagate(total, micro)
            if not micro.is_filler:
                loss += total.item()
                action_loss += (micro.gather(actions) * losses_N.detach()).sum().item()
        loss, action_loss = map(sum, zip(*self.ranks.exchanged((loss, action_loss)), strict=True))
        norm = self.optimizer.step(loss, where=f"warm start, step {number}")
        return {
            "warm_start/loss": loss,
            "warm_start/action_loss": action_loss / max(1, num_actions),
            "warm_start/grad_norm": norm,
            "warm_start/learning_rate": lr,
            "warm_start/tokens": float(sum(ids.size for ids in token_ids)),
        }

    @property
    def steps(self) -> int:
        """Optimizer steps done."""
        return self.optimizer.steps

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        """Return groups of tensors for a checkpoint; the weights are the model's own."""
        return {"optimizer": self.optimizer.state()}

    def load_state(self, tensors: Mapping[str, Tensor], *, steps: int) -> None:
        """Take over the optimizer's tensors after ``steps`` steps."""
        self.optimizer.load_state(tensors, steps=steps)

    def _batch(self, step: int) -> list[int]:
        """Return the episodes of one step: each once per pass, in an order of the pass's own."""
        size = min(self.config.batch_episodes, len(self._token_ids))
        per_pass = len(self._token_ids) // size
        one_pass, place = divmod(step, per_pass)
        order = generator(self._seed, "order", one_pass).permutation(len(self._token_ids))
        return [int(i) for i in order[place * size : (place + 1) * size]]


def imitation_weights(
    action_masks: Sequence[NDArray[np.bool_]],
    token_ids: Sequence[NDArray[np.int64]],
    *,
    observation_weight: float,
) -> list[NDArray[np.float32]]:
    """Return what each token's negative log-likelihood is multiplied with, one array [L] each.

    Action tokens share a weight of 1 and the others ``observation_weight``, over the whole batch.
    The first token of an episode has nothing before it and weighs 0; pictures are no tokens that
    could be said, and weigh 0.

    Args:
        action_masks: True on the tokens of actions, one array [L] per episode.
        token_ids: The episodes, one array [L] each; negative where there are pictures.
        observation_weight: 0 or more.
    """
    num_actions = sum(int(mask[1:].sum()) for mask in action_masks)
    others = [~mask & (ids >= 0) for mask, ids in zip(action_masks, token_ids, strict=True)]
    num_others = sum(int(other[1:].sum()) for other in others)
    weights = []
    for mask, other in zip(action_masks, others, strict=True):
        on_action = 1 / max(1, num_actions)
        on_other = observation_weight / max(1, num_others)
        array = (mask * on_action + other * on_other).astype(np.float32)
        array[:1] = 0
        weights.append(array)
    return weights
