"""Files of results: trajectories as JSON lines, and digests of what a folder holds.

The first line of a file of trajectories has the version of its format. Which files of a folder are
as they were written stands in ``digests.json``: size and SHA-256 of each. A file that never changes
again is entered when it is written. A file that only grows is marked: so many first bytes have this
digest, what follows is newer. A file without an entry is not compared. An entry is withdrawn before
its file is written anew, so that a killed process accuses nothing.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from turngym.errors import ConfigError, RecordError
from turngym.types import Trajectory

FORMAT = "turngym.trajectories"
FORMAT_VERSION = 1

_TAIL = 1 << 16
_NO_ROUTING = {"turns": {"__all__": {"spans": {"__all__": {"routing"}}}}}
"""What records of a run without it have no word of."""


@cache
def _adapter() -> Any:  # pydantic.TypeAdapter[Trajectory]; imported late, it is slow to load
    from pydantic import TypeAdapter

    return TypeAdapter(Trajectory)


def to_json(trajectory: Trajectory) -> str:
    """Return one trajectory as one line of JSON.

    Half of a unicode pair, which UTF-8 cannot hold, is written as a question mark.
    """
    has_routing = any(span.routing for turn in trajectory.turns for span in turn.spans)
    without = None if has_routing else _NO_ROUTING
    try:
        text: str = _adapter().dump_json(trajectory, exclude=without).decode()
    except ValueError:
        found = _adapter().dump_python(trajectory, exclude=without)
        plain = json.dumps(found, ensure_ascii=False, default=str)
        text = plain.encode(errors="replace").decode()
    return text


def from_json(line: str | bytes) -> Trajectory:
    """Return the trajectory that ``to_json`` wrote.

    Raises:
        RecordError: The line is not a valid trajectory.
    """
    from pydantic import ValidationError  # slow to load, and few need it

    trajectory: Trajectory
    try:
        trajectory = _adapter().validate_json(line)
    except ValidationError as error:
        if "recursion limit" in str(error):  # a model nests arguments deeper than pydantic reads
            return _from_deep_json(line)
        first, *others = error.errors(include_url=False, include_input=False)
        found = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        more = f", and {len(others)} more" if others else ""
        raise RecordError(f"not a trajectory: {found}{more}") from error
    return trajectory


def _from_deep_json(line: str | bytes) -> Trajectory:
    try:
        trajectory: Trajectory = _adapter().validate_python(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not a trajectory: {error}") from error
    return trajectory


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write ``trajectories`` to ``path``, replacing it only when all of them are written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, (to_json(trajectory).encode() + b"\n" for trajectory in trajectories))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the place to write a file to, which replaces ``path`` when the block is done."""
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write trajectories that are lines already, replacing ``path`` when all are written."""
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(_header().encode())
        file.writelines(lines)


def append_trajectory(path: Path, trajectory: Trajectory) -> int:
    """Add one trajectory to ``path``, which gets its header if it is new; return its line's CRC-32.

    Several processes may append to one file: each holds a lock while it writes one whole line, and
    first cuts off the half line that a killed writer left behind.

    Raises:
        RecordError: The file holds something else, or is of a newer version.
    """
    line = to_json(trajectory) + "\n"
    checksum = zlib.crc32(line.encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        start = file.readline()
        if not _header().encode().startswith(start):
            _check_header(path, start)
        _cut_half_line(file)
        if file.seek(0, os.SEEK_END) == 0:
            line = _header() + line
        file.write(line.encode())
    return checksum


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, replacing ``path`` only when all of it is on the disk."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(json.dumps(dict(content), indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def writable_folder(path: Path, option: str = "--out") -> Path:
    """Make ``path``, which ``option`` names, and return it, once a file could be written there.

    Raises:
        ConfigError: It is no folder, or nothing can be written to it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except FileExistsError as error:
        raise ConfigError(f"{option} {path}: is a file; wanted a folder") from error
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be written to ({error.strerror})") from error
    return path


RETRY_S = 1.0
"""Between two tries to write to a full disk."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = [f"(os error {number})" for number in _FULL]  # of libraries written in Rust


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, says that there is no room on a disk."""
    while error is not None:
        if getattr(error, "errno", None) in _FULL or any(
            word in str(error) for word in _FULL_WORDS
        ):
            return True
        error = error.__cause__
    return False


def _header() -> str:
    return json.dumps({"format": FORMAT, "version": FORMAT_VERSION}) + "\n"


def _cut_half_line(file: IO[bytes]) -> None:
    """Cut off what follows the last end of line of ``file``."""
    size = start = file.seek(0, os.SEEK_END)
    newline = -1
    while start > 0 and newline < 0:
        start = max(0, start - _TAIL)
        file.seek(start)
        newline = file.read(_TAIL).rfind(b"\n")
    whole = start + newline + 1
    if whole < size:
        file.truncate(whole)


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file in order.

    Raises:
        RecordError: The file is missing, is something else, is of a newer version, or a line is
            broken; the message names the file and the line.
    """
    for number, line in enumerate(read_lines(path), start=2):
        try:
            yield from_json(line)
        except RecordError as error:
            raise RecordError(f"{path}:{number}: {error}") from error


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the trajectories of a file as they are written, line ends included.

    Raises:
        RecordError: The file is missing, is something else, or is of a newer version.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        _check_header(path, file.readline())
        yield from file


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = json.loads(line)
        found = (header["format"], int(header["version"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path}:1: not a {FORMAT} file") from error
    if found[0] != FORMAT:
        raise RecordError(f"{path}:1: format is {found[0]!r}, wanted {FORMAT!r}")
    if found[1] > FORMAT_VERSION:
        raise RecordError(
            f"{path}:1: format version {found[1]} is newer than {FORMAT_VERSION}; upgrade turngym"
        )


MANIFEST = "digests.json"
VERSION = 1

Entry = dict[str, Any]
"""``sha256`` and ``bytes``; with ``grows`` they are of the first bytes only."""

_BLOCK = 1 << 20


def file_digest(file: Path, size: int | None = None) -> Entry:
    """Return SHA-256 and number of bytes of a file, or of its first ``size`` bytes."""
    digest, left = hashlib.sha256(), file.stat().st_size if size is None else size
    total = 0
    with file.open("rb") as content:
        while block := content.read(min(_BLOCK, left - total)):
            digest.update(block)
            total += len(block)
    return {"sha256": digest.hexdigest(), "bytes": total}


class Manifest:
    """The manifest of one folder. May be used from several threads.

    Args:
        folder: Holds the files; may have no manifest yet.

    Raises:
        RecordError: The manifest itself is damaged or of a newer version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / MANIFEST
        self.is_new = not self.file.exists()
        self._files: dict[str, Entry] = {} if self.is_new else _read(self.file)
        self._guard = threading.Lock()

    def __contains__(self, file: Path) -> bool:
        return self._name(file) in self._files

    def add(self, *files: Path) -> None:
        """Enter files that never change again, as they are on the disk."""
        found = {self._name(file): file_digest(file) for file in files}
        self._change(lambda entries: entries.update(found))

    def mark(self, file: Path, size: int, sha256: str | None = None) -> None:
        """Enter a file that grows: ``size`` bytes of it stay. Of 0 bytes it must only be there."""
        found = file_digest(file, size) if sha256 is None else {"sha256": sha256, "bytes": size}
        self._change(lambda entries: entries.update({self._name(file): {**found, "grows": True}}))

    def forget(self, *files: Path) -> None:
        """Withdraw the entries of files that are about to change."""
        names = {self._name(file) for file in files}
        if not names.isdisjoint(self._files):
            self._change(lambda entries: [entries.pop(name, None) for name in names])

    @contextmanager
    def writing(self, *files: Path) -> Iterator[None]:
        """Enter files that the block writes anew."""
        self.forget(*files)
        yield
        self.add(*files)

    def damage(self, file: Path) -> str | None:
        """Return what is wrong with a file, by name; None where nothing is known."""
        entry = self._files.get(self._name(file))
        if entry is None:
            return None
        try:
            size = file.stat().st_size
            if size < entry["bytes"]:
                return (
                    f"{file}: is cut off, {size} bytes of {entry['bytes']} in {MANIFEST} are left"
                )
            if size > entry["bytes"] and not entry.get("grows"):
                return f"{file}: has {size} bytes, not {entry['bytes']} as in {MANIFEST}"
            if file_digest(file, entry["bytes"])["sha256"] == entry["sha256"]:
                return None
        except OSError as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else error.strerror
            return f"{file}: {reason}, although {MANIFEST} has it"
        line = first_bad_line(file) if file.suffix == ".jsonl" else None
        where = f" (line {line} is not JSON)" if line else ""
        return f"{file}: differs from its SHA-256 in {MANIFEST}{where}"

    def check(self, *files: Path, advice: str = "restore it from a copy") -> None:
        """Make sure that files are as they were written.

        Raises:
            RecordError: One is not; the message names it and ends with ``advice``.
        """
        for file in files:
            if found := self.damage(file):
                raise RecordError(f"{found}; {advice}")

    @property
    def files(self) -> list[Path]:
        """The files that have an entry."""
        return [self.folder / name for name in self._files]

    def _name(self, file: Path) -> str:
        return file.relative_to(self.folder).as_posix()

    def _change(self, change: Any) -> None:  # a function of the entries, whatever it returns
        with self._guard:
            entries = dict(self._files)
            change(entries)
            write_json(self.file, {"version": VERSION, "check": _sum(entries), "files": entries})
            self._files, self.is_new = entries, False


def _sum(entries: Mapping[str, Entry]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _read(file: Path) -> dict[str, Entry]:
    try:
        content = json.loads(file.read_bytes())
        version, entries = content["version"], content["files"]
        is_whole = content["check"] == _sum(entries)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(_damaged(file)) from error
    if isinstance(version, int) and version > VERSION:
        raise RecordError(f"{file}: version {version} is newer than {VERSION}; upgrade turngym")
    if not is_whole:
        raise RecordError(_damaged(file))
    return dict(entries)


def _damaged(file: Path) -> str:
    return f"{file}: is damaged; restore it from a copy, or delete it to go on without its checks"


def first_bad_line(file: Path) -> int | None:
    """Return the number of the first line that is not JSON; None where all are."""
    with file.open("rb") as content:
        for number, line in enumerate(content, start=1):
            try:
                json.loads(line)
            except ValueError:
                return number
    return None


class GrowingFile:
    """Lines that are appended to a file, each wholly or not at all.

    Args:
        path: The file; made if it is not there.
        keep: Bytes to keep of what is there. None for all, but for a half line at its end.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self.path = path
        self.cut = 0
        """Bytes that were removed at the start: of a half line, or all after ``keep``."""
        path.touch()
        self._file = path.open("r+b", buffering=0)
        content = self._file.read() or b""
        self.size = content.rfind(b"\n") + 1 if keep is None else min(keep, len(content))
        self._digest = hashlib.sha256(content[: self.size])
        if self.size < len(content):
            self.cut = len(content) - self.size
            self._file.truncate(self.size)

    def append(self, line: str) -> None:
        """Add one line.

        Raises:
            OSError: It could not be written; the file is as it was.
        """
        left = content = line.encode() + b"\n"
        self._file.seek(self.size)
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(content)
        self._digest.update(content)

    def flush(self) -> None:
        """Send everything to the disk."""
        os.fsync(self._file.fileno())

    @property
    def sha256(self) -> str:
        """Digest of everything in the file."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()
