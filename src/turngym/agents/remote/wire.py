"""The JSON of OpenAI-compatible servers: what is asked for token ids, and how answers tell them.

Field names are vLLM's: ``return_token_ids`` in a request; ``prompt_token_ids``, ``token_ids`` and
``logprobs`` in an answer. ``policy_versions``, one per token, is told by ``turngym serve policy``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turngym.agents.generation import Generation

ASK_CHAT_TOKENS: Mapping[str, Any] = {"return_token_ids": True, "logprobs": True}
ASK_COMPLETION_TOKENS: Mapping[str, Any] = {"return_token_ids": True, "logprobs": 0}

_FINISH = {"stop": "end", "tool_calls": "end", "length": "length"}


def prompt_ids_of(answer: Mapping[str, Any]) -> list[int] | None:
    """Return what the server read, or None when it does not tell."""
    for holder in (answer, first_choice(answer)):
        found = holder.get("prompt_token_ids")
        if isinstance(found, list) and all(isinstance(token, int) for token in found):
            return found
    return None


def drawn_of(answer: Mapping[str, Any]) -> Generation | None:
    """Return what the server drew, or None when ids or log-probs are missing or do not match."""
    choice = first_choice(answer)
    ids, logprobs = choice.get("token_ids"), _logprobs(choice.get("logprobs"))
    if not isinstance(ids, list) or logprobs is None or len(ids) != len(logprobs):
        return None
    versions = choice.get("policy_versions") or [0] * len(ids)
    return Generation(
        token_ids=tuple(ids),
        logprobs=tuple(min(0.0, float(logprob)) for logprob in logprobs),
        versions=tuple(versions),
        finish=finish_of(choice),
    )


def finish_of(choice: Mapping[str, Any]) -> str:
    """Return why an answer ended, in our words."""
    if choice.get("stop_reason") not in (None, "") and isinstance(choice["stop_reason"], str):
        return "stop"  # vLLM names the stop text that was met
    return _FINISH.get(str(choice.get("finish_reason")), "stop")


def first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first of the answer's choices, empty when there is none."""
    choices = answer.get("choices")
    if isinstance(choices, Sequence) and choices and isinstance(choices[0], Mapping):
        return choices[0]
    return {}


def _logprobs(told: Any) -> list[float] | None:
    """Return log-probs from the form of chat or of completions."""
    if not isinstance(told, Mapping):
        return None
    found = told.get("token_logprobs")
    if found is None and isinstance(told.get("content"), list):
        found = [entry.get("logprob") for entry in told["content"]]
    if isinstance(found, list) and all(isinstance(logprob, int | float) for logprob in found):
        return found
    return None
