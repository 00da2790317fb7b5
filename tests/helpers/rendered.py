"""Episodes as a policy would have played them: real templates, real tokens, actions from a list."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from helpers import models
from turngym.agents.engine.protocol import Sampling
from turngym.agents.rendering import AnswerEnd, Renderer
from turngym.trainers.credit.base import CreditContext, TurnBatch
from turngym.types import Message, StopReason, TokenSpan, Trajectory, TrajectoryGroup, Turn

Exchange = tuple[str, str]
"""What the environment said, and what the agent did."""


def rendered_episode(
    said: Sequence[Exchange],
    *,
    template: str = "small",
    rewards: Sequence[float] | None = None,
    truth: str | None = None,
    answer: str | None = None,
    member: int = 0,
    task: int = 0,
    invalid: Sequence[int] = (),
    cut: Sequence[int] = (),
    stop: StopReason = StopReason.TERMINATED,
) -> Trajectory:
    """Return an episode rendered turn by turn; turns in ``cut`` lost their end token."""
    renderer = Renderer(models.tokenizer(template))
    turns = []
    for number, (seen, done) in enumerate(said):
        observation = (Message(role="user", content=seen),)
        if number == 0:
            prompt = renderer.opening(observation)
        else:
            prompt = renderer.continuation(observation, AnswerEnd(is_closed=number - 1 not in cut))
        drawn = renderer.action(done)[: -1 if number in cut else None]
        action = TokenSpan(
            token_ids=drawn, sampled=True, logprobs=(-1.0,) * len(drawn), policy_version=0
        )
        turns.append(
            Turn(
                observation=observation,
                action=Message(role="assistant", content=done),
                spans=(TokenSpan(token_ids=prompt, sampled=False), action),
                reward=0.0 if rewards is None else rewards[number],
                invalid_action="no" if number in invalid else None,
            )
        )
    return Trajectory(
        env_id="rendered",
        task_id=f"rendered/train/{task}",
        env_seed=task,
        policy_seed=member,
        member=member,
        turns=tuple(turns),
        stop_reason=stop,
        ground_truth=truth,
        answer=answer,
    )


def random_episode(rng: np.random.Generator, *, turns: int, **settings: Any) -> Trajectory:
    """Return an episode of random words."""
    words = ["go", "north", "key", "door", "east", "exits", "south.", "got"]

    def text() -> str:
        return " ".join(rng.choice(words, int(rng.integers(1, 6))))

    return rendered_episode([(text(), text()) for _ in range(turns)], **settings)


def batch(*groups: Sequence[Trajectory]) -> TurnBatch:
    """Return the turns of some groups of attempts."""
    return TurnBatch.of(
        [TrajectoryGroup(group_id=str(n), trajectories=tuple(g)) for n, g in enumerate(groups)]
    )


def context(
    model: Any = None, *, template: str = "small", max_tokens: int = 4096, seed: int = 3
) -> CreditContext:
    """Return what a channel may use; it has no engine."""
    return CreditContext(
        model=model or models.model(),
        renderer=Renderer(models.tokenizer(template)),
        engine=None,  # type: ignore[arg-type]
        sampling=Sampling(),
        seed=seed,
        max_tokens=max_tokens,
    )


def sharpened(architecture: Any = "llama", *, kv_heads: int | None = None, **changes: Any) -> Any:
    """Return a model whose predictions differ from token to token, and from place to place."""
    import copy

    import torch

    model = copy.deepcopy(models.model(architecture, kv_heads=kv_heads, **changes))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight *= 5.0
    return model


@cache
def taught_to_repeat() -> Any:
    """Return a model that says the word of the newest observation."""
    import torch

    from turngym.agents.engine.config import TinyModelConfig
    from turngym.agents.engine.models import build_tiny_model

    words = ["exits", "got", "key", "go"]
    shape = TinyModelConfig(hidden=32, layers=2, heads=2)
    model = build_tiny_model(shape, models.tokenizer(), seed=1)
    rng = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(120):
        rows = [
            [
                (token, token if span.sampled else -100)
                for span in rendered_episode([(w, w) for w in rng.choice(words, 4)]).spans
                for token in span.token_ids
            ]
            for _ in range(16)
        ]
        width = max(map(len, rows))
        both = torch.tensor([row + [(0, -100)] * (width - len(row)) for row in rows])
        model(input_ids=both[..., 0], labels=both[..., 1]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model
