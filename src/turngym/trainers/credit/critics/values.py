"""A value for positions of a text: a copy of the policy's body with a linear head, trained apart.

Axis letters: L position in one sequence, N chosen token of a rectangle, H width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.agents.rendering import Renderer
from turngym.seeding import generator
from turngym.trainers.credit.base import below, joined
from turngym.trainers.samples import FloatArray, IntArray
from turngym.trainers.settings.group import TokenBaseline
from turngym.trainers.settings.optimizer import OptimizerConfig
from turngym.trainers.update.forward import BodyWithHead, MicroBatch, micro_batches
from turngym.trainers.update.optimizer import Optimizer
from turngym.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Mask = NDArray[np.bool_]


class ValueModel:
    """Says what a text is worth just before any of its tokens, and learns it from targets.

    The head starts at 0, and so does every value.

    Args:
        model: The policy; its body is copied, adapters merged, and the copy trained whole.
        config: How it is trained.
        seed: Root of its place in the seed tree; deals texts to mini-batches.
        max_tokens: Tokens in memory at once, padding included.
    """

    def __init__(
        self, model: PreTrainedModel, config: TokenBaseline, *, seed: int, max_tokens: int
    ) -> None:
        self._net = BodyWithHead(model)
        self._config = config
        self._seed = seed
        self._max_tokens = max_tokens
        self._fits = 0
        settings = OptimizerConfig(lr=config.lr, grad_clip=config.grad_clip)
        self._optimizer = Optimizer(self._net, settings, total_steps=1)

    def read(self, token_ids: Sequence[IntArray], masks: Sequence[Mask]) -> list[FloatArray]:
        """Return the value just before each chosen token, one array per text, without gradient.

        Args:
            token_ids: Texts, one array [L] each.
            masks: Their chosen tokens, one array [L] each; never the first token of a text.
        """
        found: dict[int, FloatArray] = {}
        with torch.no_grad():
            for batch in self._rectangles(token_ids, masks):
                values_N = self._net(batch, is_behind=False)
                found |= dict(zip(batch.members, batch.split(values_N.double()), strict=True))
        return [found.get(i, np.zeros(0)) for i in range(len(masks))]

    def fit(
        self, token_ids: Sequence[IntArray], masks: Sequence[Mask], targets: Sequence[FloatArray]
    ) -> float:
        """Regress values on targets and return the mean squared error before each step.

        Args:
            token_ids: Texts, one array [L] each.
            masks: As in ``read``.
            targets: One number per chosen token, one array per text.

        Raises:
            TrainingError: The loss is not finite.
        """
        spread = [np.zeros(ids.shape, dtype=np.float32) for ids in token_ids]
        for array, mask, target in zip(spread, masks, targets, strict=True):
            array[mask] = target
        losses = []
        parts = min(self._config.minibatches, len(token_ids))
        for epoch in range(self._config.epochs):
            order = generator(self._seed, "values", self._fits, epoch).permutation(len(token_ids))
            for part in range(parts):
                chosen = [int(i) for i in order[part::parts]]
                losses.append(self._step(chosen, token_ids, masks, spread))
        self._fits += 1
        return float(np.mean(losses)) if losses else 0.0

    def _step(
        self,
        chosen: Sequence[int],
        token_ids: Sequence[IntArray],
        masks: Sequence[Mask],
        targets: Sequence[NDArray[np.float32]],
    ) -> float:
        count = max(1, sum(int(masks[i].sum()) for i in chosen))
        wanted = [targets[i] for i in chosen]
        losses = (
            (self._net(batch, is_behind=False) - batch.gather(wanted)).square().sum() / count
            for batch in self._rectangles(
                [token_ids[i] for i in chosen], [masks[i] for i in chosen]
            )
        )
        return self._optimizer.descend(losses, where=f"value model, fit {self._fits}")

    def _rectangles(self, token_ids: Sequence[IntArray], masks: Sequence[Mask]) -> list[MicroBatch]:
        compute = self._net.compute
        return micro_batches(
            token_ids,
            masks,
            max_tokens=self._max_tokens,
            device=compute.device,
            packed=compute.packed,
        )

    def state(self) -> dict[str, Tensor]:
        """Return weights, moments and counters."""
        parts = {"net": self._net.state_dict(), "optimizer": self._optimizer.state()}
        return joined(parts) | {"counters": torch.tensor([self._fits, self._optimizer.steps])}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._net.load_state_dict(below(tensors, "net"))
        self._fits, steps = (int(n) for n in tensors["counters"])
        self._optimizer.load_state(below(tensors, "optimizer"), steps=steps)


def final_prompt(trajectory: Trajectory, renderer: Renderer, *, context: int) -> tuple[int, ...]:
    """Return the tokens that would have followed the last action, up to where the agent speaks.

    They are what the environment answered to it. None when the episode terminated, when nothing was
    answered, or when there is no room for them in ``context`` tokens; then the text just after the
    last action stands for the last state.

    Args:
        trajectory: A whole episode.
        renderer: Of the policy that played it.
        context: Longest text in tokens.
    """
    if not trajectory.is_open or not trajectory.final_observation:
        return ()
    starts = [n for n, turn in enumerate(trajectory.turns) if turn.starts_segment or n == 0]
    spans = [span for turn in trajectory.turns[starts[-1] :] for span in turn.spans]
    length = sum(len(span.token_ids) for span in spans)
    new = renderer.after(trajectory.turns[-1], trajectory.final_observation)
    return new if length + len(new) <= context else ()
