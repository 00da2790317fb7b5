"""A person who plays: shows what is seen on stdout, reads one action a line from stdin."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from turngym.agents.scripted import InlinePolicy
from turngym.cli.output import say
from turngym.errors import ConfigError

HELP, QUIT = "?", "quit"


class EndOfInput(Exception):
    """The player closed stdin or said ``quit``: a wish, not an error."""


def ask(instructions: str, info: Mapping[str, Any]) -> str:
    """Return the next action that the player types, answering ``?`` on the way.

    Args:
        instructions: Shown on ``?`` when the legal actions cannot be listed.
        info: Of the last reset or step.

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
        say("Legal actions:\n  " + "\n  ".join(legal) if legal else instructions)


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
