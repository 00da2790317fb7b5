"""What is asked: a frozen, hashable record of one problem instance."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from turngym.errors import ConfigError
from turngym.seeding import derive_seed

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")

_TASK_ID = re.compile(r"^(?P<name>[\w./-]+)/(?P<split>train|test)/(?P<index>\d+)$")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem instance. Picklable and JSON-serialisable.

    The same task gives the same problem on every machine.
    """

    id: str
    """Stable name, ``"<environment>/<split>/<index>"``, for example ``"maze-easy/test/17"``."""
    seed: int
    """Seeds everything that is random in the making of the problem."""
    split: Split = "train"
    prompt: str = ""
    """What is asked, when it is known before the episode starts."""
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What distinguishes this instance, as JSON values."""
    version: str = "0"
    env_id: str = ""
    """Environment that plays it; empty where there is only one."""

    @cached_property
    def hash(self) -> str:
        """Content digest, 16 hex digits; equal contents give equal digests."""
        content = [self.id, self.seed, self.split, self.prompt, self.version]
        text = json.dumps([*content, dict(self.params)], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def procedural_task(name: str, split: Split, index: int) -> Task:
    """Return task number ``index`` of a generated, endless task set.

    Args:
        name: Name of the task set, usually the short name of the environment.
        split: ``"train"`` or ``"test"``.
        index: 0 or more.

    Raises:
        ConfigError: ``index`` is negative.
    """
    if index < 0:
        raise ConfigError(f"task {name}/{split}/{index}: the index must be 0 or more")
    return Task(id=f"{name}/{split}/{index}", seed=derive_seed(0, name, split, index), split=split)


def parse_task_id(name: str, task_id: str) -> Task:
    """Return the procedural task that ``task_id`` names, checking that it belongs to ``name``.

    Raises:
        ConfigError: The id is malformed or belongs to another environment.
    """
    match = _TASK_ID.match(task_id)
    if match is None or match["name"] != name:
        raise ConfigError(
            f"task id {task_id!r}: wanted '{name}/<train|test>/<index>', for example "
            f"'{name}/test/0'"
        )
    split: Split = "train" if match["split"] == "train" else "test"
    return procedural_task(name, split, int(match["index"]))


def split_of(content: str, *, one_in: int = 5, remainder: int = 0) -> Split:
    """Return the split of the problem with this content; equal contents, equal splits.

    Args:
        content: Everything that makes the problem this one.
        one_in: Share of the test split: one problem in so many.
        remainder: Which residue of the digest is tested, 0 to ``one_in - 1``.
    """
    digest = hashlib.sha256(content.encode()).digest()
    return "test" if digest[0] % one_in == remainder else "train"
