"""A file, a class or a folder of the user's own works wherever an id does."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import turngym
from helpers.cli import TINY_RUN
from helpers.cli import turngym as program
from turngym import registry
from turngym.cli.main import main
from turngym.environments.gym.hosts import make_async
from turngym.environments.gym.vector import make_vec
from turngym.environments.own import files_digest
from turngym.errors import ConfigError
from turngym.plugins import import_attribute

GAME = '''
from turngym import Commands, Outcome, TextGame


class {name}(TextGame):
    """Say the number.

    Args:
        difficulty: Not used.
    """

    rules = "Say the number that you see."
    commands = Commands({{"say": "say {{number:int}}"}})
    max_turns = 3

    def new_game(self, rng):
        return {{"number": int(rng.integers(10**6)), "right": False}}

    def describe(self):
        return f"{{self.state['number']}}"

    def turn(self, action):
        right = self.state["right"] = action.arguments["number"] == self.state["number"]
        return Outcome(text="right" if right else "wrong", reward=float(right), terminated=True)

    def score(self):
        return float(self.state["right"])

    def legal_actions(self):
        return [self.expert_action()]

    def expert_action(self):
        return f"say {{self.state['number']}}"
'''
REGISTER = (
    "\nfrom turngym import register\n"
    'register("lab/{name}-v0", f"{{__name__}}:{name}", family="lab", max_turns=2)\n'
)


def write(path: Path, *names: str, registers: bool = False) -> None:
    text = "".join(GAME.format(name=name) for name in names)
    if registers:
        text += "".join(REGISTER.format(name=name) for name in names)
    path.write_text(text, encoding="utf-8")


TARGETS = ["echo_game.py", "./echo_game.py", "echo_game.py:EchoEnv", "echo_game:EchoEnv"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("registers", [False, True])
def test_eval_plays_what_is_named(
    folder: Path, target: str, registers: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "echo_game.py", "EchoEnv", registers=registers)
    assert main(["eval", target, "--agent", "expert", "--episodes", "2", "--json"]) == 0
    ((name, found),) = json.loads(capsys.readouterr().out).items()
    assert name == ("lab/echoenv" if registers else "local/echo")
    assert (found["episodes"], found["solved"]) == (2, 2)


def test_an_absolute_path_and_a_module_of_a_package_are_found(folder: Path) -> None:
    (folder / "lab_games").mkdir()
    (folder / "lab_games" / "__init__.py").touch()
    write(folder / "lab_games" / "echo.py", "EchoEnv")
    assert registry.find("lab_games.echo:EchoEnv").max_turns == 3
    assert turngym.make(str(folder / "lab_games" / "echo.py")).unwrapped.name == "echo-easy"


def test_play_check_train_and_envs_take_the_same_name(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "echo_game.py", "EchoEnv")
    done = program("play", "echo_game.py", "--seed", "1", cwd=folder, stdin="say 1\n")
    assert (done.returncode, "return 0" in done.stdout) == (0, True)
    assert main(["check", "env", "echo_game.py"]) == 0
    assert "pass    same in another process" in capsys.readouterr().out
    assert main(["envs", "echo_game.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == "local/Echo-v0"
    (folder / "tiny.toml").write_text(TINY_RUN)
    overlap = ["rollout.mode=overlap", "rollout.isolation=process", "rollout.concurrency=2"]
    for number, settings in enumerate([[], overlap]):
        command = ["train", "tiny.toml", "env=echo_game.py", *settings, "--out", f"run{number}"]
        assert main(command) == 0


def test_a_fresh_process_finds_it_too(folder: Path) -> None:
    write(folder / "odd-name.py", "EchoEnv")  # no name for a module
    entry = registry.find("odd-name.py:EchoEnv")
    made: Any = make_async(entry.id, isolation="process")

    async def play() -> str:
        try:
            return str((await made.reset(seed=3))[0]["text"])
        finally:
            await made.close()

    here = turngym.make(entry.id).reset(seed=3)[0]["text"]
    assert asyncio.run(play()) == here
    envs = make_vec(entry.id, 2, vectorization_mode="async")
    try:
        assert list(envs.reset(seed=[3, 3])[0]["text"]) == [here, here]
    finally:
        envs.close()


def test_the_check_plays_a_file_that_is_no_module_in_a_fresh_process(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "odd-name.py", "EchoEnv")
    assert main(["check", "env", "odd-name.py"]) == 0
    assert "pass    same in another process" in capsys.readouterr().out


def test_a_file_on_the_path_has_its_own_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "echo_game.py", "EchoEnv")
    monkeypatch.syspath_prepend(str(folder))
    assert registry.find("echo_game.py").entry_point == "echo_game:EchoEnv"


def test_a_child_needs_only_what_it_makes_and_says_what_it_could_not_load(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EchoEnv", "GoneEnv"):
        write(folder / f"{name}.py", name)
    here, gone = registry.find("EchoEnv.py"), registry.find("GoneEnv:GoneEnv")
    (folder / "GoneEnv.py").unlink()
    reason = "environment 'GoneEnv:GoneEnv': no module 'GoneEnv' here or installed"

    async def play(id: str) -> str:
        made: Any = make_async(id, isolation="process")
        try:
            return str((await made.reset(seed=3))[0]["text"])
        finally:
            await made.close()

    assert asyncio.run(play(here.id)) == turngym.make(here.id).reset(seed=3)[0]["text"]
    with pytest.raises(ConfigError, match=re.escape(reason)):
        asyncio.run(play(gone.id))
    envs = make_vec(here.id, 1, vectorization_mode="async")
    envs.close()
    with pytest.raises(ConfigError, match=re.escape(reason)):
        make_vec(gone.id, 1, vectorization_mode="async")


def test_a_folder_of_tasks_is_an_environment(folder: Path) -> None:
    from turngym.environments.swe import tasksets

    (folder / "mine").mkdir()
    text = (tasksets._DATA / "sample_tasks.json").read_text(encoding="utf-8")
    (folder / "mine" / "tasks.json").write_text(text, encoding="utf-8")
    entry = registry.find("mine")
    assert entry.entry_point == registry.find("swe/bugs").entry_point
    assert entry.kwargs["tasks"] == str(folder / "mine")
    assert registry.find("./mine/") is entry


def test_of_two_files_with_a_class_of_one_name_both_are_found(folder: Path) -> None:
    for name in ("one", "two"):
        write(folder / f"{name}_game.py", "EchoEnv")
    first, second = registry.find("one_game.py"), registry.find("two_game.py")
    assert first.id == "local/Echo-v0"
    assert re.fullmatch(r"local/Echo-[0-9a-f]{8}-v0", second.id)
    assert registry.find("one_game.py") is first


def test_of_two_files_of_tasks_with_one_name_both_are_played(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("one", "two"):
        (folder / place).mkdir()
        (folder / place / "q.toml").write_text('questions = "q.jsonl"\n')
        (folder / place / "q.jsonl").write_text('{"question": "Who?", "answer": "Ada"}\n')
    command = ["eval", "one/q.toml", "two/q.toml", "--agent", "expert", "--json"]
    assert main(command) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == "local/q"
    assert re.fullmatch(r"local/q-[0-9a-f]{8}", second)
    assert registry.find("one/q.toml").short_name == first


def test_a_function_and_a_class_of_coroutines_will_do(folder: Path) -> None:
    from helpers.envs import AsyncLadderEnv

    assert turngym.make("helpers.envs:make_ladder").unwrapped.name == "ladder"
    env = turngym.make("helpers.envs:AsyncLadderEnv", top=2)
    assert env.reset(seed=0)[0]["text"].endswith("of 2")
    env.close()
    assert AsyncLadderEnv.name == "ladder"


HALF = """import turngym

class Half(turngym.FileProblem):
    prompt = "Write x into a.txt."

    async def judge(self, world):
        return await world.read("a.txt") == b"x"
"""
WRONG = {
    "none.py": "environment 'none.py': there is no such file",
    "none.py:EchoEnv": "environment 'none.py:EchoEnv': there is no such file",
    "none.toml": "environment 'none.toml': there is no such file",
    "none.tasks": "environment 'none.tasks': there is no such file",
    "none:EchoEnv": "environment 'none:EchoEnv': no module 'none' here or installed",
    "two.py": "environment 'two.py' holds several: name one of two.py:AEnv, two.py:BEnv",
    "both.py": "environment 'both.py' holds several: name one of lab/aenv, lab/benv",
    "two.py:CEnv": "unknown environment 'two.py:CEnv'. Did you mean 'two.py:",
    "two.py:number": "environment 'two.py:number': wanted a class or a function, found a int",
    "empty.py": "environment 'empty.py': the file registers no environment and holds no class",
    "broken.py": (
        "environment 'broken.py': importing 'broken.py' raised ZeroDivisionError: division by zero "
        "(broken.py:3)"
    ),
    "leaves.py": "environment 'leaves.py': importing 'leaves.py' raised SystemExit: 0 (leaves.py:1",
    "typo.py": (
        "environment 'typo.py': importing 'typo.py' raised SyntaxError: '(' was never closed "
        "(typo.py, line 1)"
    ),
    "half.py": "environment 'half.py': class Half lacks expert; write it",
    "harbor": "environment 'harbor': task folder",
    "folder": "environment 'folder': is no file of Python and holds no tasks, neither in Harbor's",
    "zzzz": (
        "unknown environment 'zzzz'. Wanted an id, a short name, FILE.py, FILE.py:NAME, "
        "module:NAME, FILE.toml, FILE.tasks or a folder of tasks; see 'turngym envs'."
    ),
}


@pytest.mark.parametrize("target", WRONG)
@pytest.mark.parametrize("command", [["eval"], ["play"], ["check", "env"], ["envs"], ["train"]])
def test_what_is_none_is_one_line_everywhere(
    folder: Path, target: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "two.py", "AEnv", "BEnv")
    (folder / "typo.py").write_text("class Broken(\n")
    (folder / "half.py").write_text(HALF)
    (folder / "two.py").write_text((folder / "two.py").read_text() + "number = 3\n")
    write(folder / "both.py", "AEnv", "BEnv", registers=True)
    (folder / "empty.py").write_text("import os\n")
    (folder / "broken.py").write_text("\n\n1 / 0\n")
    (folder / "leaves.py").write_text("raise SystemExit(0)\n")
    for name in ("harbor", "folder"):
        (folder / name).mkdir()
    (folder / "harbor" / "task.toml").touch()
    more = {"eval": [target, "--agent", "expert"], "train": ["demo", f"env={target}"]}
    assert main([*command, *more.get(command[0], [target])]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"error: {WRONG[target]}")


@pytest.mark.parametrize("target", ["plain.py", "plain.py:make"])
@pytest.mark.parametrize("command", [["eval"], ["play"], ["train"]])
def test_an_environment_of_gymnasium_without_tasks_is_refused_in_one_line(
    folder: Path, target: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import gymnasium\nclass Plain(gymnasium.Env): ...\ndef make(): return Plain()\n"
    (folder / "plain.py").write_text(text)
    more = {"eval": [target, "--agent", "random"], "train": ["demo", f"env={target}"]}
    assert main([*command, *more.get(command[0], [target])]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "Plain has no tasks; play it through a TurnEnv, which turngym.from_gymnasium" in line


@pytest.mark.parametrize("command", [["play"], ["tasks", "list"]])
def test_what_the_users_own_code_raises_is_one_line_that_names_the_place(
    folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = GAME.format(name="EchoEnv") + "\n    def close(self):\n        raise KeyError('gone')\n"
    (folder / "echo_game.py").write_text(text, encoding="utf-8")
    assert main([*command, "echo_game.py"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"error: KeyError: 'gone' \(echo_game\.py:\d+ in close\)", line)
    main([*command, "echo_game.py", "--debug"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_file_that_is_run_and_imported_registers_once(folder: Path) -> None:
    write(folder / "echo_game.py", "EchoEnv", registers=True)
    with (folder / "echo_game.py").open("a", encoding="utf-8") as file:
        file.write(
            "\nif __name__ == '__main__':\n"
            "    import echo_game, turngym\n"
            "    from turngym import registry\n"
            "    print(registry.find('lab/echoenv').entry_point)\n"
            "    print(turngym.make('lab/echoenv').reset(seed=0)[1]['task_id'][:9])\n"
        )
    done = subprocess.run(
        [sys.executable, "-W", "error", "echo_game.py"],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["echo_game:EchoEnv", "echo-easy"]


def test_a_file_that_is_changed_after_it_was_read_is_named_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = folder / "edited.py"
    file.write_text("def agent(observation, info):\n    return 'no'\n")
    assert import_attribute("agent", "edited.py:agent")({}, {}) == "no"
    file.write_text(file.read_text().replace("no", "yes"))
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    for _ in range(2):
        assert import_attribute("agent", "edited.py:agent")({}, {}) == "no"
    [warned] = caplog.messages
    assert warned.startswith("edited.py was changed after it was read")


def test_results_that_lie_beside_tasks_do_not_change_them(folder: Path) -> None:
    assert main(["new", "harbor", "mine"]) == 0
    before = files_digest("mine"), files_digest(str(folder))
    (folder / "mine" / "run").mkdir()
    (folder / "mine" / "run" / "episodes.jsonl").touch()
    assert (files_digest("mine"), files_digest(str(folder))) == before
    (folder / "mine" / "tests" / "test.sh").write_text("exit 0\n")
    assert files_digest("mine") != before[0]
    assert files_digest(str(folder)) != before[1]


def test_a_limit_that_is_no_number_is_refused(folder: Path) -> None:
    text = GAME.format(name="EchoEnv").replace("max_turns = 3", "max_turns = '3'")
    (folder / "echo_game.py").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="max_turns='3': wanted a whole number of 1 or more"):
        registry.find("echo_game.py")


def test_two_different_classes_under_one_id_are_still_refused(folder: Path) -> None:
    for name in ("one_game", "other_game"):
        write(folder / f"{name}.py", "EchoEnv", registers=True)
    registry.find("one_game.py")
    with pytest.raises(ConfigError, match=r"registered twice: as one_game:EchoEnv and as other_g"):
        registry.find("other_game.py")


def test_a_thread_that_an_environment_leaves_keeps_no_command_from_its_end(tmp_path: Path) -> None:
    leaves = "threading.Thread(target=threading.Event().wait, name='camera').start()"
    text = "import threading\n" + GAME.format(name="Left")
    (tmp_path / "left.py").write_text(
        text.replace("        return {", f"        {leaves}\n        return {{", 1)
    )
    soon = "import sys; from turngym.cli import main as m; m._GRACE_S = 0.5; sys.exit(m.main())"
    ended = subprocess.run(
        [sys.executable, "-c", soon, "eval", "left.py", "--agent", "expert", "--episodes", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0
    assert "a thread still runs that is no daemon (camera)" in ended.stderr.splitlines()[-1]
    assert "100.0 %" in ended.stdout
