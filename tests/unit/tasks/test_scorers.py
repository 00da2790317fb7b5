"""Scorers give the values that are worked out by hand, alone and together."""

from __future__ import annotations

import pytest

from turngym.errors import ConfigError
from turngym.tasks.problem import JudgeResult
from turngym.tasks.scorers.answers import (
    F1,
    AnswerScorer,
    Exact,
    Numeric,
    Pattern,
    Schema,
    answered,
)
from turngym.tasks.scorers.combine import all_of, weighted
from turngym.tasks.scorers.files import FileState

SCHEMA = '{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}'


@pytest.mark.parametrize(
    ("scorer", "answer", "reference", "score"),
    [
        (Exact(), "the Eiffel  tower.", "Eiffel Tower", 1.0),
        (Exact(normalized=False), "eiffel tower", "Eiffel Tower", 0.0),
        (F1(), "a red car", "red bus", 0.5),
        (Numeric(), "1,200.0 km.", "1200", 1.0),
        (Numeric(), "1,2", "12", 0.0),  # elsewhere it is a decimal comma
        (Numeric(), "12,34,567", "1234567", 1.0),
        (Numeric(), "$ 12.50", "12.5", 1.0),
        (Numeric(), "-$12.50", "-12.5", 1.0),
        (Numeric(), "12.50 €", "12.5", 1.0),
        (Numeric(), "\u22125 μm", "-5", 1.0),
        (Numeric(), "**-12.50 km**", "-12.5", 1.0),
        (Numeric(), "`12`", "12", 1.0),
        (Numeric(), "5 Million", "5", 0.0),
        (Numeric(), "not 1200", "1200", 0.0),
        (Numeric(), "It is 1200", "1200", 0.0),
        (Numeric(), "1200 or 1300", "1200", 0.0),
        (Numeric(), "no number", "0", 0.0),
        (Numeric(relative=0.01), "-3.17", "-3.14", 1.0),
        (Numeric(absolute=0.01), "3.17", "3.14", 0.0),
        (Numeric(), "50%", "0.5", 1.0),
        (Numeric(), "50 %", "50 %", 1.0),
        (Numeric(), "1e3", "1000", 1.0),
        (Numeric(), "18446744073709551615", "18446744073709551616", 0.0),
        (Numeric(), "1e99999999999999999999", "1", 0.0),
        (Numeric(absolute=0.1), "1.1", "1", 1.0),  # 1.1 - 1 is more than 0.1 in floats
        (Pattern(), "Room 12b", r"room \d+[a-c]", 1.0),
        (Pattern(ignore_case=False), "Room 12b", r"room \d+[a-c]", 0.0),
        (Pattern(), "Room 12b, I think", r"room \d+[a-c]", 0.0),
        (Pattern(), "12b" + " " * 10_000 + "or 13b", r"1\db", 0.0),  # the whole of it counts
        (Schema(), '```json\n{"n": 3}\n```', SCHEMA, 1.0),
        (Schema(), '{"n": "3"}', SCHEMA, 0.0),
        (Schema(), '```\n{"n": 3}```', SCHEMA, 1.0),
        (Schema(), '{"n": 3}' + " " * 10_000 + "or 4", SCHEMA, 0.0),
        (Schema(), "{", SCHEMA, 0.0),
        (Schema(), "[" * 5_000, SCHEMA, 0.0),  # no fault of the judge, which would be no score
    ],
)
def test_an_answer_is_worth(scorer: AnswerScorer, answer: str, reference: str, score: float):
    assert scorer.score(answer, [reference]).score == pytest.approx(score)
    assert scorer.score(None, [reference]).score == scorer.score("  ", [reference]).score == 0


def test_the_best_reference_counts():
    assert Exact().score("b", ["a", "b"]).score == 1.0


class End:
    """A folder at the end of an episode."""

    answer = "42"

    def __init__(self, before: dict[str, bytes], now: dict[str, bytes]) -> None:
        self._before, self._now = before, now

    async def files(self) -> dict[str, bytes]:
        return self._now

    async def changes(self) -> dict[str, bytes | None]:
        paths = {*self._before, *self._now}
        return {p: self._now.get(p) for p in paths if self._now.get(p) != self._before.get(p)}


@pytest.mark.parametrize(
    ("now", "evidence"),
    [
        ({"a": b"1 \n", "keep": b"k"}, ""),
        ({"a": b"2", "keep": b"k"}, "a is not as wanted"),
        ({"a": b"1", "keep": b"k", "gone": b""}, "gone is not as wanted"),
        ({"a": b"1", "keep": b"x"}, "keep should not have changed"),
        ({"a": b"1", "keep": b"k", "logs/x": b"x"}, ""),
        ({"a": b"1", "keep": b"k", "more": b"x"}, "more should not have changed"),
    ],
)
async def test_files_are_as_wanted_and_nothing_else_was_touched(
    now: dict[str, bytes], evidence: str
):
    scorer = FileState(wanted={"a": "1", "gone": None}, free=("logs/",))
    found = await scorer(End({"keep": b"k", "gone": b"g"}, now))  # type: ignore[arg-type]
    assert (found.score, found.evidence) == (float(not evidence), evidence)


def _fixed(score: float):
    async def scorer(world: object) -> JudgeResult:
        return JudgeResult(score=score, evidence=f"is {score}")

    return scorer


async def test_the_lowest_of_all_counts_and_a_zero_ends_it():
    asked = []

    async def last(world: object) -> JudgeResult:
        asked.append(1)
        return JudgeResult(score=1.0)

    world = End({}, {})
    assert (await all_of(_fixed(1.0), _fixed(0.5), last)(world)).score == 0.5
    assert (await all_of(_fixed(0.0), last)(world)).evidence == "is 0.0"
    assert asked == [1]


async def test_weights_add_up_and_a_closed_gate_costs_everything():
    parts = {"form": (1.0, _fixed(1.0)), "work": (3.0, _fixed(0.5))}
    found = await weighted(parts)(End({}, {}))
    assert found.score == pytest.approx((1 * 1.0 + 3 * 0.5) / 4)
    assert found.parts == {"form": 1.0, "work": 0.5}
    assert found.evidence == "work: is 0.5"
    assert (await weighted(parts, gates=["form"])(End({}, {}))).score == pytest.approx(0.625)
    assert (await weighted(parts, gates=["work"])(End({}, {}))).score == 0.0
    with pytest.raises(ConfigError, match="gate 'x' is no part; parts: form, work"):
        weighted(parts, gates=["x"])
    with pytest.raises(ConfigError, match=r"part 'a' has the weight 0, wanted more than 0"):
        weighted({"a": (0, _fixed(1.0))})


async def test_an_answer_is_a_part_of_a_judge():
    assert (await answered(Numeric(), "42")(End({}, {}))).score == 1.0
    assert (await answered(Numeric(), "41")(End({}, {}))).score == 0.0
