"""Log-probs of chosen tokens under a model: padding, micro-batches, and the head only where needed.

Sequences are padded on the right. The models are causal, so no token sees the padding after it and
no attention mask is needed. Or they are packed end to end, and positions that begin anew say where.

Axis letters: B row, T position, L position in one sequence, N chosen token, H width, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import is_initialized
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from turngym.agents.engine.protocol import Experts, vision_of
from turngym.errors import ConfigError
from turngym.trainers.update.compute import (
    ALONE,
    NEUTRAL_HEAD,
    Ranks,
    compute_of,
    computing,
    plain_model,
)
from turngym.trainers.update.routing import laid_out, replay

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK_LOGITS = 2**24
"""Most logits at once, 64 MiB a copy. Where there are no more in all, nothing is computed twice."""

MEASURE = "turngym_measure"

Reading = Literal["none", "log_normalizer", "mean_logprob"]
"""What else is read off the logits of a token: nothing; the log of the sum of their exponentials,
with gradient; or the mean of the log-probs over the vocabulary."""
Score = Literal["logprob", "entropy", "log_normalizer", "mean_logprob"]
"""A number of a token, or of the distribution that it was sampled from."""
_SCORES: dict[Score, tuple[Reading, int]] = {
    "logprob": ("none", 0),
    "entropy": ("none", 1),
    "log_normalizer": ("log_normalizer", 2),
    "mean_logprob": ("mean_logprob", 2),
}
"""What is asked for the sake of a score, and where it comes back."""


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
    """Place of each token in what it continues; None for its place in the row. Without
    ``attention_B1TT`` a sequence begins where they begin anew, and sees nothing before it."""
    attention_B1TT: Tensor | None = None
    """Added to the attention scores: 0 where a token may look, very low elsewhere; None when each
    sees all before it."""
    experts_NLK: Tensor | None = None
    """Experts to take at each token of the rectangle, row by row, N for all; -1 leaves the choice
    to the model. K experts a layer."""
    is_filler: bool = False
    """Read for nothing, while other ranks read a rectangle more."""

    def gather(self, arrays: Sequence[NDArray[Any]]) -> Tensor:
        """Return what the batch's per-sequence ``arrays`` [L] hold at the chosen tokens, [N]."""
        picked = [arrays[i][mask] for i, mask in zip(self.members, self.masks, strict=True)]
        return torch.from_numpy(np.concatenate(picked)).to(self.targets_N.device)

    def split(self, values_N: Tensor) -> list[NDArray[Any]]:
        """Return what belongs to the chosen tokens as one array for each sequence of the batch."""
        ends = np.cumsum([mask.sum() for mask in self.masks])[:-1]
        return np.split(values_N.cpu().numpy(), ends)

    def gather_if(self, arrays: Sequence[NDArray[Any]] | None) -> Tensor | None:
        """Return what ``gather`` does, shape [N], or None where there are no arrays."""
        return None if arrays is None else self.gather(arrays)


def micro_batches(
    token_ids: Sequence[NDArray[np.int64]],
    masks: Sequence[NDArray[np.bool_]],
    *,
    max_tokens: int,
    device: torch.device,
    packed: bool = False,
    ranks: Ranks = ALONE,
    routing: Sequence[Experts | None] | None = None,
) -> list[MicroBatch]:
    """Cut this rank's share of a batch into rectangles of at most ``max_tokens``, padding included.

    Every rank gets as many, filled up where its own are fewer. They are those of one process, dealt
    in order, so that on a CPU no rounding depends on the number of ranks; on a GPU only where there
    are enough for all.

    Sequences of like length share a rectangle. A sequence without chosen tokens is left out; one
    that is longer than ``max_tokens`` gets a rectangle of its own.

    Args:
        token_ids: Sequences, one array [L] each.
        masks: Their chosen tokens, one array [L] each; never the first token of a sequence.
        max_tokens: Budget of one rectangle, rows times width.
        device: Where the tensors go.
        packed: Lay the sequences of a rectangle end to end in one row.
        ranks: Who shares the batch.
        routing: Experts on the way to each token, to be replayed.
    """
    wanted = [i for i, mask in enumerate(masks) if mask.any()]
    # Ties by number, so that the same batch is cut the same each time.
    ordered = sorted(wanted, key=lambda i: (-token_ids[i].size, i))
    sizes = [ids.size for ids in token_ids]
    cut = partial(_cut, sizes=sizes, max_tokens=max_tokens, packed=packed)
    whole, numbers = cut(ordered), range(ranks.size)
    if len(whole) >= ranks.size or device.type == "cpu":
        shares = [whole[rank :: ranks.size] for rank in numbers]
    else:  # too few for all
        shares = [cut(ordered[rank :: ranks.size]) for rank in numbers]
    own = shares[ranks.number]
    lay = partial(_lay, token_ids=token_ids, masks=masks, device=device, packed=packed)
    batches = [lay(members) for members in own]
    fillers = max(map(len, shares)) - len(own)
    if fillers:
        # The shortest sequence costs least; its results and gradients are not used.
        idle = replace(lay(ordered[-1:]), is_filler=True)
        batches += [idle] * fillers
    if routing is None or all(experts is None for experts in routing):
        return batches
    chosen = ([routing[i] for i in batch.members] for batch in batches)
    return [
        replace(b, experts_NLK=laid_out(own, b.masks, b.token_ids_BT, is_packed=packed))
        for b, own in zip(batches, chosen, strict=True)
    ]


def _cut(
    ordered: Sequence[int], sizes: Sequence[int], *, max_tokens: int, packed: bool
) -> list[list[int]]:
    """Return which sequences share a rectangle."""
    cut: list[list[int]] = []
    area = 0
    for i in ordered:  # longest first, so the first of a rectangle gives its width
        area += sizes[i] if packed or not cut else sizes[cut[-1][0]]
        if cut and area <= max_tokens:
            cut[-1].append(i)
        else:
            cut.append([i])
            area = sizes[i]
    return cut


def read_tokens(
    model: PreTrainedModel,
    batch: MicroBatch,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    reading: Reading = "none",
) -> tuple[Tensor, ...]:
    """Return the log-probs of the chosen tokens, and the entropies of their distributions.

    Many tokens go through the head in chunks, and once more for the gradient: with a vocabulary of
    152,000 a token has 0.6 MB of logits, and a forward pass would keep several copies of them all.

    Args:
        model: A causal language model, with adapters or without.
        batch: The tokens.
        temperature: Logits are divided by it first, as when the tokens were sampled; more than 0.
        entropy_gradient: Let gradients flow through the entropies.
        reading: What else is wanted of the divided logits.

    Returns:
        Log-probs [N] and entropies [N] in nats, and behind them the reading [N], all fp32.
    """
    # A sharded model gathers its weights only for calls that it knows of.
    measure = getattr(plain_model(model), MEASURE, None) or partial(_measure, model)
    found: tuple[Tensor, ...] = measure(batch, temperature, entropy_gradient, reading)
    return found


def backpropagate(total: Tensor, batch: MicroBatch) -> None:
    """Add the gradient of one micro-batch's loss; ranks add up theirs.

    Args:
        total: The loss; a sum, so that micro-batches add up.
        batch: Its tokens. A filler counts nothing: it keeps this rank in step with the others.
    """
    loss = total * 0 if batch.is_filler else total
    loss.backward()  # type: ignore[no-untyped-call]


def add_measure(model: PreTrainedModel) -> str:
    """Give a model the method through which ``read_tokens`` reads it; return its name."""

    def measure(*args: Any) -> tuple[Tensor, ...]:
        chosen, *others = _measure(model, *args)
        return chosen.clone(), *others  # a view would lose the hooks that gather weights

    setattr(plain_model(model), MEASURE, measure)
    return MEASURE


def _measure(
    model: PreTrainedModel,
    batch: MicroBatch,
    temperature: float,
    entropy_gradient: bool,
    reading: Reading,
) -> tuple[Tensor, ...]:
    states_NX, head, vocabulary = _before_head(model, batch)

    def measured(states_CX: Tensor, targets_C: Tensor) -> tuple[Tensor, ...]:
        logits_CV = head(states_CX).float() / temperature
        more = [logits_CV.logsumexp(-1)] if reading == "log_normalizer" else []
        logprobs_CV = logits_CV.log_softmax(-1)
        del logits_CV  # one copy less of what is large
        chosen_C = logprobs_CV.gather(-1, targets_C[:, None])[:, 0]
        watched_CV = logprobs_CV if entropy_gradient else logprobs_CV.detach()
        more += [logprobs_CV.mean(-1)] if reading == "mean_logprob" else []
        return chosen_C, -(watched_CV.exp() * watched_CV).sum(-1), *more

    # Logits of a chunk are made again for the gradient and not kept: time for memory.
    size = max(1, CHUNK_LOGITS // vocabulary)
    if len(states_NX) <= size:
        return measured(states_NX, batch.targets_N)
    parts = [
        checkpoint(measured, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(
            torch.split(states_NX, size), torch.split(batch.targets_N, size), strict=True
        )
    ]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def score(
    model: PreTrainedModel,
    token_ids: Sequence[NDArray[np.int64]],
    masks: Sequence[NDArray[np.bool_]],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    ranks: Ranks = ALONE,
    what: Score = "logprob",
    routing: Sequence[Experts | None] | None = None,
) -> list[NDArray[np.float32]]:
    """Return log-probs of tokens, or something else of their distributions, without gradient.

    Args:
        model: Whose distributions.
        token_ids: Rows, each [L].
        masks: Where a number is wanted, each [L]; elsewhere it is 0.
        max_tokens: Tokens in memory at once, padding included.
        temperature: Divides the logits.
        ranks: Processes that share the rows.
        what: ``"logprob"``, or what ``Score`` names.
        routing: Experts that each row went to, where the model has any and keeps them.
    """
    compute = compute_of(model)
    batches = micro_batches(
        token_ids,
        masks,
        max_tokens=max_tokens,
        device=compute.device,
        packed=compute.packed,
        ranks=ranks,
        routing=routing,
    )
    return score_batches(model, batches, token_ids, temperature=temperature, ranks=ranks, what=what)


def score_batches(
    model: PreTrainedModel,
    batches: Iterable[MicroBatch],
    token_ids: Sequence[NDArray[np.int64]],
    *,
    temperature: float = 1.0,
    ranks: Ranks = ALONE,
    what: Score = "logprob",
) -> list[NDArray[np.float32]]:
    """Return the arrays [L] of ``score`` for micro-batches that are made already.

    Args:
        model: Scores the tokens.
        batches: Rectangles of ``token_ids``.
        token_ids: One array [L] per sequence.
        temperature: At which the tokens were sampled.
        ranks: Who else has a share of the model and of the batches.
        what: Return the log-prob of each token, the entropy of its distribution, or a reading.
    """
    reading, place = _SCORES[what]
    results = [np.zeros(ids.shape, dtype=np.float32) for ids in token_ids]
    own: dict[int, NDArray[np.float32]] = {}
    with torch.no_grad():
        for batch in batches:
            found = read_tokens(model, batch, temperature=temperature, reading=reading)
            if batch.is_filler:  # another rank has these sequences, among others, and so rounded
                continue
            parts = batch.split(found[place])
            for i, mask, part in zip(batch.members, batch.masks, parts, strict=True):
                results[i][mask] = part
                own[i] = results[i]
    for share in ranks.exchanged(own):
        for i, values in share.items():
            results[i] = values
    return results


def check_packing(model: PreTrainedModel) -> None:
    """Make sure that a model reads packed sequences each on its own, by trying it.

    Raises:
        ConfigError: It does not, and ``learner.packing`` asks for it.
    """
    compute = compute_of(model)
    if not compute.packed:
        return
    token_ids = [np.arange(1, 7), np.arange(3, 8)]
    if (vision := vision_of(model)) is not None:
        token_ids = [np.array([1, *vision.tokens(number), 2, 3]) for number in vision.samples()]
    masks = [(ids >= 0) & (np.arange(ids.size) > 0) for ids in token_ids]
    together = score(model, token_ids, masks, max_tokens=64)
    apart = score(model, token_ids, masks, max_tokens=1)
    tolerance = 1e-3 if compute.dtype == torch.float32 else 0.1
    if not all(np.allclose(a, b, atol=tolerance) for a, b in zip(together, apart, strict=True)):
        raise ConfigError(
            f"learner.packing: {type(plain_model(model)).__name__} reads on from one packed "
            "sequence into the next; set learner.packing=never"
        )


def hidden_states(body: nn.Module, batch: MicroBatch) -> Tensor:
    """Return what ``body`` has behind each token after the last layer, [B, T, H]."""
    replay(body, batch.experts_NLK)
    with computing(body):
        output = body(use_cache=False, **_inputs(body, batch))
    states_BTH: Tensor = output.last_hidden_state
    nothing = _seeing(body)
    return states_BTH if nothing is None else states_BTH + nothing


def _seeing(body: nn.Module) -> Tensor | None:
    """Return 0, by way of all weights that see; None for a model or a process without need of it.

    Ranks add up gradients of the same weights, and the episodes of one may have no pictures.
    """
    if vision_of(body) is None or not is_initialized():
        return None
    plain: Any = body
    language = {id(weight) for weight in plain.get_decoder().parameters()}
    seeing = [w.sum() for w in body.parameters() if w.requires_grad and id(w) not in language]
    return 0.0 * torch.stack(seeing).sum() if seeing else None


def _lay(
    members: Sequence[int],
    token_ids: Sequence[NDArray[np.int64]],
    masks: Sequence[NDArray[np.bool_]],
    device: torch.device,
    packed: bool,
) -> MicroBatch:
    """Return sequences as the rows of a rectangle, or end to end in one row where it is packed."""

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    own, at = [token_ids[i] for i in members], [np.flatnonzero(masks[i]) for i in members]
    sizes = [ids.size for ids in own]
    if packed:
        ids_BT = np.concatenate(own)[None]
        rows, starts = [0] * len(own), [0, *accumulate(sizes[:-1])]
    else:
        ids_BT = np.zeros((len(own), sizes[0]), dtype=np.int64)
        for row, ids in enumerate(own):
            ids_BT[row, : ids.size] = ids
        rows, starts = list(range(len(own))), [0] * len(own)
    return MicroBatch(
        members=tuple(members),
        masks=tuple(masks[i] for i in members),
        token_ids_BT=tensor(ids_BT),
        rows_N=tensor(np.repeat(rows, [places.size for places in at])),
        # The state before a token predicts it, hence one column to the left.
        columns_N=tensor(np.concatenate([a + s - 1 for a, s in zip(at, starts, strict=True)])),
        targets_N=tensor(np.concatenate([ids[a] for ids, a in zip(own, at, strict=True)])),
        positions_BT=tensor(np.concatenate([*map(np.arange, sizes)])[None]) if packed else None,
    )


def _before_head(
    model: PreTrainedModel, batch: MicroBatch
) -> tuple[Tensor, Callable[[Tensor], Tensor], int]:
    """Return what predicts the chosen tokens, [N, H], what makes logits [N, V] of it, and V.

    Of an architecture that changes logits after its head these are the logits themselves.
    """
    plain = plain_model(model)
    config = plain.config.get_text_config()
    chosen = batch.rows_N, batch.columns_N
    if any(getattr(config, key, none) != none for key, none in NEUTRAL_HEAD.items()):
        replay(plain.base_model, batch.experts_NLK)
        nothing = _seeing(plain.base_model)  # while its weights are whole
        with computing(plain.base_model):
            output = plain(use_cache=False, **_inputs(plain.base_model, batch))
        logits_NV = output.logits[chosen]
        logits_NV = logits_NV if nothing is None else logits_NV + nothing
        return logits_NV, lambda logits: logits, config.vocab_size
    # The head is outside of what may be computed in bf16: rounded logits are other probabilities.
    states_NH = hidden_states(plain.base_model, batch)[chosen].float()
    return states_NH, plain.get_output_embeddings(), config.vocab_size


def _inputs(body: nn.Module, batch: MicroBatch) -> dict[str, Tensor]:
    """Return what is read: the tokens, the pictures among them, and where they are.

    That is said where a rectangle is not read row by row from its start.
    """
    vision = vision_of(body)
    ids_BT, positions = batch.token_ids_BT, batch.positions_BT
    inputs = {"input_ids": ids_BT} if vision is None else vision.inputs(ids_BT, body)
    if positions is not None:
        if vision is not None:
            positions = vision.packed_positions(inputs, positions, body)
        inputs["position_ids"] = positions
    if batch.attention_B1TT is not None:
        inputs["attention_mask"] = batch.attention_B1TT
    return inputs


def body_of(model: PreTrainedModel) -> tuple[nn.Module, int]:
    """Return a copy of a model's body in fp32, adapters merged, to be trained; and its width.

    It is where models are trained, which need not be where ``model`` is.
    """
    plain: Any = model
    if hasattr(plain, "merge_and_unload"):
        plain = copy.deepcopy(plain).merge_and_unload()
    body: nn.Module = copy.deepcopy(plain.base_model).float().requires_grad_(True).eval()
    body.to(compute_of(body).device)
    return body, int(plain.config.get_text_config().hidden_size)


class BodyWithHead(nn.Module):
    """A copy of a model's body, adapters merged, and one number read off its hidden states.

    In fp32 and in evaluation mode, so that dropout adds no noise. The head starts at 0, and uses
    no random numbers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.body, width = body_of(model)
        self.compute = compute_of(self.body)
        self.device: torch.device = self.compute.device
        self.weight = nn.Parameter(torch.zeros(1, width))
        self.bias = nn.Parameter(torch.zeros(1))
        self.to(self.device).eval()

    def forward(self, batch: MicroBatch, *, is_behind: bool) -> Tensor:
        """Return one number [N] per chosen token, read behind it or just before it."""
        hidden = hidden_states(self.body, batch)
        chosen_NH = hidden[batch.rows_N, batch.columns_N + is_behind].float()
        return functional.linear(chosen_NH, self.weight, self.bias)[:, 0]
