"""The real wandb, Trackio, MLflow and OTLP exporter, without a network and without accounts."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import SOURCE, TINY_RUN
from turngym.trainers.metrics import read_metrics

PYTHON = os.environ.get("TURNGYM_TRACKERS", "")
READER = Path(__file__).parents[1] / "helpers" / "tracker_process.py"

TURNGYM = """
import sys
from turngym.trainers.trackers import base
base.CLOSE_S = 3600.0  # however busy the machine is
from turngym.cli.main import main
sys.exit(main())
"""

pytestmark = pytest.mark.skipif(not PYTHON, reason="PART=trackers installs them and runs this")


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP endpoint, and what it got."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    server.server_close()


def test_all_trackers_hold_the_metrics_of_a_run_that_was_resumed(
    tmp_path: Path, collector: tuple[str, list[bytes]]
) -> None:
    endpoint, bodies = collector
    (tmp_path / "tiny.toml").write_text('algo = "grpo"\n' + TINY_RUN)
    environment = {
        **os.environ,
        "PYTHONPATH": SOURCE,
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [PYTHON, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    trackers = 'run.trackers=["wandb", "trackio", "mlflow"]'
    for steps in (1, 2):  # the second makes the run longer
        more = (trackers, "run.opentelemetry=true", f"run.steps={steps}")
        done = run("-c", TURNGYM, "train", "tiny.toml", "--out", "run", *more, "--json")
        assert json.loads(done.stdout)["updates"] == steps  # nothing of theirs on stdout
        assert "tracker " not in done.stderr
    found = json.loads(run(str(READER), "run").stdout.splitlines()[-1])
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")

    history: dict[str, list[list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step":
                history.setdefault(name, []).append([row["step"], value])
    assert found["mlflow"]["history"] == history
    assert (found["mlflow"]["name"], found["mlflow"]["state"]) == ("run", "FINISHED")
    assert (found["mlflow"]["algo"], found["trackio"]["algo"]) == ("grpo", "grpo")

    kept = [
        {name: value for name, value in row.items() if name in history or name == "step"}
        for row in found["trackio"]["rows"]
    ]
    assert sorted(map(as_text, kept)) == sorted(map(as_text, rows))

    sent = found["wandb"]["rows"]
    assert [row["_step"] for row in sent] == list(range(len(rows)))
    assert [{n: v for n, v in row.items() if n[0] != "_"} for row in sent] == rows
    assert found["wandb"]["ids"] == [found["ids"]["wandb"]]
    assert found["wandb"]["exits"] == [0, 0]

    spans = b"".join(bodies)
    for name in (b"run", b"update", b"episode", b"generate", b"environment step", b"checkpoint"):
        assert name in spans


def as_text(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
