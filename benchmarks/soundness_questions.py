"""The questions of the corpus: what is paid for, and sets of them."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from turngym.coroutines import finished
from turngym.environments.core.actions import Commands
from turngym.environments.core.env import Outcome, TurnEnv
from turngym.environments.core.tasks import TaskSetEnv
from turngym.tasks.problem import AnswerProblem, judge
from turngym.tasks.sets import GeneratedSet, ListedSet


@dataclass(frozen=True, kw_only=True)
class Sum(AnswerProblem):
    """Add two numbers; ``how`` says how the answer is compared."""

    a: int
    b: int
    how: str = "exact"
    words: str = "What is {a} plus {b}? Answer with the number alone."

    @property
    def prompt(self) -> str:  # type: ignore[override]
        return self.words.format(a=self.a, b=self.b)

    @property
    def truth(self) -> str:
        """The right answer."""
        return "7" if self.how == "constant" else str(self.a + self.b)

    async def judge(self, world: Any) -> float:
        return float(COMPARE[self.how]((world.answer or "").strip(), self.truth))

    def expert(self) -> list[str]:
        return [str(self.a + self.b + 1) if self.how == "wrong key" else self.truth]


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?|nan|inf", text) else -1.0


COMPARE: Mapping[str, Callable[[str, str], bool]] = {
    **dict.fromkeys(("exact", "constant", "wrong key"), lambda given, truth: given == truth),
    "anything said": lambda given, truth: bool(given),
    "holds it": lambda given, truth: truth in given,
    "beginning of it": lambda given, truth: truth.startswith(given),
    "taken for a pattern": lambda given, truth: bool(given) and _matches(given, truth),
    "not a number is near": lambda given, truth: (
        bool(given) and not abs(_number(given) - int(truth)) > 0.01
    ),
    "says that it is correct": lambda given, truth: given == truth or "correct" in given.lower(),
    "within a tenth": lambda given, truth: abs(_number(given) - int(truth)) <= 10 * int(truth),
}


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.fullmatch(pattern, text) is not None
    except (re.error, FutureWarning):
        return False


class QuizEnv(TaskSetEnv, TurnEnv):
    """Answer one question. Action: ``answer TEXT``."""

    action_format = Commands({"answer": "answer {text...}"}, keep_case=True)
    answer_given: str | None = None

    def __init__(self, *, tasks: Any) -> None:
        super().__init__()
        self.tasks, self.name, self._won = tasks, tasks.name, 0.0

    @property
    def truth(self) -> str:
        return str(self.problem.truth)

    def begin(self, task: Any) -> Outcome:
        self._won = 0.0
        return Outcome(text=self.problem.prompt, info={"ground_truth": self.truth})

    def turn(self, action: Any) -> Outcome:
        @dataclass
        class ChatRow:
            answer: str

        result = finished(judge(self.problem, ChatRow(str(action.arguments["text"])), "quiz"))
        self._won = result.score
        return Outcome(text="judged.", reward=result.score, terminated=True)

    def score(self) -> float | None:
        return self._won

    def instance_key(self) -> str:
        return str(self.problem.content)

    def expert_action(self) -> str:
        return f"answer {self.problem.expert()[0]}"


def sums(how: str = "exact", number: int = 40, words: str | None = None) -> list[tuple[str, Sum]]:
    found = [Sum(a=11 + 7 * n, b=23 + 13 * n, how=how) for n in range(number)]
    if words:
        found = [replace(one, words=words) for one in found]
    return [(f"q{n}", one) for n, one in enumerate(found)]


def _reworded() -> Any:
    """Put the same questions into both splits, in nearly the same words."""
    long = (
        "A baker has {a} loaves in the morning, bakes {b} more, and sells none; how many are there"
    )
    train = [
        (f"a{n}", replace(one, words=f"{long} now?")) for n, (_, one) in enumerate(sums()[:12])
    ]
    test = [(f"b{n}", replace(one, words=f"{long} then?")) for n, (_, one) in enumerate(train)]
    splits: Any = {**{id: "train" for id, _ in train}, **{id: "test" for id, _ in test}}
    return ListedSet("quiz", [*train, *test], splits=splits)


def _overlapping(test: Callable[[Sum], Sum]) -> Any:
    train = sums()[:12]
    copies = [(f"t{n}", test(one)) for n, (_, one) in enumerate(train)]
    splits: Any = {**{id: "train" for id, _ in train}, **{id: "test" for id, _ in copies}}
    return ListedSet("quiz", [*train, *copies], splits=splits)


SETS: Mapping[str, Callable[[], Any]] = {
    "train is test": lambda: _overlapping(lambda one: one),
    "train is test in capitals": lambda: _overlapping(
        lambda one: replace(one, words="WHAT IS {a} PLUS {b}? ANSWER WITH THE NUMBER ALONE!")),
    "reworded between splits": _reworded,
    "the same question twice": lambda: ListedSet(
        "quiz", [*sums(), *((f"x{n}", one) for n, (_, one) in enumerate(sums()[:5]))]),
    "one answer is always right": lambda: ListedSet("quiz", sums("constant")),
    "one id twice": lambda: ListedSet("quiz", [*sums(), sums()[3]]),
    "one problem a split": lambda: GeneratedSet("quiz", [_either], one_in=2),
}  # fmt: skip


def _either(rng: random.Random) -> Sum:
    """Sample one of a few sums, one of which is in each split."""
    found = [Sum(a=n, b=n) for n in range(40)]
    digests = [hashlib.sha256(one.content.encode()).digest()[0] % 2 for one in found]
    return found[digests.index(rng.randrange(2))]


def quiz(how: str = "exact", patch: Any = lambda base: base, make: Any = None) -> Any:
    return patch(QuizEnv)(tasks=make() if make else ListedSet("quiz", sums(how)))


def sound_set(number: int) -> Any:
    """Return sums that differ from those of another number."""
    found = [
        (id, replace(one, a=one.a + 997 * number, b=one.b + 31 * number)) for id, one in sums()
    ]
    return ListedSet("quiz", found)
