"""What all benchmark parts share: interleaved repeats, their summary, goals and the machine.

A part is a script that runs under the interpreter that has its peer, and writes a ``PartResult`` as
JSON to the path after ``--result``. ``spine.py`` starts the parts and prints their tables.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
RESULTS = ROOT / "benchmarks" / "results"
PEERS = ROOT / "benchmarks" / ".venv"
"""Where ``setup.sh`` puts the environments of the peers."""

Clock = Callable[[], float]
"""Seconds from an arbitrary start."""


def put_section(page: Path, name: str, text: str) -> None:
    """Replace what stands between the marks ``name`` of a page; a new section comes last."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = page.read_text(encoding="utf-8") if page.exists() else "# Results\n"
    before, mark, rest = old.partition(begin)
    after = rest.partition(end)[2] if mark else "\n"
    separator, body = "" if mark else "\n", text.strip("\n")  # the first line may be indented
    content = f"{before}{separator}{begin}\n\n{body}\n\n{end}{after}"
    page.write_text(content, encoding="utf-8")
    print(f"wrote {os.path.relpath(page)}", file=sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One thing measured, several times."""

    name: str
    unit: str
    values: tuple[float, ...]
    note: str = ""

    @property
    def median(self) -> float:
        """The middle value, in ``unit``."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The 25th and 75th percentile, in ``unit``."""
        return quartiles(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A number that was promised, and what came out."""

    name: str
    value: float
    wanted: str
    """In words, for example ``"at least 3"``."""
    met: bool
    spread: tuple[float, float] | None = None
    """Quartiles of the value over the repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRun:
    """Something that was not measured here. Not run is not passed."""

    name: str
    reason: str
    remedy: str
    """What to type so that it runs."""


@dataclass(slots=True, kw_only=True)
class PartResult:
    """Everything one part found out."""

    part: str
    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    load_average: list[float] = field(default_factory=list)
    """Of one minute, before and after."""
    measurements: list[Measurement] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the result with medians and quartiles written out."""
        record = asdict(self)
        for row, measured in zip(record["measurements"], self.measurements, strict=True):
            row["median"] = measured.median
            row["quartiles"] = list(measured.quartiles)
        return record


def interleaved(
    cases: Mapping[str, Callable[[], float]], *, repeats: int, warmup: int = 1
) -> dict[str, tuple[float, ...]]:
    """Run every case ``repeats`` times, one of each in turn, and return what each returned.

    The order turns by one place each time, so that a busy moment of the machine hits every case
    alike.

    Args:
        cases: Name to a function that does the work and returns its cost.
        repeats: Measured rounds, 1 or more.
        warmup: Rounds whose costs are dropped.
    """
    names = list(cases)
    values: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warmup + repeats):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            cost = cases[name]()
            if number >= warmup:
                values[name].append(cost)
    return {name: tuple(costs) for name, costs in values.items()}


def ratio_goal(
    name: str, above: Sequence[float], below: Sequence[float], *, at_least: float
) -> Goal:
    """Return the goal that ``above / below`` is at least ``at_least``.

    The two are paired by round, so the value is the median of the ratios, not the ratio of the
    medians.
    """
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    value = statistics.median(ratios)
    return Goal(
        name=name,
        value=value,
        wanted=f"at least {at_least:g}",
        met=value >= at_least,
        spread=quartiles(ratios),
    )


def limit_goal(name: str, value: float, *, at_most: float) -> Goal:
    """Return the goal that ``value`` is at most ``at_most``."""
    return Goal(name=name, value=value, wanted=f"at most {at_most:g}", met=value <= at_most)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the 25th and 75th percentile; of one value, that value twice."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def machine() -> dict[str, Any]:
    """Return what a reader needs to judge a number: processor, cores, memory, versions."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or None,
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the installed versions of those ``packages`` that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def peer_python(name: str) -> Path | None:
    """Return the interpreter of a peer's environment, or None when ``setup.sh`` did not make it."""
    venv = PEERS / name
    return venv / "bin" / "python" if (venv / ".done").is_file() else None


def child_environment() -> dict[str, str]:
    """Return the environment variables of a part: our source, one thread, no network."""
    return {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }


def run_part(measure: Callable[[int, Clock], PartResult], *, default_repeats: int) -> None:
    """Be the main function of a part: parse the arguments, measure, write the result.

    ``measure`` is given the repeats and the clock: wall time, or with ``--clock cpu`` the processor
    time of this process, which tells about the same on one thread and is fit for a busy machine.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=default_repeats)
    parser.add_argument("--result", type=Path, default=None)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    before = os.getloadavg()[0]
    result = measure(arguments.repeats, clock)
    given = {"repeats": arguments.repeats, "clock": arguments.clock}
    result.settings = given | result.settings
    result.load_average = [round(before, 2), round(os.getloadavg()[0], 2)]
    text = json.dumps(result.to_json(), indent=2)
    if arguments.result is None:
        sys.stdout.write(text + "\n")
    else:
        arguments.result.write_text(text)


def clock_name(clock: Clock) -> str:
    """Return what ``--clock`` calls a clock."""
    return "cpu" if clock is time.process_time else "wall"


def _cpu_model() -> str:
    with Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
