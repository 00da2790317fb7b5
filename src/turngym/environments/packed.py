"""Packs of tasks (``turngym.tasks.pack``): how they are made of environments, and played.

Of an environment's own tasks a pack has the ids, and of each the digest of what makes its problem
this one. Played from a pack, an environment has these tasks alone; one that is another problem by
now is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gymnasium.envs.registration import load_env_creator

from turngym import registry
from turngym.environments.core.env import AnyEnv
from turngym.environments.core.episode import EpisodeCore, Observation, Outcome
from turngym.environments.core.spaces import Info
from turngym.environments.gym.registration import OF_EVERY, make, turns_of
from turngym.errors import ConfigError, unknown_name
from turngym.provenance import VERSION
from turngym.registry import EnvEntry
from turngym.tasks.base import SPLITS, Split, Task
from turngym.tasks.harbor.folders import harbor_tasks, task_folders
from turngym.tasks.harbor.problem import HarborProblem
from turngym.tasks.pack import (
    SUFFIX,
    Files,
    PackedTask,
    PackManifest,
    digest,
    read_folder,
    read_pack,
)

if TYPE_CHECKING:
    _Base = EpisodeCore
else:
    _Base = object


class OnlyPacked(_Base):
    """Has the tasks of a pack alone; comes before the class of the environment."""

    packed: ClassVar[Mapping[str, PackedTask]]
    """By id."""
    pack: ClassVar[str]
    """Where the pack is."""

    def count(self, split: Split) -> int:
        """Return the number of tasks of a split."""
        return len(self._ids(split))

    def task(self, split: Split, index: int) -> Task:
        """Return task number ``index`` of ``split`` in the order of the pack.

        Raises:
            ConfigError: There are fewer.
        """
        ids = self._ids(split)
        if not 0 <= index < len(ids):
            raise ConfigError(f"{self.pack}: has {len(ids)} tasks of split {split!r}")
        return self.find_task(ids[index])

    def find_task(self, task_id: str) -> Task:
        """Return the task that an id names.

        Raises:
            ConfigError: It is not in the pack.
        """
        if task_id not in self.packed:
            raise ConfigError(f"task {task_id!r}: is not in {self.pack}")
        return super().find_task(task_id)

    def _ids(self, split: Split) -> list[str]:
        return [task.id for task in self.packed.values() if task.split == split]

    def _opened(self, outcome: Outcome) -> tuple[Observation, Info]:
        """Compare the problem with the one that was packed.

        Raises:
            ConfigError: It is another one.
        """
        opened = super()._opened(outcome)
        wanted, found = self.packed[self._task_id].sha256, problem_digest(self)
        if wanted != found:
            raise ConfigError(
                f"task {self._task_id}: is another problem ({found[:16]}) than the one in "
                f"{self.pack} ({wanted[:16]}); pack it anew, or play it with the turngym of then"
            )
        return opened


def problem_digest(env: Any) -> str:
    """Return the SHA-256 of what makes the problem of an environment that was reset this one."""
    key = getattr(env, "instance_key", None)
    task: Task = env.current_task
    return hashlib.sha256(
        f"{task.hash} {key() if key else ''}".encode(errors="replace")
    ).hexdigest()


def playing(entry: EnvEntry, pack: Path, options: Mapping[str, Any], *, id: str) -> EnvEntry:
    """Return the entry by which a pack is played, with the limits of its options.

    Args:
        entry: Of the environment that the tasks are of.
        pack: The file.
        options: With which its tasks were packed.
        id: Of the new entry.
    """
    kwargs = {"pack": str(pack), **{name: options[name] for name in OF_EVERY if name in options}}
    turns = turns_of(entry.id, entry.max_turns, {**entry.kwargs, **options})
    point = f"{__name__}:{play_pack.__name__}"
    return replace(entry, id=id, entry_point=point, kwargs=kwargs, max_turns=turns)


def play_pack(pack: str, **options: Any) -> Any:  # an environment of ours
    """Return the environment of a pack of ids, with its tasks alone.

    Args:
        pack: The file.
        options: Of the environment, besides those in the pack.

    Raises:
        ConfigError: The environment is made by a function.
    """
    manifest = read_pack(Path(pack)).manifest
    entry = registry.find(manifest.env)
    entry.require()
    cls: Any = load_env_creator(entry.entry_point)
    members = {"packed": {task.id: task for task in manifest.tasks}, "pack": pack}
    if not (isinstance(cls, type) and issubclass(cls, EpisodeCore)):
        raise ConfigError(f"{pack}: {manifest.env} is made by a function, which cannot be packed")
    only = type(cls.__name__, (OnlyPacked, cls), {**members, "__module__": cls.__module__})
    own = {name: one for name, one in manifest.options.items() if name not in OF_EVERY}
    return only(**{**entry.kwargs, **own, **options})


@dataclass(frozen=True, kw_only=True)
class Packing:
    """What becomes a pack.

    Args:
        targets: An environment, tasks of it, folders in Harbor's format, or a pack.
        count: Most tasks of each split of an environment.
        options: Of the environment.
        licence: Of all tasks, where a folder does not say its own.
        source: Where they come from, as ``licence``.
    """

    targets: Sequence[str]
    count: int = 20
    options: Mapping[str, Any]
    licence: str = ""
    source: str = ""

    @cached_property
    def folders(self) -> dict[str, Path]:
        """Task folders by name.

        Raises:
            ConfigError: Two have one name.
        """
        found: dict[str, Path] = {}
        for target in map(Path, self.targets):
            for folder in task_folders(target):
                name = _folder_name(folder)
                if found.setdefault(name, folder) != folder:
                    raise ConfigError(f"{folder}: {found[name]} has the same name")
        return found

    def made(self) -> tuple[PackManifest, dict[str, Files]]:
        """Return the manifest, and the files of task folders.

        Raises:
            ConfigError: The targets are of more than one kind, or of one that cannot be packed.
        """
        if any(one.endswith(SUFFIX) for one in self.targets):
            return self._of_pack()
        if self.folders and any(not Path(one).is_dir() for one in self.targets):
            raise ConfigError(
                "a pack holds task folders, or tasks of one environment, and not both"
            )
        if not self.folders:
            return self._of_env(), {}
        files = {name: read_folder(folder) for name, folder in self.folders.items()}
        tasks = [self._of_folder(name, files[name]) for name in sorted(files)]
        return PackManifest(tasks=tuple(tasks)), files

    def task_ids(self, manifest: PackManifest) -> dict[str, dict[str, str]]:
        """Return the packed id of every task, by the environment that plays it and its id there."""
        found: dict[str, dict[str, str]] = {}
        for target in self.targets:
            if manifest.env:
                found[registry.find(named_task(target)[0]).id] = {
                    t.id: t.id for t in manifest.tasks
                }
                continue
            place = read_pack(Path(target)).unpacked() if target.endswith(SUFFIX) else Path(target)
            tasks = harbor_tasks(place, without_network=True)
            found[registry.find(target).id] = {
                f"{tasks.name}/{split}/{index}": _folder_name(tasks.problems[id].folder)
                for split, ids in tasks.ids.items()
                for index, id in enumerate(ids)
            }
        return found

    def _of_pack(self) -> tuple[PackManifest, dict[str, Files]]:
        if len(self.targets) > 1 or self.options:
            raise ConfigError(f"{self.targets[0]}: a pack is packed anew alone, and as it is")
        pack = read_pack(Path(self.targets[0]))
        tasks = tuple(
            task.model_copy(update={"licence": task.licence or self.licence,
                                    "source": task.source or self.source})
            for task in pack.manifest.tasks
        )  # fmt: skip
        return pack.manifest.model_copy(update={"tasks": tasks}), dict(pack.folders)

    def _of_folder(self, name: str, files: Files) -> PackedTask:
        config = HarborProblem(folder=self.folders[name], without_network=True).config
        said = {
            key: str(config.metadata.get(key) or "") for key in ("licence", "license", "source")
        }
        return PackedTask(
            id=name, sha256=digest(files), source=said["source"] or self.source,
            licence=said["license"] or said["licence"] or self.licence,
        )  # fmt: skip

    def _of_env(self) -> PackManifest:
        named = [named_task(target) for target in self.targets]
        names = dict.fromkeys(name for name, _ in named)
        if len(names) > 1:
            raise ConfigError(f"a pack holds tasks of one environment, not of {', '.join(names)}")
        entry = registry.find(next(iter(names)))
        if entry.source is not None:
            raise ConfigError(
                f"{entry.source}: is a place on this machine; a pack holds ids of registered "
                "environments, or folders in Harbor's format"
            )
        with closing(make(entry.id, **self.options)) as env:
            rows = [
                described(env, task)
                for _, one in named
                for task in ([_core(env).task(*one)] if one else first_tasks(env, self.count))
            ]
        ours = f"turngym {VERSION}" if entry.id.startswith("turngym/") else ""
        tasks = tuple(
            PackedTask(
                id=row["id"], split=row["split"], sha256=row["sha256"], licence=self.licence,
                source=self.source or ours,
            )
            for row in rows
        )  # fmt: skip
        return PackManifest(env=entry.id, options=dict(self.options), tasks=tasks)


def _folder_name(folder: Path) -> str:
    return re.sub(r"[^\w.-]+", "-", folder.resolve().name)


def first_tasks(env: AnyEnv, count: int, splits: Sequence[Split] = SPLITS) -> list[Task]:
    """Return the first tasks of each of these splits, ``count`` at most.

    Raises:
        ConfigError: It has none that can be named, or there is no such split.
    """
    core = _core(env)
    if unknown := [split for split in splits if split not in SPLITS]:
        raise unknown_name("split", str(unknown[0]), SPLITS)
    found = [(split, core.count(split)) for split in splits]
    numbers = [(split, count if known is None else min(known, count)) for split, known in found]
    return [core.task(split, index) for split, number in numbers for index in range(number)]


def described(env: AnyEnv, task: Task) -> dict[str, Any]:
    """Return id, split, digest, prompt and instructions of a task, which is begun for it."""
    observation, info = env.reset(seed=0, options={"task": task})
    return {
        "id": task.id, "split": task.split, "sha256": problem_digest(env.unwrapped),
        "prompt": observation["text"], "instructions": info["instructions"],
    }  # fmt: skip


def shown_task(target: str) -> dict[str, Any] | None:
    """Return ``described`` of the task that ``target`` names; None where it names none."""
    name, place = named_task(target)
    if place is None:
        return None
    with closing(make(name)) as env:
        return described(env, _core(env).task(*place))


def _core(env: AnyEnv) -> Any:  # an environment of ours
    core: Any = env.unwrapped
    if not hasattr(core, "find_task"):
        raise ConfigError(f"{core}: plays no tasks that can be named")
    return core


def named_task(target: str) -> tuple[str, tuple[Split, int] | None]:
    """Return the environment that ``target`` names, and split and number of the one task of it."""
    found = re.fullmatch(r"(.+)/(train|test)/(\d+)", target)
    if found is None or Path(target).exists():
        return target, None
    return found[1], ("train" if found[2] == "train" else "test", int(found[3]))
