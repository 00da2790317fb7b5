"""Episodes that were recorded: by evaluations, runs and the gateway, or elsewhere.

What others recorded is read from documents in ATIF and from conversations of data sets,
``messages`` or ``conversations`` as in ShareGPT: a line of a ``.jsonl`` file each, a row of a
``.parquet`` file, or one of a list in a ``.json`` file. What is beside one counts where ``turngym
export`` writes it so: ``env``, ``task``, ``score`` and ``stop_reason``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from turngym.agents.remote.wire import said_in
from turngym.errors import ConfigError, RecordError
from turngym.plugins import import_extra
from turngym.records import FORMAT, MANIFEST, from_json, read_lines
from turngym.rollouts.atif import FOREIGN as ATIF
from turngym.rollouts.atif import read_atif
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


def _begins(file: Path) -> str:
    """Return what a file begins with, for the message that it holds nothing of ours."""
    try:
        return f", but {next(_rows(file))[1]!r:.60}" if file.is_file() else ""
    except StopIteration:
        return ", it is empty"
    except (OSError, ValueError, RecursionError) as error:
        return f" ({error})"


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

    What it said with ``weight`` 0 is no action, but read. What it said before anything was said to
    it is neither: no policy is asked for an action before it has seen something.

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
            if message.role != "assistant" or found.get("weight") == 0:
                seen.append(message)
            elif turns or any(one.role != "system" for one in seen):
                turns.append(Turn(observation=tuple(seen), action=message))
                seen = []
        where = around
        if isinstance(row.get("score"), str):
            raise ValueError(f"score {row['score']!r}: wanted a number from 0 to 1, or none")
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


FOREIGN = (ATIF, CHAT)
"""Each begins the environment's name of an episode that was not played here."""
_SKIPPED = frozenset({"checkpoints", "tensorboard", "pictures"})


def episodes(run: Path) -> Iterator[tuple[str, Trajectory]]:
    """Yield the episodes of a run, or of what others recorded, with the name of their file.

    Args:
        run: Folder of a training run or an evaluation, any folder, or one file of trajectories.

    Raises:
        ConfigError: There are none.
        RecordError: One is broken.
    """
    if not run.exists():
        raise ConfigError(f"{run}: there is no such folder or file")
    root, files = (run if run.is_dir() else run.parent), sources_of(run)
    others = not files and not (run / MANIFEST).exists()  # else a run that holds nothing yet
    elsewhere = [run] if run.is_file() else _of_others(run) if others else []
    readers = {path: read_chats if is_chats(path) else read_atif for path in elsewhere}
    if foreign := [p for p in elsewhere if p.suffix == ".json" or readers[p] is read_chats]:
        for path in foreign:
            yield from ((run.stem, one) for one in readers[path](path))
        return
    if not files:
        raise ConfigError(
            f"{run}: no trajectories in here{_begins(run)}; wanted the folder of 'turngym train' "
            "or 'turngym eval --out', a file of trajectories, or of conversations"
        )
    for file in files:
        label = str(file.relative_to(root).with_suffix(""))
        for number, line in enumerate(read_lines(file), start=2):
            if line.endswith(b"\n"):
                try:
                    yield label, from_json(line)
                except RecordError as error:
                    raise RecordError(f"{file}:{number}: {error}") from error


def _of_others(folder: Path) -> list[Path]:
    """Return what may be of others: JSON in a folder, Parquet at any depth of it."""
    parquet = [path for path in files_in(folder) if path.suffix == ".parquet"]
    return [*sorted(folder.glob("*.json*")), *parquet]


def sources_of(run: Path) -> list[Path]:
    """Return the files of trajectories in a folder, at any depth, or the one file."""
    files = [run] if run.is_file() else [path for path in files_in(run) if path.suffix == ".jsonl"]
    return [path for path in files if _has_trajectories(path)]


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, at any depth and sorted, without those of checkpoints."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _SKIPPED and not path.is_symlink():
            found += files_in(path)
        elif path.is_file():
            found.append(path)
    return found


def _has_trajectories(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return bool(json.loads(file.readline(4096))["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
