"""What a turn did for the policy's own likelihood of the true answer.

After every turn the policy is asked, in thought, to give the answer at once: the tokens of the
answering action are put behind the prompt of the next turn and scored. Only the tokens that spell
the truth count; a token that holds characters of the truth and of its surroundings counts as well.

Axis letters: N turn of any episode, T turn of one episode, M token of the answer.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from turngym.agents.rendering import Renderer
from turngym.seeding import generator
from turngym.trainers.credit.base import (
    Components,
    CreditContext,
    RewardComponent,
    StatelessSource,
    TurnBatch,
)
from turngym.trainers.credit.layout import Layout, check_fast, encode_with_places, room_of
from turngym.trainers.credit.sources.branches import Branch, Tree, TreeScorer
from turngym.trainers.samples import FloatArray, IntArray
from turngym.trainers.settings.rewards import InfoGain
from turngym.types import Trajectory


class InfoGainSource(StatelessSource[InfoGain]):
    """The component ``info_gain``; learns nothing of its own.

    The last turn of an episode has no value, and neither have episodes that cannot be scored: no
    true answer, rewritten history, an answer that does not fit into the model, log-probs that are
    not finite. ``credit/info_gain_fallbacks`` counts those.

    Args:
        config: Form of the gain, and the ablation.
        context: Gives the policy, at temperature 1 and as it is now, and the renderer.

    Raises:
        ConfigError: The tokenizer gives no character offsets.

    Source:
        IGPO, arXiv:2510.14967. The answer is the environment's own answering action instead of a
        fixed sentence with tags.
    """

    def __init__(self, config: InfoGain, context: CreditContext) -> None:
        super().__init__(config)
        check_fast(context.renderer.tokenizer, config.type)
        self._context = context
        self._score = TreeScorer(context)

    def read(self, turns: TurnBatch) -> Components:
        """Return the gains of a batch."""
        questions = [self._question(episode) for episode in turns.episodes]
        answers = self._answer_logprobs([q for q in questions if q is not None])
        values_N = np.full(turns.turn_N.shape, np.nan)
        found, fallbacks = iter(answers), 0
        for question, start in zip(questions, turns.start_B.tolist(), strict=True):
            answer_T = next(found) if question is not None else np.full(1, np.nan)
            if not np.isfinite(answer_T).all():
                fallbacks += 1
                continue
            gains_T = information_gains(answer_T, self._config.form)
            values_N[start : start + gains_T.size] = gains_T
        component = RewardComponent.where_finite(values_N)
        has_value_N = component.has_value_N
        self._metrics = {"credit/info_gain_fallbacks": float(fallbacks)}
        if self._config.shuffled and turns.episodes:
            # The first attempt's seed is another in every batch, and the same after a resume.
            rng = generator(self._context.seed, "shuffled", turns.episodes[0].policy_seed)
            component.values_N[has_value_N] = rng.permutation(component.values_N[has_value_N])
        if has_value_N.any():
            self._metrics["credit/info_gain_mean"] = float(component.values_N[has_value_N].mean())
        return {"info_gain": component}

    def _question(self, episode: Trajectory) -> Tree | None:
        """Return an episode with its answer after each prompt, or None when it has no answer."""
        layout = Layout.of(episode)
        if layout is None or not episode.ground_truth or not episode.answer:
            return None
        room, renderer = room_of(self._context.model), self._context.renderer
        return ask_each_turn(layout, renderer, episode.answer, episode.ground_truth, room)

    def _answer_logprobs(self, questions: list[Tree]) -> list[FloatArray]:
        """Return the mean log-prob of the truth before each turn, one array [T] per episode."""
        return [
            np.array(
                [
                    float(values_M[branch.chosen_M].mean(dtype=np.float64))
                    for branch, values_M in zip(tree.branches, scores.branches, strict=True)
                ]
            )
            for tree, scores in zip(questions, self._score(questions), strict=True)
        ]


def information_gains(
    logprobs_T: FloatArray, form: Literal["prob_diff", "log_prob_diff"]
) -> FloatArray:
    """Return ``f(l_t) - f(l_{t-1})`` of the turns but the last, shape [T - 1].

    Args:
        logprobs_T: Mean log-prob l of the truth's tokens before each turn, in nats.
        form: f is exp for ``prob_diff``, so that gains sum to the growth of the geometric-mean
            probability; the identity for ``log_prob_diff``.
    """
    gains: FloatArray = np.diff(np.exp(logprobs_T) if form == "prob_diff" else logprobs_T)
    return gains


def ask_each_turn(
    layout: Layout, renderer: Renderer, answer: str, truth: str, room: int | None
) -> Tree | None:
    """Return the tokens of an episode with ``answer`` as a branch before each of its actions.

    Args:
        layout: The episode.
        renderer: Encodes the answer.
        answer: Action that states the truth.
        truth: Its last occurrence in ``answer`` counts.
        room: Longest sequence of the model; None for no limit.

    Returns:
        None when ``answer`` does not hold ``truth``, or does not fit behind the last prompt.
    """
    found = truth_tokens(renderer, answer, truth)
    if found is None:
        return None
    token_ids_M, chosen_M = found
    last_prompt = int(layout.action_T[-1])
    if room is not None and last_prompt + token_ids_M.size > room:
        return None
    return Tree(
        trunk_L=layout.token_ids_L[:last_prompt],
        chosen_L=np.zeros(last_prompt, dtype=np.bool_),
        branches=tuple(
            Branch(start=int(start), token_ids_M=token_ids_M, chosen_M=chosen_M)
            for start in layout.action_T
        ),
    )


def truth_tokens(
    renderer: Renderer, answer: str, truth: str
) -> tuple[IntArray, NDArray[np.bool_]] | None:
    """Return the tokens [M] of ``answer`` up to the end of ``truth``, and which spell it.

    What follows the truth is left out, because no token that counts can see it. A token across the
    boundary counts. None when ``answer`` does not hold ``truth``.
    """
    start = answer.rfind(truth)
    if start < 0 or not truth:
        return None
    encoded = encode_with_places(renderer.tokenizer, answer)
    chosen_M = (encoded.ends_M > start) & (encoded.starts_M < start + len(truth))
    length = int(np.flatnonzero(chosen_M)[-1]) + 1
    return encoded.token_ids_M[:length], chosen_M[:length]
