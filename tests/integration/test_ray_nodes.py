"""Environments and servers on nodes of Ray, which are taken away under load.

Three nodes beside a head, all on this machine: make proof PART=nodes.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers.ray_nodes import NOT_RUN, Nodes, launch, nodes, until
from helpers.signals import OVERLAPPED
from turngym.agents.scripted import ExpertPolicy
from turngym.config import load_config, to_toml
from turngym.environments.gym.ray_workers import RayHost, RayWorkers
from turngym.environments.gym.registration import make
from turngym.errors import ConfigError, EnvironmentFault
from turngym.nodes import connect
from turngym.registry import find
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.rollouts.scheduler.audit import audit
from turngym.rollouts.scheduler.config import DeadlineConfig
from turngym.rollouts.scheduler.pool import EnvPool
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.progress import Silent
from turngym.trainers.settings.train import TrainConfig

SIGNALS = "helpers.signals:SignalsEnv"
SETTINGS: dict[str, Any] = {
    **OVERLAPPED,
    "env": {**OVERLAPPED["env"], "id": SIGNALS},
    "rollout": {**OVERLAPPED["rollout"], "isolation": "ray", "retry": {"max_tries": 6}},
}
pytestmark = [NOT_RUN, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as monkeypatch, nodes(monkeypatch) as found:
        yield found


@pytest.fixture
def workers(cluster: Nodes) -> Iterator[RayWorkers]:
    node = cluster.add(environments=2)
    found = RayWorkers(
        resource="environments", amount=1, number=None, isolation="inline", patience_s=120
    )
    yield found
    found.close()
    cluster.remove(node)


class Remover(Silent):
    """Does one thing after the other in a thread, at the beginning of given updates."""

    def __init__(self, plans: Mapping[int, Any]) -> None:
        self._plans, self._phase = dict(plans), ""
        self.threads: list[threading.Thread] = []

    def phase(self, name: str, total: int | None) -> None:
        self._phase = name

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        if self._phase == "reinforcement" and done in self._plans:
            self.threads.append(threading.Thread(target=self._plans.pop(done)))
            self.threads[-1].start()


async def test_episodes_on_workers_are_those_of_this_process(workers: RayWorkers) -> None:
    entry = find(SIGNALS)
    make_env = partial(make, entry.id)
    with make_env() as env:
        tasks = [env.get_wrapper_attr("task")("train", number) for number in range(6)]
    specs = [spec for task in tasks for spec in group_specs(entry.id, task, seed=3, group_size=1)]
    policy = ExpertPolicy(noise=0.3)
    here = await collect(make_env, policy, specs, concurrency=4)
    there = await collect(make_env, policy, specs, concurrency=4, isolation=workers)
    assert there == here
    assert all(one.score is not None for one in here)
    assert [one.held for one in workers.handles] == [0, 0]


async def test_a_host_has_attributes_snapshots_and_forks(workers: RayWorkers) -> None:
    async with RayHost(workers, partial(make, find(SIGNALS).id)) as env:
        await env.reset(seed=5)
        assert env.legal_actions() == ["stop", "wait", "go"]
        assert not hasattr(env, "no_such_thing")
        state, right = await env.snapshot(), env.expert_action()
        [child] = await env.fork(1)
        first = await env.step(right)
        assert first[0] == (await child.step(right))[0]
        await env.restore(state)
        assert env.expert_action() == right
        await child.close()
    with pytest.raises(EnvironmentFault, match="closed"):
        await env.reset()


async def test_a_call_that_hangs_is_a_fault_of_its_episode_alone(workers: RayWorkers) -> None:
    make_env = partial(make, find("helpers.envs:AsyncLadderEnv").id)
    pool = EnvPool(make_env, size=2, isolation=workers, deadlines=DeadlineConfig(step_s=2.0))
    broken, sound = await pool.lease(), await pool.lease()
    await asyncio.gather(broken.reset(seed=1), sound.reset(seed=1))
    with pytest.raises(EnvironmentFault, match="no answer within 2 s"):
        await broken.step("break hang")
    broken.release(broken=True)
    assert (await sound.step("up"))[0]["text"]
    sound.release()
    again = await pool.lease()
    await again.reset(seed=2)
    again.release()
    await pool.close()
    assert [one.held for one in workers.handles] == [0, 0]


async def test_a_lost_worker_is_a_fault_and_its_environments_go_elsewhere(
    workers: RayWorkers,
) -> None:
    import ray

    envs = [RayHost(workers, partial(make, find(SIGNALS).id)) for _ in range(4)]
    await asyncio.gather(*(env.reset(seed=5) for env in envs))
    lost = [env for env in envs if env._worker is workers.handles[0]]
    kept = [env for env in envs if env not in lost]
    assert len(lost) == len(kept) == 2
    ray.kill(workers.handles[0].actor, no_restart=False)
    await asyncio.sleep(1)  # Ray does not wait for its end
    answers = await asyncio.gather(*(env.step("go") for env in envs), return_exceptions=True)
    for env, answer in zip(envs, answers, strict=True):
        assert isinstance(answer, EnvironmentFault) == (env in lost), answer
    with pytest.raises(EnvironmentFault, match="call reset"):
        await lost[0].step("go")
    with pytest.raises(EnvironmentFault, match="call reset"):
        lost[0].expert_action()
    await asyncio.gather(*(env.reset(seed=5) for env in lost))
    assert [len(await env.step("go")) for env in lost] == [5, 5]
    assert await asyncio.to_thread(until, lambda: workers.handles[0].is_up)
    await asyncio.gather(*(env.reset(seed=5) for env in envs))
    assert min(one.held for one in workers.handles) > 0, "nothing moved to the worker that is back"
    for env in envs:
        await env.close()


async def test_a_worker_that_came_back_unseen_answers_for_no_old_episode(
    workers: RayWorkers,
) -> None:
    import ray

    envs = [RayHost(workers, partial(make, find(SIGNALS).id)) for _ in range(2)]
    await asyncio.gather(*(env.reset(seed=5) for env in envs))
    assert envs[0].score() == 0.0
    for one in workers.handles:
        ray.kill(one.actor, no_restart=False)

    def has_begun_anew() -> bool:
        try:
            ray.get([one.actor.ping.remote() for one in workers.handles], timeout=30)
        except ray.exceptions.RayError:
            return False
        return True

    await asyncio.sleep(1)
    assert await asyncio.to_thread(until, has_begun_anew)
    assert all(one.is_up for one in workers.handles), "they were seen"
    with pytest.raises(EnvironmentFault, match="lost before"):
        envs[0].score()
    with pytest.raises(EnvironmentFault, match="lost before"):
        await envs[0].step("go")
    assert (await envs[0].reset(seed=5))[0]["text"]
    ray.kill(envs[1]._worker.actor, no_restart=False)
    assert (await envs[1].reset(seed=5))[0]["text"], "a reset that meets a lost worker goes on"
    for env in envs:
        await env.close()


def test_nodes_without_room_are_one_line(cluster: Nodes) -> None:
    settings = {"amount": 1, "isolation": "inline", "patience_s": 60}
    node = cluster.add(crowded=2)
    try:
        with pytest.raises(ConfigError, match=r"wants 3 with 1 'crowded' each, .* room for 2"):
            RayWorkers(resource="crowded", number=3, **settings)
        with pytest.raises(ConfigError, match="wants at least 1 with 1 'nothing'"):
            RayWorkers(resource="nothing", number=None, **settings)
    finally:
        cluster.remove(node)


def test_nodes_that_are_lost_under_load_cost_no_episode(cluster: Nodes, tmp_path: Path) -> None:
    (folder := tmp_path / "weights").mkdir()
    first, second = cluster.add(environments=2, engine=1), cluster.add(environments=2, engine=1)
    third = cluster.add(environments=1)
    added: list[Any] = []

    def replace() -> None:
        cluster.remove(first)
        added.append(cluster.add(environments=2, engine=1))

    remover = Remover(
        {2: replace, 5: lambda: cluster.remove(second), 8: lambda: cluster.remove(third)}
    )
    engine = {"type": "vllm", "server": "turngym", "resource": "engine", "replicas": 2}
    config = load_config(
        TrainConfig,
        [SETTINGS, {"engine": {**engine, "folder": str(folder), "restarts": 1000}}, "run.steps=12"],
    )
    try:
        result = train(config, tmp_path / "run", progress=remover)
    finally:
        for thread in remover.threads:
            thread.join()
        for node in added:
            cluster.remove(node)
    assert len(remover.threads) == 3
    assert result.updates == 12
    found = audit(tmp_path / "run")
    assert found.is_clean, found.problems
    assert found.tries["error_env"] > 0, "nothing was lost under load"
    assert steps_of(tmp_path / "run") == list(range(12))
    rows = [r for r in read_metrics(tmp_path / "run/metrics.jsonl") if "train/tokens" in r]
    assert rows[-1]["engine/ejected"] >= 1
    assert sum(row["rollout/unscored"] for row in rows) == 0
    assert all(row["lag/violations"] == 0 for row in rows)
    print(found.equation, dict(found.tries))


def steps_of(out: Path) -> list[int]:
    file = out / "metrics.jsonl"
    rows = read_metrics(file) if file.exists() else []
    return [int(row["step"]) for row in rows if "train/tokens" in row]


def test_a_killed_coordinator_leaves_nothing_and_the_same_command_resumes(
    cluster: Nodes, tmp_path: Path
) -> None:
    import ray

    node = cluster.add(environments=2)
    settings, out, said = tmp_path / "lights.toml", tmp_path / "run", tmp_path / "said.txt"
    settings.write_text(to_toml(load_config(TrainConfig, [SETTINGS, "run.steps=6"])))
    try:
        with launch(out, settings, cluster.address) as process:
            assert until(lambda: len(steps_of(out)) >= 3 or process.poll() is not None, 1500)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL, said.read_text()[-3000:]
        assert audit(out).problems == []
        connect("a test")
        assert until(lambda: ray.available_resources().get("environments") == 2, 300)
        with launch(out, settings, cluster.address) as process:
            assert process.wait(1500) == 0, said.read_text()[-3000:]
    finally:
        cluster.remove(node)
    assert said.read_text().count("environments 1") == 2  # in the plan, each time
    assert "resuming the run that is there" in said.read_text()
    found = audit(out)
    assert found.is_clean, found.problems
    assert found.lineages == 2
    assert steps_of(out) == list(range(6))
    print(found.equation)
