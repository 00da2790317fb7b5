"""One shell task: what is there, what is asked, how it is judged, and a script that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from turngym.tasks.problem import FileProblem, FileWorld, JudgeResult
from turngym.tasks.scorers.combine import all_of
from turngym.tasks.scorers.files import FileState, Output

WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "juniper",
    "kelp", "lagoon", "meadow", "north", "olive", "pebble", "quartz", "river", "stone",
    "tundra", "umber", "valley", "willow", "yarrow", "zephyr",
)  # fmt: skip
NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kai", "Lea",
    "Max", "Nora", "Otto", "Pia", "Quin", "Rosa", "Sam", "Tess",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EndState(FileProblem):
    """One problem. What is wanted must follow from the prompt and what the agent can see."""

    prompt: str
    files: Mapping[str, str] = field(default_factory=dict)
    prepare: str = ""
    wanted: Mapping[str, str | None] = field(default_factory=dict)
    """As ``FileState.wanted``."""
    probe: str = ""
    """Script of the judge whose output must be ``expected``."""
    expected: str = ""
    free: tuple[str, ...] = ()
    """As ``FileState.free``."""
    solution: str
    """Script that does it."""

    async def judge(self, world: FileWorld) -> JudgeResult:
        """Compare files, and run the probe."""
        state = FileState(wanted=self.wanted, free=self.free)
        probes = [Output(command=self.probe, expected=self.expected)] if self.probe else []
        return await all_of(state, *probes)(world)

    def expert(self) -> list[str]:
        """Return the script."""
        return [self.solution]


Generator = Callable[[Random], EndState]


def words(rng: Random, number: int) -> list[str]:
    """Return this ``number`` of different words."""
    return rng.sample(WORDS, number)


def lines(items: Iterable[object]) -> str:
    """Return the items as lines."""
    return "".join(f"{item}\n" for item in items)
