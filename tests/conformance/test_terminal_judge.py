"""The judge of terminal jobs asks its probe where the agent has never been."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turngym.environments.terminal.env import TerminalEnv

pytestmark = pytest.mark.extra("bwrap")


async def test_a_probe_sees_the_agents_files_and_nothing_else_it_left():
    env = TerminalEnv(kind="total_of_city")
    try:
        await env.reset(seed=0)
        left = "/tmp/left /home/agent/left /var/tmp/left /dev/shm/left"
        probe = f"ls -d {left} 2>/dev/null; cat kept"
        env._problem = replace(env.problem, probe=probe, expected="mine", wanted={}, free=("kept",))
        command = f"touch {left}; ls -d {left}; echo mine > kept"
        observation, *_ = await env.step(env.say("bash", command=command))
        assert "/dev/shm/left" in observation["text"]  # the control
        _, reward, terminated, _, info = await env.step(env.say("submit"))
        assert (reward, terminated, info["problem"]) == (1.0, True, "")
    finally:
        await env.close()
