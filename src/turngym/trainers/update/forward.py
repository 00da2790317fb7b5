"""Log-probs of chosen tokens under a model: padding, micro-batches, and the head only where needed.

Sequences are padded on the right. The models are causal, so no token sees the padding after it and
no attention mask is needed.

Axis letters: B row, T position, L position in one sequence, N chosen token, H width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK_LOGITS = 2**24
"""Most logits at once, 64 MiB a copy. Where there are no more in all, nothing is computed twice."""
_NEUTRAL = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}
"""Settings by which some architectures change logits after the head, and what means no change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Some sequences of a batch in one rectangle, and where their chosen tokens are."""

    members: tuple[int, ...]
    """Which sequences of the batch, row by row."""
    masks: tuple[NDArray[np.bool_], ...]
    """Their chosen tokens, one array [L] per row."""
    token_ids_BT: Tensor
    rows_N: Tensor
    columns_N: Tensor
    """The position before each chosen token, which predicts it."""
    targets_N: Tensor
    positions_BT: Tensor | None = None
    """Place of each token in what it continues; None for its place in the row."""
    attention_B1TT: Tensor | None = None
    """Added to the attention scores: 0 where a token may look, very low elsewhere; None when each
    sees all before it."""

    def gather(self, arrays: Sequence[NDArray[Any]]) -> Tensor:
        """Return what the batch's per-sequence ``arrays`` [L] hold at the chosen tokens, [N]."""
        picked = [arrays[i][mask] for i, mask in zip(self.members, self.masks, strict=True)]
        return torch.from_numpy(np.concatenate(picked)).to(self.targets_N.device)

    def gather_if(self, arrays: Sequence[NDArray[Any]] | None) -> Tensor | None:
        """Return what ``gather`` does, or None where there are no arrays."""
        return None if arrays is None else self.gather(arrays)


def micro_batches(
    token_ids: Sequence[NDArray[np.int64]],
    masks: Sequence[NDArray[np.bool_]],
    *,
    max_tokens: int,
    device: torch.device,
) -> list[MicroBatch]:
    """Cut a batch into rectangles of at most ``max_tokens``, padding included.

    Sequences of like length share a rectangle. A sequence without chosen tokens is left out; one
    that is longer than ``max_tokens`` gets a rectangle of its own.

    Args:
        token_ids: Sequences, one array [L] each.
        masks: Their chosen tokens, one array [L] each; never the first token of a sequence.
        max_tokens: Budget of one rectangle, rows times width.
        device: Where the tensors go.
    """
    wanted = [i for i, mask in enumerate(masks) if mask.any()]
    ordered = sorted(wanted, key=lambda i: (-token_ids[i].size, i))
    cut: list[list[int]] = []
    for i in ordered:  # longest first, so the first of a rectangle gives its width
        if cut and token_ids[cut[-1][0]].size * (len(cut[-1]) + 1) <= max_tokens:
            cut[-1].append(i)
        else:
            cut.append([i])
    return [_rectangle(members, token_ids, masks, device) for members in cut]


def token_logprobs(
    model: PreTrainedModel,
    batch: MicroBatch,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the log-probs of the chosen tokens, and the entropies of their distributions.

    Many tokens go through the head in chunks, and once more for the gradient: with a vocabulary of
    152,000 a token has 0.6 MB of logits, and a forward pass would keep several copies of them all.

    Args:
        model: A causal language model, with adapters or without.
        batch: The tokens.
        temperature: Logits are divided by it first, as when the tokens were sampled; more than 0.
        entropy_gradient: Let gradients flow through the entropies.

    Returns:
        Log-probs [N] and entropies [N] in nats, both fp32.
    """
    states_NX, head, vocabulary = _before_head(model, batch)

    def measured(states_CX: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        logprobs_CV = (head(states_CX).float() / temperature).log_softmax(-1)
        chosen_C = logprobs_CV.gather(-1, targets_C[:, None])[:, 0]
        watched_CV = logprobs_CV if entropy_gradient else logprobs_CV.detach()
        return chosen_C, -(watched_CV.exp() * watched_CV).sum(-1)

    size = max(1, CHUNK_LOGITS // vocabulary)
    if len(states_NX) <= size:
        return measured(states_NX, batch.targets_N)
    parts = [
        checkpoint(measured, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(
            torch.split(states_NX, size), torch.split(batch.targets_N, size), strict=True
        )
    ]
    chosen, entropies = zip(*parts, strict=True)
    return torch.cat(chosen), torch.cat(entropies)


def score(
    model: PreTrainedModel,
    token_ids: Sequence[NDArray[np.int64]],
    masks: Sequence[NDArray[np.bool_]],
    *,
    max_tokens: int,
    temperature: float = 1.0,
) -> list[NDArray[np.float32]]:
    """Return log-probs without gradient, one array [L] per sequence, 0 where the mask is False."""
    device = next(model.parameters()).device
    batches = micro_batches(token_ids, masks, max_tokens=max_tokens, device=device)
    return score_batches(model, batches, token_ids, temperature=temperature)


def score_batches(
    model: PreTrainedModel,
    batches: Iterable[MicroBatch],
    token_ids: Sequence[NDArray[np.int64]],
    *,
    temperature: float = 1.0,
) -> list[NDArray[np.float32]]:
    """Return what ``score`` does, for rectangles that were cut from ``token_ids`` already."""
    results = [np.zeros(ids.shape, dtype=np.float32) for ids in token_ids]
    with torch.no_grad():
        for batch in batches:
            values_N = token_logprobs(model, batch, temperature=temperature)[0].cpu().numpy()
            sizes = [int(mask.sum()) for mask in batch.masks]
            parts = np.split(values_N, np.cumsum(sizes)[:-1])
            for i, mask, part in zip(batch.members, batch.masks, parts, strict=True):
                results[i][mask] = part
    return results


def _rectangle(
    members: Sequence[int],
    token_ids: Sequence[NDArray[np.int64]],
    masks: Sequence[NDArray[np.bool_]],
    device: torch.device,
) -> MicroBatch:
    padded_BT = np.zeros((len(members), token_ids[members[0]].size), dtype=np.int64)
    rows, columns, targets = [], [], []
    for row, i in enumerate(members):
        padded_BT[row, : token_ids[i].size] = token_ids[i]
        at = np.flatnonzero(masks[i])
        rows.append(np.full(at.shape, row))
        columns.append(at - 1)
        targets.append(token_ids[i][at])

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return MicroBatch(
        members=tuple(members),
        masks=tuple(masks[i] for i in members),
        token_ids_BT=tensor(padded_BT),
        rows_N=tensor(np.concatenate(rows)),
        columns_N=tensor(np.concatenate(columns)),
        targets_N=tensor(np.concatenate(targets)),
    )


def _before_head(
    model: PreTrainedModel, batch: MicroBatch
) -> tuple[Tensor, Callable[[Tensor], Tensor], int]:
    """Return what predicts the chosen tokens, [N, H], what makes logits [N, V] of it, and V.

    Of an architecture that changes logits after its head these are the logits themselves.
    """
    plain: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = plain.config.get_text_config()
    layout = {}
    if batch.attention_B1TT is not None:
        layout = {"attention_mask": batch.attention_B1TT, "position_ids": batch.positions_BT}
    if any(getattr(config, key, neutral) != neutral for key, neutral in _NEUTRAL.items()):
        logits_BTV = plain(input_ids=batch.token_ids_BT, use_cache=False, **layout).logits
        return logits_BTV[batch.rows_N, batch.columns_N], lambda logits: logits, config.vocab_size
    output = plain.base_model(input_ids=batch.token_ids_BT, use_cache=False, **layout)
    hidden_BTH = output.last_hidden_state
    head = plain.get_output_embeddings()
    return hidden_BTH[batch.rows_N, batch.columns_N], head, config.vocab_size
