"""Find and fix one wrong line in a tiny project; judged by running it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.coroutines import LoopThread
from turngym.environments.core.env import Outcome
from turngym.environments.swe.mini.problems import LIBRARY, Call, Problem, draw, path_of, with_line
from turngym.environments.text.base import TextGame
from turngym.environments.workspace.host import SandboxHost
from turngym.errors import EnvironmentFault, TurnGymError
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import Limits
from turngym.sandbox.processes import Process
from turngym.shared_resource import SharedResource

LIMITS = Limits(
    memory_bytes=256 << 20, pids=32, cpus=1.0, disk_bytes=1 << 20, inodes=64, enforce="best_effort",
)  # fmt: skip
SECONDS = 2.0
"""Longest run of one submission, all calls together."""
_ANSWER_S = 30.0
"""Longest wait for the supervisor, which itself ends a submission after ``SECONDS``."""
_MAX_ANSWER = 1 << 17

Value = int | str | None
"""What a call gave: a number, what else it was or the exception it raised, or nothing at all."""
T = TypeVar("T")


class CaseRunner(SharedResource):
    """The one supervisor of this process; ``lease`` gives it, ``release`` gives it back.

    It calls submitted functions in a sandbox, each submission in a process of its own
    (``guest.py``), and says what each call gave. Where the supervisor is ended or answers nonsense,
    the submission gave nothing, and the next one finds a new sandbox.
    It has a thread with an event loop, so that environments may ask from wherever they run.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._thread: LoopThread | None = None
        self._host: SandboxHost | None = None
        self._sandbox: GuestSandbox | None = None
        self._process: Process | None = None
        self._known = lru_cache(maxsize=4096)(self._ask)

    def release(self) -> None:
        """Give a lease back; the last one ends sandbox and thread."""
        if not self._end_lease():
            return
        with self._turn:
            if self._thread is not None:
                self._wait(self._stop())
                self._thread.stop()
                self._thread = None

    def call(self, files: Mapping[str, str], calls: Sequence[Call]) -> tuple[Value, ...]:
        """Return what each call gives in a project of ``files``.

        The same files and calls are run once: attempts at one task often submit the same thing.

        Raises:
            EnvironmentFault: No sandbox can be started.
        """
        with self._turn:
            return self._known(tuple(files.items()), tuple(calls))

    def _ask(
        self, files: tuple[tuple[str, str], ...], calls: tuple[Call, ...]
    ) -> tuple[Value, ...]:
        order = {
            "files": files,
            "calls": [[call.function, call.arguments] for call in calls],
            "seconds": SECONDS,
        }
        return self._wait(self._order(json.dumps(order).encode() + b"\n", len(calls)))

    async def _order(self, order: bytes, count: int) -> tuple[Value, ...]:
        if self._process is None:
            await self._start()
        process, answer = self._process, b""
        assert process is not None
        with suppress(TurnGymError, TimeoutError, ValueError):
            async with asyncio.timeout(_ANSWER_S):
                await process.write(order)
                while not answer.endswith(b"\n") and len(answer) < _MAX_ANSWER:
                    chunk = await process.read()
                    if not chunk:
                        break
                    answer += chunk
            values = json.loads(answer)
            if isinstance(values, list) and len(values) == count:
                return tuple(map(_value, values))
        await self._stop()  # the submission ended it
        return (None,) * count

    async def _start(self) -> None:
        self._host = SandboxHost.lease("bubblewrap")
        try:
            self._sandbox = await self._host.start(None, limits=LIMITS)
            source = Path(__file__).with_name("guest.py").read_text(encoding="utf-8")
            self._process = await self._sandbox.spawn(
                ["/usr/bin/python3", "-I", "-S", "-B", "-c", source]
            )
        except TurnGymError as error:
            await self._stop()
            raise EnvironmentFault(f"swe/bugs-mini: no sandbox to judge in: {error}") from error

    async def _stop(self) -> None:
        host, sandbox = self._host, self._sandbox
        self._host = self._sandbox = self._process = None
        if sandbox is not None:
            await sandbox.close()
        if host is not None:
            await host.release()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the runner's own event loop."""
        if self._thread is None:
            self._thread = LoopThread("turngym-cases")
        return self._thread.start(work).result()


def _value(found: object) -> Value:
    return found if isinstance(found, int | str) and not isinstance(found, bool) else None


# The environment.


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniState:
    """A problem, and what was done about it."""

    problem: Problem
    files: tuple[tuple[str, str], ...]
    """As they are now."""
    viewed: tuple[str, ...] = ()
    """Files that were looked at, each once."""
    is_solved: bool = False


class MiniEnv(TextGame):
    """One wrong line in seven files of two or three: choose the file, choose the line, fix it.

    Action: ``view <file>``, ``edit <file> <line> <text>`` (the line keeps its indentation) and
    ``submit``.
    Observation: a call that gives a wrong number; the lines of a file; what that call gives after
    an edit.
    Reward: 1 for ``submit`` when every hidden call gives the right number, else 0. The calls are
    made in a sandbox that knows none of the numbers wanted.
    Start: a random project, and the file of its own function. Whether that or a library function
        is wrong, nothing says.
    End: ``submit``; a limit of turns judges as ``submit`` does.
    """

    name = "bugs-mini"
    rules = (
        "You mend a small Python project. One line of one file is wrong: what a function should do "
        "is said by its name, or by its docstring. Hidden calls of all functions judge your work."
    )
    commands = Commands(
        {"view": "view {path}", "edit": "edit {path} {line:int} {text...:raw}", "submit": "submit"},
        help={"edit": "replaces one line of a file"},
        keep_case=True,
    )
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {"easy": {}}

    state: MiniState

    def __init__(self, **kwargs: Any) -> None:  # those of TextGame
        super().__init__(**kwargs)
        self.name = "bugs-mini"  # there is one difficulty
        self._runner: CaseRunner | None = CaseRunner.lease()

    def new_game(self, rng: np.random.Generator) -> MiniState:
        problem = draw(rng)
        return MiniState(problem=problem, files=tuple(problem.broken_files().items()))

    def instance_key(self) -> str:
        """Return the two programs without the name of the function."""
        p = self.state.problem
        return repr([replace(program, name="") for program in (p.right, p.wrong)])

    def describe(self) -> str:
        """Return which call is wrong, and what it calls."""
        p = self.state.problem
        own = dict(self.state.files)[path_of(p.right.name)]
        return f"{self._result_line(p.shown, p.wrong.run(p.shown))}\n{_numbered(own)}"

    def _result_line(self, call: Call, value: Value) -> str:
        return f"{call} is {value}, not {self.state.problem.wanted(call)}."

    def turn(self, action: Action) -> Outcome:
        if action.name == "submit":
            return self._judge()
        path = str(action.arguments["path"])
        text = dict(self.state.files).get(path)
        if text is None:
            return _refused(f"no file {path[:40]!r}.")
        if action.name == "view":
            return self._view(path, text)
        return self._edit(path, text, int(action.arguments["line"]), str(action.arguments["text"]))

    def _view(self, path: str, text: str) -> Outcome:
        if path not in self.state.viewed:
            self.state = replace(self.state, viewed=(*self.state.viewed, path))
        return Outcome(text=_numbered(text))

    def _edit(self, path: str, text: str, line: int, new: str) -> Outcome:
        last = text.count("\n")
        if not 1 <= line <= last:
            return _refused(f"{path} has lines 1 to {last}.")
        if "\n" in new:
            return _refused("one line only.")
        files = with_line(dict(self.state.files), path, line, new)
        self.state = replace(self.state, files=tuple(files.items()))
        call = self.state.problem.shown
        [value] = self._call([call])
        if value == self.state.problem.wanted(call):
            return Outcome(text=f"{call} is {value}, right.")
        return Outcome(text=self._result_line(call, value))

    def end_at_limit(self) -> Outcome:
        return self._judge()

    def _judge(self) -> Outcome:
        problem = self.state.problem
        calls = [problem.shown, *problem.hidden]
        wrong = [
            call
            for call, value in zip(calls, self._call(calls), strict=True)
            if value != problem.wanted(call)
        ]
        self.state = replace(self.state, is_solved=not wrong)
        text = "resolved." if not wrong else f"not resolved: {len(wrong)} of {len(calls)} wrong."
        return Outcome(text=text, reward=float(not wrong), terminated=True)

    def _call(self, calls: list[Call]) -> tuple[Value, ...]:
        if self._runner is None:  # used again after close
            self._runner = CaseRunner.lease()
        return self._runner.call(dict(self.state.files), calls)

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.release()

    def score(self) -> float:
        return float(self.state.is_solved)

    def anchor(self) -> str:
        """Return the project as it is, and which files were looked at."""
        s = self.state
        return repr((s.problem.shown, s.files, sorted(s.viewed), s.is_solved))

    def legal_actions(self) -> list[str]:
        """Return a menu: every file to look at, a few edits of the files seen, and ``submit``."""
        files = dict(self.state.files)
        menu = [self.say("view", path=path) for path in files]
        menu += [
            self.say("edit", path=path, line=2, text=f"return {function}(a, b)")
            for path in self.state.viewed
            for function in LIBRARY
        ]
        return [*menu, self.say("submit")]

    def expert_action(self) -> str:
        """Read from the function that is named to the file that is wrong, fix it, submit."""
        problem, files = self.state.problem, dict(self.state.files)
        for path in problem.reading:
            if path not in self.state.viewed:
                return self.say("view", path=path)
        for path, wanted in problem.right.files(problem.right).items():
            pairs = zip(wanted.splitlines(), files[path].splitlines(), strict=True)
            for number, (right, found) in enumerate(pairs, start=1):
                if right != found:
                    return self.say("edit", path=path, line=number, text=right.strip())
        return self.say("submit")


def _numbered(text: str) -> str:
    return "\n".join(f"{n} {line}" for n, line in enumerate(text.splitlines(), start=1))


def _refused(problem: str) -> Outcome:
    return Outcome(text=problem, invalid_action=problem)
