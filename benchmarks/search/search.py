"""Measure the search engines beside bare libraries, and episodes of search per second.

    search.py                        10,000 and 100,000 articles
    search.py --sizes 10k,100k,1m    a million too: about ten minutes and 5 GB of disk
    search.py --work DIR             keep corpora and indexes there, and use those that are there
    search.py --repeats 1            a quick look
    search.py --clock cpu            processor time, for a machine that is busy
    search.py --publish              also rewrite benchmarks/results/search.json and docs/search.md

Every engine is built and queried in a process of its own, so that its memory can be told. Queries
are names (what an expert looks up) and whole questions (many frequent words), half of each, and no
result is remembered. What is "alone" is the library as its own documentation shows it, without our
code (search_peers.py).
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import search_peers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import RESULTS, ROOT, child_environment, machine, put_section, quartiles, versions

SIZES = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000}
OURS = ("sqlite", "tantivy", "bm25s")
ENGINES = (*OURS, *search_peers.PEERS)
EPISODES = 200
GOAL_TURNS = 2_000
DOCS = ROOT / "docs" / "search.md"

_WORLD_ARTICLES = 10_000
_QUERIES = 100
_PATIENCE_S = 10.0
"""A slow engine is asked fewer of the queries."""

Record = dict[str, Any]
Ask = search_peers.Ask
Clock = Callable[[], float]
"""Seconds from an arbitrary start."""


def main() -> int:
    """Measure what the arguments ask for; 0 when everything ran."""
    arguments = _arguments()
    clock = time.thread_time if arguments.clock == "cpu" else time.perf_counter
    if arguments.child:
        sys.stdout.write(json.dumps(_child(*arguments.child, clock)))
        return 0
    sizes = [SIZES[name] for name in arguments.sizes.split(",")]
    before = os.getloadavg()[0]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            place = Path(arguments.work or folder, str(size))
            if not (place / "queries.json").exists():
                _write_corpus(place, size)
            rows += _measure_size(place, size, arguments)
    episodes = _in_child(arguments.clock, "episodes", "", str(arguments.repeats))
    result = {
        "machine": machine(),
        "clock": arguments.clock,
        "repeats": arguments.repeats,
        "versions": versions("turngym", "tantivy", "bm25s"),
        "load_average": [round(before, 2), round(os.getloadavg()[0], 2)],
        "engines": rows,
        "episodes": episodes,
    }
    text = report(result)
    sys.stdout.write(text + "\n")
    if arguments.publish:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "search.json").write_text(json.dumps(result, indent=2) + "\n")
        put_section(DOCS, "speed", text)
    return 0


def report(result: Record) -> str:
    """Return the tables in Markdown."""
    lines = [
        f"{result['machine']['cores']} cores of {result['machine']['cpu']}, Python "
        f"{result['machine']['python']}, load {result['load_average'][0]} to "
        f"{result['load_average'][1]}, {result['clock']} time, {result['repeats']} repeats; "
        + ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        + ".",
        "",
        "| articles | engine | build s | disk MB | RSS MB | private MB | name p50 ms | p95 "
        "| question p50 ms | p95 | 2 threads |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["engines"]:
        times = [row[f"{kind}_{part}"] for kind in ("name", "question") for part in ("p50", "p95")]
        numbers = " | ".join(f"{value:.3f}" if value < 1 else f"{value:.1f}" for value in times)
        build = f"{row['build_s']:.1f} | {row['disk_mb']:.0f}"
        lines.append(
            f"| {row['size']:,} | {row['engine']} | {build} | {row['rss_mb']:.0f} | "
            f"{row['private_mb']:.0f} | {numbers} | ×{row['speedup_2_threads']:.2f} |"
        )
    found = result["episodes"]
    low, high = quartiles(found["turns_per_s"])
    rate = statistics.median(found["turns_per_s"])
    lines += [
        "",
        f"{EPISODES} episodes at once in one process, `search/world-2hop-hard` (10,000 articles), "
        f"the expert playing: **{rate:,.0f} environment turns per second**"
        f" [{low:,.0f}, {high:,.0f}] (goal: {GOAL_TURNS:,}); with the rollout machinery "
        f"around it {statistics.median(found['rollout_turns_per_s']):,.0f}; a reset takes "
        f"{found['reset_ms']:.1f} ms.",
    ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="10k,100k", help="of " + ",".join(SIZES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--work", type=Path, help="folder of corpora and indexes to keep")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "PLACE", "MORE"))
    arguments = parser.parse_args()
    unknown = set(arguments.sizes.split(",")) - set(SIZES)
    if unknown:
        parser.error(f"unknown size {unknown.pop()!r}; known: {', '.join(SIZES)}")
    return arguments


def _write_corpus(place: Path, size: int) -> None:
    """Write articles of several worlds, and queries about them."""
    from turngym.environments.search.world import World, WorldSpec
    from turngym.environments.search.world_env import sample_question

    place.mkdir(parents=True)
    rng, names, questions = Random(size), [], []
    with (place / "corpus.jsonl").open("w") as file:
        for number in range(max(1, size // _WORLD_ARTICLES)):
            spec = WorldSpec(
                seed=number, articles=_WORLD_ARTICLES, paraphrase=True, namesakes=0.6, notes=0.3
            )
            made = World(spec)
            for one in made.documents:
                value = {"id": f"{number}-{one.id}", "title": one.title, "text": one.text}
                file.write(json.dumps(value) + "\n")
            names += [rng.choice(made.entities).name for _ in range(_QUERIES)]
            if number < 2:
                drawn = [
                    sample_question(made, "2hop", rng, k=5, snippet_words=24)
                    for _ in range(_QUERIES // 2)
                ]
                questions += [one.text for one in drawn if one is not None]
    queries = {"name": rng.sample(names, _QUERIES), "question": questions[:_QUERIES]}
    (place / "queries.json").write_text(json.dumps(queries))


def _measure_size(place: Path, size: int, arguments: argparse.Namespace) -> list[Record]:
    built = {}
    for name in ENGINES:
        known = place / f"{name}.json"
        if not known.exists():
            known.write_text(json.dumps(_in_child(arguments.clock, "build", str(place), name)))
        built[name] = json.loads(known.read_text())
    asked: dict[str, list[Record]] = {name: [] for name in ENGINES}
    for _ in range(arguments.repeats):
        for name in ENGINES:  # in turn, so that a busy moment hits all alike
            asked[name].append(_in_child(arguments.clock, "ask", str(place), name))
    rows = []
    for name in ENGINES:
        merged = {key: statistics.median(one[key] for one in asked[name]) for key in asked[name][0]}
        rows.append({"size": size, "engine": name, **built[name], **merged})
    return rows


def _in_child(clock: str, *what: str) -> Record:
    command = [sys.executable, __file__, "--clock", clock, "--child", *what]
    done = subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"search.py {' '.join(what)} failed:\n{done.stderr}")
    record: Record = json.loads(done.stdout)
    return record


def _child(what: str, place: str, more: str, clock: Clock) -> Record:
    if what == "build":
        return _build(Path(place), more, clock)
    if what == "ask":
        return _ask_all(Path(place), more, clock)
    return _episodes(int(more), clock)


def _build(place: Path, engine: str, clock: Clock) -> Record:
    """Build one engine over the corpus; our sqlite also stores the documents for our others."""
    from turngym.environments.search.corpus import JsonlSource
    from turngym.environments.search.index import build_index

    folder = place / "index"
    if clock is time.thread_time:  # some engines build in threads of their own
        clock = time.process_time
    started = clock()
    if engine in search_peers.PEERS:
        own = search_peers.PEERS[engine].build(place)
    elif engine == "sqlite":
        build_index(JsonlSource(place / "corpus.jsonl"), folder)
        own = folder
    else:
        own = folder / engine
        _engine_parts(engine)[0](folder / "documents.sqlite", own)
    seconds = clock() - started
    files = [own] if own.is_file() else [file for file in own.rglob("*") if file.is_file()]
    return {"build_s": seconds, "disk_mb": sum(file.stat().st_size for file in files) / 1e6}


def _engine_parts(engine: str) -> list[Any]:
    """Return what builds an index of one of our other engines, and what opens it."""
    from turngym.environments.search.index import ENGINES

    return [pkgutil.resolve_name(name) for name in ENGINES[engine]]


def _ask_all(place: Path, name: str, clock: Clock) -> Record:
    queries = json.loads((place / "queries.json").read_text())
    before = _memory_mb()
    ask = _asker(place, name)
    record: Record = {}
    asked: list[str] = []
    for kind, texts in queries.items():
        ask(texts[0])
        times: list[float] = []
        for text in texts:
            if sum(times) > 1e3 * _PATIENCE_S:
                break
            started = clock()
            ask(text)
            times.append(1e3 * (clock() - started))
        asked += texts[: len(times)]
        times.sort()
        record[f"{kind}_p50"] = times[len(times) // 2]
        record[f"{kind}_p95"] = times[int(0.95 * len(times))]
    for key, value in _memory_mb().items():
        record[key] = value - before[key]
    record["speedup_2_threads"] = _seconds(ask, asked, 1) / _seconds(ask, asked, 2)
    return record


def _seconds(ask: Ask, texts: Sequence[str], threads: int) -> float:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(ask, texts[:threads]))
        started = time.perf_counter()
        list(pool.map(ask, texts))
        return time.perf_counter() - started


def _memory_mb() -> dict[str, float]:
    """Return the resident memory of this process, and how much of it no file backs."""
    wanted = {"VmRSS:": "rss_mb", "RssAnon:": "private_mb"}
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {wanted[line[0]]: int(line[1]) / 1e3 for line in lines if line and line[0] in wanted}


def _asker(place: Path, name: str) -> Ask:
    """Return a function that answers one query without remembering any."""
    if name in search_peers.PEERS:
        return search_peers.PEERS[name].open(place)
    database = place / "index" / "documents.sqlite"
    if name == "sqlite":
        from turngym.environments.search.backends.sqlite import SqliteBackend

        backend: Any = SqliteBackend(database)
    else:
        backend = _engine_parts(name)[1](database, place / "index" / name)

    def ask(text: str) -> object:
        backend.forget()
        return backend.search(text, search_peers.RESULTS)

    return ask


def _episodes(repeats: int, clock: Clock) -> Record:
    """Play many episodes in turn, one turn of each at a time, and the same by the rollouts."""
    from turngym.environments.search.world_env import WorldEnv

    envs = [WorldEnv(kind="2hop", difficulty="hard") for _ in range(EPISODES)]
    envs[0].reset(seed=0)  # builds the world
    rates, rollout_rates, resets = [], [], []
    for repeat in range(repeats):
        started = clock()
        for number, env in enumerate(envs):
            env.reset(options={"task": env.task("train", repeat * EPISODES + number)})
        resets.append(clock() - started)
        backend: Any = envs[0].backend
        backend.forget()  # what the reset proved about a question shall not help
        rates.append(_turns_per_second(envs, clock))
        rollout_rates.append(_rollout_turns_per_second(repeat, clock))
    return {
        "turns_per_s": rates,
        "rollout_turns_per_s": rollout_rates,
        "reset_ms": 1e3 * statistics.median(resets) / EPISODES,
    }


def _turns_per_second(envs: Sequence[Any], clock: Clock) -> float:
    alive, turns, spent = list(envs), 0, 0.0
    while alive:
        actions = [env.expert_action() for env in alive]
        started = clock()
        over = [env.step(action)[2] for env, action in zip(alive, actions, strict=True)]
        spent += clock() - started
        turns += len(alive)
        alive = [env for env, done in zip(alive, over, strict=True) if not done]
    return turns / spent


def _rollout_turns_per_second(repeat: int, clock: Clock) -> float:
    import asyncio

    import turngym
    from turngym.agents.scripted import ExpertPolicy
    from turngym.rollouts.episode import group_specs
    from turngym.rollouts.evaluation.evaluate import collect

    name = "search/world-2hop-hard"
    task = turngym.make(name).get_wrapper_attr("task")

    def specs() -> Iterator[Any]:
        for number in range(EPISODES):
            chosen = task("test", repeat * EPISODES + number)
            yield from group_specs(name, chosen, seed=repeat, group_size=1)

    started = clock()
    played = asyncio.run(
        collect(lambda: turngym.make(name), ExpertPolicy(), list(specs()), concurrency=EPISODES)
    )
    return sum(len(one.turns) for one in played) / (clock() - started)


if __name__ == "__main__":
    sys.exit(main())
