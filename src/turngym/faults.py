"""Errors of foreign code: who asked for them, what is said of them, and where they were raised.

Environments, policies, judges and tools are written by others and may raise anything. A
``Boundary`` stands around each call of such code: whatever comes out is one typed fault of one
episode. Only what the user or the scheduler asked for passes: a cancellation of this task, Ctrl-C,
SIGTERM.
"""

from __future__ import annotations

import asyncio
import dis
import logging
import os
import signal
import sysconfig
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from turngym.errors import EpisodeError, SecondSignal

logger = logging.getLogger(__name__)

_OURS = str(Path(__file__).parent) + os.sep
_LIBRARIES = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_LONGEST_MESSAGE = 10_000
_LONGEST_CHAIN = 10
_PLACE = "_turngym_place"


class Boundary:
    """Attributes to foreign code what is raised inside the block.

    ``StopIteration``, exits and cancellations of its own become faults, too: none of
    them may end a task, a loop or the program. A class, because a context manager made of a
    generator takes a fault that is raised from ``StopIteration`` for its own.

    Args:
        phase: What the code was asked to do; the message begins with it.
        fault: What is raised instead.
        passing: What is raised as it is.
    """

    def __init__(
        self, phase: str, fault: type[EpisodeError], *passing: type[BaseException]
    ) -> None:
        self._phase = phase
        self._fault = fault
        self._passing = passing
        self._cancellations = 0

    def __enter__(self) -> None:
        self._cancellations = cancellations()

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._passes(error) or is_asked(error, since=self._cancellations):
            return
        text = f"{self._phase}: {describe(error)}"
        logger.info("%s", text, exc_info=error)
        raise self._fault(text) from error

    def _passes(self, error: BaseException) -> bool:
        return isinstance(error, self._passing)


class ExitBoundary(Boundary):
    """Lets errors pass as they are, but not what would end a thread, a loop or the program."""

    def _passes(self, error: BaseException) -> bool:
        return isinstance(error, Exception) and not isinstance(error, StopIteration)


class Tolerated:
    """Logs what foreign code raises inside the block, and goes on: what it came from is over.

    ``what`` begins the warning, for example ``"a policy session did not close"``.
    """

    def __init__(self, what: str) -> None:
        self.error: BaseException | None = None
        """What was raised; None while all is well."""
        self._what = what
        self._cancellations = 0

    def __enter__(self) -> Tolerated:
        self._cancellations = cancellations()
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or is_asked(error, since=self._cancellations):
            return False
        self.error = error
        logger.warning("%s: %s", self._what, describe(error))
        logger.info("%s", self._what, exc_info=error)
        return True


def cancellations() -> int:
    """Return how often the running task was asked to cancel; 0 where no task runs."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return 0
    return 0 if task is None else task.cancelling()


def is_asked(error: BaseException, *, since: int) -> bool:
    """Return whether something outside of the code that raised ``error`` wanted its end.

    A cancellation is asked for when somebody cancelled the running task, more often than ``since``
    by ``cancellations()``; an exit, when a signal of the user's caused it; ``GeneratorExit``, when
    the coroutine is being closed.
    """
    if isinstance(error, asyncio.CancelledError):
        return cancellations() > since
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return is_from_signal(error)
    return isinstance(error, GeneratorExit) and not _is_stated(error.__traceback__)


def is_from_signal(error: BaseException) -> bool:
    """Return whether a signal caused an exit, and not a statement of the code that it came from.

    Signals arrive in the main thread alone, between any two instructions. Then a handler is in the
    traceback; Python's own for SIGINT leaves no frame, and no statement that raises.
    """
    if isinstance(error, SecondSignal):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    codes = {_code(handler) for handler in handlers} - {None}
    if any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)):
        return True
    is_plain = signal.default_int_handler in handlers and type(error) is KeyboardInterrupt
    return is_plain and error.__traceback__ is not None and not _is_stated(error.__traceback__)


def describe(error: BaseException) -> str:
    """Return ``Type: message``; its first line ends with the place in the user's code, if any.

    For example ``ValueError: boom (myagent.py:12 in act)``. For a group, its first error follows.
    """
    text = message_of(error)
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        return f"{text}: {describe(error.exceptions[0])}"
    place = place_of(error)
    first, newline, rest = text.partition("\n")
    return text if place is None else f"{first} ({place}){newline}{rest}"


def message_of(error: BaseException) -> str:
    """Return what ``error`` says, as text that can be written anywhere, cut where it is long."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - foreign code once more
        text = "(its message cannot be read)"
    if len(text) > _LONGEST_MESSAGE:
        text = text[:_LONGEST_MESSAGE] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def place_of(error: BaseException) -> str | None:
    """Return ``file:line in function``: the innermost place in the user's own code.

    Without one, the innermost place in an installed package that was called by ours; else None.
    """
    installed: str | None = None
    for link in _chain(error):
        if (kept := getattr(link, _PLACE, None)) is not None:
            return str(kept)
        is_inside = True
        for frame, line in reversed(list(traceback.walk_tb(link.__traceback__))):
            file = frame.f_code.co_filename
            is_inside = is_inside and not file.startswith(_OURS)
            if file.startswith((_OURS, "<frozen ", "<string>")):
                continue
            place = f"{Path(file).name}:{line} in {frame.f_code.co_name}"
            if not file.startswith(_LIBRARIES):
                return place
            if installed is None and is_inside and f"{os.sep}site-packages{os.sep}" in file:
                installed = place
    return installed


def is_of_user(error: BaseException) -> bool:
    """Return whether it was raised in the user's own code, or by a library that this called."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if file.startswith(_OURS) or not file.startswith((*_LIBRARIES, "<")):
            return not file.startswith(_OURS)
    return False


def keep_place(error: BaseException) -> None:
    """Note the place in ``error`` itself, for another process that gets no traceback."""
    try:
        setattr(error, _PLACE, place_of(error))
    except Exception:  # noqa: BLE001 - an exception may refuse attributes
        logger.debug("%s takes no attribute", type(error).__name__)


def _chain(error: BaseException) -> list[BaseException]:
    """Return ``error`` and what caused it."""
    found: list[BaseException] = []
    here: BaseException | None = error
    while here is not None and len(found) < _LONGEST_CHAIN:
        found.append(here)
        here = here.__cause__
    return found


def _code(handler: Any) -> Any:
    """Return the code of a signal handler in Python; asyncio's is a partial of a method."""
    return getattr(getattr(handler, "func", handler), "__code__", None)


def _is_stated(trace: TracebackType | None) -> bool:
    """Return whether the innermost frame of a traceback stood at a statement that raises."""
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    opcode = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    return dis.opname[opcode] in ("RAISE_VARARGS", "RERAISE")
