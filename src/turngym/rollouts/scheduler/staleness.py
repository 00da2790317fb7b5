"""How old tokens are when they are trained on, and which turns are young enough.

The lag of a token is the version of the weights that train on it minus the version that drew it.
A turn is as old as its oldest token. The tokens of a long episode that are too old are its head;
so its later turns can be trained while the head stays context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from turngym.rollouts.scheduler.config import StaleAction
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
