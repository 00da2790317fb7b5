"""Closed groups while they wait: the first few as they are, others packed, or in the ledger."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from turngym.errors import RecordError
from turngym.rollouts.scheduler.admission import Candidate
from turngym.rollouts.scheduler.groups import (
    GroupKind,
    GroupRequest,
    Member,
    ReadyGroup,
    SampleKey,
)
from turngym.rollouts.scheduler.packing import (
    PackedEpisode,
    pack_episode,
    pack_tail,
    unpack_episode,
)
from turngym.types import StopReason, Trajectory

ReadEpisode = Callable[[SampleKey, int], PackedEpisode]
"""(episode, retry) -> what the ledger holds of it."""


@dataclass(slots=True, kw_only=True)
class StoredMember:
    """A finished episode that waits."""

    number: int
    retry: int
    first_turn: int
    end_turn: int
    versions: tuple[int, ...]
    start_version: int
    turn_tokens: tuple[int, ...]
    """Sampled tokens of each turn."""
    live: Trajectory | None
    """The episode as it is."""
    packed: PackedEpisode | None = None
    """The episode as bytes. With neither it is read back from the ledger."""
    blobs: tuple[bytes, ...] | None = None
    """Its turns as bytes, where the ledger had them packed."""


@dataclass(slots=True, kw_only=True)
class StoredGroup:
    """A closed group that waits to be trained on."""

    index: int
    request: GroupRequest
    members: list[StoredMember]
    start_version: int
    target: int | None
    kind: GroupKind
    siblings: tuple[Trajectory, ...]
    closed: int
    """Order in which groups closed."""
    pinned: bool = False
    """It differs from what the ledger holds, so it must stay in memory."""

    def candidate(self) -> Candidate:
        """Return what selection sees of it."""
        return Candidate(
            index=self.index,
            closed=self.closed,
            start_version=self.start_version,
            target=self.target,
        )

    def pack(self) -> None:
        """Keep the content as bytes, a tenth of the memory."""
        for member in self.members:
            if member.live is not None:
                member.packed = _pack(member.live, member.blobs)
                member.live = member.blobs = None

    def spill(self) -> None:
        """Let go of the content, which the ledger holds too."""
        for member in self.members:
            member.live = member.packed = member.blobs = None

    @property
    def is_spilled(self) -> bool:
        """Whether some of it is in the ledger alone."""
        return any(m.live is None and m.packed is None for m in self.members)


def store(group: ReadyGroup, *, closed: int, pinned: bool = False) -> StoredGroup:
    """Return ``group`` as it waits, not packed yet; ``closed`` or ``pinned`` as given."""
    return StoredGroup(
        index=group.index,
        request=group.request,
        members=[_store_member(member) for member in group.members],
        start_version=group.start_version,
        target=group.target,
        kind=group.kind,
        siblings=group.siblings,
        closed=closed,
        pinned=pinned,
    )


def fetch(stored: StoredGroup, read: ReadEpisode | None) -> ReadyGroup:
    """Return what ``store`` was given.

    Args:
        stored: The group.
        read: Reads an episode back from the ledger.
    """
    return ReadyGroup(
        index=stored.index,
        request=stored.request,
        members=tuple(_fetch_member(stored.index, member, read) for member in stored.members),
        start_version=stored.start_version,
        target=stored.target,
        kind=stored.kind,
        siblings=stored.siblings,
    )


def _store_member(member: Member) -> StoredMember:
    return StoredMember(
        number=member.number,
        retry=member.retry,
        first_turn=member.first_turn,
        end_turn=member.end_turn,
        versions=member.versions,
        start_version=member.start_version,
        turn_tokens=turn_tokens(member),
        live=member.trajectory,
        blobs=member.packed,
    )


def _pack(trajectory: Trajectory, blobs: tuple[bytes, ...] | None) -> PackedEpisode:
    if blobs is None or len(blobs) != len(trajectory.turns):
        return pack_episode(trajectory)
    return PackedEpisode(blobs, pack_tail(trajectory))


def _fetch_member(index: int, member: StoredMember, read: ReadEpisode | None) -> Member:
    trajectory, packed = member.live, member.packed
    if trajectory is None:
        if packed is None and read is None:
            raise RecordError(f"episode {index}.{member.number}: spilled without a ledger")
        if packed is None and read is not None:
            packed = read(SampleKey(index, member.number), member.retry)
        assert packed is not None
        trajectory = unpack_episode(packed)
    return Member(
        number=member.number,
        retry=member.retry,
        trajectory=trajectory,
        first_turn=member.first_turn,
        end_turn=member.end_turn,
        versions=member.versions,
        start_version=member.start_version,
    )


def turn_tokens(member: Member) -> tuple[int, ...]:
    """Return the sampled tokens of each turn."""
    return tuple(turn.num_sampled_tokens for turn in member.trajectory.turns)


def with_turns(member: Member, turns: range) -> Member:
    """Return ``member`` with other turns to train on."""
    return replace(member, first_turn=turns.start, end_turn=max(turns.start, turns.stop))


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
        RecordError: One is damaged; the message names it.
    """
    rows = db.execute(
        "SELECT turn, packed, crc FROM turns WHERE grp = ? AND member = ? AND retry = ? "
        "ORDER BY turn",
        (key.group, key.member, retry),
    ).fetchall()
    for turn, packed, crc in rows:
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
        attempt=key.member,
        turns=(),
        stop_reason=StopReason.TRUNCATED_ENV,
        metadata={"partial": True},
    )
    return pack_tail(trajectory)
