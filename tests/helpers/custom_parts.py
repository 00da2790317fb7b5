"""Parts as a user would write them, named in settings as ``helpers.custom_parts:...``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turngym.agents.chat.prompting import Ask, ChatMessage, PlainPrompting, Rewritten
from turngym.agents.config import PartsConfig
from turngym.trainers.losses.surrogates import SurrogateInputs
from turngym.trainers.selection.samplers import SampledTasks, UniformSampler
from turngym.types import Message


def reinforce(inputs: SurrogateInputs, *, scale: float = 1.0) -> Tensor:
    """Be what ``pg`` is."""
    return -scale * inputs.advantages * inputs.policy_logprobs


def bounded(inputs: SurrogateInputs, *, most: float) -> tuple[Tensor, Tensor]:
    """Train on advantages up to a size, and say which are larger."""
    too_large_N = inputs.advantages.abs() > most
    losses_N = -inputs.advantages * inputs.policy_logprobs
    return torch.where(too_large_N, 0.0, losses_N), too_large_N


async def late_loss(inputs: SurrogateInputs) -> Tensor:
    """Come when it is too late."""
    return reinforce(inputs)


def wrong_loss(inputs: SurrogateInputs, *, how: str) -> Any:
    """Return what no loss is."""
    losses_N = reinforce(inputs)
    wrong = {
        "summed": lambda: losses_N.sum(),
        "detached": lambda: losses_N.detach(),
        "array": lambda: losses_N.detach().numpy(),
        "infinite": lambda: losses_N / 0.0,
        "breaks": lambda: losses_N + torch.zeros(2),
    }
    return wrong[how]()


class Striding(UniformSampler):
    """Goes through the pool by a stride, from where the number of groups seen leads."""

    def __init__(self, tasks: SampledTasks, *, stride: int = 1) -> None:
        self.tasks, self.stride, self.seen = tasks, stride, 0

    def choose(self, first: int, count: int, *, step: int, rng: np.random.Generator) -> list[Any]:
        """Return places that depend on what was seen."""
        return [np.int64((self.seen + self.stride * i) % self.tasks.size) for i in range(count)]

    def observe(self, task: int, returns: Sequence[float]) -> None:
        """Count."""
        self.seen += 1

    def state(self) -> dict[str, Any]:
        """Return the count."""
        return {"seen": self.seen}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the count."""
        self.seen = state["seen"]


class WrongSampler(Striding):
    """Does what it must not."""

    def __init__(self, tasks: SampledTasks, *, how: str) -> None:
        super().__init__(tasks)
        self.how = how

    def choose(self, first: int, count: int, *, step: int, rng: np.random.Generator) -> list[Any]:
        """Return too few, or what is no place."""
        wrong = {"few": [0] * (count - 1), "below": [-1] * count, "half": [0.5] * count}
        return wrong.get(self.how) or super().choose(first, count, step=step, rng=rng)

    def state(self) -> dict[Any, Any]:
        """Return what JSON changes or cannot hold."""
        return {"keys": {1: 2}} if self.how == "keys" else {"what": object()}


class NoSampler:
    """Has no method."""

    def __init__(self, tasks: SampledTasks) -> None:
        """Need nothing."""


class LastOnly:
    """Shows the system message and the last observation."""

    def __init__(self, *, wrong: bool = False) -> None:
        self.wrong = wrong

    async def fit(
        self, messages: Sequence[ChatMessage], *, tokens: float, ask: Ask
    ) -> Rewritten | None:
        """Drop all that was said before."""
        if self.wrong:
            return list(messages)  # type: ignore[return-value]
        if sum(entry.message.role == "user" for entry in messages) < 2:
            return None
        system = [entry for entry in messages[:1] if entry.message.role == "system"]
        return Rewritten(messages=[*system, messages[-1]], reason="last only")


class Terse(PlainPrompting):
    """Cuts observations to their first words."""

    def __init__(self, parts: PartsConfig, *, words: int) -> None:
        super().__init__(system=parts.system or "Be brief.", instructions=False)
        object.__setattr__(self, "_words", words)

    def observation(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> ChatMessage:
        """Return the first words."""
        words = str(observation["text"]).split()
        shown = " ".join(words[: getattr(self, "_words")])  # noqa: B009
        return ChatMessage(message=Message(role="user", content=shown))


class SaysText:
    """Returns text where a message is wanted."""

    def __init__(self, parts: PartsConfig) -> None:
        """Need nothing."""

    def opening(self, instructions: str, lessons: Sequence[str], *, native_tools: bool) -> str:
        """Say nothing."""
        return ""

    def observation(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> str:
        """Return the text alone."""
        return str(observation["text"])
