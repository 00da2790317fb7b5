"""Tasks of every family, sound and with one planted defect: what a check of tasks must tell apart.

An item is a base and a defect: ``shell-sum_column--first line only``. A base is a task of ours; a
defect is a patch of a few lines. Every item can be made by name, also in another process:

    turngym check task "benchmarks/soundness_corpus.py:shell-sum_column--first line only"
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from soundness_questions import COMPARE, SETS, quiz, sound_set
from turngym import registry
from turngym.environments.core.env import Outcome
from turngym.environments.swe.env import SweEnv
from turngym.environments.terminal.env import ShellEnv
from turngym.plugins import import_attribute
from turngym.tasks.problem import Cheat
from turngym.tasks.scorers.files import passed, same_text
from turngym.tasks.sets import GeneratedSet
from turngym.tasks.shell import GENERATORS
from turngym.tasks.shell.words import EndState

SOON = Path(__file__).stat().st_mtime + 200 * 86_400
"""When time bombs go off: fixed, whatever a process takes for now."""

# --- defects of any environment: patches of three methods of the episode ---


def _scoring(change: Callable[[Any, float | None], float | None]) -> Callable[[type], type]:
    def patch(base: type) -> type:
        return type(base.__name__, (base,), {"score": lambda self: change(self, base.score(self))})

    return patch


def _opening(change: Callable[[Any, Outcome], str]) -> Callable[[type], type]:
    def patch(base: type) -> type:
        def opened(self: Any, outcome: Outcome) -> Any:
            return base._opened(self, replace(outcome, text=change(self, outcome)))

        return type(base.__name__, (base,), {"_opened": opened})

    return patch


def _remembering(self: Any, score: float | None) -> float | None:
    type(self).has_won = getattr(type(self), "has_won", False) or score == 1.0
    return 1.0 if type(self).has_won else score


def _raising(self: Any, score: float | None) -> float | None:
    return {1.0: 1.0}[score] if score is not None else None


def _hint(self: Any, outcome: Outcome) -> str:
    shown = (outcome.info or {}).get("ground_truth") or self.problem.expert()[-1]
    return f"{outcome.text}\n<!-- expected: {shown} -->"


def _lost_expert(base: type) -> type:
    return type(base.__name__, (base,), {"expert_action": lambda self: "xyzzy"})


ANY: Mapping[str, Callable[[type], type]] = {
    "always paid": _scoring(lambda self, score: 1.0),
    "a little for nothing": _scoring(lambda self, score: max(0.2, score or 0.0)),
    "flaky judge": _scoring(
        lambda self, score: score if random.SystemRandom().random() > 0.5 else 0.0),
    "time bomb": _scoring(lambda self, score: score if time.time() < SOON else 0.0),
    "won once, won for ever": _scoring(_remembering),
    "judge raises": _scoring(_raising),
    "score out of range": _scoring(lambda self, score: 1.5 * (score or 0.0)),
    "expert that fails": _lost_expert,
    "another task every time": _opening(
        lambda self, seen: f"{seen.text} {random.SystemRandom().random()}"),
    "order of hashes": _opening(lambda self, seen: f"{seen.text} {hash('order') % 1009}"),
    "nothing is asked": _opening(lambda self, seen: ""),
}  # fmt: skip
SHOWN = {"answer in the prompt": _opening(_hint)}

# --- shell: judges that are too weak, and answers that lie about ---


@dataclass(frozen=True, kw_only=True)
class Weak(EndState):
    """A problem whose judge asks for less."""

    how: str

    async def judge(self, world: Any) -> Any:
        found = await world.files()
        texts = {path: (found.get(path) or b"").decode("utf-8", "replace") for path in self.wanted}
        return await _JUDGES[self.how](self, world, found, texts)


def _comparing(same: Callable[[str, str], bool]) -> Any:
    async def judge(self: Weak, world: Any, found: Any, texts: Mapping[str, str]) -> Any:
        ok = all(
            path in found and same(texts[path], want or "") for path, want in self.wanted.items()
        )
        return passed(ok, "not as wanted")

    return judge


async def _or_strict(self: Weak, world: Any, ok: bool) -> Any:
    return passed(True, "") if ok else await EndState.judge(self, world)


async def _reward_file(self: Weak, world: Any, found: Any, texts: Any) -> Any:
    return await _or_strict(self, world, found.get("reward.txt", b"").strip() == b"1")


async def _polite(self: Weak, world: Any, found: Any, texts: Any) -> Any:
    return await _or_strict(self, world, any("correct" in text for text in texts.values()))


async def _own_tests(self: Weak, world: Any, found: Any, texts: Any) -> Any:
    ran = await world.run("python3 -m unittest -q test_all")
    return passed(ran.exit_code == 0, "tests fail")


async def _own_output(self: Weak, world: Any, found: Any, texts: Any) -> Any:
    ran = await world.run("python3 test_all.py")
    return passed("OK" in ran.errors or "passed" in ran.output, "tests fail")


async def _shadowed(self: Weak, world: Any, found: Any, texts: Any) -> Any:
    """Run the judge's own script beside the agent's modules."""
    [(path, want)] = self.wanted.items()
    code = f"import json,sys; sys.exit(open({path!r}).read().split() != {(want or '').split()!r})"
    ran = await world.run(f"python3 -c {code!r}" if '"' in code else f'python3 -c "{code}"')
    return passed(ran.exit_code == 0, "not as wanted")


async def _dead_part(self: Weak, world: Any, found: Any, texts: Any) -> Any:
    whole = await EndState.judge(self, world)
    return replace(whole, parts={"work": whole.score, "style": 1.0})


_JUDGES: Mapping[str, Any] = {
    "files are there": _comparing(lambda text, want: True),
    "files are not empty": _comparing(lambda text, want: bool(text.strip())),
    "first line only": _comparing(lambda text, want: text.split("\n")[0] == want.split("\n")[0]),
    "number of lines": _comparing(
        lambda text, want: len(text.splitlines()) == len(want.splitlines())),
    "wanted among others": _comparing(
        lambda text, want: set(want.split()) <= set(text.split())),
    "letters only": _comparing(
        lambda text, want: re.sub(r"\d", "", text).split() == re.sub(r"\d", "", want).split()),
    "other files do not matter": _comparing(
        lambda text, want: same_text(text.encode(), want)),
    "reward file is believed": _reward_file, "judge can be talked to": _polite,
    "tests of the workspace": _own_tests, "output is believed": _own_output,
    "modules of the workspace": _shadowed, "part that never matters": _dead_part,
}  # fmt: skip

_TEST = """import unittest

class Test(unittest.TestCase):
    def test(self):
        with open({path!r}) as file:
            self.assertEqual(file.read().split(), {want!r})

if __name__ == "__main__":
    unittest.main()
"""


def _with_tests(problem: EndState) -> EndState:
    [(path, want)] = problem.wanted.items()
    text = _TEST.format(path=path, want=(want or "").split())
    return replace(problem, files={**problem.files, "test_all.py": text})


def _weak(how: str, before: Callable[[EndState], EndState] = lambda problem: problem) -> Any:
    return lambda problem: Weak(**vars(before(problem)), how=how)


def _key(where: str) -> Callable[[EndState], EndState]:
    """Return the defect that the wanted text lies about at ``where``."""

    def change(problem: EndState) -> EndState:
        [(_, want)] = problem.wanted.items()
        put = f"mkdir -p $(dirname {where}); cat > {where} <<'EOT'\n{(want or '').strip()}\nEOT"
        return replace(problem, prepare=f"{problem.prepare}\n{put}")

    return change


def _in_history(problem: EndState) -> EndState:
    [(path, want)] = problem.wanted.items()
    work = f"cat > {path} <<'EOT'\n{(want or '').strip()}\nEOT"
    commit = "git add -A; git -c user.name=a -c user.email=a@b.c commit -qm"
    made = f"git init -q .; {commit} start; {work}\n{commit} work; git rm -qf {path}; {commit} more"
    return replace(problem, prepare=f"{problem.prepare}\n{made}")


@dataclass(frozen=True, kw_only=True)
class Slow(EndState):
    """A problem whose expert needs more turns than there are."""

    def expert(self) -> list[str]:
        return [*(["true"] * 30), self.solution]


@dataclass(frozen=True, kw_only=True)
class Careless(EndState):
    """A problem whose author lists a cheat that works."""

    def cheats(self) -> list[Cheat]:
        return [Cheat(kind="the work itself", script=[self.solution])]


SHELL: Mapping[str, Callable[[EndState], EndState]] = {
    **{how: _weak(how) for how in (
        "files are there", "files are not empty", "first line only", "number of lines",
        "wanted among others", "letters only", "reward file is believed", "judge can be talked to",
        "modules of the workspace", "part that never matters",
    )},
    "tests of the workspace": _weak("tests of the workspace", _with_tests),
    "output is believed": _weak("output is believed", _with_tests),
    "other files do not matter": _weak(
        "other files do not matter",
        lambda problem: replace(problem, prompt=f"{problem.prompt} Change nothing else.")),
    "answer in a hidden file": _key(".cache/build/out.dat"),
    "answer in a file outside": _key("/tmp/expected_output.txt"),
    "answer in the history": _in_history,
    "expert is too slow": lambda problem: Slow(**vars(problem)),
    "cheat of its author works": lambda problem: Careless(**vars(problem)),
    "solution is wrong": lambda problem: replace(problem, solution=f"{problem.solution}; date > x"),
    "date in a script of the judge": lambda problem: replace(
        problem, probe=f"[ $(date +%s) -lt {int(SOON)} ] && echo fine", expected="fine"),
}  # fmt: skip


class ChangedSet(GeneratedSet[Any]):
    """Generated problems, each with the same defect."""

    change: Callable[[EndState], EndState] = staticmethod(lambda problem: problem)

    def problem(self, task: Any) -> Any:
        return self.change(super().problem(task))


def _shell(kind: str, change: Callable[[EndState], EndState] | None, patch: Any) -> Any:
    tasks = ChangedSet(f"shell-{kind}", [GENERATORS[kind]], seed_name="corpus", one_in=2)
    if change is not None:
        tasks.change = change  # type: ignore[method-assign]
    return patch(ShellEnv)(tasks=tasks)


# --- projects: a judge that runs the tests once and believes what they say ---


def _believing(base: type) -> type:
    async def judge(self: Any) -> Outcome:
        from turngym.environments.swe.patches import collect_patch
        from turngym.environments.swe.test_runner import project_runner

        bug = self.problem
        patch = collect_patch(await self.changed_files(), bug.base, bug.project.layout)
        runner = await project_runner(self.host, bug.project)
        ids = [*bug.record.fail_to_pass, *bug.file.pass_to_pass(bug.record)]
        run = await runner.run({**bug.broken, **patch.files}, ids, timeout_s=60.0)
        self._score = float(len(run.passed(ids)) == len(ids))
        return Outcome(text="judged.", reward=self._score)

    return type(base.__name__, (base,), {"judge": judge})


# --- the list ---

TEXTS = ("wordle", "guessnumber-easy", "maze-easy", "taxi-easy", "sokoban-easy", "guesscity-easy",
         "twentyquestions-easy", "chessendgame-easy", "frozenlake-hard", "wordle-hard")  # fmt: skip
SEARCHES = ("world-1hop-easy", "world-2hop-easy", "world-3hop-easy", "world-compare-easy",
            "world-intersect-easy", "world-count-easy")  # fmt: skip
SHELLS = ("count_status", "sum_column", "json_field", "sort_unique", "word_counts", "line_range",
          "common_lines", "reorder_columns", "totals_by_group", "config_value", "replace_word",
          "fix_python", "write_filter", "find_by_content", "rename_ending", "total_of_city",
          "never_ordered",
          "fix_script", "environment", "join_tables", "inventory", "makefile")  # fmt: skip
WEBS = (
    "web/miniwob-click-button",
    "web/miniwob-enter-text",
    "web/miniwob-click-checkboxes",
    "web/miniwob-login-user",
)


@dataclass(frozen=True, slots=True)
class Item:
    """One task of the corpus."""

    base: str
    defect: str
    """"" for a sound one."""
    family: str
    is_set: bool = False
    """The defect is one of the whole set."""

    @property
    def name(self) -> str:
        """What it is called; as an attribute of this file, it makes the environment."""
        return f"{self.base}--{self.defect}" if self.defect else self.base


def items(*, web: bool = True) -> list[Item]:
    """Return the corpus, in a fixed order."""
    found = [Item(f"text/{name}", "", "text") for name in TEXTS]
    found += [Item(f"search/{name}", "", "search") for name in SEARCHES]
    found += [Item(f"shell-{kind}", "", "shell") for kind in SHELLS]
    found += [Item(f"quiz-{n}", "", "question", is_set=True) for n in range(20)]
    found += [Item(f"swe/bugs-sample-{n}", "", "project") for n in range(4)]
    found += [Item("text/wordle", defect, "text") for defect in ANY]
    found += [Item("text/maze-easy", defect, "text") for defect in list(ANY)[:6]]
    found += [Item("search/world-2hop-easy", one, "search") for one in (*list(ANY)[:8:2], *SHOWN)]
    found += [Item("shell-sum_column", defect, "shell") for defect in SHELL]
    found += [Item("shell-json_field", defect, "shell") for defect in list(SHELL)[:16:2]]
    found += [Item("shell-count_status", defect, "shell") for defect in (*ANY, *SHOWN)]
    found += [
        Item("quiz-0", how, "question") for how in COMPARE if how not in ("exact", "constant")
    ]
    found += [Item("quiz-0", one, "question") for one in (*list(ANY)[1:11:3], *SHOWN)]
    found += [Item("quiz-0", one, "question", is_set=True) for one in SETS]
    found += [Item("swe/bugs-sample-0", one, "project") for one in (
        "runs the tests once and believes them", "always paid", "time bomb")]  # fmt: skip
    if web:
        found += [Item(name, "", "page") for name in WEBS]
        found += [Item(WEBS[0], one, "page") for one in list(ANY)[:8:2]]
    return found


def make(name: str) -> Any:
    """Return the environment of an item."""
    base, _, defect = name.partition("--")
    patch = {**ANY, **SHOWN}.get(defect, lambda cls: cls)
    if base.startswith("shell-"):
        return _shell(base.removeprefix("shell-"), SHELL.get(defect), patch)
    if base.startswith("quiz-"):
        how = defect if defect in COMPARE else "exact"
        return (
            quiz(how, patch, SETS.get(defect) or partial(sound_set, int(base.rpartition("-")[2])))
            if how == "exact"
            else quiz(how, patch)
        )
    if base.startswith("swe/"):
        patch = _believing if defect.startswith("runs the tests") else patch
        base = "swe/bugs-sample"
    entry = registry.find(base)
    is_project = base.startswith("swe/")  # its entry is a function
    cls = SweEnv if is_project else import_attribute("environment", entry.entry_point)
    return patch(cls)(**entry.kwargs)


def __getattr__(name: str) -> Any:
    """Return what makes the item of this name."""
    if name.startswith("__") or not any(one.name == name for one in items()):
        raise AttributeError(name)
    return partial(make, name)
