"""The program ``turngym``: reads arguments, runs one command, turns errors into exit codes."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from turngym import __version__
from turngym.cli.config import app as config_app
from turngym.cli.doctor import doctor
from turngym.cli.envs import envs
from turngym.cli.eval import evaluate
from turngym.cli.play import play
from turngym.cli.train import train
from turngym.errors import ConfigError, Interrupted, RecordError, TurnGymError

FINE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130

# Typer keeps its own copy of Click in some releases; both have this family tree.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickError: Any = _UsageError.__mro__[1]

app = typer.Typer(
    help="turngym: the gym where LLM agents learn turn by turn.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("envs")(envs)
app.command("play")(play)
app.command("eval")(evaluate)
app.command("train")(train)
app.add_typer(config_app, name="config")
app.command("doctor")(doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show logs, and the traceback of an error.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: Without the program's name; None for those of the process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments  # wherever it stands
    arguments = [argument for argument in arguments if argument != "--debug"]
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_stdout()
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        known = _report(error, debug=debug)
        if known is None:
            raise
        return known


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    code = command.main(args=arguments, prog_name="turngym", standalone_mode=False)
    return code if isinstance(code, int) else FINE


def _report(error: BaseException, *, debug: bool) -> int | None:
    """Tell what went wrong and return the exit code; None for a bug of ours, said by Python."""
    cause = _cause(error)
    code = _exit_code(cause)
    if code is None:
        return None
    if debug:
        traceback.print_exception(error)
    for line in _lines(cause):
        print(f"error: {line}", file=sys.stderr)
    return code


def _cause(error: BaseException) -> BaseException:
    """Return the first error inside groups, as a ``TaskGroup`` raises them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _exit_code(error: BaseException) -> int | None:
    """Return the exit code for an error that needs no traceback, or None."""
    if isinstance(error, ConfigError | RecordError | _UsageError):
        return WRONG_INPUT
    if isinstance(error, KeyboardInterrupt | typer.Abort | Interrupted):
        return INTERRUPTED
    if isinstance(error, TurnGymError | OSError | _ClickError):
        return FAILED
    return None


def _lines(error: BaseException) -> list[str]:
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return ["interrupted"]
    text = error.format_message() if isinstance(error, _ClickError) else str(error)
    return text.strip().splitlines() or [type(error).__name__]


def _drop_stdout() -> None:
    """Let the interpreter's last flush of stdout go nowhere: its reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
