"""Updates from the last turn to the first: weights, order, schedule and cost of a turn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import models
from helpers.losses import sample
from helpers.samples import random_samples
from turngym.trainers.metrics import MetricSums
from turngym.trainers.samples import TrainingSample
from turngym.trainers.settings.loss import LossConfig
from turngym.trainers.settings.optimizer import LearnerConfig
from turngym.trainers.update.learner import Scores, TorchLearner
from turngym.trainers.update.sequential import LastTurnFirstLearner, turn_row

SAMPLES = random_samples(models.model(), count=6)
LOSS = LossConfig(ratio_level="sequence_geo", aggregation="seq_mean_token_mean")


def learner(kind: type[TorchLearner] = LastTurnFirstLearner, **config: float | str) -> TorchLearner:
    settings = LearnerConfig(**{"lr": 1e-3, **config})  # type: ignore[arg-type]
    return kind(copy.deepcopy(models.model()), settings, LOSS, total_updates=4)


def weights(made: TorchLearner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in made.model.parameters()])


class Recorder(LastTurnFirstLearner):
    """Moves log-probs as it is told, instead of training, and keeps what it was to train on."""

    def __init__(self, moves: dict[tuple[int, int], float]) -> None:
        super().__init__(copy.deepcopy(models.model()), LearnerConfig(), LOSS)
        self.moves = moves
        """By episode and turn."""
        self.passes: list[list[TrainingSample]] = []

    def logprobs(self, samples: Sequence[TrainingSample]) -> Scores:
        """Return log-probs of -1, moved where the turn was trained on."""
        done = {int(p[0].turn_ids.max()) for p in self.passes}
        arrays = []
        for s in samples:
            moves = [
                self.moves.get((s.trajectory, turn), 0.0) if turn in done else 0.0
                for turn in s.turn_ids.tolist()
            ]
            arrays.append(np.where(s.loss_mask, -1.0 + np.array(moves), 0.0).astype(np.float32))
        return arrays

    def fit(
        self, samples: Sequence[TrainingSample], sums: MetricSums, *, is_first: bool = True
    ) -> None:
        self.passes.append(list(samples))

    def advantages(self, number: int) -> dict[int, float]:
        """Return the advantage of each episode in one pass, counted from the first."""
        return {s.trajectory: float(s.advantages[s.loss_mask][0]) for s in self.passes[number]}


def episode(turns: list[int], *, index: int, advantage: float) -> TrainingSample:
    made = sample(turns, index=index)
    return replace(made, advantages=np.where(made.loss_mask, advantage, 0).astype(np.float32))


Z = 0.70710678
MOVES = {(0, 2): 0.2, (1, 2): -0.2, (0, 1): 0.05, (1, 1): 0.03}


@pytest.mark.parametrize("reordered", [False, True])
def test_advantages_follow_the_published_weights(reordered: bool) -> None:
    """Weights [1.2, .8187] after the third turn and [1.2, .8437] after the second."""
    batch = [
        episode([0, 0, 1, 2, 2], index=0, advantage=Z),
        episode([0, -1, 1, 1, -1, 2], index=1, advantage=-Z),
    ]
    made = Recorder(MOVES)
    metrics = made.update(batch[::-1] if reordered else batch)
    assert [int(p[0].turn_ids.max()) for p in made.passes] == [2, 1, 0]
    for number, wanted in enumerate([(0.7071, -0.7071), (0.8485, -0.5789), (0.8485, -0.5966)]):
        assert made.advantages(number) == pytest.approx(dict(enumerate(wanted)), abs=1e-4)
    assert metrics["train/turn_weight_mean"] == pytest.approx((1.2 + 0.8437) / 2, abs=1e-4)
    assert metrics["train/turn_passes"] == 3


def test_the_weight_follows_the_mean_over_a_turns_tokens() -> None:
    """A long turn moves the weight no more than a short one whose tokens move alike."""
    batch = [
        episode([0, *[1] * 9], index=0, advantage=1.0),
        episode([0, 1], index=1, advantage=1.0),
    ]
    made = Recorder({(0, 1): 0.1, (1, 1): 0.1})
    made.update(batch)
    assert made.advantages(1) == pytest.approx(dict.fromkeys((0, 1), np.exp(0.1)), rel=1e-5)


def test_an_episode_that_ended_earlier_waits_with_weight_one_for_its_own_last_turn() -> None:
    batch = [
        episode([0, 1, 2], index=0, advantage=1.0),
        episode([0], index=1, advantage=1.0),
    ]
    made = Recorder({(0, 2): 0.1, (0, 1): 0.05})
    made.update(batch)
    assert made.advantages(2) == pytest.approx({0: np.exp(0.15), 1: 1.0}, rel=1e-5)
    assert [len(p) for p in made.passes] == [1, 1, 2]
    assert [p[0].weight for p in made.passes] == [0.5, 0.5, 1.0]


def test_attempts_of_the_past_have_a_share_of_their_own() -> None:
    """Of two new ones and of two old ones: what the old ones reach leaves the new ones alone."""
    new = [episode([0, 1], index=0, advantage=1.0), episode([0], index=1, advantage=1.0)]
    old = [
        replace(episode([0, 1], index=n, advantage=1.0), replayed=True, weight=0.5) for n in (2, 3)
    ]
    made = Recorder({})
    made.update([*new, *old])
    assert [[s.weight for s in one] for one in made.passes] == [[0.5, 0.5, 0.5], [1, 1, 0.5, 0.5]]


def test_a_row_holds_one_turn_and_ends_with_it() -> None:
    made = turn_row(
        episode([0, 0, -1, 1, 1, -1, 2], index=3, advantage=2.0), 1, factor=0.5, share=0.25
    )
    assert made.turn_ids.tolist() == [-1, -1, -1, -1, 1, 1]
    assert made.advantages.tolist() == [0, 0, 0, 0, 1, 1]
    assert (made.trajectory, made.weight) == (3, 0.25)
    experts = np.arange(8 * 6, dtype=np.uint16).reshape(8, 3, 2)
    whole = replace(episode([0, 0, -1, 1, 1, -1, 2], index=3, advantage=2.0), routing=experts)
    cut = turn_row(whole, 1, factor=0.5, share=0.25).routing
    assert cut is not None
    assert cut.tolist() == experts[:6].tolist()


def test_each_turn_is_measured_from_the_policy_that_the_later_ones_left() -> None:
    """One pass after the other by hand gives the same weights of the model."""
    found = learner()
    found.update(SAMPLES)
    wanted, factors = learner(), [1.0] * len(SAMPLES)
    for turn in (1, 0):
        rows = [
            turn_row(s, turn, factor=f, share=1.0) for s, f in zip(SAMPLES, factors, strict=True)
        ]
        old = wanted.logprobs(rows)
        wanted.optimizer.steps = 0
        wanted.fit(rows, MetricSums())
        new = wanted.logprobs(rows)
        for i, row in enumerate(rows):
            ratio = np.exp((new[i] - old[i])[row.loss_mask].mean())
            factors[i] = float(np.clip(factors[i] * np.clip(ratio, 0.8, 1.2), 0.8, 1.2))
    assert any(abs(f - 1) > 1e-3 for f in factors)
    torch.testing.assert_close(weights(found), weights(wanted), atol=1e-6, rtol=0)


def test_episodes_of_one_turn_are_updated_as_ever() -> None:
    single = [
        replace(
            s,
            turn_ids=np.where(s.loss_mask, 0, -1),
        )
        for s in SAMPLES
    ]
    one, other = learner(TorchLearner), learner()
    wanted, found = one.update(single), other.update(single)
    torch.testing.assert_close(weights(other), weights(one), atol=1e-6, rtol=0)
    assert wanted.keys() <= found.keys()
    for name in wanted:
        assert found[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-6)


def test_all_passes_of_an_update_are_at_one_place_of_the_schedule() -> None:
    made = learner(lr_schedule="cosine", lr=4e-3)
    rates = [made.update(SAMPLES)["train/learning_rate"] for _ in range(4)]
    plain = learner(TorchLearner, lr_schedule="cosine", lr=4e-3)
    assert rates == [plain.update(SAMPLES)["train/learning_rate"] for _ in range(4)]
    assert made.optimizer.steps == plain.optimizer.steps == 4


def test_segments_are_updated_like_whole_episodes() -> None:
    cut = [
        replace(s, loss_mask=s.turn_ids == turn, turn_ids=np.where(s.turn_ids == turn, turn, -1))
        for s in SAMPLES
        for turn in (0, 1)
    ]
    one, other = learner(), learner()
    one.update(SAMPLES)
    other.update(cut)
    torch.testing.assert_close(weights(other), weights(one), atol=1e-6, rtol=0)


def test_turn_by_turn_updates_are_taken_up_to_the_bit() -> None:
    straight, first = learner(), learner()
    for _ in range(3):
        straight.update(SAMPLES)
    first.update(SAMPLES)
    second = learner()
    second.model.load_state_dict(first.model.state_dict())
    second.load_state(first.state(), updates=first.updates, steps=first.optimizer.steps)
    for _ in range(2):
        second.update(SAMPLES)
    assert torch.equal(weights(second), weights(straight))


def test_nothing_to_learn_changes_nothing_but_counts() -> None:
    made = learner()
    before = weights(made)
    for batch in ([], [replace(SAMPLES[0], weight=0.0)]):
        assert made.update(batch)["train/tokens"] == 0
    assert made.updates == 2
    assert torch.equal(weights(made), before)
