"""What a run writes, in order; what a full disk refuses waits until there is room."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

RETRY_S = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, says that there is no room on a disk."""
    while error is not None:
        if getattr(error, "errno", None) in _FULL or "(os error 28)" in str(error):
            return True
        error = error.__cause__
    return False


class Outbox:
    """Writes at once while there is room. Used from one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Path, Callable[[], object]]] = deque()
        self._is_reported = False

    @property
    def is_stuck(self) -> bool:
        """Whether something waits for room."""
        return bool(self._waiting)

    def write(self, file: Path, work: Callable[[], object]) -> None:
        """Call ``work``, which writes ``file`` wholly or not at all, after all earlier ones.

        Raises:
            OSError: It cannot be written for another reason than a full disk.
        """
        self._waiting.append((file, work))
        self._try()

    async def settle(self) -> None:
        """Wait until everything is written. A cancellation leaves the rest unwritten."""
        await asyncio.sleep(0)
        while self._waiting:
            await asyncio.sleep(RETRY_S)  # no event says that a full disk has room
            self._try()

    def _try(self) -> None:
        while self._waiting:
            file, work = self._waiting[0]
            try:
                work()
            except Exception as error:
                if not is_disk_full(error):
                    self._waiting.popleft()
                    raise
                self._report(file)
                return
            self._waiting.popleft()
        if self._is_reported:
            self._is_reported = False
            logger.warning("there is room again; the run goes on")

    def _report(self, file: Path) -> None:
        if not self._is_reported:
            self._is_reported = True
            logger.error(
                "%s: the disk is full; the run waits and loses nothing. Free some space on the "
                "disk of %s, or stop the run with Ctrl-C and resume it later",
                file,
                file.parent,
            )
