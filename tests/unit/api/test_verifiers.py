"""The dialogue that plays an environment for verifiers, without the package: who says what."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import turngym
from turngym.api.verifiers import _seed, _talk
from turngym.rollouts.gateway.hosted import HostedEnv
from turngym.tasks.interop.verifiers import export_verifiers


class Player:
    """Answers with what it is given, and keeps what is recorded of it."""

    def __init__(self, said: list[str]) -> None:
        self.said, self.seen, self.stopped = list(said), list[str](), list[str]()
        self.rewards: dict[str, float] = {}
        self.info: dict[str, Any] = {}

    @asynccontextmanager
    async def interaction(self, task: Any) -> Any:
        yield SimpleNamespace(turn=self.turn, trace=self)

    async def turn(self, text: str) -> Any:
        self.seen.append(text)
        return SimpleNamespace(terminated=not self.said, last_reply=(self.said or [""]).pop(0))

    def stop(self, condition: str) -> None:
        self.stopped.append(condition)

    def record_reward(self, name: str, value: float) -> None:
        self.rewards[name] = value


async def talk(said: list[str]) -> Player:
    player = Player(said)
    hosted = HostedEnv(turngym.make("text/maze"), env_id="text/maze")
    try:
        await _talk(hosted, SimpleNamespace(data=SimpleNamespace(task=TASK)), player)
    finally:
        await hosted.close()
    return player


TASK = "maze-easy/test/0"


async def test_an_end_is_said_in_the_words_of_verifiers() -> None:
    env = turngym.make("text/maze")
    env.reset(seed=_seed(TASK), options={"task": TASK})
    said, over = [], False
    while not over:
        said.append(env.unwrapped.expert_action())
        over = env.step(said[-1])[2]
    env.close()
    solved = await talk(said)
    assert solved.stopped == ["agent_completed"]
    assert solved.info["turngym"] == {"task": TASK, "score": 1.0}
    assert solved.rewards["turngym"] > 0
    lost = await talk(["go nowhere"] * 50)
    assert lost.stopped == ["max_turns"]
    left = await talk([])
    assert left.stopped == [], "the model went; verifiers has said why"
    assert left.info["turngym"] == {"task": TASK, "score": 0.0}, "and what is left is judged"


def test_a_package_names_a_file_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    for name in ("mine.py", "mine.py:One"):
        package = export_verifiers(name, tmp_path / "out", count=1, split="test")
        text = (package / package.name / "__init__.py").read_text()
        assert f"verifiers_classes('{tmp_path / name}'" in text
