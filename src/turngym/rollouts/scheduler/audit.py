"""Reads a ledger and proves its account: every episode used once or dropped, every token placed."""

from __future__ import annotations

import sqlite3
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turngym.errors import RecordError
from turngym.records import Manifest
from turngym.rollouts.scheduler.ledger import (
    LEDGER_FILE,
    PART_FOLDER,
    SHARE,
    check_format,
    read_meta,
)
from turngym.rollouts.scheduler.ledger_files import log_damage, log_of, open_reading
from turngym.rollouts.scheduler.packing import unpack_turn

_MOST_PROBLEMS = 20
_OTHERS = "SELECT COUNT(*) FROM groups WHERE id % ?2 <> ?1"
_TRIES = """
SELECT COALESCE(a.outcome, CASE WHEN s.retry > a.retry THEN 'resumed' ELSE 'running' END), COUNT(*)
FROM tries a JOIN samples s USING (grp, member) GROUP BY 1"""
"""A try that a killed process left is resumed as another one."""
_USED_STATES = ("applied", "checkpointed")
TOKEN_PLACES = ("trained", "masked", "dropped", "retried", "lost", "open")


@dataclass(slots=True)
class AuditReport:
    """What a ledger says, and what is wrong with it."""

    path: Path
    lineages: int = 0
    """Processes that were killed or stopped and resumed."""
    steps: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    episodes: Counter[str] = field(default_factory=Counter)
    """Episodes by state."""
    drops: Counter[str] = field(default_factory=Counter)
    """Dropped episodes by reason."""
    tries: Counter[str] = field(default_factory=Counter)
    """Tries by how they ended."""
    generated: int = 0
    """Sampled tokens of all finished actions, counted from the packed turns that are there."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Where they went, by ``TOKEN_PLACES``."""
    dropped_tokens: Counter[str] = field(default_factory=Counter)
    """Dropped tokens by reason."""
    problems: list[str] = field(default_factory=list)
    num_problems: int = 0
    share: str = "0/1"
    """Number of the coordinator whose ledger it is, and how many there are."""
    parts: tuple[Path, ...] = ()
    """The ledgers that were added up, where there are several."""

    @property
    def is_clean(self) -> bool:
        """Whether the account is right."""
        return self.num_problems == 0

    @property
    def equation(self) -> str:
        """The equation of tokens, with its numbers."""
        parts = " + ".join(f"{self.tokens[place]} {place}" for place in TOKEN_PLACES)
        return f"{self.generated} generated = {parts}"

    def add(self, part: AuditReport) -> None:
        """Add what another ledger of the same run says; updates are in every one of them."""
        self.parts += (part.path,)
        self.lineages = max(self.lineages, part.lineages)
        self.steps |= part.steps
        for name in ("groups", "episodes", "drops", "tries", "tokens", "dropped_tokens"):
            getattr(self, name).update(getattr(part, name))
        self.generated += part.generated
        for problem in part.problems:
            self.blame(f"{part.path.parent.name}: {problem}")
        self.num_problems += part.num_problems - len(part.problems)

    def blame(self, problem: str) -> None:
        """Note something that is wrong."""
        self.num_problems += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "ledger": str(self.path),
            **({"ledgers": [str(path) for path in self.parts]} if self.parts else {}),
            "clean": self.is_clean,
            "lineages": self.lineages,
            "steps": dict(self.steps),
            "groups": dict(self.groups),
            "episodes": dict(self.episodes),
            "drops": dict(self.drops),
            "tries": dict(self.tries),
            "tokens": {"generated": self.generated, **{p: self.tokens[p] for p in TOKEN_PLACES}},
            "dropped_tokens": dict(self.dropped_tokens),
            "num_problems": self.num_problems,
            "problems": self.problems,
        }


def find_ledgers(run: Path) -> list[Path]:
    """Return the ledger of a run folder, or those of its coordinators; or the file ``run`` itself.

    Raises:
        RecordError: There is none.
    """
    path = run / LEDGER_FILE if run.is_dir() else run
    if path.is_file():
        return [path]
    if parts := sorted(run.glob(f"{PART_FOLDER}*"), key=lambda folder: (len(folder.name), folder)):
        return [path for part in parts for path in find_ledgers(part)]
    Manifest(path.parent).check(path)
    if not run.exists():
        raise RecordError(f"{run}: there is no such folder or file")
    raise RecordError(
        f"{run}: holds no {LEDGER_FILE}; only runs that play ahead of the trainer keep one"
    )


def audit(run: Path) -> AuditReport:
    """Check every promise of the ledger of ``run`` from its rows alone; of several, of all of them.

    - The packed turns are whole: their checksum holds, and they hold as many sampled tokens as
      their row says. Only those are gone that no checkpoint of the run needs.
      Turns of a try are numbered without a gap; no try is newer than its episode's.
    - Every episode that an update used is in one update, turn by turn; episodes counted as used are
      used, others are not; dropped ones have a reason. Updates are numbered without a gap.
    - Tokens: generated = trained + masked + dropped + retried + lost + open, where ``open`` belongs
      to episodes whose fate is not decided.
    - Of several ledgers none is missing, and each has groups of its own.

    Raises:
        RecordError: There is no ledger, or the file is something else.
    """
    paths = find_ledgers(run)
    if len(paths) == 1 and paths[0].parent == (run if run.is_dir() else run.parent):
        return _audit_file(paths[0])
    whole = AuditReport(run)
    for number, path in enumerate(paths):
        part = _audit_file(path)
        whole.add(part)
        if part.share != (wanted := f"{number}/{len(paths)}"):
            whole.blame(f"{path.parent.name}: is ledger {part.share}, wanted {wanted}")
    return whole


def _audit_file(path: Path) -> AuditReport:
    try:
        with closing(open_reading(path)) as db:
            check_format(db, path)
            db.execute("BEGIN")  # one moment of a run that may go on
            report = _audit(db, AuditReport(path))
            _check_files(report)
            return report
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{path}: is not a readable ledger ({error})") from error


def _check_files(report: AuditReport) -> None:
    """Compare the files with their digests, where the folder has some."""
    manifest = Manifest(report.path.parent)
    for found in (
        manifest.damage(report.path),
        manifest.damage(log_of(report.path)),
        log_damage(report.path),
    ):
        if found is not None:
            report.blame(found)


def _audit(db: sqlite3.Connection, report: AuditReport) -> AuditReport:
    report.share = read_meta(db, SHARE, report.share)
    others = db.execute(_OTHERS, [int(part) for part in report.share.split("/")]).fetchone()[0]
    if others:
        report.blame(f"{others} groups are of other coordinators than {report.share}")
    report.lineages = int(read_meta(db, "lineage", "0")) + 1
    report.steps = _counted(db, "SELECT state, COUNT(*) FROM steps GROUP BY 1")
    report.groups = _counted(db, "SELECT state, COUNT(*) FROM groups GROUP BY 1")
    report.episodes = _counted(db, "SELECT state, COUNT(*) FROM samples GROUP BY 1")
    query = "SELECT reason, COUNT(*) FROM samples WHERE state = 'dropped' GROUP BY 1"
    report.drops = _counted(db, query)
    report.tries = _counted(db, _TRIES)
    steps = [step for (step,) in db.execute("SELECT step FROM steps ORDER BY step")]
    if steps and steps != list(range(steps[0], steps[0] + len(steps))):
        report.blame(f"updates are not numbered without a gap: {steps[:10]} ...")
    _check_uses(db, report)
    for text, query in _WRONG.items():
        for row in db.execute(query):
            report.blame(text.format(*row))
    _check_turns(db, report)
    if report.generated != report.tokens.total():
        report.blame(f"tokens do not add up: {report.equation}")
    return report


def _counted(db: sqlite3.Connection, query: str) -> Counter[str]:
    return Counter({str(name): count for name, count in db.execute(query)})


def _check_uses(db: sqlite3.Connection, report: AuditReport) -> None:
    """Check that no turn is trained on twice."""
    last: dict[tuple[int, int, int], tuple[int, int]] = {}
    rows = db.execute(
        "SELECT grp, member, retry, first, last, step FROM uses WHERE kind <> 'replay' "
        "ORDER BY grp, member, retry, first, step"
    )
    for grp, member, retry, first, end, step in rows:
        key = (grp, member, retry)  # another try has other turns
        before = last.get(key)
        if before is not None and first < before[0] and first < end:
            report.blame(
                f"episode {grp}.{member}: turn {first} is trained on in updates {before[1]} "
                f"and {step}"
            )
        last[key] = (end, step)


_WRONG = {
    "update {} was never applied, but later ones were": """
        SELECT step FROM steps WHERE state = 'reserved' AND step < (SELECT MAX(step) FROM steps)
        AND step < (SELECT COALESCE(MAX(step), 0) FROM steps WHERE state <> 'reserved')""",
    "episode {}.{} was consumed by {} updates": """
        SELECT grp, member, COUNT(*) FROM uses WHERE kind IN ('group', 'late') GROUP BY 1, 2
        HAVING COUNT(*) > 1""",
    "episode {}.{} counts as used, but no update has it": """
        SELECT grp, member FROM samples s WHERE state IN ('reserved', 'applied', 'checkpointed')
        AND NOT EXISTS (SELECT 1 FROM uses u WHERE u.grp = s.grp AND u.member = s.member
                        AND u.kind IN ('group', 'late'))""",
    "episode {}.{} is in an update, but its state is {!r}": """
        SELECT s.grp, s.member, s.state FROM samples s JOIN uses u USING (grp, member)
        WHERE u.kind IN ('group', 'late')
        AND s.state NOT IN ('reserved', 'applied', 'checkpointed')""",
    "episode {}.{} was dropped without a reason": """
        SELECT grp, member FROM samples WHERE state = 'dropped' AND COALESCE(reason, '') = ''""",
    "episode {}.{} is ahead of update {}, which has it": """
        SELECT s.grp, s.member, u.step FROM samples s JOIN uses u USING (grp, member)
        JOIN steps t USING (step) WHERE u.kind IN ('group', 'late') AND
        ((s.state = 'applied' AND t.state = 'reserved') OR
         (s.state = 'checkpointed' AND t.state <> 'checkpointed'))""",
    "episode {}.{} was trained on although it ended by {}": """
        SELECT u.grp, u.member, COALESCE(a.outcome, 'nothing') FROM uses u
        JOIN tries a USING (grp, member, retry) WHERE u.kind IN ('group', 'late')
        AND (a.outcome IS NULL OR a.outcome LIKE 'error_%')""",
    "episode {}.{}: try {} began without shutting out others": """
        SELECT a.grp, a.member, a.retry FROM tries a JOIN samples s USING (grp, member)
        WHERE a.retry > s.retry""",
    "episode {}.{} may be trained on, but turns of it are gone": """
        SELECT DISTINCT grp, member FROM turns JOIN samples s USING (grp, member)
        WHERE length(packed) = 0 AND s.state NOT IN ('checkpointed', 'dropped')""",
}
"""What is said of each row that there must not be, and how such rows are found."""


def _check_turns(db: sqlite3.Connection, report: AuditReport) -> None:
    """Check every packed turn and place its tokens."""
    states: dict[tuple[int, int], tuple[int, str, str]] = {
        (grp, member): (retry, state, reason or "")
        for grp, member, retry, state, reason in db.execute(
            "SELECT grp, member, retry, state, reason FROM samples"
        )
    }
    outcomes: dict[tuple[int, int, int], str] = {}
    for grp, member, retry, outcome, loose in db.execute(
        "SELECT grp, member, retry, outcome, uncommitted_tokens FROM tries"
    ):
        outcomes[grp, member, retry] = outcome or "running"
        report.generated += loose
        place = _place_of_try(states[grp, member], retry, outcome or "running")
        reason = states[grp, member][2]
        if outcome is None:  # stopped by the end of a process
            place = "lost"
        elif place == "trained":  # an episode that was cut off by its own limit
            place, reason = "dropped", "cut_off"
        if place == "dropped" and loose:
            report.dropped_tokens[reason] += loose
        report.tokens[place] += loose
    used = _used_turns(db)
    expected: dict[tuple[int, int, int], int] = {}
    for grp, member, retry, turn, tokens, crc, packed in db.execute(
        "SELECT grp, member, retry, turn, tokens, crc, packed FROM turns "
        "ORDER BY grp, member, retry, turn"
    ):
        key = (grp, member, retry)
        if turn != expected.get(key, 0):
            report.blame(f"episode {grp}.{member}, try {retry}: no turn before turn {turn}")
        expected[key] = turn + 1
        sampled = tokens
        if packed:
            where = f"{grp}.{member}, try {retry}, turn {turn}"
            sampled = _checked_tokens(packed, crc, where, report)
        if sampled != tokens:
            report.blame(
                f"episode {grp}.{member}: turn {turn} holds {sampled} tokens, not {tokens}"
            )
        report.generated += sampled
        state = states[grp, member]
        place = _place_of_try(state, retry, outcomes.get(key, "running"))
        if any(first <= turn < end for first, end in used.get(key, ())):
            place = "trained"
        elif place == "trained":
            place = "masked"
        report.tokens[place] += tokens
        if place == "dropped":
            report.dropped_tokens[state[2]] += tokens


def _checked_tokens(packed: bytes, crc: int, where: str, report: AuditReport) -> int:
    if zlib.crc32(packed) != crc:
        report.blame(f"episode {where}: the packed turn is damaged")
    try:
        return unpack_turn(packed).num_sampled_tokens
    except RecordError as error:
        report.blame(f"episode {where}: {error}")
        return 0


def _used_turns(db: sqlite3.Connection) -> Mapping[tuple[int, int, int], list[tuple[int, int]]]:
    used: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for grp, member, retry, first, last in db.execute(
        "SELECT grp, member, retry, first, last FROM uses WHERE kind <> 'replay'"
    ):
        used.setdefault((grp, member, retry), []).append((first, last))
    return used


def _place_of_try(sample: tuple[int, str, str], retry: int, outcome: str) -> str:
    """Return where the tokens of a try went, those that no update used."""
    newest, state, _ = sample
    ended_badly = outcome.startswith("error") or outcome in ("cannot_replay", "preempted")
    if retry < newest or (state == "running" and ended_badly):
        return "lost" if outcome in ("running", "cannot_replay") else "retried"
    if state in _USED_STATES or state == "reserved":
        return "trained"
    return "dropped" if state == "dropped" else "open"
