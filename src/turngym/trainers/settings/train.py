"""The settings of one training run, every one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import takewhile
from typing import ClassVar, Literal, Self

from pydantic import Field, JsonValue, model_validator

from turngym.agents.config import PartsConfig
from turngym.agents.engine.config import (
    EngineConfig,
    LocalEngineConfig,
    ModelConfig,
    PretrainedModelConfig,
    TinyModelConfig,
    VllmEngineConfig,
)
from turngym.config import StrictModel, toml_files
from turngym.rollouts.players import SELF
from turngym.rollouts.scheduler.config import (
    GroupConfig,
    LateAction,
    PlayConfig,
    SchedulerConfig,
    StaleAction,
    WorkersConfig,
    check_schedule,
)
from turngym.trainers.settings.algo import AlgoConfig
from turngym.trainers.settings.loss import RegularizerConfig
from turngym.trainers.settings.optimizer import LearnerConfig, WarmStartConfig
from turngym.trainers.settings.selection import FixedBudget, Imitation, NoCondition, SelectionConfig
from turngym.trainers.settings.trackers import AnyTracker


class EnvPart(StrictModel):
    """One environment of a run."""

    bare_key: ClassVar[str | None] = "id"

    id: str = ""
    """Environment, by id or short name, for example ``text/maze``; a class or a file of one's own
    as ``module:Class`` or ``games.py``."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the environment."""
    num_train_tasks: int | None = Field(default=None, ge=1)
    """Tasks of the train split, after which they come round again; None when they never end."""
    expert_match: bool = False
    """Pay for agreement with the environment's expert in place of its reward (``ExpertMatch``)."""


class EnvShare(EnvPart):
    """One environment of a mix, with its share of the groups."""

    weight: float = Field(default=1.0, gt=0)
    """Share of the groups, beside the weights of the others that are in the mix at that update."""
    from_step: int = Field(default=0, ge=0)
    """First update whose groups it is in."""
    to_step: int | None = Field(default=None, ge=1)
    """First update whose groups it is no more in; None for never."""

    def is_in(self, step: int) -> bool:
        """Return whether update number ``step`` plays it."""
        return self.from_step <= step and (self.to_step is None or step < self.to_step)


class EnvConfig(EnvPart):
    """Where the agent acts: one environment, or several in a mix."""

    mix: tuple[EnvShare, ...] = ()
    """Several environments, in place of ``id``: ``[[env.mix]] id = ... weight = ...``."""

    @model_validator(mode="after")
    def _is_one_or_a_mix(self) -> Self:
        if bool(self.id) == bool(self.mix):
            raise ValueError("wanted either id or [[env.mix]]; env.id= takes away a recipe's id")
        if any(not p.id or (p.to_step or p.from_step + 1) <= p.from_step for p in self.mix):
            raise ValueError("mix: every environment needs an id, and to_step above from_step")
        if self.mix and (self.options or self.num_train_tasks or self.expert_match):
            keys = "options (null takes them away), num_train_tasks (null) and expert_match (false)"
            raise ValueError(f"mix: {keys} belong to its entries")
        return self

    @property
    def parts(self) -> tuple[EnvPart, ...]:
        """The environments: those of the mix, or the only one."""
        return self.mix or (self,)

    @property
    def name(self) -> str:
        """The ids, for reports."""
        return " + ".join(part.id for part in self.parts)


class TrainedAgentConfig(PartsConfig):
    """What is put around the model that is trained: prompt, history and reflection."""

    instructions: bool = False
    """Begin with the environment's instructions. A small model that is trained on one environment
    does without."""


class TrainedGroupConfig(GroupConfig):
    """When a group that is trained on is complete."""

    late: LateAction = "drop"
    """What becomes of attempts that end after their group closed: dropped, or ``carry``, trained in
    a later step of an overlapped run beside those that it closed with, which are compared alone."""


class RolloutConfig(PlayConfig):
    """How episodes are played for training."""

    group: TrainedGroupConfig = TrainedGroupConfig()
    group_size: int = Field(default=8, ge=1)
    """Episodes of each task."""
    temperature: float = Field(default=1.0, gt=0)
    """Of sampling, in training and in sampled evaluations."""
    max_new_tokens: int = Field(default=32, ge=1)
    """Longest action in tokens."""
    opponent: str = SELF
    """Who else plays a game of several: ``self``, the policy, trained as all players; ``random``;
    ``expert``; the folder of a run or a checkpoint; or some of these with commas, one a task."""
    mode: Literal["sync", "overlap"] = "sync"
    """``sync``: play, then learn, in turns; the same numbers on every machine. ``overlap``: learn
    while episodes go on; which meet which weights, and so the results, depends on speed. With
    ``staleness=0`` both give the same, to rounding where the loss reads the engine's log-probs."""
    staleness: int = Field(default=1, ge=0)
    """``overlap``: most versions between the weights that sampled a token and those that train on
    it; holds for every token."""
    admission: Literal["in_order", "ready_first", "windowed", "capacity"] = "ready_first"
    """``overlap``: which episodes may begin, and which a step takes: those that were begun for it,
    whatever is ready first, what is inside a window, or as in AReaL."""
    pace: bool = True
    """``windowed``: begin no more than the window can consume."""
    freshest: bool = False
    """``windowed``: take the newest groups first."""
    stale: StaleAction = "mask_stale"
    """``overlap``: what becomes of tokens that are too old: they are context only; their episode is
    dropped; finished turns of an episode that still runs are trained just before they get too old,
    which takes a critic; or all are trained on, which lifts the bound."""
    isolation: Literal["inline", "thread", "process", "ray"] = "inline"
    """Where environments that compute run; those that block get threads of their own. ``ray``: all
    of them on other nodes, see ``workers``."""
    workers: WorkersConfig = WorkersConfig()
    """``ray``: which nodes, and how many workers."""
    calls_at_once: int | None = Field(default=None, ge=1)
    """Calls at a time to environments that wait for something outside; None for eight a core."""
    coordinators: int = Field(default=1, ge=1, le=64)
    """``overlap`` with servers: processes that play, each with an event loop, a ledger and its part
    of the episodes, where one loop is not enough."""

    def schedule(self) -> SchedulerConfig:
        """Return these settings as the scheduler takes them: ``sync`` is in order, never stale."""
        shared = {name: getattr(self, name) for name in PlayConfig.model_fields}
        is_sync = self.mode == "sync"
        kind = "in_order" if is_sync else self.admission
        admission = {"type": kind, "staleness": 0 if is_sync else self.staleness}
        if kind == "windowed":
            admission |= {"pace": self.pace, "freshest": self.freshest}
        stale = "mask_stale" if is_sync else self.stale
        return SchedulerConfig.model_validate({**shared, "admission": admission, "stale": stale})

    def share(self, number: int) -> SchedulerConfig:
        """Return the settings of coordinator ``number``: its part of all that is counted."""
        whole, count = self.schedule(), self.coordinators
        if count == 1:
            return whole
        parts = {
            "concurrency": (whole.concurrency + count - 1 - number) // count,
            "groups_per_step": whole.groups_per_step // count,
            "buffer_groups": whole.buffer_groups and max(1, whole.buffer_groups // count),
            "keep_packed": max(1, whole.keep_packed // count),
            "failures": {
                "window": max(1, whole.failures.window // count),
                "fraction": whole.failures.fraction,
            },
        }
        return SchedulerConfig.model_validate({**whole.model_dump(), **parts})


class EvaluationConfig(StrictModel):
    """How progress is measured."""

    every: int = Field(default=5, ge=1)
    """Updates between evaluations on the validation tasks."""
    validation_tasks: int = Field(default=64, ge=1, le=1_000_000)
    """Tasks of the train split that are never trained on; they decide when to stop."""
    target_success: float | None = Field(default=None, gt=0, le=1)
    """Training ends early when sampled success on the validation tasks reaches this."""
    opponent: str = "random"
    """As ``rollout.opponent``. Against ``self`` success says how often who acts first wins."""
    held_out_tasks: int = Field(default=256, ge=1, le=1_000_000)
    """Tasks of the test split, played before and after training, sampled and greedy."""


class RunConfig(StrictModel):
    """Length, randomness and bookkeeping."""

    seed: int = Field(default=0, ge=0)
    """Root of all randomness."""
    steps: int = Field(default=30, ge=0)
    """Most updates."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Updates between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on the disk."""
    tensorboard: bool = True
    """Also write TensorBoard event files."""
    trackers: tuple[AnyTracker, ...] = ()
    """Who else gets the metrics: ``wandb``, ``trackio``, ``mlflow``, or tables with settings."""
    opentelemetry: bool = False
    """Emit OpenTelemetry spans of updates and episodes; ``OTEL_*`` variables say where they go."""
    torch_threads: int = Field(default=1, ge=1, le=1024)
    """Threads of torch. More of them slow a small model down, and change the last bits."""

    @model_validator(mode="after")
    def _trackers_differ(self) -> Self:
        names = [tracker.name for tracker in self.trackers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"trackers: {twice[0]!r} is there twice")
        return self


class TrainConfig(StrictModel):
    """One training run."""

    recipe_folder: ClassVar[Traversable | None] = files("turngym.trainers") / "recipes"
    renamed: ClassVar[Mapping[str, str]] = {
        "rollout.engine": "engine",
        "rollout.system_prompt": "agent.instructions",
        "warm_start.oracle_noise": "warm_start.expert_noise",
        "rollout.max_fault_fraction": "rollout.failures.fraction",
        "rollout.stale=mask_head": "mask_stale",
        "algo.advantage.fusion": "algo.advantage.combine",
        "algo.advantage.terms.*.channel_weights": "algo.advantage.terms.*.reward_weights",
        "algo.advantage.terms.*.pool": "algo.advantage.terms.*.normalization",
        "algo.advantage.terms.*.singleton": "algo.advantage.terms.*.group_of_one",
        "algo.advantage.terms.*.group_by=anchor": "state",
        "algo.advantage.needs.*=anchor": "state_key",
        "algo.rewards.*.needs.*=anchor": "state_key",
        "algo.advantage.critic.value_actions=fresh": "on_policy",
        "algo.advantage.critic.value_actions=played": "replayed",
        "algo.loss.ratio_anchor": "algo.loss.old_policy",
        "algo.loss.surrogate.type=taper": "algo.loss.surrogate.type=is_taper",
        "algo.loss.correction.reject.*.pair=prox_behaviour": "proximal_behaviour",
        "algo.loss.correction.reject.*.pair=live_behaviour": "current_behaviour",
        "algo.loss.correction.reject.*.pair=live_prox": "current_proximal",
    }

    env: EnvConfig
    model: ModelConfig = TinyModelConfig()
    engine: EngineConfig = LocalEngineConfig()
    """What samples the tokens."""
    agent: TrainedAgentConfig = TrainedAgentConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    algo: AlgoConfig = AlgoConfig()
    regularizer: RegularizerConfig = RegularizerConfig()
    learner: LearnerConfig = LearnerConfig()
    rollout: RolloutConfig = RolloutConfig()
    selection: SelectionConfig = SelectionConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        loss, learner = self.algo.loss, self.learner
        steps = learner.num_epochs if self.algo.advantage.acts_anew else learner.steps_per_batch
        kind, bounded = loss.surrogate.type, loss.surrogate.has_trust_region
        leashed = self.regularizer.kl_coefficient > 0 or loss.correction.bounds_the_policy
        many = f"learner.num_epochs and num_minibatches make {steps} optimizer steps per batch"
        if not bounded and steps > 1 and (not leashed or kind == "balance"):
            leash = ", set regularizer.kl_coefficient, or reject by a 'current_*' pair"
            raise ValueError(
                f"algo.loss.surrogate.type={kind!r} has no trust region, but {many}; make it one, "
                f"or use 'ppo_clip'{'' if kind == 'balance' else leash}"
            )
        if loss.old_policy == "current" and steps > 1:
            raise ValueError(
                f"algo.loss.old_policy='current' makes every ratio 1, but {many}; make it one, or "
                "use 'proximal'"
            )
        together = self.selection.filter.spread or loss.surrogate.joins_groups
        compares = self.algo.advantage.compares_attempts or together
        if self.rollout.group_size < 2 and compares:
            raise ValueError(
                f"rollout.group_size={self.rollout.group_size} leaves nothing to compare with; "
                "make it at least 2, or use a method with a critic and no filter by spread"
            )
        for tasks in (part.num_train_tasks for part in self.env.parts):
            if tasks is not None and tasks <= self.reserved_tasks:
                raise ValueError(
                    f"evaluation.validation_tasks={self.evaluation.validation_tasks} leaves none "
                    f"of env.num_train_tasks={tasks} to train on"
                )
        ends = {0, *(part.to_step for part in self.env.mix if part.to_step is not None)}
        for step in sorted(step for step in ends if step < max(1, self.run.steps)):
            if self.env.mix and not any(part.is_in(step) for part in self.env.mix):
                raise ValueError(f"env.mix: no environment is in the mix at update {step}")
        return self

    @model_validator(mode="after")
    def _agent_fits(self) -> Self:
        agent, answer, context = self.agent, self.rollout.max_new_tokens, self.model.context
        learns = self.warm_start.imitates or self.algo.demonstrations > 0
        expert = learns and not self.warm_start.trajectories
        if expert and (agent.prompt != "plain" or agent.show_legal_actions):
            raise ValueError(
                "warm_start imitates an expert that answers with its action alone and sees the "
                "observation alone: set warm_start.episodes=0 and no demonstrations, or leave "
                "agent.prompt and agent.show_legal_actions as they are"
            )
        if answer >= context:
            raise ValueError(
                f"rollout.max_new_tokens={answer} leaves nothing of model.context={context} to read"
            )
        return self

    @property
    def reserved_tasks(self) -> int:
        """Train tasks of each environment that are kept for validation."""
        return -(-self.evaluation.validation_tasks // len(self.env.parts))

    @property
    def placed_engine(self) -> EngineConfig:
        """The engine, and on which GPUs its servers are: by default those after the learner's."""
        engine = self.engine
        if not isinstance(engine, VllmEngineConfig) or engine.first_gpu is not None:
            return engine
        after = self.learner.device != "cpu" and engine.weights != "ipc"
        return engine.model_copy(update={"first_gpu": self.learner.ranks if after else 0})

    @property
    def engine_resource(self) -> str:
        """Label of the Ray nodes that servers are started on; empty where none are."""
        return self.engine.resource if isinstance(self.engine, VllmEngineConfig) else ""

    @property
    def open_sessions(self) -> int:
        """The most conversations that are open at once."""
        # Validation plays beside the rollouts, and a question beside the conversation it is about.
        beside = (1 + (self.rollout.mode == "overlap")) * (1 + self.agent.asks_the_model)
        return self.rollout.concurrency * beside

    @property
    def smallest_group(self) -> int:
        """The fewest episodes that any group of the run is ordered with."""
        budget = self.selection.budget
        return self.rollout.group_size if isinstance(budget, FixedBudget) else budget.least

    @model_validator(mode="after")
    def _selection_fits(self) -> Self:
        chosen, size, algo = self.selection, self.rollout.group_size, self.algo
        learns = {
            "selection": chosen.returns_to_tasks,
            f"algo.advantage.type={algo.advantage.type!r}": algo.advantage.returns_to_tasks,
        }
        for name, wanted in learns.items():
            if wanted and self.env.num_train_tasks is None:
                raise ValueError(
                    f"{name} learns about tasks, which must come back: set env.num_train_tasks"
                    f"{', of one environment and no mix' if self.env.mix else ''}"
                )
        if not algo.advantage.keeps_groups and (
            chosen.keep_attempts or not isinstance(chosen.condition, NoCondition)
        ):
            raise ValueError(
                "selection.keep_attempts and selection.condition need "
                f"advantage.type='group_relative', got {algo.advantage.type!r}"
            )
        if (kept := chosen.keep_attempts) is not None and kept > size:
            raise ValueError(
                f"selection.keep_attempts={kept} is more than rollout.group_size={size}"
            )
        budget = chosen.budget
        if not isinstance(budget, FixedBudget) and not budget.least <= size <= budget.most:
            raise ValueError(
                f"selection.budget: rollout.group_size={size} must lie between "
                f"least={budget.least} and most={budget.most}"
            )
        by_group = algo.loss.aggregation == "prompt_mean" or algo.loss.surrogate.is_of_episodes
        if isinstance(chosen.replay, Imitation) and by_group:
            raise ValueError(
                "selection.replay.type='imitation' trains on attempts without a group: wanted no "
                "loss.aggregation='prompt_mean', and no surrogate that fits whole episodes"
            )
        return self

    @model_validator(mode="after")
    def _learner_fits(self) -> Self:
        learner, engine, loss = self.learner.dtype, self.engine.dtype, self.algo.loss
        what = {"behaviour": "takes the difference between engine and learner for a ratio"}
        if loss.correction.weight == "none":
            what["current"] = "leaves the difference between engine and learner out"
        if "bfloat16" in (learner, engine) and loss.old_policy in what:
            raise ValueError(
                f"algo.loss.old_policy={loss.old_policy!r} {what[loss.old_policy]}, which "
                f"learner.dtype={learner!r} with engine.dtype={engine!r} makes as large as 0.3: "
                "use 'proximal', with algo.loss.correction"
            )
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        if isinstance(placed := self.placed_engine, VllmEngineConfig):
            placed.check_run(self.learner.device, self.learner.ranks, self.rollout.temperature)
        rank = self.engine.adapter_rank if isinstance(self.engine, VllmEngineConfig) else 0
        if not rank:
            return self
        own = self.model.lora_rank if isinstance(self.model, PretrainedModelConfig) else 0
        if rank != own or self.learner.ranks > 1:
            raise ValueError(
                f"engine.adapter_rank={rank} gives servers adapters alone: wanted model.lora_rank="
                f"{rank} and learner.ranks=1, got {own} and {self.learner.ranks}; 0 gives them "
                "merged weights"
            )
        return self

    @model_validator(mode="after")
    def _coordinators_fit(self) -> Self:
        rollout, chosen, count = self.rollout, self.selection, self.rollout.coordinators
        if count == 1:
            return self
        plain = {"sampler", "budget", "replay", "condition"}
        wanted = {
            "engine.type='vllm', servers that all can reach": self.engine.type == "vllm",
            "rollout.mode='overlap'": rollout.mode == "overlap",
            f"rollout.groups_per_step, a multiple of {count}": rollout.groups_per_step % count == 0,
            f"rollout.concurrency of {count} or more": rollout.concurrency >= count,
            "another rollout.isolation than 'ray'": rollout.isolation != "ray",
            "a selection that does not adapt: sampler, budget, replay and condition as they are "
            "by default": chosen.model_dump(include=plain)
            == SelectionConfig().model_dump(include=plain),
            "agent.reflection=0, since no other process has its lessons": not self.agent.reflection,
            "run.opentelemetry=false": not self.run.opentelemetry,
        }
        missing = [what for what, is_there in wanted.items() if not is_there]
        if missing:
            raise ValueError(
                f"rollout.coordinators={count} plays in {count} processes: wanted "
                f"{'; and '.join(missing)}"
            )
        check_schedule(rollout.share(0), self.smallest_group)
        return self

    @model_validator(mode="after")
    def _rollout_fits(self) -> Self:
        rollout, loss = self.rollout, self.algo.loss
        check_schedule(rollout.schedule(), self.smallest_group)
        is_behind = rollout.mode == "overlap" and rollout.staleness > 0
        if rollout.group.late == "carry" and not is_behind:
            raise ValueError(
                "rollout.group.late='carry' trains on attempts that end after their step: wanted "
                "rollout.mode='overlap' with rollout.staleness of 1 or more"
            )
        if rollout.admission != "windowed" and (rollout.freshest or not rollout.pace):
            raise ValueError("rollout.pace and rollout.freshest belong to admission='windowed'")
        if rollout.mode == "sync":
            return self
        if self.algo.advantage.updates_last_turn_first:
            raise ValueError(
                "advantage.turn_order='reverse' knows nothing of older weights: wanted "
                "rollout.mode='sync'"
            )
        corrected = loss.correction.weight != "none" or rollout.staleness == 0
        if loss.old_policy == "current" and not corrected:
            raise ValueError(
                "algo.loss.old_policy='current' makes every ratio 1, although rollout.staleness="
                f"{rollout.staleness} lets older weights sample: use 'proximal' or 'behaviour', or "
                "set algo.loss.correction.weight"
            )
        if rollout.stale == "train_partial" and not self.algo.advantage.judges_unfinished:
            raise ValueError(
                "rollout.stale='train_partial' trains on episodes that have not ended, which "
                f"advantage.type={self.algo.advantage.type!r} cannot judge: wanted "
                "rollout.stale='mask_stale', or a method with a critic that bootstraps"
            )
        return self


def recipes() -> dict[str, str]:
    """Return the runs that ship, ``turngym train NAME``, each with its first line of comment."""
    found = _comments(TrainConfig.recipe_folder)
    return {name: text.partition(".\n")[0].replace("\n", "") for name, text in found}


def presets() -> dict[str, str]:
    """Return the credit methods that ship, ``algo=NAME``, each with its comment on one line."""
    return {name: text.replace("\n", "") for name, text in _comments(AlgoConfig.preset_folder)}


def _comments(folder: Traversable | None) -> Iterator[tuple[str, str]]:
    """Yield each TOML file's name and the lines of comment that it begins with."""
    for name, file in sorted({} if folder is None else toml_files(folder).items()):
        lines = takewhile(lambda line: line.startswith("#"), file.read_text("utf-8").splitlines())
        yield name, "\n".join(line.removeprefix("#") for line in lines).strip()
