"""``turngym train``: train a policy or resume a run. ``turngym config``: what a run would do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from turngym.api.needs import need_train_extra
from turngym.cli.arguments import SOURCES, SOURCES_HELP, Json, complete_recipe
from turngym.cli.output import Advance, print_json, progress, say, table
from turngym.errors import ConfigError
from turngym.reports.texts import percent

if TYPE_CHECKING:
    from turngym.trainers.runs.progress import TrainResult


_RUNS = Path("runs")
_SHOWN = {"warm_start/action_loss": "loss", "rollout/success": "success"}
"""What stands beside the bar: metric to label."""


def train(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar=SOURCES, help=SOURCES_HELP, autocompletion=complete_recipe),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; runs/<name of the recipe or file> by default."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out, with its settings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a policy and print its success on held-out tasks before and after.

    The same command again resumes a run that was stopped.
    """
    need_train_extra("'turngym train'")
    from turngym.config import load_config
    from turngym.trainers.loop import train as run_training
    from turngym.trainers.runs.run_folder import check_same_run, has_begun, read_settings
    from turngym.trainers.runs.settings_change import extends
    from turngym.trainers.settings.train import TrainConfig

    if not sources and not resume:
        raise ConfigError(f"train: wanted {SOURCES}, or --resume --out FOLDER")
    folder = _folder(sources or [], out)
    kept = [read_settings(folder)] if resume else []
    config = load_config(TrainConfig, [*kept, *(sources or [])])
    if (folder / "config.json").exists():
        check_same_run(folder, config)
        is_longer = extends(read_settings(folder), config.model_dump(mode="json"))
        if (folder / "summary.json").exists() and not is_longer:
            say(f"{folder}: this run is done; give it more run.steps, or choose another folder")
        elif has_begun(folder):
            say(f"{folder}: resuming the run that is there")
    with Watcher() as watcher:
        result = run_training(config, folder, progress=watcher)
    if as_json:
        print_json({"folder": str(result.folder), **result.to_json()})
    else:
        _print_result(result)


class Watcher:
    """Shows a run on stderr: a bar for the current phase, a line for each that is over."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._advance: Advance | None = None
        self._name, self._done, self._note, self._began = "", 0, "", 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def phase(self, name: str, total: int | None) -> None:
        """Begin a phase of at most ``total`` steps."""
        self._end()
        self._name, self._done, self._note, self._began = name, 0, "", time.monotonic()
        self._advance = self._stack.enter_context(progress(name, total))

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        """Show how many steps are done, and the numbers that people look at."""
        shown = [f"{label} {metrics[key]:.3f}" for key, label in _SHOWN.items() if key in metrics]
        self._done, self._note = done, ", ".join(shown)
        if self._advance is not None:
            self._advance(done, self._note)

    def note(self, text: str) -> None:
        """Show one line."""
        say(text)

    def _end(self) -> None:
        if self._advance is None:
            return
        self._stack.close()
        self._advance = None
        parts = [f"{self._done} steps"] if self._done else []
        parts += [self._note] if self._note else []
        say(f"{self._name}: {', '.join([*parts, f'{time.monotonic() - self._began:.0f} s'])}")


def _folder(sources: list[str], out: Path | None) -> Path:
    """Return the folder of the run: the chosen one, or one named after the last recipe or file."""
    if out is not None:
        return out
    files = [source for source in sources if "=" not in source]
    if not files:
        raise ConfigError("train: no recipe or TOML file gives the run its name; set --out")
    return _RUNS / Path(files[-1]).stem


def _print_result(result: TrainResult) -> None:
    def row(name: str, before: Any, after: Any) -> list[str]:  # two Evaluations
        return [
            name,
            percent(before.success, before.success_ci95),
            percent(after.success, after.success_ci95),
        ]

    before, after = result.before, result.after
    headers = ["HELD-OUT SUCCESS [95 %]", "BEFORE", "AFTER"]
    rows = [
        row("sampled", before.sampled, after.sampled),
        row("greedy", before.greedy, after.greedy),
    ]
    print(table(headers, rows))
    ended = "target reached" if result.reached_target else "all updates done"
    print(
        f"\n{result.env}, {result.algo}, seed {result.seed}: {result.updates} updates ({ended}), "
        f"{result.episodes} episodes, {result.faults} faults, {result.seconds:.0f} s"
    )
    print(f"run folder: {result.folder}")


app = typer.Typer(help="Look at the settings of runs.")


@app.command()
def recipes() -> None:
    """List the training runs that ship: 'turngym train NAME' starts one."""
    from turngym.trainers.settings.train import recipes as shipped

    print(table(["RECIPE", "WHAT IT TRAINS"], [list(row) for row in shipped().items()]))


@app.command()
def show(
    sources: Annotated[list[str], typer.Argument(metavar=SOURCES, help=SOURCES_HELP)],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, which also has what is unset.")
    ] = False,
) -> None:
    """Print every setting of a training run, defaults included, as TOML that can be used again."""
    from turngym.config import load_config, to_toml
    from turngym.trainers.runs.needs import check_needs
    from turngym.trainers.settings.train import TrainConfig

    config = load_config(TrainConfig, sources)
    check_needs(config)
    if as_json:
        print_json(config.model_dump(mode="json"))
    else:
        print(to_toml(config), end="")
