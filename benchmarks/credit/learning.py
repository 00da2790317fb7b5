"""Compare credit assignment at equal episodes, and without its parts; write docs/results.md.

    make learning                     # some hours on 2 cores; stop it any time, it resumes
    make learning ARGS="--stored"     # trains nothing: the page from benchmarks/results/credit
    make learning ARGS="--stored --tasks demonstrations --reference grpo_demos"    # prints
    make learning ARGS="--complete --tasks gains"    # trains what stored numbers lack

Every comparison is one ``turngym compare`` with the settings that its report lists, and has a
section of its own on the page. What stands between the sections is written by hand and kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from comparisons import COMPARISONS, TEACHER, Comparison
from page import Stored, overview

from harness import put_section
from results import PAGE
from turngym.reports.comparison import rank
from turngym.reports.overall import overall
from turngym.reports.runs import FinishedRun, Protocol, find_runs, read_protocol
from turngym.reports.tables import NOTES, SCALING_NOTES, write_report
from turngym.trainers.runs.checkpoints import find_model

ROOT = Path(__file__).resolve().parents[2]
OVERVIEW = PAGE.parent / "credit.md"
STORED = ROOT / "benchmarks" / "results" / "credit"


OPENING = f"""## Turn-level credit at equal episodes

    make learning

One torch thread for each run, no GPU. Within a seed all methods begin with one model and meet the
same training tasks in the same order. Minutes are those of a machine with other work to do.

{NOTES.format(level="in its row")}

{SCALING_NOTES}"""


def main() -> int:
    """Train what is missing, then write the sections."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--tasks", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "learning")
    parser.add_argument("--no-page", action="store_true", help="train, write no page")
    parser.add_argument(
        "--stored", action="store_true", help="train nothing, write the page from stored numbers"
    )
    parser.add_argument(
        "--complete", action="store_true", help="train only what the stored numbers lack"
    )
    parser.add_argument(
        "--reference", help="with --stored: print what the report says beside this algorithm"
    )
    arguments = parser.parse_args()
    if not arguments.no_page and not arguments.reference:
        put_section(PAGE, "credit", OPENING)
    for task in arguments.tasks:
        comparison, out = COMPARISONS[task], arguments.out / task
        if arguments.stored:
            with TemporaryDirectory() as folder:
                if not restored(task, Path(folder), reference=arguments.reference):
                    continue
                if arguments.reference:
                    print((Path(folder) / "report.md").read_text(encoding="utf-8"))
                else:
                    put_section(PAGE, f"credit-{task}", section(task, Path(folder)))
            continue
        if comparison.teacher and (code := teach(comparison.teacher)):
            return code
        if arguments.complete:
            code = complete(task, out, jobs=arguments.jobs)
        else:
            code = compare(comparison.arguments(arguments.seeds, str(out), jobs=arguments.jobs))
        if code:
            return code
        if not arguments.complete:
            store(task, find_runs([out])[0], read_protocol([out]))
        if not arguments.no_page:
            with TemporaryDirectory() as folder:
                restored(task, Path(folder))
                put_section(PAGE, f"credit-{task}", section(task, Path(folder)))
    if not arguments.no_page and not arguments.reference:
        put_section(OVERVIEW, "credit-overview", overview(stored_comparisons()))
    return 0


def teach(arguments: Sequence[str]) -> int:
    """Train the model that others learn from, unless it is there; return the exit status."""
    run = ROOT / f"{TEACHER}-run"
    if (ROOT / TEACHER).exists():
        return 0
    if code := compare(["train", *arguments, "--out", str(run)]):
        return code
    shutil.copytree(find_model(run), ROOT / TEACHER)
    return 0


def stored_comparisons() -> dict[str, Stored]:
    """Return all stored comparisons with GRPO; widths of groups are none."""
    found = {}
    for task in COMPARISONS:
        if (STORED / f"{task}.json").exists():
            runs, protocol = read_stored(task, STORED)
            [ranking] = rank(runs, protocol=protocol)
            comparison = COMPARISONS[task]
            if ranking.reference == "grpo" and comparison.is_of_credit:
                found[task] = Stored(comparison=comparison, ranking=ranking, runs=runs)
    return found


def compare(arguments: Sequence[str]) -> int:
    """Run ``turngym`` with arguments, one thread for each run; return its exit status."""
    return subprocess.run(
        [sys.executable, "-m", "turngym", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    ).returncode


def complete(task: str, out: Path, *, jobs: int) -> int:
    """Train what was asked for and is not stored.

    New algorithms, with a search of their own; then, with the settings that were chosen, seeds that
    an algorithm lacks and all seeds of a winner without one of its parts. They lie in ``out``
    beside what is there, and resume. The stored numbers then hold both.

    Returns:
        The exit status of ``turngym compare``.
    """
    if not (STORED / f"{task}.json").exists():
        sys.exit(f"{task}: there are no stored numbers to complete; train it without --complete")
    runs, protocol = read_stored(task, out)
    comparison = COMPARISONS[task]
    names = {algo.partition("=")[0] for algo in comparison.algos}
    if new := names - set(protocol.presets):
        folder = out / "added"
        added = comparison.only(new).arguments(len(protocol.seeds), str(folder), jobs=jobs)
        if code := compare(added):
            return code
        runs += find_runs([folder])[0]
        protocol = protocol.joined(read_protocol([folder]))
        store(task, runs, protocol)
    protocol = with_parts(protocol, comparison)
    done = {(run.algo, run.seed) for run in runs}
    together: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for algo in protocol.presets:
        if seeds := tuple(sorted(s for s in protocol.seeds if (algo, s) not in done)):
            together[seeds].append(algo)
    for seeds, algos in together.items():
        folder = out / f"{algos[0]}-from-{seeds[0]}"
        words = ["compare", comparison.config, *comparison.shared, "--algos"]
        words.append(",".join(f"{name}={protocol.presets[name]}" for name in algos))
        for name in algos:
            words += [
                w for value in protocol.settings.get(name, ()) for w in ("--set", f"{name}:{value}")
            ]
        number = seeds[-1] - seeds[0] + 1
        words += f"--first-seed {seeds[0]} --seeds {number} --jobs {jobs} --out {folder}".split()
        if code := compare([*words, "--budget-episodes", str(comparison.episodes)]):
            return code
        runs += [run for run in find_runs([folder])[0] if (run.algo, run.seed) not in done]
        store(task, runs, protocol)
    return 0


def with_parts(protocol: Protocol, comparison: Comparison) -> Protocol:
    """Return a protocol with the algorithms that lack a part, after those that they are made of."""
    presets, settings = dict(protocol.presets), dict(protocol.settings)
    for name, (whole, *without) in comparison.parts.items():
        presets[name] = presets[whole]
        settings[name] = [*settings.get(whole, ()), *without]
    return replace(protocol, presets=presets, settings=settings)


def store(task: str, runs: Sequence[FinishedRun], protocol: Protocol) -> None:
    """Keep what the report reads: curves and ends of every run, and what was asked for."""
    shared = set.intersection(*(set(flat_items(run)) for run in runs))
    content = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "protocol": protocol.to_json(),
        "settings": dict(sorted(shared)),
        "runs": [stored_run(run, shared) for run in runs],
    }
    STORED.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(content, indent=1)
    (STORED / f"{task}.json").write_text(lines + "\n", encoding="utf-8")


def flat_items(run: FinishedRun) -> Iterator[tuple[str, str]]:
    """Yield the settings of a run, values as JSON, without the place of the model it began with."""
    for key, value in run.settings.items():
        if key != "model.path":
            yield key, json.dumps(value)


def stored_run(run: FinishedRun, shared: Set[tuple[str, str]]) -> dict[str, Any]:
    """Return a run as JSON values, without its folder and what all runs share."""
    row = {key: getattr(run, key) for key in run.__dataclass_fields__ if key != "folder"}
    row["settings"] = dict(item for item in flat_items(run) if item not in shared)
    return {
        key: [round(float(x), 6) for x in value] if key.endswith("_P") else value
        for key, value in row.items()
    }


def read_stored(task: str, folder: Path) -> tuple[list[FinishedRun], Protocol]:
    """Return the stored runs of a comparison, as if they lay in ``folder``, and what was asked."""
    content = json.loads((STORED / f"{task}.json").read_text(encoding="utf-8"))
    runs = []
    for row in content["runs"]:
        curves = {key: np.array(value) for key, value in row.items() if key.endswith("_P")}
        settings = {k: json.loads(v) for k, v in (content["settings"] | row["settings"]).items()}
        runs.append(FinishedRun(folder=folder, **(row | curves | {"settings": settings})))
    asked = content["protocol"]
    return runs, Protocol(**(asked | {"seeds": frozenset(asked["seeds"])}))


def restored(task: str, out: Path, *, reference: str | None = None) -> bool:
    """Write the report of stored numbers into a folder; say whether there are any."""
    if not (STORED / f"{task}.json").exists():
        return False
    runs, protocol = read_stored(task, out)
    rankings = rank(runs, reference=reference, protocol=protocol)
    write_report(rankings, out, notes=(), overall=overall(runs, rankings[0].reference))
    return True


def section(task: str, out: Path) -> str:
    """Return the report of one comparison with its command; copy its plot to the docs."""
    report = (out / "report.md").read_text(encoding="utf-8")
    body = report[report.index("\n## ") :].strip()
    for plot in out.glob("*.png"):
        name = f"credit-{task}-{plot.name}"
        shutil.copy(plot, PAGE.parent / "assets" / name)
        body = body.replace(f"]({plot.name})", f"](assets/{name})")
    legends = NOTES[:30], SCALING_NOTES[:30]  # they stand once, in the opening
    body = "\n\n".join(p for p in body.split("\n\n") if not p.startswith(legends))
    title, _, rest = body.partition("\n")
    stored = STORED / f"{task}.json"
    content = json.loads(stored.read_text(encoding="utf-8"))
    where = f"{content['date']}, {content['machine']}."
    return f"""#{title}, {task}

    make learning ARGS="--tasks {task}"

{where}
{rest}""".rstrip()


if __name__ == "__main__":
    sys.exit(main())
