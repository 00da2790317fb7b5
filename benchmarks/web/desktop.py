"""Time desktops: reset, step with screenshot, memory, and ten at once.

Usage: python benchmarks/web/desktop.py [--episodes 5] [--at-once 10] [--json] [--page]

Plays the experts of five kinds of tasks, one program each, with screenshots. Needs the extra
``desktop`` and its programs; nothing to compare with can be had on a machine without a hypervisor.
``--page`` writes the table into docs/desktop.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import put_section
from turngym.environments.desktop.env import DesktopEnv

PAGE = Path(__file__).resolve().parents[2] / "docs" / "desktop.md"
KINDS = ("calc-product", "files-rename", "notes-append", "settings-theme", "sheet-sum")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=5, help="per kind")
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", action="store_true", help="write the table into docs/desktop.md")
    options = parser.parse_args()
    found: dict[str, Any] = {"load": round(os.getloadavg()[0], 2), "kinds": {}}
    found["kinds"] = asyncio.run(one_after_the_other(options.episodes))
    for phase in ("reset", "step"):
        times = [t for row in found["kinds"].values() for t in row.pop(f"{phase}_times")]
        found[f"{phase}_p50_ms"] = millis(statistics.median(times))
        found[f"{phase}_p95_ms"] = millis(sorted(times)[int(0.95 * len(times))])
    found["at_once"] = asyncio.run(at_once(options.at_once))
    if options.page:
        put_section(PAGE, "speed", render(found, options.episodes))
    print(json.dumps(found, indent=None if options.json else 2))
    return 0


async def one_after_the_other(episodes: int) -> dict[str, Any]:
    found = {}
    for kind in KINDS:
        env = DesktopEnv(kind=kind, screenshot="plain")
        resets, steps, memory = [], [], 0
        for seed in range(-1, episodes):  # the first one warms up
            start = time.perf_counter()
            await env.reset(seed=seed + 1)
            resets.append(time.perf_counter() - start)
            steps += await play(env)
            memory = max(memory, pss_bytes(env.device.display.pid))
        await env.close()
        found[kind] = {
            "reset_p50_ms": millis(statistics.median(resets[1:])),
            "step_p50_ms": millis(statistics.median(steps)),
            "memory_mb": round(memory / 1e6, 1),
            "reset_times": resets[1:],
            "step_times": steps,
        }
    return found


async def play(env: DesktopEnv) -> list[float]:
    """Play the expert to the end, the stop not counted; return the seconds of each step."""
    times, action = [], env.expert_action()
    while action != "stop":
        start = time.perf_counter()
        await env.step(action)
        times.append(time.perf_counter() - start)
        action = env.expert_action()
    _, reward, *_ = await env.step(action)
    if reward != 1.0:
        raise SystemExit(f"{env.name}: the expert failed: {env.goal}")
    return times


async def at_once(n: int) -> dict[str, Any]:
    """Open ``n`` desktops together and play them together."""
    envs = [DesktopEnv(kind=KINDS[i % len(KINDS)], screenshot="plain") for i in range(n)]
    start = time.perf_counter()
    await asyncio.gather(*(env.reset(seed=i) for i, env in enumerate(envs)))
    opened = time.perf_counter() - start
    memory = sum(pss_bytes(env.device.display.pid) for env in envs)
    start = time.perf_counter()
    steps = await asyncio.gather(*(play(env) for env in envs))
    played = time.perf_counter() - start
    await asyncio.gather(*(env.close() for env in envs))
    times = [t for one in steps for t in one]
    return {
        "desktops": n,
        "open_all_s": round(opened, 2),
        "memory_each_mb": round(memory / n / 1e6, 1),
        "steps_per_s": round(len(times) / played, 1),
        "step_p50_ms": millis(statistics.median(times)),
    }


def render(found: dict[str, Any], episodes: int) -> str:
    """Return what was measured as Markdown."""
    kinds, together = found["kinds"], found["at_once"]
    rows = [
        "| | reset p50, s | step with screenshot and tree p50, ms | memory, MB |",
        "| --- | --- | --- | --- |",
        *(
            f"| `{kind}` | {one['reset_p50_ms'] / 1000:.2f} | {one['step_p50_ms']:.0f} | "
            f"{one['memory_mb']:.0f} |"
            for kind, one in kinds.items()
        ),
        f"| all | {found['reset_p50_ms'] / 1000:.2f} (p95 {found['reset_p95_ms'] / 1000:.2f}) | "
        f"{found['step_p50_ms']:.0f} (p95 {found['step_p95_ms']:.0f}) | |",
    ]
    return f"""The experts of {len(kinds)} kinds, {episodes} episodes each, one desktop at a time;
{os.cpu_count()} cores, load {found["load"]} when it began. Memory is that of the desktop with its
programs, shared libraries counted by share.

    python benchmarks/web/desktop.py --episodes {episodes} --page

{chr(10).join(rows)}

{together["desktops"]} desktops played at once on these {os.cpu_count()} cores: all open in
{together["open_all_s"]} s, {together["memory_each_mb"]} MB each, {together["steps_per_s"]} steps a
second in all, one step p50 {together["step_p50_ms"]:.0f} ms."""


def pss_bytes(first: int) -> int:
    """Return the proportional memory of every process in the pid namespace of ``first``."""
    namespace, total = Path(f"/proc/{first}/ns/pid").readlink(), 0
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and (path / "ns/pid").readlink() == namespace:
                lines = (path / "smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            continue  # a kernel thread, or it ended meanwhile
    return total * 1024


def millis(seconds: float) -> float:
    return round(seconds * 1000, 1)


if __name__ == "__main__":
    raise SystemExit(main())
