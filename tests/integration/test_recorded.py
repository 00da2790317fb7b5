"""Episodes of other agents as what a run imitates: a teacher's, one's own, an agent's elsewhere."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turngym
from helpers.signals import SIGNALS, register_for_a_while
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.pictures import PictureFolder
from turngym.records import read_trajectories, write_trajectories
from turngym.rollouts.atif import to_atif
from turngym.trainers.loop import train
from turngym.trainers.settings.train import TrainConfig
from turngym.types import Message, StopReason, TokenSpan, Trajectory

VALIDATION, HELD_OUT = 6, 4
SETTINGS: dict[str, Any] = {
    "env": {"id": SIGNALS},
    "model": {"hidden": 32, "layers": 1, "heads": 2, "context": 64, "vocab_size": 280},
    "warm_start": {"max_steps": 60, "evaluate_every": 60, "lr": 3e-3, "target_success": 1.0},
    "rollout": {"groups_per_step": 2, "group_size": 2, "max_new_tokens": 6},
    "evaluation": {"every": 100, "validation_tasks": VALIDATION, "held_out_tasks": HELD_OUT},
    "run": {"steps": 0, "tensorboard": False},
}


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    register_for_a_while(monkeypatch)


def config(*paths: Path, **warm_start: Any) -> TrainConfig:
    start = {**SETTINGS["warm_start"], "trajectories": [str(path) for path in paths], **warm_start}
    return load_config(TrainConfig, [SETTINGS | {"warm_start": start}])


def teacher(episodes: int, split: str = "train") -> list[Trajectory]:
    """Return episodes of an agent with a prompt and tokens of its own."""
    played = turngym.rollout(SIGNALS, "expert", episodes=episodes, split=split)
    system = Message(role="system", content="You are a great teacher.")
    found = []
    for one in played:
        first, *rest = one.turns
        spans = (TokenSpan(token_ids=(1, 2, 3), sampled=False),)
        first = replace(first, observation=(system, *first.observation), spans=spans)
        found.append(replace(one, turns=(first, *rest)))
    return found


def test_a_teachers_successes_are_imitated_and_no_task_serves_two_purposes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    played = teacher(30)
    played[10] = replace(played[10], score=0.5)
    played[11] = replace(played[11], score=None)
    played[12] = replace(played[12], stop_reason=StopReason.ERROR_ENV, score=None, error="x")
    played[13] = replace(played[13], env_id="text/maze")
    file = tmp_path / "teacher" / "some.jsonl"
    file.parent.mkdir()
    write_trajectories(file, played)
    with caplog.at_level(logging.WARNING):
        result = train(config(file.parent), tmp_path / "run")
    assert (
        "20 episodes of 30 are imitated; left out: 6 of tasks that this run measures on, 2 with a "
        "score below 1, or none, 1 that broke, 1 of text/maze"
    ) in caplog.text
    kept = [*read_trajectories(tmp_path / "run" / "trajectories" / "expert.jsonl")]
    assert [one.task_id for one in kept] == [
        one.task_id for one in (*played[VALIDATION:10], *played[14:])
    ]
    seen = [message for one in kept for turn in one.turns for message in turn.observation]
    assert {message.role for message in seen} == {"user"}
    assert not any(turn.spans for one in kept for turn in one.turns)
    assert result.warm_start_steps == 60
    assert result.before.sampled.success > 0.5  # chance is 1 in 9


def test_a_run_keeps_what_it_imitates(tmp_path: Path) -> None:
    file = tmp_path / "teacher.jsonl"
    write_trajectories(file, teacher(12))
    settings = config(file, max_steps=2)
    once = train(settings, tmp_path / "run")
    file.unlink()
    again = train(
        load_config(TrainConfig, [settings.model_dump(mode="json"), "run.steps=1"]),
        tmp_path / "run",
    )
    assert (once.warm_start_steps, again.warm_start_steps) == (2, 2)
    assert again.updates == 1


@pytest.mark.parametrize("min_score", [None, 0.5])
def test_which_scores_are_good_enough_is_a_setting(tmp_path: Path, min_score: float | None) -> None:
    file = tmp_path / "teacher.jsonl"
    scores = [None, 0.4, 0.5, 1.0]
    played = [replace(one, score=s) for one, s in zip(teacher(10)[6:], scores, strict=True)]
    write_trajectories(file, played)
    one = config(file, max_steps=1, min_score=min_score, trajectories=str(file))
    train(one, tmp_path / "run")
    kept = [*read_trajectories(tmp_path / "run" / "trajectories" / "expert.jsonl")]
    assert [one.score for one in kept] == (scores if min_score is None else [0.5, 1.0])


def test_episodes_of_agents_elsewhere_come_as_atif(tmp_path: Path) -> None:
    for number, one in enumerate(teacher(8)[6:]):
        document = to_atif(one, name=f"{number}")
        del document["extra"]["turngym"]["env"]
        document["extra"]["turngym"]["score"] = 1.0
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    train(config(tmp_path, max_steps=1), tmp_path / "run")
    kept = [*read_trajectories(tmp_path / "run" / "trajectories" / "expert.jsonl")]
    assert [one.env_id for one in kept] == ["lab/Signals-v0"] * 2


def test_conversations_of_a_data_set_are_imitated_and_those_without_a_score_where_one_says_so(
    tmp_path: Path,
) -> None:
    rows = []
    for one in teacher(8)[6:]:
        said = [message for turn in one.turns for message in (*turn.observation, turn.action)]
        rows.append({"messages": [{"role": m.role, "content": m.content} for m in said]})
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(
        ConfigError, match=r"below 1, or none \(warm_start.min_score=null takes all"
    ):
        train(config(file, max_steps=1), tmp_path / "none")
    train(config(file, max_steps=1, min_score=None), tmp_path / "run")
    kept = [*read_trajectories(tmp_path / "run" / "trajectories" / "expert.jsonl")]
    assert [one.env_id for one in kept] == ["lab/Signals-v0"] * 2
    roles = [message.role for turn in kept[0].turns for message in turn.observation]
    assert set(roles) == {"user"}  # the system message was that of the teacher


def test_nothing_to_imitate_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "teacher.jsonl"
    write_trajectories(file, teacher(4, "test"))
    with pytest.raises(ConfigError) as caught:
        train(config(file), tmp_path / "run")
    assert str(caught.value) == (
        "warm_start.trajectories: nothing to imitate; left out: 4 of tasks that this run measures "
        "on"
    )
    with pytest.raises(ConfigError, match=r"^warm_start.trajectories: .*gone: there is no such"):
        train(config(tmp_path / "gone"), tmp_path / "run2")


@pytest.mark.extra("PIL")
def test_pictures_of_a_teacher_come_along(tmp_path: Path) -> None:
    theirs = PictureFolder(tmp_path / "teacher")
    image = np.full((8, 8, 3), 7, dtype=np.uint8)
    name = theirs(image)
    played = teacher(8)[6:]
    played = [
        replace(one, turns=tuple(replace(turn, picture=name) for turn in one.turns))
        for one in played
    ]
    write_trajectories(tmp_path / "teacher" / "some.jsonl", played)
    seeing = {**SETTINGS["model"], "image_size": 16, "patch_size": 8, "context": 256}
    start = {**SETTINGS["warm_start"], "trajectories": [str(tmp_path / "teacher")], "max_steps": 1}
    train(
        load_config(TrainConfig, [SETTINGS | {"model": seeing, "warm_start": start}]),
        tmp_path / "run",
    )
    kept = [*read_trajectories(tmp_path / "run" / "trajectories" / "expert.jsonl")]
    [moved] = {turn.picture for one in kept for turn in one.turns}
    assert moved is not None
    assert (tmp_path / "run" / "pictures" / moved).is_file()
