"""An owner whose environment, in a child process, is in a call that never ends.

Prints the child's id once the call runs.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import gymnasium

from turngym.environments.gym.process import ChildEnv


class Hanging(gymnasium.Env[Any, Any]):
    """Says who it is, and hangs at the first step."""

    def reset(self, **_: Any) -> Any:
        return os.getpid(), {}

    def step(self, action: Any) -> Any:
        print(os.getpid(), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    home = ChildEnv(Hanging)
    home.call("reset")
    home.call("step", 0)
