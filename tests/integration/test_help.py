"""Every command explains itself, and the shell completes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from helpers import warm
from turngym.cli.main import app, main


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


def completed(words: str) -> list[str]:
    environment = {
        "_TURNGYM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = warm.turngym(env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


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
    assert first.split()[0] in capsys.readouterr().out


def test_the_shell_completes_commands_options_environments_and_recipes() -> None:
    assert completed("turngym tr") == ["train"]
    assert completed("turngym eval --ag") == ["--agent"]
    assert "text/maze-long" in completed("turngym eval text/maze")
    assert completed("turngym train dem") == ["demo"]
    assert completed("turngym train demo alg") == ["algo="]
