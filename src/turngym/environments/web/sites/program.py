"""A web application from a package registry: installed once, started per slot, reset in place.

    python -m turngym.environments.web.sites.install tracker

makes a virtual environment of the program's own and the data that every episode begins with. A
``Slot`` is one running server with its own copy of that data. A reset copies the data into the
live database while the server runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from turngym.errors import ConfigError, EnvironmentFault

_START_S = 60.0
_STOP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What there is to install and to start."""

    name: str
    requirements: tuple[str, ...]
    seed_script: Path
    """Makes the data at its first argument; run by the program's own Python."""
    server_script: Path
    """Serves the data at its first argument, and prints its port first."""
    database: str
    """Path of the SQLite file inside the data."""
    title: str

    @property
    def home(self) -> Path:
        """Where it is installed: a folder per version of program and data."""
        content = [*self.requirements, self.seed_script.read_text(encoding="utf-8")]
        digest = hashlib.sha256("\0".join(content).encode()).hexdigest()[:12]
        cache = os.environ.get("TURNGYM_CACHE") or Path.home() / ".cache" / "turngym"
        return Path(cache) / "web" / f"{self.name}-{digest}"

    @property
    def python(self) -> Path:
        """The program's own Python."""
        return self.home / "venv" / "bin" / "python"

    @property
    def seed(self) -> Path:
        """The data that every episode begins with."""
        return self.home / "seed"

    @property
    def is_installed(self) -> bool:
        """Program and data are there."""
        return (self.home / "done").exists()

    def require(self) -> None:
        """Raise when it is not installed.

        Raises:
            ConfigError: With the command that installs it.
        """
        if not self.is_installed:
            raise ConfigError(
                f"{self.title} is not installed: "
                f"python -m turngym.environments.web.sites.install {self.name}"
            )

    def install(self) -> None:
        """Install the program and make its data; a half-made installation is made anew.

        Raises:
            subprocess.CalledProcessError: pip or the program failed; what they said went to stderr.
        """
        if self.is_installed:
            return
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        _run(sys.executable, "-m", "venv", str(self.home / "venv"))
        _run(str(self.python), "-m", "pip", "install", "-q", *self.requirements)
        _run(str(self.python), str(self.seed_script), str(self.seed))
        (self.home / "done").touch()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, stdin=subprocess.DEVNULL)


class Slot:
    """One running server with data of its own. Used in one event loop."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._folder: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._resets = 0
        self.port = 0

    @property
    def database(self) -> Path:
        """The live SQLite file."""
        assert self._folder is not None, "the slot is not started"
        return self._folder / "data" / self._program.database

    async def reset(self) -> None:
        """Bring the data back to where every episode begins; starts the server when it is gone.

        Raises:
            EnvironmentFault: The server does not start.
        """
        if self._process is None or self._process.returncode is not None:
            await self.stop()
            await self._start()
        self._resets += 1
        seed = self._program.seed / self._program.database
        with closing(sqlite3.connect(seed)) as source, closing(self.connect()) as live:
            source.backup(live)
            # What the server remembers of earlier episodes must not look up to date.
            live.execute("UPDATE cache SET generation = ?", (1_000_000 + 1_000 * self._resets,))
            live.commit()

    def connect(self) -> sqlite3.Connection:
        """Return a connection to the live database."""
        return sqlite3.connect(self.database, timeout=10.0)

    async def stop(self) -> None:
        """End the server and remove its data. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _STOP_S)
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def _start(self) -> None:
        program = self._program
        program.require()
        self._folder = Path(tempfile.mkdtemp(prefix=f"turngym-{program.name}-"))
        shutil.copytree(program.seed, self._folder / "data")
        self._process = await asyncio.create_subprocess_exec(
            str(program.python),
            str(program.server_script),
            str(self._folder / "data"),
            stdin=asyncio.subprocess.PIPE,  # its end tells the server that we are gone
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(),
        )
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), _START_S)
            self.port = int(line)
        except (TimeoutError, ValueError) as error:
            await self.stop()
            raise EnvironmentFault(f"{program.title} does not start") from error


def _environment() -> Mapping[str, str]:
    """Return what a program may know of ours: nothing but where programs are."""
    return {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "TZ": "UTC"}
