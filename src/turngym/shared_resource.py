"""What a process has once for all who use it, such as a browser: made and ended by leases."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from typing import ClassVar, Self


class SharedResource:
    """Base of an object that exists once per process and arguments, while somebody leases it.

    A subclass ends what it holds in ``release``, where ``_end_lease`` returns True.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[dict[tuple[object, ...], SharedResource]] = {}
    _key: tuple[object, ...]
    _leases: int

    @classmethod
    def lease(cls, *arguments: Hashable) -> Self:
        """Return the object of these arguments, made when there is none; ``release`` it once."""
        # By process: a forked one must not end what its parent holds.
        key: tuple[object, ...] = (os.getpid(), cls, *arguments)
        with SharedResource._lock:
            found = SharedResource._shared.get(key)
            if not isinstance(found, cls):
                found = SharedResource._shared[key] = cls(*arguments)
                found._key, found._leases = key, 0
            found._leases += 1
            return found

    def _end_lease(self) -> bool:
        """Give one lease back; return whether it was the last, after which the next makes anew."""
        with SharedResource._lock:
            self._leases -= 1
            if not self._leases:
                del SharedResource._shared[self._key]
            return not self._leases
