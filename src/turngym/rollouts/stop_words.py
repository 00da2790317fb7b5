"""Why an episode ended, in the words of other tools.

Harbor 0.24 names the exception of a trial, verifiers 0.4 the ``stop_condition`` of a trace,
Inspect 0.3 the limit of a sample. ATIF 1.8 has no word; these go into its ``extra``. "" stands
where a tool has no word, or says nothing: an end of the environment's own is no failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from turngym.types import StopReason


class Words(NamedTuple):
    """What others call one stop reason."""

    harbor: str = ""
    verifiers: str = ""
    inspect_ai: str = ""


STOP_WORDS: Mapping[StopReason, Words] = {
    StopReason.TERMINATED: Words("", "agent_completed", ""),
    StopReason.TRUNCATED_TURNS: Words("", "max_turns", "turn"),
    StopReason.TRUNCATED_TOKENS: Words("OutputTokenExceededError", "max_output_tokens", "token"),
    StopReason.TRUNCATED_CONTEXT: Words(
        "ContextWindowExceededError", "max_total_tokens", "context"
    ),
    StopReason.TRUNCATED_TIME: Words("AgentTimeoutError", "agent_timeout", "time"),
    StopReason.TRUNCATED_TOOL_CALLS: Words("", "", "custom"),
    StopReason.TRUNCATED_INVALID: Words("", "", "custom"),
    StopReason.TRUNCATED_ENV: Words("", "", "custom"),
    StopReason.ERROR_ENV: Words("", "env_error", ""),
    StopReason.ERROR_POLICY: Words("NonZeroAgentExitCodeError", "harness_error", ""),
    StopReason.ERROR_REWARD: Words("RewardFileNotFoundError", "task_error", ""),
}
