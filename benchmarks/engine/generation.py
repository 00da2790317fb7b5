"""Part b: tokens per second of the local engine against ``transformers`` generate.

64 episodes of 10 turns run at once. In each turn every episode reads a few observation tokens and
draws a fixed number of action tokens. The engine keeps each episode's cache. ``generate`` is called
once a turn on the batch of whole histories, padded on the left, which is how a multi-turn loop
around it is commonly written; it is timed as it is, and with the log-probs of the drawn tokens,
which training needs and which the engine always returns. Same weights, fp32, one thread.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from episodes import (
    SHAPES,
    VOCABULARY,
    Episode,
    Played,
    make_engine,
    make_episodes,
    make_model,
    play_with_engine,
    play_with_generate,
)
from harness import (
    Clock,
    Goal,
    Measurement,
    PartResult,
    interleaved,
    limit_goal,
    ratio_goal,
    run_part,
    versions,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EPISODES, TURNS = 64, 10
OPENING, OBSERVATION, ACTION = (24, 40), (10, 17), 8
"""Tokens of a first observation and of a later one, from and to, and of an action.

The later observations are as long as those of ``text/maze``. Its actions are shorter (3 tokens),
which would favour the engine more.
"""


def measure(repeats: int, clock: Clock) -> PartResult:
    """Measure all model shapes."""
    torch.set_num_threads(1)
    result = PartResult(
        part="b",
        title="Multi-turn generation",
        settings={
            "episodes": EPISODES,
            "turns": TURNS,
            "opening_tokens": OPENING,
            "observation_tokens": OBSERVATION,
            "action_tokens": ACTION,
            "vocabulary": VOCABULARY,
            "threads": torch.get_num_threads(),
            "dtype": "float32",
        },
        versions=versions("torch", "transformers", "numpy"),
    )
    episodes = make_episodes(
        EPISODES, turns=(TURNS, TURNS), opening=OPENING, observation=OBSERVATION, seed=0
    )
    for shape in SHAPES:
        model = make_model(shape)
        _compare(shape, model, episodes, repeats=repeats, clock=clock, result=result)
        result.measurements.append(_saved(shape, model, episodes))
        result.goals += _agreement(shape, model, episodes)
    return result


def _compare(
    shape: str,
    model: PreTrainedModel,
    episodes: list[Episode],
    *,
    repeats: int,
    clock: Clock,
    result: PartResult,
) -> None:
    """Time the sides in turn; add their rates and the ratio to ``result``."""

    def with_engine() -> float:
        engine = make_engine(model)
        start = clock()
        play_with_engine(engine, episodes, action=ACTION)
        return clock() - start

    def with_generate(with_logprobs: bool) -> float:
        start = clock()
        play_with_generate(model, episodes, action=ACTION, with_logprobs=with_logprobs)
        return clock() - start

    engine_name, generate_name = f"{shape}: engine", f"{shape}: transformers generate"
    seconds = interleaved(
        {
            engine_name: with_engine,
            generate_name: functools.partial(with_generate, False),
            f"{generate_name}, with log-probs": functools.partial(with_generate, True),
        },
        repeats=repeats,
    )
    sampled = EPISODES * TURNS * ACTION
    result.measurements += [
        Measurement(
            name=case, unit="sampled tokens/s", values=tuple(sampled / value for value in values)
        )
        for case, values in seconds.items()
    ]
    result.goals.append(
        ratio_goal(
            f"{shape}: engine / generate, tokens per second",
            seconds[generate_name],
            seconds[engine_name],
            at_least=3.0,
        )
    )


def _saved(shape: str, model: PreTrainedModel, episodes: list[Episode]) -> Measurement:
    """Return how many of the tokens in a history were not computed again."""
    engine = make_engine(model)
    play_with_engine(engine, episodes, action=ACTION)
    computed = engine.stats.read_tokens + engine.stats.sampled_tokens
    spared = engine.stats.reused_tokens
    return Measurement(
        name=f"{shape}: token computations saved by the kept cache",
        unit="%",
        values=(100 * spared / (computed + spared),),
        note=f"{computed} computed, {spared} spared",
    )


def _agreement(shape: str, model: PreTrainedModel, episodes: list[Episode]) -> list[Goal]:
    """Return how far each side's log-probs are from the other's on the same tokens."""
    engine = make_engine(model)
    ours = play_with_engine(engine, episodes, action=ACTION)
    theirs = play_with_generate(model, episodes, action=ACTION, with_logprobs=True)
    scored = asyncio.run(engine.score([played.token_ids for played in theirs]))
    gaps = {
        f"{shape}: engine's log-probs against a transformers forward pass": _largest_gap(
            ours, [_forward(model, played.token_ids) for played in ours]
        ),
        f"{shape}: generate's log-probs against the engine's score": _largest_gap(
            theirs, [logprobs.tolist() for logprobs in scored]
        ),
    }
    return [limit_goal(name, gap, at_most=1e-4) for name, gap in gaps.items()]


@torch.inference_mode()
def _forward(model: PreTrainedModel, text: list[int]) -> list[float]:
    """Return the log-probs of ``text`` from token 1 on, by the model's own forward pass."""
    ids = torch.tensor([text])
    logprobs = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
    scores: list[float] = logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()
    return scores


def _largest_gap(all_played: list[Played], all_scores: list[list[float]]) -> float:
    gaps = []
    for played, scores in zip(all_played, all_scores, strict=True):
        mask = played.action_mask[1:]
        wanted = [score for score, is_action in zip(scores, mask, strict=True) if is_action]
        gaps += [abs(a - b) for a, b in zip(wanted, played.logprobs, strict=True)]
    return max(gaps)


if __name__ == "__main__":
    run_part(measure, default_repeats=5)
