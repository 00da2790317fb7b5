"""Every exception of turngym.

    TurnGymError
    ├── ConfigError(ValueError)            fix the settings and start again
    │   ├── UnknownNameError(KeyError)     an id, key or preset that does not exist
    │   ├── MissingExtraError(ImportError) something optional is not installed
    │   └── SandboxRefused                 a sandbox cannot be made as safe as was asked
    ├── EpisodeError(RuntimeError)         drop this episode, keep the run
    │   ├── EnvironmentFault               the environment broke; never a reward of 0
    │   │   └── TaskFault                  the task's own code raised: set-up, judge or expert
    │   ├── PolicyFault                    the policy or its engine broke
    │   ├── SnapshotError                  a snapshot could not be taken or does not reproduce
    │   └── SandboxFault                   the sandbox broke, not the policy; no reward
    │       ├── SandboxUnavailable         it could not be started just now
    │       └── SandboxDied                it was running and is gone
    ├── SandboxFileError(OSError)          a path in a sandbox is not what was wanted
    │   └── SandboxFileTooLarge            there is more than the caller allowed
    ├── SandboxClosed(RuntimeError)        it was used after `close`
    ├── TrainingError(RuntimeError)        stop the run
    │   ├── CheckpointError                a checkpoint is broken or could not be written
    │   ├── EnginesLost                    no server that samples is left; the run can be resumed
    │   └── Interrupted                    somebody asked the run to stop; its state is saved
    ├── RecordError(ValueError)            a file of trajectories cannot be read
    └── CheckError(AssertionError)         a promise is broken, or could not be checked

Each class also inherits the built-in it refines, and survives pickling.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TurnGymError(Exception):
    """Base of all errors that turngym raises on purpose."""


class ConfigError(TurnGymError, ValueError):
    """The settings are wrong; the message says where and what to do."""


class UnknownNameError(ConfigError, KeyError):
    """A name that is not known; the message names the nearest one."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0]) if self.args else ""


class MissingExtraError(ConfigError, ImportError):
    """An optional part is not installed; the message holds the install line."""


class EpisodeError(TurnGymError, RuntimeError):
    """One episode cannot go on; others can."""


class EnvironmentFault(EpisodeError):
    """The environment or its infrastructure broke. The episode has no reward."""


class TaskFault(EnvironmentFault):
    """The task is broken: its set-up, judge or expert raised. The episode has no reward."""


class PolicyFault(EpisodeError):
    """The policy or its engine broke. The episode has no reward."""


class SnapshotError(EpisodeError):
    """A snapshot cannot be taken, or replaying it gave something else."""


class SandboxRefused(ConfigError):
    """No sandbox with the wanted guarantees can be made here; nothing was run.

    Args:
        reason: What is wanted and missing.
        evidence: What was seen that says so: a message of the kernel, a value read back.
        hint: What to install, allow or set instead.
    """

    def __init__(self, reason: str, evidence: str = "", hint: str = "") -> None:
        super().__init__(reason, evidence, hint)
        self.reason, self.evidence, self.hint = reason, evidence, hint

    def __str__(self) -> str:
        found = f" (found: {self.evidence})" if self.evidence else ""
        return f"{self.reason}{found}" + (f". {self.hint}" if self.hint else "")


class SandboxFault(EpisodeError):
    """The sandbox or its infrastructure broke. The episode has no reward."""


class SandboxUnavailable(SandboxFault):
    """A sandbox could not be started, for a reason that may pass."""


class SandboxDied(SandboxFault):
    """A running sandbox is gone, or no longer keeps to its protocol."""


class SandboxFileError(TurnGymError, OSError):
    """A path in a sandbox is missing, of another kind, or out of bounds."""


class SandboxFileTooLarge(SandboxFileError):
    """A file or tree holds more than the caller allowed; nothing is cut silently."""


class SandboxClosed(TurnGymError, RuntimeError):
    """A sandbox or pool was used after it was closed."""


class TrainingError(TurnGymError, RuntimeError):
    """The run cannot go on."""


class CheckpointError(TrainingError):
    """A checkpoint is unreadable, or could not be written (the previous one is intact)."""


class EnginesLost(TrainingError):
    """No server that samples tokens is left; the same command resumes the run."""

    exit_code = 4
    """What the program reports, so that a launcher may start engines and try again."""


class Interrupted(TrainingError):
    """Somebody asked the run to stop; its state is saved and it can be resumed."""

    exit_code = 130
    """What a shell reports for a program that was interrupted."""


class SecondSignal(KeyboardInterrupt):
    """The user asked again for an end, and gets it on the spot; no error of ours, and no fault."""


class RecordError(TurnGymError, ValueError):
    """A trajectory file is unreadable or of a newer format."""


class CheckError(TurnGymError, AssertionError):
    """A check that we ship found a broken promise, or a required one could not run."""


def unknown_name(kind: str, name: str, known: Iterable[str], *, hint: str = "") -> UnknownNameError:
    """Return the error for a name that is not among ``known``, with the nearest match.

    Args:
        kind: What the name stands for, for example ``"environment"``.
        name: What was asked for.
        known: What exists.
        hint: Shown instead of a list of names when nothing is near.
    """
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.5)
    if near:
        return UnknownNameError(f"unknown {kind} {name!r}. Did you mean {lowered[near[0]]!r}?")
    return UnknownNameError(f"unknown {kind} {name!r}. {hint or 'Known: ' + ', '.join(names)}")


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse a ``name`` for a ``kind`` of thing that is none of the ``known``.

    Raises:
        UnknownNameError: It is not.
    """
    if name not in known:
        raise unknown_name(kind, name, known)


def missing_extra(what: str, extra: str) -> MissingExtraError:
    """Return the error, install line included, for ``what`` needs the missing ``extra``."""
    return MissingExtraError(f"{what} needs the extra {extra!r}: pip install 'turngym[{extra}]'")


def missing_package(what: str, package: str) -> MissingExtraError:
    """Return the error for ``what`` needs a missing ``package`` that no extra brings."""
    return MissingExtraError(f"{what} needs {package}: pip install '{package}'")
