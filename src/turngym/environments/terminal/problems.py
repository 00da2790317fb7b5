"""One shell task: what is there, what is asked, how it is judged, and a command that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from turngym.tasks.base import Split
from turngym.tasks.splits import split_of

Files = dict[str, str]

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
class Problem:
    """One problem. What is wanted must follow from the goal and what the agent can see."""

    goal: str
    files: Mapping[str, str]
    """Text files that the workspace begins with."""
    prepare: str = ""
    """Script that makes the rest of the beginning; same result every time."""
    wanted: Mapping[str, str | None] = field(default_factory=dict)
    """Files as they must be in the end, blanks at the ends of lines aside; None: gone."""
    probe: str = ""
    """Script of the judge whose output must be ``expected``."""
    expected: str = ""
    free: tuple[str, ...] = ()
    """Beginnings of paths that may change as they like; all else must stay as it was."""
    expert: str
    """Script that does it."""

    @property
    def split(self) -> Split:
        """Where the problem belongs: a hash of its content, so that no problem is in both."""
        content = repr([self.goal, sorted(self.files.items()), self.prepare])
        return split_of(content, one_in=2, remainder=1)


Generator = Callable[[Random], Problem]


def words(rng: Random, number: int) -> list[str]:
    """Return so many different words."""
    return rng.sample(WORDS, number)


def lines(items: list[str]) -> str:
    """Return the items as lines."""
    return "".join(f"{item}\n" for item in items)


def same_text(found: bytes | None, wanted: str | None) -> bool:
    """Say whether a file is as wanted, blanks at the ends of lines and of the file aside."""
    if found is None or wanted is None:
        return (found is None) == (wanted is None)
    return _plain(found.decode("utf-8", "replace")) == _plain(wanted)


def _plain(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
