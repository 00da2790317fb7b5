"""SWE-ReX's local deployment for `sandbox.py`: one command, timed, for each line of input.

Prints the seconds of the start first. Runs under the interpreter of benchmarks/.venv/swe-rex.
"""

from __future__ import annotations

import asyncio
import sys
import time

from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest


async def serve() -> None:
    """Answer until the input ends."""
    begun = time.perf_counter()
    deployment = LocalDeployment()
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    print(time.perf_counter() - begun, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        begun = time.perf_counter()
        done = await deployment.runtime.run_in_session(BashAction(command="bash -c /bin/true"))
        print(time.perf_counter() - begun, flush=True)
        assert done.exit_code == 0
    await deployment.stop()


asyncio.run(serve())
