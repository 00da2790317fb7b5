"""Learning while episodes go on, beside playing and learning in turns: time, and what is learned.

One small game whose environment waits before it answers, as browsers, compilers and remote machines
do, without using the processor. The same task, the same number of updates, the same loss
(decoupled PPO) and the same seeds, once in turns (``sync``) and once overlapped with a staleness of
1 and of 4. The same for IGPO, which scores the true answer after every turn, and for ArCHer, which
trains critics and samples actions of its own: their credit runs beside the episodes. Only
reinforcement is timed; evaluations do not wait.

    overlap.py                      five seeds, half an hour when it is quiet
    overlap.py --seeds 1 --steps 6  a look
    overlap.py --json FILE          also write every number; runs that the file has already are
                                    not repeated
    overlap.py --served             engine and learner in processes of their own: the engine is our
                                    policy server; GRPO and IGPO, in turns and with a staleness of
                                    1; an hour

Goals: the overlapped runs take at most 1 / 1.5 of the time (1 / 2.5 of it with ``--served``), and
end with a success that is no worse than the mean of the runs in turns minus its 95 % interval.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import turngym
from turngym.config import load_config
from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import TextGame
from turngym.rollouts.evaluation.statistics import half_width
from turngym.trainers.credit.base import Credit
from turngym.trainers.loop import train
from turngym.trainers.runs.episode_runner import EpisodeRunner
from turngym.trainers.runs.group_source import Chosen
from turngym.trainers.runs.run import Run
from turngym.trainers.settings.train import TrainConfig

MEANING = {"red": "stop", "amber": "wait", "green": "go", "blue": "turn"}
LIGHTS = 3
GAME = "bench/Lights-v0"
MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "staleness 1": {"mode": "overlap", "staleness": 1},
    "staleness 4": {"mode": "overlap", "staleness": 4},
}
_ARCHER: dict[str, Any] = {
    "algo": {
        "advantage": {"actor_turns": 96, "critic": {"steps_per_update": 10, "batch_turns": 64}}
    },
    "learner": {"num_minibatches": 1, "lr": 3e-3},
    "regularizer": {"entropy_coefficient": 0},
}
SERVED: dict[str, Any] = {
    "engine": {"type": "vllm", "server": "turngym"},
    "model": {"hidden": 96, "layers": 3, "heads": 3},
    "warm_start": {"target_success": 0.2, "max_steps": 240},
    # Without a warm-up of the rate the first updates can unlearn the commands: the first steps of
    # Adam are as long as any.
    "learner": {"lr": 5e-4, "lr_warmup_steps": 12},
    # A small group waits less for its slowest attempt, so that fewer turns get too old.
    "rollout": {
        "groups_per_step": 24,
        "group_size": 4,
        "concurrency": 192,
        "calls_at_once": 192,
    },
}
# Episodes begin whenever others end, as many as two updates train on, and those that get too old
# are dropped. Were they counted until they are trained on, as usual, a step would take half as long
# as the slowest of its episodes, or longer.
_WINDOW = {"admission": "windowed", "pace": False, "buffer_groups": 48}
METHODS: dict[str, list[dict[str, Any]]] = {
    "decoupled_ppo": [],
    "igpo": [{"algo": "igpo"}, {"algo": {"loss": {"correction": {"weight": "truncate"}}}}],
    "archer": [{"algo": "archer"}, _ARCHER],
}
PLAYED = [("decoupled_ppo", mode) for mode in MODES] + [
    (algo, mode) for algo in ("igpo", "archer") for mode in ("sync", "staleness 1")
]
"""Methods and modes, those of one method together and ``sync`` first."""
PLAYED_SERVED = [(a, m) for a in ("decoupled_ppo", "igpo") for m in ("sync", "staleness 1")]
SETTINGS: dict[str, Any] = {
    "env": {"id": GAME},
    "model": {"hidden": 48, "layers": 2, "heads": 2, "context": 96, "vocab_size": 280},
    "warm_start": {
        "episodes": 128,
        "expert_noise": 0.5,
        "max_steps": 120,
        "evaluate_every": 20,
        "lr": 3e-3,
        "target_success": 0.1,
    },
    "algo": "decoupled_ppo",
    "learner": {"lr": 1.5e-3, "lr_schedule": "cosine", "num_minibatches": 2},
    "regularizer": {"entropy_coefficient": 0.01},
    "rollout": {
        "groups_per_step": 12,
        "group_size": 8,
        "concurrency": 96,
        "calls_at_once": 96,  # they sleep
        "max_new_tokens": 6,
    },
    "evaluation": {"every": 1000, "validation_tasks": 32, "held_out_tasks": 256},
    "run": {"checkpoint_every": 1000, "tensorboard": False},
}


class LightsEnv(TextGame):
    """Three lights, one after the other.

    Action: ``stop``, ``wait``, ``go`` or ``turn``.
    Observation: the colour of the light.
    Reward: 1 after the last light when all answers were right, else 0.
    Start: random colours.
    End: terminated after the last answer.
    """

    name = "lights"
    rules = "Answer each light."
    commands = Commands({action: action for action in MEANING.values()})
    state: tuple[list[str], list[bool]]

    def new_game(self, rng: np.random.Generator) -> tuple[list[str], list[bool]]:
        """Draw the colours."""
        return [str(c) for c in rng.choice(list(MEANING), size=LIGHTS)], []

    def opening_info(self) -> dict[str, Any]:
        """Return the right answer to the last light, the truth that IGPO asks for."""
        return {"ground_truth": MEANING[self.state[0][-1]]}

    def answer(self, ground_truth: str) -> str:
        """Return the truth, which is an action itself."""
        return ground_truth

    def describe(self) -> str:
        """Return the light that is on."""
        return f"light {self.state[0][len(self.state[1])]}."

    def turn(self, action: Action) -> Outcome:
        """Judge one answer and show the next light."""
        colours, right = self.state
        right.append(action.name == MEANING[colours[len(right)]])
        if len(right) < LIGHTS:
            return Outcome(text=self.describe())
        return Outcome(text="over.", reward=float(all(right)), terminated=True)

    def score(self) -> float:
        """Return 1 when every answer was right and all were given."""
        return float(len(self.state[1]) == LIGHTS and all(self.state[1]))

    def legal_actions(self) -> list[str]:
        """Return the answers."""
        return list(MEANING.values())

    def expert_action(self) -> str:
        """Return the right answer."""
        return MEANING[self.state[0][min(len(self.state[1]), LIGHTS - 1)]]


class Waits:
    """Answers as its environment does, after a log-normal time.

    Its calls are coroutines, which rollouts wait for without holding up others.
    """

    mean_s = 0.0
    """Mean time of one call; 0 for none. Shared by all, so that evaluations can do without."""
    waited_s = 0.0
    decoded_meanwhile = 0
    _rng = np.random.default_rng(0)

    def __init__(self, make_env: Callable[[], Any]) -> None:
        self.env = make_env()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment or its wrappers."""
        return self.env.get_wrapper_attr(name)

    async def close(self) -> None:
        """Close the environment."""
        self.env.close()

    async def reset(self, **arguments: Any) -> Any:
        """Wait, then begin."""
        await self._wait()
        return self.env.reset(**arguments)

    async def step(self, action: Any) -> Any:
        """Wait, then carry out the action."""
        await self._wait()
        return self.env.step(action)

    async def _wait(self) -> None:
        if Waits.mean_s > 0:
            seconds = Waits.mean_s * float(self._rng.lognormal(-0.5, 1.0))
            Waits.waited_s += seconds
            await asyncio.sleep(seconds)


class WaitsInTraining:
    """Lets environments wait while the policy is trained by reinforcement, and at no other time."""

    def __init__(self, mean_s: float) -> None:
        self.busy_s = 0.0
        """Processor time of reinforcement, of this process and of those that it started."""
        self._mean_s = mean_s
        self._from_s: float | None = None

    def phase(self, name: str, total: int | None) -> None:
        """Switch with the phase."""
        Waits.mean_s = self._mean_s if name == "reinforcement" else 0.0
        self._from_s = processor_s() if Waits.mean_s else None

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Note the processor time so far."""
        if self._from_s is not None:
            self.busy_s = processor_s() - self._from_s

    def note(self, text: str) -> None:
        """Do nothing."""


def processor_s() -> float:
    """Return the processor time of this process and of those that it started and that still run."""
    own = time.process_time()
    children = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return own + sum(times.user + times.system for times in children)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run."""

    algo: str
    mode: str
    seed: int
    seconds: float
    """Of reinforcement, without evaluations."""
    rollout_share: float
    """Part of it that the trainer waited for episodes."""
    idle_share: float = math.nan
    """Part of it in which no process computed, were they never busy at once: 1 less processor time
    over wall time. In turns this is the waiting of environments."""
    credit_s: float
    """Of it, in which credit was computed."""
    decoded_meanwhile: int
    """Decode steps that the engine made while credit was computed."""
    waited_s: float
    """What environments waited in all, many at a time."""
    before: float
    after: float
    """Sampled success on 256 held-out tasks."""
    lag: float
    """Mean versions between a trained token and its trainer."""
    waste: float = math.nan
    """Part of the tokens whose fate is known that no update trained on, most of them too old."""
    load: float
    """Load average of the machine, of the last minute."""


def run(
    algo: str, mode: str, seed: int, *, steps: int, latency_s: float, served: bool, folder: Path
) -> Row:
    """Train once and return what it took."""
    own = {"rollout": MODES[mode], "run": {"seed": seed, "steps": steps}}
    layers = [SETTINGS, *METHODS[algo], *([SERVED] if served else []), own]
    if served and mode != "sync":
        layers.append({"rollout": _WINDOW})
    config = load_config(TrainConfig, layers)
    Waits.waited_s, Waits.decoded_meanwhile = 0.0, 0
    progress = WaitsInTraining(latency_s)
    result = train(config, folder, progress=progress)
    rows = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
    laps = [row for row in rows if row["phase"] == "train"]
    parts = {
        name: sum(row.get(name, 0.0) for row in laps)
        for name in ("rollout_s", "credit_s", "update_s")
    }
    metrics = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    lags = [row["train/policy_lag"] for row in metrics if "train/policy_lag" in row]
    wastes = [row["waste/share"] for row in metrics if "waste/share" in row]
    assert result.before.sampled.success is not None
    assert result.after.sampled.success is not None
    return Row(
        algo=algo,
        mode=mode,
        seed=seed,
        seconds=sum(parts.values()),
        rollout_share=parts["rollout_s"] / sum(parts.values()),
        idle_share=1.0 - progress.busy_s / sum(parts.values()),
        credit_s=parts["credit_s"],
        decoded_meanwhile=Waits.decoded_meanwhile,
        waited_s=Waits.waited_s,
        before=result.before.sampled.success,
        after=result.after.sampled.success,
        lag=statistics.mean(lags) if lags else math.nan,
        waste=wastes[-1] if wastes else 0.0,
        load=os.getloadavg()[0],
    )


def summary(rows: list[Row], played: list[tuple[str, str]], *, faster: float) -> dict[str, Any]:
    """Return means by method and mode, ratios to sync and whether the goals are met."""
    found: dict[str, Any] = {}
    for algo, mode in played:
        mine = of(rows, algo, mode)
        success = [row.after for row in mine]
        spread = statistics.stdev(success) if len(success) > 1 else 0.0
        width = half_width(len(success), spread)
        found[f"{algo}, {mode}"] = row = {
            "seconds": statistics.mean(row.seconds for row in mine),
            "waited_for_episodes": statistics.mean(row.rollout_share for row in mine),
            "idle": statistics.mean(row.idle_share for row in mine),
            "credit_s": statistics.mean(row.credit_s for row in mine),
            "decoded_meanwhile": statistics.mean(row.decoded_meanwhile for row in mine),
            "before": statistics.mean(row.before for row in mine),
            "after": statistics.mean(success),
            "after_half_width": None if math.isinf(width) else width,
            "lag": statistics.mean(row.lag for row in mine),
            "waste": statistics.mean(row.waste for row in mine),
        }
        if mode == "sync":
            continue
        sync, in_turns = found[f"{algo}, sync"], of(rows, algo, "sync")
        ratio = statistics.median(
            slow.seconds / fast.seconds for slow, fast in zip(in_turns, mine, strict=True)
        )
        least = sync["after"] - (sync["after_half_width"] or 0.0)
        row |= {
            "times_faster": ratio,
            "fast_enough": ratio >= faster,
            "no_worse": row["after"] >= least,
        }
    return found


def of(rows: list[Row], algo: str, mode: str) -> list[Row]:
    """Return the runs of one method in one mode, by seed."""
    mine = (row for row in rows if (row.algo, row.mode) == (algo, mode))
    return sorted(mine, key=lambda row: row.seed)


def known_rows(file: Path | None, settings: Mapping[str, float]) -> list[Row]:
    """Return the runs that a file has, when they were made with the same settings."""
    if file is None or not file.exists():
        return []
    record = json.loads(file.read_text(encoding="utf-8"))
    return [Row(**row) for row in record["runs"]] if record["settings"] == settings else []


def write(
    file: Path,
    settings: Mapping[str, float],
    rows: list[Row],
    played: list[tuple[str, str]],
    *,
    faster: float,
) -> None:
    """Write every number, and the summary of the seeds that all have."""
    seeds = [{row.seed for row in of(rows, *each)} for each in played]
    whole = [row for row in rows if row.seed in set.intersection(*seeds)]
    record = {
        "settings": settings,
        "runs": [asdict(row) for row in rows],
        "summary": summary(whole, played, faster=faster) if whole else {},
    }
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Run everything, print a table, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--latency", type=float, help="mean seconds of one call: 0.04, or 0.2")
    parser.add_argument("--json", type=Path, help="also write every number here")
    parser.add_argument("--served", action="store_true", help="the engine is a server of its own")
    args = parser.parse_args()
    played, faster = (PLAYED_SERVED, 2.5) if args.served else (PLAYED, 1.5)
    args.latency = args.latency or (0.2 if args.served else 0.04)
    turngym.register(GAME, f"{__name__}:LightsEnv", family="bench", max_turns=LIGHTS + 1)
    made, assign = EpisodeRunner.__init__, Run.assign_credit

    def waiting(runner: EpisodeRunner, *arguments: Any) -> None:
        made(runner, *arguments)
        makers = runner.make_env.items()
        runner.make_env = {env_id: partial(Waits, make) for env_id, make in makers}

    async def counted(run: Run, chosen: Chosen) -> Credit:
        before = run.engine.stats.decode_steps
        credit = await assign(run, chosen)
        Waits.decoded_meanwhile += run.engine.stats.decode_steps - before
        return credit

    EpisodeRunner.__init__ = waiting  # type: ignore[method-assign]
    Run.assign_credit = counted  # type: ignore[method-assign]
    settings = {"steps": args.steps, "latency_s": args.latency, "served": args.served}
    rows = known_rows(args.json, settings)
    with tempfile.TemporaryDirectory() as place:
        for seed in range(args.seeds):
            for algo, mode in played:  # one after the other, so that a busy moment hits all alike
                if any(row.seed == seed for row in of(rows, algo, mode)):
                    continue
                folder = Path(place) / f"{algo}-{mode.replace(' ', '-')}-{seed}"
                row = run(
                    algo,
                    mode,
                    seed,
                    steps=args.steps,
                    latency_s=args.latency,
                    served=args.served,
                    folder=folder,
                )
                rows.append(row)
                print(
                    f"{algo:13} {mode:11} seed {seed}: {row.seconds:5.1f} s,"
                    f" {row.rollout_share:3.0%} for episodes, {row.idle_share:3.0%} idle,"
                    f" {row.credit_s:4.1f} s credit"
                    f" ({row.decoded_meanwhile} steps decoded meanwhile),"
                    f" success {row.before:.2f} to {row.after:.2f}, lag {row.lag:.1f},"
                    f" {row.waste:3.0%} wasted",
                    flush=True,
                )
                if args.json is not None:
                    write(args.json, settings, rows, played, faster=faster)
    found = summary(rows, played, faster=faster)
    print(json.dumps(found, indent=1))
    goals = [row for row in found.values() if "fast_enough" in row]
    return 0 if all(row["fast_enough"] and row["no_worse"] for row in goals) else 1


if __name__ == "__main__":
    raise SystemExit(main())
