"""Reflection: lessons from failed attempts, shown to the next attempt at the same task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from turngym.agents.chat.conversation import ChatMessage
from turngym.agents.chat.history import Ask
from turngym.agents.policy import EpisodeContext, EpisodeEnd
from turngym.errors import ConfigError
from turngym.types import Message, Role

REFLECT = (
    "The attempt is over and did not succeed ({how}). Say in one or two sentences what went wrong "
    "and what you will do differently in the next attempt at this very task. Take no action now."
)
_MAX_LESSON_CHARS = 600


class Reflection:
    """A memory of lessons, per task.

    The first attempt at a task knows none. Attempts that run at the same time do not learn from
    each other. The judge's verdict is used between attempts, so numbers of an agent with reflection
    compare with others of the same number of attempts only.

    Args:
        keep: Most lessons that are shown, the newest.

    Source:
        Shinn et al. 2023, "Reflexion: Language Agents with Verbal Reinforcement Learning",
        arXiv:2303.11366.
    """

    def __init__(self, keep: int = 3) -> None:
        if keep < 1:
            raise ConfigError(f"reflection: keep must be at least 1, got {keep}")
        self._keep = keep
        self._lessons: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def lessons(self, context: EpisodeContext) -> list[str]:
        """Return what was learned in earlier attempts, oldest first."""
        return self._lessons[context.env_id, context.task_id][-self._keep :]

    async def learn(
        self, context: EpisodeContext, messages: Sequence[ChatMessage], end: EpisodeEnd, *, ask: Ask
    ) -> None:
        """Have the model say what to do better, unless the attempt succeeded."""
        if end.score is not None and end.score >= 1.0:
            return
        how = end.stop_reason.value if end.score is None else f"score {end.score:g}"
        text = "\n\n".join(filter(None, [end.observation, REFLECT.format(how=how)]))
        role: Role = "tool" if messages and messages[-1].call_ids else "user"
        request = ChatMessage(message=Message(role=role, content=text))
        lesson = " ".join((await ask([*messages, request])).split())[:_MAX_LESSON_CHARS]
        if lesson:
            self._lessons[context.env_id, context.task_id].append(lesson)
