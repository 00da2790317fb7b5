"""Values of tasks, lengths and entropies in credit, worked out by hand from the papers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from helpers.credit import algo, components_of, rows_of
from helpers.losses import sample
from helpers.trajectories import episode, group, turn
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.credit.base import Credit, TurnBatch
from turngym.trainers.credit.controls import build_credit
from turngym.trainers.credit.group.task_value import BetaValues, optimal_value
from turngym.trainers.losses.token_weights import with_entropy_shaping
from turngym.trainers.selection.past import as_context
from turngym.trainers.settings.algo import BetaValue
from turngym.trainers.settings.corrections import EntropyShaping
from turngym.trainers.settings.rewards import LengthPenalty
from turngym.trainers.settings.train import TrainConfig
from turngym.types import TrajectoryGroup

BEST = 0.716891
"""``0.5 * log((2 * exp(2) + 2) / 4)``."""


def tried(*rewards: float, task: str = "made/train/0") -> TrajectoryGroup:
    return group(*[episode([r], member=i, task_id=task) for i, r in enumerate(rewards)])


def values(credit: Credit) -> list[float]:
    """Return the advantage of each sample."""
    return [float(s.advantages[s.loss_mask][0]) for s in credit.samples]


def test_a_star_po_values_a_task_once_and_trains_on_what_comes_later() -> None:
    assert optimal_value(np.array([1.0, 0, 0, 1]), 0.5) == pytest.approx(BEST, abs=1e-6)
    assert optimal_value(np.array([1000.0, 0]), 0.5) == pytest.approx(1000 - 0.5 * np.log(2))
    made = build_credit(algo("a_star_po"), None)
    first = asyncio.run(made.assign([tried(1, 0, 0, 1)]))
    assert (first.samples, first.dropped) == ((), {"warmup": 1})
    both = [tried(1, 0), tried(0, 0, task="made/train/1")]
    second = asyncio.run(made.assign(both))
    assert values(second) == pytest.approx([1 - BEST, -BEST], abs=1e-6)
    assert second.dropped == {"warmup": 1}
    restored = build_credit(algo("a_star_po"), None)
    restored.load_state(made.state())
    assert_allclose(
        values(asyncio.run(restored.assign(both))), [1 - BEST, -BEST, 0.0, 0.0], atol=1e-6
    )


def test_the_beta_distribution_of_a_task_forgets() -> None:
    """8 attempts of which half were right, then one that is and one that is not."""
    known = BetaValues(BetaValue(kept=0.875, prior=0.5, prior_attempts=8))
    known.learn("one", np.array([1.0, 0.0]))
    assert known.known["one"] == (3.9375, 4.0625)
    assert known.value("one") == pytest.approx(0.4921875)
    assert known.value("two") == 0.5


def test_spo_compares_with_the_value_before_the_batch_and_scales_the_batch() -> None:
    made = build_credit(algo("spo"), None)
    first = asyncio.run(made.assign([tried(1, 0, 0, 0)]))
    assert values(first) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    # a: 0.5, 1.4375, 1.257812, 1.100586, 0.963013; b: 0.5, 0.4375, 1.382812, 2.209961, 2.933716
    value = 0.247126
    raw = np.array([1 - value, 0 - value, 1 - 0.5])
    second = asyncio.run(made.assign([tried(1, 0), tried(1, task="made/train/1")]))
    assert values(second) == pytest.approx(
        ((raw - raw.mean()) / raw.std(ddof=1)).tolist(), abs=1e-5
    )
    empty = build_credit(algo("spo"), None)
    empty.load_state(build_credit(algo("spo"), None).state())
    assert values(asyncio.run(empty.assign([tried(1, 0, 0, 0)]))) == values(first)


def test_what_one_player_can_expect_of_a_task_is_not_what_another_can() -> None:
    made = build_credit(algo("spo", "batch=null"), None)
    sides = [
        TrajectoryGroup(group_id=name, trajectories=(replace(episode([won]), player=name),))
        for name, won in (("X", 1.0), ("O", 0.0))
    ]
    for _ in range(2):
        credit = asyncio.run(made.assign(sides))
    # a and b are 1.4375 and 0.4375 after X has won once, and the other way round for O.
    assert values(credit) == pytest.approx([1 - 1.4375 / 1.875, -0.4375 / 1.875])


def test_attempts_that_a_late_one_is_shown_with_are_learned_of_once() -> None:
    together, apart = (build_credit(algo("spo", "batch=null"), None) for _ in range(2))
    whole = tried(1, 0, 1, 0)
    asyncio.run(together.assign([whole]))
    first, (*_, late) = whole.trajectories[:3], whole.trajectories
    asyncio.run(apart.assign([replace(whole, trajectories=first)]))
    context = [replace(t, turns=as_context(t.turns)) for t in first]
    asyncio.run(apart.assign([replace(whole, trajectories=(*context, late))]))
    found, wanted = (made.state()["tasks/values"].tolist() for made in (apart, together))
    assert found == wanted


def test_mssr_raises_the_advantage_of_undecided_tokens_and_keeps_its_sign() -> None:
    loss = algo("mssr").loss
    assert loss.entropy_shaping == EntropyShaping(weight=0.4, kappa=2.0)
    made = sample([0, 0, 0, 0], index=0)
    made.advantages[1:] = [1.0, -1.0, 0.2, -0.2]
    entropies = np.array([0.0, 1.0, 1.0, 2.0, 4.0], dtype=np.float32)
    (found,) = with_entropy_shaping([made], [entropies], loss.entropy_shaping)
    assert_allclose(found.advantages, [0, 1.4, -0.6, 0.3, -0.1], atol=1e-6)


@pytest.mark.parametrize(
    ("rewards", "wanted"),
    [
        ([1, 1, 0, 0], [-0.05, -0.2, -0.1, -0.15]),  # half of them succeed
        ([0, 0, 0, 0], [-0.025, -0.1, -0.05, -0.075]),  # none, which counts as one
        ([1, 1, 1, 1], [-0.1, -0.4, -0.2, -0.3]),
    ],
)
def test_alp_takes_more_for_a_token_where_more_attempts_succeed(
    rewards: list[float], wanted: list[float]
) -> None:
    made = [turn(r, drawn=range(n)) for r, n in zip(rewards, (10, 40, 20, 30), strict=True)]
    one = group(*[episode([t], member=i) for i, t in enumerate(made)])
    other = tried(0.0, task="made/train/1")
    turns = TurnBatch.of([one, other])
    found = components_of(LengthPenalty(type="length", price=0.01), turns)["length"]
    assert_allclose(found.values_N, [*wanted, -0.02])
    assert found.has_value_N.all()
    # Turns that are too old to be trained on were paid for all the same.
    context = [replace(t, turns=as_context(t.turns)) for t in one.trajectories[1:]]
    late = TrajectoryGroup(group_id="late", trajectories=(one.trajectories[0], *context))
    found = components_of(LengthPenalty(type="length", price=0.01), TurnBatch.of([late]))["length"]
    assert_allclose(found.values_N, wanted)


def test_opo_weighs_an_attempt_by_what_it_said_also_where_that_is_context() -> None:
    fresh = tried(1, 0, 0, 0)
    context = [replace(t, turns=as_context(t.turns)) for t in fresh.trajectories[1:]]
    late = TrajectoryGroup(group_id="late", trajectories=(fresh.trajectories[0], *context))
    assert rows_of(algo("opo"), late) == rows_of(algo("opo"), fresh) == [[0.75], *3 * [[-0.25]]]


def test_alp_counts_the_tokens_of_all_turns_on_the_last() -> None:
    turns = TurnBatch.of([tried(1.0), group([0.0, 1.0])])
    found = components_of(LengthPenalty(type="length", price=0.01), turns)["length"]
    assert_allclose(found.values_N, [-0.02, 0.0, -0.04])


def test_what_learns_of_tasks_asks_for_tasks_that_come_back() -> None:
    with pytest.raises(ConfigError, match=r"'task_value' learns .* set env\.num_train_tasks"):
        load_config(TrainConfig, ["env.id=text/maze", "algo.advantage.type=task_value"])
