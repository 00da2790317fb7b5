"""When a group may begin, which finished groups a step takes, and which turns are young enough.

Pure decisions: the scheduler asks, and keeps the counts in ``SchedulerLoad``. Nothing here waits,
samples or remembers.

The lag of a token is the version of the weights that train on it minus the version that sampled it.
A turn is as old as its oldest token. The tokens of a long episode that are too old are its head;
so its later turns can be trained while the head stays context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from turngym.rollouts.scheduler.config import (
    Capacity,
    InOrder,
    ReadyFirst,
    SchedulerConfig,
    StaleAction,
    Windowed,
)
from turngym.types import Turn


def turn_version(turn: Turn, otherwise: int) -> int:
    """Return the version of the oldest token that was sampled in ``turn``.

    Args:
        turn: One turn.
        otherwise: For a turn without sampled tokens: the version when it was played.
    """
    sampled = [span.policy_version for span in turn.spans if span.policy_version is not None]
    return min(sampled, default=otherwise)


def trained_turns(
    versions: Sequence[int], *, start: int, step: int, bound: int | None, action: StaleAction
) -> range:
    """Return the turns of an episode that ``step`` may train on; perhaps none.

    Args:
        versions: Version of each turn, shape [number of turns].
        start: First turn that is not context or trained already.
        step: Version of the weights that train.
        bound: Most versions of lag; None for no bound.
        action: What is done about stale turns: ``drop`` leaves nothing of the episode, all others
            leave what follows the last stale turn.
    """
    last = len(versions)
    if bound is None:
        return range(start, last)
    # Behind the last stale turn and not before the first young one: replicas that load new weights
    # at different times can sample a younger turn before an older one.
    stale = [turn for turn in range(start, last) if step - versions[turn] > bound]
    if not stale:
        return range(start, last)
    return range(last, last) if action == "drop" else range(stale[-1] + 1, last)


def partial_end(versions: Sequence[int], *, start: int, version: int, bound: int) -> int:
    """Return the end of the turns that must be trained at ``version`` or never.

    Those are the turns from ``start`` on that are ``bound`` versions old now; the first of them
    that is younger can wait. Returns ``start`` when there are none.
    """
    end = start
    for turn in range(start, len(versions)):
        if version - versions[turn] == bound:
            end = turn + 1
    return end


@dataclass(slots=True)
class LagCounts:
    """Histograms of lag in versions, by the three definitions that are in use."""

    tokens: Counter[int] = field(default_factory=Counter)
    """Of each trained token: what the bound is about."""
    start_version: Counter[int] = field(default_factory=Counter)
    """Of each episode: since it began."""
    oldest: Counter[int] = field(default_factory=Counter)
    """Of each episode: of its oldest trained token."""
    newest: Counter[int] = field(default_factory=Counter)
    """Of each episode: of its newest trained token."""

    def add(self, turns: Iterable[Turn], *, step: int, start_version: int) -> None:
        """Count the trained ``turns`` of one episode."""
        seen = Counter[int]()
        for turn in turns:
            for span in turn.spans:
                if span.policy_version is not None:
                    seen[step - span.policy_version] += len(span.token_ids)
        self.start_version[step - start_version] += 1
        if seen:
            self.tokens.update(seen)
            self.oldest[max(seen)] += 1
            self.newest[min(seen)] += 1

    def metrics(self) -> dict[str, float]:
        """Return means, maxima and the share of tokens at each lag."""
        found: dict[str, float] = {}
        for name in ("tokens", "start_version", "oldest", "newest"):
            counts: Counter[int] = getattr(self, name)
            total = counts.total()
            if total:
                found[f"lag/{name}_mean"] = sum(k * n for k, n in counts.items()) / total
                found[f"lag/{name}_max"] = float(max(counts))
        total = self.tokens.total()
        for lag, count in sorted(self.tokens.items()):
            found[f"lag/tokens_at_{lag}"] = count / total
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLoad:
    """What there is at one moment, in groups."""

    version: int
    """Version of the newest weights."""
    running: int
    """Begun and not closed."""
    ready: int
    """Closed, kept and not yet taken."""
    taken: int
    """Taken for the step of this version, whose update is not published yet."""
    targets: Mapping[int, int] = field(default_factory=dict)
    """Groups that live (running, ready or taken) for each step, where they are stamped."""

    @property
    def held(self) -> int:
        """Groups that occupy the buffer."""
        return self.running + self.ready


@dataclass(frozen=True, slots=True)
class Admitted:
    """Leave to begin one group."""

    target: int | None = None
    """The step that it is for, where the policy stamps groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A closed group as selection sees it."""

    index: int
    """Order in which groups began."""
    closed: int
    """Order in which groups closed."""
    start_version: int
    """Version when it began."""
    target: int | None


class Admission:
    """Begins what can be consumed within the bound, and takes what closed first (``ready_first``).

    Base class of the other rules.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.staleness = config.admission.staleness
        self.batch = config.groups_started
        self.buffer = config.buffer

    def admit(self, load: SchedulerLoad) -> Admitted | None:
        """Return leave to begin one more group, or None: wait for an event."""
        return self._admit(load) if load.held < self.buffer else None

    def select(
        self, ready: Sequence[Candidate], version: int, groups: int
    ) -> tuple[Candidate, ...] | None:
        """Return the ``groups`` groups that the step of ``version`` trains on.

        None when there are not enough of them yet.
        """
        if len(ready) < groups:
            return None
        # In the order in which they began: a batch does not depend on which group closed first.
        chosen = sorted(ready, key=self._rank)[:groups]
        return tuple(sorted(chosen, key=lambda c: c.index))

    def expired(self, candidate: Candidate, version: int) -> bool:
        """Return whether ``candidate`` can be selected no more from ``version`` on."""
        return False

    def _admit(self, load: SchedulerLoad) -> Admitted | None:
        # What is taken counts until its update is published: only then the version moves on.
        is_in_pace = load.held + load.taken < (self.staleness + 1) * self.batch
        return Admitted() if is_in_pace else None

    def _rank(self, candidate: Candidate) -> int:
        """Return by what groups are taken, the lowest first."""
        return candidate.closed


class InOrderAdmission(Admission):
    """Groups are stamped with the first step that lacks one, and a step takes its own."""

    def _admit(self, load: SchedulerLoad) -> Admitted | None:
        # Once a step has taken its groups, more of its own would come too late.
        first = load.version + (1 if load.taken else 0)
        for target in range(first, load.version + self.staleness + 1):
            if load.targets.get(target, 0) < self.batch:
                return Admitted(target)
        return None

    def select(
        self, ready: Sequence[Candidate], version: int, groups: int
    ) -> tuple[Candidate, ...] | None:
        """Return the first ``groups`` of the step's own groups that closed, in order of begin."""
        return super().select([c for c in ready if c.target == version], version, groups)

    def expired(self, candidate: Candidate, version: int) -> bool:
        """Return whether the step that it was for is over."""
        return candidate.target is not None and candidate.target < version


class WindowedAdmission(Admission):
    """A step takes what is ready and young enough; the buffer alone limits what begins."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        assert isinstance(config.admission, Windowed)
        self.pace = config.admission.pace
        self.sign = -1 if config.admission.freshest else 1

    def _admit(self, load: SchedulerLoad) -> Admitted | None:
        return super()._admit(load) if self.pace else Admitted()

    def _rank(self, candidate: Candidate) -> int:
        # What is older than the window was evicted when the version changed.
        return self.sign * candidate.closed

    def expired(self, candidate: Candidate, version: int) -> bool:
        """Return whether it was begun before the window."""
        return candidate.start_version < version - self.staleness


class CapacityAdmission(Admission):
    """The oldest are taken first.

    Every version so far consumed one batch, so what may begin in all, ``(staleness + version + 1) *
    batch``, leaves as much room as the bound of the base class.
    """

    def _rank(self, candidate: Candidate) -> int:
        return candidate.index


def make_admission(config: SchedulerConfig) -> Admission:
    """Return the rule that ``config`` names."""
    kinds = {
        InOrder: InOrderAdmission, ReadyFirst: Admission,
        Windowed: WindowedAdmission, Capacity: CapacityAdmission,
    }  # fmt: skip
    return kinds[type(config.admission)](config)
