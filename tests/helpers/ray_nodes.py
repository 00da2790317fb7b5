"""Nodes of Ray on this machine, which can be added and taken away, and a run that is launched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import SOURCE

NOT_RUN = pytest.mark.skipif(
    find_spec("ray") is None, reason="make proof PART=nodes installs Ray for it"
)
VARIABLES = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "PYTHONPATH": os.pathsep.join([str(SOURCE), str(Path(__file__).parents[1])]),
}
_STORE_BYTES = 80 * 2**20


class Nodes:
    """A head that runs nothing, and nodes with labels."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        self.address = str(self._cluster.address)

    def add(self, **labels: float) -> Any:
        """Return a new node with these labels."""
        node = self._cluster.add_node(
            num_cpus=1, resources=labels, object_store_memory=_STORE_BYTES
        )
        self._cluster.wait_for_nodes()
        return node

    def remove(self, node: Any) -> None:
        """Take a node away at once, with all that runs there."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End all of them."""
        self._cluster.shutdown()


@contextmanager
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Yield nodes that this process is to connect to; all is ended afterwards."""
    import ray

    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets must be short
    monkeypatch.setenv("RAY_TMPDIR", folder)
    found = Nodes()
    monkeypatch.setenv("RAY_ADDRESS", found.address)
    try:
        yield found
    finally:
        ray.shutdown()
        found.close()
        shutil.rmtree(folder, ignore_errors=True)


def launch(folder: Path, settings: Path, address: str) -> subprocess.Popen[bytes]:
    """Start ``turngym launch`` in a process, which writes to ``said.txt`` beside the folder."""
    line = [sys.executable, "-m", "turngym", "launch", str(settings), "--ray", address]
    with (folder.parent / "said.txt").open("ab") as said:
        return subprocess.Popen([*line, "--out", str(folder)], stdout=said, stderr=said)


def until(condition: Any, seconds: float = 120.0) -> bool:
    """Return whether ``condition()`` becomes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.2)
    return bool(condition())
