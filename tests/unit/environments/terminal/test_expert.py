"""The expert's script is recognized when it was run, whatever its last line ends in."""

from dataclasses import replace
from typing import Any

import pytest

from turngym.environments.terminal.env import TerminalEnv
from turngym.errors import TaskFault


@pytest.mark.parametrize("style", ["commands", "tools"])
@pytest.mark.parametrize(
    "script", ["touch a", "touch a\n", "\ntouch a\ntouch b\n\n", "cat <<E\nx\nE\n"]
)
def test_the_script_of_an_expert_is_known_again(style: str, script: str) -> None:
    env = TerminalEnv(action_style=style)  # type: ignore[arg-type]
    problem = env.tasks.problem(env.task("train", 0))
    env._problem = replace(problem, solution=script)
    assert env._is_next(env.action_format.parse(env.expert_action()))
    assert not env._is_next(env.action_format.parse(env.say("bash", command="touch c")))


@pytest.mark.parametrize("script", ["  ", b"touch a", 5])
def test_a_script_that_cannot_be_said_is_a_fault_and_not_repeated(script: Any) -> None:
    env = TerminalEnv()
    env._problem = replace(env.tasks.problem(env.task("train", 0)), solution=script)
    with pytest.raises(TaskFault, match=f"expert: {script!r} cannot be said as a call of bash"):
        env.expert_action()
