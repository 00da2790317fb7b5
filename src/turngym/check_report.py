"""What a check found: named results, each a pass, a fail, or not run with the reason.

Shared by the checks of environments, tasks and sandboxes. A check is a function that raises
``Broken`` when a promise is broken, ``Doubtful`` when something should be looked at, and ``NotRun``
when it cannot be known. Each of them, and what the function returns, may carry evidence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from turngym.errors import CheckError
from turngym.faults import cancellations, describe, is_asked

Status = Literal["pass", "warn", "fail", "not-run"]
Evidence = Mapping[str, Any]
"""What was seen, as JSON values."""


class Finding(Exception):
    """What a check found: a message, and what was seen."""

    status: Status = "fail"

    def __init__(self, reason: str, **evidence: Any) -> None:
        super().__init__(reason)
        self.evidence: Evidence = evidence


class Broken(Finding):
    """A promise is broken; the message says which and where."""


class Doubtful(Finding):
    """No promise is broken, but somebody should look; the message says at what."""

    status = "warn"


class NotRun(Finding):
    """The check cannot be carried out here; the message says why."""

    status = "not-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The outcome of one check."""

    name: str
    status: Status
    reason: str = ""
    """What was found, or why it did not run; empty for a pass."""
    required: bool = True
    """A required check that did not run counts as a failure."""
    evidence: Evidence = field(default_factory=dict, hash=False)
    seconds: float = 0.0

    @property
    def is_failure(self) -> bool:
        """True for a fail, and for a required check that did not run."""
        return self.status == "fail" or (self.status == "not-run" and self.required)

    def __str__(self) -> str:
        note = " (optional)" if self.status == "not-run" and not self.required else ""
        return f"{self.status:8}{self.name}{note}" + (f": {self.reason}" if self.reason else "")


@dataclass(slots=True)
class CheckReport:
    """All results for one subject, in the order in which the checks ran."""

    subject: str
    results: list[CheckResult] = field(default_factory=list)

    def run(
        self, name: str, check: Callable[[], Evidence | None], *, required: bool = True
    ) -> bool:
        """Carry out ``check``, ``required`` or not, note its result and return whether it passed.

        What it raises beyond a ``Finding`` is a failure too, exits included: it comes from what is
        being checked. The user's Ctrl-C passes.
        """
        result = CheckResult(name=name, status="pass", required=required)
        started, asked = time.perf_counter(), cancellations()
        try:
            result = replace(result, evidence=check() or {})
        except Finding as finding:
            result = replace(
                result, status=finding.status, reason=str(finding), evidence=finding.evidence
            )
        except BaseException as error:  # whatever the subject raises is a finding
            if is_asked(error, since=asked):
                raise
            result = replace(result, status="fail", reason=f"raised {describe(error)}")
        self.results.append(replace(result, seconds=time.perf_counter() - started))
        return result.status == "pass"

    @property
    def failures(self) -> list[CheckResult]:
        """The results that count as failures."""
        return [result for result in self.results if result.is_failure]

    @property
    def is_ok(self) -> bool:
        """True when something was checked and nothing failed."""
        return bool(self.results) and not self.failures

    def raise_on_failure(self) -> None:
        """Raise when a promise is broken or a required check did not run.

        Raises:
            CheckError: With one line per failure.
        """
        if not self.is_ok:
            lines = [str(result) for result in self.failures] or ["nothing was checked"]
            raise CheckError("\n  ".join([f"{self.subject}:", *lines]))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        found = [{**asdict(one), "seconds": round(one.seconds, 3)} for one in self.results]
        for row in found:
            if not row["evidence"]:
                del row["evidence"]
        return {"subject": self.subject, "ok": self.is_ok, "results": found}

    def __str__(self) -> str:
        return "\n  ".join([f"{self.subject}:", *map(str, self.results)])
