"""What ``--agent`` understands, and what it says about everything else."""

from pathlib import Path

import pytest

from turngym.agents.chat.agent import ChatAgent
from turngym.agents.policy import EpisodeContext
from turngym.agents.scripted import ExpertPolicy, NoopPolicy, RandomPolicy
from turngym.api.agents import agent_digest, make_policy
from turngym.errors import ConfigError, UnknownNameError

CONTEXT = EpisodeContext(env_id="e", task_id="t", seed=0, instructions="")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "policy"), [("expert", ExpertPolicy), ("random", RandomPolicy), ("noop", NoopPolicy)]
)
def test_scripted_agents_go_by_their_names(spec: str, policy: type) -> None:
    assert isinstance(make_policy(spec), policy)


async def test_a_function_of_a_module_in_the_working_folder_acts(module: Path) -> None:
    (module / "north_agent.py").write_text("def act(seen, info): return 'go ' + seen['text']\n")
    session = make_policy("north_agent:act").start(CONTEXT)
    turn = await session.act({"text": "north"}, {})
    assert turn.action.content == "go north"


def test_a_policy_object_of_a_module_is_taken_as_it_is(module: Path) -> None:
    code = "from turngym.agents.scripted import NoopPolicy\npolicy = NoopPolicy()\n"
    (module / "policy_agent.py").write_text(code)
    assert isinstance(make_policy("policy_agent:policy"), NoopPolicy)


def test_a_near_miss_names_the_agent_that_was_meant() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown agent 'exper'\. Did you mean 'expert'\?"):
        make_policy("exper")
    with pytest.raises(ConfigError, match="agent 'oracle': has a new name: expert"):
        make_policy("oracle")
    with pytest.raises(ConfigError, match="agent 'human': plays at the command line alone"):
        make_policy("human")


def test_a_file_without_a_name_is_asked_for_one() -> None:
    with pytest.raises(ConfigError, match=r"'mine\.py': which function or class .* mine\.py:NAME"):
        make_policy("mine.py")


def test_nonsense_lists_the_forms() -> None:
    with pytest.raises(ConfigError, match=r"Wanted expert \| random \| noop"):
        make_policy("%%%%")


def test_nothing_after_the_colon_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing after the colon"):
        make_policy("hf:")


def test_remote_model_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="no key for https"):
        make_policy("openai:gpt-9")


def test_a_file_of_settings_may_have_blanks_in_its_name(module: Path) -> None:
    file, spec = module / "my agent.toml", "'my agent.toml' prompt=react"
    file.write_text('\ufeffmodel = "mine"\nbase_url = "http://localhost:8000/v1"\n')
    assert isinstance(make_policy(spec), ChatAgent)
    policy = make_policy(spec)
    before = agent_digest(spec, policy)
    file.write_text(file.read_text() + "reflection = 1\n")
    assert None not in {before, agent_digest(spec, policy)}
    assert before != agent_digest(spec, policy)
    (module / "my own.py").write_text("def act(seen, info): return 'wait'\n")
    (module / "my model").mkdir()
    for other in ("my own.py:act", "hf:'my model' context=64"):
        assert agent_digest(other, NoopPolicy()) is not None
    file.write_text('type = ["openai"]\n')
    with pytest.raises(ConfigError, match="unknown agent type"):
        make_policy(spec)


@pytest.mark.parametrize("setting", ["history.type=custom history.function", "prompt.function"])
def test_a_history_or_prompt_of_ones_own_is_part_of_the_agent(module: Path, setting: str) -> None:
    file = module / "own_parts.py"
    spec = f"openai:mine base_url=http://localhost:8000/v1 {setting}=own_parts.py:Own"
    file.write_text(
        "class Own:\n def __init__(self, *given): pass\n fit = opening = observation = 1"
    )
    policy = make_policy(spec)
    before = agent_digest(spec, policy)
    assert before == agent_digest(spec, policy)
    file.write_text(file.read_text() + "  # changed")
    assert None not in {before, agent_digest(spec, policy)}
    assert before != agent_digest(spec, policy)


def test_a_missing_module_is_named() -> None:
    with pytest.raises(ConfigError, match="no module 'no_such_module' here or installed"):
        make_policy("no_such_module:act")


def test_a_missing_module_inside_a_module_is_named(module: Path) -> None:
    (module / "needy_agent.py").write_text("import no_such_dependency\n")
    with pytest.raises(ConfigError, match="No module named 'no_such_dependency'"):
        make_policy("needy_agent:act")


def test_a_module_that_breaks_on_import_says_how(module: Path) -> None:
    (module / "broken_agent.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="importing 'broken_agent' raised ZeroDivisionError"):
        make_policy("broken_agent:act")


def test_a_missing_function_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'json:dmps'\. Did you mean 'json:dumps'\?"):
        make_policy("json:dmps")
    with pytest.raises(UnknownNameError, match=r"'json:qqqqqq'\. 'json' holds no such name\."):
        make_policy("json:qqqqqq")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("act = 3", "a value of type 'int'"),
        ("class act: pass", "the class 'act'"),
    ],
)
def test_what_cannot_act_is_refused(module: Path, code: str, found: str) -> None:
    name = f"odd_agent_{abs(hash(code))}"
    (module / f"{name}.py").write_text(code)
    with pytest.raises(ConfigError, match=f"wanted a function .* found {found}"):
        make_policy(f"{name}:act")


async def test_a_class_acts_with_an_object_for_each_episode(module: Path) -> None:
    code = "class Count:\n    n = 0\n    def act(self, seen, info):\n        self.n += 1\n"
    (module / "counting_agent.py").write_text(f"{code}        return str(self.n)\n")
    policy = make_policy("counting_agent:Count")
    first, second = policy.start(CONTEXT), policy.start(CONTEXT)
    said = [await s.act({"text": ""}, {}) for s in (first, first, second)]
    assert [turn.action.content for turn in said] == ["1", "2", "1"]
