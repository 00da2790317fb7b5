"""How soon the viewer shows a run of 10,000 episodes, in Chromium on this machine.

    python benchmarks/web/viewer.py                        play 10,000 mazes, then measure
    python benchmarks/web/viewer.py --run RUN --json       measure a run that is there
    python benchmarks/web/viewer.py --run RUN --picture docs/images/viewer.png --address '#/e/12'

Times are milliseconds from the start of the navigation, as the browser measures them. *Served cold*
is a server that has just started and is still reading the run; *served warm* the same server again;
*one file* the page of ``turngym view RUN --html``. Needs the extra ``web`` and Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "turngym")
CHROMIUM = os.environ.get("TURNGYM_CHROMIUM") or shutil.which("chromium-headless-shell")
GOAL_MS = 1000.0
"""First paint."""

TIMES = """() => {
  const paint = performance.getEntriesByName('first-contentful-paint')[0].startTime;
  const mark = (name) => performance.getEntriesByName(name)[0].startTime;
  return { first_paint: paint, first_rows: mark('first-rows'), all_rows: mark('all-rows') };
}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a run that is there; played anew without it")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", type=Path, help="only take a picture")
    parser.add_argument("--address", default="", help="what the picture shows, for example #/e/12")
    parser.add_argument("--keys", default="", help="keys pressed first, for example 't t c'")
    arguments = parser.parse_args()
    if arguments.picture:
        take_picture(arguments.run, arguments.picture, arguments.address, arguments.keys.split())
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        run = arguments.run or play(Path(scratch) / "run", arguments.episodes)
        found = measure(run, Path(scratch) / "page.html", arguments.repeats)
    print(json.dumps(found, indent=2) if arguments.json else table(found))
    worst = max(found["times_ms"][way]["first_paint"]["most"] for way in found["times_ms"])
    return 0 if worst < GOAL_MS else 1


def play(folder: Path, episodes: int) -> Path:
    options = ["--agent", "random", "--episodes", str(episodes), "--out", str(folder)]
    subprocess.run([*COMMAND, "eval", "text/maze", *options], check=True, stdout=subprocess.DEVNULL)
    return folder


def measure(run: Path, page: Path, repeats: int) -> dict[str, Any]:
    began = time.perf_counter()
    subprocess.run([*COMMAND, "view", str(run), "--html", str(page)], check=True)
    write_s = time.perf_counter() - began
    rounds: dict[str, list[dict[str, float]]] = {"served cold": [], "served warm": []}
    rounds |= {"one file": []}
    work: list[dict[str, float]] = []
    with browser() as chromium:
        for _ in range(repeats):
            with served(run) as address:
                rounds["served cold"].append(visit(chromium, address))
                rounds["served warm"].append(visit(chromium, address, work))
            rounds["one file"].append(visit(chromium, page.as_uri()))
    return {
        "episodes": int(work[0].pop("episodes")),
        "run_mb": round(sum(f.stat().st_size for f in run.rglob("*.jsonl")) / 1e6, 1),
        "page_mb": round(page.stat().st_size / 1e6, 1),
        "page_written_s": round(write_s, 1),
        "times_ms": {way: spread(found) for way, found in rounds.items()},
        "work_ms": spread(work),
        "load": [round(value, 2) for value in os.getloadavg()],
        "cpus": os.cpu_count(),
    }


def visit(
    chromium: Any, address: str, work: list[dict[str, float]] | None = None
) -> dict[str, float]:
    """Open the page in a fresh context and return its times."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]", timeout=120_000)
    times: dict[str, float] = page.evaluate(TIMES)
    if work is not None:
        work.append(do_work(page))
    context.close()
    return times


def do_work(page: Any) -> dict[str, float]:
    """Return how long it takes to find a text in all episodes, to filter, and to open one."""
    text = page.inner_text(".count")
    episodes = float(text.split()[0].replace(",", ""))
    began = time.perf_counter()
    page.select_option("select[aria-label=Outcome]", "solved")
    page.wait_for_selector(".count >> text=100.0 % solved")
    filtered = time.perf_counter()
    page.keyboard.press("/")
    page.keyboard.type("got key")
    page.wait_for_selector(".row")
    searched = time.perf_counter()
    page.click(".row >> nth=2")
    page.wait_for_selector(".row[aria-selected=true] >> nth=0")
    page.wait_for_selector(".verdict.solved")
    opened = time.perf_counter()
    found = {"filter": filtered - began, "search": searched - filtered, "open": opened - searched}
    return {name: 1000 * seconds for name, seconds in found.items()} | {"episodes": episodes}


def spread(rounds: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    names = [name for name in rounds[0] if name != "episodes"]
    values = {name: [found[name] for found in rounds] for name in names}
    return {
        name: {"median": round(statistics.median(v)), "least": round(min(v)), "most": round(max(v))}
        for name, v in values.items()
    }


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['episodes']:,} episodes, {found['run_mb']} MB; one file of {found['page_mb']} MB, "
        f"written in {found['page_written_s']} s; load {found['load']} on {found['cpus']} CPUs",
        "",
        "| | first paint | first rows | all rows |",
        "|---|---|---|---|",
    ]
    for way, times in found["times_ms"].items():
        cells = [f"{t['median']} ms [{t['least']}, {t['most']}]" for t in times.values()]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    cells = [f"{name} {t['median']} ms" for name, t in found["work_ms"].items()]
    return "\n".join([*lines, "", f"Then, served: {', '.join(cells)}."])


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise SystemExit("Chromium is missing: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        arguments = ["--disable-gpu", "--no-first-run", "--disable-background-networking"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@contextmanager
def served(run: Path) -> Iterator[str]:
    command = [*COMMAND, "view", str(run)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def take_picture(run: Path, file: Path, address: str, keys: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with browser() as chromium, served(run) as place:
        page = chromium.new_page(viewport={"width": 1280, "height": 820})
        page.goto(place + address)
        page.wait_for_selector("html[data-ready=yes]")
        page.wait_for_selector(".verdict")
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_timeout(300)  # for what is drawn in the next frames
        page.screenshot(path=file)


if __name__ == "__main__":
    raise SystemExit(main())
