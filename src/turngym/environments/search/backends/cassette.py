"""Answers of a live engine on disk: recorded once, replayed without a network."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from turngym.errors import ConfigError, EnvironmentFault, unknown_name

CassetteMode = Literal["record", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine answered. Request headers, which may hold a key, are never kept."""

    status: int
    content_type: str
    body: str


class Cassette:
    """A file of JSON lines, one request and its answer each.

    Args:
        path: The file; made by the first recording.
        mode: ``"record"`` asks the engine what is not known yet, and keeps the answer; so it is a
            cache too. ``"replay"`` never asks.

    Raises:
        ConfigError: The file is broken, or missing where it shall be replayed.
    """

    def __init__(self, path: Path, mode: CassetteMode = "record") -> None:
        if mode not in ("record", "replay"):
            raise unknown_name("cassette mode", mode, ("record", "replay"))
        self._path, self._mode = path, mode
        self._lock = Lock()
        self._known: dict[str, Answer] = {}
        if path.exists():
            self._read()
        elif mode == "replay":
            raise ConfigError(f"cassette {path}: there is no such file to replay; record one first")

    def find(self, request: Mapping[str, str]) -> Answer | None:
        """Return the answer to ``request``; None when the engine should be asked.

        Raises:
            EnvironmentFault: It is not there and nothing may be asked.
        """
        key = _key(request)
        with self._lock:
            found = self._known.get(key)
        if found is None and self._mode == "replay":
            raise EnvironmentFault(f"cassette {self._path}: no recording of {key[:200]}")
        return found

    def keep(self, request: Mapping[str, str], answer: Answer) -> None:
        """Record an answer. Several processes may record into one file."""
        key = _key(request)
        line = json.dumps({"request": dict(request), **asdict(answer)}, ensure_ascii=False)
        with self._lock:
            self._known[key] = answer
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(line.encode(errors="replace") + b"\n")

    def _read(self) -> None:
        for number, line in enumerate(self._path.read_text("utf-8").splitlines(), start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
                request = value.pop("request")
                self._known[_key(request)] = Answer(**value)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ConfigError(f"{self._path}:{number}: not a recording ({error!r})") from error


def _key(request: Mapping[str, str]) -> str:
    return json.dumps(dict(request), sort_keys=True, ensure_ascii=False)
