"""The guest's loop: takes requests from the host, watches its jobs, answers.

It is process 1 of a contained sandbox, so when it ends the kernel ends every other process. It
ends when the host lets go of the connection, whatever the reason.
"""

import _signal  # type: ignore[import-not-found]  # the part of signal without enum
import errno
import os
import select
import time

from turngym.sandbox.guest import files, runner, system, wire
from turngym.sandbox.guest.jobs import CHUNK, POLLIN, POLLOUT, RunningCommand

STOP_PATIENCE_S = 3.0
"""How long a runner may take to end its command before everything is killed."""
WATCH_PERIOD_S = 0.05
DIAL_PATIENCE_S = 5.0
"""How long a port may take to accept a connection."""
_F_SETPIPE_SZ = 1031
_MAX_WALKS = 16


class Guest:
    """All jobs of one sandbox and the connection to the host."""

    def __init__(self, receive_fd: int, send_fd: int, score_fd: int, memory_bytes: int) -> None:
        self.receive_fd, self.send_fd = receive_fd, send_fd
        self.memory_bytes = memory_bytes
        """Private memory of all processes at which the largest is killed; 0 for no watch."""
        self.is_init = os.getpid() == 1
        self.score = runner.Score(system.sent_file(score_fd))
        self.jobs: dict[bytes, RunningCommand] = {}
        self.poll = select.poll()
        self.handlers: dict[int, object] = {}
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.deadlines: dict[bytes, float] = {}
        self.runners: set[int] = set()
        """Runners that have not ended, of jobs over or not."""
        self.dials: dict[bytes, tuple[int, float]] = {}
        """Connections that are being made: the socket, and until when it is tried."""
        self.walks: dict[bytes, object] = {}
        """Folders that are being listed, page by page."""
        self.next_watch = 0.0

    # Plumbing

    def watch(self, fd, events, handler) -> None:  # type: ignore[no-untyped-def]  # no typing module here
        """Call ``handler(fd, events)`` whenever ``fd`` is ready."""
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Forget ``fd``."""
        if self.handlers.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def enlarge(self, fd: int) -> None:
        """Give a busy pipe a larger buffer, where allowed."""
        import fcntl

        try:
            fcntl.fcntl(fd, _F_SETPIPE_SZ, CHUNK)
        except OSError:
            pass

    def reply(self, request: bytes, *fields: bytes) -> None:
        """Answer a request."""
        self._send([request, b"ok", *fields])

    def fail(self, request: bytes, number: int, text: bytes) -> None:
        """Answer a request with the error ``number`` of the operating system."""
        self._send([request, wire.number(number), text])

    def _send(self, fields: "list[bytes]") -> None:
        # Never a blocking write: a host that reads slowly must not stop the watch over commands.
        self.outbox += wire.frame(fields)
        self._flush(self.send_fd, 0)

    def _flush(self, fd: int, events: int) -> None:
        try:
            while self.outbox:
                del self.outbox[: os.write(self.send_fd, memoryview(self.outbox)[:CHUNK])]
        except BlockingIOError:
            if self.send_fd != self.receive_fd:
                self.watch(self.send_fd, POLLOUT, self._flush)
            else:
                self.watch(self.receive_fd, POLLIN | POLLOUT, self._on_host)
            return
        except OSError:
            self.leave()
        if self.send_fd != self.receive_fd:
            self.unwatch(self.send_fd)
        else:
            self.watch(self.receive_fd, POLLIN, self._on_host)

    def _on_host(self, fd: int, events: int) -> None:
        if events & POLLOUT:
            self._flush(fd, events)
        if not events & ~POLLOUT:
            return
        try:
            data = os.read(self.receive_fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.leave()
        self.inbox += data
        while len(self.inbox) >= 4:
            end = 4 + int.from_bytes(self.inbox[:4], "big")
            if len(self.inbox) < end:
                return
            body = bytes(self.inbox[4:end])
            del self.inbox[:end]
            request, method, *fields = wire.load(body)
            try:
                getattr(self, "_do_" + method.decode())(request, *fields)
            except OSError as error:
                self.fail(request, error.errno or errno.EIO, str(error.strerror).encode())

    def leave(self) -> None:
        """End, and with it every process of the sandbox."""
        if not self.is_init:
            system.kill_descendants(2.0)
        os._exit(0)

    def run(self) -> None:
        """Serve until the host lets go."""
        for fd in {self.receive_fd, self.send_fd}:
            os.set_blocking(fd, False)
        self.watch(self.receive_fd, POLLIN, self._on_host)
        wake, alarm = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(alarm, False)
        _signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
        # Python's own handler would let a command end process 1 with it.
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        self.watch(wake, POLLIN, self._on_child)
        while True:
            for fd, events in self.poll.poll(self._patience_ms()):
                if fd in self.handlers:
                    self.handlers[fd](fd, events)  # type: ignore[operator]  # see watch
            self._on_time()

    def _on_child(self, fd: int, events: int) -> None:
        os.read(fd, 4096)
        try:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self.runners.discard(pid)
        except ChildProcessError:
            self.runners.clear()

    # Time

    def _patience_ms(self) -> "int | None":
        ends = [*self.deadlines.values(), *(at for _, at in self.dials.values())]
        waits = [at - time.monotonic() for at in ends]
        waits += [
            job.last_output + job.idle_s - time.monotonic()
            for job in self.jobs.values()
            if job.idle_s
        ]
        if self.memory_bytes and self.jobs:
            waits.append(self.next_watch - time.monotonic())
        return max(0, int(min(waits) * 1000) + 1) if waits else None

    def _on_time(self) -> None:
        now = time.monotonic()
        for request, at in list(self.deadlines.items()):
            if now >= at:
                del self.deadlines[request]
                self.kill_everything()
        for request, (_, at) in list(self.dials.items()):
            if now >= at:
                self._end_dial(request, errno.ETIMEDOUT)
        for job in list(self.jobs.values()):
            if job.idle_s and job.ended is None and now >= job.last_output + job.idle_s:
                job.idle_s = 0.0
                job.stop(b"idle")
        # Without a control group the kernel bounds each process, not their sum (best effort).
        if self.memory_bytes and self.jobs and now >= self.next_watch:
            self.next_watch = now + WATCH_PERIOD_S
            self._watch_memory()

    def _watch_memory(self) -> None:
        own = os.getpid()
        pids = system.processes() if self.is_init else system.descendants(own)
        used = {pid: system.private_memory_bytes(pid) for pid in pids if pid != own}
        while used and sum(used.values()) > self.memory_bytes:
            largest = max(used, key=lambda pid: used[pid])
            system.send_signal(largest, system.SIGKILL)
            del used[largest]
            for job in self.jobs.values():
                job.why = job.why or b"memory"

    def expect_end(self, job: RunningCommand) -> None:
        """Kill everything unless ``job`` ends soon."""
        self.deadlines.setdefault(job.request, time.monotonic() + STOP_PATIENCE_S)

    def kill_everything(self) -> None:
        """Kill every process but this one."""
        if not self.is_init:
            system.kill_descendants(2.0)
            return
        for _ in range(1000):
            try:
                os.kill(-1, system.SIGKILL)
            except ProcessLookupError:
                break
            if not system.reap_all():
                time.sleep(0.001)

    def forget(self, job: RunningCommand) -> None:
        """Drop a job that is over."""
        self.deadlines.pop(job.request, None)
        self.jobs.pop(job.request, None)

    # Requests about commands

    def _do_start(self, request: bytes, *fields: bytes) -> None:
        """Start a command: argv, env, cwd, stdin, max_output, flags, idle_ms, state, rows, cols."""
        argv, env, cwd, stdin, max_output, flags, idle_ms, state, rows, cols = fields
        job = RunningCommand(self, request, b"s" in flags, int(max_output))
        job.idle_s = int(idle_ms) / 1000
        variables = wire.load(env)
        command = runner.Command(
            wire.load(argv),
            {name: value for name, value in zip(variables[::2], variables[1::2])},  # noqa: B905
            cwd,
            flags,
        )
        given: list[int] = []
        try:
            if b"t" in flags:
                self._make_terminal(job, command, given, int(rows), int(cols))
            else:
                self._make_pipes(job, command, given, stdin, b"s" in flags)
            if b"m" in flags:
                command.state_in = os.memfd_create("state")
                os.write(command.state_in, state)
                os.lseek(command.state_in, 0, os.SEEK_SET)
                command.state_out = job.state_fd = os.memfd_create("state")
                given.append(command.state_in)
            job.runner_pid, job.report_fd = runner.start(command, self.score)
            self.runners.add(job.runner_pid)
        except OSError:
            job.close()
            raise
        finally:
            for fd in given:
                os.close(fd)
        if not self.jobs:
            self.next_watch = time.monotonic() + WATCH_PERIOD_S
        self.jobs[request] = job
        self.watch(job.report_fd, POLLIN, lambda fd, events: job.on_report(fd))

    def _make_pipes(
        self,
        job: RunningCommand,
        command: runner.Command,
        given: "list[int]",
        stdin: bytes,
        is_stream: bool,
    ) -> None:
        if stdin or is_stream:
            read_end, job.stdin_fd = os.pipe()
            os.set_blocking(job.stdin_fd, False)
            job.pending_stdin, job.close_stdin = stdin, not is_stream
        else:
            read_end = os.open("/dev/null", os.O_RDONLY)
        given.append(read_end)
        for number in (1, 2):
            fd, write_end = os.pipe()
            os.set_blocking(fd, False)
            job.outputs[fd] = number
            given.append(write_end)
            if not is_stream:
                self.watch(fd, POLLIN, lambda fd, events: job.on_output(fd))
        command.standard = (given[0], given[1], given[2])
        if stdin:
            job.on_stdin(job.stdin_fd)

    def _make_terminal(
        self, job: RunningCommand, command: runner.Command, given: "list[int]", rows: int, cols: int
    ) -> None:
        master, slave = os.openpty()
        # Asked of the terminal itself: this process cannot look at its own /proc/self/fd.
        command.tty = b"/dev/pts/%d" % _terminal_number(master)
        os.set_blocking(master, False)
        job.pty_fd = job.stdin_fd = master
        job.outputs[master] = 1
        # The end of the command is kept open until it is started: a terminal without one hangs up.
        null = os.open("/dev/null", os.O_RDWR)
        given += [slave, null]
        command.standard = (null, null, null)
        _resize(master, rows, cols)

    def _do_stop(self, request: bytes, target: bytes) -> None:
        """End a job and all it started; no answer but that of the job."""
        if target in self.jobs:
            self.jobs[target].stop()
        self.reply(request)

    def _do_signal(self, request: bytes, target: bytes, number: bytes) -> None:
        """Send a signal to a job's process group."""
        job = self.jobs.get(target)
        if job is None or job.ended is not None or not job.main_pid:
            raise OSError(errno.ESRCH, "the process has ended")
        os.killpg(job.main_pid, int(number))
        self.reply(request)

    def _do_read(self, request: bytes, target: bytes, stream: bytes, limit: bytes) -> None:
        """Read from a job's output."""
        self._job(target).read(request, int(stream), int(limit))

    def _do_write(self, request: bytes, target: bytes, data: bytes) -> None:
        """Write to a job's input."""
        self._job(target).write(request, data)

    def _do_eof(self, request: bytes, target: bytes) -> None:
        """Close a job's input."""
        self._job(target).end_input()
        self.reply(request)

    def _do_wait(self, request: bytes, target: bytes) -> None:
        """Answer when a job has ended."""
        job = self._job(target)
        if job.ended is None:
            job.waiters.append(request)
        else:
            self.reply(request, job.ended[0], wire.number(job.ended[1]))

    def _do_resize(self, request: bytes, target: bytes, rows: bytes, cols: bytes) -> None:
        """Change the size of a job's terminal."""
        _resize(self._job(target).pty_fd, int(rows), int(cols))
        self.reply(request)

    def _do_drop(self, request: bytes, target: bytes) -> None:
        """End a streaming job, or a connection that is being made, and forget it."""
        if target in self.dials:
            self._end_dial(target, errno.ECANCELED)
        if target in self.jobs:
            job = self.jobs[target]
            if job.ended is None and job.runner_pid:
                job.waiters.append(request)
                job.stop()
                return
            job.ended = job.ended or (b"exit", 0)
            job.close()
        self.reply(request)

    def _job(self, target: bytes) -> RunningCommand:
        if target not in self.jobs:
            raise OSError(errno.ESRCH, "no such process of this sandbox")
        return self.jobs[target]

    # Requests about the sandbox

    def _do_dial(self, request: bytes, port: bytes) -> None:
        """Connect to a port of the sandbox; the job that stands for it has no process.

        A port that is full gives no sign, so it is waited for like anything else, for a while.
        """
        import _socket

        connection = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        connection.setblocking(False)
        error = connection.connect_ex(("127.0.0.1", int(port)))
        fd = connection.detach()
        if error not in (0, errno.EINPROGRESS):
            os.close(fd)
            raise OSError(error, os.strerror(error))
        self.dials[request] = (fd, time.monotonic() + DIAL_PATIENCE_S)
        self.watch(fd, POLLOUT, lambda fd, events: self._on_dialled(fd, request))

    def _on_dialled(self, fd: int, request: bytes) -> None:
        import _socket

        connection = _socket.socket(fileno=fd)
        error = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        connection.detach()
        if error:
            self._end_dial(request, error)
            return
        self.unwatch(fd)
        del self.dials[request]
        job = RunningCommand(self, request, True, 0)
        job.outputs[fd] = 1
        job.stdin_fd = os.dup(fd)
        self.jobs[request] = job
        self.reply(request, b"0")

    def _end_dial(self, request: bytes, error: int) -> None:
        fd, _ = self.dials.pop(request)
        self.unwatch(fd)
        os.close(fd)
        self.fail(request, error, os.strerror(error).encode())

    def _do_get(
        self, request: bytes, path: bytes, offset: bytes, length: bytes, follow: bytes
    ) -> None:
        """Read a part of a file."""
        self.reply(request, *files.get(path, int(offset), int(length), follow == b"1"))

    def _do_put(self, request: bytes, path: bytes, offset: bytes, mode: bytes, data: bytes) -> None:
        """Write a part of a file."""
        self.reply(request, *files.put(path, int(offset), int(mode), data))

    def _do_puttree(self, request: bytes, root: bytes, *entries: bytes) -> None:
        """Write folders, links and small files."""
        self.reply(request, *files.put_tree(root, list(entries)))

    def _do_walk(self, request: bytes, root: bytes, max_entries: bytes, max_depth: bytes) -> None:
        """List what is below a folder: the first page."""
        self.walks[request] = files.walk(root, int(max_entries), int(max_depth))
        while len(self.walks) > _MAX_WALKS:  # who asked for the oldest has gone
            del self.walks[next(iter(self.walks))]
        self._do_walknext(request, request)

    def _do_walknext(self, request: bytes, walk: bytes) -> None:
        """List the next page, which is empty when there is no more."""
        if walk not in self.walks:
            raise OSError(errno.EBUSY, "too many folders are listed at a time")
        page = next(self.walks[walk], None)  # type: ignore[call-overload]  # see files.walk
        if page is None:
            del self.walks[walk]
        self.reply(request, *(page or []))

    def _do_freeze(self, request: bytes, number: bytes) -> None:
        """Stop (19) or continue (18) every process but this one."""
        if self.is_init:
            try:
                os.kill(-1, int(number))
            except ProcessLookupError:
                pass
        else:
            for pid in system.descendants(os.getpid()):
                system.send_signal(pid, int(number))
        self.reply(request)

    def _do_stats(self, request: bytes) -> None:
        """Count processes and memory: processes, bytes of private memory, jobs."""
        own = os.getpid()
        pids = list(system.parents()) if self.is_init else [own, *system.descendants(own)]
        memory = sum(map(system.private_memory_bytes, pids))
        count = len([pid for pid in pids if pid != own and pid not in self.runners])
        running = len([job for job in self.jobs.values() if job.ended is None])
        self.reply(request, wire.number(count), wire.number(memory), wire.number(running))


def _resize(fd: int, rows: int, cols: int) -> None:
    import fcntl
    import termios

    size = rows.to_bytes(2, "little") + cols.to_bytes(2, "little") + bytes(4)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, size)


def _terminal_number(master: int) -> int:
    import fcntl

    return int.from_bytes(fcntl.ioctl(master, 0x80045430, bytes(4)), "little")  # TIOCGPTN


def main(settings: str, mark: str) -> None:
    """Run the guest.

    Args:
        settings: Receiving and sending descriptor, that from which the file of its own score comes
            (-1 for none, see `runner.Score`), memory to watch for, and the five resource limits of
            ``system.LIMITS`` (-1 leaves one as it is), separated by commas.
        mark: Only to be seen in the list of processes.
    """
    import resource

    receive_fd, send_fd, score_fd, memory_bytes, *limits = map(int, settings.split(","))
    for kind, value in zip(system.LIMITS, limits):  # noqa: B905 - lists from one caller
        if value >= 0:
            resource.setrlimit(kind, (value, value))
    os.set_inheritable(receive_fd, False)
    os.set_inheritable(send_fd, False)
    guest = Guest(receive_fd, send_fd, score_fd, memory_bytes)
    system.prctl(system.PR_SET_DUMPABLE, 0)
    system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
    system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
    os.umask(0o022)
    guest._send([b"0", b"hello", *system.greeting()])
    guest.run()
