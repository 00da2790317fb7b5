"""Scorers of a folder: the files in it, and what commands say that the judge runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turngym.tasks.problem import FileWorld, JudgeResult


def passed(ok: bool, evidence: str) -> JudgeResult:
    """Return 1 where ``ok``, else 0, with the ``evidence``."""
    return JudgeResult(score=float(ok), evidence="" if ok else evidence)


@dataclass(frozen=True, kw_only=True)
class FileState:
    """Files are as wanted, and no other was changed."""

    wanted: Mapping[str, str | None] = field(default_factory=dict)
    """Files as they must be in the end, blanks at the ends of lines aside; None: gone."""
    free: tuple[str, ...] = ()
    """Beginnings of paths that may change as they like; all else must stay as it was."""

    async def __call__(self, world: FileWorld) -> JudgeResult:
        found = await world.files()
        for path, wanted in self.wanted.items():
            if not same_text(found.get(path), wanted):
                return passed(False, f"{path} is not as wanted")
        for path in sorted(await world.changes()):
            if path not in self.wanted and not path.startswith(self.free):
                return passed(False, f"{path} should not have changed")
        return passed(True, "")


@dataclass(frozen=True, kw_only=True)
class Output:
    """A command says what is expected, blanks at both ends aside."""

    command: str
    expected: str
    timeout_s: float = 30.0

    async def __call__(self, world: FileWorld) -> JudgeResult:
        ran = await world.run(self.command, timeout_s=self.timeout_s)
        is_right = ran.output.strip() == self.expected.strip()
        return passed(is_right, "what was asked for does not work")


def same_text(found: bytes | None, wanted: str | None) -> bool:
    """Say whether ``found`` is as wanted, blanks at the ends of lines and of the file aside."""
    if found is None or wanted is None:
        return (found is None) == (wanted is None)
    return _plain(found.decode("utf-8", "replace")) == _plain(wanted)


def _plain(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
