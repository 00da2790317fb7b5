"""A web application from a package registry: installed once, started per slot, reset in place.

    python -m turngym.environments.web.sites.install forum

makes a virtual environment of the program's own and the databases that episodes begin with. A
``Slot`` is one running server with a copy of the first. A reset copies the content of one of them
into the live database while the server runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from turngym.environments.folders import OwnedFolder
from turngym.errors import ConfigError, EnvironmentFault

_INSIDE = Path(__file__).parent / "inside"
"""Modules for the scripts of programs, which know nothing of turngym."""
DATABASES = 8
"""Databases of each program: the first half is for training, the other one for tests."""
DJANGO_SESSION = {"sessionid": "workshop" * 4}
"""Cookies of a Django site's signed-in user, whose session its seed made: ``django_site.py``."""
_START_S = 60.0
_STOP_S = 5.0
_ANSWER_S = 10.0
"""Wait for any answer of a server that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What there is to install and to start."""

    name: str
    title: str
    folder: Path
    """Holds ``seed.py``, which makes the data at its first argument, of the number at its second,
    and ``server.py``, which serves the data at its first argument on the Unix socket at its second
    and says when; sites made with Django share one in ``inside``."""
    database: str
    """Path of the SQLite file inside the data."""
    requirements: tuple[str, ...] = ()
    """What pip installs for it; none where the program is no Python package."""
    after_reset: str = ""
    """SQL for the live database, with ``:reset``, which counts the resets of a server."""

    @property
    def home(self) -> Path:
        """Where it is installed: a folder per version of program and data."""
        names = ("LocalSettings.php", "project.py", "seed.php", "seed.py")
        files = [*sorted(_INSIDE.glob("*.py")), *(self.folder / name for name in names)]
        content = [*self.requirements, str(DATABASES)]
        content += [file.read_text("utf-8") for file in files if file.exists()]
        digest = hashlib.sha256("\0".join(content).encode()).hexdigest()[:12]
        cache = os.environ.get("TURNGYM_CACHE") or Path.home() / ".cache" / "turngym"
        return Path(cache) / "web" / f"{self.name}-{digest}"

    @property
    def python(self) -> Path:
        """The program's own Python; ours where it is no Python package."""
        return self.home / "venv/bin/python" if self.requirements else Path(sys.executable)

    def data(self, number: int) -> Path:
        """Return the folder with data that episodes begin with, 0 to ``DATABASES - 1``."""
        return self.home / "data" / str(number)

    def content(self, number: int) -> sqlite3.Connection:
        """Return a connection to a database that episodes begin with."""
        return sqlite3.connect(self.data(number) / self.database)

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
            ConfigError: Something that it needs is missing.
            subprocess.CalledProcessError: pip or the program failed; what they said went to stderr.
        """
        if self.is_installed:
            return
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self._fetch()
        (self.home / "data").mkdir()
        for n in range(DATABASES):
            self.run(str(self.python), str(self.folder / "seed.py"), str(self.data(n)), str(n))
        (self.home / "done").touch()

    def run(self, *command: str) -> None:
        """Run a step of the installation, in its folder."""
        subprocess.run(
            command,
            check=True,
            cwd=self.home,
            env={**os.environ, "PYTHONPATH": str(_INSIDE)},
            stdout=sys.stderr,
            stdin=subprocess.DEVNULL,
        )

    def _fetch(self) -> None:
        if self.requirements:
            self.run(sys.executable, "-m", "venv", str(self.home / "venv"))
            self.run(str(self.python), "-m", "pip", "install", "-q", *self.requirements)


class Slot:
    """One running server with data of its own. Used in one event loop.

    Where bubblewrap works, the server sees no network and can write to its own folder alone.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._folder: OwnedFolder | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._resets = 0

    @property
    def folder(self) -> Path:
        """Socket and data of the running server."""
        assert self._folder is not None, "the slot is not started"
        return self._folder.path

    @property
    def pid(self) -> int | None:
        """Process that runs the server, None when it does not run."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def reset(self, content: bytes | int) -> None:
        """Bring data back; starts the server when it is gone.

        Args:
            content: What ``content`` gave, or the number of a database that episodes begin with.

        Raises:
            EnvironmentFault: The server does not start.
        """
        if self.pid is None:
            await self.stop()
            await self._start()
        self._resets += 1
        if isinstance(content, int):
            source = self.program.content(content)
        else:
            source = sqlite3.connect(":memory:")
            source.deserialize(content)
        with closing(source), closing(self.connect()) as live:
            source.backup(live)
            if self.program.after_reset:
                live.execute(self.program.after_reset, {"reset": self._resets})
                live.commit()

    def content(self) -> bytes:
        """Return the live database as it is now."""
        with closing(self.connect()) as live:
            return live.serialize()

    def connect(self) -> sqlite3.Connection:
        """Return a connection to the live database."""
        return sqlite3.connect(self.folder / "data" / self.program.database, timeout=10.0)

    async def require_answer(self) -> None:
        """Raise when the server has ended, or answers nothing: then it is ended.

        Raises:
            EnvironmentFault: With the last that it said.
        """
        what = "ended while it was used"
        if self.pid is not None:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await self._ask()
            except (OSError, TimeoutError):
                what = f"gives no answer for {_ANSWER_S:g} s"
            else:
                return
        said = self._said()
        await self.stop()
        raise EnvironmentFault(f"{self.program.title} {what}: {said}")

    async def _ask(self) -> None:
        """Ask for a page that is not there."""
        reader, writer = await asyncio.open_unix_connection(self.folder / "socket")
        try:
            writer.write(
                f"GET /no-such HTTP/1.1\r\nHost: {self.program.name}.test\r\n\r\n".encode()
            )
            if not await reader.read(1):
                raise ConnectionResetError
        finally:
            writer.close()

    def _said(self) -> str:
        """Return the last line of what the server said about errors."""
        lines = (self.folder / "errors").read_text("utf-8", "replace").split("\n")
        return next((one.strip() for one in reversed(lines) if one.strip()), "it said nothing")[
            :200
        ]

    async def stop(self) -> None:
        """End the server and remove its data. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _STOP_S)
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove()

    async def _start(self) -> None:
        program = self.program
        program.require()
        self._folder = OwnedFolder(program.name)
        folder = self._folder.path
        shutil.copytree(program.data(0), folder / "data")
        own = program.folder / "server.py"
        with (folder / "errors").open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(_jail(folder, program.home) if _jails() else ()),
                str(program.python),
                str(own if own.exists() else _INSIDE / "django_server.py"),
                str(folder / "data"),
                str(folder / "socket"),
                stdin=asyncio.subprocess.PIPE,  # its end shows the server that we are gone
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={  # all that it may know of ours is where programs are
                    "PATH": os.environ.get("PATH", ""),
                    "PYTHONPATH": f"{_INSIDE}:{program.folder}",
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "LANG": "C.UTF-8",
                    "TZ": "UTC",
                },
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = b""
        with suppress(TimeoutError):
            line = await asyncio.wait_for(self._process.stdout.readline(), _START_S)
        if line.strip() != b"ready":
            reason = self._said()
            await self.stop()
            raise EnvironmentFault(f"{program.title} does not start: {reason}")


def _jail(folder: Path, home: Path) -> list[str]:
    """Return the command that shuts a server in: no network, and one folder to write to."""
    seen = {str(home), str(Path(__file__).parent), sys.prefix, sys.base_prefix}
    return [
        "bwrap", "--die-with-parent", "--new-session",
        "--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
        "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
        *(word for path in sorted(seen) for word in ("--ro-bind", path, path)),  # if below /tmp
        "--bind", str(folder), str(folder), "--",
    ]  # fmt: skip


@cache
def _jails() -> bool:
    """Say whether bubblewrap works here; servers of sites run without where it does not."""
    if shutil.which("bwrap") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = [*_jail(Path(folder), Path(folder)), sys.executable, "-c", ""]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
