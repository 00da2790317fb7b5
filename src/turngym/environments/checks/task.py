"""Environments as the check of tasks plays them, and the check of many tasks at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from queue import Empty, LifoQueue
from threading import Event, Thread
from typing import Any

import gymnasium

from turngym.check_report import Broken, CheckReport, NotRun
from turngym.environments.checks.elsewhere import call_elsewhere
from turngym.environments.core.actions import Action
from turngym.environments.gym.face import GymFace
from turngym.environments.gym.registration import make
from turngym.errors import ConfigError, EnvironmentFault, TurnGymError
from turngym.tasks.base import Split, Task
from turngym.tasks.check.subject import Moves, Played, as_expert, hand_in, silent

AnyEnv = gymnasium.Env[Any, Any]

_MAX_EXPERT_TURNS = 500
_MAX_SILENT_TURNS = 100
_FAR = (1 << 30) - 1
_ENDLESS = 20
"""Tasks of an endless split that are looked at where no number is given."""
_ELSEWHERE_S = 300.0
_EPISODE_S = 600.0
"""Longest episode: what takes longer, a judge that hangs for one, is a finding."""


class EnvSeat:
    """The agent's place in an environment that was reset.

    Args:
        env: The environment.
        info: What came with the first observation, or with the last one since.
    """

    def __init__(self, env: AnyEnv, info: Mapping[str, Any]) -> None:
        self._env, self.info = env, info
        truth = info.get("ground_truth")
        self.truth = truth if isinstance(truth, str) else None

    def expert(self) -> str:
        """Return what the environment's own expert does now."""
        return str(self._env.get_wrapper_attr("expert_action")())

    def say(self, name: str, **arguments: Any) -> str | None:
        """Return the action ``name`` as text, None where the format does not understand it."""
        form = _attribute(self._env, "action_format")
        try:
            text = str(form.render(Action(name=name, arguments=arguments)))
        except (KeyError, AttributeError, ValueError, TurnGymError):
            return None
        return text if self.named(text) == name else None

    def named(self, action: str) -> str:
        """Return the name of an action; "" where it is not understood."""
        parsed = _attribute(self._env, "action_format").parse(action)
        return parsed.name if isinstance(parsed, Action) else ""

    def follow(self, script: Any) -> None:
        """Have the expert say this script instead of its own."""
        self._env.get_wrapper_attr("follow")(script)

    def menu(self) -> Sequence[str]:
        """Return the legal actions."""
        return list(self.info.get("legal_actions") or ())


class EnvSubject:
    """The tasks of environments that are all alike.

    Args:
        make: Makes one environment.
        name: What reports call it; a name that ``make`` of another process understands, where the
            check of other processes is to run.
        is_named: Whether it is.
    """

    def __init__(self, make: Callable[[], AnyEnv], name: str, *, is_named: bool = False) -> None:
        self.name, self.make, self._is_named = name, make, is_named
        self._idle: LifoQueue[AnyEnv] = LifoQueue()
        self._busy: list[AnyEnv] = []
        self._is_stopped = False

    def tasks(self, split: Split, limit: int | None) -> list[Task]:
        """Return the first tasks of a split, to a limit; None for all, of an endless one some."""
        with self._env() as env:
            return _tasks(env, split, limit)

    def is_endless(self, split: Split) -> bool:
        """Say whether there is no end of its tasks."""
        with self._env() as env:
            return _is_endless(env, split)

    def task(self, split: Split, index: int) -> Task:
        """Return one task of a split."""
        with self._env() as env:
            task: Task = env.get_wrapper_attr("task")(split, index)
            return task

    def play(self, task: Task, moves: Moves, *, name: str, max_turns: int = 500) -> Played:
        """Play the moves of one episode up to ``max_turns``; for several threads at once."""
        with self._env() as env, _limited(env) as is_late:
            played = play(env, task, moves, name=name, max_turns=max_turns)
        if played.fault and is_late():
            fault = f"the episode took more than {_EPISODE_S:g} s; {played.fault}"
            return dataclasses.replace(played, fault=fault)
        return played

    def expert_elsewhere(self, task: Task, *, hash_seed: int, clock_s: float) -> Played:
        """Play the expert in another process, as ``Subject``.

        Raises:
            NotRun: The environment cannot be made there.
        """
        if not self._is_named:
            raise NotRun("only what has a name or a path can be made in another process")
        played = call_elsewhere(
            _play_expert, self.name, task.id,
            hash_seed=hash_seed, timeout_s=_ELSEWHERE_S, clock_s=clock_s, env={"TZ": "UTC-9"},
        )  # fmt: skip
        where = f"hash seed {hash_seed}" + (f", {clock_s / 86_400:.0f} days on" if clock_s else "")
        return dataclasses.replace(played, name=where)

    def cheats(self, task: Task) -> Mapping[str, Moves]:
        """Return the cheats of the task's author, where its environment plays their scripts."""
        with self._env() as env:
            if not env.has_wrapper_attr("follow"):
                return {}
            env.reset(seed=0, options={"task": task})
            own = env.get_wrapper_attr("problem").cheats()
        return {f"{n}: {one.kind}": _following(one.script) for n, one in enumerate(own, start=1)}

    def close(self) -> None:
        """Close the environments."""
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

    @contextmanager
    def threads(self, number: int) -> Iterator[ThreadPoolExecutor]:
        """Give threads that play; Ctrl-C in the block ends their episodes, and begins no more."""
        with ThreadPoolExecutor(number) as threads:
            try:
                yield threads
            except BaseException:
                self._is_stopped = True
                threads.shutdown(wait=False, cancel_futures=True)
                for env in [*self._busy]:
                    _interrupt(env)
                raise

    @contextmanager
    def _env(self) -> Iterator[AnyEnv]:
        if self._is_stopped:
            raise EnvironmentFault("the check was stopped")
        try:
            env = self._idle.get_nowait()
        except Empty:
            env = self.make()
        self._busy.append(env)
        try:
            yield env
        finally:
            self._busy.remove(env)
            self._idle.put(env)


def _play_expert(target: str, task_id: str) -> Played:
    with closing(make(target)) as env:
        task: Task = env.get_wrapper_attr("find_task")(task_id)
        return play(env, task, as_expert, name="expert")


@contextmanager
def _limited(env: AnyEnv) -> Iterator[Callable[[], bool]]:
    """Interrupt what the block does with ``env``, again and again, once it took too long.

    What it gives says whether it was interrupted.
    """
    done, late = Event(), Event()

    def watch() -> None:
        is_done = done.wait(_EPISODE_S)
        while not is_done:
            late.set()
            _interrupt(env)
            is_done = done.wait(1.0)

    Thread(target=watch, name="turngym-check-limit", daemon=True).start()
    try:
        yield late.is_set
    finally:
        done.set()


def _interrupt(env: AnyEnv) -> None:
    """Cancel what another thread waits for in ``env``; plain Python code has nothing to cancel."""
    if isinstance(face := env.unwrapped, GymFace):
        face.interrupt()


def play(env: AnyEnv, task: Task, moves: Moves, *, name: str, max_turns: int = 500) -> Played:
    """Play the moves of one episode of ``task``, up to ``max_turns``; errors are in the result."""
    started, texts, actions, reward = time.perf_counter(), list[str](), list[str](), 0.0
    refused, prompt, over, info = "", "", False, dict[str, Any]()
    found: dict[str, Any] = {}
    try:
        observation, info = env.reset(seed=0, options={"task": task})
        prompt = str(observation["text"])
        seat = EnvSeat(env, info)
        found = {"key": _key(env, prompt, info), "truth": seat.truth}
        for action, _ in zip(moves(seat), range(max_turns), strict=False):
            if action is None:
                break
            observation, paid, terminated, truncated, info = env.step(action)
            over, reward = terminated or truncated, reward + float(paid)
            actions.append(action)
            texts.append(str(observation["text"]))
            seat.info = info
            if "invalid_action" in info and not refused:
                refused = f"{action[:80]!r} was refused: {info['invalid_action']}"
            if over:
                break
    except Exception as error:  # noqa: BLE001 - a fault of the task is what is looked for
        found |= {"fault": f"{type(error).__name__}: {error}", "score": None}
    else:
        found["score"] = info.get("score") if over else 0.0
    parts = info.get("reward_parts") if over else None
    return Played(
        name=name, prompt=prompt, texts=tuple(texts), actions=tuple(actions), reward=reward,
        refused=refused, is_over=over, parts=info.get("parts") or parts or {},
        problem=str(info.get("problem") or "").strip(), seconds=time.perf_counter() - started,
        **found,
    )  # fmt: skip


def check_tasks(
    make: Callable[[], AnyEnv],
    tasks: Iterable[Task],
    *,
    subject: str,
    parallel: int = 1,
    on_task: Callable[[str], None] | None = None,
) -> CheckReport:
    """Play every task twice: with the expert, who must score 1, and idly, which must score 0.

    Idle is to submit at once where that can be done, else to say nothing until the episode ends.

    Args:
        make: Makes one environment.
        tasks: What to check.
        subject: What the report calls it.
        parallel: Tasks at once.
        on_task: Told the id of each task that was checked.
    """
    todo, report, played = list(tasks), CheckReport(subject), EnvSubject(make, subject)

    def check(task: Task) -> CheckReport:
        own = CheckReport(task.id)
        own.run(task.id, lambda: _must_be_sound(played, task))
        return own

    try:
        with played.threads(max(1, min(parallel, len(todo)))) as threads:
            waiting = [threads.submit(check, task) for task in todo]
            for done in as_completed(waiting):
                if on_task is not None:
                    on_task(done.result().subject)
        report.results = [one.result().results[0] for one in waiting]
    finally:
        played.close()
    return report


def _must_be_sound(subject: EnvSubject, task: Task) -> None:
    idle = subject.play(task, hand_in, name="handing in at once")
    if not idle.is_over:
        idle = subject.play(task, silent, name="silence", max_turns=_MAX_SILENT_TURNS)
    if idle.fault:
        raise Broken(str(idle))
    if idle.score is None or idle.score > 0:
        raise Broken(f"doing nothing scores {idle.score!r}")
    expert = subject.play(task, as_expert, name="expert", max_turns=_MAX_EXPERT_TURNS)
    if expert.fault or expert.refused:
        raise Broken(expert.fault or f"the expert: {expert.refused}")
    if not expert.won:
        reason = f" ({expert.problem})" if expert.problem else ""
        raise Broken(f"the expert scores {expert.score!r}{reason}")


def _following(script: Any) -> Moves:
    def moves(seat: Any) -> Iterator[str | None]:
        seat.follow(script)
        yield from as_expert(seat)

    return moves


def _attribute(env: AnyEnv, name: str) -> Any:
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None


def _key(env: AnyEnv, prompt: str, info: Mapping[str, Any]) -> str:
    """Return what makes the problem this one, as far as the environment says."""
    key = _attribute(env, "instance_key")
    if key is not None:
        return hashlib.sha256(str(key()).encode("utf-8", "replace")).hexdigest()
    return json.dumps([prompt, info.get("state_key"), info.get("ground_truth")], default=str)


def _tasks(env: AnyEnv, split: Split, limit: int | None) -> list[Task]:
    if limit is None:
        limit = _ENDLESS if _is_endless(env, split) else _FAR
    found = list[Task]()
    for index in range(limit):
        try:
            found.append(env.get_wrapper_attr("task")(split, index))
        except (ConfigError, IndexError):
            break
    return found


def _is_endless(env: AnyEnv, split: Split) -> bool:
    try:
        env.get_wrapper_attr("task")(split, _FAR)
    except (ConfigError, IndexError):
        return False
    return True
