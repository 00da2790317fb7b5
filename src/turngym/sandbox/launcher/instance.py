"""One sandbox as the launcher sees it: its processes, its control groups, its mounts."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turngym.sandbox.launcher import cgroups, layers, mounts
from turngym.sandbox.launcher.single import become

GUEST_FD, ARGS_FD, SECCOMP_FD, INFO_FD, BLOCK_FD, SCORE_FD = 3, 4, 5, 6, 7, 8


def has_ended(pidfd: int) -> bool:
    """Say whether the process of a descriptor has ended; ``select.select`` stops at number 1023."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


class Store:
    """Memory with a limit, holding the upper folder of a sandbox and, once committed, a layer."""

    def __init__(self, path: str, *, num_bytes: int, inodes: int, owner: int) -> None:
        self.path = path
        os.mkdir(path)
        mounts.mount_tmpfs(path, num_bytes=num_bytes, inodes=inodes)
        for name in ("u", "w"):
            os.mkdir(f"{path}/{name}")
            os.chown(f"{path}/{name}", owner, owner)

    @property
    def upper(self) -> str:
        """The folder that takes what is written."""
        return f"{self.path}/u"

    def remove(self) -> None:
        """Give the memory back."""
        with contextlib.suppress(OSError):
            mounts.unmount(self.path)
            os.rmdir(self.path)


class Instance:
    """A started sandbox, from its first process until nothing of it is left."""

    def __init__(self, id: str, folder: str, chain: list[str]) -> None:
        self.id = id
        self.folder = folder
        self.chain = chain
        """Layers below, topmost first, by name."""
        self.store: Store | None = None
        self.group: cgroups.Group | None = None
        self.enforced: dict[str, str] = {}
        self.monitor_pid = 0
        self.monitor_fd = -1
        self.init_fd = -1
        """A pidfd of the sandbox's process 1, once it is known."""
        self.user = 0
        """Host user that it shall be."""
        self.uid = -1
        """Effective user of process 1, as this process sees it."""
        self.info_fd = -1
        self.info = b""
        self.block_fd = -1
        self.score: socket.socket | None = None
        """Where process 1 gets the file of its own score from."""
        self.messages_fd = -1
        self.is_mounted = False
        self.is_doomed = False
        """True when it shall be killed as soon as its process 1 is known."""
        self.has_ended = False
        self.start_request: int | None = None
        self.when_gone: list[Callable[[str], None]] = []
        """Called with bubblewrap's messages when nothing is left."""
        self.keep_store = False

    def launch(self, args: list[str], seccomp: bytes, guest_fd: int, owner: int | None) -> None:
        """Start bubblewrap, held before its first command until `admit`.

        Args:
            args: Its options and, after ``--``, the command.
            seccomp: The filter, as BPF.
            guest_fd: The guest's end of its connection.
            owner: Host user to become; None to stay who we are.

        Raises:
            OSError: A pipe or process could not be made.
        """
        self.info_fd, info_write = os.pipe()
        block_read, self.block_fd = os.pipe()
        self.score, guest_score = socket.socketpair()
        self.messages_fd = os.memfd_create("messages")
        split = args.index("--")
        fds = {
            0: os.open("/dev/null", os.O_RDWR), 2: self.messages_fd, GUEST_FD: guest_fd,
            ARGS_FD: _memory_file("\0".join(args[:split]).encode() + b"\0"),
            SECCOMP_FD: _memory_file(seccomp), INFO_FD: info_write, BLOCK_FD: block_read,
            SCORE_FD: guest_score.detach(),
        }  # fmt: skip
        command = ["bwrap", "--args", str(ARGS_FD), "--", *args[split + 1 :]]
        self.monitor_pid = os.fork()
        if self.monitor_pid == 0:
            self._become(command, fds, owner)
        for fd in (fds[0], fds[ARGS_FD], fds[SECCOMP_FD], info_write, block_read, fds[SCORE_FD]):
            os.close(fd)
        self.monitor_fd = os.pidfd_open(self.monitor_pid)

    def _become(self, command: list[str], fds: dict[int, int], owner: int | None) -> None:
        """Turn this forked process into bubblewrap; never returns."""
        try:
            if self.group is not None:
                self.group.join()
            import fcntl

            # First all out of the way: a descriptor may lie where another one has to go.
            moved = {place: fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for place, fd in fds.items()}
            for place, fd in moved.items():
                os.dup2(fd, place)
            os.dup2(0, 1)
            os.closerange(SCORE_FD + 1, 1 << 20)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            mounts.enter_private_ipc()  # one of bubblewrap's would have the kernel's own limits
            become(command, owner)
        except BaseException as error:  # noqa: BLE001 - the last word of a forked process
            with contextlib.suppress(OSError):
                os.write(2, f"cannot start bwrap: {error}\n".encode())
        finally:
            os._exit(1)

    def hear(self) -> bool:
        """Take in what bubblewrap says of the sandbox; return whether that is all of it."""
        data = os.read(self.info_fd, 4096)
        self.info += data
        return not data or self.info.rstrip().endswith(b"}")

    def admit(self) -> bool:
        """Hold on to the sandbox's first process and let it go on.

        Returns:
            False when bubblewrap ended before it made one.
        """
        try:
            pid = int(json.loads(self.info)["child-pid"])
            self.init_fd = os.pidfd_open(pid)
            status = Path(f"/proc/{pid}/status").read_text()
            self.uid = int(status.partition("\nUid:\t")[2].split()[1])
            # Process 1 gets the file that says how likely the kernel is to kill it.
            assert self.score is not None
            fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            try:
                socket.send_fds(self.score, [b"1"], [fd])
            finally:
                os.close(fd)
        except (OSError, ValueError, KeyError, IndexError):
            return False
        if self.is_doomed:
            self.kill()
        # Only now bubblewrap goes on: before, there was no descriptor to kill process 1 by. It may
        # have died meanwhile, as one does that is killed while it starts.
        with contextlib.suppress(BrokenPipeError):
            os.write(self.block_fd, b"1")
        os.close(self.block_fd)
        self.block_fd = -1
        return True

    def kill(self) -> None:
        """Kill all processes, now or as soon as the first is known."""
        self.is_doomed = True
        if self.init_fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.init_fd, signal.SIGKILL)
        if self.group is not None and self.init_fd >= 0:
            self.group.freeze(False)  # a frozen process dies only when it is thawed

    def wait_frozen(self) -> None:
        """Wait until frozen processes stand still; a kernel takes a moment for that."""
        if self.group is not None:
            self.group.wait_frozen(2.0)

    def messages(self) -> str:
        """Return what bubblewrap had to say."""
        if self.messages_fd < 0:
            return ""
        return os.pread(self.messages_fd, 2000, 0).decode("utf-8", "replace").strip()

    def release(self) -> bool:
        """Remove what the ended sandbox held; False while something still dies."""
        if self.group is not None:
            self.group.kill()
            if not self.group.remove():
                return False
        if self.is_mounted:
            with contextlib.suppress(OSError):
                mounts.unmount(f"{self.folder}/m")
            self.is_mounted = False
        for name in ("info_fd", "block_fd", "messages_fd", "init_fd", "monitor_fd"):
            if (fd := getattr(self, name)) >= 0:
                os.close(fd)
                setattr(self, name, -1)
        if self.score is not None:
            self.score.close()
        if self.store is not None and not self.keep_store:
            self.store.remove()
        with contextlib.suppress(OSError):
            os.rmdir(f"{self.folder}/m")
            os.rmdir(self.folder)
        return True


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("input")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def in_child(work: Any) -> tuple[int, int]:  # a function that returns JSON values
    """Run ``work`` in a forked process; return its id and the pipe of its JSON answer.

    The process ends with this one, whatever ends this one.
    """
    answer, write_end = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, answer
    try:
        try:
            mounts.end_with(parent)
            result = {"ok": work()}
        except (OSError, ValueError, shutil.Error) as error:
            result = {"error": str(error)[:2000]}
        data = json.dumps(result).encode()
        while data:
            data = data[os.write(write_end, data) :]
        os._exit(0)
    finally:
        os._exit(1)


def make_base(path: str, owner: int) -> None:
    """Mount the place that holds everything of this launcher, for its ``owner``."""
    Path(path).mkdir(parents=True, exist_ok=True, mode=0o755)
    mounts.mount_tmpfs(path, num_bytes=64 << 20, inodes=1 << 20)
    for name in ("sandboxes", "stores", "layers", "images", "runtime"):
        os.mkdir(f"{path}/{name}")
    layers.make_skeleton(Path(path, "layers", "skeleton"), owner)
