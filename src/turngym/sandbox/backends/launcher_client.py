"""The owner's side of the launcher: starts it, asks it, outlives none of its sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from turngym.errors import SandboxUnavailable
from turngym.sandbox.backends.runtime import cache_folder, runtime_folder

SANDBOX_UID = 0x70000001
"""Host user of what root starts without the launcher; the launcher gives its sandboxes others."""
START_TIMEOUT_S = 60.0

Answer = dict[str, Any]  # JSON

# Importing the package would run all of turngym, so its folders are named to the interpreter only.
_BOOT = """
import importlib, sys, types
for name in ("turngym", "turngym.sandbox"):
    module = types.ModuleType(name)
    module.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = module
importlib.import_module(sys.argv[2]).main()
"""


def interpreter(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``main`` of one of the launcher's modules, in a bare Python."""
    package_parent = str(Path(__file__).resolve().parents[3])
    python = sys._base_executable  # type: ignore[attr-defined]  # the interpreter below a virtual environment
    return [python, "-I", "-S", "-c", _BOOT, package_parent, module, *arguments]


class LauncherError(Exception):
    """What the launcher answered instead of a result."""


class LauncherGone(LauncherError):
    """What the request is about is there no more: a sandbox that has died."""


class LauncherProcess:
    """A running launcher. Thread-safe; answers reach whichever event loop asks."""

    def __init__(self) -> None:
        self.base = base_folder()
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            interpreter("turngym.sandbox.launcher.main"),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            cwd="/",
            start_new_session=True,  # a Ctrl-C is for the owner, who then closes
        )
        theirs.close()
        self.pid = self._process.pid
        self._socket = ours
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {0: Future()}
        self._is_closed = False
        self._end = "the launcher of sandboxes has ended"
        self._send({"base": self.base, "runtime": str(runtime_folder())}, [])
        greeting = self._waiting[0]
        threading.Thread(target=self._read, name="turngym-launcher", daemon=True).start()
        _alive.add(self)
        try:
            self.facts = greeting.result(START_TIMEOUT_S)
        except (LauncherError, SandboxUnavailable, TimeoutError):
            self.close()
            raise

    def _send(self, request: Answer, fds: Sequence[int]) -> None:
        data = json.dumps(request).encode()
        data = len(data).to_bytes(4, "big") + data
        sent = socket.send_fds(self._socket, [data], list(fds))
        if sent < len(data):
            self._socket.sendall(data[sent:])

    def _read(self) -> None:
        reader = self._socket.makefile("rb")
        with contextlib.suppress(OSError, ValueError):
            while head := reader.read(4):
                answer: Answer = json.loads(reader.read(int.from_bytes(head, "big")))
                if answer["number"] < 0:
                    self._end += f": {answer['error']}"
                future = self._waiting.pop(answer["number"], None)
                if future is None or not future.set_running_or_notify_cancel():
                    continue
                if "error" in answer:
                    kind = LauncherGone if answer.get("is_gone") else LauncherError
                    future.set_exception(kind(answer["error"]))
                else:
                    future.set_result(answer)
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(SandboxUnavailable(self._end))

    @property
    def is_alive(self) -> bool:
        """True until it ended or was closed."""
        return not self._is_closed

    def ask(self, do: str, *, fds: Sequence[int] = (), **fields: Any) -> Future[Answer]:  # JSON
        """Ask to ``do`` something with ``fds``; the future raises `LauncherError`.

        Raises:
            SandboxUnavailable: The launcher has ended.
        """
        number = next(self._numbers)
        future: Future[Answer] = Future()
        with self._lock:
            if self._is_closed:
                raise SandboxUnavailable(self._end)
            self._waiting[number] = future
            try:
                self._send({"do": do, "number": number, **fields}, fds)
            except OSError:
                self._waiting.pop(number, None)
                raise SandboxUnavailable(self._end) from None
        return future

    async def call(self, do: str, *, fds: Sequence[int] = (), **fields: Any) -> Answer:  # JSON
        """Ask to ``do`` something with ``fds`` and wait for the answer.

        Raises:
            LauncherError: It could not be done.
            SandboxUnavailable: The launcher is gone.
        """
        return await asyncio.wrap_future(self.ask(do, fds=fds, **fields))

    def close(self) -> None:
        """End the launcher and with it every sandbox. Harmless twice."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()


_alive: weakref.WeakSet[LauncherProcess] = weakref.WeakSet()


def _forget_all() -> None:
    """Let go of the launchers in a forked child: they belong to the parent."""
    for launcher in list(_alive):
        launcher._is_closed = True
        launcher._process.returncode = 0  # not ours to wait for
        with contextlib.suppress(OSError):
            os.close(launcher._socket.detach())


os.register_at_fork(after_in_child=_forget_all)


def base_folder() -> str:
    """Return the folder on which a launcher mounts all it has, unseen by others."""
    if os.geteuid() != 0:
        return str(cache_folder() / "mnt")
    return "/run/turngym" if os.access("/run", os.W_OK) else "/var/lib/turngym"
