"""Which files of a folder are as they were written: size and SHA-256 of each, in ``digests.json``.

A file that never changes again is entered when it is written. A file that only grows is marked: so
many first bytes have this digest, what follows is newer. A file without an entry is not compared.
An entry is withdrawn before its file is written anew, so that a killed process accuses nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turngym.errors import RecordError
from turngym.records import write_json

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
