"""The comparisons of credit assignment that ``learning.py`` trains: tasks, methods and settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One task, who is compared on it, and at how many episodes."""

    config: str
    episodes: int
    algos: tuple[str, ...]
    settings: tuple[str, ...] = ()
    """``NAME:key=value``, as ``turngym compare --set`` takes it."""
    shared: tuple[str, ...] = ()
    """``key=value`` of all runs."""
    tries: tuple[str, ...] = ()
    """What algorithms are tried with, as ``--try`` takes it, on seeds that are not reported."""
    tuning_seeds: int = 2
    """How many of these."""
    first_seed: int | None = None
    """The first that is reported, where others than tuning seeds were looked at."""
    controls: tuple[str, ...] = ()
    """Algorithms whose turn credit also runs shuffled and constant."""
    teacher: tuple[str, ...] = ()
    """What ``turngym train`` makes the teacher with, in ``TEACHER``, before anything else."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Winners without one of their parts, by name: whose settings, and what is set beside them.
    ``learning.py --complete`` trains them, with the settings that the search chose."""
    seeds: int | None = None
    """Seeds that are reported, where it is not the number that was asked for."""
    is_of_credit: bool = True
    """Whether it compares credit methods, and stands in the overview of them."""
    again: str | None = None
    """The comparison that this one repeats with fresh seeds."""

    def whole(self, name: str) -> str | None:
        """Return the method that an algorithm is a control or a part of, None for a method."""
        if name in self.parts:
            return self.parts[name][0]
        base, _, control = name.rpartition("-")
        return base if control in ("shuffled", "constant") else None

    def only(self, names: Collection[str]) -> Comparison:
        """Return the comparison of some of its algorithms, with what is said of these."""

        def kept(values: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(v for v in values if v.partition(":")[0] in {*names, "*"})

        return replace(
            self,
            algos=tuple(algo for algo in self.algos if algo.partition("=")[0] in names),
            settings=kept(self.settings),
            tries=kept(self.tries),
            controls=tuple(name for name in self.controls if name in names),
        )

    def arguments(self, seeds: int, out: str, *, jobs: int = 2) -> list[str]:
        """Return what stands behind ``turngym``."""
        words = ["compare", self.config, *self.shared, "--algos", ",".join(self.algos)]
        for option, values in (("--set", self.settings), ("--try", self.tries)):
            for value in values:
                words += [option, value]
        if self.tries:
            words += ["--tuning-seeds", str(self.tuning_seeds)]
        if self.first_seed is not None:
            words += ["--first-seed", str(self.first_seed)]
        if self.controls:
            words += ["--controls", ",".join(self.controls)]
        words += (
            f"--seeds {self.seeds or seeds} --budget-episodes {self.episodes} --jobs {jobs}".split()
        )
        return [*words, "--out", out]


# Plain policy gradient takes one step per batch, and replay allows one after every eight episodes.
# The critic learns from nothing, so the policy waits for it; it reads what was seen last, which is
# the whole state in these games.
ARCHER_8 = (
    "learner.num_minibatches=1",
    "learner.lr=5e-4",
    "rollout.groups_per_step=1",
    "algo.advantage.normalize=true",
    "algo.advantage.actor_turns=32",
    "algo.advantage.critic.max_tokens=24",
    "algo.advantage.critic.steps_per_update=25",
    "algo.advantage.critic.value_actions=replayed",
    "algo.advantage.critic.warmup_updates=32",
)
# Half a point for every action that can be carried out would make long episodes worth more than
# success. The estimator learns from nothing, and the policy waits for it.
SPA = ("algo.rewards.0.grounding_weight=0", "algo.rewards.0.lr=3e-4")
SPA_SHORT = (
    *SPA,
    "algo.rewards.0.steps_per_update=16",
    "algo.rewards.0.batch_episodes=16",
    "algo.rewards.0.warmup_updates=4",
)
# In the game of cities, whose updates hold 128 episodes.
SPA_CITY = (
    *SPA,
    "algo.rewards.0.steps_per_update=64",
    "algo.rewards.0.batch_episodes=16",
    "algo.rewards.0.warmup_updates=1",
)
# In the mail room, 32 episodes of eight short turns an update. Two steps of 7e-4 on each batch,
# without a trust region, unlearned the words of the commands.
ARCHER_MAIL = (
    "learner.num_minibatches=1",
    "learner.lr=5e-4",
    "algo.advantage.normalize=true",
    "algo.advantage.actor_turns=192",
    "algo.advantage.critic.max_tokens=24",
    "algo.advantage.critic.steps_per_update=25",
    "algo.advantage.critic.value_actions=replayed",
    "algo.advantage.critic.warmup_updates=4",
)
SPA_MAIL = (
    "algo.rewards.0.grounding_weight=0",
    "algo.rewards.0.steps_per_update=16",
    "algo.rewards.0.batch_episodes=16",
    "algo.rewards.0.warmup_updates=6",
    "algo.advantage.critic.warmup_updates=6",
    "learner.lr=3e-4",
)
# Its estimator reads one letter and its carrier, and learns from the clumsy expert first, while the
# policy waits. A turn's share is compared with those of the other attempts at that turn.
SPA_TURN = (
    "algo.rewards.0.demonstrations=300",
    "algo.rewards.0.reads=13",
    "algo.rewards.0.grounding_weight=0.1",
    "algo.rewards.0.warmup_until=null",
    "algo.rewards.0.warmup_updates=1",
    "algo.rewards.0.warmup_steps=400",
    "algo.rewards.0.after_warmup=learn",
    "algo.rewards.0.steps_per_update=32",
    "algo.rewards.0.batch_episodes=16",
    'algo.advantage={"type": "group_relative", "terms": [{"rewards": ["progress"], '
    '"returns": "reward_to_go", "gamma": 0.0, "group_by": "task_turn"}]}',
)
# The form in the paper; the preset is that of the authors' later code.
IGPO_PAPER = ("algo.rewards.1.form=prob_diff", "algo.advantage.terms.0.normalization=joint")
# While most fail, its pools see only the penalty for invalid actions.
GIGPO = ("algo.rewards.1.penalty=0",)


def _for(name: str, *settings: str) -> tuple[str, ...]:
    """Return the settings of one algorithm; of two values the later holds."""
    values = dict(setting.split("=", 1) for setting in settings)
    return tuple(f"{name}:{key}={value}" for key, value in values.items())


def _wide(width: int, *, of: int) -> tuple[str, ...]:
    """Return the settings of groups of ``width`` attempts, ``of`` episodes a step."""
    values = f"rollout.group_size={width}", f"rollout.groups_per_step={of // width}"
    return _for(f"grpo-{width}", *values)


# With replay ArCHer can take its step after every eight episodes.
ALONE = ("learner.lr=5e-4", "rollout.groups_per_step=1")
# A player who errs in four actions of five, and wins three games of ten.
WEAK = ("warm_start.expert_noise=0.8", "warm_start.episodes=256")
SHOWN = ("algo.loss.imitation.demonstrations=256",)
WON = (*SHOWN, "algo.loss.imitation.successes_only=true")
# The paper's 1,000 critic steps on what the player did; after 200 one of two seeds went down.
ARCHER_WEAK = (
    *ALONE,
    "algo.advantage.critic.demonstrations=256",
    "algo.advantage.critic.pretrain_steps=1000",
)
# The estimator learns from the same episodes, long before the policy moves.
SPA_WEAK = (
    "algo.rewards.0.demonstrations=256",
    "algo.rewards.0.warmup_until=null",
    "algo.rewards.0.warmup_steps=1000",
    "algo.rewards.0.batch_episodes=16",
)
# Its shares compared in the group, in the place of a value model that learns from nothing.
SPA_GROUP = (
    'algo.advantage={"type": "group_relative", "terms": [{"rewards": ["progress"], '
    '"returns": "reward_to_go", "unit": "turn"}]}',
)
# Episodes are five times as long as in the easy maze.
ARCHER_LONG_DEMOS = (
    *ALONE,
    "algo.advantage.actor_turns=64",
    "algo.advantage.critic.steps_per_update=50",
    "algo.advantage.critic.pretrain_steps=1000",
)
# Of the model that students learn from; it has other seeds and other widths than they.
TEACHER = "runs/teachers/maze-easy"
TAUGHT = (f"algo.teacher={TEACHER}",)
WIDTHS = ("grpo-4=grpo", "grpo-8=grpo", "grpo-16=grpo", "grpo-32=grpo")
COMPARISONS = {
    # Who learns from the demonstrations of the warm start, and how.
    "demonstrations": Comparison(
        config="credit_ablations",
        shared=("evaluation.held_out_tasks=256",),
        episodes=640,
        algos=("grpo", "grpo_demos", "archer_demos"),
        settings=_for("archer_demos", *ALONE),
        tries=("*:learner.lr=3e-4", "*:learner.lr=1.5e-3", "*:rollout.groups_per_step=2"),
        seeds=10,
    ),
    # The same where the player shows little: imitation copies bad play, a critic may learn which of
    # its turns were good. One control imitates only what succeeded.
    "weak": Comparison(
        config="credit_ablations",
        shared=("evaluation.held_out_tasks=256", *WEAK),
        episodes=640,
        algos=(
            *("grpo", "grpo_demos", "grpo_demos-won=grpo_demos", "archer_demos"),
            *("gigpo", "ppo", "spa=spa_offline", "spa-group=spa_offline"),
        ),
        settings=(
            *_for("grpo_demos", *SHOWN),
            *_for("grpo_demos-won", *WON),
            *_for("archer_demos", *ARCHER_WEAK),
            *_for("gigpo", *GIGPO),
            *_for("spa", *SPA_WEAK),
            *_for("spa-group", *SPA_WEAK, *SPA_GROUP),
        ),
        tries=(
            "grpo:learner.lr=3e-4",
            "grpo:rollout.groups_per_step=2",
            "grpo_demos:algo.loss.imitation.weight=0.03",
            "grpo_demos:rollout.groups_per_step=2",
            "grpo_demos-won:algo.loss.imitation.weight=0.03",
            "grpo_demos-won:rollout.groups_per_step=2",
            "archer_demos:learner.lr=3e-4",
            "archer_demos:algo.advantage.critic.pretrain_steps=2000",
            *(
                f"{name}:{setting}"
                for name in ("gigpo", "ppo", "spa", "spa-group")
                for setting in ("learner.lr=3e-4", "rollout.groups_per_step=2")
            ),
        ),
        tuning_seeds=1,
        first_seed=2,
        controls=("archer_demos",),
        parts={
            "archer_demos-no-pretraining": (
                "archer_demos",
                "algo.advantage.critic.pretrain_steps=0",
            ),
            "archer_demos-no-demonstrations": (
                "archer_demos",
                "algo.advantage.critic.pretrain_steps=0",
                "algo.advantage.critic.demonstrations=0",
            ),
            "archer_demos-no-replay": ("archer_demos", "algo.advantage.replay=false"),
        },
        seeds=10,
    ),
    # What a teacher adds that solves 19 mazes of 20, to students with three fifths of its weights.
    "distillation": Comparison(
        config="credit_ablations",
        shared=(
            "evaluation.held_out_tasks=256",
            f"model.tokenizer={TEACHER}",
            "model.hidden=48",
        ),
        episodes=640,
        algos=(
            *("grpo", "grpo_demos", "opd", "opd-turn=opd", "opd-episode=opd"),
            "grpo-taught=grpo",
        ),
        settings=(
            *_for("opd", *TAUGHT),
            *_for("opd-turn", *TAUGHT, "algo.teacher.horizon=turn"),
            *_for("opd-episode", *TAUGHT, "algo.teacher.horizon=episode"),
            *_for("grpo-taught", *TAUGHT),
        ),
        tries=("*:learner.lr=3e-4", "*:learner.lr=1.5e-3"),
        tuning_seeds=1,
        first_seed=10,
        controls=("opd",),
        teacher=(
            *("credit_ablations", "algo=grpo", "run.seed=900", "run.steps=60"),
            "evaluation.target_success=0.95",
        ),
        seeds=10,
    ),
    # Whether attempts are compared in pairs, whole or by turns, or with the mean of their group.
    "pairs": Comparison(
        config="credit_ablations",
        shared=("evaluation.held_out_tasks=256",),
        episodes=640,
        algos=("grpo", "dpo", "dmpo"),
        tries=(
            *("*:learner.lr=3e-4", "*:learner.lr=1.5e-3"),
            "grpo:rollout.groups_per_step=2",
            "dpo:algo.loss.surrogate.beta=0.5",
            "dmpo:algo.loss.surrogate.beta=0.5",
        ),
        tuning_seeds=1,
        first_seed=10,
        seeds=10,
    ),
    # Who the other player is in training: the policy itself, chance, or an expert. All are measured
    # against chance. A policy that is both players trains on twice the turns of an episode.
    "self-play": Comparison(
        config="demo",
        shared=(
            "env.id=text/tictactoe",
            "warm_start.episodes=128",
            "warm_start.expert_noise=0.8",
            "warm_start.target_success=0.99",
            "warm_start.evaluate_from=300",
            "warm_start.max_steps=300",
            "evaluation.every=10",
            "evaluation.opponent=random",
        ),
        episodes=5120,
        algos=("grpo", "grpo-chance=grpo", "grpo-expert=grpo"),
        settings=(
            "grpo-chance:rollout.opponent=random",
            "grpo-expert:rollout.opponent=expert",
        ),
        tries=("*:learner.lr=3e-4", "*:learner.lr=1.5e-3"),
        tuning_seeds=1,
        first_seed=10,
        seeds=10,
        is_of_credit=False,
    ),
    # Four turns for what takes three: all begin asking at random, and win one in twelve.
    "questions": Comparison(
        config="credit_city",
        shared=(
            "env.options.max_turns=4",
            "warm_start.target_success=0.99",
            "warm_start.evaluate_from=400",
            "warm_start.max_steps=400",
        ),
        episodes=1920,
        algos=("grpo", "igpo", "igpo-shuffled=igpo"),
        settings=_for("igpo-shuffled", "algo.rewards.1.shuffled=true"),
        tries=("*:rollout.groups_per_step=8",),
        tuning_seeds=1,
    ),
    # The gain of information as the paper has it, beside its controls.
    "gains": Comparison(
        config="credit_city",
        episodes=1920,
        algos=("grpo", "igpo-paper=igpo", "infopo", "gigpo", "ppo"),
        settings=(*_for("igpo-paper", *IGPO_PAPER), *_for("gigpo", *GIGPO)),
        tries=("*:rollout.groups_per_step=8", "*:learner.lr=1.5e-3"),
        controls=("igpo-paper",),
        parts={
            "igpo-paper-log": ("igpo-paper", "algo.rewards.1.form=log_prob_diff"),
            "igpo-paper-apart": ("igpo-paper", "algo.advantage.terms.0.normalization=separate"),
            "igpo-paper-no-outcome": (
                "igpo-paper",
                'algo.rewards=[{"type": "info_gain", "form": "prob_diff"}]',
                'algo.advantage.terms.0.rewards=["info_gain"]',
            ),
        },
        seeds=10,
    ),
    # What a customer has not said is asked for, and written down in the next turn: a useful answer
    # changes what is done next, which is what InfoPO pays.
    "orders": Comparison(
        config="credit_order",
        episodes=1280,
        algos=("grpo", "infopo", "igpo-paper=igpo"),
        settings=_for("igpo-paper", *IGPO_PAPER),
        tries=("*:learner.lr=1.5e-3", "*:rollout.groups_per_step=4"),
        tuning_seeds=1,
        controls=("infopo",),
        seeds=10,
    ),
    # Many independent decisions, one grade at the end.
    "mail": Comparison(
        config="credit_mailroom",
        episodes=1024,
        algos=("grpo", "spa", "spa-turn=spa_offline", "archer"),
        settings=(
            *_for("spa", *SPA_MAIL),
            *_for("spa-turn", *SPA_TURN),
            *_for("archer", *ARCHER_MAIL),
        ),
        tries=(
            "grpo:learner.lr=1.5e-3",
            "spa:algo.advantage.level=turn algo.advantage.lam=0.5",
            "spa-turn:learner.lr=1.5e-3",
            "archer:algo.advantage.critic.max_tokens=112",
        ),
        tuning_seeds=1,
    ),
    # Twenty moves and more, paid at the door alone: what a critic of demonstrations is for.
    "long": Comparison(
        config="credit_maze",
        shared=("evaluation.held_out_tasks=256",),
        episodes=384,
        algos=("grpo", "gigpo", "grpo_demos", "archer_demos"),
        settings=(*_for("gigpo", *GIGPO), *_for("archer_demos", *ARCHER_LONG_DEMOS)),
        tries=(
            *(
                f"{name}:{setting}"
                for name in ("grpo", "gigpo", "grpo_demos")
                for setting in ("learner.lr=7e-4", "rollout.groups_per_step=1")
            ),
            "archer_demos:learner.lr=3e-4",
            "archer_demos:algo.advantage.critic.pretrain_steps=200",
        ),
        tuning_seeds=1,
        first_seed=1,
    ),
    # The winners again beside GRPO, on fresh seeds, with what the searches above chose.
    "weak-again": Comparison(
        config="credit_ablations",
        shared=("evaluation.held_out_tasks=256", *WEAK),
        episodes=640,
        algos=("grpo", "grpo_demos-won=grpo_demos", "archer_demos"),
        settings=(
            *_for("grpo", "rollout.groups_per_step=2"),
            *_for("grpo_demos-won", *WON, "rollout.groups_per_step=2"),
            *_for("archer_demos", *ARCHER_WEAK, "algo.advantage.critic.pretrain_steps=2000"),
        ),
        first_seed=12,
        seeds=10,
        again="weak",
    ),
    "gains-again": Comparison(
        config="credit_city",
        episodes=1920,
        algos=("grpo", "igpo-paper=igpo"),
        settings=(
            *_for("grpo", "rollout.groups_per_step=8"),
            *_for("igpo-paper", *IGPO_PAPER, "rollout.groups_per_step=8"),
        ),
        first_seed=12,
        seeds=10,
        again="gains",
    ),
    "long-again": Comparison(
        config="credit_maze",
        shared=("evaluation.held_out_tasks=256",),
        episodes=384,
        algos=("grpo", "grpo_demos", "archer_demos"),
        settings=(
            *_for("grpo_demos", "rollout.groups_per_step=1"),
            *_for("archer_demos", *ARCHER_LONG_DEMOS, "learner.lr=3e-4"),
        ),
        first_seed=6,
        seeds=5,
        again="long",
    ),
    "orders-again": Comparison(
        config="credit_order",
        episodes=1280,
        algos=("grpo", "infopo"),
        first_seed=11,
        seeds=10,
        again="orders",
    ),
    # How wide groups should be at equal episodes (the question of BroRL).
    "width": Comparison(
        config="credit_ablations",
        episodes=640,
        algos=WIDTHS,
        settings=tuple(setting for w in (4, 8, 16, 32) for setting in _wide(w, of=32)),
    ),
    "width-city": Comparison(
        config="credit_city",
        episodes=1920,
        algos=WIDTHS,
        settings=tuple(setting for w in (4, 8, 16, 32) for setting in _wide(w, of=128)),
    ),
}
