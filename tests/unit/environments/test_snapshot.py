import copy
import pickle
import threading
from collections import deque

import gymnasium
import pytest
from gymnasium.wrappers import OrderEnforcing, RecordEpisodeStatistics

from helpers.envs import AsyncLadderEnv, LadderEnv, ReplayLadderEnv
from turngym.environments.core.env import clone, fork, restore, snapshot
from turngym.environments.core.limits import (
    InvalidActionLimit,
    TokenLimit,
    TurnLimit,
    WallClockLimit,
)
from turngym.environments.gym.face import as_gym
from turngym.environments.gym.wrappers import RecordTurns, limited
from turngym.errors import SnapshotError
from turngym.records import read_trajectories

ACTIONS = ["up", "nonsense", "jump 2", "jump 9", "up", "jump 3", "up", "x", "x"]


class History(gymnasium.Wrapper):
    """A wrapper of somebody else's: mutable attributes, one of them the environment itself."""

    def __init__(self, env):
        super().__init__(env)
        self.said = deque(maxlen=3)
        self.core = env.unwrapped
        self.mine = {"me": self, "below": [env]}

    def step(self, action):
        self.said.append(action)
        result = self.env.step(action)
        result[-1]["said"] = list(self.said)
        result[-1]["height"] = self.core.ladder.height
        if len(self.said) == 3:
            self.full = True
        return result


def count_words(text):
    return len(text.split())


def stack(kind=LadderEnv, **options):
    env = limited(OrderEnforcing(kind(**options)), TurnLimit(8))
    return limited(History(limited(env, TokenLimit(200, count_words))), InvalidActionLimit(4))


def go(env, actions):
    seen = []
    for action in actions:
        transition = copy.deepcopy(env.step(action))
        transition[-1].pop("usage", None)
        seen.append(transition)
        if transition[2] or transition[3]:
            break
    return seen


@pytest.fixture(params=[LadderEnv, ReplayLadderEnv])
def env(request):
    env = stack(request.param)
    env.reset(seed=5)
    return env


@pytest.mark.parametrize("depth", [0, 1, 4, 7])
def test_everything_goes_on_as_before_counts_of_wrappers_included(env, depth):
    go(env, ACTIONS[:depth])
    state = snapshot(env)
    rest = go(env, ACTIONS[depth:])
    assert rest[-1][3]  # a limit ended it, so the counts matter
    restore(env, state)
    assert go(env, ACTIONS[depth:]) == rest
    fresh = stack(type(env.unwrapped))
    restore(fresh, pickle.loads(pickle.dumps(state)))
    assert go(fresh, ACTIONS[depth:]) == rest


def test_a_snapshot_says_how_the_core_is_kept(env):
    assert snapshot(env).kind == env.unwrapped.snapshot_kind


@pytest.mark.parametrize("depth", [0, 2, 4])
def test_children_go_on_like_the_parent_and_notice_nothing(env, depth):
    go(env, ACTIONS[:depth])
    first, second, third = fork(env, 3)
    go(first, ["x"] * 9)
    first.reset(seed=1)
    rest = go(env, ACTIONS[depth:])
    env.reset(seed=2)
    assert go(second, ACTIONS[depth:]) == rest
    second.reset(seed=3)
    assert go(third, ACTIONS[depth:]) == rest


def test_attributes_that_refer_to_the_environment_refer_to_the_childs(env):
    history = next(iter(fork(env, 1)))
    assert isinstance(history, History)
    assert history.core is history.unwrapped
    assert history.core is not env.unwrapped
    assert history.mine == {"me": history, "below": [history.env]}


def test_an_attribute_that_came_later_goes_when_it_is_restored(env):
    state = snapshot(env)
    go(env, ["up"] * 3)
    history = env
    assert history.full
    restore(env, state)
    assert not hasattr(history, "full")
    assert list(history.said) == []


def test_gymnasiums_own_wrappers_are_carried_along():
    env = RecordEpisodeStatistics(limited(LadderEnv(slip=0.0), TurnLimit(4)))
    env.reset(seed=1)
    env.step("up")
    (child,) = fork(env, 1)
    go(env, ["x"])
    episode = go(child, ["up"] * 4)[-1][-1]["episode"]
    assert episode["l"] == 4


def test_a_clock_goes_on_from_the_time_that_was_used():
    now = [0.0]
    env = limited(LadderEnv(), WallClockLimit(10.0, clock=lambda: now[0]))
    env.reset(seed=1)
    now[0] = 4.0
    state = snapshot(env)
    now[0] = 1000.0
    restore(env, state)
    now[0] = 1005.9
    assert not env.step("x")[3]
    now[0] = 1006.0
    assert env.step("x")[3]


def test_a_recorder_goes_on_with_the_turns_of_its_own_branch(tmp_path):
    path = tmp_path / "episodes.jsonl"
    env = RecordTurns(limited(LadderEnv(slip=0.0, top=9), TurnLimit(3)), path)
    env.reset(seed=1)
    env.step("up")
    (child,) = fork(env, 1)
    go(env, ["jump 2", "up"])
    go(child, ["jump 3", "x"])
    said = [[turn.action.content for turn in made.turns] for made in read_trajectories(path)]
    assert said == [["up", "jump 2", "up"], ["up", "jump 3", "x"]]


def test_a_token_counter_is_shared_and_not_copied():
    class Tokenizer:
        def __deepcopy__(self, memo):
            raise AssertionError("a whole tokenizer would be copied at each snapshot")

        def count(self, text):
            return len(text)

    env = limited(LadderEnv(), TokenLimit(10_000, Tokenizer().count))
    env.reset(seed=1)
    (child,) = fork(env, 1)
    child.step("up")
    assert child.episode_limits[0].spent > env.episode_limits[0].spent > 0


def test_a_clone_is_equal_fresh_and_shares_nothing(env):
    go(env, ACTIONS[:3])
    other = clone(env)
    assert str(other) == str(env)
    other.reset(seed=1)
    other.step("other")
    assert "other" not in env.said
    again = clone(env)
    first, second = env.reset(seed=7), again.reset(seed=7)
    assert first == second


def clone_with_turns():
    env = limited(LadderEnv(), TurnLimit(3))
    env.reset(seed=1)
    return env


def test_a_snapshot_of_other_wrappers_is_refused(env):
    with pytest.raises(SnapshotError, match=r"the snapshot is of wrappers \[.*\], these are"):
        restore(env, snapshot(env.env))
    with pytest.raises(SnapshotError, match=r"the snapshot is of limits \[.*\], these are"):
        restore(LadderEnv(), snapshot(clone_with_turns()))


def test_an_environment_without_snapshots_is_refused():
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=1)
    for refused in (snapshot, lambda e: fork(e, 1), clone):
        with pytest.raises(SnapshotError, match="it is no TurnEnv"):
            refused(env)


def test_a_snapshot_before_the_reset_is_refused():
    with pytest.raises(SnapshotError, match="nothing to snapshot before reset"):
        snapshot(stack())


def test_no_fork_is_not_asked_for():
    with pytest.raises(SnapshotError, match="0 forks were asked for; wanted 1 or more"):
        fork(stack(), 0)


def test_a_wrapper_that_cannot_be_copied_is_named_with_what_to_do():
    class Locked(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.lock = threading.Lock()

    env = Locked(LadderEnv())
    env.reset(seed=1)
    with pytest.raises(SnapshotError, match=r"Locked cannot be copied .* give it snapshot_state"):
        snapshot(env)


def test_an_async_environment_is_forked_through_its_sync_side_and_wrappers():
    env = limited(as_gym(AsyncLadderEnv()), TurnLimit(6))
    try:
        env.reset(seed=5)
        go(env, ACTIONS[:2])
        first, second = fork(env, 2)
        first.reset(seed=1)
        rest = go(env, ACTIONS[2:])
        assert go(second, ACTIONS[2:]) == rest
        assert first.unwrapped.loops.isdisjoint(second.unwrapped.loops)
    finally:
        for each in (env, first, second):
            each.close()
