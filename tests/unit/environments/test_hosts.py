import asyncio
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import OrderEnforcing

from helpers.envs import (
    AsyncLadderEnv,
    AsyncReplayLadderEnv,
    LadderEnv,
    OddError,
    ReplayLadderEnv,
    make_ladder,
    registered,
)
from turngym.environments.checks.probes import children_of
from turngym.environments.core.env import AsyncTurnEnv, TurnEnv
from turngym.environments.core.limits import TurnLimit
from turngym.environments.gym import hosts
from turngym.environments.gym.face import as_gym
from turngym.environments.gym.hosts import ISOLATIONS, InlineEnv, as_async, make_async
from turngym.environments.gym.wrappers import limited
from turngym.errors import ConfigError, EnvironmentFault, UnknownNameError

ACTIONS = ["up", "nonsense", "jump 2", "jump 9", "up"]


def turns(env):
    """Return the turns that the limit of ``limited_ladder`` counted."""
    limits = getattr(env, "episode_limits", None) or env.get_wrapper_attr("episode_limits")
    return limits[0].spent


def wrapped_face(env):
    """Return the face of ``env`` in a wrapper, which only a thread can play beside others."""
    return OrderEnforcing(as_gym(env))


def limited_ladder(kind=LadderEnv):
    """Return a wrapped ladder; can be sent to a process."""
    return limited(kind(), TurnLimit(20))


def without_time(transition):
    transition[-1].pop("usage", None)
    return transition


def go(env, actions=ACTIONS):
    return [without_time(env.step(action)) for action in actions]


async def async_go(env, actions=ACTIONS):
    return [without_time(await env.step(action)) for action in actions]


@pytest.fixture(autouse=True)
def nothing_left():
    """Let no test leave a thread or a process behind."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        threads = {t for t in set(threading.enumerate()) - before if "turngym" in t.name}
        if not threads and not multiprocessing.active_children():
            return
        time.sleep(0.01)
    pytest.fail(f"left: {threads}, {multiprocessing.active_children()}")


HOSTED = ("thread", "process")


@pytest.fixture(params=HOSTED)
async def env(request):
    env = as_async(partial(limited_ladder), isolation=request.param)
    await env.reset(seed=5)
    yield env
    await env.close()


# as_async.


async def test_the_episode_is_that_of_the_sync_environment(env):
    plain = limited_ladder()
    assert await env.reset(seed=7) == plain.reset(seed=7)
    assert await async_go(env) == go(plain)


async def test_attributes_of_the_environment_and_its_wrappers_are_there(env):
    plain = limited_ladder()
    plain.reset(seed=5)
    await async_go(env, ["up", "up"])
    go(plain, ["up", "up"])
    assert turns(env) == 2
    assert env.score() == plain.unwrapped.score()
    assert env.legal_actions() == ["up", "jump 2", "jump 3"]
    assert env.expert_action() == "jump 3"
    assert env.instructions == plain.unwrapped.instructions
    assert env.current_task == plain.unwrapped.current_task
    assert env.observation_space == plain.observation_space
    assert env.action_space == plain.action_space
    assert env.metadata == plain.metadata
    assert env.state_key() == plain.unwrapped.state_key()


async def test_an_attribute_that_is_not_there_is_an_attribute_error(env):
    assert not hasattr(env, "no_such_thing")
    assert not hasattr(env, "_private")
    with pytest.raises(AttributeError):
        env.no_such_thing  # noqa: B018


async def test_snapshots_come_back_and_children_are_independent(env):
    await async_go(env, ["up"])
    state = await env.snapshot()
    first, second = await env.fork(2)
    try:
        await first.reset(seed=1)
        rest = await async_go(env)
        assert turns(env) == 6
        assert await async_go(second) == rest
        assert turns(second) == 6
        await env.restore(state)
        assert turns(env) == 1
        assert await async_go(env) == rest
    finally:
        await first.close()
        await second.close()


async def test_exceptions_cross_unchanged(env):
    with pytest.raises(ValueError, match="broke by order") as caught:
        await env.step("break value")
    assert type(caught.value) is ValueError
    await env.reset(seed=5)
    with pytest.raises(TimeoutError, match="the server did not answer"):
        await env.step("break timeout")
    with pytest.raises(ConfigError, match="unknown reset option 'tusk'"):
        await env.reset(seed=1, options={"tusk": 1})
    with pytest.raises(gymnasium.error.ResetNeeded):
        await env.step("up")
    await env.reset(seed=5)
    await env.step("up")


async def test_a_stop_iteration_does_not_wait_for_ever(env):
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(env.step("break stop"), 900)


async def test_calls_of_two_tasks_follow_each_other(env):
    await asyncio.gather(env.step("break sleep 0.05"), env.step("up"), env.step("up"))
    assert turns(env) == 3


async def test_a_closed_environment_says_so_and_may_be_closed_again(env):
    await env.close()
    await env.close()
    for use in (env.reset(seed=1), env.step("up"), env.snapshot()):
        with pytest.raises(EnvironmentFault, match="the environment is closed"):
            await use
    with pytest.raises(EnvironmentFault, match="score: the environment is closed"):
        env.score()


async def test_a_cancelled_call_does_not_disturb_the_next_episode(env):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.step("break sleep 2"), 0.05)
    opening, _ = await env.reset(seed=7)
    plain = limited_ladder()
    assert opening == plain.reset(seed=7)[0]
    assert await async_go(env) == go(plain)


class Waiting(LadderEnv):
    """Every turn waits until it is let go on."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate
        self.is_closed = threading.Event()

    def turn(self, action):
        self.gate.wait(240)
        return super().turn(action)

    def close(self):
        self.is_closed.set()


async def test_close_does_not_wait_for_a_cancelled_call_that_still_runs():
    plain = Waiting(threading.Event())
    env = as_async(plain, isolation="thread")
    await env.reset(seed=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.step("up"), 0.05)
    await env.close()
    assert not plain.is_closed.is_set()
    plain.gate.set()
    assert await asyncio.to_thread(plain.is_closed.wait, 240)  # closed when the call was done


class Held(AsyncLadderEnv):
    """Every turn blocks its event loop until it is let go on."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    async def turn(self, action):
        self.gate.wait(240)
        return await super().turn(action)


class Tidy(AsyncLadderEnv):
    """Every turn goes on for ever, and takes its time to end."""

    tidied = 0

    async def turn(self, action):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1.5)
            self.tidied += 1


@pytest.mark.parametrize("after", [1e-9, 0.05])
async def test_a_cancelled_call_ends_the_coroutine_behind_a_sync_adapter(after):
    env = as_async(limited(wrapped_face(AsyncLadderEnv(slip=0.0)), TurnLimit(20)))
    await env.reset(seed=1)
    await env.step("up")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.step("break hang"), after)
    assert env.score() == pytest.approx(1 / 6)  # answers at once: no call runs any more
    await env.close()


async def test_a_coroutine_that_is_broken_off_may_end_in_order(monkeypatch):
    monkeypatch.setattr(hosts, "_INTERRUPT_TIMEOUT_S", 0.05)
    made = Tidy()
    env = as_async(wrapped_face(made))
    await env.reset(seed=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.step("up"), 0.05)
    assert made.tidied == 0  # longer than the cancelled caller waits, but close does
    await env.close()
    assert (made.tidied, made.closed) == (1, 1)


@pytest.mark.parametrize("later", [0, 0.05])
async def test_who_waits_for_a_call_that_close_breaks_off_is_told(later):
    env = as_async(wrapped_face(AsyncLadderEnv()))
    await env.reset(seed=1)
    step = asyncio.create_task(env.step("break hang"))
    await asyncio.sleep(later)
    await env.close()
    with pytest.raises(EnvironmentFault, match="the call was cancelled"):
        await step


async def test_a_coroutine_that_blocks_its_loop_is_closed_when_it_is_done(monkeypatch, caplog):
    monkeypatch.setattr(hosts, "_INTERRUPT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(hosts, "_JOIN_TIMEOUT_S", 0.05)
    gate = threading.Event()
    made = Held(gate)
    env = as_async(wrapped_face(made))
    await env.reset(seed=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.step("up"), 0.05)
    with pytest.raises(EnvironmentFault, match="busy with 'step'"):
        env.score()
    await env.close()
    assert "still closing" in caplog.text
    assert made.closed == 0
    gate.set()
    for _ in range(12_000):
        await asyncio.sleep(0.01)
        if made.closed:
            break
    assert made.closed == 1


async def test_close_breaks_off_a_process_that_is_busy():
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.step("break sleep 60"), 0.05)
    await env.close()
    assert multiprocessing.active_children() == []


async def test_a_process_that_has_ended_can_be_joined_again_as_python_does_at_its_end() -> None:
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=0)
    (process,) = multiprocessing.active_children()
    await env.close()
    process.join()
    assert process.exitcode is not None


async def test_many_environments_wait_at_the_same_time():
    together = threading.Barrier(24)  # opens when all 24 wait, and breaks when they do not
    envs = [as_async(Waiting(together), isolation="thread") for _ in range(24)]
    await asyncio.gather(*(env.reset(seed=1) for env in envs))
    await asyncio.gather(*(env.step("up") for env in envs))
    for env in envs:
        await env.close()


async def test_attributes_are_refused_while_a_call_runs():
    gate = threading.Event()
    env = as_async(Waiting(gate), isolation="thread")
    await env.reset(seed=1)
    step = asyncio.ensure_future(env.step("up"))
    await asyncio.sleep(0)
    with pytest.raises(EnvironmentFault, match="score: the environment is busy with 'step'"):
        env.score()
    gate.set()
    await step
    assert env.score() >= 0.0
    await env.close()


async def test_a_thread_makes_and_runs_everything_and_children_have_their_own():
    made = []

    def make():
        made.append(threading.get_ident())
        return LadderEnv()

    env = as_async(make, isolation="thread")
    await env.reset(seed=1)
    (child,) = await env.fork(1)
    threads = [env.thread(), env.thread(), child.thread()]
    assert threads[0] == threads[1] == made[0] != threading.get_ident()
    assert threads[2] == made[1] != made[0]
    await env.close()
    await child.close()


async def test_an_environment_given_as_it_is_has_equal_children():
    plain = limited_ladder(ReplayLadderEnv)
    env = as_async(plain, isolation="thread")
    await env.reset(seed=5)
    await env.step("up")
    (child,) = await env.fork(1)
    assert await async_go(child) == await async_go(env)
    assert turns(plain) == 6
    await env.close()
    await child.close()
    assert plain.unwrapped.closed == 1


async def test_a_process_is_another_one_and_ends_with_close():
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=1)
    pid = env.process()
    assert pid != os.getpid()
    await env.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_death_of_a_process_is_a_fault_and_the_next_reset_starts_a_new_one():
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=5)
    first = env.process()
    with pytest.raises(EnvironmentFault, match=r"step: .* process died \(exit code 7\)"):
        await env.step("break die")
    with pytest.raises(EnvironmentFault, match="process died before; call reset"):
        await env.step("up")
    with pytest.raises(EnvironmentFault, match="process died before; call reset"):
        env.score()
    plain = make_ladder()
    assert await env.reset(seed=5) == plain.reset(seed=5)
    assert await async_go(env) == go(plain)
    assert env.process() != first
    await env.close()


@pytest.mark.parametrize("end", ["close", "cancelled"])
async def test_what_a_process_has_started_ends_with_it(end):
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=5)
    await env.step("break fork")
    started = await asyncio.to_thread(children_of, env.process())
    assert started
    if end == "cancelled":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.step("break sleep 60"), 0.1)
    await env.close()
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_process_killed_between_two_calls_is_noticed():
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=5)
    os.kill(env.process(), 9)
    with pytest.raises(EnvironmentFault, match="process died"):
        await env.step("up")
    await env.close()


async def test_a_snapshot_outlives_its_process():
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=5)
    await env.step("up")
    state = await env.snapshot()
    rest = await async_go(env)
    with pytest.raises(EnvironmentFault):
        await env.step("break die")
    await env.restore(state)
    assert await async_go(env) == rest
    await env.close()


async def test_a_cancelled_call_kills_its_process():
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=1)
    pid = env.process()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.step("break sleep 60"), 0.1)
    await env.reset(seed=1)
    assert env.process() != pid
    await env.close()


async def test_an_exception_that_cannot_cross_is_described():
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=1)
    with pytest.raises(EnvironmentFault, match="step: OddError: odd 3"):
        await env.step("break odd")
    await env.close()
    thread = as_async(make_ladder, isolation="thread")
    await thread.reset(seed=1)
    with pytest.raises(OddError):
        await thread.step("break odd")
    await thread.close()


async def test_an_exception_from_a_process_carries_the_traceback_of_the_process():
    env = as_async(make_ladder, isolation="process")
    await env.reset(seed=1)
    with pytest.raises(ValueError, match="broke by order") as caught:
        await env.step("break value")
    assert "in misbehave" in "".join(caught.value.__notes__)
    await env.close()


async def test_an_environment_that_cannot_be_made_raises_what_its_maker_raised():
    for isolation in HOSTED:
        env = as_async(partial(LadderEnv, top="high", unknown=1), isolation=isolation)
        with pytest.raises(TypeError, match="unexpected keyword argument 'unknown'"):
            await env.reset(seed=1)
        await env.close()


async def test_an_id_and_a_made_environment_can_go_to_a_process():
    hard = gymnasium.make("turngym/Maze-v0", difficulty="hard")
    easy = gymnasium.make("turngym/Maze-v0")
    for env, plain in (
        (make_async("text/maze", isolation="process"), easy),
        (as_async(hard, isolation="process"), hard),
    ):
        _, info = await env.reset(seed=1)
        assert plain.reset(seed=1)[1] == info
        await env.close()


def test_what_cannot_go_to_a_process_is_explained():
    with pytest.raises(ConfigError, match="without a spec"):
        as_async(LadderEnv(), isolation="process")
    with pytest.raises(ConfigError, match="cannot be sent to a process"):
        as_async(lambda: LadderEnv(), isolation="process")


def test_an_unknown_isolation_is_explained():
    with pytest.raises(UnknownNameError, match=r"isolation 'threads'. Did you mean 'thread'\?"):
        as_async(LadderEnv(), isolation="threads")


def test_an_async_environment_is_async_already():
    env = AsyncLadderEnv()
    assert as_async(env) is env
    assert as_async(as_gym(env)) is env  # its face was not used yet


async def test_an_environment_that_computes_runs_in_the_event_loop():
    env, plain = as_async(limited_ladder), limited_ladder()
    assert isinstance(env, InlineEnv)
    assert await env.reset(seed=7) == plain.reset(seed=7)
    assert env.thread() == threading.get_ident()
    state = await env.snapshot()
    rest = await async_go(env)
    (child,) = await env.fork(1)
    await env.restore(state)
    assert (turns(child), turns(env)) == (5, 0)
    assert await async_go(env) == rest == go(plain)
    await env.close()


async def test_an_environment_made_by_an_id_is_played_like_the_one_that_gymnasium_makes():
    with registered("helpers/Async-v0", "helpers.envs:AsyncLadderEnv", max_turns=9) as id:
        face, env = gymnasium.make(id, slip=0.1), make_async(id, slip=0.1)
        assert type(env) is AsyncLadderEnv
        assert env.spec == face.spec
        assert await env.reset(seed=3) == face.reset(seed=3)
        assert await async_go(env) == go(face)
        face.close()


def test_the_sync_and_the_async_class_have_the_same_public_methods():
    sync, other = (
        {name for name in dir(kind) if not name.startswith("_")} for kind in (TurnEnv, AsyncTurnEnv)
    )
    assert sync - other == {"blocks"}
    assert other - sync == set()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_adapter_that_is_dropped_leaves_nothing(isolation):
    async def main():
        env = as_async(make_ladder, isolation=isolation)
        await env.reset(seed=1)

    asyncio.run(main())  # the fixture looks for threads and processes


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_adapter_works_in_one_event_loop_after_the_other(isolation):
    env = as_async(make_ladder, isolation=isolation)
    opening = asyncio.run(env.reset(seed=1))
    assert asyncio.run(env.reset(seed=1)) == opening
    asyncio.run(env.close())


async def test_an_adapter_is_closed_by_its_context():
    async with as_async(make_ladder, isolation="thread") as env:
        await env.reset(seed=1)
    with pytest.raises(EnvironmentFault):
        await env.step("up")


async def test_an_error_in_close_is_raised_and_still_ends_everything():
    class Clinging(LadderEnv):
        def close(self):
            raise OSError("cannot close")

    for isolation in ("inline", "thread"):
        env = as_async(Clinging, isolation=isolation)
        await env.reset(seed=1)
        with pytest.raises(OSError, match="cannot close"):
            await env.close()


# as_gym.


@pytest.fixture(params=[AsyncLadderEnv, AsyncReplayLadderEnv])
def sync_env(request):
    env = as_gym(request.param())
    yield env
    env.close()


@pytest.mark.filterwarnings("ignore:.*Not able to test alternative render modes")
def test_gymnasium_accepts_an_async_environment(sync_env):
    check_env(sync_env)


def test_an_async_environment_plays_the_same_episode_in_sync(sync_env):
    plain = LadderEnv()
    assert sync_env.reset(seed=5)[0] == plain.reset(seed=5)[0]
    for ours, theirs in zip(go(sync_env), go(plain), strict=True):
        assert ours[:-1] == theirs[:-1]


def test_attributes_and_seed_of_an_async_environment_are_there(sync_env):
    sync_env.reset(seed=5)
    assert sync_env.score() == 0.0
    assert sync_env.get_wrapper_attr("expert_action")() == "jump 3"
    assert sync_env.np_random_seed == 5
    assert sync_env.np_random is sync_env.inner.np_random
    assert not hasattr(sync_env, "no_such_thing")
    sync_env.wait()  # a coroutine function of the author's


def test_exceptions_of_coroutines_are_raised(sync_env):
    sync_env.reset(seed=5)
    with pytest.raises(ValueError, match="broke by order"):
        sync_env.step("break value")


def test_everything_runs_in_one_private_loop_even_inside_a_running_one(sync_env):
    async def main():
        sync_env.reset(seed=5)
        sync_env.step("up")
        return asyncio.get_running_loop()

    outer = asyncio.run(main())
    sync_env.step("up")
    assert len(sync_env.loops) == 1
    assert outer not in sync_env.loops


def test_snapshots_and_children_of_an_async_environment(sync_env):
    sync_env.reset(seed=5)
    sync_env.step("up")
    state = sync_env.snapshot()
    first, second = sync_env.fork(2)
    first.reset(seed=1)
    rest = go(sync_env)
    assert go(second) == rest
    sync_env.restore(state)
    assert go(sync_env) == rest
    assert second.loops.isdisjoint(sync_env.loops)
    first.close()
    second.close()


def test_closing_an_async_environment_twice_closes_it_once(sync_env):
    sync_env.reset(seed=1)
    sync_env.close()
    sync_env.close()
    assert sync_env.inner.closed == 1
    with pytest.raises(EnvironmentFault, match="closed"):
        sync_env.step("up")


def test_tasks_that_an_environment_left_running_are_cancelled_at_close():
    ended = []

    class Busy(AsyncLadderEnv):
        async def begin(self, task):
            self.chore = asyncio.create_task(self.work())
            return await super().begin(task)

        async def work(self):
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("work")

    env = as_gym(Busy())
    env.reset(seed=1)
    env.close()
    assert ended == ["work"]


def test_a_sync_environment_is_sync_already():
    env = LadderEnv()
    assert as_gym(env) is env


def test_an_async_environment_can_be_registered():
    with registered("helpers/Async-v0", "helpers.envs:make_async_ladder", max_turns=3) as id:
        env = gymnasium.make(id)
        env.reset(seed=1)
        assert [env.step("x")[3] for _ in range(3)] == [False, False, True]
        env.close()


async def test_there_and_back_again():
    env = as_async(AsyncLadderEnv, isolation="thread")
    await env.reset(seed=5)
    plain = LadderEnv()
    plain.reset(seed=5)
    assert [s[:-1] for s in await async_go(env)] == [s[:-1] for s in go(plain)]
    await env.close()


def test_snapshots_of_a_process_can_be_pickled():
    async def main():
        async with as_async(make_ladder, isolation="process") as env:
            await env.reset(seed=1)
            return await env.snapshot()

    state = asyncio.run(main())
    assert pickle.loads(pickle.dumps(state)).kind == "exact"


def test_a_child_in_a_call_that_never_ends_does_not_outlive_a_killed_owner():
    script = Path(__file__).parents[2] / "helpers" / "hanging_process.py"
    owner = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE)
    child = int(owner.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
    owner.stdout.close()
