"""The ledger: every episode in exactly one state, on the disk, through every crash.

One SQLite file in WAL mode. Commits are grouped: what arrives while one is written goes into the
next. What was committed survives a killed process at once. Every write is idempotent, and a try
that was dropped cannot write any more.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from turngym.errors import ConfigError, RecordError, TrainingError
from turngym.records import Manifest
from turngym.rollouts.scheduler import ledger_files as sql
from turngym.rollouts.scheduler.groups import OpenGroup, ReadyGroup, SampleKey
from turngym.rollouts.scheduler.ledger_files import LedgerDigests, Operation, grouped, log_damage
from turngym.tasks.base import Task

logger = logging.getLogger(__name__)

LEDGER_FILE = "ledger.sqlite"
"""Name of the ledger in the folder of a run."""
PART_FOLDER = "coordinator-"
"""With a number: folder of the ledger of one of several coordinators, below that of their run."""
SHARE = "share"
"""In a ledger: the number of its coordinator, and how many there are, as ``1/2``."""

_RETRY_S = 1.0
_FULL_CODES = ("full", "disk I/O error", "readonly")


class Ledger:
    """Writes and keeps the account of one run. Used from one event loop.

    Args:
        path: The file; made if it is not there.
        threaded: Write in a thread of its own, so that a slow disk holds up no turn. Without it the
            event loop writes, once per turn of the loop: the same order at every run.
        manifest: Of the folder; keeps the digests of the files, which are compared first.
        checkpoints: How many the run keeps. Turns that none of them needs lose their content, and
            their rows stay. None keeps all of it.

    Raises:
        ConfigError: Another process has it open.
        RecordError: The file is something else, damaged, gone, or of a newer version.
    """

    def __init__(
        self,
        path: Path,
        *,
        threaded: bool = True,
        manifest: Manifest | None = None,
        checkpoints: int | None = None,
    ) -> None:
        self.path = path
        self.written = 0
        """Number of the last operation that is on the disk."""
        self.queued = 0
        """Number of the last operation."""
        self.kept: int | None = None
        """The newest version that is in a checkpoint, where the trainer and its newer weights live
        on; None where what is resumed is a checkpoint. To be set before a scheduler is opened."""
        self.trouble: str | None = None
        """Why nothing can be written at the moment."""
        self.on_trouble: Callable[[str | None], None] | None = None
        """Called in the event loop when ``trouble`` comes or goes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock_file = _locked(path)
        self._digests = None if manifest is None else LedgerDigests(path, manifest)
        try:
            self._db = self._open()
        except BaseException:
            self._lock_file.close()
            raise
        self.lineage = int(read_meta(self._db, "lineage", "0"))
        self._versions = None if checkpoints is None else deque[int](maxlen=checkpoints)
        self._pending: list[Operation] = []
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threaded = threaded
        self._thread: threading.Thread | None = None
        self._scheduled = False
        self._closing = self._is_closed = False
        self._failure: Exception | None = None

    def _open(self) -> sqlite3.Connection:
        if self._digests is not None:
            self._digests.check()
        if damage := log_damage(self.path):
            raise RecordError(
                f"{damage}; delete it to go on from the newest checkpoint: what was played since "
                "is played again"
            )
        db = open_database(self.path)
        if self._digests is not None:
            self._digests.begin(db)
        return db

    # What happens to groups and episodes. All of it returns at once.

    def open_group(self, group: OpenGroup, prefix: bytes | None) -> None:
        """Enter a new group, its ``prefix`` and its members."""
        request = group.request
        ordered = (
            group.index,
            task_to_json(request.task),
            request.size,
            request.condition,
            group.env_id,
        )
        row = (*ordered, group.env_seed, prefix, group.start_version, group.target, self.lineage)
        self._add(
            (sql.OPEN_GROUP, row),
            *((sql.CREATE_SAMPLE, (group.index, number)) for number in range(len(group.episodes))),
        )

    def start(
        self, key: SampleKey, retry: int, *, start_version: int, seed: int, carry_from: int | None
    ) -> None:
        """Enter try ``retry``, which shuts out all others; it may ``carry_from`` one its turns."""
        place = (key.group, key.member, retry)
        # Entered together, so committed together: no crash leaves a try without its fence.
        operations = [(sql.START, (*place, start_version, seed)), (sql.FENCE, place)]
        if carry_from is not None:
            operations.append((sql.CARRY_TURNS, (*place, carry_from)))
            operations.append((sql.CARRY_USES, (*place, carry_from)))
        self._add(*operations)

    def commit_turn(
        self, key: SampleKey, retry: int, turn: int, packed: bytes, *, facts: tuple[int, int, str]
    ) -> int:
        """Enter a finished turn and return the number to wait for with ``durable``.

        Args:
            key: The episode.
            retry: The try; the turn is refused when there is a newer one.
            turn: Place of the turn in the episode.
            packed: The turn, as ``pack_turn`` gives it.
            facts: Sampled tokens, oldest version, digest of the observation that it answered.
        """
        row = (key.group, key.member, retry, turn, *facts, zlib.crc32(packed), packed)
        return self._add((sql.COMMIT_TURN, row))

    def end(
        self,
        key: SampleKey,
        retry: int,
        outcome: str,
        *,
        error: str | None,
        uncommitted_tokens: int,
        tail: bytes | None,
    ) -> None:
        """Enter how try ``retry`` ended: ``outcome``, ``error``; a ``tail`` ends the episode."""
        place = (key.group, key.member, retry)
        operations: list[Operation] = [
            (sql.END, (*place, outcome, error, uncommitted_tokens, tail))
        ]
        if tail is not None:
            operations.append((sql.FINISH, place))
        self._add(*operations)

    def lose(self, key: SampleKey, retry: int, tokens: int) -> None:
        """Enter tokens of a turn of try ``retry`` that the end of this process breaks off."""
        self._add((sql.LOSE, (key.group, key.member, retry, tokens)))

    def ready(self, index: int, members: Iterable[int], *, late: bool) -> None:
        """Enter that finished members, ``late`` or not, wait to be trained on."""
        operations: list[Operation] = [(sql.READY, (index, n, int(late))) for n in members]
        if not late:
            operations.append((sql.CLOSE_GROUP, (index, "ready", None)))
        self._add(*operations)

    def drop(self, index: int, members: Iterable[int], reason: str) -> None:
        """Enter the ``reason`` why members of a group are not trained on."""
        self._add(*((sql.DROP, (index, number, reason)) for number in members))

    def drop_group(self, index: int, reason: str) -> None:
        """Enter the ``reason`` why a group is not trained on; its members are dropped apart."""
        self._add((sql.DROP_GROUP, (index, reason)))

    def reserve(self, step: int, groups: Sequence[ReadyGroup]) -> None:
        """Enter what a step trains on, before it does, and what was dropped on the way to it."""
        operations: list[Operation] = [(sql.RESERVE, (step, self.lineage))]
        place = 0
        for group in groups:
            for m in group.members:
                which = (step, place, group.kind, group.index, m.number, m.retry)
                used = (m.first_turn, m.end_turn, m.trained_tokens)
                if group.kind == "filtered":
                    used = (m.end_turn, m.end_turn, 0)
                operations.append((sql.USE, (*which, *used)))
                # What is replayed was used before: only this use is new, not the sample's state.
                if group.kind in ("group", "late"):
                    operations.append((sql.RESERVE_SAMPLE, (group.index, m.number)))
                place += 1
        self._add(*operations)

    def apply(self, step: int) -> None:
        """Enter that the update of ``step`` is in the weights."""
        self._add((sql.APPLY_SAMPLES, (step,)), (sql.APPLY, (step,)))

    def mark_checkpointed(self, version: int) -> None:
        """Enter that the weights of ``version`` are in a checkpoint: earlier steps are for good."""
        self._add((sql.CHECKPOINT_SAMPLES, (version,)), (sql.CHECKPOINT, (version,)))
        if (versions := self._versions) is None:
            return
        if version not in versions:
            versions.append(version)
        # After a start the older checkpoints are not known, and need what there is.
        if len(versions) == versions.maxlen:
            self._add(*((statement, (versions[0],)) for statement in sql.EMPTY))

    # Waiting and closing.

    async def durable(self, number: int) -> None:
        """Wait until operation ``number`` is on the disk.

        Raises:
            TrainingError: It never will be.
        """
        if self._failure is not None:
            raise TrainingError(f"{self.path}: {self._failure}") from self._failure
        if self.written < number:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((number, waiting))
            await waiting

    async def flush(self) -> None:
        """Wait until everything is on the disk."""
        await self.durable(self.queued)

    async def close(self) -> None:
        """Write what is left and close the file. Safe to call twice."""
        if self._closing:
            return
        try:
            if self.trouble is None and self._failure is None:
                await self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without waiting; what is on the disk is a whole number of commits."""
        self._closing = True
        self._wake.set()  # the thread may wait for work that comes no more
        if self._thread is not None:
            self._thread.join()
        try:
            if self._digests is None or self._is_closed:
                self._db.close()
            else:
                self._digests.close(self._db)
        finally:
            self._is_closed = True
            self._lock_file.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The database; to be used before the first write or after ``flush`` only."""
        return self._db

    @property
    def is_empty(self) -> bool:
        """Whether no group was ever entered; to be asked before the first write."""
        return self._db.execute("SELECT 1 FROM groups LIMIT 1").fetchone() is None

    def mark_share(self, share: str) -> None:
        """Enter whose ledger it is, as ``SHARE``."""
        self._add((sql.SET_META, (SHARE, share)))

    def _add(self, *operations: Operation) -> int:
        with self._guard:
            self._pending.extend(operations)
            self.queued += len(operations)
        if self._threaded:
            if self._thread is None:
                self._loop = asyncio.get_running_loop()
                self._thread = threading.Thread(
                    target=self._write_there, name="turngym-ledger", daemon=True
                )
                self._thread.start()
            # Set means not yet cleared, and it is cleared before what is pending is taken.
            if not self._wake.is_set():
                self._wake.set()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write_here)
        return self.queued

    def _take(self) -> list[Operation]:
        with self._guard:
            batch, self._pending = self._pending, []
        return batch

    def _write_here(self) -> None:
        self._scheduled = False
        batch = self._take()
        try:
            self._commit(batch)
        except sqlite3.Error as error:
            with self._guard:
                self._pending[:0] = batch  # in front of what was entered meanwhile
            if not may_pass(error):
                self._fail(error)
                return
            self._tell(f"{self.path}: {error}")
            self._scheduled = True
            asyncio.get_running_loop().call_later(_RETRY_S, self._write_here)
        else:
            self._settle(len(batch))

    def _write_there(self) -> None:
        assert self._loop is not None
        while not (self._closing and not self._pending):  # what is pending is written on closing
            self._wake.wait()
            self._wake.clear()
            batch = self._take()
            while batch:
                try:
                    self._commit(batch)
                except sqlite3.Error as error:
                    if not may_pass(error):
                        self._call(self._fail, error)
                        return
                    self._call(self._tell, f"{self.path}: {error}")
                    if self._closing:
                        return
                    threading.Event().wait(_RETRY_S)  # no event says that a full disk has room
                    continue
                self._call(self._settle, len(batch))
                batch = self._take()

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        # Waiters are futures of the loop, which no other thread may settle.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def _commit(self, batch: Sequence[Operation]) -> None:
        with self._db as db:
            # The write lock at once: taken later, it could be refused in the middle of a batch.
            db.execute("BEGIN IMMEDIATE")
            for statement, row in grouped(batch):
                db.execute(statement, row)
        if self._digests is not None:
            is_due = any(statement == sql.CHECKPOINT for statement, _ in batch)
            try:
                self._digests.committed(self._db, is_due=is_due)
            except (sqlite3.Error, OSError) as error:
                logger.warning("%s: its digest cannot be kept (%s)", self.path, error)

    def _settle(self, count: int) -> None:
        self._tell(None)
        self.written += count
        while self._waiters and self._waiters[0][0] <= self.written:
            _, waiting = self._waiters.popleft()
            if not waiting.done():
                waiting.set_result(None)

    def _tell(self, trouble: str | None) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble is not None:
            logger.error(
                "ledger: %s; no episode begins until it can be written: is there room on its disk?",
                trouble,
            )
        else:
            logger.warning("ledger: it can be written again")
        if self.on_trouble is not None:
            self.on_trouble(trouble)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._tell(f"{self.path}: {error}")
        for _, waiting in self._waiters:
            if not waiting.done():
                waiting.set_exception(TrainingError(f"{self.path}: {error}"))
        self._waiters.clear()

    async def __aenter__(self) -> Self:
        """Return the ledger."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()


def open_database(path: Path) -> sqlite3.Connection:
    """Return a connection that writes to ``path``, made if need be.

    Raises:
        RecordError: The file is something else, or of a newer version.
    """
    try:
        with ExitStack() as undo:
            connected = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            db = undo.enter_context(closing(connected))
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(sql.SCHEMA)
            check_format(db, path)
            undo.pop_all()
    except sqlite3.DatabaseError as error:
        raise RecordError(f"{path}: is not a ledger ({error})") from error
    return db


def check_format(db: sqlite3.Connection, path: Path) -> None:
    """Make sure that ``db`` is a ledger of a version that we read; sign it when it is new.

    Raises:
        RecordError: It is not.
    """
    found = read_meta(db, "format", None)
    if found is None:
        db.execute(sql.SET_META, ("format", f"{sql.FORMAT} {sql.FORMAT_VERSION}"))
        return
    name, _, version = found.partition(" ")
    if name != sql.FORMAT:
        raise RecordError(f"{path}: is not a ledger but {name!r}")
    if int(version) > sql.FORMAT_VERSION:
        raise RecordError(
            f"{path}: ledger version {version} is newer than {sql.FORMAT_VERSION}; upgrade turngym"
        )


def read_meta(db: sqlite3.Connection, key: str, default: Any) -> Any:
    """Return the value of ``key`` in the ledger ``db``."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return default if row is None else row[0]


def task_to_json(task: Task) -> str:
    """Return ``task`` as JSON."""
    return json.dumps(asdict(task), ensure_ascii=False)


def task_from_json(text: str) -> Task:
    """Return the task that ``task_to_json`` wrote."""
    return Task(**json.loads(text))


def may_pass(error: sqlite3.Error) -> bool:
    """Return whether the trouble is one that a person can end while the run waits."""
    return any(word in str(error) for word in _FULL_CODES)


def _locked(path: Path) -> Any:
    file = path.with_name(path.name + ".lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(f"{path}: another process has this ledger open") from None
    return file
