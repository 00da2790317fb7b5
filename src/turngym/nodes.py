"""Other machines, by Ray: which there are, and what has room on them.

Ray places processes and carries calls to environments. No token and no weight goes through it, and
nothing of it is imported before a setting asks for it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from turngym.errors import ConfigError
from turngym.plugins import import_extra

GPU = "GPU"
"""What Ray calls graphics processors."""
_LISTENS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    name: str
    resources: Mapping[str, float]
    """How much it offers of what: ``CPU``, ``GPU`` and labels of its owner's."""

    def room(self, needed: Mapping[str, float]) -> int:
        """Return how often it has what is ``needed``."""
        offered = ((self.resources.get(name, 0.0), n) for name, n in needed.items() if n)
        return min((int(offer / amount + 1e-9) for offer, amount in offered), default=0)

    def without(self, needed: Mapping[str, float]) -> Node:
        """Return what is left of it where what is ``needed`` was taken."""
        left = {name: n - needed.get(name, 0.0) for name, n in self.resources.items()}
        return replace(self, resources=left)


def connect(needed_for: str) -> Any:  # Ray is optional, and untyped here
    """Return the module ``ray``, connected to the cluster that RAY_ADDRESS names or runs here.

    Messages name the setting that it is ``needed_for``.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: No cluster answers.
    """
    with _own_handlers():
        ray = import_extra("ray", needed_for, "ray")
        if not ray.is_initialized():
            try:
                host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition(":")
                if host and "/" not in host and port.isdigit():  # Ray itself tries for minutes
                    address = (host.strip("[]"), int(port))
                    socket.create_connection(address, timeout=_LISTENS_S).close()
                ray.init("auto", log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                cause = str(error).strip().partition("\n")[0]
                raise ConfigError(
                    f"{needed_for}: no Ray answers ({cause}); start it with 'ray start --head', "
                    "or name it with RAY_ADDRESS=HOST:PORT"
                ) from error
    return ray


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep what this program does at signals and errors; Ray sets both when it is imported."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def alive(ray: Any) -> list[Node]:
    """Return the nodes of the cluster that ``ray`` is connected to, this one first."""
    here = ray.get_runtime_context().get_node_id()
    found = [
        (one["NodeID"] != here, f"{one['NodeManagerAddress']} ({one['NodeID'][:6]})", one)
        for one in ray.nodes()
        if one["Alive"]
    ]
    found.sort(key=lambda row: row[:2])
    return [Node(name=name, resources=one["Resources"]) for _, name, one in found]


def check_room(
    nodes: Sequence[Node], needed: Mapping[str, float], count: int | None, *, setting: str
) -> int:
    """Return how many workers there are to be: ``count``, or as many as there is room for.

    Args:
        nodes: Where they may be.
        needed: What each of them takes.
        count: How many are wanted; None for all that fit.
        setting: What wants them, for messages.

    Raises:
        ConfigError: There is no room for them.
    """
    room = sum(node.room(needed) for node in nodes)
    if room < (count or 1):
        each = " and ".join(f"{amount:g} {name!r}" for name, amount in needed.items() if amount)
        labels = ", ".join(f'"{name}": N' for name in needed if name != GPU)
        raise ConfigError(
            f"{setting}: wants {count or 'at least 1'} with {each} each, and {len(nodes)} nodes "
            f"have room for {room}: start more of them with ray start --resources='{{{labels}}}'"
        )
    return count or room
