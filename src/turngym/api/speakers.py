"""Others who speak in an episode: a simulated user, an opponent, a judge.

The environment or the task says when they speak and what they are asked; who sits there is one
text, an option of the environment like any other: a model, as for ``--agent``, or a function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from turngym.agents.chat.agent import ChatAgent
from turngym.agents.chat.prompting import ChatMessage, ChatModel
from turngym.agents.policy import ContextOverflow
from turngym.agents.tool_calls import said_beside
from turngym.api.agents import MODEL_KINDS, make_policy
from turngym.coroutines import awaited
from turngym.errors import ConfigError, EnvironmentFault, EpisodeError
from turngym.plugins import import_attribute
from turngym.types import Message, after_thoughts

Messages = str | Sequence[Message | Mapping[str, str]]
"""One message of the user, or a conversation: roles and contents, as the one who answers sees it,
so that "assistant" are its own earlier words."""
Answering = Callable[[list[dict[str, str]]], str | Awaitable[str]]
"""What a function is that speaks: from a conversation to an answer, plain or a coroutine."""


class Speaker(Protocol):
    """Somebody who answers. Shared by all episodes of a process."""

    async def ask(self, messages: Messages, *, seed: int = 0) -> str:
        """Return the answer to ``messages``, without thoughts and blanks around it.

        Args:
            messages: The whole conversation; nothing is remembered between calls.
            seed: What a model that samples depends on besides; take it from the environment's own
                random numbers, and an episode that is played again is asked the same.

        Raises:
            EnvironmentFault: There is no answer. The episode ends without a reward.
            ConfigError: There will never be one: a wrong key, no such model.
        """


def speaker(who: str | Answering) -> Speaker:
    """Return somebody who answers.

    Args:
        who: ``openai:MODEL``, ``completions:MODEL``, ``hf:NAME_OR_PATH`` or ``run:FOLDER`` with
            settings after a blank, as for ``--agent`` (of the prompt and the history none counts);
            ``module:function`` or ``FILE.py:function``; or a function itself.

    Raises:
        ConfigError: It is none of these, or there is no such function.
    """
    if not isinstance(who, str):
        return _Function(getattr(who, "__name__", "a function"), who)
    return _by_name(who)


@lru_cache(maxsize=64)
def _by_name(who: str) -> Speaker:
    """Return the one speaker that a process has of this name."""
    kind, colon, rest = who.partition(":")
    if kind in MODEL_KINDS and rest:
        return _Model(who)
    if not colon or not rest:
        wanted = ", ".join(f"{kind}:..." for kind in MODEL_KINDS)
        raise ConfigError(f"speaker {who!r}: wanted {wanted}, module:function or FILE.py:function")
    return _Function(who, import_attribute("speaker", who))


class _Function:
    def __init__(self, name: str, answer: Answering) -> None:
        if not callable(answer):
            raise ConfigError(f"speaker {name!r}: wanted a function, found {answer!r}")
        self._name, self._answer = name, answer

    async def ask(self, messages: Messages, *, seed: int = 0) -> str:
        rows = [{"role": one.role, "content": one.content} for one in _rows(messages)]
        try:
            found = await awaited(self._answer(rows))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise EnvironmentFault(f"speaker {self._name!r}: {what}") from error
        return _checked(self._name, found)


class _Model:
    """A chat model, which each event loop has once: its connections belong to the loop."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._agents: WeakKeyDictionary[
            asyncio.AbstractEventLoop, asyncio.Future[ChatAgent[ChatModel]]
        ] = WeakKeyDictionary()

    async def ask(self, messages: Messages, *, seed: int = 0) -> str:
        agent = await self._agent()
        conversation = agent.model.open(seed)
        try:
            answer = await conversation.complete(
                [ChatMessage(message=one) for one in _rows(messages)]
            )
        except (EpisodeError, ContextOverflow) as error:  # of the agent they would mean otherwise
            raise EnvironmentFault(f"speaker {self._who!r}: {error}") from error
        finally:
            await awaited(conversation.close())
        return _checked(self._who, said_beside(answer.message))

    async def _agent(self) -> ChatAgent[ChatModel]:
        loop = asyncio.get_running_loop()
        made = self._agents.get(loop)
        if made is None or (made.done() and made.exception() is not None):
            # A model in a folder takes seconds to load; episodes that ask meanwhile wait for it.
            work: Any = asyncio.to_thread(make_policy, self._who)
            made = self._agents[loop] = asyncio.ensure_future(work)
        return await asyncio.shield(made)


def _rows(messages: Messages) -> list[Message]:
    rows = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return [one if isinstance(one, Message) else Message(**one) for one in rows]  # type: ignore[arg-type]


def _checked(name: str, found: object) -> str:
    if not isinstance(found, str):
        raise EnvironmentFault(f"speaker {name!r}: answered with {found!r}, wanted a text")
    if not (answer := after_thoughts(found).strip()):
        raise EnvironmentFault(
            f"speaker {name!r}: said nothing besides thoughts or calls: {found[:80]!r}"
        )
    return answer
