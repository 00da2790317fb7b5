"""The launcher's loop: requests of its owner in, sandboxes started and removed.

Requests and answers are JSON with a 4-byte length in front; a guest's socket rides along with the
request that starts it. When the owner's connection ends, so do all sandboxes and the launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from turngym.sandbox.launcher import cgroups, layers, mounts
from turngym.sandbox.launcher.instance import Instance, Store, has_ended, in_child, make_base

RETRY_S = 0.002
"""Between two attempts to remove what is still dying."""

Request = dict[str, Any]  # JSON


class Launcher:
    """All sandboxes of one owner."""

    def __init__(self, connection: socket.socket, settings: Request) -> None:
        self.connection = connection
        self.base: str = settings["base"]
        self.is_root = os.geteuid() == 0
        self.first_user = layers.FIRST + os.getpid() * layers.EACH if self.is_root else 0
        # After 255 others one is shared with what was started long before. A plain user's sandboxes
        # are all that user.
        own = range(self.first_user + 1, self.first_user + layers.EACH)
        self.users = cycle(own if self.is_root else (0,))
        self.selector = selectors.DefaultSelector()
        self.sandboxes: dict[str, Instance] = {}
        self.dying: list[Instance] = []
        self.layers: dict[str, list[str]] = {"skeleton": []}
        """Name of a layer to the chain below it, topmost first."""
        self.stores: dict[str, Store] = {}
        self.owners: dict[str, int] = {}
        """User whose files a layer holds."""
        self.digests: dict[str, str] = {"skeleton": ""}
        self.dropped: set[str] = set()
        self.held: set[str] = set()
        """Layers that a committed sandbox will start again on."""
        self.serial = 0
        self.inbox = bytearray()
        self.fds: list[int] = []
        self.parents = cgroups.find_parents()
        self.marks = layers.TRUSTED if self.is_root else layers.USER

    def setup(self, settings: Request) -> Request:
        """Make the private place of all mounts; return what this machine offers.

        Raises:
            OSError: The kernel or a security module forbids it.
        """
        mounts.enter_private_namespace(as_root=self.is_root)
        has_system_v = mounts.enter_private_ipc()  # each sandbox gets its own again
        make_base(self.base, self.first_user)
        mounts.bind_read_only(settings["runtime"], f"{self.base}/runtime")
        os.chdir(self.base)
        swept = cgroups.sweep(self.parents)
        return {"root": self.is_root, "swept": swept, "system_v": has_system_v}

    # The loop

    def run(self) -> None:
        """Serve until the owner is gone, then remove everything."""
        self.selector.register(self.connection, selectors.EVENT_READ, self.on_owner)
        try:
            while True:
                for key, _ in self.selector.select(RETRY_S if self.dying else None):
                    if key.data(key.fd) is False:
                        return
                self.retry()
        finally:
            self.end()

    def end(self) -> None:
        """Kill every sandbox and wait until each is gone."""
        for sandbox in self.sandboxes.values():
            sandbox.kill()
        deadline = time.monotonic() + 5.0
        while (self.sandboxes or self.dying) and time.monotonic() < deadline:
            for key, _ in self.selector.select(RETRY_S):
                if key.fileobj is not self.connection:
                    key.data(key.fd)
            self.retry()

    def watch(self, fd: int, handler: Callable[[int], bool | None]) -> None:
        """Call ``handler`` with ``fd`` when it can be read."""
        self.selector.register(fd, selectors.EVENT_READ, handler)

    def on_owner(self, fd: int) -> bool:
        """Take in requests; False when the owner is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.connection, 1 << 16, 16)
        except OSError:
            return False
        if not data:
            return False
        self.inbox += data
        self.fds += fds
        while len(self.inbox) >= 4:
            end = 4 + int.from_bytes(self.inbox[:4], "big")
            if len(self.inbox) < end:
                break
            request = json.loads(bytes(self.inbox[4:end]))
            del self.inbox[:end]
            try:
                answer = getattr(self, "_do_" + request["do"])(request)
            except OSError as error:
                answer = {"error": f"{error}"}
            except KeyError as error:
                answer = {"error": f"there is no {error}", "is_gone": True}
            if answer is not None:
                self.answer(request["number"], answer)
        return True

    def answer(self, number: int | None, answer: Request) -> None:
        """Send the owner the answer to request ``number``."""
        if number is None:
            return
        data = json.dumps({**answer, "number": number}).encode()
        with contextlib.suppress(OSError):
            self.connection.sendall(len(data).to_bytes(4, "big") + data)

    def later(
        self,
        request: Request,
        work: Callable[[], Any],
        then: Callable[[Any], Request],
        undo: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer later what takes a while: this process must go on to serve the others.

        Args:
            request: Gets the answer.
            work: Runs in a forked process; returns JSON values.
            then: Makes the answer of its result, in this process.
            undo: Called when ``work`` failed; the answer is then its error.
        """
        pid, fd = in_child(work)
        parts: list[bytes] = []

        def collect(fd: int) -> None:
            data = os.read(fd, 1 << 16)
            if data:
                parts.append(data)
                return
            self.selector.unregister(fd)
            os.close(fd)
            os.waitpid(pid, 0)
            try:
                result = json.loads(b"".join(parts))
            except ValueError:  # nothing, or half of it
                result = {"error": "the worker was killed"}
            if "error" in result:
                undo()
            else:
                result = then(result["ok"])
            self.answer(request["number"], result)

        self.watch(fd, collect)

    # Sandboxes

    def _do_start(self, request: Request) -> Request | None:
        """Start a sandbox; answered when its first process is let go on."""
        guest_fd = self.fds.pop(0)
        sandbox = Instance(request["id"], f"sandboxes/{request['id']}", [])
        try:
            if sandbox.id in self.sandboxes:
                raise OSError(f"there is a sandbox {sandbox.id} already")
            sandbox.chain = self._chain(request["layer"])
            sandbox.user = self.owner_of(request["layer"])
            self._prepare(sandbox, request)
            sandbox.launch(
                request["args"],
                bytes.fromhex(request["seccomp"]),
                guest_fd,
                sandbox.user if self.is_root else None,
            )
        except OSError as error:
            sandbox.release()
            return {"error": str(error)}
        finally:
            os.close(guest_fd)
        sandbox.start_request = request["number"]
        self.sandboxes[sandbox.id] = sandbox
        self.watch(sandbox.info_fd, lambda fd: self.on_info(sandbox))
        self.watch(sandbox.monitor_fd, lambda fd: self.on_exit(sandbox))
        return None

    def _prepare(self, sandbox: Instance, request: Request) -> None:
        limits = request["limits"]
        os.mkdir(sandbox.folder)
        os.mkdir(f"{sandbox.folder}/m")
        sandbox.store = self.make_store(limits, sandbox.user)
        if request["layer"] == "skeleton":
            layers.make_areas(sandbox.store.upper, sandbox.user)
        mounts.mount_overlay(
            f"{sandbox.folder}/m", lower=[self.layer_path(name) for name in sandbox.chain],
            upper=sandbox.store.upper, work=f"{sandbox.store.path}/w", as_root=self.is_root,
        )  # fmt: skip
        sandbox.is_mounted = True
        sandbox.enforced = {"disk": "exact", "inodes": "exact"}
        sandbox.group = cgroups.Group(self.parents, f"{cgroups.owner_mark()}-{sandbox.id}")
        sandbox.enforced |= sandbox.group.limit(
            # Files lie in memory and are charged to the group; bubblewrap and the guest are two.
            memory_bytes=limits["memory_bytes"] + limits["disk_bytes"],
            pids=limits["pids"] + 2,
            cpus=limits["cpus"],
        )
        if request["strict"]:
            missing = {"memory", "pids", "cpus"} - set(sandbox.enforced)
            if missing:
                raise OSError(f"limits not held: {', '.join(sorted(missing))}")

    def make_store(self, limits: Request, user: int) -> Store:
        """Mount memory of these ``limits`` for one more sandbox of ``user``."""
        self.serial += 1
        return Store(
            f"stores/{self.serial}",
            num_bytes=limits["disk_bytes"],
            inodes=limits["inodes"] + 4 + len(layers.AREAS),  # those that are there already
            owner=user,
        )

    def on_info(self, sandbox: Instance) -> None:
        """Bubblewrap has reported its first process, or has ended."""
        if not sandbox.hear():
            return
        # First this: where a worker forked just now has the pipe too, a closed one would go on to
        # be reported, under a number that by then may be another sandbox's.
        self.selector.unregister(sandbox.info_fd)
        os.close(sandbox.info_fd)
        sandbox.info_fd = -1
        if sandbox.admit():
            self.watch(sandbox.init_fd, lambda fd: self.on_exit(sandbox))
            oom_file = cgroups.oom_file(sandbox.group) if sandbox.group else ""
            answer = {"enforced": sandbox.enforced, "oom_file": oom_file, "uid": sandbox.uid}
            self.answer(sandbox.start_request, {**answer, "user": sandbox.user})
            sandbox.start_request = None
        self.on_exit(sandbox)

    def on_exit(self, sandbox: Instance) -> None:
        """The monitor or the first process may have ended; when both have, clean up.

        A first process that the monitor had not yet let go on would wait for it without end.
        """
        for name in ("monitor_fd", "init_fd"):
            fd = getattr(sandbox, name)
            if fd >= 0 and has_ended(fd):
                with contextlib.suppress(KeyError):
                    self.selector.unregister(fd)
                if name == "monitor_fd":
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(sandbox.monitor_pid, 0)
                os.close(fd)
                setattr(sandbox, name, -1)
        if sandbox.monitor_fd < 0 and sandbox.init_fd >= 0:
            sandbox.kill()
        fds = (sandbox.monitor_fd, sandbox.init_fd, sandbox.info_fd)
        if max(fds) < 0 and not sandbox.has_ended:
            sandbox.has_ended = True
            self.sandboxes.pop(sandbox.id, None)
            self.answer(sandbox.start_request, {"error": sandbox.messages() or "bwrap ended"})
            self.dying.append(sandbox)

    def retry(self) -> None:
        """Remove what is left of ended sandboxes, as far as it lets itself be removed."""
        for sandbox in list(self.dying):
            text = sandbox.messages()
            if sandbox.release():
                self.dying.remove(sandbox)
                for act in sandbox.when_gone:
                    act(text)
                if not sandbox.keep_store:
                    self.collect_layers()

    def _do_kill(self, request: Request) -> Request | None:
        """End a sandbox; answered when nothing of it is left."""
        sandbox = self.find(request["id"])
        if sandbox is None:
            return {"messages": ""}
        number = request["number"]
        sandbox.when_gone.append(lambda text: self.answer(number, {"messages": text}))
        if not sandbox.has_ended:
            sandbox.kill()
        return None

    def find(self, id: str) -> Instance | None:
        """Return a sandbox that runs or dies."""
        return self.sandboxes.get(id) or next((one for one in self.dying if one.id == id), None)

    def _do_freeze(self, request: Request) -> Request:
        """Stop or continue all processes of a sandbox."""
        group = self.sandboxes[request["id"]].group
        return {"done": group is not None and group.freeze(request["frozen"])}

    def _do_usage(self, request: Request) -> Request:
        """Tell bytes and inodes written."""
        store = self.sandboxes[request["id"]].store
        num_bytes, inodes = layers.usage(store.path) if store else (0, 0)
        return {"bytes": num_bytes, "inodes": inodes}

    def _do_diff(self, request: Request) -> None:
        """Tell what a sandbox wrote and deleted in its workspace; None when it is too much."""
        sandbox = self.sandboxes[request["id"]]
        store = sandbox.store
        chain = [name for name in request["layers"] if name in self.layers]
        uppers = [self.layer_path(name) for name in reversed(chain)]
        uppers += [store.upper] if store else []

        def work() -> list[list[str]] | None:
            merged: dict[str, str] = {}
            sandbox.wait_frozen()
            try:
                for upper in uppers:
                    merged |= dict(layers.changes(upper, request["limit"], self.marks))
            except layers.TooManyChanges:
                return None
            return [[path, kind] for path, kind in sorted(merged.items())]

        self.later(request, work, lambda found: {"changes": found})

    # Layers

    def _chain(self, name: str) -> list[str]:
        """Return a layer and all below it, topmost first."""
        if name not in self.layers:
            raise OSError(f"there is no layer {name}")
        return [name, *self.layers[name]]

    def owner_of(self, name: str) -> int:
        """Return the user whose files a layer holds, a new one when it has none."""
        return self.owners[name] if name in self.owners else next(self.users)

    def layer_path(self, name: str) -> str:
        """Return where a layer's files are."""
        return self.stores[name].upper if name in self.stores else f"layers/{name}"

    def _do_commit(self, request: Request) -> None:
        """End a sandbox whose processes are idle and make a layer of what it wrote."""
        sandbox = self.sandboxes[request["id"]]
        sandbox.keep_store = True
        self.serial += 1
        name = f"l{self.serial}"

        def committed(_: str) -> None:
            assert sandbox.store is not None
            self.layers[name], self.stores[name] = sandbox.chain, sandbox.store
            self.owners[name] = sandbox.user
            self.held.add(name)
            self.answer(request["number"], {"layer": name})

        sandbox.when_gone.append(committed)
        sandbox.kill()

    def _do_copy(self, request: Request) -> None:
        """Make a layer of a copy of what a running (frozen) sandbox wrote."""
        sandbox = self.sandboxes[request["id"]]
        assert sandbox.store is not None
        source = sandbox.store.upper

        def fill(target: str) -> None:
            sandbox.wait_frozen()
            layers.merge([source], target, self.marks)

        self._make_layer(request, sandbox.user, sandbox.chain, fill)

    def _make_layer(
        self, request: Request, user: int, below: list[str], fill: Callable[[str], None]
    ) -> None:
        """Answer with a new layer that ``fill`` makes; a hold of the old one passes on to it."""
        store = self.make_store(request["limits"], user)
        name, old = f"l{self.serial}", request.get("layer")
        os.rmdir(store.upper)

        def done(_: object) -> Request:
            self.layers[name], self.stores[name], self.owners[name] = below, store, user
            if old in self.held:
                self.held.remove(old)
                self.held.add(name)
            return {"layer": name}

        self.later(request, lambda: fill(store.upper), done, store.remove)

    def _do_flatten(self, request: Request) -> None:
        """Make one layer of a layer and the committed ones below it."""
        chain = self._chain(request["layer"])
        paths = [self.layer_path(name) for name in chain if name in self.stores]
        fill = partial(layers.merge, paths, marks=self.marks)
        user = self.owner_of(request["layer"])
        self._make_layer(request, user, chain[len(paths) :], fill)

    def _do_import(self, request: Request) -> None:
        """Copy a folder of the host once, and make a layer of it."""
        source, user = Path(request["folder"]), next(self.users)
        request["limits"] = {"disk_bytes": request["bytes"], "inodes": request["inodes"]}
        fill = partial(layers.import_folder, source, owner=user)
        self._make_layer(request, user, ["skeleton"], fill)

    def _do_digest(self, request: Request) -> Request | None:
        """Tell the digest of a layer and all below it."""
        missing = [name for name in self._chain(request["layer"]) if name not in self.digests]
        if not missing:
            return {"digest": self.digests[request["layer"]]}
        below = self.digests[self.layers[missing[-1]][0]]
        paths = [self.layer_path(name) for name in reversed(missing)]

        def work() -> list[str]:
            found = [below]
            for path in paths:
                found.append(layers.digest(path, found[-1], self.marks))
            return found[1:]

        def done(found: list[str]) -> Request:
            self.digests |= dict(zip(reversed(missing), found, strict=True))
            return {"digest": found[-1]}

        self.later(request, work, done)
        return None

    def _do_drop(self, request: Request) -> Request:
        """Forget a layer as soon as nothing stands on it."""
        self.dropped.add(request["layer"])
        self.collect_layers()
        return {}

    def _do_unhold(self, request: Request) -> Request:
        """A committed sandbox runs again on its layer, or never will."""
        self.held.discard(request["layer"])
        self.collect_layers()
        return {}

    def collect_layers(self) -> None:
        """Remove dropped layers that no sandbox and no other layer needs."""
        for name in list(self.dropped):  # one may free the one below it: start over after each
            sandboxes = [*self.sandboxes.values(), *self.dying]
            needed = name in self.held or any(name in sandbox.chain for sandbox in sandboxes)
            needed = needed or any(name in chain for chain in self.layers.values())
            if not needed and name in self.layers:
                del self.layers[name]
                self.owners.pop(name, None)
                self.dropped.discard(name)
                if name in self.stores:
                    self.stores.pop(name).remove()
                self.collect_layers()
                return

    def _do_image(self, request: Request) -> Request:
        """Make a root folder of the host reachable for the sandboxes' user; tell where."""
        self.serial += 1
        target = f"{self.base}/images/{self.serial}"
        os.mkdir(target)
        mounts.bind_read_only(request["folder"], target)
        return {"path": target}


def main() -> None:
    """Run the launcher on the connection that is standard input."""
    connection = socket.socket(fileno=os.dup(0))
    head = connection.recv(4, socket.MSG_WAITALL)
    settings = json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
    try:
        launcher = Launcher(connection, settings)
        facts = launcher.setup(settings)
    except OSError as error:
        data = json.dumps({"error": str(error), "number": 0}).encode()
        connection.sendall(len(data).to_bytes(4, "big") + data)
        sys.exit(1)
    launcher.answer(0, facts)
    try:
        launcher.run()
    except Exception as error:
        launcher.answer(-1, {"error": repr(error)})  # its last words: they are in the owner's error
        raise
