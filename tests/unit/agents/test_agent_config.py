"""From words or a file to an agent."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import turngym
from turngym.agents.chat.agent import ChatAgent
from turngym.agents.chat.prompting import (
    PlainPrompting,
    ReActPrompting,
    SummaryHistory,
    WindowHistory,
)
from turngym.agents.config import ChatAgentConfig
from turngym.agents.remote.chat import RemoteChat
from turngym.api.agents import make_policy
from turngym.config import load_config
from turngym.errors import ConfigError

pytestmark = pytest.mark.extra("openai")

PAGE = (Path(__file__).parents[3] / "docs/agents.md").read_text(encoding="utf-8")
SERVER = "base_url=http://127.0.0.1:9/v1"


def block(kind: str) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_file_of_the_docs_is_an_agent(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(block("toml"))
    agent = make_policy(f"{tmp_path / 'agent.toml'} turn_timeout_s=5")
    assert isinstance(agent, ChatAgent)
    assert isinstance(agent.prompting, ReActPrompting)
    assert isinstance(agent.history, SummaryHistory)
    assert agent.reflection is not None
    assert isinstance(agent.model, RemoteChat)
    assert agent.model.config.turn_timeout_s == 5
    assert agent.model.config.output_usd_per_mtok == 2.0


def test_function_of_the_docs_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs_agent.py").write_text(block("python"))
    monkeypatch.chdir(tmp_path)
    make_policy("docs_agent:act")
    env = turngym.make("text/maze")
    observation, info = env.reset(seed=0)
    import sys

    action = sys.modules["docs_agent"].act(observation, info)
    assert "invalid_action" not in env.step(action)[4]


def test_settings_stand_after_the_name() -> None:
    agent = make_policy(
        f"openai:my-model {SERVER} temperature=null history.type=window history.turns=6 "
        "'system=Be brief.'"
    )
    assert isinstance(agent, ChatAgent)
    assert isinstance(agent.history, WindowHistory)
    assert agent.prompting == PlainPrompting(system="Be brief.")
    assert isinstance(agent.model, RemoteChat)
    assert agent.model.config.temperature is None
    assert agent.model.config.model == "my-model"


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (f"openai:m {SERVER} temprature=1", "temprature: unknown key. Did you mean 'temperature'?"),
        (f"openai:m {SERVER} max_retries=-1", "max_retries: Input should be greater than or equal"),
        (f"openai:m {SERVER} history.type=short", "history.type: unknown type 'short'"),
        (f"openai:m {SERVER} fast", "'fast': wanted key=value"),
        (f"openai:m {SERVER} 'system=oh", "No closing quotation"),
        ("no-such-agent.toml", "cannot be read"),
    ],
)
def test_wrong_settings_are_one_line(spec: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_policy(spec)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_no_setting_holds_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    config = load_config(
        ChatAgentConfig, [tomllib.loads(block("toml")), {"api_key_env": "OPENAI_API_KEY"}]
    )
    assert config.key == "sk-secret-0123456789"
    assert "sk-secret" not in config.model_dump_json()
    assert "sk-secret" not in repr(config)
