"""Finished turns as bytes: a twelfth of the memory of tuples, and what a ledger keeps.

A turn of N tokens is a JSON head and two arrays, int32 ids [N] and log-probs of the sampled tokens.
Log-probs are float32 where that loses nothing, else float64: they come back as they were sampled.
Routing of a mixture-of-experts model, where there is any, is in the head.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from turngym.errors import RecordError
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
    if turn.player is not None:
        head["g"] = [turn.player, dict(turn.other_rewards)]
    if turn.invalid_action is not None:
        head["i"] = turn.invalid_action
    if turn.state_key is not None:
        head["k"] = turn.state_key
    if turn.potential is not None:
        head["v"] = turn.potential
    if turn.picture is not None:
        head["f"] = turn.picture
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
    player, other_rewards = head.get("g", (None, {}))
    return Turn(
        observation=tuple(_read_message(m) for m in head["o"]),
        action=_read_message(head["a"]),
        spans=_spans(head.get("s", ()), ids, logprobs),
        reward=head["r"],
        reward_parts=head.get("p", {}),
        player=player,
        other_rewards=other_rewards,
        invalid_action=head.get("i"),
        state_key=head.get("k"),
        potential=head.get("v"),
        picture=head.get("f"),
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


def pack_tail(trajectory: Trajectory) -> bytes:
    """Return what a trajectory has besides its turns, as JSON.

    What a limit adds to the reward of the last turn, which was packed before, is part of it.
    """
    tail: dict[str, Any] = {
        "env_id": trajectory.env_id,
        "task_id": trajectory.task_id,
        "env_seed": trajectory.env_seed,
        "policy_seed": trajectory.policy_seed,
        "member": trajectory.member,
        "stop_reason": trajectory.stop_reason.value,
        "final_observation": [_message(m) for m in trajectory.final_observation],
        "score": trajectory.score,
        "player": trajectory.player,
        "scores": dict(trajectory.scores),
        "ground_truth": trajectory.ground_truth,
        "answer": trajectory.answer,
        "final_picture": trajectory.final_picture,
        "final_potential": trajectory.final_potential,
        "error": trajectory.error,
        "metadata": dict(trajectory.metadata),
    }
    # The last turn of a part is none that a limit ended.
    if trajectory.stop_reason.is_truncated and trajectory.turns and not trajectory.is_partial:
        last = trajectory.turns[-1]
        tail["last_reward"] = [last.reward, dict(last.reward_parts), dict(last.other_rewards)]
    if trajectory.judged_at_limit:
        tail["judged_at_limit"] = True
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
        tail: dict[str, Any] = json.loads(packed.tail)
        turns = [unpack_turn(blob) for blob in packed.turns]
        if (last := tail.pop("last_reward", None)) is not None:
            names = ("reward", "reward_parts", "other_rewards")  # an older ledger has two
            turns[-1] = replace(turns[-1], **dict(zip(names, last, strict=False)))
        fields = tail | {
            "stop_reason": StopReason(tail["stop_reason"]),
            "final_observation": tuple(_read_message(m) for m in tail.get("final_observation", ())),
        }
        return Trajectory(turns=tuple(turns), **fields)
    except (ValueError, KeyError, IndexError, TypeError) as error:
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
