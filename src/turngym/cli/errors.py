"""What an error means for the caller of the program: an exit code, and a line or more."""

from __future__ import annotations

from typing import Any

import typer

from turngym.errors import ConfigError, EnginesLost, Interrupted, RecordError, TurnGymError

FINE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130

# Typer keeps its own copy of Click in some releases; both have this family tree.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickError: Any = _UsageError.__mro__[1]


def first_cause(error: BaseException) -> BaseException:
    """Return the first error inside groups, as a ``TaskGroup`` raises them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def exit_code(error: BaseException) -> int | None:
    """Return the exit code for an error that needs no traceback; None for a bug of ours."""
    if isinstance(error, ConfigError | RecordError | _UsageError):
        return WRONG_INPUT
    if isinstance(error, KeyboardInterrupt | typer.Abort | Interrupted):
        return INTERRUPTED
    if isinstance(error, EnginesLost):
        return error.exit_code
    if isinstance(error, TurnGymError | OSError | _ClickError):
        return FAILED
    return None


def lines(error: BaseException) -> list[str]:
    """Return what to say of an error, at least one line."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return ["interrupted"]
    text = error.format_message() if isinstance(error, _ClickError) else str(error)
    return text.strip().splitlines() or [type(error).__name__]
