"""What all sandboxes of a back end together may take."""

from __future__ import annotations

import threading
from collections.abc import Callable

from turngym.errors import SandboxUnavailable
from turngym.sandbox.base import Limits


class Quota:
    """Hard caps on number, memory and disk, summed over the limits of running sandboxes.

    Thread-safe. ``None`` is no cap.
    """

    def __init__(
        self,
        *,
        max_sandboxes: int | None = None,
        max_memory_bytes: int | None = None,
        max_disk_bytes: int | None = None,
    ) -> None:
        self.caps = {
            "sandboxes": max_sandboxes,
            "memory_bytes": max_memory_bytes,
            "disk_bytes": max_disk_bytes,
        }
        for name, cap in self.caps.items():
            if cap is not None and cap < 1:
                raise ValueError(f"Quota.max_{name}: wanted at least 1, got {cap}")
        self.used = dict.fromkeys(self.caps, 0)
        self._lock = threading.Lock()
        self.when_freed: list[Callable[[], None]] = []
        """Called each time something was given back, from whichever thread that was."""

    def take(self, limits: Limits) -> Callable[[], None]:
        """Take what a sandbox with ``limits`` may use; return how to give it back, once.

        Raises:
            SandboxUnavailable: That is more than is left.
        """
        wanted = self.cost(limits)
        with self._lock:
            for name, cap in self.caps.items():
                if cap is not None and self.used[name] + wanted[name] > cap:
                    raise SandboxUnavailable(
                        f"quota of {cap} {name} is used up ({self.used[name]} taken, "
                        f"{wanted[name]} wanted): close sandboxes or raise it"
                    )
            for name, amount in wanted.items():
                self.used[name] += amount
        is_taken = [True]

        def give_back() -> None:
            with self._lock:
                if not is_taken:
                    return
                is_taken.clear()
                for name, amount in wanted.items():
                    self.used[name] -= amount
            for act in list(self.when_freed):
                act()

        return give_back

    @staticmethod
    def cost(limits: Limits) -> dict[str, int]:
        """Return what one sandbox counts for."""
        return {
            "sandboxes": 1,
            "memory_bytes": limits.memory_bytes,
            "disk_bytes": limits.disk_bytes,
        }

    def can_ever_take(self, limits: Limits) -> bool:
        """Say whether such a sandbox fits when no other runs."""
        wanted = self.cost(limits)
        return all(cap is None or wanted[name] <= cap for name, cap in self.caps.items())
