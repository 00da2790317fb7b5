import logging
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium
import pytest

import turngym
from helpers.envs import registered
from turngym import registry
from turngym.errors import ConfigError, MissingExtraError, UnknownNameError
from turngym.registry import EnvEntry

MAZE = "turngym.environments.text.maze:MazeEnv"

PLUGIN = """
    from turngym.environments.core.env import Outcome, TurnEnv
    from turngym.environments.core.actions import Commands
    from turngym import register

    class LedgerEnv(TurnEnv):
        name = "ledger"
        action_format = Commands({"close": "close"})
        def begin(self, task):
            return Outcome(text="open")
        def turn(self, action):
            return Outcome(text="closed", reward=1.0, terminated=True)

    def announce():
        register("mylab/Ledger-v0", "mylab_ledger:LedgerEnv", family="mylab", max_turns=3)
"""


def entry(**changes) -> EnvEntry:
    fields = {
        "id": "lab/Thing-v0",
        "family": "lab",
        "entry_point": MAZE,
        "max_turns": 3,
        "snapshot_kind": "exact",
    }
    return EnvEntry(**{**fields, **changes})


@pytest.fixture
def empty(monkeypatch):
    """Give a registry of our own environments that may be changed, before any discovery."""
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(registry, "_broken", [])
    monkeypatch.setattr(registry, "_discovered", False)
    known = set(gymnasium.registry)
    yield registry
    for id in set(gymnasium.registry) - known:
        del gymnasium.registry[id]


@pytest.fixture
def install(tmp_path: Path, monkeypatch):
    """Return a function that installs a distribution with one module and entry points."""

    modules: list[str] = []

    def install(name: str, module: str, source: str, points: dict[str, str]) -> None:
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"{key} = {value}" for key, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[turngym.environments]", *lines, ""]))

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    for module in modules:
        sys.modules.pop(module, None)


# Names.


def test_an_environment_is_found_by_id_and_by_short_name_in_any_letter_case(empty):
    assert empty.find("turngym/Maze-v0") is empty.find("text/maze") is empty.find("Text/MAZE")


def test_an_unknown_name_proposes_the_nearest_of_its_own_form(empty):
    with pytest.raises(UnknownNameError, match=r"Did you mean 'text/maze'\?"):
        empty.find("text/mase")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'turngym/Maze-v0'\?"):
        empty.find("turngym/Mase-v0")


@pytest.mark.parametrize("given", [["text/maze"], gymnasium.Env()])
def test_what_is_no_name_is_one_line(given):
    with pytest.raises(ConfigError, match=r"wanted an id, a short name, .*; got a (list|Env)"):
        turngym.evaluate(given, "expert", episodes=1)


def test_a_short_name_means_the_newest_version(empty):
    empty.register_entry(entry(id="turngym/Maze-v10", family="text"))
    empty.register_entry(entry(id="turngym/Maze-v9", family="text"))
    assert empty.find("text/maze").id == "turngym/Maze-v10"


def test_a_plug_in_does_not_take_over_a_short_name_of_ours(empty):
    empty.register_entry(entry(id="lab/Maze-v99", family="text"))
    assert empty.find("text/maze").id == "turngym/Maze-v0"
    assert empty.find("lab/Maze-v99").family == "text"


def test_entries_are_sorted_by_short_name(empty):
    empty.register_entry(entry(id="a/Zoo-v0", family="aaa"))
    names = [found.short_name for found in empty.entries()]
    assert names == sorted(names)
    assert names[0] == "aaa/zoo"


@pytest.mark.parametrize("id", ["Maze-v0", "turngym/Maze", "turngym/Maze-v", "a/b/c-v0", ""])
def test_a_malformed_id_is_refused(empty, id):
    with pytest.raises(ConfigError, match=r"wanted '<namespace>/<Name>-v<N>'"):
        empty.register_entry(entry(id=id))


def test_an_id_cannot_be_taken_twice(empty):
    with pytest.raises(ConfigError, match="'turngym/Maze-v0' is registered twice"):
        empty.register_entry(entry(id="turngym/Maze-v0"))


def test_a_family_pattern_names_each_environment_once(empty):
    empty.register_entry(entry(id="lab/Ab-v0"))
    empty.register_entry(entry(id="lab/Ab-easy-v0"))  # the same under a longer name
    empty.register_entry(entry(id="lab/Ab-hard-v0", kwargs={"difficulty": "hard"}))
    assert [found.id for found in empty.match("lab/*")] == ["lab/Ab-v0", "lab/Ab-hard-v0"]
    assert [found.id for found in empty.match("lab/ab-easy")] == ["lab/Ab-easy-v0"]
    assert [found.id for found in empty.match("Lab/Ab-h*")] == ["lab/Ab-hard-v0"]
    with pytest.raises(
        ConfigError, match="no environment is called 'lab/c\\*'; 'turngym envs lab'"
    ):
        empty.match("lab/c*")


def test_an_unknown_family_proposes_the_nearest(empty):
    with pytest.raises(UnknownNameError, match=r"unknown family 'txt'. Did you mean 'text'\?"):
        empty.match("txt/*")


# What an environment needs.


def test_an_environment_that_has_all_it_needs_misses_nothing(empty):
    ready = entry(modules=("json", "os.path"), programs=("sh",))
    assert ready.missing() == []
    ready.require()


def test_a_missing_module_of_an_extra_gives_its_install_line(empty):
    needy = entry(modules=("no_such_module",), extra="babyai")
    assert needy.missing() == ["pip install 'turngym[babyai]'"]
    with pytest.raises(MissingExtraError, match=r"pip install 'turngym\[babyai\]'"):
        needy.require()


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.sub"])
def test_a_missing_module_without_an_extra_is_named(empty, module):
    needy = entry(modules=(module,))
    assert needy.missing() == [f"install the Python module {module!r}"]
    with pytest.raises(ConfigError, match=module):
        needy.require()


def test_a_missing_program_is_named(empty):
    needy = entry(programs=("no-such-program",))
    with pytest.raises(ConfigError, match="'lab/thing': install the program 'no-such-program'"):
        needy.require()


def test_all_that_is_missing_is_named_at_once(empty, monkeypatch):
    needy = entry(modules=("miniwob", "no_such_module"), programs=("no-such-program",), extra="x")
    monkeypatch.setattr(registry, "_can_import", lambda name: False)
    with pytest.raises(MissingExtraError) as caught:
        needy.require()
    for hint in ("pip install 'turngym[x]'", "--no-deps miniwob", "'no-such-program'"):
        assert str(caught.value).count(hint) == 1


def test_make_says_what_is_missing_before_it_imports_anything(empty):
    with (
        registered("lab/Needy-v0", "no_such_module:Env", modules=("no_such_module",), extra="x"),
        pytest.raises(MissingExtraError, match=r"turngym\[x\]"),
    ):
        turngym.make("lab/Needy-v0")


# Making.


def test_gymnasium_makes_our_environments_and_their_specs_can_be_sent_away():
    env = gymnasium.make("turngym/Maze-v0", difficulty="medium")
    spec = pickle.loads(pickle.dumps(env.spec))
    again = gymnasium.make(spec)
    assert again.spec == env.spec
    assert str(again) == str(env)
    assert again.reset(seed=3)[0] == env.reset(seed=3)[0]


def test_arguments_of_make_override_the_registered_ones():
    easy, hard = turngym.make("text/maze"), turngym.make("text/maze", difficulty="hard")
    assert easy.unwrapped.name == "maze-easy"
    assert hard.unwrapped.name == "maze-hard"


# Plug-ins: real distributions in a folder on sys.path.


def test_a_plug_in_is_discovered_and_made_by_id_and_short_name(empty, install):
    install("my-lab", "mylab_ledger", PLUGIN, {"ledger": "mylab_ledger:announce"})
    assert "mylab/Ledger-v0" in {found.id for found in empty.entries()}
    for name in ("mylab/Ledger-v0", "mylab/ledger"):
        env = turngym.make(name)
        env.reset(seed=0)
        assert env.step("close")[1:4] == (1.0, True, False)
    assert empty.broken_plugins() == []


def test_a_plug_in_may_be_a_class_under_its_id(empty, install):
    source = PLUGIN.replace('name = "ledger"', 'name = "ledger"\n        max_turns = 7')
    install("my-lab", "mylab_ledger", source, {"mylab/Ledger-v0": "mylab_ledger:LedgerEnv"})
    found = empty.find("mylab/ledger")
    assert (found.id, found.max_turns, found.family) == ("mylab/Ledger-v0", 7, "mylab")
    env = turngym.make("mylab/Ledger-v0")
    env.reset(seed=0)
    assert env.step("close")[1:4] == (1.0, True, False)
    assert empty.broken_plugins() == []


def test_a_plug_in_is_there_in_another_process(empty, install):
    install("my-lab", "mylab_ledger", PLUGIN, {"ledger": "mylab_ledger:announce"})
    code = "import turngym; print(turngym.make('mylab/ledger').reset(seed=0)[0]['text'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "open\n"
    assert done.stderr == ""


REGISTERS = """
from turngym import register
def announce(): register('bad/X-v0', 'x:X', family='x', {})
"""
BROKEN = {
    "import": ("import no_such_dependency\ndef announce(): pass", "ModuleNotFoundError"),
    "call": ("def announce():\n    raise OSError('no disk\\nreally')", "OSError: no disk"),
    "exit": ("raise SystemExit(0)", "SystemExit: 0"),
    "name": ("", "AttributeError"),
    "value": ("announce = 7", "TypeError"),
    "id": ("class announce: reset = step = print", "wanted '<namespace>/<Name>-v<N>'"),
    "class": ("class announce: pass", "badlab_class:announce': wanted a class derived from"),
    "base": ("class Skipped(BaseException): pass\nraise Skipped('no')", "no (badlab_base.py:2 in"),
    "async": ("async def announce(): pass", "wanted a class or a plain function, found an async"),
    "turns": (REGISTERS.format("max_turns='5'"), "max_turns='5': wanted a whole number"),
    "gives": (
        REGISTERS.format("max_turns=5, provides='state_key'"),
        "wanted some of ['ground_truth'",
    ),
    "taken": (
        "from turngym import register\n"
        f"def announce():\n    register('turngym/Maze-v0', '{MAZE}', family='x', max_turns=1)",
        "registered twice",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plug_in_is_named_in_one_line_and_hides_no_other(empty, install, caplog, kind):
    source, reason = BROKEN[kind]
    install("bad-lab", f"badlab_{kind}", source, {"worse": f"badlab_{kind}:announce"})
    install("my-lab", "mylab_ledger", PLUGIN, {"ledger": "mylab_ledger:announce"})
    with caplog.at_level(logging.WARNING):
        ids = {found.id for found in empty.entries()}
    assert {"mylab/Ledger-v0", "turngym/Maze-v0"} <= ids
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line
    assert "plug-in 'worse' of bad-lab 1.2 is broken" in line
    assert reason in line
    assert empty.broken_plugins() == [line]


def test_a_plug_in_that_prints_does_not_speak_where_data_is_written(empty, install, capsys):
    install(
        "my-lab", "mylab_loud", "print('hello')\ndef announce(): pass", {"x": "mylab_loud:announce"}
    )
    empty.entries()
    assert capsys.readouterr() == ("", "hello\n")


def test_what_a_plug_in_registered_before_it_broke_stays(empty, install):
    source = textwrap.dedent(PLUGIN) + "    raise RuntimeError('halfway')\n"
    install("my-lab", "mylab_ledger", source, {"ledger": "mylab_ledger:announce"})
    assert turngym.make("mylab/ledger") is not None
    assert len(empty.broken_plugins()) == 1


def test_an_unknown_name_mentions_the_broken_plug_ins(empty, install):
    install("bad-lab", "badlab", "", {"worse": "badlab:announce"})
    with pytest.raises(UnknownNameError, match="plug-in 'worse' of bad-lab"):
        empty.find("qqqq")


def test_a_plug_in_may_look_around_while_it_registers(empty, install):
    source = textwrap.dedent(PLUGIN) + "    from turngym import registry; registry.entries()\n"
    install("my-lab", "mylab_ledger", source, {"ledger": "mylab_ledger:announce"})
    assert "mylab/Ledger-v0" in {found.id for found in empty.entries()}
    assert empty.broken_plugins() == []
