"""Is every environment that comes with turngym sound? ``turngym check task`` on each of them.

    soundness_shipped.py                  # all that run here, some hours on 2 cores; it resumes
    soundness_shipped.py --only web/shop  # some of them

Each id has a row in the file after ``--out``: what failed, what did not run, and seconds; it is not
checked again as long as the row is there. The exit status is 1 where a set is not sound.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from harness import ROOT, child_environment, put_section
from turngym.cli.output import progress
from turngym.registry import entries

PAGE = ROOT / "docs" / "soundness.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="ids that begin with this")
    parser.add_argument("--jobs", type=int, default=2, help="sets that are checked at once")
    parser.add_argument("--episodes", type=int, default=3, help="tasks of each split")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "shipped.jsonl")
    parser.add_argument(
        "--page", action="store_true", help="write the table into docs/soundness.md"
    )
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = read(arguments.out)
    wanted = [entry for entry in entries() if entry.short_name.startswith(arguments.only)]
    names = [entry.short_name for entry in wanted if not entry.missing()]
    todo = [name for name in names if name not in rows]
    print(
        f"{len(names)} of {len(wanted)} ids run here, {len(names) - len(todo)} were checked before"
    )
    with (
        ThreadPoolExecutor(arguments.jobs) as pool,
        ended_together(pool),
        arguments.out.open("a", encoding="utf-8") as file,
        progress("checking", len(todo)) as advance,
    ):
        for job in as_completed([pool.submit(check, name, arguments.episodes) for name in todo]):
            row = job.result()
            rows[row["id"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            advance(1, f"{row['id']} {'; '.join(row['failed']) or 'sound'}")
    mine = [rows[name] for name in names]
    print(table(mine))
    if arguments.page:
        put_section(PAGE, "shipped", table(mine))
    return int(any(row["failed"] for row in mine))


_RUNNING: set[subprocess.Popen[str]] = set()


@contextmanager
def ended_together(pool: ThreadPoolExecutor) -> Iterator[None]:
    """On Ctrl-C and SIGTERM end the checks that run, and begin no other."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for one in list(_RUNNING):
            one.terminate()
        raise


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by their ids."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {row["id"]: row for row in map(json.loads, lines)}


def check(name: str, episodes: int) -> dict[str, Any]:
    """Return the row of one id."""
    started = time.perf_counter()
    job = subprocess.Popen(
        [sys.executable, "-m", "turngym", "check", "task", name,
         "--episodes", str(episodes), "--parallel", "2", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment(),
    )  # fmt: skip
    _RUNNING.add(job)
    out, error = job.communicate()
    _RUNNING.discard(job)
    seconds = round(time.perf_counter() - started, 1)
    row: dict[str, Any] = {"id": name, "episodes": episodes, "seconds": seconds}
    try:
        reports = json.loads(out)["reports"]
    except json.JSONDecodeError:
        why = f"ended with {job.returncode}: {error.strip()[-300:]}"
        return row | {"failed": [why], "warned": [], "not_run": []}
    results = [one | {"of": report["subject"]} for report in reports for one in report["results"]]

    def those(*, status: str, required: bool | None = None) -> list[str]:
        return [
            f"{one['of']} {one['name']}: {one['reason']}"
            for one in results
            if one["status"] == status and required in (None, one["required"])
        ]

    failed = [*those(status="fail"), *those(status="not-run", required=True)]
    not_run = those(status="not-run", required=False)
    return row | {"failed": failed, "warned": those(status="warn"), "not_run": not_run}


def has_expert(row: dict[str, Any]) -> bool:
    """Say whether anything shows that a set can be solved."""
    return not any("has no expert" in reason for reason in row["failed"])


def table(rows: list[dict[str, Any]]) -> str:
    """Return a row for each family, and a line for each set that is not sound."""
    lines = [
        "| family | sets | sound | without an expert | warned | seconds a set, median (most) |",
        "|---|---|---|---|---|---|",
    ]
    for family, sets in sorted(Counter(row["id"].partition("/")[0] for row in rows).items()):
        own = [row for row in rows if row["id"].startswith(f"{family}/")]
        sound, warned = (sum(map(bool, (row[key] for row in own))) for key in ("failed", "warned"))
        spent = [row["seconds"] for row in own]
        unproven = len(own) - sum(map(has_expert, own))
        lines.append(
            f"| {family} | {sets} | {sets - sound} | {unproven} | {warned} "
            f"| {median(spent):.0f} ({max(spent):.0f}) |"
        )
    unknown = [row["id"] for row in rows if not has_expert(row)]
    if unknown:
        lines.append(f"\nWithout an expert, so not proven: {', '.join(unknown)}.")
    wrong = [row for row in rows if row["failed"] and has_expert(row)]
    return "\n".join([*lines, *(f"\n{row['id']}: {'; '.join(row['failed'])}" for row in wrong)])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on")
