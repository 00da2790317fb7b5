"""How many planted defects the check of tasks finds, and how often it cries wolf.

    soundness.py                       # the whole corpus: detection and false alarms per kind
    soundness.py --every 12            # a sample of it
    soundness.py --only shell --out runs/soundness.json

The exit status is 1 where a defect was missed or a sound task refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import soundness_corpus
import soundness_folders
from soundness_corpus import Item
from turngym.check_report import CheckReport
from turngym.environments.checks.task import EnvSubject
from turngym.environments.gym.registration import make
from turngym.errors import TurnGymError, UnknownNameError
from turngym.tasks.base import SPLITS, Task
from turngym.tasks.check.check import check_set, check_task
from turngym.tasks.check.checks import Settings
from turngym.tasks.check.form import check_form

_CORPUS = Path(soundness_corpus.__file__)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="one item in so many")
    parser.add_argument("--only", default="", help="items whose name holds this")
    parser.add_argument("--no-web", action="store_true", help="leave out what needs a browser")
    parser.add_argument("--out", type=Path, help="write what was found as JSON")
    arguments = parser.parse_args()
    folders = [
        Item(f"folder-{base.name}", defect, "folder")
        for base, defect in soundness_folders.folders().values()
    ]
    every = [*soundness_corpus.items(web=not arguments.no_web), *folders]
    chosen = [one for one in every if arguments.only in one.name]
    found = []
    for item in chosen[:: arguments.every]:
        found.append(look(item))
        print(shown(found[-1]), flush=True)
    print("\n".join(["", *summary(found)]))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(bool(one["defect"]) != bool(one["failed"]) for one in found))


def look(item: Item) -> dict[str, Any]:
    """Return what the check finds in an item: ids of what failed, and the first reason."""
    started, reports = time.perf_counter(), list[CheckReport]()
    name = f"{_CORPUS}:{item.name}"
    result: dict[str, Any] = {"name": item.name, "defect": item.defect, "family": item.family}
    if item.family == "folder":
        folder = soundness_folders.write(item.name, Path(tempfile.mkdtemp()))
        name, form = str(folder), check_form(folder)
        reports.append(form)
    try:
        subject = EnvSubject(lambda: make(name), name, is_named=True)
        try:
            if item.is_set:
                reports.append(check_set(subject))
            if not item.is_set or not item.defect:
                task, settings = _task(subject, item), Settings(runs=12)
                is_planted = bool(item.defect)  # one failure is enough
                reports.append(check_task(subject, task, settings, to_first_failure=is_planted))
        finally:
            subject.close()
    except UnknownNameError:
        raise  # a mistake of the corpus, and no refusal
    except TurnGymError as error:
        result |= {"failed": ["refused"], "reason": str(error)}
    if "failed" not in result or item.family == "folder":
        failed = [one for report in reports for one in report.failures]
        reason = failed[0].reason if failed else ""
        result |= {"failed": [one.name for one in failed], "reason": reason}
    result["warned"] = [
        one.name for report in reports for one in report.results if one.status == "warn"
    ]
    return result | {"seconds": round(time.perf_counter() - started, 2)}


def _task(subject: EnvSubject, item: Item) -> Task:
    """Return the task of an item: number N of those of its base, test before train."""
    number = item.base.rpartition("-")[2]
    index = int(number) if item.family == "project" else 0
    tasks = [task for split in reversed(SPLITS) for task in subject.tasks(split, index + 1)]
    return tasks[min(index, len(tasks) - 1)]


def shown(one: dict[str, Any]) -> str:
    """Return one line for one item."""
    wrong = bool(one["defect"]) != bool(one["failed"])
    what = f"{', '.join(one['failed'])}: {one['reason'][:90]}" if one["failed"] else "sound"
    return f"{'WRONG ' if wrong else ''}{one['name']}: {what} ({one['seconds']} s)"


def summary(found: list[dict[str, Any]]) -> list[str]:
    """Return lines: detection for each defect, and false alarms for each family."""
    kinds: dict[str, list[bool]] = defaultdict(list)
    families: dict[str, list[bool]] = defaultdict(list)
    by: dict[str, set[str]] = defaultdict(set)
    for one in found:
        by[one["defect"]].update(one["failed"][:1])
        group = kinds[one["defect"]] if one["defect"] else families[one["family"]]
        group.append(bool(one["failed"]))
    lines = [f"{'defect':42}detected  of  first by"]
    lines += [
        f"{kind:42}{sum(hits):8}{len(hits):4}  {', '.join(sorted(by[kind]))}"
        for kind, hits in sorted(kinds.items())
    ]
    lines += ["", f"{'sound tasks of':42}refused   of"]
    lines += [f"{name:42}{sum(hits):8}{len(hits):4}" for name, hits in sorted(families.items())]
    hits = [hit for group in kinds.values() for hit in group]
    alarms = [hit for group in families.values() for hit in group]
    rate = f"{100 * sum(hits) / len(hits):.1f} %" if hits else "none planted"
    lines.append(
        f"\n{len(kinds)} kinds of defects: {sum(hits)} of {len(hits)} found ({rate}); "
        f"{sum(alarms)} false alarms in {len(alarms)} sound tasks"
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
