"""Commands and files of one Android device, over the adb server that this machine runs."""

from __future__ import annotations

import shlex
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from turngym.errors import EnvironmentFault
from turngym.plugins import import_extra

ANSWER_S = 20.0
"""How long a device may take to answer one command."""
_CONNECT_S = 3.0
MAX_FILE_BYTES = 16 << 20
_END = "turngym-status-"
"""Written after every command, since a cut connection looks like the end of a short answer."""


class AndroidGone(EnvironmentFault):
    """The device was unplugged, switched off or does not answer; nothing was judged."""


class Wire:
    """What goes to a device and comes back. Used from one thread at a time.

    Args:
        serial: As ``adb devices`` lists it.
        host: Where the adb server runs.
        port: Its port.

    Raises:
        MissingExtraError: ``adbutils`` is not installed.
    """

    def __init__(self, serial: str, host: str, port: int) -> None:
        self.serial = serial
        self._address = host, port
        self._client = _adbutils().AdbClient(host, port, socket_timeout=ANSWER_S)
        self._device = self._client.device(serial)

    def execute(self, command: str) -> bytes:
        """Return what a line of the device's shell writes, raw.

        Raises:
            AndroidGone: The device is gone, does not answer, or went away in the middle.
        """
        return self._executed(command)[0]

    def ask(self, *command: str) -> str:
        """Return what a command writes, as text without blanks around it."""
        return self.execute(shlex.join(command)).decode(errors="replace").strip()

    def status(self, *command: str) -> int:
        """Return the exit status of a command."""
        return self._executed(shlex.join(command))[1]

    def _executed(self, command: str) -> tuple[bytes, int]:
        """Return output and exit status; what comes without its end mark is not the whole of it."""
        what = command.split(" ", 1)[0]
        with self._attached(what), self._client.make_connection(ANSWER_S) as connection:
            for request in (f"host:transport:{self.serial}", f"exec:{command}; echo {_END}$?"):
                connection.send_command(request)
                connection.check_okay()
            output, mark, status = connection.read_until_close(None).rpartition(_END.encode())
            if not mark or not status.strip().isdigit():
                raise EOFError("it went away in the middle of a command")
            return output, int(status)

    def push(self, path: str, data: bytes) -> None:
        """Write a file."""
        with self._attached("push"):
            self._device.sync.push(data, path, 0o644)

    def pull(self, path: str) -> bytes | None:
        """Return a file; None when it is no plain file of sane size. Links are not followed."""
        with self._attached("pull"):
            about = self._device.sync.stat(path)
            if not stat.S_ISREG(about.mode) or about.size > MAX_FILE_BYTES:
                return None
            content: bytes = self._device.sync.read_bytes(path)
            return content

    def entries(self, folder: str) -> list[tuple[str, int]]:
        """Return name and mode of what is in ``folder``."""
        with self._attached("list"):
            found = [(one.path, one.mode) for one in self._device.sync.iter_directory(folder)]
        return sorted((name, mode) for name, mode in found if name not in (".", ".."))

    @contextmanager
    def _attached(self, what: str) -> Iterator[None]:
        """Say that the device is gone when the wire to it breaks, and start no server by chance."""
        host, port = self._address
        try:
            socket.create_connection(self._address, _CONNECT_S).close()
        except OSError as error:
            raise AndroidGone(
                f"android: {what}: no adb server at {host}:{port} ({error}): adb start-server"
            ) from error
        try:
            yield
        except (_adbutils().AdbError, OSError, EOFError, ValueError, struct.error) as error:
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise AndroidGone(
                f"android: {what}: device {self.serial} is gone ({reason}): see adb devices"
            ) from error


def _adbutils() -> Any:
    return import_extra("adbutils", "Android devices", "android")
