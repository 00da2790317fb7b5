"""Part d: how long ``import turngym`` takes, and how much its core install adds to a disk.

A scratch environment is made with the standard ``venv``. First numpy and gymnasium are installed,
then turngym itself without extras, all at the versions of ``constraints.txt``; the difference in
size of site-packages is what turngym adds, byte code included. Import time is the wall time of a
fresh interpreter with and without ``import turngym``, after one run that warms the disk cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import (
    ROOT,
    Clock,
    Goal,
    Measurement,
    NotRun,
    PartResult,
    interleaved,
    limit_goal,
    run_part,
)

MEGABYTE = 1e6
BASE = ("numpy", "gymnasium")
PINNED = {"setuptools"}
"""Never constrained: pip's build of a package may need its own."""


def measure(repeats: int, clock: Clock) -> PartResult:
    """Install into a scratch environment and measure there, on the wall clock."""
    del clock
    result = PartResult(part="d", title="Import time and install size", settings={"clock": "wall"})
    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        venv = Path(folder) / "venv"
        try:
            base_bytes, all_bytes, sizes = _install(venv)
        except subprocess.CalledProcessError as error:
            reason = (error.stderr or str(error)).strip().splitlines()[-1][:300]
            result.not_run.append(
                NotRun(
                    name="install size, import time",
                    reason=f"pip could not install turngym: {reason}",
                    remedy="give pip a package index: pip download numpy must work",
                )
            )
            return result
        result.settings |= {"megabytes_by_package": sizes, "base": list(BASE)}
        result.measurements += _import_times(venv / "bin" / "python", repeats)
    result.measurements.append(
        Measurement(
            name="core install beyond numpy and gymnasium",
            unit="MB",
            values=((all_bytes - base_bytes) / MEGABYTE,),
            note=f"{all_bytes / MEGABYTE:.0f} MB with them, without pip and setuptools",
        )
    )
    result.goals += _goals(result.measurements)
    return result


def _install(venv: Path) -> tuple[int, int, dict[str, float]]:
    """Return the bytes before and after turngym came, and the largest packages that came with it.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    python = venv / "bin" / "python"
    _run([sys.executable, "-m", "venv", str(venv)])
    constraints = venv / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(line for line in lines if line.split("==")[0] not in PINNED))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    site = Path(_run([str(python), "-c", "import site; print(site.getsitepackages()[0])"]).strip())
    empty = _sizes(site)
    _run([*pip, *BASE])
    before = _sizes(site)
    _run([*pip, str(ROOT)])
    after = _sizes(site)
    added = {name: size - before.get(name, 0) for name, size in after.items()}
    largest = sorted(added.items(), key=lambda item: -item[1])[:10]
    base = sum(before.values()) - sum(empty.values())
    everything = sum(after.values()) - sum(empty.values())
    return base, everything, {name: round(size / MEGABYTE, 1) for name, size in largest}


def _sizes(site: Path) -> dict[str, int]:
    """Return the bytes of each entry of site-packages."""
    sizes: dict[str, int] = {}
    for path in site.rglob("*"):
        if path.is_file() and not path.is_symlink():
            top = path.relative_to(site).parts[0]
            sizes[top] = sizes.get(top, 0) + path.stat().st_size
    return sizes


def _import_times(python: Path, repeats: int) -> list[Measurement]:
    def start(code: str) -> float:
        begin = time.perf_counter()
        _run([str(python), "-c", code], cwd=python.parent)
        return time.perf_counter() - begin

    seconds = interleaved(
        {
            "fresh interpreter, import turngym": lambda: start("import turngym"),
            "fresh interpreter, import gymnasium": lambda: start("import gymnasium"),
            "fresh interpreter alone": lambda: start("pass"),
        },
        repeats=repeats,
    )
    return [Measurement(name=name, unit="s", values=values) for name, values in seconds.items()]


def _goals(measurements: list[Measurement]) -> list[Goal]:
    found = {measured.name: measured.median for measured in measurements}
    return [
        limit_goal(
            "import turngym in a fresh interpreter, s",
            found["fresh interpreter, import turngym"],
            at_most=1.0,
        ),
        limit_goal(
            "core install beyond numpy and gymnasium, MB",
            found["core install beyond numpy and gymnasium"],
            at_most=60.0,
        ),
    ]


def _run(command: list[str], *, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    run_part(measure, default_repeats=5)
