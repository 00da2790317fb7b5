"""What becomes of a server of vLLM when the run that started it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turngym.agents.engine.vllm.children import _PLUGIN

pytestmark = pytest.mark.extra("safetensors")

VLLM = {
    "__init__": "",
    "distributed/__init__": "",
    "distributed/weight_transfer/__init__": "",
    "distributed/weight_transfer/base": """
class WeightTransferEngine:
    def __class_getitem__(cls, _):
        return cls
class WeightTransferInitInfo: pass
class WeightTransferUpdateInfo: pass
""",
    "distributed/weight_transfer/factory": """
class WeightTransferEngineFactory:
    _registry = {}
    register_engine = classmethod(lambda cls, name, *more: cls._registry.update({name: more}))
""",
}
"""What the plug-in imports of it."""
SERVER = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as vLLM, which waits for a request
import turngym_vllm
turngym_vllm._LOOK_S = turngym_vllm._END_S = 0.05
turngym_vllm.register()
print("up", flush=True)
time.sleep(600)
"""
RUN = """
import os, subprocess, sys
environment = {**os.environ, "TURNGYM_RUN": str(os.getpid())}
line = [sys.executable, "-c", sys.argv[1]]
process = subprocess.Popen(line, env=environment, start_new_session=True)
print(process.pid, flush=True)
process.wait()
"""


def ended(process: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


def test_a_server_that_hangs_ends_after_the_run_that_started_it(tmp_path: Path) -> None:
    for name, text in VLLM.items():
        file = tmp_path / "vllm" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{_PLUGIN}"}
    line = [sys.executable, "-c", RUN, SERVER]
    with subprocess.Popen(line, env=os.environ | paths, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        first = [run.stdout.readline().strip() for _ in range(2)]
        server = int(next(one for one in first if one != "up"))
        time.sleep(0.3)
        assert not ended(server)
        run.send_signal(signal.SIGKILL)
        until = time.monotonic() + 60
        while not ended(server) and time.monotonic() < until:
            time.sleep(0.02)
        assert ended(server)
