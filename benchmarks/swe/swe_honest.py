"""Submit the repair of every SWE task many times: it must be resolved, and never called forged.

    swe_honest.py --runs 5                        # the shipped tasks
    swe_honest.py --tasks runs/tasks --runs 5     # what make-swe made of other packages

Every second run sits a new exam, with other mutants. The exit status is 1 where a repair was called
forged. Counts go to standard output after each round of all tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from typing import Any

from turngym.environments.swe.exam import Exam, ExamMaker, Trial
from turngym.environments.swe.judge import grade
from turngym.environments.swe.tasksets import SHIPPED, broken_of, open_tasks, project_of
from turngym.environments.swe.test_runner import project_runner
from turngym.environments.workspace.host import SandboxHost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=SHIPPED)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=2)
    found = asyncio.run(play(parser.parse_args()))
    return int(found["forged"] > 0)


async def play(arguments: argparse.Namespace) -> Counter[str]:
    """Submit every repair; return how often each verdict was given."""
    tasks = [(file, one) for file in open_tasks(arguments.tasks).files for one in file.tasks]
    exams: dict[str, Exam] = {}
    total: Counter[str] = Counter()
    host = SandboxHost.lease("bubblewrap")
    gate = asyncio.Semaphore(arguments.parallel)

    async def submit(file: Any, record: Any, is_new: bool) -> None:
        async with gate:
            project = project_of(file)
            runner = await project_runner(host, project)
            trial = Trial(
                fix=list(record.fail_to_pass),
                keep=file.pass_to_pass(record),
                gold={},
                broken=broken_of(file, record, project),
                timeout_s=20.0 + 3 * file.suite_s,
            )
            if is_new:
                exams[record.id] = await ExamMaker(runner, trial).make()
            verdict = await grade(runner, exams[record.id], {}, trial)
        what = "resolved" if verdict.is_resolved else "not resolved"
        what = "forged" if verdict.is_forged else what
        total[what] += 1
        if what != "resolved":
            print(f"{record.id}: {what}: {verdict.evidence} {verdict.failures[:3]}", flush=True)

    try:
        for number in range(arguments.runs):
            await asyncio.gather(*(submit(*task, number % 2 == 0) for task in tasks))
            counts = ", ".join(f"{count} {what}" for what, count in sorted(total.items()))
            print(f"run {number + 1} of {len(tasks)} tasks: {counts}", flush=True)
    finally:
        await host.release()
    return total


if __name__ == "__main__":
    sys.exit(main())
