"""ScienceWorld: experiments of elementary school in a simulated house, one Java process each.

Source: Wang et al. 2022, arXiv:2203.07540.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import weakref
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Action, Commands
from turngym.environments.core.env import Outcome
from turngym.environments.text.base import EngineGame
from turngym.errors import ConfigError
from turngym.tasks.base import Task

_REFUSALS = ("No known action matches", "Unknown action")
_MAX_CHARS = 200
_SEARCH = ("find-animal", "find-living-thing", "find-non-living-thing", "find-plant")

OPTIONS = (
    "-Xmx512m -XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockExperimentalVMOptions -XX:hashCode=2"
)
"""Without a limit the Java process takes about 4 GB; with this one 0.4 GB.

ScienceWorld lists things in the order of hash sets whose hashes are random, so texts
differ from run to run. With a constant hash the order is that of insertion, at 1.3 times the cost
of a step.
"""

_STARTING = threading.Lock()
_LEAVE_SECONDS = 5.0

_variations: dict[str, dict[str, list[int]]] = {}
"""Task name to split to the variations that ScienceWorld gives it; read once."""


class ScienceWorldEnv(EngineGame):
    """Carry out one of ScienceWorld's tasks.

    The Java process starts with the first reset, serves all later ones, and ends with ``close``.

    Action: ScienceWorld's own, for example ``open door to hallway`` or ``focus on seed``.
    Observation: what the simulator says.
    Reward: the change of ScienceWorld's score, as a share of the points that the start does not
    give already; all points are lost at once by focusing on the wrong thing.
    Start: a task and a variation sampled from the task's seed. Training and test tasks are
    ScienceWorld's own training and test variations.
    End: terminated when the task is completed or lost; the registered turn limit truncates.
    """

    name = "scienceworld"
    blocks = True  # the Java process works meanwhile
    extra = "scienceworld"
    modules = ("scienceworld",)
    rules = (
        "You are in a small house with a workshop, a greenhouse and a foundry. Do the task you are "
        "given. Focus on a thing only when the task asks for it: focusing on a wrong thing loses. "
        "When a request is ambiguous, answer with the number of the action that you mean."
    )
    commands = Commands(
        {
            "open": "open {thing...}", "close": "close {thing...}",
            "activate": "activate {thing...}", "deactivate": "deactivate {thing...}",
            "connect": "connect {thing...} to {other...}", "disconnect": "disconnect {thing...}",
            "use_on": "use {thing...} on {other...}", "use": "use {thing...}",
            "look_around": "look around", "look_at": "look at {thing...}",
            "look_in": "look in {thing...}", "read": "read {thing...}",
            "move": "move {thing...} to {place...}", "pick_up": "pick up {thing...}",
            "put_down": "put down {thing...}", "pour": "pour {thing...} into {place...}",
            "dunk": "dunk {thing...} into {place...}", "mix": "mix {thing...}",
            "go": "go to {place...}", "teleport": "teleport to {place...}",
            "eat": "eat {thing...}", "flush": "flush {thing...}", "focus": "focus on {thing...}",
            "wait": "wait", "wait1": "wait1", "inventory": "inventory", "task": "task",
            "reset_task": "reset task", "choose": "{number:int}", "other": "{text...}",
        },
        help={
            "wait": "ten moments",
            "wait1": "one moment",
            "choose": "after an ambiguous request",
            "other": "anything else that ScienceWorld understands",
        },
        keep_case=True,
    )  # fmt: skip
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"simplifications": "easy", "tasks": (
            *_SEARCH, "lifespan-longest-lived", "lifespan-longest-lived-then-shortest-lived",
            "lifespan-shortest-lived",
        )},
        "medium": {"simplifications": "", "tasks": (
            *_SEARCH, "chemistry-mix", "chemistry-mix-paint-secondary-color",
            "chemistry-mix-paint-tertiary-color", "power-component", "use-thermometer",
        )},
        "hard": {"simplifications": "", "tasks": (
            "grow-plant", "identify-life-stages-1", "inclined-plane-determine-angle",
            "measure-melting-point-known-substance",
        )},
    }  # fmt: skip

    _engine: Any = None
    _variation: tuple[str, int]
    _free: int = 0
    """ScienceWorld's points for what the start fulfils already, such as being in the right room."""
    _points: float = 0.0
    _seen: str = ""
    _valid: tuple[str, ...] = ()
    _history: list[str]
    _gold: list[str] | None = None
    _followed: int = 0

    def begin(self, task: Task) -> Outcome:
        if self._engine is not None and process_of(self._engine).poll() is not None:
            self._stop()
        return super().begin(task)

    def start(self, task: Task) -> str:
        if self._engine is None:
            self._engine = start_engine()
            self._end_engine = weakref.finalize(self, stop_engine, self._engine)
        rng = np.random.default_rng(task.seed)
        names = self.settings["tasks"]
        name = str(names[int(rng.integers(len(names)))])
        variations = self._variations_of(name)[task.split]
        self._variation = (name, variations[int(rng.integers(len(variations)))])
        self._history, self._gold, self._followed, self._points = [], None, 0, 0.0
        text, info = self._load(with_gold=False)
        return f"{info['taskDesc'].strip()}\n\n{text.strip()}"

    def turn(self, action: Action) -> Outcome:
        command = self.commands.render(action)
        if len(command) > _MAX_CHARS or not command.isprintable():
            text = f"A command is one line of at most {_MAX_CHARS} characters."
            return Outcome(text=text, invalid_action=text)
        with self._boundary(f"step {command[:60]!r}"):
            return self.play(command)

    def play(self, command: str) -> Outcome:
        before, was_listed = self._points, command in self._valid
        text, _, is_over, info = self._engine.step(command)
        self._note(info)
        self._history.append(command)
        self._follow(command)
        is_over = bool(is_over)
        return Outcome(
            text=text.strip(),
            reward=self._points - before,
            terminated=is_over,
            # Its list holds a few actions that its own parser does not know: no fault of the agent.
            invalid_action=text.strip() if text.startswith(_REFUSALS) and not was_listed else None,
            info={"scienceworld": {"task": self._variation[0], "variation": self._variation[1]}},
        )

    def possible_commands(self) -> dict[str, str]:
        """Return the valid actions that the simulator listed after the last one."""
        return {command: command for command in self._valid}

    def score(self) -> float:
        """Return the share of the points that were to be had; a lost task has 0."""
        return self._points

    def state_key(self) -> str:
        """Return a digest of task, room, inventory and score; hidden things are not part of it."""
        return hashlib.sha256(self._seen.encode()).hexdigest()[:16]

    def expert_command(self) -> str:
        """Return the next action of ScienceWorld's gold path.

        The path leads from the start. After a detour the expert goes on where the path was left,
        which helps only if the detour changed nothing that matters.
        """
        if self._gold is None:
            # Load the variation again with its gold path, and come back to where the episode is.
            self._load(with_gold=True)
            self._gold, self._followed = list(self._engine.get_gold_action_sequence()), 0
            for command in self._history:
                _, _, _, info = self._engine.step(command)
                self._note(info)
                self._follow(command)
        gold = self._gold or []
        return gold[self._followed] if self._followed < len(gold) else "look around"

    def close(self) -> None:
        self._stop()
        super().close()

    def _stop(self) -> None:
        if self._engine is not None:
            self._end_engine()
            self._engine = None

    def _load(self, *, with_gold: bool) -> tuple[str, dict[str, Any]]:
        """Load the variation and look around, as ScienceWorld's own ``reset`` does."""
        name, variation = self._variation
        self._engine.load(name, variation, self.settings["simplifications"], with_gold)
        text, _, _, info = self._engine.step("look around")
        self._free = max(info["score"], 0)
        self._note(info)
        return text, info

    def _note(self, info: dict[str, Any]) -> None:
        self._points = max(info["score"] - self._free, 0) / (100 - self._free)
        self._seen = "\n".join([*map(str, self._variation), info["look"], info["inv"]])
        self._seen += f"\n{info['score']}"
        self._valid = tuple(sorted(set(info["valid"])))

    def _follow(self, command: str) -> None:
        gold = self._gold or []
        if self._followed < len(gold) and gold[self._followed] == command:
            self._followed += 1

    def _variations_of(self, name: str) -> dict[str, list[int]]:
        if name not in _variations:
            self._engine.load(name, 0, self.settings["simplifications"])
            _variations[name] = {
                "train": sorted(self._engine.get_variations_train()),
                "test": sorted(self._engine.get_variations_test()),
            }
            shared = set(_variations[name]["train"]) & set(_variations[name]["test"])
            if shared:
                raise ConfigError(f"{self.name}: {name}: variations {shared} are in both splits")
        return _variations[name]


# The Java process.


def start_engine() -> Any:
    """Return a running ``ScienceWorldEnv`` that never ends an episode by its own step limit."""
    from scienceworld import ScienceWorldEnv

    with _STARTING:  # ScienceWorld passes no options on, so they go through the environment
        before = os.environ.get("JAVA_TOOL_OPTIONS")
        os.environ["JAVA_TOOL_OPTIONS"] = f"{before or ''} {OPTIONS}".strip()
        try:
            return ScienceWorldEnv(envStepLimit=1 << 30)
        finally:
            if before is None:
                del os.environ["JAVA_TOOL_OPTIONS"]
            else:
                os.environ["JAVA_TOOL_OPTIONS"] = before


def process_of(engine: Any) -> Any:
    """Return the ``subprocess.Popen`` of an engine's Java process."""
    return engine._gateway.java_process  # py4j hands it over; ScienceWorld has no accessor


def stop_engine(engine: Any) -> None:
    """End the Java process of ``engine`` and wait for it, also when it is dead already."""
    process = process_of(engine)
    with suppress(Exception):  # a dead process answers nothing
        engine.close()
    engine.close = lambda: None  # ScienceWorld closes once more when it is collected
    with suppress(OSError):
        engine._obj_tree_tempdir.cleanup()
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
