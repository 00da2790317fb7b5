"""What a set of tasks holds: ids, problems that are the same, answers that are too often right."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from turngym.check_report import Broken, Doubtful, Evidence, NotRun
from turngym.tasks.base import SPLITS, Split
from turngym.tasks.check.library import plain_answer

_FEWEST = 3
"""Distinct problems that a split must have to teach or to measure anything."""
_ALIKE = 0.8
"""Share of equal triples of words from which two prompts with one answer count as one."""
_MIN_WORDS = 8
_RUN, _MOST_SHARED = 8, 0.5
"""Words that stand in a row, and the share of them that shows that a text holds a task."""
_Z = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a task begins, and what makes it this one."""

    id: str
    split: Split
    prompt: str
    key: str
    truth: str | None = None


def interval(successes: int, runs: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a rate of ``successes``; (0, 1) without runs."""
    if not runs:
        return 0.0, 1.0
    rate, spread = successes / runs, _Z * _Z / runs
    centre = (rate + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(rate * (1 - rate) / runs + spread / (4 * runs)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def ids_differ(openings: Sequence[Opening]) -> Evidence:
    """Refuse two tasks with one id.

    Raises:
        Broken: There are.
    """
    for id, count in Counter(one.id for one in openings).items():
        if count > 1:
            raise Broken(f"{count} tasks have the id {id!r}")
    return {"ids": len(openings)}


def splits_are_disjoint(openings: Sequence[Opening]) -> Evidence:
    """Refuse a problem that is in train and in test, however it is written.

    Raises:
        Broken: There is one.
        NotRun: Only one split has tasks.
    """
    train, test = (by_problem(one for one in openings if one.split == split) for split in SPLITS)
    if not train or not test:
        raise NotRun("only one split has tasks")
    for key in train.keys() & test.keys():
        raise Broken(f"{train[key][0].id} and {test[key][0].id} are the same problem")
    for one in (one[0] for one in test.values()):
        for other in (one[0] for one in train.values()):
            if are_alike(one, other):
                raise Broken(f"{other.id} and {one.id} differ in a few words only, with one answer",
                             train=other.prompt[:300], test=one.prompt[:300])  # fmt: skip
    return {"train": len(train), "test": len(test)}


def problems_are_distinct(openings: Sequence[Opening], *, is_endless: bool) -> Evidence:
    """Count the problems that a set really has, and refuse one that has hardly any.

    The number of those that were not met is estimated from how many were met once and twice (Chao
    1984): seen + once^2 / (2 * twice).

    Raises:
        Broken: It has.
    """
    found: dict[str, dict[str, float]] = {}
    for split in SPLITS:
        own = [one for one in openings if one.split == split]
        counts = Counter(len(same) for same in by_problem(own).values())
        seen, once, twice = sum(counts.values()), counts[1], counts[2]
        unseen = once * (once - 1) / 2 if not twice else once * once / (2 * twice)
        found[split] = {"tasks": len(own), "distinct": seen}
        if is_endless:
            found[split]["estimate"] = round(seen + unseen)
        doubled = [one for one in by_problem(own).values() if len(one) > 1]
        if doubled and not is_endless:
            raise Broken(f"{doubled[0][0].id} and {doubled[0][1].id} are the same problem", **found)
        if len(own) >= 2 * _FEWEST and seen < _FEWEST:
            raise Broken(f"{split}: {len(own)} tasks are {seen} different problems", **found)
    return found


def answers_vary(openings: Sequence[Opening]) -> Evidence:
    """Refuse a set in which one constant answer is mostly right.

    Raises:
        Broken: One is.
        Doubtful: One is for many.
        NotRun: Too few answers are known.
    """
    found: dict[str, object] = {}
    for split in SPLITS:
        same = by_problem(one for one in openings if one.split == split)
        truths = [plain_answer(one[0].truth) for one in same.values() if one[0].truth]
        if len(truths) < 2 * _FEWEST:
            continue
        [(answer, count)] = Counter(truths).most_common(1)
        found[split] = {"answer": answer[:80], "right": count, "of": len(truths)}
        if interval(count, len(truths))[0] >= 0.5:
            raise Broken(
                f"{split}: the answer {answer[:60]!r} is right for {count} of {len(truths)} "
                "problems", **found
            )  # fmt: skip
        if count * 2 >= len(truths):
            raise Doubtful(
                f"{split}: the answer {answer[:60]!r} is right for {count} of {len(truths)}",
                **found,
            )
    if not found:
        raise NotRun("fewer than six problems of a split have a known answer")
    return found


def not_in_corpus(
    openings: Sequence[Opening], corpus: Iterable[tuple[str, str]]
) -> dict[str, object]:
    """Refuse tasks that stand in a corpus, for example in what a model was trained on.

    Compared are runs of eight words. What means nothing is left out: how all prompts begin, and
    runs that more than half of the tasks have.

    Args:
        openings: How tasks begin.
        corpus: Where each text stands, and the text; read once, and not kept.

    Raises:
        Broken: Half of what a task alone says is in one text.
        NotRun: No task says eight words of its own.

    Source:
        Brown et al. 2020, arXiv:2005.14165, appendix C; Chowdhery et al. 2022, arXiv:2204.02311,
        section 8.
    """
    columns = zip(*(_words(one.prompt) for one in openings), strict=False)
    alike = takewhile(lambda column: len(openings) > 1 == len(set(column)), columns)
    begin = sum(1 for _ in alike)
    runs = {one.id: set(_runs(one.prompt, _RUN, begin)) for one in openings}
    times = Counter(run for own in runs.values() for run in own)
    most = max(1, len(runs) // 2)
    own = {id: {run for run in found if times[run] <= most} for id, found in runs.items()}
    own = {id: found for id, found in own.items() if found}
    if not own:
        raise NotRun(f"no task says {_RUN} words of its own, so nothing can be compared")
    wanted, worst, texts = set().union(*own.values()), ("", "", 0.0), 0
    for where, text in corpus:
        texts += 1
        met = wanted.intersection(_runs(text, _RUN))
        for id, found in own.items() if met else ():
            share = len(found & met) / len(found)
            if share > worst[2]:
                worst = (id, where, share)
    evidence: dict[str, object] = {"tasks": len(own), "texts": texts, "most": round(worst[2], 3)}
    if worst[2] >= _MOST_SHARED:
        raise Broken(f"{worst[2]:.0%} of what {worst[0]} says stands in {worst[1]}", **evidence)
    return evidence


def by_problem(openings: Iterable[Opening]) -> Mapping[str, list[Opening]]:
    """Return the openings by problem: by what makes it, letter case and punctuation aside."""
    found: dict[str, list[Opening]] = {}
    for one in openings:
        found.setdefault(" ".join(_words(one.key)), []).append(one)
    return found


def are_alike(one: Opening, other: Opening) -> bool:
    """Say whether two questions are one: the same answer, and nearly the same words."""
    if not one.truth or not other.truth or plain_answer(one.truth) != plain_answer(other.truth):
        return False
    left, right = (set(_runs(each.prompt, 3)) for each in (one, other))
    if min(len(left), len(right)) < _MIN_WORDS - 2:
        return False
    return len(left & right) >= _ALIKE * len(left | right)


def _runs(text: str, size: int, begin: int = 0) -> Iterable[tuple[str, ...]]:
    """Return every run of so many words, from word ``begin`` on."""
    words = _words(text)[begin:]
    return zip(*(words[start:] for start in range(size)), strict=False)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
