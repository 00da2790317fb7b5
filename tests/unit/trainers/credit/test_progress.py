"""SPA: contributions that sum to the outcome, learned from the newest episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import models
from helpers.rendered import batch, context, rendered_episode, sharpened
from turngym.trainers.credit.base import TurnBatch
from turngym.trainers.credit.group.group_relative import rewards_to_go
from turngym.trainers.credit.sources.learned import (
    ExampleBuffer,
    Row,
    TrainingExample,
    episode_rows,
    packed,
)
from turngym.trainers.credit.sources.progress import (
    ProgressEstimator,
    ProgressSource,
    last_tokens,
    progress_rewards,
    squared_error,
)
from turngym.trainers.selection.past import as_context
from turngym.trainers.settings.rewards import Progress
from turngym.types import StopReason, TrajectoryGroup

CONFIG = Progress(
    type="progress", lr=3e-3, steps_per_update=3, batch_episodes=4, buffer_episodes=16
)
CONTRIBUTIONS = np.array([0.2, 0.3, 0.4, 0.1, -0.2, 0.2])


def fixture() -> TurnBatch:
    """Return the two attempts of the worked example: three turns each, returns 1 and 0."""
    said = [("exits", "go"), ("got", "key"), ("door", "go")]
    return batch(
        [
            rendered_episode(said, rewards=[0, 0, 1], member=0),
            rendered_episode(said, rewards=[0, 0, 0], member=1, invalid=[1]),
        ]
    )


def test_worked_example_loss_and_gradient() -> None:
    values = torch.tensor(CONTRIBUTIONS, requires_grad=True)
    outcomes = torch.tensor([1.0, 0.0], dtype=torch.float64)
    loss = squared_error(values, torch.tensor([0, 0, 0, 1, 1, 1]), outcomes) / 2
    loss.backward()
    assert loss.item() == pytest.approx(0.01)
    assert values.grad is not None
    np.testing.assert_allclose(values.grad, [-0.1] * 3 + [0.1] * 3)


def test_worked_example_rewards_and_returns() -> None:
    turns = fixture()
    rewards = progress_rewards(CONTRIBUTIONS, turns, CONFIG)
    np.testing.assert_allclose(rewards, [0.7, 0.8, 0.9, 0.6, -0.2, 0.7])
    undiscounted = rewards_to_go(rewards, turns.is_last_N, gamma=1.0)
    np.testing.assert_allclose(undiscounted, [2.4, 1.7, 0.9, 1.1, 0.5, 0.7])
    discounted = rewards_to_go(rewards, turns.is_last_N, gamma=0.99)
    np.testing.assert_allclose(discounted, [2.3741, 1.6910, 0.9, 1.0881, 0.4930, 0.7], atol=5e-5)


def games(rng: np.random.Generator, count: int) -> list[Any]:
    """Return episodes that are won exactly when a turn says "key"."""
    found = []
    for attempt in range(count):
        words = rng.choice(["go", "east", "north"], 3)
        won = bool(rng.random() < 0.5)
        if won:
            words[int(rng.integers(3))] = "key"
        said = [(str(rng.choice(["exits", "door"])), str(word)) for word in words]
        stop = StopReason.TERMINATED if won else StopReason.TRUNCATED_TURNS
        found.append(rendered_episode(said, rewards=[0, 0, float(won)], member=attempt, stop=stop))
    return found


def groups(rng: np.random.Generator) -> TurnBatch:
    return batch(games(rng, 24))


@pytest.mark.parametrize("body", ["policy", "small"])
def test_credit_finds_the_turn_that_decides(body: Any) -> None:
    config = Progress(
        type="progress",
        lr=1e-2 if body == "policy" else 3e-3,
        steps_per_update=15,
        batch_episodes=24,
        body=body,
        warmup_updates=3,
    )
    source = ProgressSource(config, context())
    rng = np.random.default_rng(0)
    for update in range(4):
        assert source.is_ready == (update >= 3)
        turns = groups(rng)
        component = source.read(turns)["progress"]
        assert component.has_value_N.all()
    says_key = np.array(
        [turn.action.content == "key" for episode in turns.episodes for turn in episode.turns]
    )
    assert component.values_N[says_key].mean() > component.values_N[~says_key].mean() + 0.3
    metrics = source.metrics()
    assert metrics["credit/progress_correlation"] > 0.8
    assert metrics["credit/progress_loss"] < 0.1
    assert metrics["credit/progress_spread"] > 0.1


EXPLORES = {
    "lr": 1e-2,
    "warmup_steps": 15,
    "steps_per_update": 1,
    "batch_episodes": 24,
    "warmup_updates": 1,
    "warmup_until": 0.8,
    "warmup_window": 24,
    "buffer_episodes": 256,
}


def steps_of(source: ProgressSource) -> int:
    return int(source.state()["learner/steps"].item())


@pytest.mark.parametrize("after", ["learn", "freeze"])
def test_the_policy_waits_until_predictions_of_new_episodes_are_good(after: str) -> None:
    source = ProgressSource(CONFIG.model_copy(update=EXPLORES | {"after_warmup": after}), context())
    rng, explored = np.random.default_rng(0), []
    while not source.is_ready:
        source.read(groups(rng))
        explored.append(source.metrics()["credit/progress_explored_correlation"])
    assert all(found < 0.8 for found in explored[:-1])
    assert explored[-1] >= 0.8
    assert 2 <= len(explored) < 12
    assert source.metrics()["credit/progress_explored"] == 24 * len(explored)
    assert steps_of(source) == 15 * len(explored)
    before = steps_of(source)
    source.read(groups(rng))
    assert steps_of(source) - before == (1 if after == "learn" else 0)
    assert source.is_ready
    assert source.metrics()["credit/progress_correlation"] > 0.7
    assert "credit/progress_explored" not in source.metrics()


def test_a_warm_up_that_does_not_get_there_ends_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = CONFIG.model_copy(
        update=EXPLORES | {"warmup_until": 0.99, "lr": 1e-6, "most_warmup_updates": 2}
    )
    source = ProgressSource(config, context())
    rng = np.random.default_rng(0)
    source.read(groups(rng))
    assert not source.is_ready
    assert not caplog.records
    source.read(groups(rng))
    assert source.is_ready
    assert "wanted 0.99" in caplog.text


def test_an_exploration_that_was_stopped_goes_on_to_the_bit() -> None:
    config = CONFIG.model_copy(update=EXPLORES | {"after_warmup": "freeze"})
    rng = np.random.default_rng(0)
    batches = [groups(rng) for _ in range(6)]
    straight, source = ProgressSource(config, context()), ProgressSource(config, context())
    for turns in batches:
        wanted = straight.read(turns)["progress"]
        kept = {name: tensor.clone() for name, tensor in source.state().items()}
        source = ProgressSource(config, context())
        source.load_state(kept)
        found = source.read(turns)["progress"]
        np.testing.assert_array_equal(found.values_N, wanted.values_N)
        assert (source.is_ready, source.metrics()) == (straight.is_ready, straight.metrics())


def test_the_estimator_learns_from_demonstrations() -> None:
    shown = tuple(games(np.random.default_rng(3), 30))
    rng, found = np.random.default_rng(0), []
    for number in (0, 20):
        given = replace(context(), demonstrations=shown)
        settings = {"demonstrations": number, "buffer_episodes": 64}
        source = ProgressSource(CONFIG.model_copy(update=settings), given)
        source.read(groups(rng))
        found.append(len(source.state()["buffer/outcomes"]))
    assert found == [24, 44]


def test_a_batch_is_judged_before_it_is_learned_from() -> None:
    """The head starts at 0, so the first contributions are 0 whatever the outcomes."""
    config = CONFIG.model_copy(update={"warmup_updates": 0})
    component = ProgressSource(config, context()).read(fixture())["progress"]
    np.testing.assert_array_equal(component.values_N, [0.5, 0.5, 0.5, 0.5, 0, 0.5])


def test_turns_that_are_context_contribute_nothing() -> None:
    source = ProgressSource(CONFIG.model_copy(update={"grounding_weight": 0.0}), context())
    source.read(fixture())
    first, second = fixture().episodes
    cut = replace(first, turns=(*as_context(first.turns[:1]), *first.turns[1:]))
    given = replace(second, turns=as_context(second.turns))
    wanted = source._learner.contributions([source._example(cut)])[0]
    found = source.read(batch([cut, given]))["progress"].values_N
    np.testing.assert_allclose(found, [0, *wanted, 0, 0, 0])
    assert wanted.all()


def test_the_constant_ablation_shares_the_outcome_out() -> None:
    config = CONFIG.model_copy(update={"constant": True, "grounding_weight": 0.0})
    source = ProgressSource(config, context())
    assert source.is_ready
    component = source.read(fixture())["progress"]
    np.testing.assert_allclose(component.values_N, [1 / 3] * 3 + [0] * 3)


def test_a_resumed_run_goes_on_to_the_bit() -> None:
    rng = np.random.default_rng(1)
    batches = [groups(rng) for _ in range(4)]
    straight, first = ProgressSource(CONFIG, context()), ProgressSource(CONFIG, context())
    for turns in batches[:2]:
        straight.read(turns)
        first.read(turns)
    kept = {name: tensor.clone() for name, tensor in first.state().items()}
    resumed = ProgressSource(CONFIG, context(sharpened()))  # the policy has moved on since
    resumed.load_state(kept)
    for turns in batches[2:]:
        wanted, found = straight.read(turns)["progress"], resumed.read(turns)["progress"]
        np.testing.assert_array_equal(found.values_N, wanted.values_N)
        assert resumed.metrics() == straight.metrics()
    a, b = straight.state(), resumed.state()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_nothing_learned_yet_can_be_resumed() -> None:
    source = ProgressSource(CONFIG, context())
    source.load_state({})
    again = ProgressSource(CONFIG, context())
    again.load_state(source.state())
    assert not again.is_ready


def test_the_policy_and_global_random_state_are_left_alone() -> None:
    model = models.model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    for body in ("policy", "small"):
        config = CONFIG.model_copy(update={"body": body})
        ProgressSource(config, context(model)).read(fixture())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_memory_budget_changes_nothing() -> None:
    examples = [
        TrainingExample(rows=episode_rows(e), outcome=1.0)
        for e in games(np.random.default_rng(2), 6)
    ]
    results = []
    for max_tokens in (1, 10_000):
        estimator = ProgressEstimator(models.model(), CONFIG, seed=1, max_tokens=max_tokens)
        buffer = ExampleBuffer(8)
        buffer.add(examples)
        losses = [estimator.step(buffer) for _ in range(2)]
        results.append((losses, np.concatenate(estimator.contributions(examples))))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-4)
    np.testing.assert_allclose(results[0][1], results[1][1], atol=1e-4)


def test_rewritten_history_is_one_row_each_but_one_episode() -> None:
    episode = rendered_episode([("exits", "go"), ("got", "key"), ("door", "go")], rewards=[0, 0, 1])
    turns = (*episode.turns[:2], replace(episode.turns[2], starts_segment=True))
    rewritten = replace(episode, turns=turns)
    rows = episode_rows(rewritten)
    assert [row.turn_ids_L.max() for row in rows] == [1, 2]
    given = TurnBatch.of([TrajectoryGroup(group_id="one", trajectories=(rewritten,))])
    config = CONFIG.model_copy(update={"warmup_updates": 0})
    assert ProgressSource(config, context()).read(given)["progress"].values_N.shape == (3,)


def test_shares_of_a_rewritten_history_stay_with_their_turns() -> None:
    said = [("exits", "go"), ("east", "key"), ("door north exits got", "go")]
    episode = rendered_episode(said, rewards=[0, 0, 1])
    turns = tuple(replace(turn, starts_segment=True) for turn in episode.turns)
    rows = episode_rows(replace(episode, turns=turns))
    assert rows[-1].token_ids_L.size > rows[0].token_ids_L.size  # the longest is read first
    estimator = ProgressEstimator(models.model(), CONFIG, seed=1, max_tokens=10_000)
    whole = TrainingExample(rows=rows, outcome=1.0)
    buffer = ExampleBuffer(1)
    buffer.add([whole])
    for _ in range(3):  # until shares differ
        estimator.step(buffer)
    [found] = estimator.contributions([whole])
    alone = estimator.contributions([TrainingExample(rows=(row,)) for row in rows])
    np.testing.assert_allclose(found, np.concatenate(alone), rtol=1e-5)
    assert np.ptp(found) > 1e-3


def test_a_reader_of_few_tokens_knows_the_turn_alone() -> None:
    def shares(*said: tuple[str, str]) -> Any:
        episode = rendered_episode(list(said), rewards=[0.0] * (len(said) - 1) + [1.0])
        turns = TurnBatch.of([TrajectoryGroup(group_id="one", trajectories=(episode,))])
        return source.read(turns)["progress"].values_N

    source = ProgressSource(CONFIG.model_copy(update={"reads": 2, "warmup_updates": 0}), context())
    for _ in range(3):
        shares(("exits", "go"), ("door", "key"))
    found = shares(("exits", "go"), ("door", "key"), ("door", "key"))
    assert found[1] == pytest.approx(found[2])
    assert found[0] != pytest.approx(found[1])


def test_last_tokens_are_found_between_actions_that_touch() -> None:
    turn_ids = np.array([-1, 0, 0, 1, -1, -1, 2, 2])
    row = Row(token_ids_L=np.arange(8), turn_ids_L=turn_ids, reference_L=np.zeros(8, np.float32))
    assert np.flatnonzero(last_tokens(row)).tolist() == [2, 3, 7]


def test_packs_keep_examples_whole_and_within_the_budget() -> None:
    def example(*lengths: int) -> TrainingExample:
        none = np.zeros
        return TrainingExample(
            rows=tuple(
                Row(
                    token_ids_L=none(n, int),
                    turn_ids_L=none(n, int),
                    reference_L=none(n, np.float32),
                )
                for n in lengths
            )
        )

    examples = [example(3), example(10, 2), example(4), example(9), example(2)]
    packs = list(packed(examples, max_tokens=30))
    assert sorted(i for pack in packs for i in pack) == [0, 1, 2, 3, 4]
    assert packs == [[1, 3], [2, 0, 4]]
    assert list(packed(examples, max_tokens=1)) == [[1], [3], [2], [0], [4]]


def test_the_buffer_forgets_the_oldest() -> None:
    buffer = ExampleBuffer(3)
    rows = episode_rows(rendered_episode([("exits", "go")]))
    buffer.add([TrainingExample(rows=rows, outcome=float(n)) for n in range(5)])
    drawn = buffer.sample(9, np.random.default_rng(0))
    assert sorted(example.outcome for example in drawn) == [2.0, 3.0, 4.0]
