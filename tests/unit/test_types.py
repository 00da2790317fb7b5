import math
import pickle

import pytest

from turngym.types import Message, StopReason, TokenSpan, Trajectory, TrajectoryGroup, Turn

SAID = Message(role="assistant", content="go north")


def span(**changes):
    fields = {"token_ids": (5, 6), "sampled": True, "logprobs": (-0.1, 0.0), "policy_version": 3}
    return TokenSpan(**{**fields, **changes})


def trajectory(**changes):
    fields = {
        "env_id": "e",
        "task_id": "e/train/0",
        "env_seed": 1,
        "policy_seed": 2,
        "turns": (),
        "stop_reason": StopReason.TERMINATED,
    }
    return Trajectory(**{**fields, **changes})


def test_every_stop_reason_is_exactly_one_of_end_limit_and_error():
    kinds = {
        reason: (reason is StopReason.TERMINATED, reason.is_truncated, reason.is_error)
        for reason in StopReason
    }
    assert all(sum(flags) == 1 for flags in kinds.values()), kinds


def test_a_sampled_span_needs_one_logprob_per_token():
    with pytest.raises(ValueError, match="needs 2 logprobs for 2 tokens, got 1"):
        span(logprobs=(-0.1,))


def test_a_span_that_was_not_sampled_has_no_logprobs():
    with pytest.raises(ValueError, match="needs 0 logprobs"):
        TokenSpan(token_ids=(1,), sampled=False, logprobs=(-1.0,))


@pytest.mark.parametrize(
    ("sampled", "logprobs", "version"), [(True, (-1.0, -1.0), None), (False, (), 3)]
)
def test_a_version_belongs_to_sampled_tokens_and_to_no_others(sampled, logprobs, version):
    with pytest.raises(ValueError, match="policy_version"):
        span(sampled=sampled, logprobs=logprobs, policy_version=version)


@pytest.mark.parametrize("logprob", [0.1, math.nan, -math.inf, math.inf])
def test_the_logprob_of_a_drawn_token_is_finite_and_at_most_0(logprob):
    with pytest.raises(ValueError, match="logprobs"):
        span(logprobs=(-0.1, logprob))


def test_a_turn_acts_as_the_assistant():
    with pytest.raises(ValueError, match="assistant"):
        Turn(observation=(), action=Message(role="user", content="x"))


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_is_finite(reward):
    with pytest.raises(ValueError, match="finite"):
        Turn(observation=(), action=SAID, reward=reward)


def test_reward_parts_sum_to_the_reward():
    assert Turn(observation=(), action=SAID, reward=0.5, reward_parts={"a": 1.0, "b": -0.5})
    with pytest.raises(ValueError, match=r"sum to 1\.0, not to the reward 0\.5"):
        Turn(observation=(), action=SAID, reward=0.5, reward_parts={"a": 1.0})


def test_only_drawn_tokens_are_counted():
    seen = TokenSpan(token_ids=(1, 2, 3), sampled=False)
    turn = Turn(observation=(), action=SAID, spans=(seen, span()))
    episode = trajectory(turns=(turn, turn))
    assert (turn.num_sampled_tokens, episode.num_sampled_tokens) == (2, 4)
    assert episode.spans == (seen, span(), seen, span())


def test_the_return_is_the_sum_of_the_rewards():
    turns = tuple(Turn(observation=(), action=SAID, reward=r) for r in (1.0, -0.25, 0.5))
    assert trajectory(turns=turns).episode_return == 1.25


@pytest.mark.parametrize(
    ("stop", "error"), [(StopReason.TERMINATED, "broke"), (StopReason.ERROR_ENV, None)]
)
def test_an_error_text_belongs_to_an_error_and_to_nothing_else(stop, error):
    with pytest.raises(ValueError, match="an error text belongs to"):
        trajectory(stop_reason=stop, error=error)


@pytest.mark.parametrize(
    "stop", [StopReason.ERROR_ENV, StopReason.ERROR_POLICY, StopReason.ERROR_REWARD]
)
def test_an_episode_that_broke_has_no_score_not_even_0(stop):
    with pytest.raises(ValueError, match="has no score"):
        trajectory(stop_reason=stop, error="broke", score=0.0)


@pytest.mark.parametrize("score", [-0.01, 1.01, math.nan])
def test_a_score_lies_in_0_to_1(score):
    with pytest.raises(ValueError, match="score must lie"):
        trajectory(score=score)


@pytest.mark.parametrize(("score", "success"), [(None, False), (0.99, False), (1.0, True)])
def test_success_is_a_full_score(score, success):
    assert trajectory(score=score).is_success is success


@pytest.mark.parametrize("change", [{"env_id": "f"}, {"task_id": "e/train/1"}, {"env_seed": 9}])
def test_a_group_shares_environment_task_and_seed(change):
    with pytest.raises(ValueError, match="mixes 2 tasks"):
        TrajectoryGroup(
            group_id="g", trajectories=(trajectory(), trajectory(policy_seed=3, **change))
        )


def test_members_of_a_group_differ_in_the_policy_seed():
    with pytest.raises(ValueError, match="repeats a policy seed"):
        TrajectoryGroup(group_id="g", trajectories=(trajectory(), trajectory()))


def test_the_usable_members_of_a_group_are_those_that_did_not_break():
    good, cut = trajectory(), trajectory(policy_seed=3, stop_reason=StopReason.TRUNCATED_TURNS)
    broken = trajectory(policy_seed=4, stop_reason=StopReason.ERROR_ENV, error="broke")
    group = TrajectoryGroup(group_id="g", trajectories=(good, broken, cut))
    assert group.usable == (good, cut)


def test_trajectories_survive_pickling():
    episode = trajectory(turns=(Turn(observation=(SAID,), action=SAID, spans=(span(),)),))
    assert pickle.loads(pickle.dumps(episode)) == episode
