"""Any turn of an episode is restored, compared with the record, looked into and played on."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.cli import TINY_RUN
from helpers.fake_server import answer, fake_server
from turngym.agents.scripted import ExpertPolicy
from turngym.api.agents import make_policy
from turngym.cli.main import main
from turngym.environments.web.chromium import NEED
from turngym.records import read_trajectories, write_json, write_trajectories
from turngym.reports.export import find_recorded
from turngym.rollouts.episode import NoReplay
from turngym.rollouts.replay import ReplayDiffers, play_on, restore
from turngym.types import Message, Trajectory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def played(env: str, *words: str, agent: str = "expert") -> Path:
    out = Path("run")
    rest = ["--episodes", "2", "--out", str(out), *words]
    assert main(["eval", env, "--agent", agent, *rest]) == 0
    return out


def said(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_turn_is_restored_with_the_options_of_its_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = played("text/maze", "--env-option", 'difficulty="hard"')
    episodes = list(read_trajectories(run / "text-maze.jsonl"))
    for number, one in enumerate(episodes):
        for turn in (1, 3, len(one.turns)):
            found = said(capsys, "replay", str(run), str(number), "--turn", str(turn))
            assert found["observation"] == one.turns[turn - 1].observation[-1].content
            assert found["recorded_action"] == one.turns[turn - 1].action.content
            assert found["recorded_action"] in found["legal_actions"]
        end = said(capsys, "replay", str(run), str(number), "--turn", str(len(one.turns) + 1))
        assert end["is_over"]
        assert end["observation"] == one.final_observation[0].content
    assert main(["replay", str(run), "--look", "there"]) == 0
    last = episodes[0].turns[-1].observation[-1].content
    assert (folder / "there/observation.txt").read_text() == last


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--look", "/proc/none"), "--look /proc/none: cannot be written to"),
        (("--out", "x.jsonl"), "--out: is for what an --agent plays on"),
        (("--out", "x.jsonl", "--agent", "human"), "--out: is for what an --agent plays on"),
        (("--out", "/proc/none/x.jsonl", "--agent", "noop"), "--out /proc/none: cannot be written"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anybody_plays(
    folder: Path, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = played("text/maze")
    capsys.readouterr()
    assert main(["replay", str(run), *options]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_another_agent_plays_on_from_the_turn(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = played("text/maze")
    recorded = next(iter(read_trajectories(run / "text-maze.jsonl")))
    words = ("replay", str(run), "0", "--turn", "3", "--out", "on.jsonl", "--agent")
    found = said(capsys, *words, "expert")
    assert found["played"] == found["recorded"]
    found = said(capsys, *words, "noop")
    (one,) = read_trajectories(folder / "on.jsonl")
    assert [turn.action for turn in one.turns[:2]] == [turn.action for turn in recorded.turns[:2]]
    assert {turn.action.content for turn in one.turns[2:]} == {""}
    assert found["played"]["score"] == 0
    assert main(["view", "on.jsonl", "--html", "on.html"]) == 0


def test_a_person_plays_on(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played("text/maze")
    recorded = next(iter(read_trajectories(run / "text-maze.jsonl")))
    rest = [turn.action.content for turn in recorded.turns[1:]]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(rest) + "\n"))
    capsys.readouterr()
    assert main(["replay", str(run), "--turn", "2", "--agent", "human"]) == 0
    assert f"terminated after {len(rest)} turns" in capsys.readouterr().out


def altered(one: Trajectory, number: int, **changes: Any) -> Trajectory:
    turns = list(one.turns)
    turns[number - 1] = replace(turns[number - 1], **changes)
    return replace(one, turns=tuple(turns))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observation": (Message(role="user", content="a hall"),)}, "turn 2: replayed, it sees"),
        ({"reward": 0.5}, r"turn 2: replayed, it pays \S+; 0.5 is recorded"),
        ({"action": Message(role="assistant", content="dance")}, "turn [23]: replayed, it"),
    ],
)
def test_a_replay_that_differs_says_at_which_turn(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    run = played("text/maze")
    one = altered(next(iter(read_trajectories(run / "text-maze.jsonl"))), 2, **changes)
    write_trajectories(folder / "other.jsonl", [one])
    capsys.readouterr()
    assert main(["replay", "other.jsonl", "--turn", str(len(one.turns))]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    env = turngym.make("text/maze")
    with pytest.raises(ReplayDiffers, match=says):
        restore(env, one, len(one.turns))
    assert restore(env, one, 1).played == ()
    env.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["7"], "has the episodes 0 to 1, and no 7"),
        (["0", "--turn", "99"], "turn 99: the episode has turns 1 to"),
        (["0", "--env", "text/maz"], "of a file of your own, name it: --env FILE"),
        (["0", "--env", "zzzzzz"], "see 'turngym envs'; of a file of your own, name it"),
        (["0", "--agent", "nobody-here"], "unknown agent"),
    ],
)
def test_what_cannot_be_restored_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], says: str
) -> None:
    run = played("text/maze")
    capsys.readouterr()
    assert main(["replay", str(run), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


async def test_a_model_takes_the_turns_before_over_as_its_conversation(folder: Path) -> None:
    env = turngym.make("text/maze")
    (one,) = turngym.rollout("text/maze", "expert", episodes=1)
    restored = restore(env, one, 3)
    async with fake_server(answer("go nowhere")) as server:
        policy = make_policy(f"openai:m base_url={server.url}")
        found = await play_on(env, policy, one, restored)
        messages = server.bodies[0]["messages"]
    assert found.error is None
    assert [row["role"] for row in messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert messages[0]["content"] == restored.instructions
    assert [row["content"] for row in messages if row["role"] == "assistant"] == [
        turn.action.content for turn in one.turns[:2]
    ]
    assert messages[-1]["content"] == restored.observation["text"]


class Forgetful(ExpertPolicy):
    """Its sessions cannot take over."""

    def start(self, context: Any) -> Any:
        session: Any = super().start(context)
        return type("Session", (), {"act": session.act, "close": session.close})()


async def test_an_agent_that_cannot_take_over_is_named(folder: Path) -> None:
    env = turngym.make("text/maze")
    (one,) = turngym.rollout("text/maze", "expert", episodes=1)
    with pytest.raises(NoReplay, match="have no replay"):
        await play_on(env, Forgetful(), one, restore(env, one, 3))


@pytest.mark.extra("torch")
@pytest.mark.slow
def test_episodes_of_a_training_run_are_restored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run.toml").write_text(TINY_RUN)
    assert main(["train", "run.toml", 'env.options={"difficulty": "hard"}', "--out", "run"]) == 0
    found = said(capsys, "replay", "run", "--turn", "2")
    assert found["turn"] == 2
    assert found["env"] == "text/maze"


def test_an_episode_of_a_mix_has_the_options_of_its_part_though_a_file_is_gone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hard = {"difficulty": "hard"}
    mix = [{"id": "gone.py", "options": {"size": 2}}, {"id": "text/maze", "options": hard}]
    write_json(folder / "config.json", {"format": 1, "config": {"env": {"mix": mix}}})
    mazes = list(
        read_trajectories(
            played("text/maze", "--env-option", "difficulty=hard") / "text-maze.jsonl"
        )
    )
    write_trajectories(folder / "mixed.jsonl", [*mazes, replace(mazes[0], env_id="local/Gone-v0")])
    assert said(capsys, "replay", "mixed.jsonl", "0")["env"] == "text/maze"
    found = find_recorded(Path("mixed.jsonl"), 2)
    assert (found.env, found.options) == ("gone.py", {"size": 2})
    assert main(["replay", "mixed.jsonl", "2"]) == 2
    assert (
        "'gone.py': there is no such file; of a file of your own, name it: --env FILE"
        in capsys.readouterr().err
    )


@pytest.mark.extra("bwrap")
def test_files_are_as_they_were_at_the_turn(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "agent.py").write_text(
        "class Agent:\n    n = 0\n    def act(self, observation, info):\n        self.n += 1\n"
        "        return 'submit' if self.n > 3 else f'bash echo {self.n} > f'\n"
    )
    run = played("terminal/shell", agent="agent.py:Agent")
    for turn, text in ((2, "1\n"), (3, "2\n")):
        assert main(["replay", str(run), "--turn", str(turn), "--look", f"at{turn}"]) == 0
        assert (folder / f"at{turn}/files/f").read_text() == text


@pytest.mark.extra("playwright", NEED)
@pytest.mark.slow
def test_a_page_is_as_it_was_at_the_turn(folder: Path) -> None:
    assert main(["new", "page", "shop"]) == 0
    run = played("shop.py")
    assert main(["replay", str(run), "--env", "shop.py", "--look", "there"]) == 0
    assert "<html" in (folder / "there/page.html").read_text()
    assert (folder / "there/page.png").read_bytes().startswith(b"\x89PNG")
