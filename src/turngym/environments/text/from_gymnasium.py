"""Play any Gymnasium environment with a Discrete action space in words."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from turngym.environments.core.actions import Action, ActionStyle, Commands, in_style
from turngym.environments.core.env import Outcome, SnapshotKind, TurnEnv
from turngym.environments.core.spaces import Image, Info, text_observation_space
from turngym.environments.text.base import LOOK
from turngym.errors import ConfigError
from turngym.tasks.base import Task

InnerEnv = gymnasium.Env[Any, Any]
Describe = Callable[[Any, Info], str]
"""(observation, info) -> what the agent reads."""
Success = Callable[[float, Info], float]
"""(sum of rewards so far, last info) -> success in [0, 1]; True and False will do."""


class GymnasiumEnv(TurnEnv):
    """A Gymnasium environment in words, with named actions.

    Args:
        env_or_id: An id for ``gymnasium.make``, a function that makes an environment, or an
            environment, which is copied and never touched.
        actions: What the agent says for each action, in order, for example ``("left", "right")``.
        describe: Observation and info to text; by default a readable form of both, and with
            ``picture`` no more than that there is one.
        name: First part of task ids; by default the id of the environment.
        success: Sum of rewards and last info to a score; without it episodes have no score.
        rules: What an agent should know before it starts.
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        picture: Show what ``draw`` returns: the inner environment rendered as ``"rgb_array"``.
        render_mode: ``"ansi"`` or None.

    Raises:
        ConfigError: It is no Gymnasium environment, its action space is not Discrete, ``actions``
            does not name all of it, or there is no picture.

    A task is a seed of the inner environment, so training and test tasks differ by their seeds
    only; a subclass may sample again until ``accepts`` agrees.

    Action: one of the names. Where the inner ``info`` has an ``action_mask``, a masked action is
    refused without a step; a mask that leaves none is no mask.
    Observation: what ``describe`` makes of the inner one.
    Reward: the inner one.
    Start: the inner reset with the task's seed.
    End: as the inner environment says, ``terminated`` and ``truncated`` alike.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "replay"

    def __init__(
        self,
        env_or_id: str | InnerEnv | Callable[[], InnerEnv],
        *,
        actions: Sequence[str],
        describe: Describe | None = None,
        name: str = "",
        success: Success | None = None,
        rules: str = "",
        action_style: ActionStyle = "commands",
        picture: bool = False,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.shows_picture = picture
        self.inner = _made(env_or_id, render_mode="rgb_array" if picture else None)
        spec = self.inner.spec
        kind = spec.id if spec is not None else type(self.inner.unwrapped).__name__
        self.name = name or re.sub(r"[^\w.]+", "-", kind).strip("-").lower()
        self.rules = rules
        self._first = _first_action(self.inner, actions, self.name)
        self._names = {_identifier(text): text for text in actions}
        self.action_format = in_style(action_style, Commands(self._names))
        self._describe = describe or ((lambda *_: LOOK) if picture else readable)
        self._success = success
        self._total = 0.0
        self._observation: Any = None
        self._inner_info: Info = {}
        if picture:
            self.inner.reset(seed=0)
            height, width, _ = self.draw().shape
            self.observation_space = text_observation_space(image_hw=(height, width))

    def begin(self, task: Task) -> Outcome:
        rng = np.random.default_rng(task.seed)
        self._total = 0.0
        for _ in range(10_000):
            seed = int(rng.integers(1 << 31))
            self.prepare(seed)
            self._observation, self._inner_info = self.inner.reset(seed=seed)
            if self.accepts(task):
                return Outcome(text=self.text(), info=self.opening_info())
        raise ConfigError(f"{self.name}: no start of split {task.split!r} in 10000 samples")

    def turn(self, action: Action) -> Outcome:
        number = list(self._names).index(action.name)
        if not self._is_legal(number):
            problem = f"{self._names[action.name]!r} is not possible here."
            return Outcome(text=f"{problem} {self.text()}", invalid_action=problem)
        inner_action = self._first + number
        result = self.inner.step(inner_action)
        self._observation, reward, terminated, truncated, self._inner_info = result
        self._total += float(reward)
        own_reward = self.reward(float(reward), bool(terminated))
        return Outcome(
            text=self.text(),
            reward=own_reward,
            terminated=bool(terminated),
            truncated=bool(truncated),
            info={"inner_reward": float(reward)},
        )

    def score(self) -> float | None:
        if self._success is None:
            return None
        return float(self._success(self._total, self._inner_info))

    def legal_actions(self) -> list[str]:
        """Return the actions that are not masked; all of them when there is no mask."""
        return [self.say(n) for n in range(len(self._names)) if self._is_legal(n)]

    def reminder(self) -> str:
        return self.text()

    def say(self, number: int) -> str:
        """Return the text that does action ``number`` (counted from 0)."""
        return self.action_format.render(Action(name=list(self._names)[number]))

    def text(self) -> str:
        """Return what the agent reads now."""
        return self._describe(self._observation, self._inner_info)

    def picture(self) -> Image | None:
        """Return what ``draw`` does, where pictures are shown."""
        return self.draw() if self.shows_picture else None

    def close(self) -> None:
        self.inner.close()

    # What a subclass may override.

    def prepare(self, seed: int) -> None:
        """Change or replace ``self.inner`` before it is reset with ``seed``."""

    def accepts(self, task: Task) -> bool:
        """Return True when the sampled start may stand for ``task``."""
        return True

    def opening_info(self) -> Info:
        """Return more ``info`` for the reset."""
        return {}

    def reward(self, inner_reward: float, terminated: bool) -> float:
        """Return the reward of a step, which ``terminated`` the episode or not."""
        return inner_reward

    def draw(self) -> Image:
        """Return what the state looks like, uint8 [H, W, 3], of one size for all states.

        Raises:
            ConfigError: The inner environment does not draw such a picture.
        """
        try:
            frame: Any = self.inner.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise ConfigError(f"{self.name}: no picture: {error}") from error
        if getattr(frame, "dtype", None) != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            found = getattr(frame, "shape", type(frame).__name__)
            raise ConfigError(
                f"{self.name}: render() returned {found}, wanted uint8 [H, W, 3]; make the "
                'environment with render_mode="rgb_array"'
            )
        return np.array(frame)

    def _is_legal(self, number: int) -> bool:
        mask = self._inner_info.get("action_mask")
        return mask is None or bool(mask[number]) or not any(mask)  # none left is no mask


from_gymnasium = GymnasiumEnv
"""Returns a turn environment that plays a Gymnasium environment."""


def readable(observation: Any, info: Info) -> str:
    """Return an observation in short words: numbers as they are, arrays as lists."""
    if isinstance(observation, dict):
        parts = (f"{key} {readable(value, info)}" for key, value in observation.items())
        return ". ".join(parts)
    if isinstance(observation, tuple):
        return ", ".join(readable(part, info) for part in observation)
    if isinstance(observation, np.ndarray):
        return np.array2string(observation, precision=3, separator=" ", threshold=200)
    return str(observation)


def _made(
    env_or_id: str | InnerEnv | Callable[[], InnerEnv], *, render_mode: str | None
) -> InnerEnv:
    if isinstance(env_or_id, str):
        return gymnasium.make(env_or_id, render_mode=render_mode)
    if not isinstance(env_or_id, gymnasium.Env):
        made = env_or_id() if callable(env_or_id) else env_or_id
        if not isinstance(made, gymnasium.Env):
            kind = f"{type(made).__module__}.{type(made).__qualname__}"
            raise ConfigError(f"from_gymnasium: {kind} is no gymnasium.Env; write a TurnEnv for it")
        return made
    try:
        return copy.deepcopy(env_or_id)
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ConfigError(
            f"from_gymnasium: {env_or_id} cannot be copied ({error}); pass a function that makes it"
        ) from error


def _first_action(env: InnerEnv, actions: Sequence[str], name: str) -> int:
    space = env.action_space
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(f"{name}: the action space is {space}, wanted a Discrete one")
    if len(actions) != space.n or len({_identifier(text) for text in actions} - {""}) != space.n:
        raise ConfigError(
            f"{name}: actions names {len(actions)} actions, wanted {space.n} names that differ in "
            f"letters or digits, found {', '.join(map(repr, actions))}"
        )
    return int(space.start)


def _identifier(text: str) -> str:
    return re.sub(r"\W+", "_", text.strip().lower()).strip("_")
