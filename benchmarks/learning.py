"""Compare credit assignment at equal episodes, and without its parts; write docs/results.md.

    make learning                     # some hours on 2 cores; stop it any time, it resumes
    make learning ARGS="--tasks maze --seeds 2"

Every comparison is one ``turngym compare configs/credit_<task>.toml`` with the settings that its
report lists, and has a section of its own on the page.
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
    text: str = ""
    """What the figures say, beside them on the page."""

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
        text="""\
Twenty moves and more, paid at the door alone; a tenth of the attempts succeed at the start.
`potential` needs a quarter of the episodes that GRPO needs. `spa` unlearns what it could: its
estimator sees 12 to 31 successes in a run, its predictions say nothing of the outcomes (correlation
-0.15 to 0.2 in the second half), and every turn is given the same small share (spread below 0.01).
Such a share is pay for staying: all episodes come to end at the limit of 36 turns. `spa-outcome`
is paid the outcome as well, and learns. In the small maze below the estimator sees 58 to 252
successes, and its predictions correlate with the outcomes by 0.7. `archer` has the same want of
successes: its critic starts from nothing, and learns alone for the first third of the episodes.""",
    ),
    "city": Comparison(
        config="credit_city",
        episodes=1536,
        algos=("grpo", "ppo", "igpo", "igpo-shuffled=igpo", "infopo"),
        settings=_for("igpo-shuffled", "algo.rewards.1.shuffled=true"),
        text="""\
IGPO does not beat GRPO here, and `benchmarks/city_turns.py` says why. The model that all begin with
already asks well: 84 % of its questions tell the candidates apart. When one is left, it guesses in
91 % of the turns, and rightly in 25 % of those (1,000 episodes). What is to be learned is the
answer, and that turn is paid by the outcome alone in both. The gains of the questions (0.2 to 0.4
nats, correlation with the outcome 0.1) only add noise to the turns before it.""",
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
        text="""\
Every part does its work: without replay, without the critic's warm-up and with a constant in place
of the estimator success is lower; between `spa` and its constant the intervals overlap for sampled
success, not for greedy. With replay, ArCHer can take its steps after 8 episodes where the others
wait for 32, and ends above GRPO.""",
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

{where} {COMPARISONS[task].text}
{rest}""".rstrip()


if __name__ == "__main__":
    sys.exit(main())
