"""What the real trackers hold of a run, as JSON: python tracker_process.py RUN_FOLDER.

Run by an interpreter that has them all, in the working folder of the run.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from trackio.sqlite_storage import SQLiteStorage
from wandb.proto import wandb_internal_pb2

BLOCK, HEADER = 32768, 7
"""Of a ``.wandb`` file: records in pieces, none across the end of a block (LevelDB's log)."""
LAST = (1, 4)
"""Types of a record's last piece: it is the only one, or ends several."""


def in_mlflow(run_id: str) -> dict[str, Any]:
    client = MlflowClient()
    run = client.get_run(run_id)
    history = {
        name: [[one.step, one.value] for one in client.get_metric_history(run_id, name)]
        for name in run.data.metrics
    }
    return {
        "name": run.info.run_name,
        "state": run.info.status,
        "algo": run.data.params["algo.name"],
        "history": history,
    }


def in_trackio(name: str) -> dict[str, Any]:
    logs = SQLiteStorage.get_logs("turngym", name)
    config = SQLiteStorage.get_run_config("turngym", name) or {}
    return {"rows": logs, "algo": config.get("algo.name")}


def records(file: Path) -> Iterator[bytes]:
    """Yield the records of a ``.wandb`` file."""
    content, at, record = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:  # padding
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        record += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in LAST:
            yield record
            record = b""


def in_wandb(folder: Path) -> dict[str, Any]:
    """Read the files of all processes, as ``wandb sync`` would send them."""
    rows, exits, ids = [], [], set()
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in records(file):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                keys = [item.key or "/".join(item.nested_key) for item in record.history.item]
                values = [json.loads(item.value_json) for item in record.history.item]
                rows.append(dict(zip(keys, values, strict=True)))
            elif kind == "run":
                ids.add(record.run.run_id)
            elif kind == "exit":
                exits.append(record.exit.exit_code)
    return {"rows": rows, "exits": exits, "ids": sorted(ids)}


def main(folder: Path) -> None:
    ids = {
        name: json.loads((folder / "trackers" / f"{name}.json").read_text())["id"]
        for name in ("wandb", "trackio", "mlflow")
    }
    found = {
        "mlflow": in_mlflow(ids["mlflow"]),
        "trackio": in_trackio(ids["trackio"]),
        "wandb": in_wandb(folder),
        "ids": ids,
    }
    print(json.dumps(found))


main(Path(sys.argv[1]))
