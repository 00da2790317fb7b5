"""What every web task promises: experts solve it, saying nothing does not, seeds are kept.

The normal suite plays a few tasks of each kind; ``make proof PART=conformance`` plays all of them.
"""

from __future__ import annotations

import asyncio
import os
import re

import numpy as np
import pytest

import turngym
from turngym import registry
from turngym.agents.scripted import ExpertPolicy, RandomPolicy
from turngym.environments.checks.check import check_fork, check_turn_env
from turngym.environments.web.chromium import NEED
from turngym.environments.web.miniwob.env import MiniWobEnv
from turngym.environments.web.miniwob.experts import EXPERTS
from turngym.environments.web.miniwob.experts.games import beats_the_page
from turngym.environments.web.miniwob.names import HIDDEN, TASKS, WRONG
from turngym.environments.web.tab import Tab
from turngym.errors import ConfigError
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.tasks.base import procedural_task

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
KINDS = ("click-button", "enter-text", "use-slider")
SOLVED = sorted(EXPERTS) if IS_FULL else (
    "book-flight-nodelay",
    "click-checkboxes",
    "click-pie",
    "click-tab-2",
    "copy-paste",
    "drag-shapes",
    "email-inbox",
    "enter-date",
    "flight.Alaska-auto",
    "hot-cold",
    "login-user",
    "scroll-text-2",
    "simon-says",
    "social-media-some",
)  # fmt: skip

pytestmark = [
    pytest.mark.extra("playwright", "miniwob", NEED),
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("browser"),
]


async def play(task: str, policy, *, episodes: int, concurrency: int = 1, **kwargs):
    """Play tasks of both splits."""
    env_id = f"turngym/miniwob-{task}-v0"
    specs = [
        spec
        for index in range(episodes)
        for spec in group_specs(
            env_id,
            procedural_task(f"miniwob-{task}", "test" if index % 2 else "train", index),
            seed=7,
            group_size=1,
        )
    ]
    return await collect(
        lambda: MiniWobEnv(task=task, **kwargs),
        policy,
        specs,
        concurrency=concurrency,
        timeout_s=500,  # an expert that waits for ever is cut off
    )


def test_every_task_is_registered_and_has_an_expert():
    names = {entry.short_name for entry in registry.match("web/*")}
    assert {f"web/miniwob-{task.lower()}" for task in TASKS} <= names
    assert len(TASKS) == 132
    assert set(EXPERTS) == set(TASKS)


@pytest.mark.parametrize("task", HIDDEN)
async def test_problems_that_a_page_hides_are_in_one_split_only(task):
    env = MiniWobEnv(task=task)
    keys: dict[str, set[str]] = {"train": set(), "test": set()}
    for split, found in keys.items():
        for index in range(4):
            one = procedural_task(f"miniwob-{task}", split, index)
            await env.reset(seed=0, options={"task": one})
            found.add(env.instance_key())
    await env.close()
    assert min(map(len, keys.values())) > 1
    assert not keys["train"] & keys["test"]


async def test_every_game_of_tic_tac_toe_can_be_won():
    played = await play("tic-tac-toe", ExpertPolicy(), episodes=4)
    assert [one.score for one in played] == [1.0] * 4


def test_how_often_best_play_beats_a_page_that_plays_at_random_most_of_the_time():
    rng = np.random.default_rng(0)
    games = [rng.random(12) for _ in range(4_000)]
    begun = [beats_the_page(game) for game in games if game[0] < 0.51]
    followed = [beats_the_page(game) for game in games if game[0] >= 0.51]
    assert np.mean(begun) == pytest.approx(0.966, abs=0.02)
    assert np.mean(followed) == pytest.approx(0.727, abs=0.04)


async def test_no_flight_is_asked_for_whose_form_expects_another():
    env = MiniWobEnv(task="flight.Alaska")
    await env.reset(seed=0)
    ids = await env._host.run(env._evaluate_js("DATA_TRAIN.map((one) => one.id)"))
    await env.close()
    assert len(ids) == 75 - len(WRONG["flight.Alaska"])
    assert not set(ids) & set(WRONG["flight.Alaska"])


@pytest.mark.parametrize("task", KINDS if IS_FULL else KINDS[:1])
def test_a_task_of_each_kind_keeps_every_promise(task):
    quick = {} if IS_FULL else {"episodes": 1, "tasks": 2, "max_turns": 2, "processes": 1}
    check_turn_env(f"turngym/miniwob-{task}-v0", **quick).raise_on_failure()


@pytest.mark.parametrize("task", KINDS if IS_FULL else KINDS[1:2])
def test_forks_are_equal_and_independent(task):
    quick = {} if IS_FULL else {"episodes": 1, "max_turns": 2, "depths": [1]}
    check_fork(f"turngym/miniwob-{task}-v0", **quick).raise_on_failure()


@pytest.mark.parametrize("task", SOLVED)
async def test_the_expert_solves_the_task(task):
    played = await play(task, ExpertPolicy(), episodes=5 if IS_FULL else 2)
    assert [t.error for t in played if t.error] == []
    assert [(t.task_id, t.score) for t in played if not t.is_success] == []
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []


async def test_an_action_that_ends_an_episode_is_one_message_to_the_page(monkeypatch):
    sent = []
    main = Tab.main
    monkeypatch.setattr(Tab, "main", lambda tab, code: sent.append(code) or main(tab, code))
    async with MiniWobEnv(task="click-test") as env:
        await env.reset(seed=0)
        sent.clear()
        outcome = await env.step(env.expert_action())
    assert outcome[2]
    assert len(sent) == 1


async def test_the_expert_knows_a_colour_that_the_page_calls_by_another_name():
    env = MiniWobEnv(task="drag-shapes-2")
    await env.reset(options={"task": env.task("train", 4)})
    assert "all aqua shapes" in env.goal
    over = False
    while not over:
        _, reward, *ended, _ = await env.step(env.expert_action())
        over = any(ended)
    await env.close()
    assert reward == 1


async def test_what_moves_by_itself_moves_only_while_the_agent_acts():
    seen = []
    for pause_s in (0.0, 0.5):
        env = MiniWobEnv(task="chase-circle")
        pages = [(await env.reset(seed=1))[0]["text"]]
        for _ in range(8):
            await asyncio.sleep(pause_s / 2)
            pages.append((await env.step(env.expert_action()))[0]["text"])
        await env.close()
        seen.append(pages)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 3  # it does move


async def test_a_wait_is_a_second_of_the_page_and_a_mouse_that_stays_behind_is_outside():
    env = MiniWobEnv(task="chase-circle")
    await env.reset(seed=1)
    await env.step(env.expert_action())
    terminated = False
    for _ in range(10):
        _, _, terminated, _, info = await env.step("wait")
        if terminated:
            break
    assert terminated
    assert 0.0 < info["score"] < 0.9
    await env.close()


async def test_pictures_in_a_goal_and_outlines_in_a_canvas_are_put_into_words():
    env = MiniWobEnv(task="click-menu-2")
    goals = [(await env.reset(seed=seed))[0]["text"].splitlines()[0] for seed in range(8)]
    await env.close()
    assert any(re.search(r"with the \.ui-icon\.ui-icon-[\w-]+ icon", goal) for goal in goals)
    env = MiniWobEnv(task="count-sides")
    text = (await env.reset(seed=0))[0]["text"]
    await env.close()
    assert re.search(r"polygon at \d+,\d+ size \d+x\d+ \(black, [3-7] corners\)", text)


async def test_chance_meets_no_refusal_and_rarely_succeeds():
    played = await play("email-inbox", RandomPolicy(), episodes=4, concurrency=2)
    assert [t.error for t in played if t.error] == []
    assert [turn.invalid_action for t in played for turn in t.turns if turn.invalid_action] == []
    assert sum(t.is_success for t in played) < 4


async def test_of_several_tasks_each_episode_draws_one():
    env = MiniWobEnv(task=["click-test", "enter-text"])
    goals = [(await env.reset(seed=seed))[0]["text"] for seed in range(6)]
    assert {("Enter" in goal, "button." in goal) for goal in goals} == {
        (True, False),
        (False, True),
    }
    assert (await env.reset(seed=3))[0]["text"] == goals[3]
    _, reward, terminated, _, _ = await env.step(env.expert_action())
    while not terminated:
        _, reward, terminated, _, _ = await env.step(env.expert_action())
    assert reward == 1.0
    await env.close()
    with pytest.raises(ConfigError, match="unknown MiniWoB task 'no-such'"):
        MiniWobEnv(task=["click-test", "no-such"])


async def test_the_expert_speaks_in_tool_calls():
    (episode,) = await play("enter-text", ExpertPolicy(), episodes=1, action_style="tools")
    assert episode.is_success
    assert all(turn.action.content.startswith("{") for turn in episode.turns)


@pytest.mark.parametrize(("reward", "earned"), [("own", -1.0), ("success", 0.0)])
async def test_a_failure_costs_only_where_it_should(reward, earned):
    env = MiniWobEnv(task="click-test-2", reward=reward)
    await env.reset(seed=0)
    _, got, terminated, _, info = await env.step("click 2")
    assert (terminated, got, info["raw_reward"], info["score"]) == (True, earned, -1.0, 0.0)
    await env.close()


async def test_what_comes_later_pays_less():
    env = MiniWobEnv(task="click-test", time_limit=120.0)
    await env.reset(seed=0)
    _, reward, terminated, _, info = await env.step("click 1")
    assert terminated
    assert 0.0 < reward < info["raw_reward"] == 1.0
    await env.close()


async def test_the_own_time_limit_ends_an_episode():
    env = MiniWobEnv(task="click-test", time_limit=1.5)
    await env.reset(seed=0)
    terminated = False
    while not terminated:  # a wait is as long as the machine makes it
        _, reward, terminated, truncated, info = await env.step("wait")
        assert not truncated
    assert (reward, info["score"]) == (-1.0, 0.0)
    await env.close()


def test_pictures_show_the_page_and_its_marks():
    plain = turngym.make("web/miniwob-click-button", screenshot="plain")
    marked = turngym.make("web/miniwob-click-button", screenshot="marks")
    one, two = plain.reset(seed=0)[0], marked.reset(seed=0)[0]
    assert one in plain.observation_space
    assert one["text"] == two["text"]
    assert (one["image"] != two["image"]).any()
    assert plain.step("nonsense")[0]["image"].shape == (214, 332, 3)
    plain.close()
    marked.close()


def test_a_turn_leaves_its_page_and_picture_where_that_is_asked(tmp_path):
    env = turngym.make("web/miniwob-click-test", screenshot="plain", keep=str(tmp_path), trace=True)
    _, info = env.reset(seed=0)
    env.step("click 1")
    env.close()
    (folder,) = tmp_path.iterdir()
    assert info["task_id"].replace("/", "-") in folder.name
    names = {file.name for file in folder.iterdir()}
    assert names == {"turn_000.txt", "turn_000.png", "turn_001.txt", "turn_001.png", "trace.zip"}
