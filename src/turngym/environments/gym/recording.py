"""Write every episode that is played in an environment to a file of trajectories."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from turngym.environments.core.env import Observation, Step
from turngym.environments.core.info import Info
from turngym.environments.gym.wrappers import TextEnv
from turngym.records import append_trajectory
from turngym.types import Message, StopReason, Trajectory, Turn


class RecordTurns(gymnasium.Wrapper[Observation, str, Observation, str], RecordConstructorArgs):
    """Appends each episode to ``path`` as a ``Trajectory`` without tokens when it ends.

    Wrap it around the limits, so that their stop reasons are recorded. An episode that is left
    before its end (by ``reset`` or ``close``) and one whose environment breaks are written with an
    ``error_*`` stop reason, so nothing takes them for finished ones. Several environments, in
    several processes too, may write to one file.

    The environment knows no policy seed: the number of the episode stands in its place. An
    environment seed of -1 means that the reset had none.

    Args:
        env: What to wrap.
        path: File of JSON lines; made with its folders if missing, otherwise appended to.
    """

    def __init__(self, env: TextEnv, path: str | os.PathLike[str]) -> None:
        RecordConstructorArgs.__init__(self, path=os.fspath(path))
        gymnasium.Wrapper.__init__(self, env)
        self.path = Path(path)
        self._number = -1
        self._seed = -1
        self._turns: list[Turn] | None = None
        self._seen = ""
        self._info: Info = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Write what is left of the last episode and start a new one with ``options``."""
        self._leave("reset before its end")
        observation, info = self.env.reset(seed=seed, options=options)
        self._number += 1
        self._seed = -1 if seed is None else seed
        self._turns, self._seen, self._info = [], observation["text"], info
        return observation, info

    def step(self, action: str) -> Step:
        """Step and note the turn; write the episode when it is over."""
        before = self._info
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            self._write(StopReason.ERROR_ENV, error=f"step: {type(error).__name__}: {error}")
            raise
        reward = float(reward)
        if self._turns is not None:
            self._turns.append(
                Turn(
                    observation=(Message(role="user", content=self._seen),),
                    action=Message(role="assistant", content=action),
                    reward=reward,
                    reward_parts=info.get("reward_parts", {}),
                    invalid_action=info.get("invalid_action"),
                    anchor=before.get("anchor"),
                )
            )
        self._seen, self._info = observation["text"], info
        if terminated or truncated:
            fallback = StopReason.TERMINATED if terminated else StopReason.TRUNCATED_ENV
            self._write(StopReason(info.get("stop_reason", fallback)), score=info.get("score"))
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Write what is left of the last episode and close the environment."""
        self._leave("closed before its end")
        self.env.close()

    def snapshot_state(self) -> dict[str, Any]:
        """Return what is noted of the running episode."""
        names = ("_number", "_seed", "_seen", "_info", "_turns")
        return copy.deepcopy({name: getattr(self, name) for name in names})

    def restore_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``snapshot_state`` returned."""
        vars(self).update(copy.deepcopy(state))

    def _leave(self, how: str) -> None:
        if self._turns:
            self._write(StopReason.ERROR_POLICY, error=f"the episode was {how}")
        self._turns = None

    def _write(
        self, stop_reason: StopReason, *, score: float | None = None, error: str | None = None
    ) -> None:
        turns, self._turns = self._turns, None
        if turns is None:
            return
        spec = self.unwrapped.spec
        append_trajectory(
            self.path,
            Trajectory(
                env_id=spec.id if spec is not None else str(self.unwrapped),
                task_id=str(self._info.get("task_id", "")),
                env_seed=self._seed,
                policy_seed=self._number,
                turns=tuple(turns),
                stop_reason=stop_reason,
                final_observation=(Message(role="user", content=self._seen),) if turns else (),
                score=score,
                error=error,
            ),
        )
