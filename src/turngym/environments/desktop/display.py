"""One desktop's processes: X server, window manager, message bus and applications in one sandbox.

Everything lives in namespaces of its own, made by bubblewrap: processes, network (none), users,
and a file system whose writable places are in memory. So nothing of it is on the host's disk, and
all of it ends with its first process, which ends with ours, however that dies.

What is contained: applications see the host's /usr read-only, an /etc of our making, their own
/home, /tmp and /run, no network, and no process but their own; they have no capability and no
way to more, and make only the system calls of ``turngym.sandbox.backends.seccomp``; to the host
they are the user of all sandboxes, or our own where we are not root, and of its environment they
see nothing; each has at most 2 GB of addresses. What is not: they share the kernel, and how many
processes there are, and what they take together, has no limit. They are programs of the
distribution that are driven by mouse and keyboard; nothing an agent types is run.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from turngym.environments.desktop.activity import Activities
from turngym.environments.desktop.names import FILES, PACKAGES
from turngym.errors import ConfigError, EnvironmentFault, missing_extra
from turngym.sandbox.backends import seccomp
from turngym.sandbox.backends.bubblewrap_command import NAMESPACES, UID, Root, masks, root_options
from turngym.sandbox.backends.images import host_entries, host_etc
from turngym.sandbox.backends.launcher_client import SANDBOX_UID, base_folder, interpreter
from turngym.sandbox.launcher.single import ENVIRONMENT

HOME = "/home/agent"
MEMORY_BYTES = 256 << 20
"""Most that files of one desktop may take, each of home, /tmp and /run."""
START_S = 60.0
_STOP_S = 5.0
_TICK_S = 0.005
_HERE = Path(__file__).parent


class DisplayGone(EnvironmentFault):
    """The X server or the sandbox around it died; what was open is lost."""


def missing_packages() -> list[str]:
    """Return the Debian packages that a desktop needs and this machine lacks."""
    programs = {package for name, package in PACKAGES.items() if shutil.which(name) is None}
    files = {
        package
        for pattern, package in FILES.items()
        if next(Path("/").glob(pattern[1:]), None) is None
    }
    return sorted(programs | files)


def require_desktop() -> None:
    """Raise when a desktop cannot be made here.

    Raises:
        MissingExtraError: A Python package is missing.
        ConfigError: Debian packages are missing; the message names them in one line.
    """
    if any(find_spec(name) is None for name in ("Xlib", "jeepney")):
        raise missing_extra("a desktop environment", "desktop")
    if missing := missing_packages():
        raise ConfigError(
            f"desktop environments need {', '.join(missing)}: apt-get install "
            f"--no-install-recommends {' '.join(missing)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An application that is no longer there."""

    number: int
    """Which one, as ``launch`` returned."""
    status: int
    """Its exit status; 128 and more means a signal."""


class Display:
    """A running desktop without applications. Used from one thread at a time.

    Args:
        width: Of the screen, in pixels.
        height: Of the screen, in pixels.

    Raises:
        EnvironmentFault: It could not be started.
    """

    def __init__(self, width: int = 1024, height: int = 768) -> None:
        self.width, self.height = width, height
        self.pid = 0
        """Of the first process inside, as the host counts."""
        self._launched = 0
        self._output = b""
        # bubblewrap writes the id of its child there: the first process inside, as the host counts.
        info_read, info_write = os.pipe()
        fds = info_write, _in_memory(seccomp.bpf()), os.open("/bin/sh", os.O_RDONLY)
        try:
            self._process = subprocess.Popen(
                _command(width, height, fds), pass_fds=fds, start_new_session=True, env=ENVIRONMENT,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        finally:
            for fd in fds:
                os.close(fd)
        # A list, since the finalizer is there before the id is known.
        self._first: list[int] = []
        self._finalizer = weakref.finalize(self, _kill, self._process, self._first)
        with os.fdopen(info_read, "rb") as info:
            said = info.read()
        try:
            self.pid = int(json.loads(said)["child-pid"])
            self._first.append(self.pid)
            self._await_ready()
        except Exception as error:
            self.close()
            if isinstance(error, EnvironmentFault):
                raise
            raise EnvironmentFault(f"desktop: it could not be started: {self._stderr}") from error
        except BaseException:
            self.close()
            raise

    @property
    def root(self) -> Path:
        """The file system inside, as the host reaches it; beware of links in it."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def is_alive(self) -> bool:
        """The sandbox runs."""
        return self._process.poll() is None

    def launch(self, *command: str, folder: str = HOME) -> int:
        """Start a program inside; return its number, by which ``ended`` reports its end.

        Raises:
            DisplayGone: The sandbox died.
        """
        self._launched += 1
        words = " ".join(map(shlex.quote, command))
        self._tell(f"cd {shlex.quote(folder)}; launch {self._launched} {words}")
        return self._launched

    def ended(self) -> list[Ended]:
        """Return the programs that ended since the last call.

        Raises:
            DisplayGone: One of those ended that every desktop needs.
        """
        self._read(0.0)
        *lines, self._output = self._output.split(b"\n")
        fields = [line.split() for line in lines]
        lost = [f[1].decode() for f in fields if f[:1] == [b"lost"]]
        if lost or not self.is_alive:
            raise DisplayGone(f"desktop: it lost its {lost[0] if lost else 'sandbox'}")
        return [Ended(number=int(f[1]), status=int(f[2])) for f in fields if f[:1] == [b"ended"]]

    @cached_property
    def activities(self) -> Activities:
        """What the programs inside do, and how long what they do has taken."""
        return Activities(self.root / "proc")

    def close(self) -> None:
        """End every process of the desktop. Safe to call twice."""
        self._finalizer()
        self._stderr = ""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                if stream is self._process.stderr:
                    # What still ends inside may hold the pipe: take what is there, do not wait.
                    os.set_blocking(stream.fileno(), False)
                    self._stderr = (stream.read() or b"").decode(errors="replace").strip()[:300]
                with suppress(OSError):
                    stream.close()

    _stderr = ""

    def _tell(self, line: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        except (OSError, ValueError) as error:
            raise DisplayGone("desktop: its sandbox is gone") from error

    def _await_ready(self) -> None:
        until = time.monotonic() + START_S
        while b"ready\n" not in self._output:
            if b"failed" in self._output or time.monotonic() > until or not self.is_alive:
                raise EnvironmentFault("desktop: the X server did not start")
            self._read(0.5)
        self._output = self._output.split(b"ready\n", 1)[1]

    def _read(self, timeout_s: float) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            # It waits for the first bytes only, then takes what is there.
            while selector.select(timeout_s):
                data = os.read(stdout.fileno(), 4096)
                if not data:
                    return
                self._output += data
                timeout_s = 0.0


def _kill(process: subprocess.Popen[bytes], first: list[int]) -> None:
    """End a sandbox, and wait until no process of it is left.

    ``first`` holds its first process, whose end is reported only once all others are gone.
    """
    if process.poll() is None:
        for pid in first:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            process.wait(_STOP_S if first else 0.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # Where bubblewrap itself was killed, the kernel is still at it.
    until = time.monotonic() + _STOP_S
    while any(Path(f"/proc/{pid}").exists() for pid in first) and time.monotonic() < until:
        time.sleep(_TICK_S)


def _in_memory(content: bytes) -> int:
    """Return a file in memory that holds ``content``, read from its start."""
    file = os.memfd_create("turngym-filter")
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


_Descriptors = tuple[int, int, int]
"""What bubblewrap inherits: where it reports its child, the filter, and a shell's file."""


def _command(width: int, height: int, fds: _Descriptors) -> list[str]:
    """Return what starts a desktop, as the same user of the host as any other sandbox."""
    script = (_HERE / "session.sh").read_text(encoding="utf-8")
    base, is_root = base_folder(), os.geteuid() == 0
    folders = {"etc": str(host_etc()), "settings": str(_HERE / "settings")}
    seen = {name: f"{base}/{name}" for name in folders} if is_root else folders
    options = _bubblewrap(seen["etc"], seen["settings"], fds)
    settings = {
        "owner": SANDBOX_UID if is_root else None, "base": base, "folders": folders,
        "command": [*options, _SHELL, "-c", script, "desktop", str(width), str(height)],
    }  # fmt: skip
    return interpreter("turngym.sandbox.launcher.single", json.dumps(settings))


def _bubblewrap(etc: str, settings: str, fds: _Descriptors) -> list[str]:
    size, fonts = ("--size", str(MEMORY_BYTES)), "/var/cache/fontconfig"
    info, filter, shell = map(str, fds)
    themes = [f"{_THEMES}/{name}" for name in _KEPT_THEMES]
    return [
        "bwrap", "--die-with-parent", *(f"--unshare-{name}" for name in (*NAMESPACES, "ipc")),
        "--disable-userns", "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL",
        "--hostname", "desktop", "--new-session", "--as-pid-1",
        *root_options(Root(entries=host_entries(), etc=etc)), "--ro-bind-try", fonts, fonts,
        "--tmpfs", _THEMES, *(word for place in themes for word in ("--ro-bind-try", place, place)),
        "--remount-ro", _THEMES, "--dev", "/dev", "--proc", "/proc", *masks(),
        *size, "--tmpfs", "/home", *size, "--tmpfs", "/tmp", *size, "--tmpfs", "/run",
        "--dir", HOME, "--dir", "/run/user", "--ro-bind", settings, "/run/settings",
        "--perms", "0111", "--file", shell, _SHELL,
        "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME, "--clearenv",
        *(word for name, value in VARIABLES.items() for word in ("--setenv", name, value)),
        "--info-fd", info, "--seccomp", filter, "--",
    ]  # fmt: skip


_THEMES = "/usr/share/themes"
_KEPT_THEMES = (
    "Clearlooks", "Clearlooks-3.4", "Clearlooks-Olive", "Mikachu", "Default", "Emacs", "Raleigh",
)  # fmt: skip
"""Those of windows are as many as the list of obconf shows: a longer one is now and then looked at
before it has scrolled to the theme in use."""
_SHELL = "/run/sh"
"""The first process: a shell whose file may not be read, only run. So the kernel lets no program
of the same user into it, and what it reports is written by none but itself."""
_BUS = "unix:path=/run/user/bus"
VARIABLES = {
    "AT_SPI_BUS_ADDRESS": _BUS, "DBUS_SESSION_BUS_ADDRESS": _BUS, "DISPLAY": ":0",
    "GDK_BACKEND": "x11", "GIO_USE_VFS": "local", "GSETTINGS_BACKEND": "keyfile",
    "GTK_MODULES": "gail:atk-bridge", "GTK_OVERLAY_SCROLLING": "0", "HOME": HOME,
    "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "TZ": "UTC", "XDG_RUNTIME_DIR": "/run/user",
}  # fmt: skip
"""Environment of every program inside. Settings are files, so that tasks can be judged on them."""
