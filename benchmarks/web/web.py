"""Time web environments beside BrowserGym: the same MiniWoB tasks, Chromium and actions.

Usage: python benchmarks/web/web.py [--episodes 4] [--concurrency 20] [--json] [--without-peer]

Writes the section of docs/web.md on speed, unless it prints JSON or does without the peer.

Needs the extra ``web`` and MiniWoB's pages; BrowserGym lives in a venv of its own, made by
``benchmarks/web/setup_web.sh``. Both sides play the same tasks with the same clicks, one episode
after the other, in processes of their own, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import PEERS, ROOT, put_section

HERE = Path(__file__).resolve().parent
PEER = Path(os.environ.get("TURNGYM_WEB_PEER", PEERS / "browsergym"))
TASKS = ("click-test", "click-button", "click-link", "click-option")
WARM_UP = 1


def main() -> int:
    options = _options()
    if options.side == "ours":
        print(json.dumps(asyncio.run(_ours(options.episodes))))
        return 0
    if options.side == "many":
        print(json.dumps(asyncio.run(_many(options.concurrency))))
        return 0
    found: dict[str, Any] = {"load": os.getloadavg()[0], "tasks": TASKS}
    peer_python = PEER / "bin" / "python"
    sides: dict[str, list[dict[str, list[float]]]] = {"ours": [], "browsergym": []}
    for _ in range(options.repeats):
        sides["ours"].append(_run(sys.executable, __file__, "--side", "ours", options=options))
        if not options.without_peer and peer_python.exists():
            sides["browsergym"].append(
                _run(str(peer_python), str(HERE / "web_peer.py"), options=options)
            )
    for name, runs in sides.items():
        if runs:
            found[name] = _summary(runs)
    if "browsergym" in found:
        for phase in ("reset", "step"):
            ratio = found["browsergym"][f"{phase}_p50_ms"] / found["ours"][f"{phase}_p50_ms"]
            found[f"{phase}_ratio"] = round(ratio, 2)
    else:
        print("NOT RUN: browsergym: make it with benchmarks/web/setup_web.sh", file=sys.stderr)
    print(json.dumps(found), file=sys.stderr)  # in case that the last part fails
    found["many"] = _run(sys.executable, __file__, "--side", "many", options=options)
    print(json.dumps(found, indent=None if options.json else 2))
    if "browsergym" in found and not options.json:
        put_section(ROOT / "docs/web.md", "WEB SPEED", section(found))
    return 0


def section(found: dict[str, Any]) -> str:
    """Return the measurements as Markdown, beside what was wanted of them."""
    ours, peer, many = found["ours"], found["browsergym"], found["many"]
    rows = ["| | turngym | BrowserGym | ratio of p50 | wanted |", "|---|---|---|---|---|"]
    for phase, wanted in (("reset", 5), ("step", 3)):
        cells = [
            f"{one[f'{phase}_p50_ms']:.0f} ms (p95 {one[f'{phase}_p95_ms']:.0f})"
            for one in (ours, peer)
        ]
        ratio = found[f"{phase}_ratio"]
        verdict = "met" if ratio >= wanted else "not met"
        rows.append(f"| {phase} | {' | '.join(cells)} | {ratio:.1f} | {wanted}, {verdict} |")
    verdict = "met" if many["speedup"] >= 1.7 else "not met"
    return "\n".join(rows) + (
        f"\n\n{many['episodes_at_once']} episodes at once in one process: "
        f"{many['all_steps_per_s']:.1f} steps a second in all against "
        f"{many['one_steps_per_s']:.1f} of one alone, {many['speedup']:.2f} times (wanted 1.7, "
        f"{verdict}); p95 of a step {many['step_p95_ms']:.0f} ms; "
        f"{many['memory_mb_per_episode']:.0f} MB more memory per "
        f"episode.\n\n{len(found['tasks'])} tasks, {ours['resets']} and {peer['resets']} episodes, "
        f"{os.cpu_count()} cores, load {found['load']:.1f} at the start, "
        f"{time.strftime('%Y-%m-%d')}."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=4, help="per task, side and repeat")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without-peer", action="store_true")
    parser.add_argument("--side", choices=("both", "ours", "many"), default="both")
    return parser.parse_args()


def _run(python: str, *arguments: str, options: argparse.Namespace) -> Any:
    command = [python, *arguments, "--episodes", str(options.episodes)]
    if "many" in arguments:
        command += ["--concurrency", str(options.concurrency)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def _summary(runs: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Return p50 and p95 in milliseconds over all repeats, and how far the repeats differ."""
    summary: dict[str, Any] = {}
    for phase in ("reset", "step"):
        times = sorted(one * 1000 for run in runs for one in run[phase])
        middles = [1000 * statistics.median(run[phase]) for run in runs]
        summary[f"{phase}_p50_ms"] = round(statistics.median(times), 1)
        summary[f"{phase}_p95_ms"] = round(times[int(0.95 * (len(times) - 1))], 1)
        summary[f"{phase}_p50_by_repeat_ms"] = [round(one, 1) for one in middles]
        summary[f"{phase}s"] = len(times)
    summary["solved"] = sum(sum(run["rewards"]) for run in runs)
    return summary


async def _ours(episodes: int) -> dict[str, list[float]]:
    from turngym.environments.web.browser import BrowserHost
    from turngym.environments.web.miniwob.env import MiniWobEnv

    host = BrowserHost.lease()
    times: dict[str, list[float]] = {"reset": [], "step": [], "rewards": []}
    for task in TASKS:
        env = MiniWobEnv(task=task)
        for seed in range(episodes + WARM_UP):
            started = time.perf_counter()
            await env.reset(seed=seed)
            resets, steps, reward, is_over = [time.perf_counter() - started], [], 0.0, False
            while not is_over:
                action = env.expert_action()
                started = time.perf_counter()
                _, reward, is_over, _, _ = await env.step(action)
                steps.append(time.perf_counter() - started)
            if seed >= WARM_UP:
                times["reset"] += resets
                times["step"] += steps
                times["rewards"].append(reward)
        await env.close()
    host.release()
    return times


async def _many(concurrency: int) -> dict[str, float]:
    """Measure one episode's steps a second, then those of many at once."""
    from turngym.environments.web.browser import BrowserHost

    host = BrowserHost.lease()
    alone, _, _ = await _steps_per_second(1, seconds=6.0)
    before = _memory_mb()
    together, p95, after = await _steps_per_second(concurrency, seconds=12.0)
    host.release()
    return {
        "episodes_at_once": concurrency,
        "one_steps_per_s": round(alone, 1),
        "all_steps_per_s": round(together, 1),
        "speedup": round(together / alone, 2),
        "step_p95_ms": round(p95 * 1000, 1),
        "memory_mb_per_episode": round((after - before) / concurrency, 1),
    }


async def _steps_per_second(concurrency: int, *, seconds: float) -> tuple[float, float, float]:
    from turngym.environments.web.miniwob.env import MiniWobEnv

    times: list[float] = []
    memory = [0.0]

    async def play(number: int) -> None:
        env = MiniWobEnv(task="click-checkboxes-large")
        await env.reset(seed=number)
        ready.release()
        await begin.wait()
        boxes = [one.mark for one in env.view.elements if one.role == "checkbox"]
        turn = 0
        while time.perf_counter() < until[0]:
            started = time.perf_counter()
            await env.step(f"click {boxes[turn % len(boxes)]}")
            times.append(time.perf_counter() - started)
            turn += 1
        await done.wait()
        await env.close()

    ready, begin, done = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()
    until = [0.0]
    tasks = [asyncio.create_task(play(number)) for number in range(concurrency)]
    for _ in range(concurrency):
        await ready.acquire()
    until[0] = time.perf_counter() + seconds
    begin.set()
    await asyncio.sleep(seconds)
    memory[0] = _memory_mb()
    done.set()
    await asyncio.gather(*tasks)
    times.sort()
    return len(times) / seconds, times[int(0.95 * (len(times) - 1))], memory[0]


def _memory_mb() -> float:
    """Return the memory of this process and all below it, what they share counted once."""
    found, todo = set[int](), [os.getpid()]
    while todo:
        pid = todo.pop()
        found.add(pid)
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                todo += [int(one) for one in file.read_text().split()]
            except OSError:
                continue
    total = 0
    for pid in found:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended meanwhile
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


if __name__ == "__main__":
    sys.exit(main())
