"""The warm start: what weighs how much, in which order, and that it learns."""

from __future__ import annotations

import copy
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch

from helpers import models
from helpers.rendered import context as credit_context
from helpers.rendered import rendered_episode
from helpers.samples import random_samples
from helpers.trajectories import episode, turn
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.runs.phases import _imitated, begin_imitation, begin_learning
from turngym.trainers.settings.loss import ImitationTerm, LossConfig
from turngym.trainers.settings.optimizer import LearnerConfig, WarmStartConfig
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.compute import ALONE
from turngym.trainers.update.imitation import (
    Demonstrations,
    Imitator,
    RenderedEpisode,
    imitation_weights,
    within,
)
from turngym.trainers.update.learner import TorchLearner
from turngym.types import Trajectory


def rendered(action: int, *, prompt: tuple[int, ...] = (5, 6)) -> RenderedEpisode:
    """Return an episode that answers ``prompt`` with ``action`` twice."""
    ids = (*prompt, action, *prompt, action)
    turns = (*(-1 for _ in prompt), 0, *(-1 for _ in prompt), 1)
    return RenderedEpisode(token_ids=ids, action_mask=tuple(t >= 0 for t in turns), turn_ids=turns)


EPISODES = [rendered(7), rendered(8, prompt=(9, 10, 11)), rendered(12, prompt=(13,))]


def imitator(**config: object) -> Imitator:
    settings = {"batch_episodes": 2, "lr": 3e-3, "max_steps": 50, **config}
    return Imitator(
        copy.deepcopy(models.model()),
        EPISODES,
        WarmStartConfig(**settings),  # type: ignore[arg-type]
        seed=1,
    )


def test_action_and_observation_tokens_share_their_weights_over_the_batch() -> None:
    masks = [np.array([False, False, True]), np.array([False, True, False, True, True])]
    ids = [np.array([5, 6, 7]), np.array([5, 6, 7, 8, 9])]
    first, second = imitation_weights(masks, ids, observation_weight=0.2)
    assert first.tolist() == pytest.approx([0, 0.1, 0.25])
    assert second.tolist() == pytest.approx([0, 0.25, 0.1, 0.25, 0.25])
    assert first.sum() + second.sum() == pytest.approx(1.2)


def test_without_observation_weight_only_actions_are_imitated() -> None:
    [weights] = imitation_weights(
        [np.array([False, False, True])], [np.arange(3)], observation_weight=0.0
    )
    assert weights.tolist() == [0, 0, 1]


def test_a_few_steps_learn_the_actions_by_heart() -> None:
    made = imitator(max_steps=60)
    losses = [made.step()["warm_start/action_loss"] for _ in range(60)]
    assert losses[0] > 4
    assert losses[-1] < 0.5


def test_each_pass_takes_every_episode_at_most_once() -> None:
    made = imitator(batch_episodes=1)
    for first in (0, 3, 6):
        assert sorted(chain(*(made._batch(first + i) for i in range(3)))) == [0, 1, 2]
    orders = {tuple(tuple(made._batch(3 * p + i)) for i in range(3)) for p in range(8)}
    assert len(orders) > 1


def test_a_batch_larger_than_the_episodes_takes_them_all() -> None:
    assert sorted(imitator(batch_episodes=99)._batch(4)) == [0, 1, 2]


def test_micro_batches_do_not_change_a_step() -> None:
    whole, cut = imitator(), imitator(microbatch_tokens=7)
    for _ in range(3):
        assert cut.step()["warm_start/loss"] == pytest.approx(
            whole.step()["warm_start/loss"], abs=1e-5
        )


def test_a_warm_start_can_be_taken_up_to_the_bit() -> None:
    config = {"lr_schedule": "cosine", "lr_warmup_steps": 3}
    straight, first = imitator(**config), imitator(**config)
    for _ in range(8):
        straight.step()
    for _ in range(4):
        first.step()
    second = imitator(**config)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state(first.tensors()["optimizer"], steps=4)
    for _ in range(4):
        second.step()
    for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_learning_rate_rises_then_follows_a_half_cosine_to_zero() -> None:
    made = imitator(lr=1.0, lr_warmup_steps=2, lr_schedule="cosine", max_steps=6)
    rates = []
    for _ in range(7):
        rates.append(made.optimizer.lr)
        made.optimizer.steps += 1
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)


PLAYED = random_samples(models.model(), count=4)
SHOWN = random_samples(models.model(), count=3)


def gradient_beside(demonstrations: Demonstrations | None, **config: object) -> torch.Tensor:
    settings = LearnerConfig(**{"lr": 1e-3, "grad_clip": 1e9, **config})  # type: ignore[arg-type]
    model = copy.deepcopy(models.model())
    made = TorchLearner(model, settings, LossConfig(), demonstrations=demonstrations)
    made.update(PLAYED)
    return torch.cat([p.grad.flatten() for p in made.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("size", [{}, {"microbatch_tokens": 8}])
def test_imitation_beside_adds_its_gradient_to_that_of_the_policy(size: dict[str, int]) -> None:
    term = ImitationTerm(weight=0.3, episodes_per_step=8)
    found = gradient_beside(Demonstrations(SHOWN, term, seed=1), **size) - gradient_beside(None)
    model, total, count = copy.deepcopy(models.model()), torch.zeros(()), 0
    for sample in SHOWN:
        ids = torch.from_numpy(sample.token_ids)
        logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1)
        of_actions = torch.from_numpy(sample.loss_mask[1:])
        total = total - logprobs.gather(1, ids[1:, None])[:, 0][of_actions].sum()
        count += int(of_actions.sum())
    (0.3 * total / count).backward()  # type: ignore[no-untyped-call]
    wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


def test_imitation_beside_takes_other_episodes_at_every_step_and_the_same_again() -> None:
    made = [Demonstrations(SHOWN, ImitationTerm(weight=1, episodes_per_step=1), seed=1)] * 2
    model = copy.deepcopy(models.model())
    losses = [
        [one.backpropagate(model, step=step, max_tokens=999, ranks=ALONE) for step in range(12)]
        for one in made
    ]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == len(SHOWN)


WON = episode([turn(drawn=(7, 8))], score=1.0)
LOST = episode([turn(drawn=(9, 10))], score=0.0)


@pytest.mark.parametrize(("only", "shown"), [("true", [WON]), ("false", [WON, LOST])])
def test_imitation_beside_may_leave_out_what_failed(only: str, shown: list[Trajectory]) -> None:
    setting = f"algo.loss.imitation.successes_only={only}"
    sources = ["demo", "algo=grpo_demos"]
    made = _imitated(load_config(TrainConfig, [*sources, setting]), [WON, LOST])
    wanted = _imitated(load_config(TrainConfig, sources), shown)
    assert made is not None
    assert wanted is not None
    losses = [
        one.backpropagate(copy.deepcopy(models.model()), step=0, max_tokens=999, ranks=ALONE)
        for one in (made, wanted)
    ]
    assert losses[0] == losses[1]


def test_where_no_demonstration_succeeded_there_is_none_to_imitate() -> None:
    sources = ["demo", "algo=grpo_demos", "algo.loss.imitation.successes_only=true"]
    with pytest.raises(ConfigError, match="no success of the expert fits into"):
        _imitated(load_config(TrainConfig, sources), [LOST])


def test_a_method_that_learns_from_demonstrations_is_not_trained_without_any() -> None:
    config = load_config(TrainConfig, ["demo", "algo=archer_demos"])
    with pytest.raises(ConfigError, match="of algo 'archer_demos': no episode of the expert fits"):
        begin_learning(config, None, None, renderer=None, sampling=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("context", "left"), [(64, 10), (10, 10), (9, 5), (5, 5), (4, None)])
def test_what_no_context_holds_is_not_imitated(context: int, left: int | None) -> None:
    found = within(rendered(7, prompt=(1, 2, 3, 4)), context)
    assert (found and len(found.token_ids)) == left
    assert found is None or (found.token_ids[-1] == 7 and found.action_mask[-1])


def test_a_warm_start_on_longer_conversations_than_the_model_reads_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = [("exits", "go"), ("got", "key")]
    short, long = rendered_episode(said[:1]), rendered_episode(said * 60, member=1)
    renderer, base = credit_context().renderer, ["env.id=text/maze", "model.context=64"]
    begin = partial(begin_imitation, model=models.model(), renderer=renderer, introductions={})
    made = begin(load_config(TrainConfig, base), episodes=[short, long])
    assert isinstance(made, Imitator)
    assert max(ids.size for ids in made._token_ids) <= 64
    assert "1 of 2 conversations are longer than model.context=64" in caplog.text
    tight = load_config(TrainConfig, [*base, "model.context=16", "rollout.max_new_tokens=4"])
    with pytest.raises(ConfigError, match=r"no action .* within model.context=16 tokens"):
        begin(tight, episodes=[rendered_episode([("exits " * 40, "go")])])


def test_pictures_are_not_imitated() -> None:
    [weights] = imitation_weights(
        [np.array([False, False, False, False, True])],
        [np.array([5, -3, -3, 6, 7])],
        observation_weight=0.5,
    )
    assert weights.tolist() == [0, 0, 0, 0.5, 1]
