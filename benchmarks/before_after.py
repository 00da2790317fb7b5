"""Published speeds of two source trees, side by side: what a rebuilding made faster or slower.

    before_after.py --before TREE [--after TREE] [--rounds 5] [--only engine,web] [--prefix CMD]
    before_after.py --publish    writes the table of what was measured into docs/benchmarks.md

Each tree runs the benchmarks that it has itself, with its own source, under this interpreter, in
fresh processes: before, after, before, after. ``--prefix`` goes before each command. What is
measured is kept in results/before_after.json by part, so that parts can be measured apart. Rows
of peers (GEM, transformers, TRL, a raw shell) are the same program on both sides: they show what
the machine alone makes of a ratio.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, child_environment, machine, put_section, quartiles, versions

KEPT = RESULTS / "before_after.json"
PAGE = ROOT / "docs" / "benchmarks.md"
Numbers = dict[str, float]
SAME = 0.1
"""A ratio as near to 1 is called the same, as most of peers are."""


def script(tree: Path, name: str) -> Path:
    """Return the benchmark called ``name`` of a tree, whatever room it is in."""
    found = [one for one in (tree / "benchmarks").rglob(name) if ".venv" not in one.parts]
    return found[0]


def call(tree: Path, prefix: list[str], *command: str) -> Any:
    """Run a program of the tree in a fresh process; return the JSON that it prints last.

    Raises:
        SystemExit: It failed; with the end of what it said.
    """
    folders = {str(one.parent) for one in (tree / "benchmarks").rglob("*.py")}
    path = os.pathsep.join([str(tree / "src"), *sorted(f for f in folders if ".venv" not in f)])
    done = subprocess.run(
        [*prefix, sys.executable, *command],
        env={**child_environment(), "PYTHONPATH": path}, cwd=tempfile.gettempdir(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{tree}: {shlex.join(command)}:\n{done.stderr[-3000:]}")
    text = done.stdout
    return json.loads(text if text.startswith("{\n") else text.strip().splitlines()[-1])


def medians(result: Any) -> Numbers:
    """Return the medians of a part of ``spine.py`` by name."""
    return {row["name"]: row["median"] for row in result["measurements"]}


def own(probe: str) -> Callable[[Path, list[str]], Numbers]:
    """Return what runs a probe of this file with the source of a tree."""

    def run(tree: Path, prefix: list[str]) -> Numbers:
        found: Numbers = call(tree, prefix, __file__, "--before", str(tree), "--probe", probe)
        return found

    return run


def turn(tree: Path, prefix: list[str]) -> Numbers:
    trace = str(ROOT / "scripts" / "house_trace.py")
    options = ("--repeats", "3", "--clock", "cpu")
    found = medians(call(tree, prefix, str(script(tree, "turns.py")), *options))
    return found | {"awaited": call(tree, prefix, trace, "step", tempfile.gettempdir())}


def engine(tree: Path, prefix: list[str]) -> Numbers:
    options = ("--repeats", "1", "--clock", "cpu")
    return medians(call(tree, prefix, str(script(tree, "generation.py")), *options))


def scheduler(tree: Path, prefix: list[str]) -> Numbers:
    name = "bound" if "measure_bound" in script(tree, "scheduler.py").read_text() else "oracle"
    options = ("--quick", "--json", "--only", f"cost,{name}")
    found = call(tree, prefix, str(script(tree, "scheduler.py")), *options)
    cost = found["cost"]
    whole = cost["cpu_us_per_turn"] + cost["simulated_episodes_alone_us"]
    return {"turns": 1e6 / whole, "bound": found[f"wall_over_{name}"]}


def web(tree: Path, prefix: list[str]) -> Numbers:
    options = ("--episodes", "3", "--concurrency", "8", "--side")
    ours = call(tree, prefix, str(script(tree, "web.py")), *options, "ours")
    many = call(tree, prefix, str(script(tree, "web.py")), *options, "many")
    # Means: steps that end an episode, most of these, and others differ by a factor of five.
    times = {name: 1e3 * statistics.fmean(ours[name]) for name in ("reset", "step")}
    return times | {"many": many["all_steps_per_s"]}


def sandbox(tree: Path, prefix: list[str]) -> Numbers:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        code = (
            "import runpy, sys; sys.argv = sys.argv[1:]\n"
            "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
            "except SystemExit: print('{}')"  # its status says whether targets are met
        )
        at = str(script(tree, "sandbox.py"))
        call(tree, prefix, "-c", code, at, "--rounds", "15", "--json", file.name)
        rows = json.loads(Path(file.name).read_text())["rows"]
    return {row["measure"]: row["value"] for row in rows if "value" in row}


# Probes: each runs in a process that has the tree's source and benchmarks on its path


def probe_import(tree: Path) -> Numbers:
    code = "import sys; n = len(sys.modules); import turngym; print(len(sys.modules) - n)"
    walls = []
    for _ in range(8):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        walls.append(time.perf_counter() - began)
    return {"import": statistics.median(walls[1:]), "modules": int(done.stdout)}


def probe_size(tree: Path) -> Numbers:
    """Megabytes of the wheel, and of what is installed with and without what it requires."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "-w", folder, str(tree)], check=True, capture_output=True)
        wheel = next(Path(folder).glob("*.whl"))
        size = wheel.stat().st_size
        into = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*into, f"{folder}/in", str(wheel)], check=True, capture_output=True)
        installed = sum(one.stat().st_size for one in Path(folder, "in").rglob("*.*"))
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    core = required(project["dependencies"])
    train = core | required(project["optional-dependencies"]["train"])
    sizes = {name: installed + sum(map(files_bytes, them)) for name, them in
             (("core", core), ("train", train))}  # fmt: skip
    return {name: n / 1e6 for name, n in {"wheel": size, "alone": installed, **sizes}.items()}


def required(requirements: list[str]) -> set[str]:
    """Return the installed packages that these requirements lead to, extras left out."""
    found, todo = set[str](), list(requirements)
    while todo:
        text = todo.pop()
        name = re.split(r"[^\w.-]", text)[0].lower().replace("_", "-")
        if name in found or "extra ==" in text:
            continue
        try:
            todo += importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another system or version of Python
        found.add(name)
    return found


def files_bytes(package: str) -> int:
    files = importlib.metadata.files(package) or []
    return sum(Path(str(one.locate())).stat().st_size for one in files if one.locate().exists())


def probe_search(tree: Path) -> Numbers:
    import search  # of the tree

    clock = time.process_time
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "corpus")
        search._write_corpus(place, 10_000)
        digest = hashlib.sha256((place / "corpus.jsonl").read_bytes()).hexdigest()
        build = search._child("build", str(place), "sqlite", clock)["build_s"]
        queries = json.loads((place / "queries.json").read_text())
        ask = search._asker(place, "sqlite")
        asked = {}
        for (
            kind,
            texts,
        ) in queries.items():  # all of them: the median lies where kinds of names meet
            ask(texts[0])
            began = clock()
            for text in texts:
                ask(text)
            asked[kind] = len(texts) / (clock() - began)
    found = search._child("episodes", "", "3", clock)
    return {
        "build": build,
        "names": asked["name"],
        "questions": asked["question"],
        "turns": statistics.median(found["turns_per_s"]),
        "rollout": statistics.median(found["rollout_turns_per_s"]),
        "reset": found["reset_ms"],
        "corpus": int(digest[:12], 16),
    }


def probe_update(tree: Path) -> Numbers:
    import training_step as parts  # of the tree, as what it imports

    by_name = {one.name: one for one in (tree / "benchmarks").rglob("*.py")}
    sides = str(by_name.get("vs_trl.py") or by_name["sides.py"])
    found: Numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        parts.save_model_dir(parts.make_model("96x3"), parts.make_tokenizer(), Path(folder, "m"))
        for batch in ("multi-turn", "one-turn"):
            for side in ("turngym", "TRL") if "trl" in versions("trl") else ("turngym",):
                out = Path(folder, "out.json")
                command = [sys.executable, sides, "--side", side, "--batch", batch]
                command += ["--model", f"{folder}/m", "--output", str(out), "--clock", "cpu"]
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
                for key, value in json.loads(out.read_text()).items():
                    found[f"{side} {batch} {key}"] = value
    return found


@dataclass(frozen=True)
class Part:
    """What is measured together, and its rows: key, words, unit; a unit per second is a rate."""

    measure: Callable[[Path, list[str]], Numbers]
    rows: tuple[tuple[str, str, str], ...]


PARTS = {
    "import": Part(own("import"), (
        ("import", "a fresh interpreter with `import turngym`", "s"),
        ("modules", "modules that it loads", "modules"))),
    "size": Part(own("size"), (
        ("wheel", "wheel", "MB"), ("alone", "installed, alone", "MB"),
        ("core", "installed, with what the core requires", "MB"),
        ("train", "installed, with `[train]`", "MB"))),
    "turn": Part(turn, (
        ("turngym wrapped", "turn by `gymnasium.make`", "us"),
        ("turngym bare", "turn of the bare environment", "us"),
        ("awaited", "awaited empty step, as rollouts get it", "us"),
        ("turngym wrapped, reset", "reset by `gymnasium.make`", "us"),
        ("turngym, SyncVectorEnv x 8", "turn in `SyncVectorEnv` of 8", "us"),
        ("turngym, AsyncVectorEnv x 8", "turn in `AsyncVectorEnv` of 8", "us"),
        ("GEM raw", "*peer:* turn of GEM", "us"),
        ("Gymnasium over integers, SyncVectorEnv x 8",
         "*peer:* Gymnasium's `SyncVectorEnv` of 8", "us"))),
    "engine": Part(engine, (
        ("96x3: engine", "local engine, 96x3", "tokens/s"),
        ("128x4: engine", "local engine, 128x4", "tokens/s"),
        ("96x3: transformers generate", "*peer:* `transformers` generate, 96x3", "tokens/s"))),
    "update": Part(own("update"), (
        ("turngym multi-turn update_s", "update with rollout, several turns", "s"),
        ("turngym multi-turn without_rollout_s", "update alone, several turns", "s"),
        ("turngym one-turn update_s", "update with rollout, one turn", "s"),
        ("turngym one-turn without_rollout_s", "update alone, one turn", "s"),
        ("turngym multi-turn peak_mb", "peak memory of it, several turns", "MB"),
        ("TRL multi-turn update_s", "*peer:* TRL, update with rollout, several turns", "s"))),
    "scheduler": Part(scheduler, (
        ("turns", "scheduler with a ledger, simulated engine, of processor time", "turns/s"),
        ("bound", "wall time over the shortest possible, 256 slots", "times"))),
    "search": Part(own("search"), (
        ("names", "SQLite, 10,000 articles, a name", "queries/s"),
        ("questions", "the same, a whole question", "queries/s"),
        ("build", "its index, built", "s"),
        ("turns", "200 episodes of `search/world-2hop-hard`", "turns/s"),
        ("rollout", "the same by the rollout machinery", "turns/s"),
        ("reset", "a reset of it", "ms"))),
    "web": Part(web, (
        ("step", "MiniWoB, a step", "ms"), ("reset", "MiniWoB, a reset", "ms"),
        ("many", "8 episodes of MiniWoB at once", "steps/s"))),
    "sandbox": Part(sandbox, (
        ("start, cold, until the guest answers, p50", "sandbox: start, cold", "ms"),
        ("start out of a warm pool, p50", "sandbox: start out of a warm pool", "ms"),
        ("`bash -c /bin/true` in a sandbox, p50", "sandbox: `bash -c /bin/true`", "ms"),
        ("fork, p50", "sandbox: fork", "ms"),
        ("100 sandboxes up", "sandbox: 100 at once, until all are up", "s"),
        ("`bash -c /bin/true`, p50", "*peer:* `bash -c /bin/true` without a sandbox", "ms"))),
}  # fmt: skip


def commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measure(options: argparse.Namespace) -> None:
    """Measure the parts that are asked for, tree after tree, and keep what was found."""
    trees = {"before": options.before.resolve(), "after": options.after.resolve()}
    for name in options.only.split(","):
        load = os.getloadavg()[0]
        values: dict[str, list[Numbers]] = {"before": [], "after": []}
        for _ in range(options.rounds):
            for side, tree in trees.items():
                values[side].append(PARTS[name].measure(tree, shlex.split(options.prefix)))
                print(name, side, values[side][-1], file=sys.stderr)
        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        kept[name] = {
            "date": time.strftime("%Y-%m-%d"),
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
            "commits": {side: commit(tree) for side, tree in trees.items()}, "machine": machine(),
            "versions": versions("gymnasium", "torch", "transformers", "trl", "gem-llm"), **values,
        }  # fmt: skip
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def row(part: dict[str, Any], key: str, words: str, unit: str) -> str:
    before, after = ([one[key] for one in part[side]] for side in ("before", "after"))
    is_rate = unit.endswith("/s")
    gains = [b / a if is_rate else a / b for b, a in zip(before, after, strict=True)]
    gain, (low, high) = statistics.median(gains), quartiles(gains)
    verdict = "better" if gain < 1 else "**worse**"
    if abs(gain - 1) < SAME:
        verdict = "same"
    elif low <= 1 <= high:
        verdict = "unclear"
    verdict = "" if words.startswith("*peer") else verdict
    cells = [f"{statistics.median(them):.4g}" for them in (before, after)]
    spread = f"{gain:.2f} ({low:.2f} to {high:.2f})"
    return f"| {words} | {unit} | {' | '.join(cells)} | {spread} | {verdict} |"


def report(kept: dict[str, Any]) -> str:
    """Return the table in Markdown; a ratio below 1 is a gain, of times and of rates alike."""
    some = next(iter(kept.values()))
    dates = sorted({part["date"] for part in kept.values()})
    loads = [load for part in kept.values() for load in part["load"]]
    after = dict.fromkeys(part["commits"]["after"] for part in kept.values())
    rounds = [len(part["after"]) for name, part in kept.items() if name != "size"]
    made = some["machine"]
    lines = [
        f"{' and '.join(dates)}, {made['cpu']}, {made['cores']} cores, Python {made['python']}, "
        f"{some['commits']['before']} against {', '.join(after)}, "
        f"{min(rounds)} to {max(rounds)} rounds, load {min(loads)} to {max(loads)}; "
        + ", ".join(f"{name} {number}" for name, number in some["versions"].items()) + ".",
        "",
        "| measured | unit | before | after | cost, after / before (quartiles) | |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, part in PARTS.items():
        if name in kept:
            lines += [
                row(kept[name], *one) for one in part.rows if one[0] in kept[name]["after"][0]
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, help="a checkout of the older commit")
    parser.add_argument("--after", type=Path, default=ROOT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--prefix", default="", help="what each command is run through")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        sys.path.remove(str(Path(__file__).parent))  # benchmarks are those of the tree
        del sys.modules["harness"]
        probes = {"import": probe_import, "size": probe_size, "search": probe_search}
        print(json.dumps({**probes, "update": probe_update}[options.probe](options.before)))
        return
    if options.before:
        measure(options)
    if options.publish:
        put_section(PAGE, "before-after", report(json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
