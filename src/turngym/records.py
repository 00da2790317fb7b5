"""Trajectories on disk: JSON lines with a format version on the first line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

from turngym.errors import RecordError
from turngym.types import Trajectory

FORMAT = "turngym.trajectories"
FORMAT_VERSION = 1


@cache
def _adapter() -> Any:  # pydantic.TypeAdapter[Trajectory]; imported late, it is slow to load
    from pydantic import TypeAdapter

    return TypeAdapter(Trajectory)


def to_json(trajectory: Trajectory) -> str:
    """Return one trajectory as one line of JSON."""
    text: str = _adapter().dump_json(trajectory).decode()
    return text


def from_json(line: str) -> Trajectory:
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
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        write_header(file)
        for trajectory in trajectories:
            file.write(to_json(trajectory) + "\n")
    partial.replace(path)


def write_header(file: IO[str]) -> None:
    """Write the line that names the format and its version."""
    file.write(json.dumps({"format": FORMAT, "version": FORMAT_VERSION}) + "\n")


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file in order.

    Raises:
        RecordError: The file is missing, is something else, is of a newer version, or a line is
            broken; the message names the file and the line.
    """
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        _check_header(path, file.readline())
        for number, line in enumerate(file, start=2):
            try:
                yield from_json(line)
            except RecordError as error:
                raise RecordError(f"{path}:{number}: {error}") from error


def _check_header(path: Path, line: str) -> None:
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
