"""What every search task promises: an expert finds the answer, one search does not."""

from __future__ import annotations

import re

import pytest

import turngym
from turngym import registry
from turngym.agents.scripted import ExpertPolicy, NoopPolicy, RandomPolicy
from turngym.agents.search_baselines import best_guess, closed_book, single_search
from turngym.environments.core.spaces import info_problems
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.types import StopReason

WORLDS = [entry for entry in registry.match("search/*") if entry.entry_point.endswith(":WorldEnv")]
HELD_OUT = 16

each_world = pytest.mark.parametrize("entry", WORLDS, ids=[entry.short_name for entry in WORLDS])


async def _play(entry, policy, *, episodes=HELD_OUT, **kwargs):
    task = turngym.make(entry.id).get_wrapper_attr("task")
    specs = [
        spec
        for index in range(episodes)
        for spec in group_specs(entry.id, task("test", index), seed=7, group_size=1)
    ]
    return await collect(lambda: turngym.make(entry.id, **kwargs), policy, specs, concurrency=8)


def _successes(played) -> int:
    assert not any(t.stop_reason.is_error for t in played), [t.error for t in played]
    return sum(t.is_success for t in played)


@each_world
async def test_the_expert_answers_every_held_out_question(entry):
    played = await _play(entry, ExpertPolicy())
    assert _successes(played) == HELD_OUT
    assert all(turn.invalid_action is None for t in played for turn in t.turns)


@each_world
async def test_chance_knows_next_to_nothing(entry):
    played = await _play(entry, RandomPolicy())
    assert _successes(played) <= HELD_OUT // 5
    assert all(turn.invalid_action is None for t in played for turn in t.turns)


@each_world
async def test_neither_one_search_nor_none_is_enough(entry):
    hops = re.search(r"[234]hop", entry.short_name)
    most = 1 if hops else 0.35 * HELD_OUT
    assert _successes(await _play(entry, closed_book)) <= (0 if hops else 0.5 * HELD_OUT)
    if "1hop" not in entry.short_name:
        assert _successes(await _play(entry, single_search)) <= most


async def test_one_search_is_enough_where_one_document_is():
    entry = registry.find("search/world-1hop")
    assert _successes(await _play(entry, single_search)) > HELD_OUT // 2


@each_world
async def test_the_expert_speaks_in_tool_calls(entry):
    played = await _play(entry, ExpertPolicy(), episodes=3, action_style="tools")
    assert _successes(played) == 3


async def test_saying_nothing_ends_at_the_turn_limit_without_score():
    entry = registry.find("search/world-2hop")
    (played,) = await _play(entry, NoopPolicy(), episodes=1)
    assert played.stop_reason == StopReason.TRUNCATED_TURNS
    assert (len(played.turns), played.score) == (entry.max_turns, 0.0)


@each_world
def test_info_keeps_its_promises_and_the_true_answer_is_right(entry):
    env = turngym.make(entry.id)
    _, info = env.reset(seed=1)
    assert info_problems(info) == []
    assert {"state_key", "ground_truth", "answer", "potential"} <= info.keys()
    _, reward, terminated, truncated, after = env.step(info["answer"])
    assert (reward, terminated, truncated, after["score"]) == (1.0, True, False, 1.0)
    assert info_problems(after, reward=reward, over=True) == []


@pytest.mark.parametrize(
    ("question", "page", "guess"),
    [
        ("Who created Kite?", "Kite\nKite is old. Kite was created by Ada Lorn.", "Ada Lorn"),
        ("In which year was Kite finished?", "Kite\nOf 12 parts. It was finished in 1801.", "1801"),
        ("How many people live in Orm?", "Orm\nNothing is known.", "unknown"),
        ("kite by?", "kite: by cleo. set in cork.", "cleo"),
    ],
)
def test_the_single_search_agent_reads_well(question, page, guess):
    assert best_guess(question, page) == guess
