"""Others who speak in an episode: functions and models, asked by environments and judges."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.fake_server import answer, fake_server
from helpers.models import model, tokenizer
from turngym.agents.engine.models import save_model_dir
from turngym.api import speakers
from turngym.errors import ConfigError, EnvironmentFault


@pytest.fixture(autouse=True)
def _nobody_is_known() -> Iterator[None]:
    speakers._by_name.cache_clear()
    yield
    speakers._by_name.cache_clear()


def asked(who: Any, said: Any = "hello", **settings: int) -> str:
    return asyncio.run(turngym.speaker(who).ask(said, **settings))


def parrot(messages: list[dict[str, str]]) -> str:
    return " | ".join(f"{one['role']}: {one['content']}" for one in messages)


async def slow_parrot(messages: list[dict[str, str]]) -> str:
    await asyncio.sleep(0)
    return f"<think>who is it?</think>\n{parrot(messages)}\n"


def test_functions_answer_conversations_of_either_form(tmp_path: Path) -> None:
    rows = [{"role": "system", "content": "be"}, turngym.Message(role="user", content="hi")]
    for who in (parrot, slow_parrot):
        assert asked(who, rows) == "system: be | user: hi"
    (tmp_path / "own.py").write_text("def shout(said):\n    return said[-1]['content'].upper()\n")
    assert asked(f"{tmp_path / 'own.py'}:shout") == "HELLO"


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (lambda said: 1 / 0, "speaker '<lambda>': ZeroDivisionError: division by zero"),
        (lambda said: None, "answered with None, wanted a text"),
        (lambda said: "<think>hm", "said nothing besides thoughts or calls: '<think>hm'"),
        (lambda said: " ", "said nothing besides thoughts"),
    ],
)
def test_an_answer_that_is_none_is_a_fault_of_the_environment(answer: Any, line: str) -> None:
    with pytest.raises(EnvironmentFault, match=line):
        asked(answer)


@pytest.mark.parametrize(
    ("who", "line"),
    [
        ("gpt", "speaker 'gpt': wanted openai:..., anthropic:..., completions:..., hf:..., run:"),
        ("helpers.models:TEXTS", "wanted a function, found"),
        ("helpers.models:nobody", "nobody"),
        ("openai:x base_url=http://127.0.0.1:9/v1 colour=red", "colour"),
    ],
)
def test_who_cannot_speak_is_one_line(who: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        asked(who)


def test_a_speaker_has_no_tools_so_a_call_is_nothing_said() -> None:
    async def ask(*calls: tuple[str, str], said: str) -> str:
        async with fake_server(answer(said, calls=calls)) as server:
            return await turngym.speaker(f"openai:tiny base_url={server.url}").ask("hello")

    call = ("look", '{"at": "it"}')
    assert asyncio.run(ask(call, said="I look.")) == "I look."
    with pytest.raises(EnvironmentFault, match="said nothing besides thoughts or calls: ''"):
        asyncio.run(ask(call, said=""))


def test_a_model_is_loaded_once_for_each_loop_and_depends_on_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model_dir(model(), tokenizer(), tmp_path / "model")
    made = []
    build = speakers.make_policy
    monkeypatch.setattr(speakers, "make_policy", lambda who: made.append(who) or build(who))
    who = f"hf:{tmp_path / 'model'} temperature=1 max_new_tokens=12"

    async def talk() -> list[str]:
        user = turngym.speaker(who)
        assert user is turngym.speaker(who)
        return await asyncio.gather(*(user.ask("hello", seed=seed) for seed in (1, 1, 2)))

    first, same, other = asyncio.run(talk())
    assert (first == same, first == other) == (True, False)
    assert asyncio.run(talk()) == [first, same, other]
    assert made == [who, who]


def test_a_server_that_is_gone_is_a_fault_and_a_missing_folder_a_setting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with pytest.raises(ConfigError, match="there is no such folder"):
        asked("hf:./gone")
    who = "openai:x base_url=http://127.0.0.1:9/v1 max_retries=0"
    with pytest.raises((EnvironmentFault, ConfigError), match=r"127\.0\.0\.1:9"):
        asked(who)


def test_a_conversation_that_is_too_long_for_the_model_is_a_fault_that_names_it(
    tmp_path: Path,
) -> None:
    save_model_dir(model(), tokenizer(), tmp_path / "model")
    who = f"hf:{tmp_path / 'model'}"
    with pytest.raises(EnvironmentFault, match=f"speaker '{who}': .* context"):
        asked(who, "hello " * 10_000)


class Desk(turngym.AsyncTurnEnv):
    rules = "Say a word."
    action_format = turngym.Commands({"say": "say {word...}"})

    def __init__(self, user: Any = parrot, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.user = turngym.speaker(user)

    async def begin(self, task: turngym.Task) -> turngym.Outcome:
        return turngym.Outcome(text="speak")

    async def turn(self, action: Any) -> turngym.Outcome:
        answer = await self.user.ask(action.arguments["word"])
        return turngym.Outcome(text=answer, reward=1.0, terminated=True)

    def score(self) -> float:
        return 1.0


def broken(said: Any) -> str:
    raise RuntimeError("the line is dead")


def test_an_episode_whose_user_is_gone_has_no_score() -> None:
    env = f"{__name__}:Desk"
    [episode] = turngym.rollout(env, lambda seen, info: "say hi", max_turns=3)
    assert (episode.score, episode.error) == (1.0, None)
    assert "user: hi" in str(episode.final_observation)
    [episode] = turngym.rollout(env, lambda seen, info: "say hi", user=broken, max_turns=3)
    assert (episode.score, episode.stop_reason.value) == (None, "error_env")
    assert "speaker 'broken': RuntimeError: the line is dead" in str(episode.error)
