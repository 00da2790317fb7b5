"""What ``harbor lint`` and Harbor's own oracle and nop runs find in the folders of the corpus.

Needs Harbor in an environment of its own (``pip install harbor``; ``lint`` needs 0.25), and bwrap:

    HARBOR/bin/python soundness_peers.py --out runs/soundness_peers.json

A folder is refused by lint where a default rule finds something, and by a run where the solution
does not get 1 or doing nothing gets more than 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import soundness_folders

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

_PLACES = ("app", "tests", "solution", "logs", "opt", "tmp")


class Bubblewrap(BaseEnvironment):  # type: ignore[misc]  # Harbor is no dependency
    """A sandbox on this machine's own ``/usr``; what a Dockerfile installs is there already."""

    @staticmethod
    def type() -> str:
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="harbor-"))
        for place in (*_PLACES, "logs/verifier", "logs/agent", "logs/artifacts"):
            (self.root / place).mkdir(exist_ok=True)
        recipe, self.workdir = self.environment_dir / "Dockerfile", "/app"
        text = recipe.read_text() if recipe.exists() else ""
        for name, rest in re.findall(r"^(COPY|RUN|WORKDIR) (.+)", text, re.M):
            if name == "WORKDIR":
                self.workdir = rest
                self._place(rest).mkdir(parents=True, exist_ok=True)
            elif name == "COPY":
                source, target = rest.split()
                await self.upload_file(self.environment_dir / source, target)
            elif not rest.startswith("apt-get") and (ran := await self.exec(rest)).return_code:
                raise RuntimeError(f"{recipe}: RUN {rest}: {ran.stderr}")

    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def _place(self, path: Any) -> Path:
        return self.root / str(path).lstrip("/")

    async def upload_file(self, source_path: Any, target_path: Any) -> None:
        self._place(target_path).parent.mkdir(parents=True, exist_ok=True)
        if Path(source_path).is_dir():
            await self.upload_dir(source_path, target_path)
        else:
            shutil.copy(source_path, self._place(target_path))

    async def upload_dir(self, source_dir: Any, target_dir: Any) -> None:
        shutil.copytree(source_dir, self._place(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: Any, target_path: Any) -> None:
        shutil.copy(self._place(source_path), target_path)

    async def download_dir(self, source_dir: Any, target_dir: Any) -> None:
        shutil.copytree(self._place(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self, command: str, cwd: Any = None, env: Any = None, timeout_sec: Any = None,
        user: Any = None,
    ) -> ExecResult:  # fmt: skip
        links = [
            w for n in ("bin", "lib", "lib64", "sbin") for w in ("--symlink", f"usr/{n}", f"/{n}")
        ]
        binds = [w for n in self.root.iterdir() for w in ("--bind", str(n), f"/{n.name}")]
        call = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr",
                "--ro-bind", "/etc/alternatives", "/etc/alternatives", *links,
                "--proc", "/proc", "--dev", "/dev", *binds, "--chdir",
                str(cwd or self.workdir), "bash", "-c", command]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *call, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", **(env or {})},
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), timeout_sec or 120)
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="peers-"))
    folders = {name: soundness_folders.write(name, place) for name in soundness_folders.folders()}
    found = {name: {"lint": _lint(folder)} for name, folder in folders.items()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name, folder in folders.items():
        if not found[name]["lint"]:
            found[name]["runs"] = {agent: _run(folder, agent) for agent in ("oracle", "nop")}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
        print(name, found[name], flush=True)


def _lint(folder: Path) -> list[str]:
    """Return the default rules that find something; of compose files without Docker, none can."""
    from harbor.lint import lint_task
    from harbor.lint.models import DEFAULT_RULES

    try:
        return sorted({str(one.rule) for one in lint_task(folder) if one.rule in DEFAULT_RULES})
    except RuntimeError as problem:
        return [f"NOT RUN: {problem}"]


def _run(folder: Path, agent: str) -> float | str:
    """Return the reward of Harbor's own run."""
    jobs = Path(tempfile.mkdtemp(prefix="jobs-"))
    call = [str(Path(sys.executable).parent / "harbor"), "run", "-p", str(folder), "-a", agent,
            "--environment-import-path", "soundness_peers:Bubblewrap", "-o", str(jobs)]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False, timeout=900)
    results = [json.loads(file.read_text()) for file in jobs.rglob("result.json")]
    for result in results:
        if result.get("verifier_result"):
            return float(next(iter(result["verifier_result"]["rewards"].values())))
        if result.get("exception_info"):
            return str(result["exception_info"].get("exception_type"))
    return (done.stderr or done.stdout)[-200:]


if __name__ == "__main__":
    main()
