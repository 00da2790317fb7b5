"""How fast SWE episodes are: reset, step, fork, many at once; beside a git worktree and SWE-ReX.

    swe.py                  everything, 20 rounds
    swe.py --rounds 5       a quick look
    swe.py --publish        also rewrite benchmarks/results/swe.json and docs/swe.md

Every round runs each case once, in turning order, so that load hits all alike. `benchmarks/setup.sh
swe-rex` installs SWE-ReX; where it is missing it is NOT RUN. The peers do less: a worktree and a
shell isolate nothing, and SWE-ReX's local deployment neither. The exit status is 1 when a target is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from sandbox import Case, Table, programs, report, rounds, timed

from harness import RESULTS, ROOT, machine, peer_python, put_section, versions
from turngym.environments.swe.env import SweEnv
from turngym.environments.swe.tasksets import sample_project
from turngym.environments.workspace.host import SandboxHost

TASK = "bugs-sample/train/0"
SHELL = "grep -c def src/tally/money.py"
DOCS = ROOT / "docs" / "swe.md"
AT_ONCE = 20


class Ours:
    """An episode of `swe/bugs-sample`, reset, stepped and forked again and again."""

    def __init__(self) -> None:
        self.host = SandboxHost.lease("bubblewrap")
        self.env = SweEnv(tasks="sample")

    async def reset(self) -> float:
        return await timed(self.env.reset(seed=0, options={"task": TASK}))

    async def step(self) -> float:
        return await timed(self.env.step(self.env.say("bash", command=SHELL)))

    async def fork(self) -> float:
        """Fork an episode in which something was written, until the child can act."""
        path = "src/tally/money.py"
        await self.env.step(self.env.say("bash", command=f"echo '# seen' >> {path}"))
        begun = time.perf_counter()
        [child] = await self.env.fork(1)
        took = time.perf_counter() - begun
        observation, *_ = await child.step(child.say("bash", command=f"tail -1 {path}"))
        assert "# seen" in observation["text"]
        await child.close()
        return took

    async def submit(self) -> float:
        """Judge the repair of an episode of its own."""
        env = SweEnv(tasks="sample")
        try:
            await env.reset(seed=0, options={"task": TASK})
            while (action := env.expert_action()) != env.say("submit"):
                await env.step(action)
            begun = time.perf_counter()
            _, reward, *_ = await env.step(action)
            assert reward == 1.0
            return time.perf_counter() - begun
        finally:
            await env.close()

    async def close(self) -> None:
        await self.env.close()
        await self.host.release()


class Worktree:
    """A git worktree for each episode, and a process for each command."""

    def __init__(self, folder: Path) -> None:
        self.repo, self.place = folder / "repo", folder / "work"
        self.repo.mkdir()
        sample_project().write(self.repo)
        self._git("init", "-q")
        self._git("add", ".")
        self._git("-c", "user.name=b", "-c", "user.email=b@e.org", "commit", "-q", "-m", "one")

    def _git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.repo, check=True, capture_output=True)

    async def reset(self) -> float:
        begun = time.perf_counter()
        if self.place.exists():
            self._git("worktree", "remove", "--force", str(self.place))
        self._git("worktree", "add", "-q", "--detach", str(self.place))
        return time.perf_counter() - begun

    async def step(self) -> float:
        begun = time.perf_counter()
        subprocess.run(["bash", "-c", SHELL], cwd=self.place, check=True, capture_output=True)
        return time.perf_counter() - begun


class Rex:
    """SWE-ReX's local deployment, in its own interpreter; it times its own work."""

    def __init__(self, python: Path, source: Path) -> None:
        script = Path(__file__).with_name("swe_rex_peer.py")
        self._source = source
        self._process = subprocess.Popen(
            [str(python), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._told()

    def _told(self) -> float:
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def _ask(self, line: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._told()

    async def reset(self) -> float:
        return self._ask(f"reset {self._source}")

    async def step(self) -> float:
        return self._ask(SHELL)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


async def at_once(number: int) -> float:
    """Return the seconds of `number` whole episodes at once: reset, look, edit, submit."""

    async def episode() -> None:
        env = SweEnv(tasks="sample")
        try:
            await env.reset(seed=0, options={"task": TASK})
            await env.step(env.say("bash", command=SHELL))
            is_over = False
            while not is_over:
                _, reward, is_over, _, _ = await env.step(env.expert_action())
            assert reward == 1.0
        finally:
            await env.close()

    begun = time.perf_counter()
    await asyncio.gather(*(episode() for _ in range(number)))
    return time.perf_counter() - begun


async def measure(table: Table, count: int) -> None:
    """Measure everything."""
    ours, python, rex = Ours(), peer_python("swe-rex"), None
    with tempfile.TemporaryDirectory() as folder:
        tree = Worktree(Path(folder))
        cases: dict[str, Case] = {
            "reset": ours.reset, "step": ours.step, "fork": ours.fork, "submit": ours.submit,
            "tree reset": tree.reset, "tree step": tree.step,
        }  # fmt: skip
        if python is not None:
            rex = Rex(python, tree.repo)
            cases |= {"rex reset": rex.reset, "rex step": rex.step}
        await ours.reset()
        await tree.reset()
        try:
            found = await rounds(cases, count)
        finally:
            if rex is not None:
                rex.close()
    tell(table, found)
    seconds = await at_once(AT_ONCE)
    table.add(f"{AT_ONCE} whole episodes at once, judged", seconds, "s")
    await ours.close()


def tell(table: Table, found: dict[str, list[float]]) -> None:
    """Note the medians, and how we compare."""
    table.time("reset", found["reset"])
    table.time(f"step: `{SHELL}`", found["step"])
    table.time("git worktree: reset", found["tree reset"])
    table.time("git worktree: step, a plain process", found["tree step"])
    if "rex step" in found:
        table.time("SWE-ReX local: reset, session and upload", found["rex reset"])
        table.time("SWE-ReX local: step", found["rex step"])
        table.faster("reset: SWE-ReX / ours", found["rex reset"], found["reset"], least=1)
        table.faster("step: SWE-ReX / ours", found["rex step"], found["step"], least=1)
    else:
        table.not_run("SWE-ReX local", "benchmarks/setup.sh swe-rex")
    fork = sorted(found["fork"])[len(found["fork"]) // 2]
    table.most("fork in mid-episode, p50", 1e3 * fork, "ms", 100)
    table.time("submit: judged by 108 tests in four rounds", found["submit"])


def main() -> int:
    """Run the benchmark; 0 when every target that was measured is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args()
    table, before = Table(), os.getloadavg()[0]
    asyncio.run(measure(table, arguments.rounds))
    record = {
        "machine": machine(),
        "user": "root" if os.geteuid() == 0 else "a plain user",
        "rounds": arguments.rounds,
        "versions": versions("turngym", "pytest") | programs(),
        "load_average": [round(before, 2), round(os.getloadavg()[0], 2)],
        "rows": table.rows,
    }
    if arguments.publish:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "swe.json").write_text(json.dumps(record, indent=2) + "\n")
        put_section(DOCS, "speed", report(record))
    return int(any(row["verdict"] == "missed" for row in table.rows))


if __name__ == "__main__":
    sys.exit(main())
