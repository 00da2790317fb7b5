"""Find and fix one wrong line in a tiny project; judged by running it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.swe.mini.cases import CaseRunner, Value
from turngym.environments.swe.mini.problems import LIBRARY, Call, Problem, draw, path_of, with_line
from turngym.environments.text.base import TextGame


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
