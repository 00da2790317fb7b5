"""An environment called by name: in this process, or in a child process that is made for it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium

from turngym import registry
from turngym.environments.core.env import restore, snapshot
from turngym.environments.gym.face import GymFace, as_gym
from turngym.errors import EnvironmentFault
from turngym.faults import ExitBoundary, describe, keep_place

MakeEnv = Callable[[], Any]
"""Makes a ``gymnasium.Env`` or an ``AsyncTurnEnv``."""

GET = "get attribute"
CALL = "call attribute"

_CLOSE_TIMEOUT_S = 10.0
_LAST_S = 2.0
"""How long a child may take to close once its parent is dead."""
STARTS_EPISODE = frozenset({"reset", "restore"})


def dispatch(
    env: gymnasium.Env[Any, Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Carry out one call on ``env`` and return what it returns.

    Args:
        env: The environment.
        name: A method of ``gymnasium.Env``; ``"snapshot"``, ``"restore"`` or ``"end_at_limit"``,
            which gives None where the environment has none; ``GET`` for the attribute
            ``args[0]``, which gives (is callable, value); ``CALL`` to call it.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    if name == GET:
        value = env.get_wrapper_attr(args[0])
        return (True, None) if callable(value) else (False, value)
    if name == CALL:
        return env.get_wrapper_attr(args[0])(*args[1:], **kwargs)
    if name == "end_at_limit":
        return env.get_wrapper_attr(name)() if env.has_wrapper_attr(name) else None
    if name == "snapshot":
        return snapshot(env)
    if name == "restore":
        return restore(env, *args)
    return getattr(env, name)(*args, **kwargs)


class LocalEnv:
    """The environment lives in this process; calls run in the thread of the caller, one at a time.

    The first call makes it.
    """

    def __init__(self, make: MakeEnv) -> None:
        self._make = make
        self._env: gymnasium.Env[Any, Any] | None = None

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Carry out a call, see ``dispatch``.

        Raises:
            EnvironmentFault: In place of what would end the thread or the program.
        """
        with ExitBoundary(name, EnvironmentFault):
            if self._env is None:
                self._env = as_gym(self._make())
            return dispatch(self._env, name, args, kwargs)

    def interrupt(self) -> bool:
        """Cancel the coroutine behind a ``GymFace``; a thread itself cannot be interrupted."""
        face = self._env and self._env.unwrapped
        if not isinstance(face, GymFace):
            return False
        face.interrupt()
        return True

    def close(self) -> None:
        """Close the environment."""
        env, self._env = self._env, None
        if env is not None:
            with ExitBoundary("close", EnvironmentFault):
                env.close()


class ChildEnv:
    """The environment lives in a child process, started by the first call.

    When the child dies, the call that ran and all others up to the next ``reset`` or ``restore``
    raise ``EnvironmentFault``; that one starts a new child.
    """

    def __init__(self, make: MakeEnv) -> None:
        self._make = make
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._interrupted = False
        self._lost = False

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Have a call carried out by the child; what it raises is raised here.

        Raises:
            EnvironmentFault: The child died, or the result cannot be sent.
        """
        message = pickle.dumps((name, args, kwargs))
        pipe = self._connect(name)
        try:
            pipe.send_bytes(message)
            reply = pipe.recv_bytes()
        except (EOFError, OSError) as error:
            code = self._kill()
            self._lost = True
            raise EnvironmentFault(
                f"{name}: the environment's process died (exit code {code})"
            ) from error
        return open_reply(name, reply)

    def interrupt(self) -> bool:
        """Kill the child; the call that runs ends with a fault."""
        self._interrupted = True
        if (process := self._process) is not None:
            _kill_group(process)
        return True

    def close(self) -> None:
        """Let the child close the environment and end; kill it if it takes too long."""
        pipe, self._lost = self._pipe, True
        try:
            if pipe is not None:
                pipe.send_bytes(pickle.dumps(("close", (), {})))
                if pipe.poll(_CLOSE_TIMEOUT_S):
                    open_reply("close", pipe.recv_bytes())
                if self._process is not None:
                    self._process.join(_CLOSE_TIMEOUT_S)
        except (EOFError, OSError):
            pass  # it is dead already
        finally:
            self._kill()

    def _connect(self, name: str) -> Connection:
        """Return the pipe to a living child, which is started if need be."""
        if self._process is not None and (self._interrupted or not self._process.is_alive()):
            self._kill()
            self._lost = True
        if self._lost and name not in STARTS_EPISODE:
            raise EnvironmentFault(f"{name}: the environment's process died before; call reset")
        if self._pipe is None:
            self._interrupted = self._lost = False
            self._pipe = self._start()
        return self._pipe

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # What was loaded from a file comes first: the child must find what it is to make.
        work = (theirs, registry.sources(), pickle.dumps(self._make))
        process = context.Process(target=_serve, args=work, daemon=True)
        process.start()
        theirs.close()
        self._process = process
        if self._interrupted:  # while it was starting
            _kill_group(process)
        return ours

    def _kill(self) -> int | None:
        """Make sure that there is no child, nor what it has started; return its exit code."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is None:
            return None
        _kill_group(process)
        process.join()
        return process.exitcode  # not closed: at the program's end Python joins it, too


def _kill_group(process: BaseProcess) -> None:
    """Kill a child, and what it has started: that may hold its end of the pipe open."""
    process.kill()
    if process.pid is not None:
        with suppress(OSError):  # nothing is left of its group
            os.killpg(process.pid, signal.SIGKILL)


def open_reply(name: str, reply: bytes) -> Any:
    """Return or raise the other process's ``reply``; what would end this one becomes a fault.

    Raises:
        EnvironmentFault: It cannot be read.
    """
    try:
        fine, value = pickle.loads(reply)
    except BaseException as error:  # a class that only the child can import, for example
        raise EnvironmentFault(
            f"{name}: the reply of the process is unreadable: {describe(error)}"
        ) from error
    if fine:
        return value
    with ExitBoundary(name, EnvironmentFault):
        raise value


def _serve(pipe: Connection, sources: list[str], make: bytes) -> None:
    """Carry out calls until the other side is gone; the main function of the child."""
    os.setpgid(0, 0)  # with all that it starts, so that nothing is left of it
    for number in (signal.SIGINT, signal.SIGHUP):  # the parent decides
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(
        target=end_with_parent, args=(_LAST_S,), name="turngym-parent", daemon=True
    ).start()
    env = LocalEnv(partial(make_here, sources, make))  # what it raises answers the first call
    name = ""
    try:
        while name != "close":
            try:
                name, args, kwargs = pickle.loads(pipe.recv_bytes())
            except EOFError:
                break
            pipe.send_bytes(_answer(env, name, args, kwargs))
    finally:
        env.close()


def make_here(sources: list[str], make: bytes) -> Any:
    """Return what another process's ``make`` makes, with what that one had loaded.

    Args:
        sources: Of ``registry.sources`` there.
        make: The pickled function.
    """
    with registry.loaded(sources):
        return pickle.loads(make)()


def end_with_parent(last_s: float) -> None:
    """End this process ``last_s`` seconds after its parent has, also when a call never ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        time.sleep(last_s)  # what can be closed closes
        if os.getpgrp() == os.getpid():  # what it has started ends with it
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _answer(env: LocalEnv, name: str, args: Any, kwargs: Any) -> bytes:
    try:
        value = env.close() if name == "close" else env.call(name, *args, **kwargs)  # type: ignore[func-returns-value]
    except BaseException as error:  # noqa: BLE001 - all of them belong to the other side
        return pack_error(name, error)
    return pack(name, value)


def pack(name: str, value: Any) -> bytes:
    """Return the answer ``value`` to the call ``name``, or a fault where it cannot be pickled."""
    try:
        return pickle.dumps((True, value))
    except BaseException as error:  # noqa: BLE001 - pickling raises many types
        fault = EnvironmentFault(f"{name}: the result cannot be pickled: {describe(error)}")
        return pickle.dumps((False, fault))


def pack_error(name: str, error: BaseException) -> bytes:
    """Return ``error`` with its traceback as a note, or a fault that describes it, for sending."""
    trace = "".join(traceback.format_exception(error))
    fault = EnvironmentFault(f"{name}: {describe(error)}\n{trace}")
    try:
        keep_place(error)
        error.add_note(f"in the environment's process:\n{trace}")
        reply = pickle.dumps((False, error))
        pickle.loads(reply)  # some exceptions can be written but not read
    except BaseException:  # noqa: BLE001 - pickling raises many types
        return pickle.dumps((False, fault))
    return reply
