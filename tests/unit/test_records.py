import fcntl
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.trajectories import episode
from helpers.writers import append_long_lines, at_once
from turngym.errors import RecordError
from turngym.records import (
    FORMAT,
    append_trajectory,
    from_json,
    read_trajectories,
    to_json,
    write_trajectories,
)
from turngym.types import Message, StopReason, ToolCall, Trajectory, Turn

EPISODES = [episode([0.25, 1.0], member=0, score=1.0), episode([0.0], member=1, error="broke")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "episodes.jsonl"


def test_what_is_written_is_read(file):
    write_trajectories(file, EPISODES)
    assert list(read_trajectories(file)) == EPISODES


def test_the_first_line_names_format_and_version(file):
    write_trajectories(file, [])
    assert json.loads(file.read_text()) == {"format": FORMAT, "version": 1}


def test_a_write_that_fails_leaves_the_old_file(file):
    write_trajectories(file, EPISODES)

    def breaking():
        yield EPISODES[0]
        raise RuntimeError("out of episodes")

    with pytest.raises(RuntimeError):
        write_trajectories(file, breaking())
    assert list(read_trajectories(file)) == EPISODES


def test_appending_makes_the_file_and_its_header_once(file):
    for made in EPISODES:
        append_trajectory(file, made)
    assert list(read_trajectories(file)) == EPISODES
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_appending_cuts_off_what_a_killed_writer_left_of_a_line(file, kept):
    append_trajectory(file, EPISODES[0])
    whole = file.read_bytes()
    half = to_json(EPISODES[1]).encode()[:kept]
    file.write_bytes(whole + half)
    append_trajectory(file, EPISODES[1])
    assert list(read_trajectories(file)) == EPISODES


def test_appending_mends_half_a_header(file):
    file.parent.mkdir()
    file.write_text('{"format": "turn')
    append_trajectory(file, EPISODES[0])
    assert list(read_trajectories(file)) == EPISODES[:1]


def test_appending_cuts_a_half_line_longer_than_a_block(file):
    append_trajectory(file, EPISODES[0])
    with file.open("a") as out:
        out.write("x" * 200_000)
    append_trajectory(file, EPISODES[1])
    assert list(read_trajectories(file)) == EPISODES


@pytest.mark.parametrize("content", ["my notes", "my notes\nmore\n", '{"format": "other"}\n'])
def test_appending_spares_a_file_of_something_else(file, content):
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(RecordError, match=r":1: "):
        append_trajectory(file, EPISODES[0])
    assert file.read_text() == content


def test_appending_waits_for_another_writer(file):
    append_trajectory(file, EPISODES[0])
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = threading.Thread(target=append_trajectory, args=(file, EPISODES[1]))
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        assert list(read_trajectories(file)) == EPISODES[:1]
    writer.join(30)
    assert list(read_trajectories(file)) == EPISODES


def test_several_processes_append_whole_lines_to_one_file(file):
    wanted = at_once(append_long_lines, file, 3)
    assert sorted(made.policy_seed for made in read_trajectories(file)) == wanted


def test_half_a_unicode_pair_does_not_stop_the_writing(file):
    said = Message(role="assistant", content="half \ud83d pair, whole 🙂")
    made = Trajectory(
        env_id="e",
        task_id="e/train/0",
        env_seed=0,
        policy_seed=0,
        turns=(Turn(observation=(), action=said, reward=0.1),),
        stop_reason=StopReason.TERMINATED,
        metadata={"tags": ["a", ("b",)]},
    )
    append_trajectory(file, made)
    (read,) = read_trajectories(file)
    assert read.turns[0].action.content == "half ? pair, whole 🙂"
    assert read.turns[0].reward == 0.1


@pytest.mark.parametrize("depth", [10, 250, 500])
def test_arguments_are_read_however_deep_a_model_nests_them(depth):
    call = ToolCall(name="look", arguments=json.loads('{"a":' * depth + "1" + "}" * depth))
    action = Message(role="assistant", content="", tool_calls=(call,))
    one = replace(episode([]), turns=(Turn(observation=(), action=action),))
    assert from_json(to_json(one)) == one
    with pytest.raises(RecordError, match="not a trajectory"):
        from_json(to_json(one)[:-1])


def test_line_ends_inside_texts_stay_inside_their_line(file):
    said = Message(role="assistant", content="a\nb\r\nc\u2028d\u0085e\x0bf")
    made = episode([Turn(observation=(), action=said)])
    append_trajectory(file, made)
    assert list(read_trajectories(file)) == [made]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"nothing\.jsonl: cannot be read \(No such file"):
        list(read_trajectories(tmp_path / "nothing.jsonl"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r":1: not a turngym\.trajectories file"),
        (b"\xff\xfe\x00", r":1: not a turngym\.trajectories file"),
        (b"[1]\n", r":1: not a turngym\.trajectories file"),
        (b'{"format": "x", "version": 1}\n', r":1: format is 'x'"),
        (b'{"format": "turngym.trajectories", "version": 99}\n', r"99 is newer than 1; upgrade"),
        (b'{"format": "turngym.trajectories", "version": 1}\n{"env', r":2: not a trajectory"),
        (b'{"format": "turngym.trajectories", "version": 1}\n\xff\n', r":2: not a trajectory"),
        (
            b'{"format": "turngym.trajectories", "version": 1}\n{}\n',
            r":2: not a trajectory: env_id: Field required, and \d more",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_explained_with_name_and_line(file, content, message):
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(RecordError, match=message) as caught:
        list(read_trajectories(file))
    assert str(file) in str(caught.value)


def test_a_broken_invariant_is_found_when_reading():
    broken = json.loads(to_json(EPISODES[0])) | {"score": 7.0}
    with pytest.raises(RecordError, match="not a trajectory"):
        from_json(json.dumps(broken))
