"""Agents put together of parts, over a model that says what it is told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.models import model as tiny_model
from helpers.models import policy as tiny_policy
from helpers.models import tokenizer
from turngym.agents.chat.agent import ChatAgent, EngineModel
from turngym.agents.chat.prompting import (
    SUMMARIZE,
    ChatMessage,
    Completion,
    PlainPrompting,
    ReActPrompting,
    Reflection,
    SummaryHistory,
    WindowHistory,
)
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.protocol import Sampling
from turngym.agents.policy import ContextOverflow, EpisodeContext, EpisodeEnd, PolicyTurn
from turngym.agents.rendering import Renderer
from turngym.errors import ConfigError
from turngym.records import read_trajectories
from turngym.rollouts.episode import group_specs, rollout
from turngym.rollouts.evaluation.evaluate import EvalJob, evaluate, play_job
from turngym.rollouts.evaluation.folder import EvalFolder
from turngym.types import Message, StopReason, Trajectory, Turn

CONTEXT = EpisodeContext(env_id="e", task_id="t", seed=1, instructions="Find the key.")


class Script:
    """A model that says what ``answer`` makes of what it was told; keeps every conversation."""

    takes_tools = False

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer or (lambda told: f"answer {len(told)}")
        self.conversations: list[list[Message]] = []

    def open(self, seed: int) -> ScriptConversation:
        return ScriptConversation(self)


class ScriptConversation:
    def __init__(self, model: Script) -> None:
        self.model = model
        self.told: list[Message] = []
        model.conversations.append(self.told)

    async def complete(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Completion:
        self.told += [entry.message for entry in messages]
        message = Message(role="assistant", content=self.model.answer(self.told))
        self.told.append(message)
        return Completion(message=message, usage={"completion_tokens": 1.0})

    def resume(self, messages: Sequence[ChatMessage], turn: Turn) -> None:
        self.told += [*(entry.message for entry in messages), turn.action]

    async def restart(self) -> None:
        self.told = []
        self.model.conversations.append(self.told)

    def close(self) -> None:
        return None


async def play(agent: ChatAgent, turns: int) -> list[PolicyTurn]:
    session = agent.start(CONTEXT)
    return [await session.act({"text": f"seen {number}"}, {}) for number in range(turns)]


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages]


async def test_plain_agent_is_told_instructions_and_observations_word_for_word() -> None:
    model = Script()
    turns = await play(ChatAgent(model), 2)
    assert texts(model.conversations[0]) == [
        "Find the key.",
        "seen 0",
        "answer 2",
        "seen 1",
        "answer 4",
    ]
    assert texts(turns[1].observation) == ["seen 1"]
    assert not turns[1].starts_segment


async def test_react_asks_for_a_thought_and_the_environment_reads_the_action() -> None:
    model = Script(lambda told: "Thought: the key is north.\nAction: go north")
    agent = ChatAgent(model, prompting=ReActPrompting())
    turns = await play(agent, 1)
    assert "Thought:" in model.conversations[0][0].content
    env = turngym.make("text/maze")
    env.reset(seed=0)
    _, _, _, _, info = env.step(turns[0].action.content)
    assert "Not a command" not in info.get("invalid_action", "")


@pytest.mark.parametrize("native", [False, True])
async def test_react_asks_for_an_action_line_unless_tools_are_called_natively(native: bool) -> None:
    model = Script()
    model.takes_tools = True
    agent = ChatAgent(model, prompting=ReActPrompting())
    session = agent.start(CONTEXT)
    await session.act({"text": "seen"}, {"tools": [{"type": "function"}]} if native else {})
    told = model.conversations[0][0].content
    assert ("Action: the action" in told) is not native
    assert ("Before each tool call" in told) is native


async def test_legal_actions_are_shown_when_asked_for() -> None:
    prompting = PlainPrompting(show_legal_actions=True, max_legal_actions=2)
    seen = prompting.observation({"text": "x"}, {"legal_actions": ["a", "b", "c"]})
    assert seen.message.content == "x\nYou may: a; b; and 1 more"


async def test_window_keeps_the_last_turns_and_opens_a_segment_with_its_reason() -> None:
    model = Script()
    turns = await play(ChatAgent(model, history=WindowHistory(4, keep=2)), 6)
    assert [turn.starts_segment for turn in turns] == [False] * 4 + [True, False]
    assert turns[4].segment_reason == "window: the last 2 of 5 turns are kept"
    assert texts(turns[4].observation) == ["Find the key.", "seen 3", "answer 8", "seen 4"]
    assert texts(model.conversations[1])[:4] == texts(turns[4].observation)


async def test_summary_replaces_what_is_dropped_by_the_model_s_own_notes() -> None:
    notes = "<think>hm</think>my notes"
    model = Script(lambda told: notes if SUMMARIZE in told[-1].content else "x" * 40)
    turns = await play(ChatAgent(model, history=SummaryHistory(30, keep=1)), 4)
    cut = next(turn for turn in turns if turn.starts_segment)
    assert cut.segment_reason is not None
    assert cut.segment_reason.startswith("compaction: ")
    assert cut.observation[0].content == "Find the key."
    assert "so far:\nmy notes" in cut.observation[1].content
    assert cut.observation[1].content.endswith(f"seen {turns.index(cut)}")
    assert cut.usage["completion_tokens"] == 2  # the notes and the action


async def test_reflection_tells_the_next_attempt_what_the_last_one_learned() -> None:
    model = Script(
        lambda told: "Do not go\nsouth." if "did not succeed" in told[-1].content else "go"
    )
    agent = ChatAgent(model, reflection=Reflection())
    end = EpisodeEnd(
        observation="lost", episode_return=0.0, score=0.0, stop_reason=StopReason.TERMINATED
    )
    first: Any = agent.start(CONTEXT)
    await first.act({"text": "seen"}, {})
    await first.finish(end)
    second = agent.start(CONTEXT)
    await second.act({"text": "seen"}, {})
    assert "- Do not go south." in model.conversations[-1][0].content
    assert "Do not go" not in model.conversations[0][0].content


async def test_success_teaches_nothing() -> None:
    model = Script()
    agent = ChatAgent(model, reflection=Reflection())
    session: Any = agent.start(CONTEXT)
    await session.act({"text": "seen"}, {})
    await session.finish(
        EpisodeEnd(observation="", episode_return=1, score=1.0, stop_reason=StopReason.TERMINATED)
    )
    assert len(model.conversations) == 1


def reflecting() -> ChatAgent[Script]:
    """Return an agent that never acts well, and whose lessons say which attempt it was."""

    def answer(told: Sequence[Message]) -> str:
        known = told[0].content.count("\n- ")
        return f"lesson {known}" if "did not succeed" in told[-1].content else "look"

    return ChatAgent(Script(answer), reflection=Reflection(2))


def job(attempts: int) -> EvalJob:
    maze = turngym.make("text/maze", max_turns=2).unwrapped
    return EvalJob(
        env="text/maze",
        env_id="text/maze",
        make_env=partial(turngym.make, "text/maze", max_turns=2),
        tasks=[maze.task("test", n) for n in range(3)],
        seed=0,
        attempts=attempts,
        concurrency=12,
    )


def as_arguments(asked: EvalJob) -> dict[str, Any]:
    names = ("make_env", "tasks", "env_id", "seed", "concurrency", "attempts")
    return {name: getattr(asked, name) for name in names}


def lessons_told(played: Sequence[Trajectory]) -> list[int]:
    return [one.turns[0].observation[0].content.count("\n- ") for one in played]


async def test_in_an_evaluation_each_attempt_is_told_what_those_before_it_learned() -> None:
    agent, asked = reflecting(), job(4)
    for _ in range(2):  # the second begins as the first, without lessons
        played = await evaluate(**as_arguments(asked), policy=agent)
        assert lessons_told(played) == [0, 1, 2, 2] * 3
        assert [one.metadata["lesson"] for one in played[:3]] == [
            "lesson 0",
            "lesson 1",
            "lesson 2",
        ]
        assert [turn.usage["completion_tokens"] for turn in played[0].turns] == [1, 2]


async def test_an_evaluation_that_goes_on_knows_the_lessons_of_its_folder(tmp_path: Path) -> None:
    whole = await evaluate(**as_arguments(job(3)), policy=reflecting())
    for attempts in (2, 3):
        plan = {"envs": ["text/maze"], "seeds": attempts}
        with EvalFolder(tmp_path, plan) as folder:
            await play_job(job(attempts), reflecting(), folder=folder)
    found = {(t.task_id, t.member): t for t in read_trajectories(tmp_path / "text-maze.jsonl")}
    assert [found[one.task_id, one.member] for one in whole] == whole


async def test_rollout_lets_a_session_learn_how_the_episode_came_out() -> None:
    model = Script()
    agent = ChatAgent(model, reflection=Reflection())
    env = turngym.make("text/maze")
    spec = group_specs("text/maze", env.unwrapped.task("train", 0), seed=0, group_size=1)[0]
    trajectory = await rollout(env, agent, spec)
    assert trajectory.score == 0.0
    assert "did not succeed (score 0)" in model.conversations[1][-2].content


async def test_window_over_tokens_keeps_every_segment_as_the_engine_saw_it() -> None:
    local = tiny_policy(context=256)
    model = EngineModel(
        local.model.engine, local.model.renderer, sampling=Sampling(max_new_tokens=5)
    )
    session = ChatAgent(model, history=WindowHistory(2, keep=1)).start(CONTEXT)
    turns = [await session.act({"text": "key north."}, {}) for _ in range(5)]
    assert [turn.starts_segment for turn in turns] == [False, False, True, False, True]
    for turn in turns:
        prompt, drawn = turn.spans
        assert (prompt.sampled, drawn.sampled) == (False, True)
        if turn.starts_segment:
            opening = local.model.renderer.opening(turn.observation)
            assert prompt.token_ids == opening
    session.close()
    assert local.model.engine.free_sessions == 1024


async def test_what_no_context_can_hold_is_refused_without_being_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = tiny_policy(context=256)
    most = local.model.renderer.most_characters(256)
    assert most == 256 * max(map(len, tokenizer().get_vocab()))
    session = ChatAgent(local.model).start(CONTEXT)
    await session.act({"text": "key north."}, {})
    with monkeypatch.context() as patched:
        patched.setattr(local.model.renderer, "_encode_text", None)
        with pytest.raises(ContextOverflow, match=f"{most + 1} characters, context 256 tokens"):
            await session.act({"text": "x" * (most + 1)}, {})
    session.close()


@pytest.mark.parametrize("make", [lambda: WindowHistory(2, 3), lambda: SummaryHistory(0)])
def test_history_that_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="history: "):
        make()


@pytest.mark.parametrize("history", [None, WindowHistory(2, keep=1), SummaryHistory(40, keep=1)])
async def test_a_resumed_episode_goes_on_to_the_token(history: Any) -> None:
    engine = LocalEngine(tiny_model(context=1024), tokenizer())
    model = EngineModel(engine, Renderer(tokenizer()), sampling=Sampling(max_new_tokens=5))
    agent = ChatAgent(model, history=history)
    seen = [{"text": f"key {number} north."} for number in range(5)]
    first, second = agent.start(CONTEXT), agent.start(CONTEXT)
    played = [await first.act(observation, {}) for observation in seen]
    for number, observation in enumerate(seen[:4]):
        turn = Turn(
            observation=played[number].observation,
            action=played[number].action,
            spans=played[number].spans,
            reward=0.0,
            starts_segment=played[number].starts_segment,
        )
        second.replay(observation, {}, turn)  # type: ignore[attr-defined]
    resumed = await second.act(seen[4], {})
    ids = [[span.token_ids for span in turn.spans] for turn in (resumed, played[4])]
    assert ids[0] == ids[1]
    assert resumed.observation == played[4].observation
