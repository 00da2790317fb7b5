"""What parts b and c play: models, episodes of random tokens, and the two ways to draw actions.

An episode is the observations of its turns, as token ids; what is sampled does not change them. The
number of sampled tokens is fixed and no end token ends an action, so both sides read and sample the
same number of tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import build_tiny_model
from turngym.agents.engine.protocol import Sampling
from turngym.agents.engine.small_tokenizer import train_tokenizer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SHAPES = {"96x3": (96, 3, 3), "128x4": (128, 4, 4)}
"""Width, layers and heads."""
CONTEXT, VOCABULARY = 512, 330
SHARPEN = 4.0
"""Factor on the random weights: at their usual size every token is as likely as any other, and
wrong log-probs would hardly differ from right ones."""

Episode = list[list[int]]
"""The new tokens of each turn."""
Range = tuple[int, int]
"""From and to, both included."""


@dataclass(slots=True, kw_only=True)
class Played:
    """One episode after it was played."""

    token_ids: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    """True on the sampled tokens."""
    logprobs: list[float] = field(default_factory=list)
    """Of the sampled tokens, when they were asked for."""

    def see(self, ids: Sequence[int]) -> None:
        """Add an observation."""
        self.token_ids += ids
        self.action_mask += [False] * len(ids)

    def act(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add an action."""
        self.token_ids += ids
        self.action_mask += [True] * len(ids)
        self.logprobs += logprobs


class EndlessTokenizer:
    """What the engine needs of a tokenizer, with an end token that cannot be sampled."""

    eos_token_id = -1


def make_episodes(
    number: int, *, turns: Range, opening: Range, observation: Range, seed: int
) -> list[Episode]:
    """Return the observations of ``number`` episodes; ids that are no special tokens."""
    rng = np.random.default_rng(seed)

    def draw(span: Range) -> int:
        return int(rng.integers(*span, endpoint=True))

    episodes = []
    for _ in range(number):
        lengths = [draw(opening)] + [draw(observation) for _ in range(draw(turns) - 1)]
        episodes.append([rng.integers(6, VOCABULARY, size=n).tolist() for n in lengths])
    return episodes


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with ``VOCABULARY`` entries."""
    text = "you are in a room. exits north east south west. key north. go north"
    tokenizer = train_tokenizer([text], VOCABULARY)
    tokenizer.add_tokens([f"<extra-{i}>" for i in range(VOCABULARY - len(tokenizer))])
    return tokenizer


def make_model(shape: str) -> PreTrainedModel:
    """Return a Llama-shaped model with random weights, large enough for distinct predictions."""
    hidden, layers, heads = SHAPES[shape]
    config = TinyModelConfig(
        hidden=hidden, layers=layers, heads=heads, context=CONTEXT, vocab_size=VOCABULARY
    )
    model = build_tiny_model(config, make_tokenizer(), seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight *= SHARPEN
    return model


def make_engine(model: PreTrainedModel) -> LocalEngine:
    """Return a local engine whose actions never end early."""
    model.generation_config.eos_token_id = None
    return LocalEngine(model, EndlessTokenizer(), context=CONTEXT)


def play_with_engine(
    engine: LocalEngine, episodes: Sequence[Episode], *, action: int
) -> list[Played]:
    """Play all episodes at once on the engine, with ``action`` tokens a turn."""
    sampling = Sampling(temperature=1.0, max_new_tokens=action)

    async def play(seed: int, episode: Episode) -> Played:
        session, played = engine.open(seed), Played()
        for observation in episode:
            sampled = await session.generate(observation, sampling)
            played.see(observation)
            played.act(sampled.token_ids, sampled.logprobs)
        session.close()
        return played

    async def play_all() -> list[Played]:
        return await asyncio.gather(*(play(seed, e) for seed, e in enumerate(episodes)))

    return asyncio.run(play_all())


def play_with_generate(
    model: PreTrainedModel, episodes: Sequence[Episode], *, action: int, with_logprobs: bool
) -> list[Played]:
    """Play all episodes at once with one call of ``generate`` a turn.

    Each call reads the whole histories of the episodes that still run, padded on the left.
    """
    all_played = [Played() for _ in episodes]
    for turn in range(max(map(len, episodes))):
        running = [i for i, episode in enumerate(episodes) if len(episode) > turn]
        for i in running:
            all_played[i].see(episodes[i][turn])
        histories = [all_played[i].token_ids for i in running]
        for i, sampled in zip(
            running, _generate(model, histories, action, with_logprobs), strict=True
        ):
            all_played[i].act(*sampled)
    return all_played


@torch.inference_mode()
def _generate(
    model: PreTrainedModel, texts: Sequence[list[int]], action: int, with_logprobs: bool
) -> list[tuple[list[int], list[float]]]:
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    seen = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
    output: Any = model.generate(
        input_ids=ids,
        attention_mask=seen,
        max_new_tokens=action,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=with_logprobs,
    )
    actions: Tensor = output.sequences[:, longest:]
    if not with_logprobs:
        return [(sampled, []) for sampled in actions.tolist()]
    logprobs = torch.stack(output.logits, dim=1).float().log_softmax(-1)
    chosen = logprobs.gather(-1, actions[..., None])[..., 0]
    return list(zip(actions.tolist(), chosen.tolist(), strict=True))
