"""Tables and statements of the ledger, and its files: their digests, and how damage is found.

    groups    one row a group: what was ordered, and whether it is open, closed or dropped
    samples   one row an episode: its state, its newest retry, and why it was dropped
    tries  one row a try: seeds, how it ended, tokens sampled in a turn that never ended
    turns     one row a finished turn: the packed turn, its tokens and their oldest version
    steps     one row an update: reserved, applied, checkpointed
    uses      one row an episode (or a range of its turns) that an update trained on

Of a group whose fate is decided before the oldest checkpoint of the run the rows stay, and the
content of its turns goes: the file would grow with every update, and with it the time that its
digest takes at each checkpoint, for which all turns wait.

States of a sample: created, running, finished, ready, reserved, applied, checkpointed; or dropped,
with a reason. ``retry`` is a fencing token: rows of a try that is not the newest are refused.

The database changes only when its write-ahead log is copied into it. That is done when a checkpoint
is written and at the end, so that the digest of the database is known in between. The log has
checksums of its own, at which SQLite stops reading without a word.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from turngym.errors import RecordError
from turngym.records import Manifest
from turngym.rollouts.scheduler.groups import SampleKey
from turngym.rollouts.scheduler.packing import PackedEpisode, pack_tail
from turngym.types import StopReason, Trajectory

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
            reader = open_reading(self._path)
            reader.execute("SELECT COUNT(*) FROM meta").fetchall()
            db.close()
            reader.close()
            return
        db.close()
        self._manifest.add(self._path)


def open_reading(path: Path) -> sqlite3.Connection:
    """Return a connection to a database that sees what is committed, and writes nothing."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


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


FORMAT = "turngym.ledger"
FORMAT_VERSION = 1

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (
  id INTEGER PRIMARY KEY, task TEXT NOT NULL, size INTEGER NOT NULL, condition TEXT NOT NULL,
  env_id TEXT NOT NULL, env_seed INTEGER NOT NULL, prefix BLOB, start_version INTEGER NOT NULL,
  target INTEGER, lineage INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT
);
CREATE TABLE IF NOT EXISTS samples (
  grp INTEGER NOT NULL, member INTEGER NOT NULL, retry INTEGER NOT NULL, state TEXT NOT NULL,
  late INTEGER NOT NULL DEFAULT 0, reason TEXT, PRIMARY KEY (grp, member)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tries (
  grp INTEGER NOT NULL, member INTEGER NOT NULL, retry INTEGER NOT NULL,
  start_version INTEGER NOT NULL, policy_seed INTEGER NOT NULL, outcome TEXT, error TEXT,
  uncommitted_tokens INTEGER NOT NULL DEFAULT 0, tail BLOB, PRIMARY KEY (grp, member, retry)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (
  grp INTEGER NOT NULL, member INTEGER NOT NULL, retry INTEGER NOT NULL, turn INTEGER NOT NULL,
  tokens INTEGER NOT NULL, version INTEGER NOT NULL, seen TEXT, crc INTEGER NOT NULL,
  packed BLOB NOT NULL, PRIMARY KEY (grp, member, retry, turn)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
  step INTEGER PRIMARY KEY, lineage INTEGER NOT NULL, state TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS uses (
  step INTEGER NOT NULL, place INTEGER NOT NULL, kind TEXT NOT NULL, grp INTEGER NOT NULL,
  member INTEGER NOT NULL, retry INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  tokens INTEGER NOT NULL, PRIMARY KEY (step, place)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS uses_of_sample ON uses (grp, member);
"""

OPEN_GROUP = "INSERT OR IGNORE INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', NULL)"
CREATE_SAMPLE = "INSERT OR IGNORE INTO samples VALUES (?, ?, -1, 'created', 0, NULL)"
START = "INSERT OR IGNORE INTO tries VALUES (?, ?, ?, ?, ?, NULL, NULL, 0, NULL)"
FENCE = "UPDATE samples SET retry = ?3, state = 'running' WHERE grp = ?1 AND member = ?2"
FENCE += " AND retry < ?3 AND state IN ('created', 'running')"
CARRY_TURNS = "UPDATE turns SET retry = ?3 WHERE grp = ?1 AND member = ?2 AND retry = ?4"
CARRY_USES = "UPDATE uses SET retry = ?3 WHERE grp = ?1 AND member = ?2 AND retry = ?4"
COMMIT_TURN = """
INSERT OR IGNORE INTO turns SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 WHERE EXISTS (
  SELECT 1 FROM samples WHERE grp = ?1 AND member = ?2 AND retry = ?3 AND state = 'running')
"""
_MANY_TURNS = """
INSERT OR IGNORE INTO turns SELECT * FROM (VALUES {rows}) AS new WHERE EXISTS (
  SELECT 1 FROM samples WHERE grp = new.column1 AND member = new.column2
  AND retry = new.column3 AND state = 'running')
"""
COMMIT_TURNS = {
    count: _MANY_TURNS.format(rows=", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * count))
    for count in (64, 8)
}
"""``COMMIT_TURN`` for so many turns at once. Each statement costs a turn of the interpreter's lock,
for which the writing thread may have to wait while the event loop computes."""
END = """
UPDATE tries SET outcome = ?4, error = ?5, uncommitted_tokens = uncommitted_tokens + ?6, tail = ?7
WHERE grp = ?1 AND member = ?2 AND retry = ?3 AND outcome IS NULL
"""
FAULTS = """
SELECT g.task, t.outcome, COUNT(*) FROM tries t JOIN groups g ON g.id = t.grp
WHERE t.outcome LIKE 'error_%' GROUP BY 1, 2
"""
FILTERED = """
SELECT id FROM groups WHERE state = 'dropped' AND reason LIKE 'filtered_%'
AND id NOT IN (SELECT grp FROM uses WHERE kind = 'filtered') ORDER BY id
"""
LOSE = "UPDATE tries SET uncommitted_tokens = uncommitted_tokens + ?4"
LOSE += " WHERE grp = ?1 AND member = ?2 AND retry = ?3 AND outcome IS NULL"
FINISH = "UPDATE samples SET state = 'finished' WHERE grp = ?1 AND member = ?2 AND retry = ?3"
FINISH += " AND state = 'running'"
READY = "UPDATE samples SET state = 'ready', late = ?3 WHERE grp = ?1 AND member = ?2"
READY += " AND state = 'finished'"
CLOSE_GROUP = "UPDATE groups SET state = ?2, reason = ?3 WHERE id = ?1 AND state = 'open'"
DROP_GROUP = "UPDATE groups SET state = 'dropped', reason = ?2 WHERE id = ?1"
DROP = "UPDATE samples SET state = 'dropped', reason = ?3 WHERE grp = ?1 AND member = ?2"
DROP += " AND state IN ('created', 'running', 'finished', 'ready')"
RESERVE = "INSERT OR REPLACE INTO steps VALUES (?, ?, 'reserved')"
USE = "INSERT OR IGNORE INTO uses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
RESERVE_SAMPLE = "UPDATE samples SET state = 'reserved' WHERE grp = ?1 AND member = ?2"
RESERVE_SAMPLE += " AND state = 'ready'"
APPLY = "UPDATE steps SET state = 'applied' WHERE step = ?1 AND state = 'reserved'"
APPLY_SAMPLES = """
UPDATE samples SET state = 'applied' WHERE state = 'reserved' AND (grp, member) IN (
  SELECT grp, member FROM uses WHERE step = ?1 AND kind IN ('group', 'late'))
"""
CHECKPOINT_SAMPLES = """
UPDATE samples SET state = 'checkpointed'
WHERE state IN ('reserved', 'applied') AND (grp, member) IN (
  SELECT u.grp, u.member FROM uses u JOIN steps s USING (step)
  WHERE u.step < ?1 AND s.state <> 'checkpointed' AND u.kind IN ('group', 'late'))
"""
CHECKPOINT = "UPDATE steps SET state = 'checkpointed' WHERE step < ?1 AND state <> 'checkpointed'"
SET_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"

_FIRST_FULL = "(SELECT COALESCE(MAX(CAST(value AS INTEGER)), 0) FROM meta WHERE key = 'first_full')"
_NEEDED = f"""
SELECT grp FROM samples WHERE grp >= {_FIRST_FULL} AND state NOT IN ('checkpointed', 'dropped')
UNION SELECT grp FROM uses WHERE step >= ?1 AND kind <> 'replay'
UNION SELECT id FROM groups WHERE id >= {_FIRST_FULL} AND state = 'dropped'
  AND reason LIKE 'filtered_%'
  AND NOT EXISTS (SELECT 1 FROM uses WHERE grp = id AND kind = 'filtered')
"""
"""Groups that a run needs which goes on from version ?1 or a later one, and perhaps others."""
EMPTY = (
    f"UPDATE turns SET packed = x'' WHERE grp >= {_FIRST_FULL} AND length(packed) > 0 "
    f"AND grp NOT IN ({_NEEDED})",
    f"UPDATE tries SET tail = x'' WHERE grp >= {_FIRST_FULL} AND length(tail) > 0 "
    f"AND grp NOT IN ({_NEEDED})",
    f"UPDATE groups SET prefix = NULL WHERE id >= {_FIRST_FULL} AND prefix IS NOT NULL "
    f"AND id NOT IN ({_NEEDED})",
    # What is below was emptied: the cost is that of what is new.
    f"INSERT OR REPLACE INTO meta SELECT 'first_full', MIN(grp) FROM ({_NEEDED}) "
    "HAVING MIN(grp) IS NOT NULL",
)
"""Empty the content of all groups but those."""

Operation = tuple[str, tuple[Any, ...]]
"""A statement and its values."""
_OF_NEW_SAMPLE = frozenset({OPEN_GROUP, CREATE_SAMPLE, START, FENCE})
"""Statements that may come before those of other samples."""


def grouped(batch: Iterable[Operation]) -> Iterator[Operation]:
    """Yield statements that do to a ledger what ``batch`` does in one transaction, but in fewer.

    Turns of different episodes are written together. Of each episode, and of everything else but
    the beginnings of new tries, the order stays.
    """
    turns: list[tuple[Any, ...]] = []
    later: list[Operation] = []
    samples_of_turns, samples_later = set[tuple[Any, ...]](), set[tuple[Any, ...]]()
    for statement, row in batch:
        sample = row[:2]
        if statement == COMMIT_TURN:
            if sample in samples_later:  # a try after what ended the one before
                yield from _written(turns, later)
                turns, later = [], []
                samples_of_turns, samples_later = set(), set()
            turns.append(row)
            samples_of_turns.add(sample)
        elif (
            statement in _OF_NEW_SAMPLE
            and sample not in samples_of_turns
            and sample not in samples_later
        ):
            yield statement, row
        else:
            later.append((statement, row))
            samples_later.add(sample)
    yield from _written(turns, later)


def _written(turns: Sequence[tuple[Any, ...]], later: Iterable[Operation]) -> Iterator[Operation]:
    """Yield ``turns``, as many at once as can be, and then what came after them."""
    at = 0
    for count, statement in COMMIT_TURNS.items():
        while len(turns) - at >= count:
            yield statement, tuple(chain.from_iterable(turns[at : at + count]))
            at += count
    for row in turns[at:]:
        yield COMMIT_TURN, row
    yield from later


def read_episode(
    db: sqlite3.Connection, key: SampleKey, retry: int, *, whole: bool = True
) -> PackedEpisode:
    """Return what the ledger holds of one try.

    Args:
        db: The ledger.
        key: The episode.
        retry: The try.
        whole: It must have ended; else its turns are a truncated episode, as when they were trained
            early.

    Raises:
        RecordError: It holds no such try.
    """
    place = (key.group, key.member, retry)
    where = "WHERE grp = ? AND member = ? AND retry = ?"
    row = db.execute(f"SELECT tail, policy_seed FROM tries {where}", place).fetchone()
    if row is None or (whole and row[0] is None):
        raise RecordError(f"ledger: holds no finished episode {key}, try {retry}")
    tail = row[0] if whole else _open_tail(db, key, row[1])
    return PackedEpisode(read_turns(db, key, retry), tail)


def read_turns(db: sqlite3.Connection, key: SampleKey, retry: int) -> tuple[bytes, ...]:
    """Return the packed turns of the try ``retry`` in ``db``.

    Raises:
        RecordError: One is damaged or gone; the message names it.
    """
    rows = db.execute(
        "SELECT turn, packed, crc FROM turns WHERE grp = ? AND member = ? AND retry = ? "
        "ORDER BY turn",
        (key.group, key.member, retry),
    ).fetchall()
    for turn, packed, crc in rows:
        if not packed:
            raise RecordError(
                f"group {key.group}, episode {key.member}, try {retry}: its turns are gone, since "
                "it was done before the oldest checkpoint that the run kept"
            )
        if zlib.crc32(packed) != crc:
            raise RecordError(
                f"group {key.group}, episode {key.member}, try {retry}: the packed turn {turn} "
                "is damaged"
            )
    return tuple(packed for _, packed, _ in rows)


def _open_tail(db: sqlite3.Connection, key: SampleKey, policy_seed: int) -> bytes:
    """Return what ``pack_tail`` would give for the trained early turns of an episode that runs."""
    env_id, env_seed, task = db.execute(
        "SELECT env_id, env_seed, task FROM groups WHERE id = ?", (key.group,)
    ).fetchone()
    trajectory = Trajectory(
        env_id=env_id,
        task_id=json.loads(task)["id"],
        env_seed=env_seed,
        policy_seed=policy_seed,
        member=key.member,
        turns=(),
        stop_reason=StopReason.TRUNCATED_ENV,
        metadata={"partial": True},
    )
    return pack_tail(trajectory)
