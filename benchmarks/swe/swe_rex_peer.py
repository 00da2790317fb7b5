"""SWE-ReX's local deployment for `sandbox.py` and `swe.py`: timed work for each line of input.

An empty line runs `bash -c /bin/true`, `reset FOLDER` opens a session in a fresh copy of a folder,
anything else runs in the session. Prints the seconds of the start first. Runs under the interpreter
of benchmarks/.venv/swe-rex.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
import time
from pathlib import Path

from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    CreateBashSessionRequest,
    UploadRequest,
)


async def serve() -> None:
    """Answer until the input ends."""
    begun = time.perf_counter()
    deployment = LocalDeployment()
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    print(time.perf_counter() - begun, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        number = 0
        while line := await asyncio.to_thread(sys.stdin.readline):
            number += 1
            begun = time.perf_counter()
            if line.startswith("reset "):
                await reset(deployment, line[6:].strip(), Path(scratch) / str(number))
            else:
                await run(deployment, line.strip() or "bash -c /bin/true")
            print(time.perf_counter() - begun, flush=True)
    await deployment.stop()


async def reset(deployment: LocalDeployment, source: str, target: Path) -> None:
    """Open a new session in a copy of `source`."""
    runtime = deployment.runtime
    await runtime.close_session(CloseBashSessionRequest())
    await runtime.upload(UploadRequest(source_path=source, target_path=str(target)))
    await runtime.create_session(CreateBashSessionRequest())
    await run(deployment, f"cd {shlex.quote(str(target))}")


async def run(deployment: LocalDeployment, command: str) -> None:
    """Run a command that succeeds."""
    done = await deployment.runtime.run_in_session(BashAction(command=command))
    assert done.exit_code == 0


asyncio.run(serve())
