"""The expert's script is recognized when it was run, whatever its last line ends in."""

from dataclasses import replace

import pytest

from turngym.environments.terminal.env import TerminalEnv
from turngym.errors import ConfigError


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


def test_a_script_that_cannot_be_said_is_refused_and_not_repeated() -> None:
    env = TerminalEnv()
    env._problem = replace(env.tasks.problem(env.task("train", 0)), solution="  ")
    with pytest.raises(ConfigError, match="the expert's script cannot be said"):
        env.expert_action()
