"""``turngym play``, and a person who plays: one action a line from stdin."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import Annotated, Any

import gymnasium
import numpy as np
import typer

from turngym.agents.scripted import InlinePolicy
from turngym.cli.arguments import Env, EnvOptions, env_options
from turngym.cli.output import say
from turngym.environments.gym.registration import make
from turngym.errors import ConfigError
from turngym.reports.texts import amount

HELP, QUIT = "?", "quit"
_SHOWN_ACTIONS = 30
"""A game of words has hundreds of legal actions; a screen holds so many."""


class EndOfInput(Exception):
    """The player closed stdin or said ``quit``: a wish, not an error."""


def ask(instructions: str, info: Mapping[str, Any]) -> str:
    """Return the next action that the player types.

    On ``?`` come the legal actions of ``info``, or ``instructions`` where they cannot be listed.

    Raises:
        EndOfInput: The player wants to stop.
    """
    while True:
        line = _read_line().strip()
        if line.lower() == QUIT:
            raise EndOfInput
        if line != HELP:
            return line
        legal = info.get("legal_actions")
        say(_legal_text(legal) if legal else instructions)


def _legal_text(legal: Sequence[str]) -> str:
    left = len(legal) - _SHOWN_ACTIONS
    rest = f"\n  ... and {left} more" if left > 0 else ""
    return "Legal actions:\n  " + "\n  ".join(legal[:_SHOWN_ACTIONS]) + rest


def person() -> InlinePolicy:
    """Return the agent ``human``: the user at the keyboard."""

    def act(observation: Mapping[str, Any], info: Mapping[str, Any]) -> str:
        if "instructions" in info:  # the first turn of an episode
            say(f"\n{info['task_id']}: '?' lists actions, 'quit' stops.\n{info['instructions']}\n")
        say(observation["text"])
        try:
            return ask("", info)
        except EndOfInput:
            raise ConfigError("agent 'human': the input ended before the episodes did") from None

    return InlinePolicy(act)


def _read_line() -> str:
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if not line:
            raise EndOfInput
        return line
    with suppress(ImportError):  # gives input() line editing and a history
        import readline  # noqa: F401
    try:
        return input("> ")
    except EOFError:
        raise EndOfInput from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the block at once.

    Left alone, asyncio cancels its main task, which notices only when some task waits; scripted
    agents in games of pure Python never do.
    """
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # not Python's own handler, which asyncio would replace


def play(
    env: Env,
    task: Annotated[
        str | None, typer.Option(help="Task id, such as maze-easy/test/0; random by default.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the episode; random by default.")
    ] = None,
    env_option: EnvOptions = None,
) -> None:
    """Play an episode yourself: type an action, ? for the legal ones, quit or Ctrl-D to stop.

    Lines may also come from a pipe.
    """
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    with closing(make(env, **env_options(env_option))) as world:
        options = {} if task is None else {"task": task}
        observation, info = world.reset(seed=seed, options=options)
        say(f"{env}: task {info['task_id']}, seed {seed}. '?' lists actions, 'quit' stops.")
        play_from(world, observation, info, info.get("instructions", ""))


def play_from(
    world: gymnasium.Env[Any, Any], observation: Any, info: Mapping[str, Any], instructions: str
) -> None:
    """Have the user play an episode to its end, from its first observation on."""
    print(instructions, end="\n\n")
    turns, episode_return = 0, 0.0
    over = False
    while not over:
        print(observation["text"], flush=True)
        try:
            action = ask(instructions, info)
        except EndOfInput:
            print(f"stopped after {amount(turns, 'turn')}: return {episode_return:g}")
            return
        observation, reward, terminated, truncated, info = world.step(action)
        over = terminated or truncated
        turns += 1
        episode_return += float(reward)
        if float(reward) != 0:
            print(f"[reward {float(reward):+g}]")
    print(observation["text"])
    score = info.get("score")
    judged = "not scored" if score is None else f"score {score:g}"
    reason = info.get("stop_reason", "terminated" if terminated else "truncated")
    print(f"{reason} after {amount(turns, 'turn')}: return {episode_return:g}, {judged}")
