import asyncio
import copy
import pickle
import sys
from functools import reduce
from operator import add

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence

import turngym
from helpers.envs import AsyncLadderEnv, AsyncReplayLadderEnv, LadderEnv, ReplayLadderEnv
from turngym.coroutines import awaited
from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import AsyncTurnEnv, Outcome, TurnEnv
from turngym.environments.core.spaces import info_problems
from turngym.errors import ConfigError, SnapshotError
from turngym.tasks.base import Task, procedural_task

ACTIONS = ["up", "jump 2", "nonsense", "jump 9", "up", "jump 3"]


def without_time(steps):
    """Return transitions without ``usage``, which holds the time."""
    steps = copy.deepcopy(steps)
    for transition in steps:
        transition[-1].pop("usage", None)
    return steps


def go(env, actions=ACTIONS):
    """Return the transitions of the actions, up to the end."""
    seen = []
    for action in actions:
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            break
    return without_time(seen)


async def async_go(env, actions=ACTIONS):
    seen = []
    for action in actions:
        seen.append(await env.step(action))
        if seen[-1][2] or seen[-1][3]:
            break
    return without_time(seen)


@pytest.fixture(params=[LadderEnv, ReplayLadderEnv])
def env(request):
    return request.param()


# Reset.


def test_gymnasium_accepts_it():
    check_env(LadderEnv(), skip_render_check=True)


def test_the_opening_tells_task_instructions_actions_and_state_key(env):
    observation, info = env.reset(seed=1)
    assert observation == {"text": env.ladder.describe()}
    assert info["task_id"] == env.current_task.id
    assert info["instructions"].startswith("Climb the ladder.\n\nAnswer with one command")
    assert info["legal_actions"] == ["up", "jump 2", "jump 3"]
    assert info["state_key"].endswith(" 0")
    assert info_problems(info) == []


def test_the_same_seed_gives_the_same_episode_and_another_does_not(env):
    def episode(seed):
        return [env.reset(seed=seed), *go(env)]

    first, again, other = episode(1), episode(1), episode(2)
    assert data_equivalence(first, again, exact=True)
    assert first[0] != other[0]


def test_a_reset_without_seed_goes_on_with_the_generator(env):
    env.reset(seed=1)
    second, third = env.reset()[0], env.reset()[0]
    env.reset(seed=1)
    assert [env.reset()[0], env.reset()[0]] == [second, third]
    assert second != third


def test_the_episode_after_one_with_a_seed_is_another():
    env = LadderEnv()
    _, first = env.reset(seed=5)
    _, second = env.reset()
    _, third = env.reset()
    assert len({info["task_id"] for info in (first, second, third)}) == 3


def test_the_seed_of_the_last_reset_is_remembered(env):
    env.reset(seed=41)
    assert env.np_random_seed == 41


@pytest.mark.parametrize("by_id", [True, False])
def test_a_task_is_played_whatever_the_seed(env, by_id):
    task = env.task("test", 5)
    chosen = task.id if by_id else task
    first, info = env.reset(seed=1, options={"task": chosen})
    second, _ = env.reset(seed=2, options={"task": chosen})
    assert info["task_id"] == "ladder/test/5"
    assert first == second


def test_a_task_is_drawn_from_the_split_that_is_asked_for(env):
    for split in ("train", "test"):
        env.reset(seed=1, options={"split": split})
        assert env.current_task.split == split


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tusk": 1}, "ladder: unknown reset option 'tusk'; known: task, split"),
        ({"split": "dev"}, "ladder: split 'dev'; wanted one of train, test"),
        ({"task": "ladder/test/0", "split": "train"}, "options task and split: wanted one of them"),
        ({"task": 7}, "option 'task' must be a Task or a task id"),
        ({"task": "maze/train/1"}, "task id 'maze/train/1': wanted 'ladder/<train|test>/<index>'"),
    ],
)
def test_wrong_options_are_explained(env, options, message):
    with pytest.raises(ConfigError, match=message):
        env.reset(seed=1, options=options)


def test_a_reset_that_fails_leaves_nothing_to_step_or_snapshot(env):
    env.reset(seed=1)
    env.begin = lambda task: 1 / 0
    with pytest.raises(ZeroDivisionError):
        env.reset(seed=1)
    with pytest.raises(ResetNeeded, match="no episode has begun"):
        env.step("up")
    with pytest.raises(SnapshotError, match="before reset"):
        env.snapshot()


def test_the_task_is_unknown_before_the_reset(env):
    with pytest.raises(ResetNeeded, match="call reset before asking"):
        env.current_task  # noqa: B018


# Step.


def test_every_step_keeps_the_schema(env):
    env.reset(seed=3)
    for _observation, reward, terminated, truncated, info in go(env, ["up", "x", "jump 7"] * 9):
        over = terminated or truncated
        assert info_problems(info, reward=reward, over=over, truncated=truncated) == []


def test_an_action_that_is_not_understood_is_an_observation_not_an_error(env):
    env.reset(seed=1)
    before = env.ladder.height
    observation, reward, terminated, truncated, info = env.step("fly")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation["text"] == info["invalid_action"]
    assert "'fly'" in observation["text"]
    assert env.ladder.height == before


def test_thoughts_are_no_actions(env):
    env.reset(seed=1)
    assert env.step("<think>\nI could\njump 9\n</think>\n\nup")[4].get("invalid_action") is None
    assert "invalid_action" in env.step("<think>\nI could\njump 1")[4]


def test_an_action_that_cannot_be_carried_out_is_marked_with_its_own_observation(env):
    env.reset(seed=1)
    observation, _, _, _, info = env.step("jump 9")
    assert info["invalid_action"] == "You can jump 1 to 3 rungs."
    assert observation["text"] == env.ladder.describe()


def test_numbers_are_floats_whatever_the_author_returned(env):
    env.slip = 0.0
    env.reset(seed=1)
    _, reward, _, _, info = env.step("up")
    assert type(reward) is float
    assert {type(part) for part in info["reward_parts"].values()} == {float}


def test_the_last_step_has_reason_score_and_no_legal_actions(env):
    env.slip = 0.0
    env.reset(seed=1)
    *_, (_, _, terminated, _, info) = go(env, ["jump 3"] * 9)
    assert terminated
    assert info["stop_reason"] == "terminated"
    assert info["score"] == 1.0
    assert type(info["score"]) is float
    assert info["legal_actions"] == []


def test_a_limit_of_the_environments_own_truncates():
    class Tired(LadderEnv):
        def turn(self, action: Action) -> Outcome:
            return Outcome(text="asleep", truncated=True)

    env = Tired()
    env.reset(seed=1)
    _, _, terminated, truncated, info = env.step("up")
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "truncated_env")
    assert info["score"] == 0.0


def test_a_score_that_is_a_coroutine_is_named():
    class Awaits(LadderEnv):
        async def score(self):
            return 1.0

    env = Awaits(top=1, slip=0.0)
    env.reset(seed=1)
    with pytest.raises(TypeError, match="score returned coroutine, wanted a number or None"):
        env.step("up")


@pytest.mark.parametrize("parts", [(0.7, 0.2, 0.1), (0.3, 0.3, 0.2, 0.2, 2**-52)])
def test_a_sum_of_parts_that_misses_one_by_its_rounding_solves_the_task(parts):
    class InParts(LadderEnv):
        def score(self):
            return total

    total = reduce(add, parts)  # since Python 3.12 ``sum`` makes up for what is rounded off
    assert total != 1
    env = InParts(top=1, slip=0.0)
    env.reset(seed=1)
    assert env.step("up")[-1]["score"] == 1.0


@pytest.mark.parametrize("name", ["score", "count", "task", "answer", "step", "legal_actions"])
def test_an_attribute_that_hides_a_method_is_named_at_the_reset(name):
    class Keeps(LadderEnv):
        def begin(self, task):
            setattr(self, name, 0)
            return super().begin(task)

    with pytest.raises(TypeError, match=rf"the attribute {name} \(0\) hides {name}\(\); rename"):
        Keeps().reset(seed=1)


def test_a_score_that_cannot_be_judged_stays_none():
    class Unjudged(LadderEnv):
        def score(self):
            return None

    env = Unjudged(top=1, slip=0.0)
    env.reset(seed=1)
    info = env.step("up")[-1]
    assert info["score"] is None


def test_a_step_before_the_reset_and_after_the_end_is_refused(env):
    with pytest.raises(ResetNeeded):
        env.step("up")
    env.slip = 0.0
    env.reset(seed=1)
    go(env, ["jump 3"] * 9)
    with pytest.raises(ResetNeeded):
        env.step("up")


def test_an_action_that_is_no_text_is_an_error_of_the_caller(env):
    env.reset(seed=1)
    with pytest.raises(ConfigError, match="an action is a str, got int"):
        env.step(3)


def test_a_turn_that_breaks_needs_a_reset(env):
    env.reset(seed=1)
    with pytest.raises(ValueError, match="broke by order"):
        env.step("break value")
    with pytest.raises(ResetNeeded):
        env.step("up")
    env.reset(seed=1)
    env.step("up")


def test_infos_and_observations_of_different_steps_share_nothing(env):
    env.reset(seed=1)
    first, second = env.step("nonsense"), env.step("nonsense")
    first[0]["text"] = "changed"
    first[-1]["legal_actions"].clear()
    assert second[0]["text"] != "changed"
    assert env.step("nonsense")[-1]["legal_actions"]
    assert second[-1]["legal_actions"]


def test_an_image_is_part_of_the_observation():
    class Painted(LadderEnv):
        def turn(self, action: Action) -> Outcome:
            return Outcome(text="", image=np.zeros((2, 2, 3), np.uint8))

    env = Painted()
    env.reset(seed=1)
    assert env.step("up")[0]["image"].shape == (2, 2, 3)


def test_render_shows_the_last_text_in_ansi_mode_only():
    env, blind = LadderEnv(render_mode="ansi"), LadderEnv()
    for each in (env, blind):
        each.reset(seed=1)
        each.step("fly")
    assert "'fly'" in str(env.render())
    assert blind.render() is None
    with pytest.raises(ConfigError, match=r"render_mode of MazeEnv 'human'\. Known: ansi"):
        turngym.make("text/maze", render_mode="human")


def test_the_name_defaults_to_that_of_the_class():
    class CardHouseEnv(TurnEnv):
        action_format = Commands({"x": "x"})

        def begin(self, task: Task) -> Outcome:
            return Outcome(text="")

        def turn(self, action: Action) -> Outcome:
            return Outcome(text="")

    env = CardHouseEnv()
    assert env.name == "cardhouse"
    assert env.task("train", 3) == procedural_task("cardhouse", "train", 3)
    with pytest.raises(ConfigError, match="has no expert"):
        env.expert_action()


def test_a_turn_calls_little_besides_what_the_author_wrote():
    # Speed is measured in benchmarks; this counts, so that what each turn would pay is seen here.
    class EmptyEnv(TurnEnv):
        action_format = Commands({"go": "go {where}"})

        def begin(self, task: Task) -> Outcome:
            return Outcome(text="here")

        def turn(self, action: Action) -> Outcome:
            return Outcome(text="there")

    env = EmptyEnv()
    env.reset(seed=1)
    env.step("go north")
    called: list[str] = []

    def watch(frame, event, argument):
        if event in ("call", "c_call"):
            called.append(frame.f_code.co_name if event == "call" else argument.__name__)

    sys.setprofile(watch)
    try:
        env.step("go north")
    finally:
        sys.setprofile(None)
    assert len(called) <= 13, called  # sys.setprofile is one of them


def test_the_actions_that_are_not_listed_stay_out_of_info():
    class Endless(LadderEnv):
        def legal_actions(self):
            return None

    env = Endless(top=1, slip=0.0)
    assert "legal_actions" not in env.reset(seed=1)[1]


# Snapshots.


@pytest.mark.parametrize("depth", [0, 1, 3, 4])
def test_a_restored_environment_goes_on_as_before(env, depth):
    env.reset(seed=5)
    go(env, ACTIONS[:depth])
    state = env.snapshot()
    rest = go(env, ACTIONS[depth:])
    env.restore(state)
    assert go(env, ACTIONS[depth:]) == rest
    fresh = type(env)()
    fresh.restore(state)
    assert go(fresh, ACTIONS[depth:]) == rest


def test_a_restored_environment_keeps_task_text_and_end(env):
    env.render_mode = "ansi"
    env.slip = 0.0
    env.reset(seed=5)
    go(env, ["jump 3"] * 9)
    ended, text = env.snapshot(), env.render()
    fresh = type(env)(render_mode="ansi", slip=0.0)
    fresh.restore(ended)
    assert fresh.current_task == env.current_task
    assert fresh.render() == text
    with pytest.raises(ResetNeeded):
        fresh.step("up")


def test_a_snapshot_is_not_changed_by_what_comes_after(env):
    env.reset(seed=5)
    state = env.snapshot()
    kept = pickle.dumps(state)
    go(env)
    env.restore(state)
    go(env)
    assert pickle.dumps(pickle.loads(kept)) == pickle.dumps(copy.deepcopy(state))


def test_children_and_parent_are_independent(env):
    env.reset(seed=5)
    env.step("up")
    first, second = env.fork(2)
    alone = go(env.fork(1)[0])
    first.reset(seed=9)
    go(first, ["jump 3"] * 3)
    assert go(env) == alone
    assert go(second) == alone


def test_children_are_made_with_the_same_arguments():
    parent = gymnasium.make("turngym/Maze-v0", difficulty="medium").unwrapped
    parent.reset(seed=1)
    (child,) = parent.fork(1)
    assert child.settings == parent.settings
    assert child.spec == parent.spec


def test_a_replay_of_an_episode_that_began_without_a_seed_is_the_same_episode():
    env = ReplayLadderEnv()
    env.reset(seed=8)
    go(env)
    env.reset()
    env.step("up")
    state = env.snapshot()
    rest = go(env)
    fresh = ReplayLadderEnv()
    fresh.restore(state)
    assert go(fresh) == rest


def test_a_replay_that_shows_something_else_is_an_error_and_not_a_state():
    class Forgetful(ReplayLadderEnv):
        episodes = 0

        def begin(self, task: Task) -> Outcome:
            type(self).episodes += 1
            self.slip = 0.3 * self.episodes
            return super().begin(task)

    env = Forgetful()
    env.reset(seed=5)
    go(env, ["up"] * 4)
    with pytest.raises(SnapshotError, match=r"ladder: replay differs at turn \d"):
        env.restore(env.snapshot())
    with pytest.raises(ResetNeeded):
        env.step("up")


def test_children_that_cannot_be_restored_are_closed():
    closed = []

    class Fragile(LadderEnv):
        def set_state(self, state):
            raise SnapshotError("cannot")

        def close(self):
            closed.append(self)

    env = Fragile()
    env.reset(seed=1)
    with pytest.raises(SnapshotError, match="cannot"):
        env.fork(3)
    assert len(closed) == 1


def test_a_snapshot_of_another_environment_or_kind_is_refused():
    env, replay = LadderEnv(), ReplayLadderEnv()
    env.reset(seed=1)
    with pytest.raises(SnapshotError, match="a 'exact' snapshot of 'ladder', wanted a 'replay'"):
        replay.restore(env.snapshot())


def test_exact_without_get_state_is_named():
    class Lazy(LadderEnv):
        get_state = TurnEnv.get_state
        set_state = TurnEnv.set_state

    env = Lazy()
    env.reset(seed=1)
    with pytest.raises(SnapshotError, match="snapshot_kind is 'exact' but get_state is missing"):
        env.snapshot()


def test_snapshots_of_every_bit_generator_come_back():
    env = LadderEnv()
    env.reset(seed=1)
    env.np_random = np.random.Generator(np.random.MT19937(3))
    state = env.snapshot()
    drawn = env.np_random.random(3).tolist()
    fresh = LadderEnv()
    fresh.restore(state)
    assert fresh.np_random.random(3).tolist() == drawn


# AsyncTurnEnv.


@pytest.fixture(params=[AsyncLadderEnv, AsyncReplayLadderEnv])
def async_env(request):
    return request.param()


async def test_the_async_environment_plays_the_same_episode_as_the_sync_one(async_env):
    env = LadderEnv()
    opening, info = env.reset(seed=5)
    async_opening, async_info = await async_env.reset(seed=5)
    assert async_opening == opening
    assert async_info["task_id"] == info["task_id"]
    for ours, theirs in zip(go(env), await async_go(async_env), strict=True):
        assert ours[:-1] == theirs[:-1]


async def test_an_async_environment_may_have_plain_methods():
    class Plain(AsyncTurnEnv):
        action_format = Commands({"say": "one"})

        def begin(self, task):
            return Outcome(text="count")

        def turn(self, action):
            return Outcome(text="done", terminated=True)

    env = Plain()
    assert (await env.reset(seed=0))[0]["text"] == "count"
    assert (await env.step("one"))[2]  # terminated


@pytest.mark.parametrize("depth", [0, 2, 4])
async def test_an_async_environment_is_restored_and_forked(async_env, depth):
    await async_env.reset(seed=5)
    await async_go(async_env, ACTIONS[:depth])
    state = await async_env.snapshot()
    first, second = await async_env.fork(2)
    await first.reset(seed=1)
    rest = await async_go(async_env, ACTIONS[depth:])
    assert await async_go(second, ACTIONS[depth:]) == rest
    await async_env.restore(state)
    assert await async_go(async_env, ACTIONS[depth:]) == rest


async def test_an_async_turn_that_is_cancelled_needs_a_reset(async_env):
    await async_env.reset(seed=5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(async_env.step("break hang"), 0.01)
    with pytest.raises(ResetNeeded):
        await async_env.step("up")
    await async_env.reset(seed=5)
    await async_env.step("up")


async def test_async_children_that_cannot_be_restored_are_closed():
    closed = []

    class Fragile(AsyncLadderEnv):
        async def set_state(self, state):
            raise SnapshotError("cannot")

        async def close(self):
            closed.append(self)

    env = Fragile()
    await env.reset(seed=1)
    with pytest.raises(SnapshotError):
        await env.fork(2)
    assert len(closed) == 1


@pytest.mark.parametrize("kind", [LadderEnv, AsyncLadderEnv])
async def test_a_method_that_forgets_its_outcome_is_named(kind):
    async def later(self, given):
        return None

    forgets = (lambda self, given: None) if kind is LadderEnv else later
    with pytest.raises(TypeError, match="begin returned NoneType, wanted an Outcome"):
        await awaited(type("Forgets", (kind,), {"begin": forgets})().reset(seed=0))
    env = type("Forgets", (kind,), {"turn": forgets})()
    await awaited(env.reset(seed=0))
    with pytest.raises(TypeError, match="turn returned NoneType, wanted an Outcome"):
        await awaited(env.step("up"))


@pytest.mark.parametrize("kind", [LadderEnv, AsyncLadderEnv])
@pytest.mark.parametrize(
    "more", [{"terminated": True}, {"truncated": True}, {"reward": 1.0}, {"invalid_action": "no"}]
)
async def test_an_opening_that_ends_or_pays_is_refused(kind, more):
    async def later(self, task):
        return Outcome(text="solved", **more)

    begin = (lambda self, task: Outcome(text="solved", **more)) if kind is LadderEnv else later
    env = type("Ends", (kind,), {"begin": begin})()
    with pytest.raises(ValueError, match="begin returned an Outcome with more than text"):
        await awaited(env.reset(seed=0))
    with pytest.raises(ResetNeeded):
        await awaited(env.step("up"))
