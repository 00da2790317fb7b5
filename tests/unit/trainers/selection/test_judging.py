"""Filters, down-sampling, memories and prefixes do what they say."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from helpers.credit import algo, credit_of
from helpers.trajectories import episode, group, turn
from turngym.rollouts.scheduler.groups import GroupRequest, ReadyGroup
from turngym.tasks.base import Task
from turngym.trainers.credit.base import Credit
from turngym.trainers.losses.policy_loss import aggregation_coefficients
from turngym.trainers.runs.group_source import chosen, trained_part
from turngym.trainers.samples import to_samples
from turngym.trainers.selection.batches import (
    down_sampled,
    most_varied,
    reason_to_drop,
    with_imitation,
)
from turngym.trainers.selection.past import (
    Prefixer,
    SelfImitation,
    SuccessReplayer,
    as_context,
    as_ready_group,
    condition_of,
    member_of,
)
from turngym.trainers.settings.selection import (
    FilterConfig,
    Imitation,
    PrefixCondition,
    SuccessReplay,
)
from turngym.types import Trajectory

TASK = Task(id="made/train/0", seed=1)
RNG = np.random.default_rng


def attempt(reward: float, number: int, *, turns: int = 2, seed: int | None = None) -> Trajectory:
    rewards = [0.0] * (turns - 1) + [reward]
    made = episode(rewards, member=number)
    return replace(made, score=reward, policy_seed=number if seed is None else seed)


def ready(rewards: list[float], *, index: int = 0, condition: str = "") -> ReadyGroup:
    request = GroupRequest(task=TASK, size=len(rewards), condition=condition)
    made = [attempt(r, n, seed=100 * index + n) for n, r in enumerate(rewards)]
    return as_ready_group(index, request, made)


@pytest.mark.parametrize(
    ("scores", "settings", "reason"),
    [
        ([1, 1, 1], {}, None),
        ([1, 1, 1], {"spread": True}, "no_spread"),
        ([1, 0, 1], {"spread": True}, None),
        ([0, 0, 0, 1], {"mean_low": 0.3}, "too_hard"),
        ([0, 1, 1, 1], {"mean_high": 0.7}, "too_easy"),
        ([0, 1, 0, 1], {"mean_low": 0.25, "mean_high": 0.75}, None),
        ([], {"spread": True}, None),
    ],
)
def test_filters_name_their_reason(
    scores: list[float], settings: dict[str, object], reason: str | None
) -> None:
    config = FilterConfig.model_validate(settings)
    assert reason_to_drop(scores, scores, config) == reason


def test_success_is_judged_and_not_what_was_paid_on_the_way() -> None:
    """A penalty for length makes every group differ, which dynamic sampling must not see."""
    paid = [1.0, 0.9, 0.8]
    assert reason_to_drop([1, 1, 1], paid, FilterConfig(spread=True)) == "no_spread"
    assert reason_to_drop([1, 1, 1], paid, FilterConfig(spread=True, of="return")) is None
    assert reason_to_drop([1, None, 1], paid, FilterConfig(spread=True)) is None


def test_the_most_varied_are_the_ends() -> None:
    values = np.array([1, 0.9, 0.6, 0.5, 0.4, 0.1, 0, 0])
    places = most_varied(values, 4)
    assert sorted(values[places]) == [0, 0, 0.9, 1]
    assert np.var(values[places]) == pytest.approx(0.225625, abs=0.002)
    assert most_varied(values, 8) == list(range(8))


def test_down_sampling_keeps_advantages_of_all() -> None:
    rewards = [1, 0.9, 0.6, 0.5, 0.4, 0.1, 0, 0]
    made = group(*(episode([r], member=i) for i, r in enumerate(rewards)))
    credit = credit_of(algo("dr_grpo"), made)
    found = down_sampled(credit, 4)
    assert [s.trajectory for s in found.samples] == [0, 1, 2, 3]
    kept = [float(a[0]) for a in found.advantages]
    assert kept == pytest.approx([r - np.mean(rewards) for r in (1, 0.9, 0, 0)], abs=1e-6)
    assert found.metrics["selection/attempts_left_out"] == 4.0
    assert [t.episode_return for t in found.trajectories] == [1, 0.9, 0, 0]


def test_an_attempt_that_another_is_compared_with_is_not_left_out() -> None:
    """Late attempts stand beside those that their group closed with, which are context."""
    attempts = [episode([r], member=i) for i, r in enumerate([1, 1, 0, 0])]
    siblings = [replace(one, turns=as_context(one.turns)) for one in attempts[:3]]
    credit = credit_of(algo("grpo"), group(*siblings, attempts[3]))
    found = down_sampled(credit, 2)
    assert [s.trajectory for s in found.samples] == [0]
    assert found.metrics["selection/attempts_left_out"] == 0.0


def test_successes_join_groups_of_their_task_and_are_compared_with_them() -> None:
    replayer = SuccessReplayer(SuccessReplay(type="successes", per_group=2))
    assert replayer.replay(0, [ready([1, 1, 0])], RNG(0)) == []
    fresh = ready([1] + [0] * 7, index=1)
    joined = replayer.replay(1, [fresh], RNG(0))
    assert [g.kind for g in joined] == ["replay"]
    [together] = chosen([fresh], joined).groups
    credit = credit_of(algo("grpo"), together)
    values = [float(a[0]) for a in credit.advantages]
    assert values == pytest.approx([1.449135] + [-0.621058] * 7 + [1.449135] * 2, abs=2e-5)


def test_a_success_is_never_twice_in_one_group_nor_in_another_episode() -> None:
    replayer = SuccessReplayer(SuccessReplay(type="successes"))
    same = ready([1, 0])
    replayer.replay(0, [same], RNG(0))
    assert replayer.replay(1, [same], RNG(0)) == []
    other = ready([1, 0], index=5)
    moved = replace(
        other,
        members=tuple(
            replace(m, trajectory=replace(m.trajectory, env_seed=99)) for m in other.members
        ),
    )
    assert replayer.replay(2, [moved], RNG(0)) == []


def test_old_successes_are_forgotten_and_the_rest_survives_a_checkpoint() -> None:
    config = SuccessReplay(type="successes", max_age=3)
    replayer = SuccessReplayer(config)
    replayer.replay(0, [ready([1, 0])], RNG(0))
    again = SuccessReplayer(config)
    again.load_state(json.loads(json.dumps(replayer.state())))
    assert again.of(TASK.id, 3) == replayer.of(TASK.id, 3) != []
    assert again.of(TASK.id, 4) == []


def test_the_baseline_of_imitation_is_the_median_of_recent_groups() -> None:
    imitator = SelfImitation(Imitation(type="imitation"))
    for index, mean in enumerate((0.1, 0.2, 0.5, 0.6, 0.9)):
        imitator.replay(0, [ready([mean, mean], index=index)], RNG(0))
    assert imitator.baseline == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("step", "weight"), [(0, 0.0), (50, 0.146447), (100, 0.5), (200, 1.0), (300, 1.0)]
)
def test_imitation_warms_up(step: int, weight: float) -> None:
    imitator = SelfImitation(Imitation(type="imitation", warmup=200))
    assert imitator.weight(step) == pytest.approx(weight, abs=1e-6)


def test_only_attempts_above_the_baseline_come_back_until_they_are_too_old() -> None:
    config = Imitation(type="imitation", max_age=2, per_step=8)
    imitator = SelfImitation(config)
    imitator.replay(0, [ready([1, 0, 0, 0])], RNG(0))
    found = imitator.replay(1, [ready([0, 0, 0, 0], index=1)], RNG(0))
    assert [[t.episode_return for t in g.trajectories] for g in found] == [[1.0]]
    again = SelfImitation(config)
    again.load_state(json.loads(json.dumps(imitator.state())))
    assert len(again.replay(2, [ready([0, 0], index=2)], RNG(0))) == 1
    assert again.replay(3, [ready([0, 0], index=3)], RNG(0)) == []


def test_imitated_attempts_are_averaged_apart_from_new_ones() -> None:
    new = group(*(episode([r], member=i) for i, r in enumerate([1.0, 0.0])))
    credit = credit_of(algo("dr_grpo"), new)
    past = [attempt(1.0, 7), attempt(0.2, 8)]
    found = with_imitation(credit, past, baseline=0.5, weight=0.25)
    assert [s.replayed for s in found.samples] == [False, False, True]
    old = found.samples[-1]
    assert old.advantages[old.loss_mask].tolist() == pytest.approx([0.5] * 4)
    arrays = aggregation_coefficients(found.samples, "token_mean")
    sums = [float(array.sum()) for array in arrays]
    assert sums == pytest.approx([0.5, 0.5, 0.25])
    alone = aggregation_coefficients(credit.samples, "token_mean")
    assert [a.tolist() for a in arrays[:2]] == [a.tolist() for a in alone]


def test_imitated_attempts_share_no_number_with_what_a_method_replays() -> None:
    credit = credit_of(algo("dr_grpo"), group(episode([1.0]), episode([0.0], member=1)))
    replayed = replace(credit, trajectories=(), advantages=())  # actions of other episodes
    found = with_imitation(replayed, [attempt(1.0, 7)], baseline=0.5, weight=0.25)
    assert [s.trajectory for s in found.samples] == [0, 1, 2]


def test_while_a_policy_waits_it_imitates_nothing() -> None:
    past = [attempt(1.0, 7)]
    waiting = Credit(samples=(), dropped={"warmup": 4})
    found = with_imitation(waiting, past, baseline=0.5, weight=0.25)
    assert (found.samples, found.metrics["selection/imitated_attempts"]) == ((), 0.0)
    # Where attempts earned all the same there is something to imitate.
    alike = replace(waiting, dropped={"zero_spread": 4})
    assert len(with_imitation(alike, past, baseline=0.5, weight=0.25).samples) == 1


def test_a_prefix_is_context_and_its_rest_is_trained() -> None:
    whole = attempt(1.0, 0, turns=3)
    part = trained_part(member_of(whole, 0, first_turn=2))
    assert [t.num_sampled_tokens for t in part.turns] == [0, 0, 2]
    values_M = np.ones(part.num_sampled_tokens)
    [sample] = to_samples(part, values_M, index=0)
    assert sample.num_action_tokens == 2
    assert sample.token_ids.tolist() == to_samples(whole, np.ones(6), index=0)[0].token_ids.tolist()


def late(*, reward: float, closed_with: ReadyGroup) -> ReadyGroup:
    made = member_of(attempt(reward, 9), 3)
    return replace(closed_with, kind="late", members=(made,), siblings=closed_with.trajectories)


def test_a_late_member_is_compared_with_those_that_were_in_time_and_trained_alone() -> None:
    closed, other = ready([1, 0, 0], index=3), ready([1, 0], index=4)
    _, alone = chosen([other], [late(reward=1.0, closed_with=closed)]).groups
    credit = credit_of(algo("dr_grpo"), alone)
    [sample] = credit.samples
    assert credit.trajectories[sample.trajectory].policy_seed == 9
    assert sample.advantages[sample.loss_mask] == pytest.approx(1 - 2 / 4)


def test_a_late_member_joins_its_group_when_that_is_trained_in_the_same_step() -> None:
    closed = ready([1, 0, 0], index=3)
    [together] = chosen([closed], [late(reward=1.0, closed_with=closed)]).groups
    credit = credit_of(algo("dr_grpo"), together)
    values = [float(a[0]) for a in credit.advantages]
    assert values == pytest.approx([0.5, -0.5, -0.5, 0.5])
    assert len(credit.samples) == 4


def test_early_turns_of_an_episode_are_a_group_of_their_own() -> None:
    whole = ready([1, 0], index=3)
    head = replace(whole.members[0], end_turn=1)
    running = replace(whole, kind="partial", members=(head,))
    groups = chosen([whole], [running]).groups
    assert [len(g.trajectories) for g in groups] == [2, 1]
    assert [t.num_sampled_tokens for t in groups[1].trajectories[0].turns] == [2, 0]


def prefixer(**settings: object) -> Prefixer:
    return Prefixer(PrefixCondition.model_validate({"type": "prefix", "share": 1.0, **settings}))


def test_hard_tasks_begin_where_a_success_has_led() -> None:
    made = prefixer(below=0.5)
    plain = GroupRequest(task=TASK, size=4)
    assert made.conditioned(plain, index=0, success=0.1, rng=RNG(3)) == plain  # no success yet
    made.observe(plain, [attempt(1.0, 0, turns=6), attempt(0.0, 1)], 0)
    found = made.conditioned(plain, index=1, success=0.1, rng=RNG(3))
    assert 1 <= len(found.prefix) <= 5
    assert found.condition == condition_of(found.prefix) != ""
    assert not any(turn.num_sampled_tokens for turn in found.prefix)
    assert made.conditioned(plain, index=1, success=0.9, rng=RNG(3)) == plain  # no more hard


def test_conditioned_groups_teach_neither_successes_nor_difficulty() -> None:
    made = prefixer()
    request = GroupRequest(task=TASK, size=2, condition="prefix-1-00", prefix=as_context([turn()]))
    made.observe(request, [attempt(1.0, 0, turns=4)], 0)
    plain = GroupRequest(task=TASK, size=2)
    assert made.conditioned(plain, index=0, success=0.0, rng=RNG(0)) == plain


def test_prefixes_get_shorter_stage_by_stage_and_end() -> None:
    made = prefixer(cut="staged", stages=3, window=2, tolerance=0.1)
    request = GroupRequest(task=TASK, size=2, condition="prefix-1-00")
    lengths = [made.cut(8, 0.5)]
    scores = [0.9, 0.9, 0.2, 0.2, 0.9, 0.9, 0.9, 0.9]
    for score in scores:
        made.observe(request, [replace(attempt(1.0, 0), score=score)], 0)
        lengths.append(made.cut(8, 0.5))
    assert lengths == [6, 6, 4, 4, 4, 4, 2, 2, 0]
    assert made.stage == 0


def test_the_share_of_prefixes_falls_to_nothing() -> None:
    made = prefixer(share=0.5, until=10)
    assert [made.share(i) for i in (0, 5, 10, 20)] == [0.5, 0.25, 0.0, 0.0]


def test_prefixes_survive_a_checkpoint() -> None:
    made = prefixer()
    plain = GroupRequest(task=TASK, size=4)
    made.observe(plain, [attempt(1.0, 0, turns=6)], 0)
    again = prefixer()
    again.load_state(json.loads(json.dumps(made.state())))
    wanted = made.conditioned(plain, index=2, success=0.0, rng=RNG(1))
    assert again.conditioned(plain, index=2, success=0.0, rng=RNG(1)) == wanted
