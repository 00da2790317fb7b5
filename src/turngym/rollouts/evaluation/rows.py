"""One row of numbers for each episode: all that tables and comparisons of evaluations need."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from turngym.errors import RecordError
from turngym.types import StopReason, Trajectory

FORMAT = "turngym.episodes"
FORMAT_VERSION = 1
FILE = "episodes.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRow:
    """The numbers of one episode."""

    env: str
    """Short name."""
    task_id: str
    attempt: int
    env_seed: int
    policy_seed: int
    stop_reason: StopReason
    score: float | None
    """Success in [0, 1]; None when the episode was not judged."""
    episode_return: float
    turns: int
    invalid_actions: int
    prompt_tokens: int | None
    """Tokens read; None when the policy does not know. A server reads the prompt anew at every
    call, a local engine reads only what is new."""
    completion_tokens: int | None
    """Tokens sampled; None when the policy does not know."""
    cost_usd: float | None
    seconds: float
    """Wall-clock time from reset to end, what other episodes took meanwhile included."""
    error: str | None = None
    trajectory_crc: int | None = None
    """CRC-32 of the episode's line in the file of trajectories; None where there is none."""

    @property
    def key(self) -> tuple[str, str, int]:
        """The identity of an episode within one evaluation."""
        return (self.env, self.task_id, self.attempt)

    @property
    def is_fault(self) -> bool:
        """True when the episode broke; such a row is in no mean."""
        return self.stop_reason.is_error

    @property
    def is_judged(self) -> bool:
        """True when the episode's success is known."""
        return self.score is not None

    @property
    def is_success(self) -> bool:
        """True when the task is fully solved."""
        return self.score is not None and self.score >= 1.0


def row_of(trajectory: Trajectory, *, env: str, seconds: float) -> EpisodeRow:
    """Return the numbers of an episode.

    Args:
        trajectory: The episode.
        env: Short name of its environment.
        seconds: Wall-clock time that it took.
    """
    return EpisodeRow(
        env=env,
        task_id=trajectory.task_id,
        attempt=trajectory.attempt,
        env_seed=trajectory.env_seed,
        policy_seed=trajectory.policy_seed,
        stop_reason=trajectory.stop_reason,
        score=trajectory.score,
        episode_return=trajectory.episode_return,
        turns=len(trajectory.turns),
        invalid_actions=sum(turn.invalid_action is not None for turn in trajectory.turns),
        prompt_tokens=_whole(_used(trajectory, "prompt_tokens"), _span_tokens(trajectory, False)),
        completion_tokens=_whole(
            _used(trajectory, "completion_tokens"), _span_tokens(trajectory, True)
        ),
        cost_usd=_used(trajectory, "cost_usd"),
        seconds=round(seconds, 4),
        error=trajectory.error,
    )


def _used(trajectory: Trajectory, name: str) -> float | None:
    """Return the sum of what the turns report; None when none does."""
    found = [turn.usage[name] for turn in trajectory.turns if name in turn.usage]
    return sum(found) if found else None


def _span_tokens(trajectory: Trajectory, sampled: bool) -> int | None:
    spans = trajectory.spans
    return sum(len(s.token_ids) for s in spans if s.sampled == sampled) if spans else None


def _whole(used: float | None, counted: int | None) -> int | None:
    return counted if used is None else round(used)


def write_rows(path: Path, rows: Sequence[EpisodeRow], plan: str = "") -> None:
    """Write rows to ``path``, replacing it only when all of them are written.

    Args:
        path: The file.
        rows: Its rows.
        plan: Which evaluation the rows are of.
    """
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(_header(plan))
        file.writelines(to_line(row) for row in rows)
    partial.replace(path)


def open_rows(path: Path, plan: str = "") -> IO[str]:
    """Return ``path`` opened to append rows of ``plan`` to; it gets its header if it is new."""
    file = path.open("a", encoding="utf-8")
    if file.tell() == 0:
        file.write(_header(plan))
        file.flush()
    return file


def to_line(row: EpisodeRow) -> str:
    """Return one row as one line of JSON, with its own checksum."""
    content = asdict(row)
    return json.dumps({**content, "crc": _checksum(content)}) + "\n"


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())


def read_rows(path: Path, plan: str = "") -> Iterator[EpisodeRow]:
    """Yield the rows of a file; of several with one key, all. A last half line is left out.

    Args:
        path: The file.
        plan: Which evaluation the rows must be of; any where it is empty.

    Raises:
        RecordError: The file is missing or something else, or a line is broken; the message names
            the file and the line.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            if number == 1:
                _check_header(content, plan)
            else:
                yield _row(content)
        except (ValueError, KeyError, TypeError) as error:
            advice = (
                "restore the file" if number == 1 else "delete the line to play its episode again"
            )
            raise RecordError(
                f"{path}:{number}: not a row of {FORMAT} ({error}); {advice}"
            ) from error


def _header(plan: str) -> str:
    mark = {"plan": plan} if plan else {}
    return json.dumps({"format": FORMAT, "version": FORMAT_VERSION, **mark}) + "\n"


def _check_header(content: Any, plan: str) -> None:
    if content["format"] != FORMAT or content["version"] > FORMAT_VERSION:
        raise ValueError(f"format {content['format']!r} version {content['version']}")
    if plan and content.get("plan", plan) != plan:
        raise ValueError("it is of another evaluation")


_FIELDS = frozenset(field.name for field in fields(EpisodeRow))


def _row(content: dict[str, Any]) -> EpisodeRow:
    if (checksum := content.pop("crc", None)) is not None and checksum != _checksum(content):
        raise ValueError("its checksum differs")
    known = {name: value for name, value in content.items() if name in _FIELDS}
    return EpisodeRow(**{**known, "stop_reason": StopReason(content["stop_reason"])})
