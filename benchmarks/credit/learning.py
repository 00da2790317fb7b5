"""Compare credit assignment at equal episodes, and without its parts; write docs/results.md.

    make learning                     # some hours on 2 cores; stop it any time, it resumes
    make learning ARGS="--tasks maze --seeds 2"

Every comparison is one ``turngym compare credit_<task>`` with the settings that its
report lists, and has a section of its own on the page. What stands between the sections is written
by hand and kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import put_section
from results import PAGE

ROOT = Path(__file__).resolve().parents[2]


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
        words = ["compare", self.config, "--algos", ",".join(self.algos)]
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
    "algo.advantage.critic.value_actions=replayed",
    "algo.advantage.critic.warmup_updates=8",
)
# The same for 8 episodes an update instead of 32, a quarter of the work in each: with replay ArCHer
# can afford it. With 32 the newest batch alone was enough for the critic in the first seed, which
# ended at 69 % without replay and 67 % with it.
ARCHER_8 = (
    *ARCHER,
    "rollout.groups_per_step=1",
    "algo.advantage.actor_turns=32",
    "algo.advantage.critic.steps_per_update=25",
    "algo.advantage.critic.warmup_updates=32",
)
# In the long maze, whose episodes are five times as long: half of the work in each.
ARCHER_LONG = (
    *ARCHER,
    "rollout.groups_per_step=1",
    "algo.advantage.actor_turns=64",
    "algo.advantage.critic.steps_per_update=50",
    "algo.advantage.critic.warmup_updates=16",
)
# Half a point for every action that can be carried out would make long episodes worth more than
# success. The estimator, too, learns from nothing, and the policy waits for it.
SPA = ("algo.rewards.0.grounding_weight=0", "algo.rewards.0.lr=3e-4")
SPA_SHORT = (
    *SPA,
    "algo.rewards.0.steps_per_update=16",
    "algo.rewards.0.batch_episodes=16",
    "algo.rewards.0.warmup_updates=4",
)
# Episodes of the long maze are five times as long: fewer steps on fewer of them, a longer wait.
SPA_LONG = (
    *SPA,
    "algo.rewards.0.steps_per_update=8",
    "algo.rewards.0.batch_episodes=8",
    "algo.rewards.0.warmup_updates=6",
)
# The same, and the outcome is paid as well.
SPA_OUTCOME = (
    'algo.rewards=[{"type": "progress", "grounding_weight": 0, "lr": 3e-4, "steps_per_update": 8, '
    '"batch_episodes": 8, "warmup_updates": 6}, {"type": "env"}]',
    'algo.advantage.rewards=["progress", "env"]',
)
# In the game of cities, whose updates hold 128 episodes.
SPA_CITY = (
    *SPA,
    "algo.rewards.0.steps_per_update=64",
    "algo.rewards.0.batch_episodes=16",
    "algo.rewards.0.warmup_updates=1",
)
# There, with 32 episodes an update, and half of the critic's steps in each.
ARCHER_CITY = (*ARCHER, "rollout.groups_per_step=4", "algo.advantage.critic.steps_per_update=50")
# The form in the paper; the preset is that of the authors' later code.
IGPO_PAPER = ("algo.rewards.1.form=prob_diff", "algo.advantage.terms.0.normalization=joint")
# In the long maze, of 3e-4 and 7e-4, the one that was better in the first seed: GRPO and GiGPO fall
# to nothing at the higher one.
FAST = ("learner.lr=7e-4",)
# While most attempts fail, the penalty for invalid actions is all that its pools see.
GIGPO = ("algo.rewards.1.penalty=0",)


def _for(name: str, *settings: str) -> tuple[str, ...]:
    """Return the settings of one algorithm; of two values the later holds."""
    values = dict(setting.split("=", 1) for setting in settings)
    return tuple(f"{name}:{key}={value}" for key, value in values.items())


COMPARISONS = {
    "maze": Comparison(
        config="credit_maze",
        episodes=384,
        algos=("grpo", "ppo", "potential", "gigpo", "spa", "spa-outcome=spa", "archer"),
        settings=(
            *_for("archer", *ARCHER_LONG),
            *_for("spa", *SPA_LONG),
            *_for("spa-outcome", *SPA_OUTCOME),
            *_for("gigpo", *GIGPO),
            *_for("potential", *FAST),
            *_for("ppo", *FAST),
        ),
    ),
    "city": Comparison(
        config="credit_city",
        episodes=1920,
        algos=(
            *("grpo", "ppo", "igpo", "igpo-shuffled=igpo", "igpo-paper=igpo"),
            *("igpo-paper-shuffled=igpo", "infopo", "gigpo", "spa", "archer"),
        ),
        settings=(
            *_for("igpo-shuffled", "algo.rewards.1.shuffled=true"),
            *_for("igpo-paper", *IGPO_PAPER),
            *_for("igpo-paper-shuffled", *IGPO_PAPER, "algo.rewards.1.shuffled=true"),
            *_for("gigpo", *GIGPO),
            *_for("spa", *SPA_CITY),
            *_for("archer", *ARCHER_CITY),
        ),
    ),
    "ablations": Comparison(
        config="credit_ablations",
        episodes=640,
        algos=(
            "grpo",
            "archer-8=archer",
            "archer-8-no-warmup=archer",
            "archer-8-no-replay=archer",
            "spa",
            "spa-constant=spa",
        ),
        settings=(
            *_for("archer-8", *ARCHER_8),
            *_for("archer-8-no-warmup", *ARCHER_8, "algo.advantage.critic.warmup_updates=0"),
            *_for("archer-8-no-replay", *ARCHER_8, "algo.advantage.replay=false"),
            *_for("spa", *SPA_SHORT),
            *_for("spa-constant", *SPA_SHORT, "algo.rewards.0.constant=true"),
        ),
    ),
}


OPENING = """## Turn-level credit at equal episodes

    make learning

One torch thread for each run, no GPU. Within a seed all methods begin with one model and meet the
same training tasks in the same order. Minutes are those of a machine with other work to do."""


def main() -> int:
    """Train what is missing, then write the sections."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--tasks", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "learning")
    parser.add_argument("--no-page", action="store_true", help="train, write no page")
    arguments = parser.parse_args()
    if not arguments.no_page:
        put_section(PAGE, "credit", OPENING)
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
        if not arguments.no_page:
            put_section(PAGE, f"credit-{task}", section(task, out))
    return 0


def section(task: str, out: Path) -> str:
    """Return the report of one comparison with its command; copy its plot to the docs."""
    report = (out / "report.md").read_text(encoding="utf-8")
    body = report[report.index("\n## ") :].strip()
    for plot in out.glob("*.png"):
        name = f"credit-{plot.name}"
        shutil.copy(plot, PAGE.parent / "assets" / name)
        body = body.replace(f"]({plot.name})", f"](assets/{name})")
    title, _, rest = body.partition("\n")
    where = f"{date.today().isoformat()}, {platform.machine()}, {os.cpu_count()} cores."
    return f"""#{title}

    make learning ARGS="--tasks {task}"

{where}
{rest}""".rstrip()


if __name__ == "__main__":
    sys.exit(main())
