"""What every core text game promises, on every registered difficulty.

Gymnasium's own check is one of those of ``test_every_environment.py``.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import turngym
from turngym import registry
from turngym.agents.scripted import ExpertPolicy, NoopPolicy, RandomPolicy
from turngym.environments.core.env import restore, snapshot
from turngym.environments.core.spaces import info_problems
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.types import StopReason

CORE = {
    "chess_endgame",
    "guess_number",
    "mail_room",
    "maze",
    "sokoban",
    "toy_text",
    "twenty_questions",
    "wordle",
}
GAMES = [
    entry
    for entry in registry.entries()
    if entry.entry_point.partition(":")[0].rpartition(".")[2] in CORE
    and entry.kwargs["difficulty"] in entry.id
]
IDS = [entry.short_name for entry in GAMES]
HELD_OUT = 100
BY_CHANCE = 30
"""Chance plays to the limit of turns; of thirty tasks it wins no fifth either."""
LUCKY = ("text/maze-easy",)
"""Where chance wins nearly a fifth, so that thirty tasks do not show that it is less."""

each_game = pytest.mark.parametrize("entry", GAMES, ids=IDS)


async def _play(entry, policy, *, episodes=HELD_OUT, **kwargs):
    env = turngym.make(entry.id, **kwargs)
    task = env.get_wrapper_attr("task")
    specs = [
        spec
        for index in range(episodes)
        for spec in group_specs(entry.id, task("test", index), seed=7, group_size=1)
    ]
    return await collect(lambda: turngym.make(entry.id, **kwargs), policy, specs, concurrency=1)


def _random_walk(env, rng, *, turns, seen=None):
    """Take random legal actions; return what was seen, rewards included."""
    seen = [] if seen is None else seen
    legal = env.get_wrapper_attr("legal_actions")()
    for _ in range(turns):
        step = env.step(legal[int(rng.integers(len(legal)))])
        seen.append(
            (step[0]["text"], *step[1:4], step[4].get("state_key"), step[4]["legal_actions"])
        )
        if step[2] or step[3]:
            break
        legal = step[4]["legal_actions"]
    return seen


def _is_over(env) -> bool:
    return env.unwrapped._over


@each_game
async def test_expert_solves_every_held_out_task(entry):
    played = await _play(entry, ExpertPolicy())
    assert [t.task_id for t in played if not t.is_success] == []
    assert all(turn.invalid_action is None for t in played for turn in t.turns)


@each_game
async def test_chance_solves_few_tasks_and_only_with_legal_actions(entry):
    episodes = HELD_OUT if entry.short_name in LUCKY else BY_CHANCE
    played = await _play(entry, RandomPolicy(), episodes=episodes)
    assert sum(t.is_success for t in played) < episodes / 5
    assert all(turn.invalid_action is None for t in played for turn in t.turns)


@each_game
async def test_doing_nothing_ends_at_the_turn_limit_without_score(entry):
    played = await _play(entry, NoopPolicy(), episodes=2)
    assert [t.stop_reason for t in played] == [StopReason.TRUNCATED_TURNS] * 2
    assert [len(t.turns) for t in played] == [entry.max_turns] * 2
    assert [t.score for t in played] == [0.0, 0.0]


@each_game
async def test_expert_and_legal_actions_speak_in_tool_calls(entry):
    tools = {"action_style": "tools"}
    assert all(t.is_success for t in await _play(entry, ExpertPolicy(), episodes=3, **tools))
    played = await _play(entry, RandomPolicy(), episodes=3, **tools)
    assert all(turn.invalid_action is None for t in played for turn in t.turns)
    _, info = turngym.make(entry.id, **tools).reset(seed=0)
    assert {tool["function"]["name"] for tool in info["tools"]}


@each_game
def test_the_same_seed_is_the_same_episode(entry):
    walks = []
    for _ in range(2):
        env = turngym.make(entry.id)
        observation, _ = env.reset(seed=5)
        walks.append([observation["text"], *_random_walk(env, np.random.default_rng(3), turns=20)])
    assert walks[0] == walks[1]
    openings = {env.reset(seed=seed)[0]["text"] for seed in range(30)}
    assert len(openings) > 1 or entry.short_name.startswith(("text/wordle", "text/frozenlake"))


@each_game
def test_going_on_from_a_snapshot_is_going_on(entry):
    env, other = turngym.make(entry.id), turngym.make(entry.id)
    env.reset(seed=2)
    _random_walk(env, np.random.default_rng(0), turns=2)
    if _is_over(env):
        env.reset(seed=2)
    state = snapshot(env)
    went_on = _random_walk(env, np.random.default_rng(1), turns=200)
    for copy in (other, env):
        restore(copy, state)
        assert _random_walk(copy, np.random.default_rng(1), turns=200) == went_on


@each_game
def test_forks_do_not_touch_each_other(entry):
    env = turngym.make(entry.id).unwrapped
    env.reset(seed=4)
    state_key, expert = env.state_key(), env.expert_action()
    left, right = env.fork(2)
    _random_walk(left, np.random.default_rng(0), turns=5)
    assert (env.state_key(), right.state_key()) == (state_key, state_key)
    assert right.expert_action() == expert
    assert right.step(expert)[0] == env.step(expert)[0]


@each_game
def test_no_problem_is_in_both_splits(entry):
    env = turngym.make(entry.id).unwrapped
    keys = {}
    for split in ("train", "test"):
        keys[split] = set()
        for index in range(25):
            env.reset(seed=0, options={"task": env.task(split, index)})
            keys[split].add(env.instance_key())
    assert not keys["train"] & keys["test"]
    assert all(len(found) > 1 for found in keys.values())


@each_game
def test_info_keeps_its_promises(entry):
    env = turngym.make(entry.id)
    observation, info = env.reset(seed=1)
    assert info_problems(info) == []
    if "ground_truth" in info and entry.short_name.startswith("text/wordle"):
        assert info["ground_truth"] not in observation["text"]
    rng, over = np.random.default_rng(0), False
    while not over:
        legal = info["legal_actions"]
        _, reward, terminated, over, info = env.step(legal[int(rng.integers(len(legal)))])
        problems = info_problems(info, reward=reward, over=terminated or over, truncated=over)
        assert problems == []
        over = over or terminated
    assert info["score"] == env.get_wrapper_attr("score")()


@each_game
def test_nonsense_helps_and_costs_only_the_turn(entry):
    env = turngym.make(entry.id).unwrapped
    env.reset(seed=3)
    state_key = env.state_key()
    observation, reward, terminated, truncated, info = env.step("sing a song")
    assert "Not a command" in observation["text"]
    assert observation["text"] == f"{info['invalid_action']} {env.reminder()}".rstrip()
    assert (reward, terminated, truncated, env.state_key()) == (0.0, False, False, state_key)


@pytest.mark.parametrize("title", sorted({entry.id.split("-")[0] for entry in GAMES}))
def test_the_plain_id_is_the_easy_one(title):
    plain, easy = registry.find(f"{title}-v0"), registry.find(f"{title}-easy-v0")
    assert (plain.kwargs, plain.max_turns) == (easy.kwargs, easy.max_turns)
    assert gymnasium.make(plain.id).unwrapped.name.endswith("-easy")
