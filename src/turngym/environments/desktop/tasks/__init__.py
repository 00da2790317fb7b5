"""Task types on a desktop, and how their problems are sampled."""

from __future__ import annotations

from random import Random

from turngym.environments.desktop.problems import Problem, ProblemGenerator
from turngym.environments.desktop.tasks.across import ACROSS
from turngym.environments.desktop.tasks.calculator import CALCULATOR
from turngym.environments.desktop.tasks.folders import FOLDERS
from turngym.environments.desktop.tasks.notes import NOTES
from turngym.environments.desktop.tasks.settings import SETTINGS
from turngym.environments.desktop.tasks.sheets import SHEETS
from turngym.errors import ConfigError
from turngym.tasks.base import Split, split_of

GENERATORS: dict[str, ProblemGenerator] = {
    **NOTES, **FOLDERS, **CALCULATOR, **SHEETS, **SETTINGS, **ACROSS,
}  # fmt: skip
"""Kind to what makes its problems."""
_MAX_SAMPLES = 1_000


def sample_problem(kind: str, rng: Random, split: Split) -> Problem:
    """Return the first problem of ``kind`` that belongs to ``split``.

    A problem belongs to a split by its own content, so none is ever in both.

    Raises:
        ConfigError: None was found.
    """
    generator = GENERATORS[kind]
    for _ in range(_MAX_SAMPLES):
        problem = generator(rng)
        if split_of(f"{problem.goal}\n{sorted(problem.files.items(), key=str)}") == split:
            return problem
    raise ConfigError(f"{kind}: no problem of split {split!r} in {_MAX_SAMPLES} samples")
