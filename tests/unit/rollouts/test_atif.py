"""Episodes in ATIF: ours come back as they were, others are read, what is none is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turngym.cli.main import main
from turngym.errors import RecordError
from turngym.records import write_trajectories
from turngym.rollouts.atif import from_atif, read_atif, to_atif
from turngym.types import Message, StopReason, TokenSpan, ToolCall, Trajectory, Turn


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def read(*ids: int) -> TokenSpan:
    return TokenSpan(token_ids=ids, sampled=False)


def sampled(*ids: int, version: int = 3) -> TokenSpan:
    logprobs = tuple(-0.25 * one for one in ids)
    return TokenSpan(token_ids=ids, sampled=True, logprobs=logprobs, policy_version=version)


EPISODE = Trajectory(
    env_id="turngym/Maze-v0",
    task_id="maze-easy/test/2",
    env_seed=7,
    policy_seed=9,
    member=1,
    turns=(
        Turn(
            observation=(Message(role="system", content="Rules."), user("A room.")),
            action=said("", ToolCall(name="go", arguments={"direction": "north"})),
            spans=(read(1, 2, 3), sampled(4, 5), sampled(6, version=4)),
            reward=0.5,
            reward_parts={"key": 0.75, "turn": -0.25},
            usage={"prompt_tokens": 3.0, "completion_tokens": 3.0, "cost_usd": 0.25},
        ),
        Turn(
            observation=(Message(role="tool", content="A wall."),),
            action=said("go up"),
            spans=(read(7), sampled(8, version=4)),
            invalid_action="not a direction",
            state_key="room-1",
        ),
        Turn(
            observation=(user("In short: a wall."),),
            action=said("go south"),
            spans=(read(1, 9), sampled(10, version=5)),
            reward=1.0,
            starts_segment=True,
            segment_reason="history was cut",
        ),
    ),
    stop_reason=StopReason.TERMINATED,
    final_observation=(user("You are out."),),
    score=1.0,
    ground_truth="south",
    answer="out",
    final_potential=0.0,
)


def again(one: Trajectory) -> Trajectory:
    (found,) = from_atif(json.loads(json.dumps(to_atif(one, name="0"))), "here")
    return replace(found, metadata={})


def test_an_episode_comes_back_as_it_was() -> None:
    assert again(EPISODE) == EPISODE


def test_what_a_limit_judged_comes_back() -> None:
    cut = replace(EPISODE, stop_reason=StopReason.TRUNCATED_TURNS, judged_at_limit=True)
    assert again(cut) == cut


def test_an_episode_that_broke_comes_back_without_a_score() -> None:
    broken = replace(
        EPISODE, turns=(), final_observation=(), score=None, stop_reason=StopReason.ERROR_ENV,
        error="reset: OSError",
    )  # fmt: skip
    assert again(broken) == broken


def test_what_counts_as_false_and_what_others_said_comes_back() -> None:
    call = ToolCall(name="look", arguments={"at": "door"})
    talk = (said("I look.", call), Message(role="tool", content="A door."), user("Go on."))
    turn = replace(EPISODE.turns[1], observation=talk, invalid_action="", state_key="")
    one = replace(EPISODE, turns=(replace(turn, potential=0.0, spans=()),))
    assert again(one) == one


def test_tokens_are_those_of_the_whole_call() -> None:
    steps = to_atif(EPISODE, name="0")["steps"]
    assert [one["source"] for one in steps] == [
        "system", "user", "agent", "agent", "user", "agent",
    ]  # fmt: skip
    assert [one["step_id"] for one in steps] == [1, 2, 3, 4, 5, 6]
    second = steps[3]["metrics"]
    assert second["prompt_token_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert second["completion_token_ids"] == [8]
    assert second["logprobs"] == [-2.0]
    assert steps[5]["metrics"]["prompt_token_ids"] == [1, 9], "a new segment begins anew"
    assert steps[2]["observation"]["results"][0]["content"] == "A wall."


FOREIGN: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s1",
    "agent": {"name": "other", "version": "2"},
    "steps": [
        {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "Look:"},
                                                     {"type": "image", "source": {}}]},
        {"step_id": 2, "source": "agent", "message": "I look.", "tool_calls": [
            {"tool_call_id": "a", "function_name": "bash", "arguments": {"command": "ls"}}],
         "observation": {"results": [{"source_call_id": "a", "content": "x"}]},
         "metrics": {"prompt_token_ids": [1], "completion_token_ids": [2], "logprobs": [-0.5]}},
        {"step_id": 3, "source": "agent", "message": "earlier", "is_copied_context": True},
        {"step_id": 4, "source": "agent", "message": "Done.",
         "metrics": {"prompt_token_ids": [7], "completion_token_ids": [8], "logprobs": [-0.5]}},
    ],
    "subagent_trajectories": [{
        "schema_version": "ATIF-v1.8", "trajectory_id": "t", "agent": {"name": "h", "version": "1"},
        "steps": [{"step_id": 1, "source": "agent", "message": "hi"}],
    }],
}  # fmt: skip


def test_what_others_wrote_is_read() -> None:
    one, inner = from_atif(FOREIGN, "here")
    assert (one.env_id, one.task_id, one.score) == ("atif/other", "s1", None)
    first, last = one.turns
    assert first.observation == (user("Look:\n[image]"),)
    assert first.action.tool_calls == (ToolCall(name="bash", arguments={"command": "ls"}),)
    assert last.observation == (Message(role="tool", content="x"), said("earlier"))
    assert last.starts_segment, "its prompt does not go on from the call before"
    assert last.spans == (read(7), replace(sampled(8, version=0), logprobs=(-0.5,)))
    assert inner.turns[0].action.content == "hi"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"schema_version": "9"}, "wanted a schema_version"),
        ({"steps": [{"source": "agent"}]}, "message"),
        ({"steps": [{"source": "moon", "message": "a"}]}, "source 'moon'"),
        ({"steps": [{"source": "agent", "message": "a", "metrics": {
            "completion_token_ids": [1], "logprobs": [2.0]}}]}, "logprobs"),
    ],
)  # fmt: skip
def test_what_is_none_is_named(change: dict[str, Any], part: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(FOREIGN | change))
    with pytest.raises(RecordError, match=rf"a\.json.*{part}"):
        list(read_atif(tmp_path))


@pytest.mark.parametrize("arguments", ['{"x": 1}', None, [1]])
def test_what_no_record_could_hold_is_named(arguments: Any, tmp_path: Path) -> None:
    call = {"tool_call_id": "1", "function_name": "f", "arguments": arguments}
    step = {"source": "agent", "message": "a", "tool_calls": [call]}
    (tmp_path / "a.json").write_text(json.dumps(FOREIGN | {"steps": [step]}))
    with pytest.raises(RecordError, match=r"a\.json.*tool_calls\.0\.arguments: Input should be"):
        list(read_atif(tmp_path / "a.json"))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, json.dumps(FOREIGN | {"subagent_trajectories": [0]})]
)
def test_what_is_no_document_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text(text)
    assert main(["export", str(tmp_path / "a.json")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/a.json: ")


def test_half_of_a_pair_and_a_mark_of_byte_order_are_read(tmp_path: Path) -> None:
    steps = [{"source": "agent", "message": "a\ud800"}, {"source": "agent", "message": None}]
    text = json.dumps(FOREIGN | {"steps": steps})
    (tmp_path / "a.json").write_text(text, encoding="utf-8-sig")
    found, *_ = read_atif(tmp_path / "a.json")
    assert [turn.action.content for turn in found.turns] == ["a?", ""]
    assert main(["export", str(tmp_path / "a.json"), "--out", str(tmp_path / "a.jsonl")]) == 0


def test_the_command_writes_documents_and_reads_them_back(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "run/trajectories.jsonl", [EPISODE, EPISODE])
    documents, back = tmp_path / "atif", tmp_path / "back.jsonl"
    assert main(["export", str(tmp_path / "run"), "--format", "atif", "--out", str(documents)]) == 0
    assert sorted(one.name for one in documents.iterdir()) == ["000000.json", "000001.json"]
    command = ["export", str(documents), "--format", "trajectories", "--out", str(back)]
    assert main(command) == 0
    rows = tmp_path / "rows.jsonl"
    assert main(["export", str(back), "--out", str(rows)]) == 0
    (first, _) = map(json.loads, rows.read_text().splitlines())
    assert (first["score"], first["return"], first["turns"]) == (1.0, 1.5, 3)
    assert main(["export", str(tmp_path / "run"), "--format", "atif"]) == 2


def test_thoughts_have_a_place_of_their_own_where_they_find_the_way_back():
    thoughts = ("<think>\nA wall?\n</think>\n\ngo south", "<think>A wall?</think>go south", "go up")
    turns = tuple(Turn(observation=(user("A room."),), action=said(one)) for one in thoughts)
    episode = replace(EPISODE, turns=turns)
    document = json.loads(json.dumps(to_atif(episode, name="one")))
    steps = [step for step in document["steps"] if step["source"] == "agent"]
    kept = [(step["message"], step.get("reasoning_content")) for step in steps]
    assert kept == [("go south", "A wall?"), (thoughts[1], None), ("go up", None)]
    (back,) = from_atif(document, "here")
    assert tuple(turn.action.content for turn in back.turns) == thoughts
