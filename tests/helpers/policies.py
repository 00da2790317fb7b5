"""Policies for tests: they say what they are told, count, and break in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from turngym.agents.policy import ContextOverflow, EpisodeContext, PolicyTurn
from turngym.types import Message


class Saying:
    """Says one text after the other, the last one for ever; keeps account of its sessions."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.contexts: list[EpisodeContext] = []
        self.closed = 0
        self.alive = 0
        self.most_alive = 0

    def start(self, context: EpisodeContext) -> Session:
        self.contexts.append(context)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        return Session(self, context)

    def act(self, text: str, context: EpisodeContext) -> str:
        return text


class Session:
    """One episode of ``Saying``."""

    def __init__(self, policy: Saying, context: EpisodeContext) -> None:
        self.policy = policy
        self.context = context
        self.texts: Iterator[str] = chain(policy.texts, repeat(policy.texts[-1]))
        self.infos: list[Mapping[str, Any]] = []

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> PolicyTurn:
        await asyncio.sleep(0)
        self.infos.append(info)
        text = self.policy.act(next(self.texts), self.context)
        if text == "think for ever":
            await asyncio.sleep(3600)
        if text == "overflow":
            raise ContextOverflow
        if text == "crash":
            raise ZeroDivisionError("the engine is gone")
        if text == "time out":
            raise TimeoutError("the server did not answer")
        role = "user" if text == "speak for another" else "assistant"
        return PolicyTurn(
            observation=(Message(role="user", content=observation["text"]),),
            action=Message(role=role, content=text),
        )

    def close(self) -> None:
        self.policy.closed += 1
        self.policy.alive -= 1


class BreakingIn(Saying):
    """Breaks in the attempts that are named, and says its texts in the others."""

    def __init__(self, attempts: Sequence[int], how: str, *texts: str) -> None:
        super().__init__(*texts)
        self.attempts = attempts
        self.how = how
        self.seeds: dict[int, int] = {}

    def act(self, text: str, context: EpisodeContext) -> str:
        attempt = self.seeds.setdefault(context.seed, len(self.seeds))
        return self.how if attempt in self.attempts else text
