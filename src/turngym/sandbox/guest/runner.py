"""One command's own parent: starts it, waits, and leaves no process of it behind.

The runner is a forked copy of the guest that makes itself a subreaper, so everything the command
starts, however often it forks and calls setsid, ends up below it. A command may kill or stop its
runner; the guest notices and then kills all there is.
"""

import _signal  # type: ignore[import-not-found]  # the part of signal without enum
import os

from turngym.sandbox.guest import system

STATE_IN_FD, STATE_OUT_FD = 8, 9
"""Where a session's script reads the state before it, and writes the state after it."""
STATUS_FD = 7
_MORE_LIKELY = 500
_SIGINT, _SIGPIPE, _SIGXFSZ = 2, 13, 25


class Command:
    """What to start, with the file descriptors of the guest that the command gets."""

    standard = (-1, -1, -1)
    state_in = state_out = -1
    tty = b""

    def __init__(
        self, argv: "list[bytes]", env: "dict[bytes, bytes]", cwd: bytes, flags: bytes
    ) -> None:
        self.argv, self.env, self.cwd = argv, env, cwd
        self.keep_background, self.tell_start = b"b" in flags, b"s" in flags


class Stop(BaseException):
    """The guest wants the command ended now."""


class Score:
    """When memory runs out the kernel shall take a command, never the guest.

    A forked process inherits the score, so it is raised for the moment of the fork. Where /proc is
    read-only commands cannot change what they inherit; the launcher then sends the guest its own
    score as an open file.
    """

    def __init__(self, fd: int) -> None:
        """Wrap the open file; -1 for none."""
        self.fd = fd
        self.own = int(os.pread(fd, 16, 0)) if fd >= 0 else 0

    def set(self, more: int) -> bool:
        """Make it ``more`` likely than at the start; return whether the kernel agreed."""
        try:
            return self.fd >= 0 and os.pwrite(self.fd, b"%d" % min(1000, self.own + more), 0) > 0
        except OSError:
            return False


def start(command: Command, score: Score) -> "tuple[int, int]":
    """Fork a runner; return its process id and the pipe that it reports to.

    The report is text: ``started PID`` when asked for, then ``ended WAITSTATUS LEFTOVERS CLEAN``;
    or ``failed ERRNO``.
    """
    report, status = os.pipe()
    is_scored = score.set(_MORE_LIKELY)
    try:
        pid = os.fork()
    except OSError:
        os.close(report)
        os.close(status)
        score.set(0)
        raise
    if pid:
        score.set(0)
        os.close(status)
        return pid, report
    try:
        _run(command, status, is_scored)
    finally:
        os._exit(1)


def _run(command: Command, status: int, is_scored: bool) -> None:
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(system.SIGUSR1, _stop)
    system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
    _keep_only(command, status)
    try:
        if not is_scored:
            _be_killed_first()
        main = _spawn(command)
    except OSError as error:
        os.write(STATUS_FD, b"failed %d\n" % (error.errno or 0))
        os._exit(0)
    for fd in (0, 1, 2, STATE_IN_FD, STATE_OUT_FD):
        _close(fd)
    if command.tell_start:
        os.write(STATUS_FD, b"started %d\n" % main)
    _wait(main, command.keep_background)
    os._exit(0)


def _stop(number: int, frame: object) -> None:
    raise Stop


def _keep_only(command: Command, status: int) -> None:
    """Put the descriptors of the command where it wants them and close all others."""
    wanted = [*command.standard, status, command.state_in, command.state_out]
    # First out of the way, so that no descriptor is overwritten before it is moved.
    high = [_above_places(fd) for fd in wanted]
    places = (0, 1, 2, STATUS_FD, STATE_IN_FD, STATE_OUT_FD)
    for fd, place in zip(high, places):  # noqa: B905 - both hold six
        if fd >= 0:
            os.dup2(fd, place, inheritable=place != STATUS_FD)
        else:
            _close(place)
    os.closerange(3, STATUS_FD)
    os.closerange(STATE_OUT_FD + 1, 1 << 20)


def _above_places(fd: int) -> int:
    # Without fcntl: loading it into each runner would cost as much as the rest of a command.
    while 0 <= fd <= STATE_OUT_FD:
        fd = os.dup(fd)
    return fd


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass


def _spawn(command: Command) -> int:
    os.chdir(command.cwd)
    actions: list[tuple[int, int, bytes, int, int]] = []
    if command.tty:
        actions = [(os.POSIX_SPAWN_OPEN, fd, command.tty, os.O_RDWR, 0) for fd in (0, 1, 2)]
    return os.posix_spawn(
        find_program(command.argv[0], command.env.get(b"PATH", b"")), command.argv, command.env,
        file_actions=actions, setsid=True, setsigmask=[],
        setsigdef=[_SIGINT, _SIGPIPE, _SIGXFSZ, system.SIGUSR1, _signal.SIGCHLD],
    )  # fmt: skip


def _be_killed_first() -> None:
    """Raise the score of this process itself: a command could lower it again, but must know how."""
    try:
        # The files of a process that may not be looked at belong to root, even for itself.
        system.prctl(system.PR_SET_DUMPABLE, 1)
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"%d" % _MORE_LIKELY)
        os.close(fd)
    except OSError:
        pass
    finally:
        system.prctl(system.PR_SET_DUMPABLE, 0)


def find_program(name: bytes, path: bytes) -> bytes:
    """Return the file to execute for ``name``.

    Raises:
        OSError: There is none (ENOENT), or it may not be executed (EACCES).
    """
    if b"/" in name:
        return name
    is_denied = False
    for folder in path.split(b":"):
        candidate = folder + b"/" + name
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            is_denied = True
    raise OSError(13 if is_denied else 2, "no such program", name)


def _wait(main: int, keep_background: bool) -> None:
    """Wait for the command, then for or against what it left, and report."""
    status = None
    try:
        while status is None:
            pid, ended = os.waitpid(-1, 0)
            if pid == main:
                status = ended
    except Stop:
        pass
    if keep_background and status is not None:
        os.write(STATUS_FD, b"ended %d 0 1\n" % status)
        try:
            while True:
                os.waitpid(-1, 0)
        except (ChildProcessError, Stop):
            system.kill_descendants(2.0)
        return
    # Reaped on its own, so that its status is known, after the rest can start nothing new.
    found = (status, *system.kill_descendants(2.0)) if status is not None else _kill_with_main(main)
    os.write(STATUS_FD, b"ended %d %d %d\n" % found)


def _kill_with_main(main: int) -> "tuple[int, int, int]":
    """Kill the command and all below this runner; return status, how many others, and success."""
    system.send_signal(main, system.SIGSTOP)
    others = [pid for pid in system.descendants(os.getpid()) if pid != main]
    system.send_signal(main, system.SIGKILL)
    _, status = os.waitpid(main, 0)
    _, is_clean = system.kill_descendants(2.0)
    return status, len(others), is_clean
