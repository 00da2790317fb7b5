"""A command that runs: its pipes, its runner, and who waits for what of it."""

import errno
import os
import time

from turngym.sandbox.guest import system, wire

CHUNK = 1 << 20
_FULL_PIPE = 32768
MAX_STATE_BYTES = 8 << 20
POLLIN, POLLOUT = 1, 4


class Capture:
    """The first and last bytes of a stream, at most ``limit`` bytes in all."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        """Bytes seen, kept or not."""
        self._head_limit = (limit + 1) // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in the next piece of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self._tail_limit:
            self._tail = bytearray(data[len(data) - self._tail_limit :])
        elif data:
            self._tail += data
            # Cut only now and then: cutting at each small piece would copy the tail each time.
            if len(self._tail) > 2 * self._tail_limit:
                del self._tail[: len(self._tail) - self._tail_limit]

    def kept(self) -> bytes:
        """Return what was kept; shorter than ``total`` exactly when something was dropped."""
        return bytes(self._head + self._tail[max(0, len(self._tail) - self._tail_limit) :])


class RunningCommand:
    """One command, from its start until its last output was collected.

    Every result goes through ``guest.reply``; a caller that must wait is remembered by its request.
    """

    def __init__(self, guest, request: bytes, is_stream: bool, max_output: int) -> None:  # type: ignore[no-untyped-def]  # the guest imports this module
        self.guest = guest
        self.request = request
        self.is_stream = is_stream
        self.runner_pid = 0
        self.main_pid = 0
        self.report_fd = -1
        self.stdin_fd = -1
        self.pty_fd = -1
        self.state_fd = -1
        self.pending_stdin = b""
        self.close_stdin = False
        self.outputs: dict[int, int] = {}
        """Descriptor of standard output and error to its number, 1 or 2."""
        self.enlarged: set[int] = set()
        """Pipes that were found full and got a larger buffer."""
        self.captures = {1: Capture(max_output), 2: Capture(max_output)}
        self.readers: dict[int, tuple[bytes, int]] = {}
        """Number of a stream to the request that waits for it and how much that wants."""
        self.waiters: list[bytes] = []
        self.writer = b""
        self.ended: tuple[bytes, int] | None = None
        """How it ended and with which number: ``exit`` or ``signal``."""
        self.leftovers = 0
        self.idle_s = 0.0
        self.why = b""
        """Why the guest ended it: ``idle`` or ``memory``."""
        self.text = b""
        self.is_reported = False
        """True once the result of a captured command is out."""
        self.started = self.last_output = time.monotonic()
        self.reports = b""

    # Reports of the runner

    def on_report(self, fd: int) -> None:
        """Take in what the runner says, or that it is gone."""
        data = os.read(fd, 4096)
        self.reports += data
        *lines, self.reports = self.reports.split(b"\n")
        for line in lines:
            word, *numbers = line.split()
            values = [int(number) for number in numbers]
            if word == b"started":
                self.main_pid = values[0]
                if self.is_stream:
                    self.guest.reply(self.request, wire.number(self.main_pid))
            elif word == b"failed":
                self._failed(values[0])
            else:
                self._ended(*values)
        if not data:
            self.guest.unwatch(fd)
            os.close(fd)
            self.report_fd = self.runner_pid = -1
            if self.ended is None:
                # The command killed its runner. What it left cannot be distinguished: all goes.
                self.guest.kill_everything()
                self._finish(b"signal", system.SIGKILL)
            elif not self.is_stream:
                self.close()

    def _failed(self, number: int) -> None:
        self.text = f"cannot start: {os.strerror(number)}\n".encode()
        if self.is_stream:
            self.guest.fail(self.request, number, self.text)
        self._finish(b"exit", 127 if number == errno.ENOENT else 126)

    def _ended(self, status: int, leftovers: int, is_clean: int) -> None:
        self.leftovers = leftovers
        if not is_clean:
            self.guest.kill_everything()
        code = os.waitstatus_to_exitcode(status)
        self._finish(b"exit" if code >= 0 else b"signal", abs(code))

    def _finish(self, how: bytes, number: int) -> None:
        if self.ended is not None:
            return
        self.ended = (how, number)
        self.idle_s = 0.0
        for request in self.waiters:
            self.guest.reply(request, how, wire.number(number))
        self.waiters = []
        if self.is_stream:
            for number_of_stream in list(self.readers):
                self._try_read(number_of_stream)
            return
        for fd in list(self.outputs):
            self.on_output(fd)
        if self.text:
            self.captures[2].feed(self.text)
        self.guest.reply(
            self.request,
            how,
            wire.number(number),
            self.captures[1].kept(),
            wire.number(self.captures[1].total),
            self.captures[2].kept(),
            wire.number(self.captures[2].total),
            self.why,
            wire.number(self.leftovers),
            wire.number((time.monotonic() - self.started) * 1e6),
            self._state(),
        )
        self.is_reported = True
        self.close()

    def _state(self) -> bytes:
        if self.state_fd < 0:
            return b""
        size = os.fstat(self.state_fd).st_size
        return os.pread(self.state_fd, size, 0) if size <= MAX_STATE_BYTES else b""

    # Output

    def on_output(self, fd: int) -> None:
        """Collect all that a stream of a captured command has to offer now."""
        capture = self.captures[self.outputs[fd]]
        for _ in range(8):  # then others have their turn: a flood must not starve the connection
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""  # a terminal without a process
            if not data:
                self._close_output(fd)
                return
            if self.ended is None or not self.is_stream:
                capture.feed(data)
            self.last_output = time.monotonic()
            if len(data) < 4096 and self.ended is None:
                return
            if len(data) >= _FULL_PIPE and fd not in self.enlarged:
                self.enlarged.add(fd)
                self.guest.enlarge(fd)

    def _close_output(self, fd: int) -> None:
        self.guest.unwatch(fd)
        if fd != self.pty_fd:
            os.close(fd)
        self.outputs.pop(fd, None)
        if self.is_reported and self.report_fd < 0:
            self.close()

    def read(self, request: bytes, stream: int, limit: int) -> None:
        """Answer ``request`` with up to ``limit`` next bytes of a stream, empty at its end."""
        if stream in self.readers:
            self.guest.fail(request, errno.EBUSY, b"somebody reads this stream already")
            return
        self.readers[stream] = (request, limit)
        self._try_read(stream)

    def _try_read(self, stream: int) -> None:
        request, limit = self.readers[stream]
        fd = next((fd for fd, number in self.outputs.items() if number == stream), -1)
        data = b""
        if fd >= 0:
            try:
                data = os.read(fd, min(limit, CHUNK))
            except BlockingIOError:
                if self.ended is None:
                    self.guest.watch(fd, POLLIN, lambda fd, events: self._try_read(stream))
                    return
            except OSError:
                data = b""
            self.guest.unwatch(fd)
            if not data:
                self._close_output(fd)
        del self.readers[stream]
        self.guest.reply(request, data)

    # Input

    def write(self, request: bytes, data: bytes) -> None:
        """Write to standard input, and answer ``request`` when all of ``data`` is on its way."""
        if self.stdin_fd < 0:
            self.guest.fail(request, errno.EPIPE, b"standard input is closed")
        elif self.writer:
            self.guest.fail(request, errno.EBUSY, b"somebody writes already")
        else:
            self.writer, self.pending_stdin = request, data
            self.on_stdin(self.stdin_fd)

    def on_stdin(self, fd: int, events: int = 0) -> None:
        """Write what is pending to standard input ``fd`` after ``events``, as far as it goes."""
        try:
            while self.pending_stdin:
                written = os.write(fd, self.pending_stdin[:65536])
                self.pending_stdin = self.pending_stdin[written:]
        except BlockingIOError:
            self.guest.watch(fd, POLLOUT, self.on_stdin)
            return
        except OSError as error:
            self.pending_stdin, self.close_stdin = b"", True
            if self.writer:
                self.guest.fail(self.writer, error.errno or errno.EPIPE, b"no process reads")
                self.writer = b""
        self.guest.unwatch(fd)
        if self.writer:
            self.guest.reply(self.writer)
            self.writer = b""
        if self.close_stdin:
            self.end_input()

    def end_input(self) -> None:
        """Close standard input, at once or when what is pending was written."""
        if self.pending_stdin:
            self.close_stdin = True
        elif self.stdin_fd >= 0 and self.stdin_fd != self.pty_fd:
            self.guest.unwatch(self.stdin_fd)
            os.close(self.stdin_fd)
            self.stdin_fd = -1

    # Ending

    def stop(self, why: bytes = b"") -> None:
        """End the command and all it started."""
        self.why = self.why or why
        if self.runner_pid > 0 and self.report_fd >= 0:
            system.send_signal(self.runner_pid, system.SIGCONT)
            system.send_signal(self.runner_pid, system.SIGUSR1)
            self.guest.expect_end(self)

    def close(self) -> None:
        """Let go of every descriptor and forget the job, unless output is still to be dropped."""
        if self.is_reported and self.outputs and self.report_fd >= 0:
            return  # kept in the background: somebody must go on reading its output
        for fd in {*self.outputs, self.stdin_fd, self.pty_fd, self.report_fd, self.state_fd}:
            if fd >= 0:
                self.guest.unwatch(fd)
                os.close(fd)
        self.outputs = {}
        self.stdin_fd = self.pty_fd = self.report_fd = self.state_fd = -1
        self.guest.forget(self)
