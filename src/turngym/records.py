"""Trajectories on disk: JSON lines with a format version on the first line."""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from turngym.errors import RecordError
from turngym.types import Trajectory

FORMAT = "turngym.trajectories"
FORMAT_VERSION = 1

_BLOCK = 1 << 16


@cache
def _adapter() -> Any:  # pydantic.TypeAdapter[Trajectory]; imported late, it is slow to load
    from pydantic import TypeAdapter

    return TypeAdapter(Trajectory)


def to_json(trajectory: Trajectory) -> str:
    """Return one trajectory as one line of JSON.

    Half of a unicode pair, which UTF-8 cannot hold, is written as a question mark.
    """
    try:
        text: str = _adapter().dump_json(trajectory).decode()
    except ValueError:
        plain = json.dumps(_adapter().dump_python(trajectory), ensure_ascii=False, default=str)
        text = plain.encode(errors="replace").decode()
    return text


def from_json(line: str | bytes) -> Trajectory:
    """Return the trajectory that ``to_json`` wrote.

    Raises:
        RecordError: The line is not a valid trajectory.
    """
    try:
        trajectory: Trajectory = _adapter().validate_json(line)
    except ValueError as error:
        raise RecordError(f"not a trajectory: {str(error).splitlines()[0]}") from error
    return trajectory


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write ``trajectories`` to ``path``, replacing it only when all of them are written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, (to_json(trajectory).encode() + b"\n" for trajectory in trajectories))


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write trajectories that are lines already, replacing ``path`` when all are written."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(_header().encode())
        file.writelines(lines)
    partial.replace(path)


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
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps(dict(content), indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _header() -> str:
    return json.dumps({"format": FORMAT, "version": FORMAT_VERSION}) + "\n"


def _cut_half_line(file: IO[bytes]) -> None:
    """Cut off what follows the last end of line of ``file``."""
    size = start = file.seek(0, os.SEEK_END)
    newline = -1
    while start > 0 and newline < 0:
        start = max(0, start - _BLOCK)
        file.seek(start)
        newline = file.read(_BLOCK).rfind(b"\n")
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
