"""Find and fix one wrong line in a tiny project; judged by running it.

A project has one function of its own and a library of six, each in a file. The function's docstring
says how it calls two of the library; what a library function does is said by its name. One line is
wrong: of the function, or of a library function that it calls. The files are run one after the
other in one namespace, the library first.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from turngym.coroutines import LoopThread, finished
from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome, SnapshotKind
from turngym.environments.core.tasks import TaskSetEnv
from turngym.environments.text.base import GradedGame
from turngym.environments.workspace.host import SandboxHost
from turngym.errors import EnvironmentFault, TurnGymError
from turngym.sandbox.backends.guest_sandbox import GuestSandbox
from turngym.sandbox.base import Limits
from turngym.sandbox.processes import Process
from turngym.shared_resource import SharedResource
from turngym.tasks.base import Task
from turngym.tasks.problem import AnswerWorld, Cheat, JudgeResult, Problem, judge
from turngym.tasks.sets import TaskSet

_LIBRARY: Mapping[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("a + b", lambda a, b: a + b), "sub": ("a - b", lambda a, b: a - b),
    "mul": ("a * b", lambda a, b: a * b), "low": ("min(a, b)", min), "high": ("max(a, b)", max),
    "far": ("abs(a - b)", lambda a, b: abs(a - b)),
}  # fmt: skip
"""Library function to what it returns, as text and as a function."""
LIBRARY = tuple(_LIBRARY)
NAMES = (
    "pay", "tax", "fee", "cost", "rate", "size", "area", "loan", "wage", "rent", "gain", "debt",
)  # fmt: skip
_CASES = 6
_LIBRARY_CASES = 3
_PAIRS = tuple((a, b) for a in range(1, 10) for b in range(1, 10) if a != b)
_ARGUMENTS = (("a", "b", "a"), ("a", "b", "b"), ("b", "a", "a"), ("b", "a", "b"))
T = TypeVar("T")
Value = int | str | None
"""What a call gave: a number, what else it was or the exception it raised, or nothing at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of one function with two numbers."""

    function: str
    arguments: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.function}({self.arguments[0]}, {self.arguments[1]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What the files of a project do."""

    name: str
    used: tuple[str, str]
    """The library functions that are called, the inner one first."""
    arguments: tuple[str, str, str]
    """``a`` or ``b``: the two of the inner call, and the second of the outer call."""
    bodies: tuple[str, ...] = LIBRARY
    """For each library function whose body it has; its own, in a program without a bug."""

    def run(self, call: Call) -> int:
        """Return what ``call`` gives."""
        a, b = call.arguments
        if call.function != self.name:
            return self._library(call.function, a, b)
        one, other, last = (a if name == "a" else b for name in self.arguments)
        return self._library(self.used[1], self._library(self.used[0], one, other), last)

    def _library(self, function: str, a: int, b: int) -> int:
        return _LIBRARY[self.bodies[LIBRARY.index(function)]][1](a, b)

    def expression(self) -> str:
        """Return what the function returns, as text."""
        one, other, last = self.arguments
        return f"{self.used[1]}({self.used[0]}({one}, {other}), {last})"

    def files(self, says: Program) -> dict[str, str]:
        """Return path to text; the docstring is that of the program ``says``."""
        library = {
            function: f"def {function}(a, b):\n    return {_LIBRARY[body][0]}\n"
            for function, body in zip(LIBRARY, self.bodies, strict=True)
        }
        own = (
            f'def {self.name}(a, b):\n    """{says.expression()}"""\n'
            f"    return {self.expression()}\n"
        )
        return {**library, self.name: own}


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniWorld(AnswerWorld):
    """The project as it was submitted."""

    call: Callable[[Sequence[Call]], tuple[Value, ...]]
    """Returns what each call gives."""


@dataclass(frozen=True, kw_only=True)
class MiniProblem(Problem[MiniWorld]):
    """A project with one wrong line."""

    played_by: ClassVar[str] = "turngym.environments.swe.mini.env:MiniEnv"
    limit_s: ClassVar[float | None] = None
    right: Program
    wrong: Program
    path: str
    """Of the file with the wrong line."""
    shown: Call
    """The call that the agent gets to see."""
    hidden: tuple[Call, ...]
    """What is judged besides."""

    @property
    def prompt(self) -> str:  # type: ignore[override]  # follows from the rest
        """Which call is wrong, and what it calls."""
        own = self.broken_files()[self.right.name]
        return f"{self.says(self.shown, self.wrong.run(self.shown))}\n{_numbered(own)}"

    @property
    def content(self) -> str:
        """The two programs without the name of the function."""
        return repr([replace(program, name="") for program in (self.right, self.wrong)])

    async def judge(self, world: MiniWorld) -> JudgeResult:
        """Make all calls."""
        calls = [self.shown, *self.hidden]
        pairs = zip(calls, world.call(calls), strict=True)
        wrong = sum(value != self.wanted(call) for call, value in pairs)
        evidence = f"{wrong} of {len(calls)} wrong." if wrong else ""
        return JudgeResult(score=float(not wrong), evidence=evidence)

    def expert(self) -> list[Callable[[MiniState], Action]]:
        """Return one function of the state, which says the next call until all is done."""
        return [self._next_call]

    def cheats(self) -> list[Cheat]:
        """Return a function that knows the answer to the shown call, and no other."""
        path, wanted = self.right.name, self.wanted(self.shown)
        return [Cheat(kind="knows the shown case", script=[f"edit {path} 3 return {wanted}"])]

    def _next_call(self, state: MiniState) -> Action:
        """Read from the function that is named to the file that is wrong, fix it, submit."""
        order, files = [self.right.name, *self.right.used], dict(state.files)
        for path in order[1 : order.index(self.path) + 1]:
            if path not in state.viewed:
                return Action(name="view", arguments={"path": path})
        for path, wanted in self.right.files(self.right).items():
            pairs = zip(wanted.splitlines(), files[path].splitlines(), strict=True)
            for number, (right, found) in enumerate(pairs, start=1):
                if right != found:
                    fixed = {"path": path, "line": number, "text": right.strip()}
                    return Action(name="edit", arguments=fixed)
        return Action(name="submit", arguments={})

    def says(self, call: Call, value: Value) -> str:
        """Return what an agent is shown of a wrong call."""
        return f"{call} is {value}, not {self.wanted(call)}."

    def wanted(self, call: Call) -> int:
        """Return what ``call`` should give."""
        return self.right.run(call)

    def broken_files(self) -> dict[str, str]:
        """Return the files that the agent gets."""
        return self.wrong.files(self.right)


def with_line(files: Mapping[str, str], path: str, line: int, text: str) -> dict[str, str]:
    """Return the files with one line replaced; its indentation stays."""
    lines = files[path].splitlines()
    old = lines[line - 1]
    lines[line - 1] = old[: len(old) - len(old.lstrip())] + text.strip()
    return {**files, path: "\n".join(lines) + "\n"}


class MiniTasks(TaskSet[MiniProblem]):
    """Random projects without end."""

    def problem(self, task: Task) -> MiniProblem:
        """Return the first problem that the task's seed gives and that belongs to its split."""
        rng = np.random.default_rng(task.seed)
        while self.split(found := sample(rng)) != task.split:
            pass
        return found


def sample(rng: np.random.Generator) -> MiniProblem:
    """Return a random problem; its wrong line shows in at least half of the calls."""
    while True:
        inner, outer = (LIBRARY[n] for n in rng.choice(len(LIBRARY), 2, replace=False))
        arguments = _pick(rng, _ARGUMENTS)
        right = Program(name=_pick(rng, NAMES), used=(inner, outer), arguments=arguments)
        place = _pick(rng, (right.name, inner, outer))
        wrong = _with_bug(rng, right, place)
        calls = _calls(rng, right.name, _CASES)
        telling = [call for call in calls if right.run(call) != wrong.run(call)]
        if len(telling) < _CASES // 2:
            continue
        calls.remove(telling[0])
        for function in LIBRARY:
            calls += _calls(rng, function, _LIBRARY_CASES)
        return MiniProblem(
            right=right, wrong=wrong, path=place, shown=telling[0], hidden=tuple(calls)
        )


def _with_bug(rng: np.random.Generator, right: Program, place: str) -> Program:
    """Return a program with another body of a library function, or that calls otherwise."""
    if place != right.name:
        index = LIBRARY.index(place)
        body = _pick(rng, [one for one in LIBRARY if one != place])
        return replace(right, bodies=(*LIBRARY[:index], body, *LIBRARY[index + 1 :]))
    inner, outer = right.used
    which = int(rng.integers(3))
    if which == 0:
        arguments = _pick(rng, [one for one in _ARGUMENTS if one != right.arguments])
        return replace(right, arguments=arguments)
    other = _pick(rng, [one for one in LIBRARY if one not in right.used])
    return replace(right, used=(other, outer) if which == 1 else (inner, other))


def _calls(rng: np.random.Generator, function: str, count: int) -> list[Call]:
    """Return different calls of one function."""
    return [
        Call(function=function, arguments=_PAIRS[place])
        for place in rng.choice(len(_PAIRS), count, replace=False)
    ]


def _pick(rng: np.random.Generator, among: Sequence[T]) -> T:
    return among[int(rng.integers(len(among)))]


LIMITS = Limits(
    memory_bytes=256 << 20, pids=32, cpus=1.0, disk_bytes=1 << 20, inodes=64, enforce="best_effort",
)  # fmt: skip
SECONDS = 2.0
"""Longest run of one submission, all calls together."""
_ANSWER_S = 30.0
"""Longest wait for the supervisor, which itself ends a submission after ``SECONDS``."""
_MAX_ANSWER = 1 << 17


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
        asked = [[call.function, call.arguments] for call in calls]
        order = json.dumps({"files": list(files.items()), "calls": asked, "seconds": SECONDS})
        with self._turn:
            return self._known(order, len(calls))

    def _ask(self, order: str, count: int) -> tuple[Value, ...]:
        return self._wait(self._order(order.encode() + b"\n", count))

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

    problem: MiniProblem
    files: tuple[tuple[str, str], ...]
    """As they are now."""
    viewed: tuple[str, ...] = ()
    """Files that were looked at, each once."""
    is_solved: bool = False


class MiniEnv(TaskSetEnv, GradedGame):
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
    snapshot_kind: ClassVar[SnapshotKind] = "exact"
    blocks = True  # the sandbox runs the calls meanwhile
    state: MiniState

    def __init__(self, **kwargs: Any) -> None:  # those of GradedGame
        super().__init__(**kwargs)
        self.tasks = MiniTasks("bugs-mini")
        self.name = self.tasks.name  # there is one difficulty
        self._runner: CaseRunner | None = CaseRunner.lease()

    @property
    def problem(self) -> MiniProblem:
        return self.state.problem

    def begin(self, task: Task) -> Outcome:
        problem = self.tasks.problem(task)
        self._new_script()
        self.state = MiniState(problem=problem, files=tuple(problem.broken_files().items()))
        return Outcome(text=problem.prompt)

    def turn(self, action: Action) -> Outcome:
        if action.name == "submit":
            return self.end_at_limit()
        path = str(action.arguments["path"])
        text = dict(self.state.files).get(path)
        if text is None:
            return _refused(f"no file {path[:40]!r}.")
        if action.name == "edit":
            return self._edit(
                path, text, int(action.arguments["line"]), str(action.arguments["text"])
            )
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
        call = self.problem.shown
        [value] = self._call([call])
        if value == self.problem.wanted(call):
            return Outcome(text=f"{call} is {value}, right.")
        return Outcome(text=self.problem.says(call, value))

    def end_at_limit(self) -> Outcome:
        result = finished(judge(self.problem, MiniWorld(call=self._call), self._task_id))
        self.state = replace(self.state, is_solved=result.score == 1)
        text = f"not resolved: {result.evidence}" if result.evidence else "resolved."
        return Outcome(text=text, reward=result.score, terminated=True)

    def _call(self, calls: Sequence[Call]) -> tuple[Value, ...]:
        if self._runner is None:  # used again after close
            self._runner = CaseRunner.lease()
        return self._runner.call(dict(self.state.files), calls)

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.release()

    def score(self) -> float:
        return float(self.state.is_solved)

    def state_key(self) -> str:
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
        """Return the next call of the expert, or what ``follow`` was given."""
        step = self._next()
        if callable(step):
            return self.action_format.render(step(self.state))
        self._said += 1
        return self.say("submit") if step is None else str(step)


def _numbered(text: str) -> str:
    return "\n".join(f"{n} {line}" for n, line in enumerate(text.splitlines(), start=1))


def _refused(problem: str) -> Outcome:
    return Outcome(text=problem, invalid_action=problem)
