"""Every command explains itself, and the shell completes it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from helpers import warm
from turngym.cli.main import main, program


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(typer.main.get_command(program())))


def completed(words: str) -> list[str]:
    environment = {
        "_TURNGYM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = warm.turngym(env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("words", [["envs"], ["check", "env", "--help"], ["--version"]])
def test_a_command_brings_along_no_other(words: list[str]) -> None:
    code = (
        f"import sys; from turngym.cli.main import main; main({words!r}); "
        "found = [name for name in sys.modules if name.startswith('turngym.')]; "
        "print(*found, 'torch' * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    others = {"turngym.cli.train", "turngym.cli.eval", "turngym.cli.serve", "turngym.cli.doctor"}
    assert not modules & {*others, "turngym.sandbox.checks.check", "torch"}
    assert ("turngym.cli.check" in modules) is (words != ["--version"])


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_command_says_what_it_does_and_what_each_option_means(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ALL[path]
    first, *rest = command.help.split("\n\n")
    assert first.strip().endswith(".")
    assert all(line.endswith((".", ":")) for text in rest for line in text.strip().splitlines())
    assert [p.name for p in command.params if not getattr(p, "help", None)] == []
    assert main([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    assert first.split()[0] in shown
    usage = shown.partition("\n\n")[0].partition(first[:20])[0]
    assert not re.search(r"\[\[|\.\.\.[]}]", usage)  # what repeats or may be left out is said once


@pytest.mark.parametrize("module", ["swe.install", "web.sites.install"])
def test_a_program_that_installs_says_what(module: str) -> None:
    command = [sys.executable, "-m", f"turngym.environments.{module}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "all by default" in done.stdout


def test_the_shell_completes_commands_options_environments_and_recipes() -> None:
    assert completed("turngym tr") == ["train"]
    assert completed("turngym eval --ag") == ["--agent"]
    assert "text/maze-long" in completed("turngym eval text/maze")
    assert completed("turngym train dem") == ["demo"]
    assert completed("turngym train demo alg") == ["algo="]
