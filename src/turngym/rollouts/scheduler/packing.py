"""Finished turns as bytes: a twelfth of the memory of tuples, and what a ledger keeps.

A turn of N tokens is a JSON head and two arrays, int32 ids [N] and log-probs of the sampled tokens.
Log-probs are float32 where that loses nothing, else float64: they come back as they were sampled.
Routing of a mixture-of-experts model, where there is any, is in the head.
Closed groups wait the first few as they are, others packed, or in the ledger.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from turngym.errors import RecordError
from turngym.rollouts.scheduler.admission import Candidate
from turngym.rollouts.scheduler.groups import (
    GroupKind,
    GroupRequest,
    Member,
    ReadyGroup,
    SampleKey,
)
from turngym.types import Message, Routing, StopReason, TokenSpan, ToolCall, Trajectory, Turn

_HEAD = struct.Struct("<II")
_SIZE = struct.Struct("<I")
_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, check_circular=False).encode


def pack_turn(turn: Turn) -> bytes:
    """Return ``turn`` as bytes."""
    ids = array("i")
    logprobs: list[float] = []
    shape: list[Any] = []
    for span in turn.spans:
        ids.extend(span.token_ids)
        logprobs.extend(span.logprobs)
        shape.append((len(span.token_ids), span.policy_version))
        if span.routing is not None:
            shape[-1] += (asdict(span.routing),)
    head: dict[str, Any] = {
        "o": [_message(m) for m in turn.observation],
        "a": _message(turn.action),
        "r": turn.reward,
    }
    if shape:
        head["s"] = shape
    if turn.reward_parts:
        head["p"] = dict(turn.reward_parts)
    if turn.invalid_action is not None:
        head["i"] = turn.invalid_action
    if turn.state_key is not None:
        head["k"] = turn.state_key
    if turn.potential is not None:
        head["v"] = turn.potential
    if turn.starts_segment:
        head["n"] = 1
    narrow = array("f", logprobs)
    wide = narrow if narrow.tolist() == logprobs else array("d", logprobs)
    if wide is not narrow:
        head["w"] = 1
    text = _dumps(head).encode("ascii")
    return b"".join((_HEAD.pack(len(text), len(ids)), text, ids.tobytes(), wide.tobytes()))


def unpack_turn(blob: bytes) -> Turn:
    """Return the turn that ``pack_turn`` packed.

    Raises:
        RecordError: The bytes are not such a turn.
    """
    try:
        return _unpack_turn(blob)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"packed turn of {len(blob)} bytes: unreadable ({error})") from error


def _unpack_turn(blob: bytes) -> Turn:
    size, count = _HEAD.unpack_from(blob)
    start = _HEAD.size + size
    head = json.loads(blob[_HEAD.size : start])
    end = start + 4 * count
    ids = array("i")
    ids.frombytes(blob[start:end])
    logprobs = array("d" if "w" in head else "f")
    logprobs.frombytes(blob[end:])
    return Turn(
        observation=tuple(_read_message(m) for m in head["o"]),
        action=_read_message(head["a"]),
        spans=_spans(head.get("s", ()), ids, logprobs),
        reward=head["r"],
        reward_parts=head.get("p", {}),
        invalid_action=head.get("i"),
        state_key=head.get("k"),
        potential=head.get("v"),
        starts_segment="n" in head,
    )


def _spans(
    shape: Sequence[Sequence[Any]], ids: Sequence[int], logprobs: Sequence[float]
) -> tuple[TokenSpan, ...]:
    spans, at, sampled = [], 0, 0
    for length, version, *routing in shape:
        own = tuple(logprobs[sampled : sampled + length]) if version is not None else ()
        spans.append(
            TokenSpan(
                token_ids=tuple(ids[at : at + length]),
                sampled=version is not None,
                logprobs=own,
                policy_version=version,
                routing=Routing(**routing[0]) if routing else None,
            )
        )
        at += length
        sampled += len(own)
    return tuple(spans)


def _message(message: Message) -> list[Any]:
    if not message.tool_calls:
        return [message.role, message.content]
    calls = [[call.name, dict(call.arguments)] for call in message.tool_calls]
    return [message.role, message.content, calls]


def _read_message(row: Sequence[Any]) -> Message:
    calls = row[2] if len(row) > 2 else ()
    tools = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    return Message(role=row[0], content=row[1], tool_calls=tools)


@dataclass(frozen=True, slots=True)
class PackedEpisode:
    """A finished episode as bytes: its turns, and everything else as JSON."""

    turns: tuple[bytes, ...]
    tail: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of content."""
        return sum(map(len, self.turns)) + len(self.tail)


def pack_tail(trajectory: Trajectory) -> bytes:
    """Return what a trajectory has besides its turns, as JSON."""
    tail: dict[str, Any] = {
        "env_id": trajectory.env_id,
        "task_id": trajectory.task_id,
        "env_seed": trajectory.env_seed,
        "policy_seed": trajectory.policy_seed,
        "member": trajectory.member,
        "stop_reason": trajectory.stop_reason.value,
        "final_observation": [_message(m) for m in trajectory.final_observation],
        "score": trajectory.score,
        "ground_truth": trajectory.ground_truth,
        "answer": trajectory.answer,
        "final_potential": trajectory.final_potential,
        "error": trajectory.error,
        "metadata": dict(trajectory.metadata),
    }
    given = {key: value for key, value in tail.items() if value not in (None, {}, [])}
    return _dumps(given).encode("ascii")


def pack_episode(trajectory: Trajectory) -> PackedEpisode:
    """Return ``trajectory`` as bytes."""
    return PackedEpisode(tuple(pack_turn(turn) for turn in trajectory.turns), pack_tail(trajectory))


def unpack_episode(packed: PackedEpisode) -> Trajectory:
    """Return the trajectory that was packed.

    Raises:
        RecordError: The bytes are not such an episode.
    """
    try:
        tail: Mapping[str, Any] = json.loads(packed.tail)
        fields = dict(tail) | {
            "stop_reason": StopReason(tail["stop_reason"]),
            "final_observation": tuple(_read_message(m) for m in tail.get("final_observation", ())),
        }
        return Trajectory(turns=tuple(unpack_turn(blob) for blob in packed.turns), **fields)
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"packed episode: unreadable ({error})") from error


def pack_turns(turns: Sequence[Turn]) -> bytes | None:
    """Return several turns as one piece of bytes; None for no turns."""
    blobs = [pack_turn(turn) for turn in turns]
    return b"".join(_SIZE.pack(len(blob)) + blob for blob in blobs) or None


def unpack_turns(blob: bytes | None) -> tuple[Turn, ...]:
    """Return the turns that ``pack_turns`` packed.

    Raises:
        RecordError: The bytes are not such turns.
    """
    turns, at, whole = [], 0, blob or b""
    while at < len(whole):
        (size,) = _SIZE.unpack_from(whole, at)
        at += _SIZE.size
        turns.append(unpack_turn(whole[at : at + size]))
        at += size
    return tuple(turns)


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


_OF_GROUP = ("index", "request", "start_version", "target", "kind", "siblings")
_OF_MEMBER = ("number", "retry", "first_turn", "end_turn", "versions", "start_version")


def _shared(one: object, names: Sequence[str]) -> dict[str, Any]:  # fields of any type
    return {name: getattr(one, name) for name in names}


def store(group: ReadyGroup, *, closed: int, pinned: bool = False) -> StoredGroup:
    """Return ``group`` as it waits, not packed yet; ``closed`` or ``pinned`` as given."""
    members = [
        StoredMember(
            **_shared(member, _OF_MEMBER),
            turn_tokens=turn_tokens(member),
            live=member.trajectory,
            blobs=member.packed,
        )
        for member in group.members
    ]
    return StoredGroup(**_shared(group, _OF_GROUP), members=members, closed=closed, pinned=pinned)


def fetch(stored: StoredGroup, read: ReadEpisode | None) -> ReadyGroup:
    """Return what ``store`` was given.

    Args:
        stored: The group.
        read: Reads an episode back from the ledger.
    """
    members = tuple(_fetch_member(stored.index, member, read) for member in stored.members)
    return ReadyGroup(**_shared(stored, _OF_GROUP), members=members)


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
    blobs = member.blobs if packed is None else packed.turns
    return Member(**_shared(member, _OF_MEMBER), trajectory=trajectory, packed=blobs)


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
        member=key.member,
        turns=(),
        stop_reason=StopReason.TRUNCATED_ENV,
        metadata={"partial": True},
    )
    return pack_tail(trajectory)
