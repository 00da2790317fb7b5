"""What to run so that algorithms can be compared: equal starts, equal episodes, equal tasks.

For each environment and seed one warm start is trained. Every algorithm then begins with that very
model, meets the same training tasks in the same order and plays the same number of episodes. The
first of these tasks are those that the expert played for the warm start; validation tasks and
held-out tasks are of no split.

    OUT/<env>/seed-<S>/start/           the model that all begin with
    OUT/<env>/seed-<S>/warm-start/      the run that made it
    OUT/<env>/seed-<S>/<algorithm>/     one run folder each; settings beside it as .toml, and a .log
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turngym import registry
from turngym.agents.engine.config import PretrainedModelConfig
from turngym.config import load_config, to_toml
from turngym.errors import ConfigError
from turngym.records import MANIFEST
from turngym.trainers.runs.checkpoints import find_model
from turngym.trainers.runs.episode_runner import check_environments
from turngym.trainers.runs.needs import check_needs, flat
from turngym.trainers.runs.run_folder import check_same_run, has_begun, read_settings
from turngym.trainers.settings.train import TrainConfig, recipes

Source = str | Path | Mapping[str, Any]
"""As for ``load_config``."""

_FIXED = ("run.seed", "run.steps", "evaluation.target_success")
"""What a comparison decides itself."""
_OWN = ("algo", "engine", "learner", "regularizer", "rollout")
"""What may differ from one algorithm to the other."""
_NAME = re.compile(r"(?!(start|warm-start)$)[\w.-]+(~\d+)?")
"""Of an algorithm, ``~1`` for its first try: the name of its folder, beside those of the heat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAlgo:
    """One algorithm of a comparison."""

    name: str
    """In the report and as a folder."""
    algo: str
    """Preset, or path of a TOML file."""
    settings: tuple[str, ...] = ()
    """``key.path=value`` that the others do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One training run, and where it goes."""

    env: str
    seed: int
    name: str
    folder: Path
    config: TrainConfig

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{self.env}, seed {self.seed}, {self.name}"

    @property
    def settings_file(self) -> Path:
        """TOML that ``turngym train`` reads."""
        return self.folder.with_name(f"{self.folder.name}.toml")

    @property
    def log_file(self) -> Path:
        """What the run said."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def is_done(self) -> bool:
        """True when it is finished, with as many updates as are wanted now."""
        try:
            summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
            return bool(summary["updates"] >= self.config.run.steps)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError):  # said by who reads what came of it
            return True

    def write_settings(self) -> None:
        """Write ``settings_file``."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.settings_file.write_text(to_toml(self.config), encoding="utf-8")

    def check(self) -> None:
        """Make sure that the run can be started, or gone on with.

        Raises:
            ConfigError: A setting cannot be written as TOML, or the folder holds another run.
        """
        if load_config(TrainConfig, [tomllib.loads(to_toml(self.config))]) != self.config:
            raise ConfigError(
                f"{self.label}: a setting is null where the default is not, which TOML cannot say"
            )
        check_same_run(self.folder, self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """Runs that begin with one model: one environment, one seed."""

    start: Path
    """Folder of the model."""
    warm_start: PlannedRun | None
    """Makes it; None when all begin with a pretrained model as it is."""
    runs: tuple[PlannedRun, ...]

    def keep_start(self) -> None:
        """Copy the model of the finished warm start to ``start``, once."""
        if self.warm_start is None:
            return
        partial = self.start.with_name("start.partial")
        with self.start.with_name("start.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the same comparison may run twice
            if not self.start.exists():
                shutil.rmtree(partial, ignore_errors=True)
                shutil.copytree(find_model(self.warm_start.folder), partial)
                partial.rename(self.start)


def plan(
    envs: Sequence[str],
    compared: Sequence[ComparedAlgo],
    *,
    sources: Sequence[Source],
    seeds: Sequence[int],
    budget_episodes: int,
    out: Path,
) -> list[Heat]:
    """Return every run of a comparison, checked before any of them starts.

    Args:
        envs: Environments; without any, that of ``sources``.
        compared: At least one, each with a name of its own.
        sources: TOML files, ``key.path=value`` and mappings; without a file, the shipped settings
            for the environment, or else those of the demo.
        seeds: One run of each algorithm in each environment for each of them.
        budget_episodes: Training episodes of each run; what is left of a last update is not used.
        out: Folder of the comparison.

    Raises:
        ConfigError: A setting is wrong, an environment does not give what an algorithm needs,
            ``out`` holds runs of other settings, or there is nothing to compare.
    """
    names = [one.name for one in compared]
    for what, found in (("algorithm", names), ("seed", list(seeds))):
        if not found or len(set(found)) < len(found):
            raise ConfigError(f"compare: wanted each {what} once, and at least one; got {found}")
    if bad := [name for name in names if not _NAME.fullmatch(name)]:
        raise ConfigError(
            f"compare: {bad[0]!r} is no name for an algorithm: wanted letters, digits, '.', '_' "
            "or '-', and not start or warm-start"
        )
    if (out / MANIFEST).exists():
        raise ConfigError(f"{out}: holds a run; wanted another folder for the comparison")
    has_file = any(not isinstance(source, Mapping) and not _keys(source) for source in sources)
    if not envs and not has_file:
        raise ConfigError("compare: wanted --env ENV, or a TOML file that names one")
    _check_keys(sources, compared)
    heats: list[Heat] = []
    for env in envs or [load_config(TrainConfig, sources).env.id]:
        if not env:
            raise ConfigError(
                "compare: plays no mix; wanted --env A,B and a file without [[env.mix]]"
            )
        base = _base(env, sources, has_file=has_file)
        heats += [_heat(base, compared, s, budget_episodes, out) for s in seeds]
    for heat in heats:
        for run in filter(None, (heat.warm_start, *heat.runs)):
            run.check()
    return heats


def shipped_config(env: str) -> dict[str, Any]:
    """Return the shipped settings for ``env``, or those of the demo with ``env`` in them."""
    wanted = registry.find(env)
    chosen = load_config(TrainConfig, ["demo"])
    shipped = [load_config(TrainConfig, [name]) for name in recipes()]
    # The last one wins: a game as it is before one with options.
    for config in sorted(shipped, key=lambda one: -len(one.env.options)):
        found = registry.find(config.env.id)
        if (found.entry_point, found.kwargs) == (wanted.entry_point, wanted.kwargs):
            chosen = config
    return _in_env(chosen.model_dump(mode="json"), env)


def _keys(source: Source) -> list[str]:
    """Return the full names of what a source sets; none of a file."""
    if isinstance(source, Mapping):
        return list(flat(source))
    key, equals, _ = str(source).partition("=")
    return [key] if equals else []


def _check_keys(sources: Sequence[Source], compared: Sequence[ComparedAlgo]) -> None:
    for key in (key for source in sources for key in _keys(source)):
        if key in _FIXED:
            raise ConfigError(
                f"{key}: compare sets it itself, from --seeds, --budget-episodes and the rule that "
                "no run stops early"
            )
        if key.split(".")[0] == "algo":
            raise ConfigError(
                f"{key}: algorithms come from --algos; to change one, --set NAME:{key}=..."
            )
    for one in compared:
        for key in (setting.split("=")[0] for setting in one.settings):
            if key.split(".")[0] not in _OWN:
                raise ConfigError(
                    f"{one.name.partition('~')[0]}:{key}: --set and --try may only have "
                    f"{', '.join(_OWN)}; what is the same for all stands without them"
                )


def _base(env: str, sources: Sequence[Source], *, has_file: bool) -> dict[str, Any]:
    """Return the settings that all share, with the environment's short name."""
    short = registry.find(env).reference
    kept = {"env": short} if has_file else shipped_config(short)
    config = load_config(TrainConfig, [kept, *sources])
    settings = _in_env(config.model_dump(mode="json"), short)
    asked = [part for source in sources if (part := _of_any_env(source))]
    config = load_config(TrainConfig, [settings, *asked])
    check_environments(config)
    return config.model_dump(mode="json")


def _of_any_env(source: Source) -> Source | None:
    """Return what a source, no file, sets of the environment besides its name."""
    if isinstance(source, Mapping):
        env = source.get("env")
        rest = {k: v for k, v in env.items() if k != "id"} if isinstance(env, Mapping) else {}
        return {"env": rest} if rest else None
    [key] = _keys(source) or [""]
    return source if key.startswith("env.") and key != "env.id" else None


def _in_env(settings: dict[str, Any], env: str) -> dict[str, Any]:
    """Return ``settings`` for another environment, whose options are not those of the first."""
    if registry.find(settings["env"]["id"]).id == registry.find(env).id:
        return {**settings, "env": {**settings["env"], "id": env}}
    return {**settings, "env": {"id": env}}


def _heat(
    base: Mapping[str, Any],
    compared: Sequence[ComparedAlgo],
    seed: int,
    budget_episodes: int,
    out: Path,
) -> Heat:
    env = base["env"]["id"]
    place = out.resolve() / registry.find(env).short_name.replace("/", "-") / f"seed-{seed}"
    planned = partial(PlannedRun, env=env, seed=seed)
    own = load_config(TrainConfig, [base, {"run": {"seed": seed}}])
    is_ready = isinstance(own.model, PretrainedModelConfig) and not own.warm_start.episodes
    start, warm_start, begin = place / "start", None, {}
    if not is_ready:
        warm_start = planned(name="warm-start", folder=place / "warm-start", config=_warm(own))
        begin = _begin_with(own, start)
    configs = {one.name: _algo_config(own, begin, one, budget_episodes) for one in compared}
    if begin:
        configs = {n: _as_begun(place / n, config, start) for n, config in configs.items()}
    runs = (planned(name=n, folder=place / n, config=config) for n, config in configs.items())
    return Heat(start=start, warm_start=warm_start, runs=tuple(runs))


def _warm(own: TrainConfig) -> TrainConfig:
    """Return the run that imitates and stops there. Held-out tasks are left to the others."""
    changes = {
        "run": {"steps": 0},
        "rollout": {"group_size": max(2, own.rollout.group_size)},
        "evaluation": {"target_success": None, "held_out_tasks": 1},
    }
    return load_config(TrainConfig, [own.model_dump(mode="json"), changes, "algo=grpo"])


def _begin_with(own: TrainConfig, start: Path) -> dict[str, Any]:
    model = {"type": "pretrained", "path": str(start), "context": own.model.context}
    model["images"] = own.model.images
    if isinstance(own.model, PretrainedModelConfig):
        model["lora_rank"] = own.model.lora_rank
    return {"model": model, "warm_start": {"episodes": 0}}


def _as_begun(folder: Path, config: TrainConfig, start: Path) -> TrainConfig:
    """Return the settings of a run, with ``start`` where it lay before the comparison was moved."""
    model = config.model
    is_there = (folder / "config.json").exists() and has_begun(folder)
    if not isinstance(model, PretrainedModelConfig) or model.lora_rank or not is_there:
        return config
    before = str(read_settings(folder)["model"].get("path"))
    if Path(before).parts[-3:] != start.parts[-3:]:
        return config
    return load_config(TrainConfig, [config.model_dump(mode="json"), {"model": {"path": before}}])


def _algo_config(
    own: TrainConfig, begin: Mapping[str, Any], one: ComparedAlgo, budget_episodes: int
) -> TrainConfig:
    shared = {**own.model_dump(mode="json"), **begin}
    shared["warm_start"] = {**own.warm_start.model_dump(mode="json"), **begin.get("warm_start", {})}
    shared["evaluation"]["target_success"] = None
    sources: list[Any] = [shared, {"algo": one.algo}, *one.settings]
    sources.append({"algo": {"name": one.name}})
    try:
        config = load_config(TrainConfig, sources)
        check_needs(config)
    except ConfigError as error:
        lines = (f"{one.name}: {line}" for line in str(error).splitlines())
        raise type(error)("\n".join(lines)) from error
    per_step = _episodes_per_update(config)
    steps = budget_episodes // per_step
    if steps < 1:
        raise ConfigError(
            f"--budget-episodes {budget_episodes}: one update of {one.name!r} takes "
            f"{per_step} episodes (rollout.groups_per_step * rollout.group_size)"
        )
    # All are evaluated after as many episodes, as nearly as their updates allow.
    every = max(1, round(own.evaluation.every * _episodes_per_update(own) / per_step))
    changes = {"run": {"steps": steps}, "evaluation": {"every": every}}
    return load_config(TrainConfig, [config.model_dump(mode="json"), changes])


def _episodes_per_update(config: TrainConfig) -> int:
    return config.rollout.groups_per_step * config.rollout.group_size
