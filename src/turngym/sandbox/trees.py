"""Folders into and out of a sandbox, safe against what the sandbox's commands left there.

Out: the guest lists and reads inside the sandbox, where no link leads to the host, and the host
writes only names it has checked into a folder it has just made. A link is made only when it ends
inside that folder, followed through all the other links that are made. A hostile guest can at
worst give wrong contents.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from turngym.errors import SandboxDied, SandboxFileError, SandboxFileTooLarge
from turngym.sandbox.backends.channel import Channel, to_int
from turngym.sandbox.base import Change, TreeReport, printable
from turngym.sandbox.guest import wire

CHUNK = 4 << 20
MAX_DEPTH = 200
_PARALLEL_READS = 16
_MAX_PATH = 4000
_MAX_LINK_WORDS = 2 * MAX_DEPTH


async def read_file(
    channel: Channel, path: bytes, max_bytes: int, *, follow: bool = True
) -> tuple[bytes, int]:
    """Return contents and permission bits of a regular file; ``follow`` links or not.

    Raises:
        SandboxFileError: It is missing or no regular file.
        SandboxFileTooLarge: It holds more than ``max_bytes``.
    """
    parts: list[bytes] = []
    done, flag = 0, b"1" if follow else b"0"
    while True:
        want = min(CHUNK, max_bytes - done)
        size, mode, data = (
            await channel.call("get", path, wire.number(done), wire.number(want), flag)
        )[:3]
        if to_int(size) > max_bytes:
            raise SandboxFileTooLarge(
                f"read {os.fsdecode(path)!r}: {int(size)} bytes, allowed are {max_bytes}"
            )
        if len(data) > want:
            raise SandboxDied("the guest broke the protocol: more bytes than asked for")
        parts.append(data)
        done += len(data)
        if not data or done >= to_int(size):
            return b"".join(parts), to_int(mode, 0o777)


async def write_file(channel: Channel, path: bytes, data: bytes, mode: int) -> None:
    """Write a file with permission bits ``mode`` from its start, in pieces.

    Raises:
        SandboxFileError: It cannot be written.
    """
    for start in range(0, max(len(data), 1), CHUNK):
        await channel.call(
            "put", path, wire.number(start), wire.number(mode), data[start : start + CHUNK]
        )


async def put_tree(channel: Channel, source: Path, target: bytes) -> None:
    """Copy the folder ``source`` of the host to ``target``.

    Raises:
        SandboxFileError: ``source`` is no folder, or the sandbox cannot take it (no space).
    """
    if not source.is_dir():
        raise SandboxFileError(20, f"put_tree: not a folder: {str(source)!r}")
    batch: list[bytes] = [b"dir", b"", b"493", b""]
    size = 0
    for kind, name, mode, path in _host_entries(os.fsencode(source)):
        content = b""
        if kind == b"link":
            content = os.readlink(path)
        elif kind == b"file":
            data = await asyncio.to_thread(Path(os.fsdecode(path)).read_bytes)
            if len(data) > CHUNK:
                await write_file(channel, os.path.join(target, name), data, mode)
                continue
            content = data
        batch += [kind, name, wire.number(mode), content]
        size += len(content) + 200
        if size > CHUNK:
            await channel.call("puttree", target, *batch)
            batch, size = [], 0
    if batch:
        await channel.call("puttree", target, *batch)


def _host_entries(root: bytes) -> Iterator[tuple[bytes, bytes, int, bytes]]:
    """Yield kind, relative path, permission bits and path; folders before what is in them."""
    queue = [b""]
    while queue:
        folder = queue.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = os.path.join(folder, entry.name)
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & 0o777
                if entry.is_symlink():
                    yield b"link", name, 0, entry.path
                elif entry.is_dir(follow_symlinks=False):
                    queue.append(name)
                    yield b"dir", name, mode | 0o700, entry.path
                elif entry.is_file(follow_symlinks=False):
                    yield b"file", name, mode, entry.path


async def get_tree(
    channel: Channel,
    source: bytes,
    target: Path,
    *,
    max_bytes: int,
    max_files: int,
    is_layer: bool = False,
) -> TreeReport:
    """Copy a folder of the sandbox into the new folder ``target`` of the host.

    Args:
        channel: To the guest.
        source: Path in the sandbox.
        target: Must not exist.
        max_bytes: What all files together may hold.
        max_files: How many entries there may be.
        is_layer: Keep permission bits and every link; the copy is for another sandbox, and no one
            on the host follows them. Otherwise files are the owner's alone and no link leads out.

    Raises:
        SandboxFileError: ``source`` is no folder, or ``target`` exists.
        SandboxFileTooLarge: There is more than allowed; ``target`` is removed again.
    """
    entries = await _guest_entries(channel, source, max_files)
    announced = sum(size + len(link) for _, _, _, size, link in entries)
    if announced > max_bytes:
        raise SandboxFileTooLarge(f"get_tree: {announced} bytes, allowed are {max_bytes}")
    try:
        target.mkdir(mode=0o700)
    except OSError as error:
        raise SandboxFileError(
            error.errno, f"get_tree: cannot make {str(target)!r}: {error.strerror}"
        ) from None
    try:
        copy = _Copy(channel, source, target, max_bytes)
        return await copy.take(entries, is_layer=is_layer)
    except BaseExceptionGroup as group:
        shutil.rmtree(target, ignore_errors=True)
        raise group.exceptions[0] from None
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


_Entry = tuple[bytes, bytes, int, int, bytes]
"""Kind, relative path, permission bits, size, link target."""


async def _guest_entries(channel: Channel, source: bytes, max_files: int) -> list[_Entry]:
    arguments = source, wire.number(max_files), wire.number(MAX_DEPTH)
    number, future = await channel.send("walk", *arguments)
    entries: list[_Entry] = []
    while fields := await future:
        entries += _read_entries(fields)
        if len(entries) > max_files:
            raise SandboxFileTooLarge(f"get_tree: more than {max_files} entries")
        _, future = await channel.send("walknext", number)
    return sorted(entries, key=lambda entry: (entry[0] != b"dir", entry[1]))


def _read_entries(fields: list[bytes]) -> list[_Entry]:
    if len(fields) % 5:
        raise SandboxDied("the guest broke the protocol: a list of files with a gap")
    entries = [
        (kind, name, to_int(mode, 0o7777), to_int(size), link)
        for kind, name, mode, size, link in zip(*[iter(fields)] * 5, strict=True)
    ]
    for _, name, _, _, _ in entries:
        if not is_safe_name(name):
            raise SandboxDied(f"the guest broke the protocol: path {name[:80]!r}")
    return entries


def unpack(archive: Path, folder: Path) -> None:
    """Unpack files, folders and links of a tar below ``folder``.

    As the filter ``tar`` of ``tarfile`` does, which Pythons before 3.11.4 do not have: no devices,
    and no bits but those of 755.

    Raises:
        tarfile.TarError: It is no tar, or holds what leads out of the folder.
        OSError: It cannot be read or written.
    """
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        tar.extractall(folder, _inside(tar, os.path.realpath(folder)))


def _inside(tar: tarfile.TarFile, root: str) -> Iterator[tarfile.TarInfo]:
    """Yield what may be unpacked; each is looked at when all before it are there."""
    for one in tar:
        one.name, one.mode = one.name.lstrip("/"), one.mode & 0o755
        for name in [one.name, one.linkname] if one.islnk() else [one.name]:
            if not Path(os.path.realpath(os.path.join(root, name))).is_relative_to(root):
                raise tarfile.TarError(f"{name!r} leads out of the folder")
        if one.isfile() or one.isdir() or one.issym() or one.islnk():
            yield one


def is_safe_name(name: bytes) -> bool:
    """Say whether a relative path stays below where it starts and has one spelling only."""
    return b"\0" not in name and all(part not in (b"", b".", b"..") for part in name.split(b"/"))


def safe_links(links: Mapping[bytes, bytes]) -> set[bytes]:
    """Return which links of a tree end inside it, as the kernel would follow them.

    A link may lead through others, so each is resolved against all of them. One that is absolute,
    that climbs over the root at any step, or that leads round in a circle is not safe, and neither
    is one that leads through such a link. What does not exist counts as a folder.

    Args:
        links: Path of each link, relative to the root, and its target.
    """
    ends: dict[bytes, bytes | None] = {}
    for first in links:
        stack = [] if first in ends else [_Walk(first, links[first])]
        open_names = {walk.name for walk in stack}
        while stack:
            walk = stack[-1]
            asked = walk.step(links, ends)
            if asked is None:
                ends[walk.name] = walk.at
                open_names.discard(stack.pop().name)
            elif asked in open_names:
                ends[asked] = None  # a circle
            else:
                open_names.add(asked)
                stack.append(_Walk(asked, links[asked]))
    return {name for name, end in ends.items() if end is not None}


class _Walk:
    """One link on its way to where it ends."""

    def __init__(self, name: bytes, target: bytes) -> None:
        self.name = name
        self.at: bytes | None = name.rpartition(b"/")[0]
        """Where it has got to, b"" for the root; None when it left the tree."""
        self.words = target.split(b"/")[::-1]
        is_odd = not target or target.startswith(b"/") or b"\0" in target
        if is_odd or len(self.words) > _MAX_LINK_WORDS:
            self.at, self.words = None, []

    def step(
        self, links: Mapping[bytes, bytes], ends: Mapping[bytes, bytes | None]
    ) -> bytes | None:
        """Go on as far as ``ends`` allows; return the link to resolve first, None at the end."""
        while self.words and self.at is not None:
            word = self.words[-1]
            if word == b"..":
                self.at = self.at.rpartition(b"/")[0] if self.at else None
            elif word not in (b"", b"."):
                place = self.at + b"/" + word if self.at else word
                if place in links and place not in ends:
                    return place
                self.at = ends.get(place, place)
            self.words.pop()
        return None


class _Copy:
    """A copy of a tree on its way out of a sandbox: what came, and what was left."""

    def __init__(self, channel: Channel, source: bytes, target: Path, max_bytes: int) -> None:
        self._channel, self._source, self._root = channel, source, os.fsencode(target)
        self._left = max_bytes
        self._files = self._bytes = 0
        self._skipped: list[str] = []

    async def take(self, entries: list[_Entry], *, is_layer: bool) -> TreeReport:
        links: dict[bytes, bytes] = {}
        gate = asyncio.Semaphore(_PARALLEL_READS)
        async with asyncio.TaskGroup() as tasks:
            for kind, name, mode, _, link in entries:
                if len(self._root) + len(name) > _MAX_PATH:
                    self._skipped.append(f"{printable(name[:200])}...: path too long")
                elif kind == b"dir":
                    os.mkdir(os.path.join(self._root, name), 0o700)
                elif kind == b"file":
                    await gate.acquire()
                    mode = 0o400 | (mode & 0o777) if is_layer else 0o600 | (mode & 0o111)
                    task = tasks.create_task(self._file(name, mode))
                    task.add_done_callback(lambda _: gate.release())
                elif kind == b"link":
                    links[name] = link
                else:
                    self._skip(name, _REASONS.get(kind, NO_FILE))
        safe = links if is_layer else await asyncio.to_thread(safe_links, links)
        for name, link in links.items():  # last, so that nothing is ever written through one
            if name in safe:
                os.symlink(link, os.path.join(self._root, name))
            else:
                self._skip(name, "link that leads out of the tree or in a circle")
        skipped = tuple(sorted(self._skipped))
        return TreeReport(files=self._files, num_bytes=self._bytes, skipped=skipped)

    def _skip(self, name: bytes, reason: str) -> None:
        self._skipped.append(f"{printable(name)}: {reason}")

    async def _file(self, name: bytes, mode: int) -> None:
        path = os.path.join(self._source, name)
        try:
            data, _ = await read_file(self._channel, path, self._left, follow=False)
        except SandboxFileTooLarge:
            raise
        except SandboxFileError as error:
            self._skip(name, error.strerror or str(error))
            return
        self._left -= len(data)
        if self._left < 0:
            raise SandboxFileTooLarge("get_tree: the files grew while they were copied")
        self._files, self._bytes = self._files + 1, self._bytes + len(data)
        await asyncio.to_thread(_write_new, os.path.join(self._root, name), data, mode)


_REASONS = {b"deep": "folder too deep or not readable", b"gone": "gone while the tree was read"}
NO_FILE = "not a file, folder or link"


def _write_new(path: bytes, data: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)


Manifest = dict[str, tuple[int, str]]
"""Relative path to mode and, for a file or link, a digest of its contents."""


def manifest(folder: Path) -> Manifest:
    """Return paths, modes and digests of all below ``folder``; special files have no digest."""
    found: Manifest = {}
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(mode):
                content = Path(path).read_bytes()
            digest = hashlib.sha256(content).hexdigest() if content else ""
            found[os.path.relpath(path, folder)] = (mode, digest)
    return found


def difference(before: Manifest, now: Manifest) -> list[Change]:
    """Return what was written and deleted; a folder counts only when something in it does."""
    changed = [
        path
        for path, (mode, _) in sorted((before | now).items())
        if before.get(path) != now.get(path) and not stat.S_ISDIR(mode)
    ]
    return [Change(path=path, kind="written" if path in now else "deleted") for path in changed]


def digest(found: Manifest) -> str:
    """Return SHA-256 over a manifest."""
    whole = hashlib.sha256()
    for path, (mode, content) in sorted(found.items()):
        for part in (os.fsencode(path), b"%o" % mode, content.encode()):
            whole.update(len(part).to_bytes(4, "big") + part)
    return whole.hexdigest()
