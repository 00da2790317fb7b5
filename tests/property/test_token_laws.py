"""The token laws, on whole episodes of real environments with an untrained model."""

import asyncio
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import turngym
from helpers.models import model, policy
from turngym.agents.engine.local import LocalEngine
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.types import Trajectory

episodes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**40),
        "task": st.integers(0, 10_000),
        "attempts": st.integers(1, 4),
        "concurrency": st.integers(1, 4),
        "temperature": st.sampled_from([0.0, 0.7, 1.0, 1.3]),
        "max_new_tokens": st.integers(1, 9),
    }
)
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def play(case: dict[str, Any], fed: dict[int, list[int]] | None = None) -> list[Trajectory]:
    """Play one group; ``fed`` gathers what the engine was given and drew, by session seed."""
    env = turngym.make("text/maze")
    specs = group_specs(
        "text/maze",
        env.unwrapped.task("train", case["task"]),
        seed=case["seed"],
        group_size=case["attempts"],
    )
    acting = policy(temperature=case["temperature"], max_new_tokens=case["max_new_tokens"])
    if fed is not None:
        _watch(acting.model.engine, fed)
    return asyncio.run(
        collect(lambda: turngym.make("text/maze"), acting, specs, concurrency=case["concurrency"])
    )


def _watch(engine: LocalEngine, fed: dict[int, list[int]]) -> None:
    """Record the tokens that go through the decoder, by the seed of the session in that row."""
    extend, owner = engine._decoder.extend, {}
    opened = engine.open

    def open_session(seed: int) -> Any:
        session = opened(seed)
        owner[session.row] = seed
        fed[seed] = []
        return session

    def watched(rows: Any, tokens: Any) -> Any:
        for row, new in zip(rows, tokens, strict=True):
            fed[owner[row]] += list(new)
        return extend(rows, tokens)

    engine.open = open_session  # type: ignore[method-assign]
    engine._decoder.extend = watched  # type: ignore[method-assign]


@few
@given(episodes)
def test_concatenated_spans_are_what_the_engine_saw(case: dict[str, Any]) -> None:
    fed: dict[int, list[int]] = {}
    for trajectory in play(case, fed):
        ids = [token for span in trajectory.spans for token in span.token_ids]
        # The last drawn token of an episode is recorded, and never read by the model.
        assert ids[:-1] == fed[trajectory.policy_seed]


@few
@given(episodes)
def test_only_drawn_tokens_are_marked_sampled(case: dict[str, Any]) -> None:
    decode = policy().model.renderer.decode_action
    for trajectory in play(case):
        for turn in trajectory.turns:
            drawn = [token for s in turn.spans if s.sampled for token in s.token_ids]
            assert len(drawn) <= case["max_new_tokens"]
            assert decode(drawn) == turn.action.content
            assert [span.sampled for span in turn.spans] == [False, True]


@few
@given(episodes.map(lambda case: {**case, "temperature": 1.0}))
def test_engine_logprobs_are_the_trainer_s(case: dict[str, Any]) -> None:
    for trajectory in play(case):
        ids = [token for span in trajectory.spans for token in span.token_ids]
        with torch.no_grad():
            full = model()(torch.tensor([ids])).logits[0].log_softmax(-1)
        place = 0
        for span in trajectory.spans:
            for token, logprob in zip(span.token_ids, span.logprobs, strict=False):
                assert abs(full[place - 1, token].item() - logprob) < 1e-4
                place += 1
            place += 0 if span.sampled else len(span.token_ids)


@few
@given(episodes, st.integers(1, 4))
def test_episodes_depend_on_their_seeds_and_not_on_the_concurrency(
    case: dict[str, Any], other: int
) -> None:
    first, second = play(case), play({**case, "concurrency": other})
    assert [[t.action.content for t in a.turns] for a in first] == [
        [t.action.content for t in b.turns] for b in second
    ]
