"""Conversations of data sets: OpenAI's form, ShareGPT's, our own export; broken ones are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import turngym
from turngym.cli.main import main
from turngym.errors import ConfigError, RecordError
from turngym.records import write_trajectories
from turngym.rollouts.recorded import episodes, from_chat, is_chats, read_chats
from turngym.types import Message, ToolCall

CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "map"}'}}
OPENAI = {
    "messages": [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": [{"type": "text", "text": "A room."}]},
        {"role": "assistant", "content": None, "reasoning_content": "Where?", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "A map."},
        {"role": "assistant", "content": "go up", "weight": 0},
        {"role": "user", "content": "A wall."},
        {"role": "assistant", "content": "go south"},
        {"role": "user", "content": "Out."},
    ]
}
SHAREGPT = {
    "id": "no-7",
    "system": "Rules.",
    "conversations": [
        {"from": "human", "value": "A room."},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "map"}}'},
        {"from": "observation", "value": "A map."},
        {"from": "gpt", "value": "go south"},
    ],
}


def said(text: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def test_what_the_assistant_said_are_the_actions_but_for_weight_0() -> None:
    one = from_chat(OPENAI, name="data/1")
    first, second = one.turns
    look = ToolCall(name="look", arguments={"at": "map"})
    assert [(m.role, m.content) for m in first.observation] == [
        ("system", "Rules."),
        ("user", "A room."),
    ]
    assert first.action == said("<think>\nWhere?\n</think>\n\n", look)
    assert [(m.role, m.content) for m in second.observation] == [
        ("tool", "A map."),
        ("assistant", "go up"),
        ("user", "A wall."),
    ]
    assert second.action == said("go south")
    assert [m.content for m in one.final_observation] == ["Out."]
    assert (one.env_id, one.task_id, one.score) == ("chat/data", "data/1", None)


def test_the_form_of_sharegpt() -> None:
    one = from_chat(SHAREGPT, name="data/1")
    assert [m.role for m in one.turns[0].observation] == ["system", "user"]
    assert one.turns[0].action == said("", ToolCall(name="look", arguments={"at": "map"}))
    assert one.turns[1].observation == (Message(role="tool", content="A map."),)
    assert (one.turns[1].action, one.task_id) == (said("go south"), "no-7")


def test_a_greeting_before_anything_was_said_is_no_action() -> None:
    """Data sets in ShareGPT's form begin so, and no chat template opens a conversation for it."""
    greeting = {"from": "gpt", "value": "Hello!"}
    one = from_chat(
        {**SHAREGPT, "conversations": [greeting, *SHAREGPT["conversations"]]}, name="data/1"
    )
    assert one.turns == from_chat(SHAREGPT, name="data/1").turns


def test_our_export_comes_back_with_its_tasks_and_scores(tmp_path: Path) -> None:
    played = list(turngym.rollout("text/maze-easy", "expert", episodes=3))
    write_trajectories(tmp_path / "played.jsonl", played)
    table = tmp_path / "table.jsonl"
    assert main(["export", str(tmp_path / "played.jsonl"), "--out", str(table)]) == 0
    found = [one for _, one in episodes(table)]
    for one, other in zip(found, played, strict=True):
        assert (one.task_id, one.score, one.stop_reason) == (
            *(other.task_id, other.score, other.stop_reason),
        )
        assert [(t.observation, t.action) for t in one.turns] == [
            (t.observation, t.action) for t in other.turns
        ]


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "one.json"])
def test_files_of_lines_of_a_list_and_of_one(name: str, tmp_path: Path) -> None:
    rows = [OPENAI] if name == "one.json" else [OPENAI, SHAREGPT]
    text = "\n\n".join(map(json.dumps, rows)) if name.endswith("l") else json.dumps(rows)
    file = tmp_path / name
    file.write_text("\ufeff" + (json.dumps(OPENAI) if name == "one.json" else text))
    assert is_chats(file)
    assert len(list(episodes(file))) == len(list(episodes(tmp_path))) == len(rows)
    assert next(read_chats(file)).task_id == f"{file.stem}/1"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": []}, "conversation 2: the assistant says nothing that could be imitated"),
        ({"text": "hello"}, "conversation 2: wanted an object with a list of 'messages'"),
        (
            {"messages": [{"role": "boss", "content": "?"}]},
            "conversation 2: message 0: ValueError: role 'boss': wanted one of system",
        ),
        ({"messages": [{"content": "?"}]}, "conversation 2: message 0: KeyError: 'from'"),
        ({"messages": ["?"]}, "conversation 2: message 0: AttributeError"),
        (
            {**OPENAI, "stop_reason": "tired"},
            "conversation 2: beside the messages: ValueError: 'tired' is not a valid StopReason",
        ),
        (
            {**OPENAI, "score": "1"},
            "conversation 2: beside the messages: ValueError: score '1': wanted a number from 0",
        ),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "conversation 2: the assistant s"),
        ("no JSON", "after conversation 1: Expecting value"),
    ],
)
def test_a_broken_conversation_is_named_with_its_place(row: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    broken = row if isinstance(row, str) else json.dumps(row)
    file.write_text(f"{json.dumps(SHAREGPT)}\n{broken}\n")
    with pytest.raises(RecordError) as caught:
        list(episodes(file))
    assert f"{file}: {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parquet_as_data_sets_have_it(tmp_path: Path) -> None:
    """Every row has all fields there, and those that it has not are null."""
    pyarrow = pytest.importorskip("pyarrow", reason="NOT RUN: needs pyarrow, in extra search")
    parquet = pytest.importorskip("pyarrow.parquet")
    assistant = {"role": "assistant", "content": "go south"}
    room = {"role": "user", "content": "A room."}
    rows = [
        {"messages": [room, assistant], "score": 1.0},
        {"messages": [{"role": "user", "content": "A hall."}, assistant | {"weight": 1}]},
        {"messages": [room, *OPENAI["messages"][2:5:2]], "score": 0.5},
    ]
    plain = [json.loads(json.dumps(row)) for row in rows]
    plain[2]["messages"][1] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    folder = tmp_path / "set" / "data"
    folder.mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(plain), folder / "train-00000-of-00001.parquet")
    (tmp_path / "set" / "README.md").write_text("---\nlicense: mit\n---\n")
    found = [one for _, one in episodes(tmp_path / "set")]
    assert [one.score for one in found] == [1.0, None, 0.5]
    assert [len(one.turns) for one in found] == [1, 1, 1]
    assert found[0].turns[0].action == said("go south")
    assert found[2].turns[0].action == said("", ToolCall(name="look", arguments={"at": "map"}))
    (folder / "train-00000-of-00001.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ConfigError, match="no trajectories in here; wanted"):
        [*episodes(tmp_path / "set")]
    with pytest.raises(ConfigError, match=r"in here \(.*[Pp]arquet"):
        [*episodes(folder / "train-00000-of-00001.parquet")]


def test_our_own_data_set_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="NOT RUN: needs pyarrow, in extra search")
    played = turngym.rollout("text/maze", "expert", episodes=3)
    write_trajectories(tmp_path / "run" / "mazes.jsonl", played)
    words = ["export", str(tmp_path / "run"), "--format", "hf", "--out", str(tmp_path / "set")]
    assert main(words) == 0
    found = [one for _, one in episodes(tmp_path / "set")]
    assert [one.task_id for one in found] == [one.task_id for one in played]
    assert [one.score for one in found] == [1.0] * 3
    for now, was in zip(found, played, strict=True):
        assert [t.action.content for t in now.turns] == [t.action.content for t in was.turns]
