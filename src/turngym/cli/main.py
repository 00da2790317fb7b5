"""The program ``turngym``: reads arguments, runs one command, turns errors into exit codes."""

from __future__ import annotations

import atexit
import io
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pkgutil import resolve_name
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from turngym import __version__
from turngym.cli.output import (
    FAILED,
    FINE,
    INTERRUPTED,
    exit_code,
    first_cause,
    keep_stdout,
    kept_stdout,
    lines,
)
from turngym.errors import ConfigError

_GRACE_S = 10.0
"""Seconds that threads have to end after the command has."""
_PANELS: Mapping[str, Mapping[str, str]] = {
    "Run an agent": {
        "eval": "eval:evaluate",
        "play": "play:play",
        "view": "report:view",
        "replay": "replay:replay",
        "serve": "serve:app",
    },
    "Train a model": {
        "train": "train:train",
        "plan": "plan:plan",
        "launch": "plan:launch",
        "compare": "train:compare",
        "config": "train:app",
        "export": "report:export",
        "audit": "simulate:audit",
        "simulate": "simulate:simulate",
        "report": "report:report",
    },
    "Environments and tasks": {
        "envs": "check:envs",
        "new": "check:new",
        "check": "check:app",
        "tasks": "tasks:app",
        "corpus": "corpus:app",
    },
    "This machine": {"doctor": "doctor:doctor"},
}
"""Commands by what a user wants, in the order of ``--help``, and where in this folder each is."""


def program(only: str = "") -> typer.Typer:
    """Return the program.

    Args:
        only: A command, or an option, that needs no other command: what is not imported takes no
            time. Where there is none of this name, the program has all commands.
    """
    app = typer.Typer(
        help="turngym: the gym where LLM agents learn turn by turn.", pretty_exceptions_enable=False
    )
    app.callback(invoke_without_command=True)(_root)
    known = any(only in commands for commands in _PANELS.values())
    for panel, commands in _PANELS.items():
        for name, place in commands.items():
            if (known and name != only) or only == "--version":
                continue
            command = resolve_name(f"turngym.cli.{place}")
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=panel)
            else:
                app.command(name, rich_help_panel=panel)(command)
    return app


def _asked_for(arguments: Sequence[str]) -> str:
    """Return the command that the arguments, or those that a shell completes, name first."""
    completed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    words = completed.split()[1:] if "_TURNGYM_COMPLETE" in os.environ else arguments
    return next((word for word in words if not word.startswith("-") or word == "--version"), "")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


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
    """Run the command line, with the arguments of the process if None, and return its exit code."""
    if arguments is None:  # this process is ours: being ended is Ctrl-C, so that all is closed
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # under nohup it is ignored
            signal.signal(signal.SIGHUP, _hang_up)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
        if "--json" in sys.argv and sys.stdout and sys.stderr:  # None where one is closed
            keep_stdout()
        code = main(sys.argv[1:])
        if "WORLD_SIZE" in os.environ:
            _end(code)
        watch = threading.Timer(_GRACE_S, _end_without_threads, [code])
        watch.daemon = True  # it keeps nothing itself
        watch.start()
        return code
    debug = "--debug" in arguments  # wherever it stands
    arguments = [argument for argument in arguments if argument != "--debug"]
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if isinstance(sys.stdin, io.TextIOWrapper):
        with suppress(io.UnsupportedOperation):  # something was read already
            sys.stdin.reconfigure(errors="replace")
    try:
        _refuse_empty(arguments)
        command = typer.main.get_command(program(_asked_for(arguments)))
        _refuse_twice(command, arguments)
        code = command.main(args=arguments, prog_name="turngym", standalone_mode=False)
        print(end="", flush=True)
        return code if isinstance(code, int) else FINE
    except BrokenPipeError:
        # The interpreter's last flush of stdout goes nowhere: its reader is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (kept_stdout() or sys.stdout).fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        known = _report(error, debug=debug)
        if known is None:
            raise
        return known


def _hang_up(number: int, frame: FrameType | None) -> None:
    """End as by SIGTERM: the terminal was closed."""
    from turngym.coroutines import leave_terminal

    leave_terminal()
    signal.raise_signal(signal.SIGTERM)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse ``--out ""``, which as a path would be the folder that the user stands in."""
    for before, argument in zip(["turngym", *arguments], arguments, strict=False):
        if not argument or re.fullmatch(r"--[a-z-]+=", argument):
            raise ConfigError(
                f"{before if not argument else argument[:-1]}: what follows is empty; is a "
                "variable of the shell not set?"
            )


def _refuse_twice(command: Any, arguments: Sequence[str]) -> None:
    """Refuse an option that comes again and can be given once: the last one alone would count."""
    words = list(takewhile(lambda word: word != "--", arguments))
    while words and (inner := getattr(command, "commands", {}).get(words[0])):
        command, words = inner, words[1:]
    counts = Counter(word.partition("=")[0] for word in words)
    for option in (one for one in command.params if one.param_type_name == "option"):
        number = sum(counts[name] for name in option.opts)
        if number > 1 and not (option.multiple or option.is_flag):
            raise ConfigError(f"{option.opts[0]}: found {number} of them; wanted one")


def _end(code: int) -> NoReturn:
    """End this process without taking the interpreter apart.

    A thread of torch that comes back to Python while it is taken apart aborts the process.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):  # it ends already
            signal.signal(number, signal.SIG_IGN)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_without_threads(code: int) -> None:
    """End the process, which waits for threads that somebody's environment or library has left."""
    main, threads = threading.main_thread(), threading.enumerate()
    left = {thread.name for thread in threads if thread is not main and not thread.daemon}
    if left:
        names = ", ".join(sorted(left)[:3])
        print(
            f"warning: all is done, and a thread still runs that is no daemon ({names}), of an "
            "environment or a library; it is ended",
            file=sys.stderr,
        )
        _end(code)


def _report(error: BaseException, *, debug: bool) -> int | None:
    """Report what went wrong and return the exit code; None for a bug of ours, said by Python."""
    cause = first_cause(error)
    code = exit_code(cause)
    if code is None:
        return None
    if debug:
        traceback.print_exception(error)
    prefix = "" if code == INTERRUPTED else "error: "
    for line in lines(cause):
        print(f"{prefix}{line}", file=sys.stderr)
    return code
