"""Conversations of data sets, read as episodes: ``messages``, or ``conversations`` as in ShareGPT.

A conversation is a line of a ``.jsonl`` file, a row of a ``.parquet`` file, or one of a list in a
``.json`` file. What is beside it counts where ``turngym export`` writes it so: ``env``, ``task``,
``score`` and ``stop_reason``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from turngym.agents.remote.wire import said_in
from turngym.errors import RecordError
from turngym.plugins import import_extra
from turngym.records import from_json
from turngym.types import Message, Role, StopReason, ToolCall, Trajectory, Turn

_BATCH = 200
"""Rows of Parquet in memory at once."""
CHAT = "chat/"
"""Begins the environment's name of a conversation that does not name one."""
_ROLES = {
    **{"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"},
    **{"developer": "system", "function": "tool", "function_response": "tool"},
}


def is_chats(file: Path) -> bool:
    """Return whether the first thing in a file is a conversation."""
    try:
        _, row = next(_rows(file), (0, None))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(row, Mapping) and _messages(row) is not None


def read_chats(file: Path) -> Iterator[Trajectory]:
    """Yield the conversations of a file.

    Raises:
        RecordError: One is broken.
    """
    number = 0
    try:
        for number, row in _rows(file):
            yield from_chat(row, name=f"{file.stem}/{number}")
    except RecordError as error:
        raise RecordError(f"{file}: conversation {number}: {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{file}: after conversation {number}: {error}") from error


def from_chat(row: Any, *, name: str) -> Trajectory:
    """Return a conversation as an episode whose actions are what the assistant said.

    What it said with ``weight`` 0 is no action, but read.

    Args:
        row: A conversation.
        name: Its task, where it names none.

    Raises:
        RecordError: It is none, or the assistant says nothing in it.
    """
    messages = _messages(row) if isinstance(row, Mapping) else None
    if messages is None:
        raise RecordError("wanted an object with a list of 'messages' or 'conversations'")
    turns: list[Turn] = []
    seen: list[Message] = []
    where = around = "beside the messages"
    try:
        if isinstance(row.get("system"), str) and row["system"]:  # beside 'conversations'
            seen.append(Message(role="system", content=row["system"]))
        for place, found in enumerate(messages):
            where = f"message {place}"
            message = _message(found)
            if message.role == "assistant" and found.get("weight") != 0:
                turns.append(Turn(observation=tuple(seen), action=message))
                seen = []
            else:
                seen.append(message)
        where = around
        made = Trajectory(
            env_id=str(row.get("env") or f"{CHAT}data"),
            task_id=str(row.get("task") or row.get("id") or name),
            env_seed=0,
            policy_seed=0,
            member=0,
            turns=tuple(turns),
            stop_reason=StopReason(row.get("stop_reason") or StopReason.TERMINATED),
            score=row.get("score"),
            final_observation=tuple(seen),
        )
        plain = json.dumps(asdict(made), ensure_ascii=False)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{where}: {type(error).__name__}: {error}") from error
    if not turns:
        raise RecordError("the assistant says nothing that could be imitated")
    return from_json(plain.encode(errors="replace"))  # it has what a record can have


def _rows(file: Path) -> Iterator[tuple[int, Any]]:
    """Yield what the lines or rows of a file hold, or the list in it, with their numbers from 1."""
    if file.suffix == ".parquet":
        parquet = import_extra("pyarrow.parquet", f"{file.name}", "search")
        batches = parquet.ParquetFile(file).iter_batches(_BATCH)
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from enumerate(map(_without_nulls, rows), start=1)
        return
    with file.open(encoding="utf-8-sig") as text:
        if file.suffix == ".json":
            content = json.load(text)
            yield from enumerate(content if isinstance(content, list) else [content], start=1)
        else:
            yield from enumerate((json.loads(line) for line in text if line.strip()), start=1)


def _without_nulls(value: Any) -> Any:
    """Return what a row holds without the fields that it has only because other rows do."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _messages(row: Mapping[str, Any]) -> Sequence[Any] | None:
    found = row.get("messages", row.get("conversations"))
    return found if isinstance(found, list) else None


def _message(found: Mapping[str, Any]) -> Message:
    """Return a message of either form."""
    name = found.get("role") or found["from"]
    role: Any = _ROLES.get(name, name)
    if role not in get_args(Role):
        raise ValueError(f"role {name!r}: wanted one of {', '.join(get_args(Role))}")
    if name == "function_call":
        return Message(role=role, content="", tool_calls=_calls([json.loads(found["value"])]))
    row = found if "role" in found else {"content": found["value"]}
    return Message(role=role, content=said_in(row), tool_calls=_calls(found.get("tool_calls")))


def _calls(found: Sequence[Mapping[str, Any]] | None) -> tuple[ToolCall, ...]:
    """Return tool calls, whose arguments may be the text of an object."""
    calls = [call.get("function", call) for call in found or ()]
    pairs = [(call["name"], call.get("arguments") or {}) for call in calls]
    return tuple(
        ToolCall(name=name, arguments=json.loads(text) if isinstance(text, str) else text)
        for name, text in pairs
    )
