import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from turngym.records import append_trajectory, from_json, read_trajectories, to_json
from turngym.types import Message, StopReason, TokenSpan, ToolCall, Trajectory, Turn

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.builds(ToolCall, name=TEXT, arguments=st.dictionaries(TEXT, JSON, max_size=3))


def messages(*roles: str) -> st.SearchStrategy[Message]:
    calls = st.lists(CALLS, max_size=2).map(tuple)
    return st.builds(Message, role=st.sampled_from(roles), content=TEXT, tool_calls=calls)


@st.composite
def spans(draw: st.DrawFn) -> TokenSpan:
    tokens = tuple(draw(st.lists(st.integers(0, 1 << 18), max_size=4)))
    if not draw(st.booleans()):
        return TokenSpan(token_ids=tokens, sampled=False)
    logprob = st.floats(-1e3, 0.0)
    logprobs = tuple(draw(st.lists(logprob, min_size=len(tokens), max_size=len(tokens))))
    version = draw(st.integers(0, 99))
    return TokenSpan(token_ids=tokens, sampled=True, logprobs=logprobs, policy_version=version)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    parts = draw(st.dictionaries(TEXT, st.floats(-9, 9), max_size=3))
    return Turn(
        observation=tuple(draw(st.lists(messages("system", "user", "tool"), max_size=2))),
        action=draw(messages("assistant")),
        spans=tuple(draw(st.lists(spans(), max_size=2))),
        reward=sum(parts.values()) if parts else draw(NUMBERS),
        reward_parts=parts,
        invalid_action=draw(st.none() | TEXT),
        state_key=draw(st.none() | TEXT),
        starts_segment=draw(st.booleans()),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    stop = draw(st.sampled_from(StopReason))
    return Trajectory(
        env_id=draw(TEXT),
        task_id=draw(TEXT),
        env_seed=draw(st.integers(0, (1 << 63) - 1)),
        policy_seed=draw(st.integers(0, (1 << 63) - 1)),
        turns=tuple(draw(st.lists(turns(), max_size=3))),
        stop_reason=stop,
        member=draw(st.integers(0, 99)),
        final_observation=tuple(draw(st.lists(messages("user"), max_size=1))),
        score=None if stop.is_error else draw(st.none() | st.floats(0, 1)),
        error=draw(TEXT) if stop.is_error else None,
        metadata=draw(st.dictionaries(TEXT, JSON, max_size=2)),
    )


@given(trajectories())
def test_a_trajectory_comes_back_from_json_as_it_was(made):
    assert from_json(to_json(made)) == made


@given(trajectories())
def test_a_trajectory_is_one_line_of_plain_json(made):
    line = to_json(made)
    assert len((line + "\n").encode().split(b"\n")) == 2
    assert isinstance(json.loads(line), dict)


@given(st.lists(trajectories(), max_size=3), st.data())
def test_appending_after_any_crash_keeps_all_whole_lines(made, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        for each in made:
            append_trajectory(path, each)
        content = path.read_bytes() if made else b""
        cut = content[: data.draw(st.integers(0, len(content)))]
        path.write_bytes(cut)
        whole = max(0, cut.count(b"\n") - 1)  # without the header
        last = data.draw(trajectories())
        append_trajectory(path, last)
        assert list(read_trajectories(path)) == [*made[:whole], last]
