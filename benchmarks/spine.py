"""Measure what turngym promises about speed and size, beside its peers, on this machine.

    spine.py                 all parts: print tables, write runs/bench/spine.json
    spine.py --only a,d      some of them
    spine.py --repeats 1     a quick look
    spine.py --clock cpu     processor time in b and c, for a machine that is busy
    spine.py --publish       also put these parts into benchmarks/results/spine.json and
                             docs/benchmarks.md; the other parts there stay as they are

    a  turns.py          microseconds per turn of a trivial environment, beside GEM and Gymnasium
    b  generation.py     tokens per second of the local engine, beside transformers generate
    c  training_step.py  one GRPO update, beside TRL
    d  footprint.py      import time and install size
    e  credit.py         turn credit: one-pass scoring, share of a training step per method

``benchmarks/setup.sh`` installs the peers, each apart from .venv. A part that cannot run says so
and how to make it run. The exit status is 0 when everything that ran ended well, whatever the
numbers, 1 when a part broke, 2 for a wrong argument.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, child_environment, machine, peer_python, put_section

BENCHMARKS = Path(__file__).resolve().parent
DOCS = ROOT / "docs" / "benchmarks.md"
BUSY_LOAD = 0.5
"""Load average of a minute from which on a note says that the machine was busy."""

Record = dict[str, Any]
"""A ``PartResult`` as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One script and what it needs."""

    title: str
    script: str
    peer: str | None = None
    """Environment of ``setup.sh`` that has the peer; without it our side runs alone."""
    needs_torch: bool = False


PARTS = {
    "a": Part(title="One turn of a trivial environment", script="engine/turns.py", peer="gem"),
    "b": Part(title="Multi-turn generation", script="engine/generation.py", needs_torch=True),
    "c": Part(
        title="One GRPO update", script="engine/training_step.py", peer="trl", needs_torch=True
    ),
    "d": Part(title="Import time and install size", script="engine/footprint.py"),
    "e": Part(title="Turn credit", script="credit/credit.py", needs_torch=True),
}


def main(argv: Sequence[str]) -> int:
    """Run the chosen parts and report."""
    arguments = _parse(argv)
    here = {"date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(), "machine": machine()}
    records: list[Record] = []
    broken = False
    for letter in arguments.only:
        print(f"part {letter}: {PARTS[letter].title} ...", file=sys.stderr, flush=True)
        record, failed = _run(letter, arguments.repeats, arguments.clock)
        records.append(here | record)
        broken |= failed
    print(as_markdown(records))
    _write(arguments.out, {"parts": records})
    if arguments.publish and not broken:
        published = RESULTS / "spine.json"
        records = _merged(json.loads(published.read_text())["parts"], records)
        _write(published, {"parts": records})
        put_section(DOCS, "results", as_markdown(records))
    return 1 if broken else 0


def _merged(old: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Return the newer record of each part, by letter."""
    found = {record["part"]: record for record in (*old, *new)}
    return [found[letter] for letter in sorted(found)]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_letters, default=list(PARTS), metavar="a,b,c,d,e")
    parser.add_argument("--repeats", type=int, help="measured rounds of each part")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench" / "spine.json")
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.repeats is not None and arguments.repeats < 1:
        parser.error(f"--repeats {arguments.repeats}: wanted 1 or more")
    return arguments


def _letters(text: str) -> list[str]:
    letters = text.replace(" ", "").split(",")
    unknown = [letter for letter in letters if letter not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; choose from {','.join(PARTS)}")
    return sorted(set(letters))


def _run(letter: str, repeats: int | None, clock: str) -> tuple[Record, bool]:
    """Return the result of one part, and whether it broke."""
    part = PARTS[letter]
    python = (peer_python(part.peer) if part.peer else None) or Path(sys.executable)
    if (
        part.needs_torch
        and python == Path(sys.executable)
        and not importlib.util.find_spec("torch")
    ):
        return _not_run(letter, "torch is not installed here", "pip install '.[train]'"), False
    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        output = Path(folder) / "result.json"
        command = [str(python), str(BENCHMARKS / part.script), "--result", str(output)]
        command += ["--clock", clock]
        if repeats is not None:
            command += ["--repeats", str(repeats)]
        done = subprocess.run(
            command,
            env=child_environment(),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not output.is_file():
            print(done.stderr[-4000:], file=sys.stderr)
            reason = f"{part.script} ended with status {done.returncode}; its errors are above"
            return _not_run(letter, reason, f"{python.name} benchmarks/{part.script}"), True
        record: Record = json.loads(output.read_text())
        return record, False


def _not_run(letter: str, reason: str, remedy: str) -> Record:
    title = PARTS[letter].title
    note = {"name": title, "reason": reason, "remedy": remedy}
    return {"part": letter, "title": title, "measurements": [], "goals": [], "not_run": [note]}


def as_markdown(records: Sequence[Record]) -> str:
    """Return the parts as Markdown tables."""
    lines: list[str] = []
    for record in records:
        lines += ["", f"### {record['part']}. {record['title']}", "", *_conditions(record)]
        if record["goals"]:
            lines += ["", "| promise | wanted | found | quartiles | |", "|---|---|---|---|---|"]
            lines += [_goal_row(goal) for goal in record["goals"]]
        if record["measurements"]:
            lines += ["", "| measured | median | quartiles | unit |", "|---|---|---|---|"]
            lines += [_measurement_row(row) for row in record["measurements"]]
        for note in record["not_run"]:
            lines += [
                "",
                f"NOT RUN: {note['name']}: {note['reason']}. To run it: `{note['remedy']}`",
            ]
    return "\n".join(lines).strip("\n")


def _conditions(record: Record) -> list[str]:
    if not record["measurements"]:
        return []
    settings, load, here = record["settings"], record["load_average"], record["machine"]
    where = (
        f"{record['date']}, {here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB, "
        f"{here['system']}, Python {here['python']}, commit {here['commit']}"
    )
    found = [where]
    found += [f"{name} {version}" for name, version in record["versions"].items()]
    found += [f"{settings['repeats']} repeats", f"{settings['clock']} clock"]
    found.append(f"load average {load[0]} before and {load[1]} after")
    if load[0] > BUSY_LOAD:
        found.append("**the machine was busy**")
    return ["; ".join(found) + "."]


def _goal_row(goal: Record) -> str:
    low, high = goal["spread"] or ("", "")
    spread = f"{low:.3g} to {high:.3g}" if goal["spread"] else ""
    verdict = "met" if goal["met"] else "**missed**"
    return f"| {goal['name']} | {goal['wanted']} | {goal['value']:.3g} | {spread} | {verdict} |"


def _measurement_row(row: Record) -> str:
    low, high = row["quartiles"]
    spread = f"{low:.4g} to {high:.4g}" if len(row["values"]) > 1 else ""
    name = f"{row['name']} ({row['note']})" if row["note"] else row["name"]
    return f"| {name} | {row['median']:.4g} | {spread} | {row['unit']} |"


def _write(path: Path, report: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"wrote {os.path.relpath(path)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
