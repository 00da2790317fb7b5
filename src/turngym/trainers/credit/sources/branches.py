"""Log-probs of many continuations of one token sequence, in one forward pass.

An episode is the trunk. A branch continues it from some place: "what if the answer were given after
turn 3?", "what if the feedback had been another?". All branches are appended to the trunk in one
row; a mask lets each see only the trunk before its start and itself, and its positions go on from
there, so that every log-prob is the one that the continuation would have had on its own.

Axis letters: B row, T position in a row, L trunk, M branch, K branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turngym.agents.engine.protocol import vision_of
from turngym.trainers.credit.base import CreditContext
from turngym.trainers.samples import IntArray
from turngym.trainers.update.compute import ALONE, Ranks, compute_of, plain_model
from turngym.trainers.update.forward import MicroBatch, micro_batches, score, score_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BoolArray = NDArray[np.bool_]
Logprobs = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Branch:
    """Tokens that might have followed the first ``start`` tokens of a trunk."""

    start: int
    """1 or more; the first token of a branch is predicted by the trunk."""
    token_ids_M: IntArray
    chosen_M: BoolArray
    """Whose log-probs are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tree:
    """One token sequence and what might have followed it at several places."""

    trunk_L: IntArray
    chosen_L: BoolArray
    """Whose log-probs are wanted; never the first."""
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeScores:
    """Log-probs in nats, 0 where they were not wanted."""

    trunk_L: Logprobs
    branches: tuple[Logprobs, ...]
    """One array [M] per branch."""


class TreeScorer:
    """Scores trees in one pass each where the model allows it, else one pass per branch.

    Args:
        context: Gives policy and memory budget.
        temperature: Logits are divided by it.
    """

    def __init__(self, context: CreditContext, *, temperature: float = 1.0) -> None:
        self._context = context
        self._temperature = temperature
        self._one_pass: bool | None = None
        """Unknown until the first use: it takes a forward pass to find out."""

    def __call__(self, trees: Sequence[Tree]) -> list[TreeScores]:
        """Return the log-probs of all trees with the policy as it is now, without gradient."""
        context = self._context
        if self._one_pass is None:
            self._one_pass = context.score(sees_branches)
        return context.score(
            score_trees if self._one_pass else score_trees_apart,
            trees,
            max_tokens=context.max_tokens,
            temperature=self._temperature,
        )


def score_trees(
    model: PreTrainedModel,
    trees: Sequence[Tree],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    ranks: Ranks = ALONE,
) -> list[TreeScores]:
    """Return the log-probs of all trees, each in one row, without gradient.

    Args:
        model: ``sees_branches`` must hold for it.
        trees: What to score.
        max_tokens: Budget of one forward pass, rows times width.
        temperature: Logits are divided by it.
        ranks: Who shares the trees.
    """
    rows = [_Row.of(tree) for tree in trees]
    token_ids = [row.token_ids_T for row in rows]
    chosen = [row.chosen_T for row in rows]
    device = compute_of(model).device
    batches = (
        _with_branches(batch, rows, model.dtype)
        for batch in micro_batches(
            token_ids, chosen, max_tokens=max_tokens, device=device, ranks=ranks
        )
    )
    found = score_batches(model, batches, token_ids, temperature=temperature, ranks=ranks)
    return [_cut(tree, values) for tree, values in zip(trees, found, strict=True)]


def score_trees_apart(
    model: PreTrainedModel,
    trees: Sequence[Tree],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    ranks: Ranks = ALONE,
) -> list[TreeScores]:
    """Return the same (``temperature`` too) with a row of its own for every trunk and branch.

    Works with every causal model, and is what ``score_trees`` is tested against. With
    ``max_tokens=1`` each row is a forward pass of its own.
    """
    token_ids, chosen = [], []
    for tree in trees:
        token_ids.append(tree.trunk_L)
        chosen.append(tree.chosen_L)
        for branch in tree.branches:
            before = tree.trunk_L[: branch.start]
            token_ids.append(np.concatenate([before, branch.token_ids_M]))
            chosen.append(np.concatenate([np.zeros(before.shape, np.bool_), branch.chosen_M]))
    found = score(
        model, token_ids, chosen, max_tokens=max_tokens, temperature=temperature, ranks=ranks
    )
    rows = iter(found)
    return [
        TreeScores(trunk_L=next(rows), branches=tuple(next(rows)[b.start :] for b in tree.branches))
        for tree in trees
    ]


def sees_branches(model: PreTrainedModel, *, ranks: Ranks = ALONE) -> bool:
    """Say whether ``model`` keeps to a mask and positions of our own, by trying it on a small tree.

    Models with sliding windows or with attention kernels that take no mask do not. Every rank tries
    the whole tree.
    """
    plain = plain_model(model)
    config = plain.config.get_text_config()
    if config._attn_implementation not in ("eager", "sdpa") or vision_of(plain) is not None:
        return False  # a picture has positions of its own
    kinds = getattr(config, "layer_types", None)
    if set(kinds or ()) - {"full_attention"}:
        return False
    if kinds is None and getattr(config, "sliding_window", None) is not None:
        return False
    ids, mask = np.arange(1, 13) * 7 % int(config.vocab_size), np.ones(3, dtype=np.bool_)
    probe = Tree(
        trunk_L=ids[:6],
        chosen_L=np.arange(6) > 0,
        branches=(
            Branch(start=2, token_ids_M=ids[6:9], chosen_M=mask),
            Branch(start=5, token_ids_M=ids[9:], chosen_M=mask),
        ),
    )
    wanted = score_trees_apart(model, [probe], max_tokens=64)[0]
    try:
        found = score_trees(model, [probe], max_tokens=64)[0]
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False  # it takes no mask of four axes, or no positions
    tolerance = 1e-3 if compute_of(model).dtype == torch.float32 else 0.1
    pairs = zip((found.trunk_L, *found.branches), (wanted.trunk_L, *wanted.branches), strict=True)
    return all(np.allclose(a, b, atol=tolerance) for a, b in pairs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Row:
    """A tree laid out in one row of T tokens."""

    token_ids_T: IntArray
    chosen_T: BoolArray
    before_T: IntArray
    """Place of the token that predicts this one."""
    positions_T: IntArray
    block_T: IntArray
    """0 on the trunk, then the number of the branch."""
    starts_K: IntArray
    """How much of the trunk a block sees: the trunk all, a branch what is before its start."""

    @classmethod
    def of(cls, tree: Tree) -> _Row:
        blocks = [tree.trunk_L, *(branch.token_ids_M for branch in tree.branches)]
        starts = [0, *(branch.start for branch in tree.branches)]
        before, positions, place = [], [], 0
        for ids, start in zip(blocks, starts, strict=True):
            of_block = np.arange(place - 1, place - 1 + ids.size)
            of_block[:1] = max(0, start - 1)
            before.append(of_block)
            positions.append(np.arange(start, start + ids.size))
            place += ids.size
        sizes = [ids.size for ids in blocks]
        return cls(
            token_ids_T=np.concatenate(blocks),
            chosen_T=np.concatenate([tree.chosen_L, *(b.chosen_M for b in tree.branches)]),
            before_T=np.concatenate(before),
            positions_T=np.concatenate(positions),
            block_T=np.repeat(np.arange(len(blocks)), sizes),
            starts_K=np.array([tree.trunk_L.size, *starts[1:]]),
        )

    def allowed_TT(self) -> BoolArray:
        """Return who (rows) may look at whom (columns)."""
        place_T = np.arange(self.token_ids_T.size)
        seen_T = self.starts_K[self.block_T]
        on_trunk = (self.block_T[None, :] == 0) & (place_T[None, :] < seen_T[:, None])
        same = self.block_T[None, :] == self.block_T[:, None]
        earlier = place_T[None, :] <= place_T[:, None]
        allowed_TT: BoolArray = (on_trunk | same) & earlier
        return allowed_TT


def _with_branches(batch: MicroBatch, rows: Sequence[_Row], dtype: torch.dtype) -> MicroBatch:
    """Return ``batch`` with the mask and the positions of its rows."""
    height, width = batch.token_ids_BT.shape
    # Padding sees itself, because a row of a mask without any entry gives NaN.
    allowed_BTT = np.broadcast_to(np.eye(width, dtype=np.bool_), (height, width, width)).copy()
    positions_BT = np.zeros((height, width), dtype=np.int64)
    for number, member in enumerate(batch.members):
        size = rows[member].token_ids_T.size
        allowed_BTT[number, :size, :size] = rows[member].allowed_TT()
        positions_BT[number, :size] = rows[member].positions_T
    device = batch.token_ids_BT.device
    allowed = torch.from_numpy(allowed_BTT)[:, None].to(device)
    attention: Tensor = torch.zeros(allowed.shape, dtype=dtype, device=device)
    return replace(
        batch,
        columns_N=batch.gather([row.before_T for row in rows]),
        positions_BT=torch.from_numpy(positions_BT).to(device),
        attention_B1TT=attention.masked_fill_(~allowed, torch.finfo(dtype).min),
    )


def _cut(tree: Tree, values_T: Logprobs) -> TreeScores:
    sizes = [tree.trunk_L.size, *(branch.token_ids_M.size for branch in tree.branches)]
    trunk, *branches = np.split(values_T, np.cumsum(sizes)[:-1])
    return TreeScores(trunk_L=trunk, branches=tuple(branches))
