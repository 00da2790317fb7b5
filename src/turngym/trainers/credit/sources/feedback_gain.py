"""What the answer to a turn changed about what the policy did next.

The next action is scored twice, behind the real feedback and behind a placeholder of exactly the
same length in tokens. Both happen in one forward pass: the episode is the trunk, and each
counterfactual is a branch of it.

Axis letters: N turn of any episode, T turn of one episode, M token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turngym.agents.rendering import Renderer
from turngym.errors import ConfigError
from turngym.trainers.credit.base import (
    Components,
    CreditContext,
    RewardComponent,
    StatelessSource,
    TurnBatch,
)
from turngym.trainers.credit.layout import Layout, check_fast, encode_with_places
from turngym.trainers.credit.sources.branches import Branch, Tree, TreeScorer, TreeScores
from turngym.trainers.samples import IntArray
from turngym.trainers.settings.rewards import FeedbackGain
from turngym.types import Message, Trajectory

_PROBE = "probe content"


class FeedbackGainSource(StatelessSource[FeedbackGain]):
    """The component ``feedback_gain``; learns nothing of its own.

    ``I_t`` is the mean over the tokens of the next action of ``log pi(real feedback) - log
    pi(placeholder)``, in nats, with the policy as it is now and at its sampling temperature. The
    last turn has no value, nor has one whose feedback is empty or cannot be distinguished from the
    chat template; ``credit/feedback_gain_fallbacks`` counts the latter, and turns of episodes with
    a rewritten history.

    Args:
        config: The placeholder.
        context: Gives policy, renderer and sampling.

    Raises:
        ConfigError: The tokenizer gives no character offsets, or the placeholder has no tokens.

    Source:
        InfoPO, arXiv:2603.00656. The term that reads the component divides by the length of the
        asking action.
    """

    def __init__(self, config: FeedbackGain, context: CreditContext) -> None:
        super().__init__(config)
        tokenizer = context.renderer.tokenizer
        check_fast(tokenizer, config.type)
        ids = tokenizer.encode(config.placeholder, add_special_tokens=False)
        if not ids:
            raise ConfigError(
                f"algo.rewards {config.type!r}: placeholder {config.placeholder!r} has no tokens; "
                "give it some words"
            )
        self._placeholder_M = np.array(ids, dtype=np.int64)
        self._locator = FeedbackLocator(context.renderer)
        self._score = TreeScorer(context, temperature=context.sampling.temperature)

    def read(self, turns: TurnBatch) -> Components:
        """Return the gains of a batch."""
        asked = [self._counterfactuals(episode) for episode in turns.episodes]
        scored = self._score([one.tree for one in asked if one.turns])
        values_N = np.full(turns.turn_N.shape, np.nan)
        results = iter(scored)
        for one, start in zip(asked, turns.start_B.tolist(), strict=True):
            if one.turns:
                values_N[start + np.array(one.turns)] = feedback_gains(one.tree, next(results))
        component = RewardComponent.where_finite(values_N)
        has_value_N = component.has_value_N
        lost = sum(one.lost + len(one.turns) for one in asked) - int(has_value_N.sum())
        self._metrics = {"credit/feedback_gain_fallbacks": float(lost)}
        if has_value_N.any():
            mean = float(component.values_N[has_value_N].mean())
            self._metrics["credit/feedback_gain_mean"] = mean
        return {"feedback_gain": component}

    def _counterfactuals(self, episode: Trajectory) -> _Asked:
        """Return an episode with a branch for each feedback that an action followed."""
        layout = Layout.of(episode)
        later = len(episode.turns) - 1
        if layout is None:
            return _Asked(tree=_EMPTY, turns=(), lost=later)
        chosen_L = np.zeros(layout.token_ids_L.shape, dtype=np.bool_)
        branches: list[Branch] = []
        asking: list[int] = []
        lost = 0
        for turn in range(later):
            place = self._locator.find(episode, layout, turn + 1)
            if place is None:
                lost += 1
            elif place.stop > place.start:
                branches.append(self._branch(layout, turn + 1, place))
                asking.append(turn)
                chosen_L[layout.action_T[turn + 1] : layout.end_T[turn + 1]] = True
        tree = Tree(trunk_L=layout.token_ids_L, chosen_L=chosen_L, branches=tuple(branches))
        return _Asked(tree=tree, turns=tuple(asking), lost=lost)

    def _branch(self, layout: Layout, turn: int, place: slice) -> Branch:
        """Return the placeholder, what follows the feedback, and the action of ``turn``."""
        start, stop, end = int(place.start), int(place.stop), int(layout.end_T[turn])
        instead = stretched(self._placeholder_M, stop - start)
        rest = layout.token_ids_L[stop:end]
        chosen_M = np.arange(start, end) >= layout.action_T[turn]
        return Branch(start=start, token_ids_M=np.concatenate([instead, rest]), chosen_M=chosen_M)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """What is scored of one episode."""

    tree: Tree
    turns: tuple[int, ...]
    """Turn whose feedback each branch replaces."""
    lost: int
    """Turns that were followed by another but get no value."""


_EMPTY = Tree(trunk_L=np.zeros(0, np.int64), chosen_L=np.zeros(0, np.bool_), branches=())


def feedback_gains(tree: Tree, scores: TreeScores) -> list[float]:
    """Return the mean log-ratio, real over placeholder, of the action in each branch.

    Args:
        tree: Each branch ends where the action that it chooses ends in the trunk.
        scores: Log-probs of the chosen tokens.
    """
    gains = []
    for branch, values_M in zip(tree.branches, scores.branches, strict=True):
        real_M = scores.trunk_L[branch.start : branch.start + values_M.size]
        gap_M = real_M[branch.chosen_M].astype(np.float64) - values_M[branch.chosen_M]
        gains.append(float(gap_M.mean()))
    return gains


def stretched(ids_M: IntArray, length: int) -> IntArray:
    """Return ``ids_M`` cut to ``length``, or filled up with its last token."""
    missing = max(0, length - ids_M.size)
    return np.concatenate([ids_M[:length], np.repeat(ids_M[-1:], missing)])


class FeedbackLocator:
    """Finds the tokens of what the environment said among those that a turn read.

    A turn reads the chat template around one message. What the template puts before and after a
    message is learned from a probe message, and the text of the turn must begin and end with that.
    Only tokens that lie wholly between the two are feedback; a token across the boundary belongs to
    the template.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._frames: dict[tuple[str, bool], tuple[str, str] | None] = {}

    def find(self, episode: Trajectory, layout: Layout, turn: int) -> slice | None:
        """Return the place of the feedback that ``turn`` read, in the tokens of the episode.

        Returns:
            An empty slice when nothing was said; None when feedback and template cannot be
            distinguished: several messages, a template that looks at the content, or tokens that
            are not the renderer's.
        """
        messages = episode.turns[turn].observation
        if len(messages) != 1:
            return None
        start, stop = int(layout.prompt_T[turn]), int(layout.action_T[turn])
        ended = int(layout.token_ids_L[start - 1]) in self._renderer.end_ids
        text = self._renderer.continuation_text(messages, hit_eos=ended)
        frame = self._frame(messages[0].role, ended)
        if frame is None or not text.startswith(frame[0]) or not text.endswith(frame[1]):
            return None
        encoded = encode_with_places(self._renderer.tokenizer, text)
        if not np.array_equal(encoded.token_ids_M, layout.token_ids_L[start:stop]):
            return None
        first, last = len(frame[0]), len(text) - len(frame[1])
        inside = np.flatnonzero((encoded.starts_M >= first) & (encoded.ends_M <= last))
        if last <= first or not inside.size:
            return slice(start, start)
        return slice(start + int(inside[0]), start + int(inside[-1]) + 1)

    def _frame(self, role: str, ended: bool) -> tuple[str, str] | None:
        """Return what the template puts around a message."""
        key = (role, ended)
        if key not in self._frames:
            probe = Message(role=role, content=_PROBE)  # type: ignore[arg-type]
            text = self._renderer.continuation_text([probe], hit_eos=ended)
            before, found, after = text.partition(_PROBE)
            self._frames[key] = (before, after) if found else None
        return self._frames[key]
