"""Compare credit assignment at equal episodes, and without its parts; write docs/results.md.

    make learning                     # some hours on 2 cores; stop it any time, it resumes
    make learning ARGS="--tasks maze --seeds 2"

Every comparison is one ``turngym compare configs/credit_<task>.toml``, so any of it can be made
again alone; the command stands above each table.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from harness import put_section
from results import PAGE

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One task, who is compared on it, and at how many episodes."""

    config: str
    episodes: int
    algos: tuple[str, ...]
    settings: tuple[str, ...] = ()
    """``NAME:key=value``, as ``turngym compare --set`` takes it."""

    def arguments(self, seeds: int, out: str, *, jobs: int = 2) -> list[str]:
        """Return what stands behind ``turngym``."""
        words = ["compare", f"configs/{self.config}.toml", "--algos", ",".join(self.algos)]
        for setting in self.settings:
            words += ["--set", setting]
        words += f"--seeds {seeds} --budget-episodes {self.episodes} --jobs {jobs}".split()
        return [*words, "--out", out]


ARCHER = (
    # Plain policy gradient takes one step per batch. The critic learns from nothing, so the policy
    # waits for it; it reads what was seen last, which is the whole state in these games.
    "learner.num_minibatches=1",
    "learner.lr=5e-4",
    "algo.advantage.normalize=true",
    "algo.advantage.actor_turns=128",
    "algo.advantage.critic.max_tokens=24",
    "algo.advantage.critic.steps_per_update=100",
    "algo.advantage.critic.value_actions=played",
    "algo.advantage.critic.warmup_updates=8",
)
SPA = (
    # Half a point for every action that can be carried out would make long episodes worth more
    # than success. Its estimator, too, learns from nothing, and the policy waits for it.
    "algo.rewards.0.grounding_weight=0",
    "algo.rewards.0.lr=3e-4",
    "algo.rewards.0.steps_per_update=16",
    "algo.rewards.0.batch_episodes=16",
    "algo.rewards.0.warmup_updates=4",
)
# As the paper defines the gain, compared together with the outcome.
IGPO_PROB = ("algo.rewards.1.form=prob_diff", "algo.advantage.terms.0.pool=joint")
# In the long maze, of 3e-4 and 7e-4, the one that was better in the first seed: GRPO and GiGPO fall
# to nothing at the higher one.
FAST = ("learner.lr=7e-4",)
# Its episodes are five times as long, so the estimator takes fewer steps, after a longer wait.
SPA_LONG = (
    *SPA,
    "algo.rewards.0.steps_per_update=8",
    "algo.rewards.0.batch_episodes=8",
    "algo.rewards.0.warmup_updates=6",
)
# While most attempts fail, the penalty for invalid actions is all that its pools see.
GIGPO = ("algo.rewards.1.penalty=0",)


def _for(name: str, *settings: str) -> tuple[str, ...]:
    return tuple(f"{name}:{setting}" for setting in settings)


COMPARISONS = {
    "maze": Comparison(
        config="credit_maze",
        episodes=384,
        algos=("grpo", "ppo", "potential", "gigpo", "spa", "archer"),
        settings=(
            *_for("archer", *ARCHER),
            *_for("spa", *SPA_LONG),
            *_for("gigpo", *GIGPO),
            *_for("potential", *FAST),
            *_for("ppo", *FAST),
        ),
    ),
    "city": Comparison(
        config="credit_city",
        episodes=2560,
        algos=(
            "grpo",
            "ppo",
            "igpo",
            "igpo-prob=igpo",
            "igpo-shuffled=igpo",
            "infopo",
            "spa",
            "archer",
        ),
        settings=(
            *_for(
                "igpo-prob", "algo.rewards.1.form=prob_diff", "algo.advantage.terms.0.pool=joint"
            ),
            *_for("igpo-shuffled", "algo.rewards.1.shuffled=true"),
            *_for("spa", *SPA),
            *_for(
                "archer",
                *ARCHER,
                "algo.advantage.critic.max_tokens=96",
                "algo.advantage.critic.warmup_updates=4",
            ),
        ),
    ),
    "ablations": Comparison(
        config="credit_ablations",
        episodes=640,
        algos=(
            "grpo",
            "archer",
            "archer-no-warmup=archer",
            "archer-no-replay=archer",
            "spa",
            "spa-constant=spa",
        ),
        settings=(
            *_for("archer", *ARCHER),
            *_for("archer-no-warmup", *ARCHER, "algo.advantage.critic.warmup_updates=0"),
            *_for("archer-no-replay", *ARCHER, "algo.advantage.replay=false"),
            *_for("spa", *SPA),
            *_for("spa-constant", *SPA, "algo.rewards.0.constant=true"),
        ),
    ),
}


def main() -> int:
    """Train what is missing, then write the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--tasks", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "learning")
    parser.add_argument("--no-page", action="store_true", help="train, write no page")
    arguments = parser.parse_args()
    sections = []
    for task in arguments.tasks:
        comparison, out = COMPARISONS[task], arguments.out / task
        command = comparison.arguments(arguments.seeds, str(out), jobs=arguments.jobs)
        code = subprocess.run(
            [sys.executable, "-m", "turngym", *command],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        ).returncode
        if code:
            return code
        sections.append(section(comparison, out, arguments.seeds))
    if not arguments.no_page:
        put_section(PAGE, "credit", "\n\n".join([opening(arguments.jobs), *sections]))
    return 0


def opening(jobs: int) -> str:
    """Return what stands before the tables."""
    return f"""## Turn-level credit at equal episodes

    make learning

Measured on {date.today().isoformat()}: {platform.machine()}, {os.cpu_count()} cores, {jobs} runs at
a time, one torch thread each, no GPU. Within a seed all methods begin with one model and meet the
same training tasks in the same order."""


def section(comparison: Comparison, out: Path, seeds: int) -> str:
    """Return the report of one comparison with its command; copy its plot to the docs."""
    report = (out / "report.md").read_text(encoding="utf-8")
    body = report[report.index("\n## ") :].strip().replace("\n## ", "\n### ", 1)
    body = "#" + body if body.startswith("## ") else body
    for plot in out.glob("*.png"):
        name = f"credit-{plot.name}"
        shutil.copy(plot, PAGE.parent / "assets" / name)
        body = body.replace(f"]({plot.name})", f"](assets/{name})")
    title, _, rest = body.partition("\n")
    command = shlex.join(["turngym", *comparison.arguments(seeds, f"runs/{comparison.config}")])
    return f"{title}\n\n    {command}\n{rest}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
