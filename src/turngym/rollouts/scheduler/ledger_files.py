"""The files of a ledger on the disk: how their digests are kept, and how damage of them is found.

The database changes only when its write-ahead log is copied into it. That is done when a checkpoint
is written and at the end, so that the digest of the database is known in between. The log has
checksums of its own, at which SQLite stops reading without a word.
"""

from __future__ import annotations

import logging
import sqlite3
import struct
from pathlib import Path

from turngym.records import Manifest

logger = logging.getLogger(__name__)

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_LITTLE, _BIG = 0x377F0682, 0x377F0683
_MOST_LOG_BYTES = 64 << 20
"""A longer log is copied into the database although no checkpoint was written."""

ADVICE = "restore it from a copy, or delete digests.json to go on with it as it is"


class LedgerDigests:
    """Keeps the digests of a ledger's files in a manifest.

    Args:
        path: The database.
        manifest: Of its folder.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._log = log_of(path)
        self._manifest = manifest

    def check(self) -> None:
        """Make sure that the files are as they were left; they may be those of a killed process.

        Raises:
            RecordError: They are not.
        """
        self._manifest.check(self._path, self._log, advice=ADVICE)

    def begin(self, db: sqlite3.Connection) -> None:
        """Note that there is a ledger from now on, and copy its log on request only."""
        db.execute("PRAGMA wal_autocheckpoint = 0")
        if self._path not in self._manifest:
            self._manifest.mark(self._path, 0)

    def committed(self, db: sqlite3.Connection, *, is_due: bool) -> None:
        """Copy the log into ``db`` if it is due, and keep the digests up to date."""
        if is_due or self._log.stat().st_size > _MOST_LOG_BYTES:
            self._manifest.forget(self._log)
            self._manifest.mark(self._path, 0)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._manifest.add(self._path)
        elif self._log not in self._manifest and self._log.stat().st_size >= _HEADER.size:
            self._manifest.mark(self._log, _HEADER.size)  # which log it is, and that there is one

    def close(self, db: sqlite3.Connection) -> None:
        """Close the database for good."""
        try:
            self._manifest.forget(self._log)
            self._manifest.mark(self._path, 0)
        except OSError as error:  # no room: closing as the last one would change the database
            logger.warning("%s: stays as it is (%s)", self._log, error.strerror)
            reader = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)
            reader.execute("SELECT COUNT(*) FROM meta").fetchall()
            db.close()
            reader.close()
            return
        db.close()
        self._manifest.add(self._path)


def log_of(path: Path) -> Path:
    """Return the write-ahead log of a database."""
    return path.with_name(path.name + "-wal")


def log_damage(path: Path) -> str | None:
    """Return what is wrong in the log of a database, by name; None when nothing is.

    A last commit that is not whole is what a killed process leaves, and nothing is wrong with it.

    Source:
        SQLite, "Database File Format", section 4.
    """
    log = log_of(path)
    content = log.read_bytes() if log.is_file() else b""
    if len(content) < _HEADER.size:
        return None
    magic, _, page, _, *salts, one, two = _HEADER.unpack_from(content)
    order = {_LITTLE: "<", _BIG: ">"}.get(magic)
    if order is None or _checksum(order, content[:24], (0, 0)) != (one, two):
        return f"{log}: its header is damaged"
    sums, broken, size = (one, two), None, _FRAME.size + page
    for at in range(_HEADER.size, len(content) - size + 1, size):
        _, commit, *found = _FRAME.unpack_from(content, at)
        if found[:2] != salts:
            break  # of an earlier round
        if broken is None:
            sums = _checksum(order, content[at : at + 8], sums)
            sums = _checksum(order, content[at + _FRAME.size : at + size], sums)
            broken = at if sums != tuple(found[2:]) else None
        elif commit:
            return f"{log}: is damaged at byte {broken}, and what follows is lost"
    return None


def _checksum(order: str, content: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    one, two = sums
    for first, second in struct.iter_unpack(f"{order}2I", content):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
