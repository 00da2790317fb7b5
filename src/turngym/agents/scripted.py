"""Policies without a model or a function of the user's: expert, random, no-op, inline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from turngym.agents.policy import EpisodeContext, PolicySession, PolicyTurn
from turngym.errors import ConfigError
from turngym.types import Message, Turn


class _InlineSession:
    """Acts by a function that is called in the event loop itself, and waits for nothing."""

    def __init__(self, act: Callable[[Mapping[str, Any], Mapping[str, Any]], str]) -> None:
        self._act = act

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        seen = (Message(role="user", content=observation["text"]),)
        text = self._act(observation, info)
        return PolicyTurn(observation=seen, action=Message(role="assistant", content=text))

    def replay(self, observation: Mapping[str, Any], info: Mapping[str, Any], turn: Turn) -> None:
        """Decide again, so that random numbers are where they were; what was done stands."""
        self._act(observation, info)

    def close(self) -> None:
        return None


class InlinePolicy:
    """Acts by a function that is called in the event loop itself, such as one that reads a key."""

    def __init__(self, act: Callable[[Mapping[str, Any], Mapping[str, Any]], str]) -> None:
        self._act = act

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session that calls the function."""
        return _InlineSession(self._act)


class ExpertPolicy:
    """The environment's own expert, mixed with random legal actions.

    Args:
        noise: Probability in [0, 1] of a random legal action instead of the expert's.
        noise_commands: First words of the legal actions that are sampled; empty for all. An
            expert that asks at random but answers well has ``["ask"]``.

    An environment without an expert is refused, and so is one that, at the first turn, has no legal
    action that begins with each of ``noise_commands``.
    """

    def __init__(self, noise: float = 0.0, noise_commands: Collection[str] = ()) -> None:
        if not 0.0 <= noise <= 1.0:
            raise ConfigError(f"ExpertPolicy: noise must lie in [0, 1], got {noise}")
        if isinstance(noise_commands, str):
            raise ConfigError(
                f"ExpertPolicy: noise_commands must be a list, got {noise_commands!r}"
            )
        self._noise = noise
        self._noise_commands = frozenset(noise_commands)

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session that asks the environment's expert."""
        expert, noise, commands = context.expert, self._noise, self._noise_commands
        if expert is None:
            raise ConfigError(f"environment {context.env_id!r} has no expert")
        rng = np.random.default_rng(context.seed)
        is_first = True

        def act(observation: Mapping[str, Any], info: Mapping[str, Any]) -> str:
            nonlocal is_first
            if is_first and commands:
                _check_commands(commands, info, context.env_id)
            is_first = False
            if noise and rng.random() < noise:
                return _random_action(rng, info, context.env_id, commands)
            return expert()

        return _InlineSession(act)


class RandomPolicy:
    """A uniformly random legal action each turn."""

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session with its own generator, seeded by the context."""
        rng = np.random.default_rng(context.seed)
        return _InlineSession(lambda _, info: _random_action(rng, info, context.env_id))


class NoopPolicy:
    """Says nothing, every turn."""

    def start(self, context: EpisodeContext) -> PolicySession:
        """Return a session whose every action is the empty text."""
        return _InlineSession(lambda _observation, _info: "")


def _random_action(
    rng: np.random.Generator, info: Mapping[str, Any], env_id: str, commands: Collection[str] = ()
) -> str:
    legal = _legal(info, env_id)
    if commands:
        legal = [text for text in legal if _first_word(text) in commands] or legal
    return str(legal[int(rng.integers(len(legal)))])


def _check_commands(commands: Collection[str], info: Mapping[str, Any], env_id: str) -> None:
    words = {_first_word(text) for text in _legal(info, env_id)}
    if unknown := set(commands) - words:
        raise ConfigError(
            f"noise_commands: no legal action of {env_id!r} begins with {sorted(unknown)}; "
            f"they begin with {sorted(words)}"
        )


def _legal(info: Mapping[str, Any], env_id: str) -> list[str]:
    legal = info.get("legal_actions")
    if not legal:
        raise ConfigError(f"environment {env_id!r} lists no legal actions to sample from")
    return list(legal)


def _first_word(action: str) -> str:
    return action.partition(" ")[0]
