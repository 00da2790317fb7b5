"""Games of several: each player has a conversation of its own, and an episode of its own to learn
from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.envs import LadderEnv
from helpers.policies import Saying
from turngym.agents.policy import EpisodeContext
from turngym.agents.scripted import ExpertPolicy, RandomPolicy
from turngym.environments.core.actions import Commands
from turngym.environments.core.env import Outcome, TurnEnv
from turngym.environments.core.limits import TurnLimit
from turngym.environments.gym.wrappers import RecordTurns
from turngym.records import from_json, read_trajectories, to_json
from turngym.rollouts.atif import from_atif, to_atif
from turngym.rollouts.episode import (
    CannotReplay,
    EpisodeSpec,
    ReplayedTurn,
    digest_of,
    group_specs,
    rollout,
)
from turngym.rollouts.players import OneOf, Versus, by_player, groups_by_player
from turngym.rollouts.replay import ReplayDiffers, restore
from turngym.rollouts.scheduler.packing import (
    PackedEpisode,
    pack_episode,
    pack_tail,
    pack_turn,
    unpack_episode,
)
from turngym.types import StopReason, TokenSpan, TrajectoryGroup


class RoundTable(TurnEnv):
    """Ann, Ben and Cat say "take" or "pass" in turn; each has a secret, and six turns are all.

    Taking pays 2 and costs the next one 1. At the end the richest has a score of 1.
    """

    name = "roundtable"
    rules = "Take or pass."
    players = ("Ann", "Ben", "Cat")
    action_format = Commands({"take": "take", "pass": "pass"})

    def begin(self, task):
        self.said, self.wealth = [], dict.fromkeys(self.players, 0.0)
        return Outcome(text=self.view())

    def player(self):
        return self.players[len(self.said) % 3]

    def view(self):
        return f"secret of {self.player()}, turn {len(self.said)}"

    def turn(self, action):
        mover, others = self.player(), {}
        self.said.append(action.name)
        if action.name == "take":
            others = {self.player(): -1.0}
            self.wealth[mover] += 2.0
            self.wealth[self.player()] -= 1.0
        over = len(self.said) == 6
        info = {"other_rewards": others}
        if over:
            most = max(self.wealth.values())
            info["scores"] = {name: float(w == most) for name, w in self.wealth.items()}
        reward = 2.0 if action.name == "take" else 0.0
        return Outcome(text=self.view(), reward=reward, terminated=over, info=info)


def spec_of(task_number=0, policy_seed=7):
    task = RoundTable().task("train", task_number)
    return EpisodeSpec(env_id="helpers/table", task=task, env_seed=5, policy_seed=policy_seed)


class Seated(Saying):
    """Says for each player what it is told, with tokens."""

    def __init__(self, **said):
        super().__init__("pass")
        self.said = said

    def start(self, context):
        self.texts = self.said.get(context.player, ("pass",))
        session = super().start(context)
        act = session.act

        async def with_tokens(observation, info):
            turn = await act(observation, info)
            read = TokenSpan(token_ids=(1, 2), sampled=False)
            said = TokenSpan(token_ids=(3,), sampled=True, logprobs=(-0.5,), policy_version=4)
            return replace(turn, spans=(read, said))

        session.act = with_tokens
        return session


async def test_each_player_has_a_session_that_sees_nothing_of_the_others():
    policy = Seated(Ann=("take",), Cat=("pass", "take"))
    found = await rollout(RoundTable(), policy, spec_of())
    assert [turn.player for turn in found.turns] == ["Ann", "Ben", "Cat"] * 2
    assert [turn.action.content for turn in found.turns] == [
        *("take", "pass", "pass"),
        *("take", "pass", "take"),
    ]
    assert [context.player for context in policy.contexts] == ["Ann", "Ben", "Cat"]
    assert all(context.players == RoundTable.players for context in policy.contexts)
    assert len({context.seed for context in policy.contexts}) == 3
    assert policy.contexts[0].seed == 7
    for place, turn in enumerate(found.turns):
        assert turn.observation[-1].content == f"secret of {turn.player}, turn {place}"
    assert policy.closed == 3


async def test_a_player_is_introduced_at_its_first_turn():
    policy = Saying("pass")
    sessions, start = [], policy.start

    def kept(context):
        sessions.append(start(context))
        return sessions[-1]

    policy.start = kept
    await rollout(RoundTable(), policy, spec_of())
    assert [["instructions" in info for info in one.infos] for one in sessions] == [
        [True, False]
    ] * 3


class Settled(RoundTable):
    """Where it is cut short, who acted last pays all others 1; Cat, who left, has no score."""

    def end_at_limit(self):
        others = dict.fromkeys(("Ann", "Ben"), 1.0)
        info = {"other_rewards": others, "scores": {"Ann": 1.0, "Ben": 0.25}, "score": 0.25}
        return Outcome(text="", reward=-2.0, info=info)


async def test_a_game_that_the_rollout_cuts_pays_and_scores_each_player():
    said = {"Ann": ("pass", "overflow"), "Cat": ("take",)}
    found = await rollout(Settled(), Seated(**said), spec_of())
    assert found.stop_reason is StopReason.TRUNCATED_CONTEXT
    assert found.turns[-1].other_rewards == {"Ann": -1.0 + 1.0, "Ben": 1.0}
    assert found.scores == {"Ann": 1.0, "Ben": 0.25}
    *others, last = (replace(turn, reward=0.0) for turn in found.turns)
    early = (*others, replace(last, other_rewards={"Ann": -1.0}))  # as it was before the cut
    kept = PackedEpisode(tuple(map(pack_turn, early)), pack_tail(found))
    assert unpack_episode(kept).turns[-1] == found.turns[-1]
    assert unpack_episode(kept).judged_at_limit
    sides = {side.player: (side.episode_return, side.score) for side in by_player(found)}
    assert sides == {"Ann": (0.0, 1.0), "Ben": (1.0, 0.25), "Cat": (0.0, None)}


async def test_a_limit_of_the_environment_adds_to_what_the_last_turn_paid_others():
    env = Settled()
    env.episode_limits = [TurnLimit(3)]
    found = await rollout(env, Seated(Cat=("take",)), spec_of())
    assert found.stop_reason is StopReason.TRUNCATED_TURNS
    assert found.turns[-1].other_rewards == {"Ann": -1.0 + 1.0, "Ben": 1.0}


async def test_return_and_score_are_of_who_acts_first():
    found = await rollout(RoundTable(), Seated(Ann=("take",)), spec_of())
    assert found.player is None
    assert found.episode_return == 4.0
    assert found.score == 1.0
    assert found.scores == {"Ann": 1.0, "Ben": 0.0, "Cat": 0.0}
    assert found.own_turns == found.turns


async def test_an_episode_is_split_into_what_each_player_lived_through():
    found = await rollout(RoundTable(), Seated(Ann=("take",), Cat=("take",)), spec_of())
    ann, ben, cat = by_player(found)
    assert [one.player for one in (ann, ben, cat)] == ["Ann", "Ben", "Cat"]
    assert [turn.reward for turn in ann.turns] == [2.0 - 1.0, 2.0 - 1.0]  # Cat's taking costs Ann
    assert [turn.reward for turn in ben.turns] == [-1.0 - 1.0, 0.0]  # both of Ann's, the first owed
    assert [turn.reward for turn in cat.turns] == [2.0, 2.0]
    assert [one.score for one in (ann, ben, cat)] == [0.0, 0.0, 1.0]
    for one in (ann, ben, cat):
        assert one.episode_return == sum(turn.reward for turn in one.turns)
        assert one.episode_return == sum(turn.reward_of(one.player) for turn in found.turns)
        assert by_player(one) == [one]
        assert one.own_turns == one.turns


async def test_the_last_observation_of_a_game_that_is_cut_off_is_for_who_acts_next():
    whole = await rollout(RoundTable(), Seated(), spec_of())
    cut = replace(whole, stop_reason=StopReason.TRUNCATED_TURNS)
    assert [bool(one.final_observation) for one in by_player(whole)] == [True] * 3
    assert [bool(one.final_observation) for one in by_player(cut)] == [False] * 3  # of two others
    two = replace(cut, turns=whole.turns[:2])
    ann, ben = by_player(two)
    assert (ann.final_observation, ben.final_observation) == (two.final_observation, ())
    assert by_player(ann) == [ann]


async def test_parts_of_a_reward_still_sum_to_it():
    found = await rollout(RoundTable(), Seated(Ann=("take",)), spec_of())
    first = replace(found.turns[0], reward_parts={"taken": 2.5, "tax": -0.5})
    second = replace(found.turns[1], reward_parts={"nothing": 0.0})
    ann, ben, _ = by_player(replace(found, turns=(first, second, *found.turns[2:])))
    assert ann.turns[0].reward_parts == {"taken": 2.5, "tax": -0.5}
    assert ben.turns[0].reward_parts == {"nothing": 0.0, "others": -2.0}


async def test_against_an_opponent_the_policy_is_one_player_and_the_task_says_which():
    seen = {}
    for number in range(30):
        for seed in (1, 2):
            opponent, policy = Seated(), Seated(Ann=("take",), Ben=("take",), Cat=("take",))
            found = await rollout(RoundTable(), Versus(policy, opponent), spec_of(number, seed))
            assert seen.setdefault(number, found.player) == found.player
            takers = {turn.player for turn in found.turns if turn.action.content == "take"}
            assert takers == {found.player}
            assert found.episode_return == 4.0
            assert found.score == 1.0
            sampled = [turn.player for turn in found.turns if turn.num_sampled_tokens]
            assert sampled == [found.player] * 2
            assert len(found.own_turns) == 2
            (side,) = by_player(found)
            assert side.turns == found.own_turns
            assert (policy.closed, opponent.closed) == (1, 2)
    assert set(seen.values()) == set(RoundTable.players)


async def test_which_of_several_opponents_plays_is_said_by_the_task():
    met = {}
    for number in range(20):
        for seed in (1, 2):
            first, second = Seated(), Seated()
            many = OneOf((first, second))
            await rollout(RoundTable(), Versus(Seated(), many), spec_of(number, seed))
            assert sorted((first.closed, second.closed)) == [0, 2]
            assert met.setdefault(number, first.closed) == first.closed
    assert set(met.values()) == {0, 2}


async def test_an_opponent_does_not_play_where_there_is_one_player():
    task = LadderEnv().task("train", 0)
    spec = EpisodeSpec(env_id="helpers/ladder", task=task, env_seed=5, policy_seed=7)
    found = await rollout(LadderEnv(slip=0.0), Versus(Saying("up"), Saying("jump 2")), spec)
    assert {turn.action.content for turn in found.turns} == {"up"}
    assert {turn.player for turn in found.turns} == {None}
    assert by_player(found) == [found]


async def test_a_player_that_is_none_is_a_fault_of_the_environment():
    class Odd(RoundTable):
        def player(self):
            return "Ann" if not self.said else "Dan"

    found = await rollout(Odd(), Saying("pass"), spec_of())
    assert found.stop_reason is StopReason.ERROR_ENV
    assert "'Dan'" in found.error


@pytest.mark.parametrize(
    "wrong", [{"scores": {"Ann": 2.0}}, {"other_rewards": {"Ben": float("nan")}}]
)
async def test_numbers_that_cannot_be_are_a_fault_of_the_environment(wrong):
    class Odd(RoundTable):
        def turn(self, action):
            outcome = super().turn(action)
            return replace(outcome, info={**outcome.info, **wrong})

    found = await rollout(Odd(), Saying("take"), spec_of())
    assert found.stop_reason is StopReason.ERROR_ENV
    assert found.scores == {}


async def test_one_side_alone_is_not_replayed():
    found = await rollout(RoundTable(), Saying("take"), spec_of())
    _, ben, _ = by_player(found)
    assert restore(RoundTable(), found, 7).is_over
    with pytest.raises(ReplayDiffers, match="turns of Ben alone"):
        restore(RoundTable(), ben, 2)


def test_a_game_that_is_played_by_hand_is_recorded(tmp_path):
    env = RecordTurns(RoundTable(), tmp_path / "played.jsonl")
    env.reset(seed=3)
    for _ in range(6):
        env.step("take" if env.unwrapped.player() == "Ben" else "pass")
    env.close()
    [found] = read_trajectories(tmp_path / "played.jsonl")
    assert [turn.player for turn in found.turns] == ["Ann", "Ben", "Cat"] * 2
    assert (found.score, found.scores["Ben"]) == (0.0, 1.0)
    assert [one.episode_return for one in by_player(found)] == [0.0, 4.0, -2.0]


async def test_an_opponent_that_breaks_is_a_fault_and_no_reward():
    found = await rollout(RoundTable(), Versus(Saying("take"), Saying("crash")), spec_of())
    assert found.stop_reason is StopReason.ERROR_POLICY
    assert found.score is None
    assert found.scores == {}


async def test_a_session_that_cannot_be_closed_keeps_none_open():
    class Stuck(Saying):
        def start(self, context):
            session = super().start(context)
            close = session.close

            def broken():
                close()
                raise OSError("no")

            session.close = broken
            return session

    policy = Stuck("pass")
    found = await rollout(RoundTable(), policy, spec_of())
    assert found.stop_reason is StopReason.TERMINATED
    assert policy.closed == 3


async def test_groups_compare_attempts_of_one_player():
    specs = group_specs("helpers/table", RoundTable().task("train", 0), seed=3, group_size=2)
    taking = [Seated(Ann=("take",)), Seated(Ben=("take",))]
    played = [
        await rollout(RoundTable(), policy, spec)
        for policy, spec in zip(taking, specs, strict=True)
    ]
    group = TrajectoryGroup(group_id="g", trajectories=tuple(played))
    found = groups_by_player([group])
    assert [one.group_id for one in found] == ["g/Ann", "g/Ben", "g/Cat"]
    returns = [[t.episode_return for t in one.trajectories] for one in found]
    assert returns == [[4.0, 0.0], [-2.0, 4.0], [0.0, -2.0]]
    assert groups_by_player(found) == found


async def test_every_player_goes_on_where_it_stood():
    policy = Versus(RandomPolicy(), RandomPolicy())
    env = RandomTable()
    whole = await rollout(env, policy, spec_of(3, 11))
    for played in range(len(whole.turns)):
        before = [
            ReplayedTurn(turn, digest_of({"text": turn.observation[-1].content}))
            for turn in whole.turns[:played]
        ]
        assert await rollout(RandomTable(), policy, spec_of(3, 11), played=before) == whole
    wrong = [ReplayedTurn(whole.turns[0], digest_of({"text": "another"}))]
    with pytest.raises(CannotReplay):
        await rollout(RandomTable(), policy, spec_of(3, 11), played=wrong)


class RandomTable(RoundTable):
    def legal_actions(self):
        return ["take", "pass"]


async def test_nothing_of_a_player_is_lost_on_disk():
    for policy in (Seated(Ann=("take",)), Versus(Seated(Ben=("take",)), Seated(Ann=("take",)))):
        found = await rollout(RoundTable(), policy, spec_of(1))
        assert from_json(to_json(found)) == found
        assert unpack_episode(pack_episode(found)) == found
        for side in by_player(found):
            (again,) = from_atif(to_atif(side, name="a"), "here")
            assert again.player == side.player
            assert [turn.player for turn in again.turns] == [turn.player for turn in side.turns]
            assert [turn.spans for turn in again.turns] == [turn.spans for turn in side.turns]


async def test_the_expert_can_be_both_sides():
    import turngym

    env = turngym.make("text/tictactoe-hard")
    task = env.get_wrapper_attr("task")("test", 0)
    spec = EpisodeSpec(env_id="text/tictactoe", task=task, env_seed=1, policy_seed=2)
    found = await rollout(env, ExpertPolicy(), spec)
    first, second = by_player(found)
    assert first.episode_return == -second.episode_return
    assert first.score == 1 - second.score


def test_who_plays_is_known_before_the_episode_begins():
    context = EpisodeContext(env_id="a", task_id="t", seed=0, instructions="", players=("X", "O"))
    versus = Versus(Saying("a"), Saying("b"))
    assert versus.player(context) in ("X", "O")
    assert versus.player(replace(context, seed=99)) == versus.player(context)
