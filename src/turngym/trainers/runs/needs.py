"""Asked before anything starts: what a credit method needs, and what of a run may change.

Settings of a run that has begun may change so that it only gets longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from turngym import registry
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.models import check_model_path
from turngym.config import load_config, toml_files
from turngym.custom import custom_parts
from turngym.environments.gym.registration import done_with, make
from turngym.errors import ConfigError
from turngym.registry import EnvEntry
from turngym.tracing import check_tracing
from turngym.trainers.settings.algo import AlgoConfig, TeacherConfig, needs_of
from turngym.trainers.settings.group import MonteCarlo, UtteranceCritic
from turngym.trainers.settings.rewards import Need, Progress
from turngym.trainers.settings.train import EnvPart, TrainConfig, recipes
from turngym.trainers.trackers.base import check_trackers

_MEANING: dict[Need, str] = {
    "state_key": "a key of each state, info['state_key']",
    "ground_truth": "the true answer and its wording, info['ground_truth'] and info['answer']",
    "potential": "how promising each state is, info['potential']",
    "expert_match": "agreement with an expert, which env.expert_match=true pays for",
}
_MOST_NAMES = 8


def check_needs(config: TrainConfig) -> None:
    """Make sure that the credit method of ``config`` can work in its environment.

    What an environment declares is believed. One that declares nothing, as a plug-in may, is reset
    once and looked at. Functions of the user's own are imported, and what watches the run is there.

    Raises:
        MissingExtraError: A tracker, or OpenTelemetry, is not installed.
        ConfigError: Something is missing; the message names it and the environments that give it.
            Or a setting is named that counts only beside another one, which is not.
    """
    _check_unread(config)
    for own in custom_parts(config):
        own.imported()
    if config.learner.routing == "replay" and not getattr(config.engine, "routing", False):
        raise ConfigError(
            "learner.routing='replay' takes the experts that vLLM reports: wanted engine.type=vllm "
            "and engine.routing=true"
        )
    _check_comparisons(config)
    if config.model.images:
        _check_sight(config)
    if config.algo.teacher is not None:
        _check_teacher(config, config.algo.teacher)
    check_trackers(config.run.trackers)
    if config.run.opentelemetry:
        check_tracing()
    needs = needs_of(config.algo.rewards, config.algo.advantage)
    made: dict[str, EnvPart] = {}
    for part in config.env.parts:
        entry = registry.find(part.id)
        other = made.setdefault(entry.id, part)
        if (part.options, part.expert_match) != (other.options, other.expert_match):
            raise ConfigError(
                f"env.mix: {part.id!r} is there twice, and not with the same options: name it by "
                "a difficulty, such as text/maze-easy, or register it under a second id"
            )
        if not needs:
            continue
        given = set(entry.provides) or _seen(part)
        if part.expert_match:
            given.add("expert_match")
        missing = [need for need in needs if need not in given]
        if missing:
            what = " and ".join(_MEANING[need] for need in missing)
            raise ConfigError(
                f"env.id={part.id!r} does not give what algo {config.algo.name!r} needs: {what}. "
                f"{_who_gives([need for need in needs if need != 'expert_match'])}"
                f"{_example(config.algo.name, needs)}"
            )


def _check_comparisons(config: TrainConfig) -> None:
    """Make sure that a loss has the attempts that it compares, and lessons are of real episodes.

    Raises:
        ConfigError: It has not, or they are not.
    """
    algo, surrogate = config.algo, config.algo.loss.surrogate
    if config.rollout.group.late == "carry" and surrogate.compares_attempts:
        raise ConfigError(
            "rollout.group.late='carry' trains on each late attempt without the others of its "
            f"group, which algo.loss.surrogate.type={surrogate.type!r} compares: wanted late='drop'"
        )
    if config.agent.reflection and isinstance(algo.advantage, MonteCarlo):
        raise ConfigError(
            f"agent.reflection={config.agent.reflection} keeps a lesson of every failure, and algo "
            f"{algo.name!r} plays each episode on many times: wanted agent.reflection=0"
        )


def _check_unread(config: TrainConfig) -> None:
    """Make sure that no setting is named by itself that nothing reads.

    A file that names all settings, as ``turngym config show`` prints it, names the switch as well.

    Raises:
        ConfigError: One is.
    """
    imitation = config.algo.loss.imitation
    parts = ("demonstrations", "successes_only", "episodes_per_step")
    ahead = ("staleness", "admission", "stale", "interruption")
    for where, block, names, switch in (
        ("rollout", config.rollout, ahead, "mode=overlap"),
        ("rollout", config.rollout, ("workers",), "isolation=ray"),
        ("warm_start", config.warm_start, ("min_score",), "trajectories=FOLDER"),
        ("algo.loss.imitation", imitation, parts, "weight=1"),
    ):
        named = block.model_fields_set
        idle = [name for name in names if name in named and getattr(block, name)]
        if idle and switch.partition("=")[0] not in named:
            raise ConfigError(
                f"{where}.{idle[0]} counts only beside {where}.{switch}, and that is not set: set "
                f"it, or leave {idle[0]} out"
            )


def _check_teacher(config: TrainConfig, teacher: TeacherConfig) -> None:
    """Make sure that there is one teacher, and that it can read what the policy does.

    Raises:
        ConfigError: It is not so.
    """
    if bool(teacher.model) == (teacher.server is not None):
        raise ConfigError(
            f"algo {config.algo.name!r}: wanted a teacher, and one: algo.teacher=FOLDER of a model "
            "with the policy's tokenizer, or algo.teacher.server, a server that has one"
        )
    if teacher.server is not None and config.model.images:
        raise ConfigError(
            "algo.teacher.server is shown no pictures: with a model that sees wanted algo.teacher, "
            "a folder"
        )
    try:
        if teacher.server is None:
            check_model_path(teacher.model, context=config.model.context)
        else:
            _ = teacher.server.key  # and address
    except ConfigError as error:
        raise ConfigError(f"algo.teacher: {error}") from error


def _check_sight(config: TrainConfig) -> None:
    """Make sure that all parts of a run of a model that sees can read pictures.

    Raises:
        ConfigError: One cannot.
    """
    if isinstance(config.engine, VllmEngineConfig) and config.engine.server == "turngym":
        raise ConfigError(
            "engine.server='turngym' is shown no pictures: with a model that sees wanted "
            "engine.server='vllm' or engine.type='local'"
        )
    critic = getattr(config.algo.advantage, "critic", None)
    if isinstance(critic, UtteranceCritic) and critic.encoder != "policy":
        raise ConfigError(
            f"algo {config.algo.name!r}: an encoder of its critic's own sees no pictures, and the "
            "model does: wanted algo.advantage.critic.encoder=policy"
        )
    if any(isinstance(one, Progress) and one.body == "small" for one in config.algo.rewards):
        raise ConfigError(
            f"algo {config.algo.name!r}: body='small' of the reward 'progress' sees no pictures, "
            "and the model does: wanted body='policy'"
        )


def provided(entries: Iterable[EnvEntry], needs: Collection[Need]) -> list[str]:
    """Return the environments among ``entries`` that declare all ``needs``, one name per game.

    A game that is registered several times, once for each difficulty, is named by its shortest.
    """
    games: dict[str, list[str]] = {}
    for entry in entries:
        if entry.provides.issuperset(needs):
            games.setdefault(entry.entry_point, []).append(entry.short_name)
    return sorted(min(names, key=len) for names in games.values())


def _who_gives(needs: Collection[Need]) -> str:
    if not needs:
        return "Any environment with an expert will do"
    names = provided(registry.entries(), needs)
    if not names:
        return "No installed environment does"
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"These do: {shown}" + (f" and {more} more, see 'turngym envs'" if more > 0 else "")


def _example(algo: str, needs: Collection[Need]) -> str:
    """Return a command that trains a shipped recipe with a preset; nothing where none fits."""
    folder = AlgoConfig.preset_folder
    if folder is None or algo not in toml_files(folder):
        return ""
    envs = {name: load_config(TrainConfig, [name]).env for name in recipes()}
    fits = [
        name
        for name, env in envs.items()
        if env.id and registry.find(env.id).provides.issuperset(needs)
    ]
    # Recipes of the benchmarks come last.
    fits.sort(key=lambda name: name.startswith("credit"))
    return f". For example: turngym train {fits[0]} algo={algo}" if fits else ""


def _seen(config: EnvPart) -> set[Need]:
    """Return what the first ``info`` of an environment holds."""
    env = make(config.id, **config.options)
    try:
        _, info = env.reset(seed=0)
    finally:
        done_with(env)
    found: set[Need] = {need for need in ("state_key", "potential") if need in info}
    if "ground_truth" in info and "answer" in info:
        found.add("ground_truth")
    return found


_KEPT_FREE = frozenset(
    {
        "learner.offload",
        "learner.ranks",
        "rollout.isolation",
        "run.checkpoint_every",
        "run.keep_checkpoints",
        "run.opentelemetry",
        "run.tensorboard",
        "run.trackers",
    }
)
"""Settings on which no result depends, or by rounding only."""
_MOST_LINES = 10
_LONGEST_VALUE = 60


def check_change(
    path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Return how ``found`` differs from ``wanted``, as ``key: [before, now]``, only longer.

    Raises:
        ConfigError: One does more than that; the message has a line for each of the first ten.
    """
    before, now = flat(found), flat(wanted)
    changed = {
        key: [before.get(key), now.get(key)]
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    }
    refused = [key for key, (old, new) in changed.items() if not _may_change(key, old, new)]
    if "model.path" in refused and now.get("model.lora_rank"):
        refused.remove("model.path")  # what adapters belong to is compared when it is loaded
    if refused:
        lines = [
            f"{key}={_short(changed[key][0])}, not {_short(changed[key][1])}" for key in refused
        ]
        raise ConfigError(_refusal(path, lines))
    if "run.steps" in changed and now.get("learner.lr_schedule") == "cosine":
        old, new = changed["run.steps"]
        raise ConfigError(
            f"{path}: holds a run with run.steps={old}, not {new}, and its "
            "learner.lr_schedule='cosine' falls to 0 at the last step, so that more steps are "
            "another run; choose another folder with --out, or keep the steps"
        )
    return changed


def extends(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether ``wanted`` has more updates than ``found``."""
    return bool(wanted["run"]["steps"] > found["run"]["steps"])


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of a tree of tables by their full names, after ``prefix``."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _may_change(key: str, old: Any, new: Any) -> bool:
    if key == "run.steps":
        return bool(new > old)
    if key == "rollout.timeout_s":
        return old is not None and (new is None or new > old)
    if key == "rollout.coordinators":  # a run of an earlier version had one
        return old is None and bool(new == 1)
    if key.startswith(("rollout.workers.", "algo.teacher.server.")):
        return not key.endswith(".model")
    if key.startswith("engine."):  # which servers sample decides nothing, but what they are does
        return key not in ("engine.type", "engine.dtype")
    return key in _KEPT_FREE


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _refusal(path: Path, lines: list[str]) -> str:
    advice = "choose another folder with --out, or the same settings to resume"
    if len(lines) == 1:
        return f"{path}: holds a run with {lines[0]}; {advice}"
    more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return "\n".join(
        [f"{path}: holds a run with other settings; {advice}", *lines[:_MOST_LINES], *more]
    )
