"""``turngym train``, ``config``, ``compare``: one run, what it would do, many side by side."""

from __future__ import annotations

import re
import textwrap
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from turngym.api.agents import need_train_extra
from turngym.cli.arguments import SOURCES, Json, MaybeSources, Sources
from turngym.cli.output import Advance, kept_stdout, print_json, progress, say, table
from turngym.cli.report import REFERENCE_HELP, print_report
from turngym.config import load_config, to_toml
from turngym.errors import ConfigError, require_known
from turngym.reports.texts import amount, percent

if TYPE_CHECKING:
    from turngym.api.tuning import Tries, Tuning
    from turngym.trainers.runs.comparison import ComparedAlgo, Heat
    from turngym.trainers.runs.progress import TrainResult


_WIDEST = 110
_SHOWN = {"warm_start/action_loss": "loss", "rollout/success": "success"}
"""What stands beside the bar: metric to label."""


def train(
    sources: MaybeSources = None,
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
    from turngym.trainers.settings.train import TrainConfig

    if not sources and not resume:
        raise ConfigError(f"train: wanted {SOURCES}, or --resume --out FOLDER")
    if not resume:  # a mistake is named before torch is imported, which takes seconds
        load_config(TrainConfig, sources or [])
    need_train_extra("'turngym train'")
    from turngym.trainers.distributed.launch import launch, rank_here
    from turngym.trainers.loop import obey
    from turngym.trainers.loop import train as run_training
    from turngym.trainers.runs.build_run import check_devices
    from turngym.trainers.runs.needs import check_needs, extends
    from turngym.trainers.runs.run_folder import check_same_run, has_begun, read_settings

    folder = _folder(sources or [], out)
    kept = [read_settings(folder)] if resume else []
    config = load_config(TrainConfig, [*kept, *(sources or [])])
    rank = rank_here() if config.learner.ranks > 1 else 0
    if rank:
        obey(config)
        return
    if (folder / "config.json").exists():
        check_same_run(folder, config)
        is_longer = extends(read_settings(folder), config.model_dump(mode="json"))
        if (folder / "summary.json").exists() and not is_longer:
            is_at_0 = config.learner.lr_schedule == "cosine"  # more steps would teach nothing
            advice = "" if is_at_0 else "give it more run.steps, or "
            say(f"{folder}: this run is done; {advice}choose another folder with --out")
        elif has_begun(folder) and rank is not None:
            say(f"{folder}: resuming the run that is there")
    if rank is None:
        check_needs(config)
        check_devices(config, folder)
        options = ["--resume"] * resume + ["--json"] * as_json
        arguments = ["train", *(sources or []), "--out", str(folder), *options]
        raise typer.Exit(launch(config.learner.ranks, arguments, stdout=kept_stdout()))
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
        parts = [amount(self._done, "step")] if self._done else []
        parts += [self._note] if self._note else []
        say(f"{self._name}: {', '.join([*parts, f'{time.monotonic() - self._began:.0f} s'])}")


def _folder(sources: list[str], out: Path | None) -> Path:
    """Return the folder of the run: the chosen one, or one named after the last recipe or file."""
    if out is not None:
        return out
    files = [source for source in sources if "=" not in source]
    if not files:
        raise ConfigError("train: no recipe or TOML file gives the run its name; set --out")
    return Path("runs") / Path(files[-1]).stem


def _print_result(result: TrainResult) -> None:
    rows = [
        [name, *(percent(one.success, one.success_ci95) for one in found)]
        for name, found in {
            "sampled": (result.before.sampled, result.after.sampled),
            "greedy": (result.before.greedy, result.after.greedy),
        }.items()
    ]
    print(table(["HELD-OUT SUCCESS [95 %]", "BEFORE", "AFTER"], rows))
    ended = "target reached" if result.reached_target else "all updates done"
    counts = (
        f"{amount(result.updates, 'update')} ({ended})",
        amount(result.episodes, "episode"),
        amount(result.faults, "fault"),
    )
    print(
        f"\n{result.env}, {result.algo}, seed {result.seed}: {', '.join(counts)}, "
        f"{result.seconds:.0f} s"
    )
    print(f"run folder: {result.folder}")


app = typer.Typer(help="Look at the settings of runs.")


@app.command()
def recipes() -> None:
    """List the training runs that ship: 'turngym train NAME' starts one."""
    from turngym.trainers.settings.train import recipes as shipped

    print(table(["RECIPE", "WHAT IT TRAINS"], [list(row) for row in shipped().items()]))


@app.command()
def presets() -> None:
    """List the credit methods that ship: 'turngym train demo algo=NAME' trains with one."""
    from turngym.trainers.settings.algo import needs_of
    from turngym.trainers.settings.train import TrainConfig
    from turngym.trainers.settings.train import presets as shipped

    rows = []
    for name, text in shipped().items():
        algo = load_config(TrainConfig, ["demo", f"algo={name}"]).algo
        needs = ", ".join(needs_of(algo.rewards, algo.advantage)) or "-"
        rows.append([name, needs, textwrap.shorten(text, _WIDEST, placeholder=" ...")])
    print(table(["PRESET", "NEEDS", "WHAT IT IS"], rows))


@app.command()
def show(
    sources: Sources,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, which also has what is unset.")
    ] = False,
) -> None:
    """Print every setting of a training run, defaults included, as TOML that can be used again."""
    from turngym.trainers.runs.needs import check_needs, flat
    from turngym.trainers.settings.train import TrainConfig

    config = load_config(TrainConfig, sources)
    check_needs(config)
    if as_json:
        print_json(config.model_dump(mode="json"))
        return
    print(text := to_toml(config), end="")
    again = flat(load_config(TrainConfig, [tomllib.loads(text)]).model_dump(mode="json"))
    settings = flat(config.model_dump(mode="json")).items()
    if lost := [f"{key}=null" for key, value in settings if again.get(key, again) != value]:
        say(f"TOML has no null: with what was printed goes {' '.join(lost)}")


def compare(
    algos: Annotated[
        str, typer.Option(help="Presets or TOML files, a,b,c; NAME=PRESET gives another name.")
    ],
    budget_episodes: Annotated[int, typer.Option(min=1, help="Training episodes of each run.")],
    sources: MaybeSources = None,
    env: Annotated[
        list[str] | None, typer.Option(help="Environments, a,b or again and again.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each that are reported.")] = 5,
    first_seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the first; 0, or else the first that tunes nothing."),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME:key.path=value", help="A setting of one algorithm."),
    ] = None,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="NAME:key.path=value",
            help="Settings to try on tuning seeds before anything is reported; '*' for every "
            "algorithm. Each gets as many tries as the others.",
        ),
    ] = None,
    tuning_seeds: Annotated[int, typer.Option(min=1, help="Runs of each try: 0, 1, ...")] = 2,
    controls: Annotated[
        str, typer.Option(help="Algorithms whose turn credit also runs shuffled and constant, a,b.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the comparison.")] = Path("runs/compare"),
    reference: Annotated[str | None, typer.Option(help=REFERENCE_HELP)] = None,
    as_json: Json = False,
) -> None:
    """Train algorithms from equal starts, at equal episodes, and write a table and plots.

    The settings are those of the recipe or file, or the shipped ones for the environment.
    The same command again resumes what was stopped.
    Exit code 1 when a run failed.
    """
    need_train_extra("'turngym compare'")
    from turngym.api.jobs import run_heats
    from turngym.api.tuning import with_controls
    from turngym.reports.runs import Protocol, read_runs
    from turngym.trainers.runs.comparison import plan

    compared = compared_algos(algos, own or [])
    names = [one.name for one in compared]
    controlled = chosen_among("--controls", controls, names)
    tried = _tries(tries or [], names)
    first = _first_seed(first_seed, tuning_seeds if tries else 0)
    planned = partial(
        plan,
        [name for part in env or [] for name in part.split(",") if name],
        sources=sources or [],
        budget_episodes=budget_episodes,
    )
    reported = range(first, first + seeds)
    everyone = with_controls(compared, controlled)
    if reference is not None:
        chosen_among("--reference", reference, [one.name for one in everyone])
    record: dict[str, Any] = {}
    if tried:
        tuning = _tuned(compared, tried, planned, seeds=range(tuning_seeds), out=out, jobs=jobs)
        everyone, record = with_controls(tuning.chosen, controlled), tuning.record
    heats = planned(everyone, seeds=reported, out=out)
    protocol = Protocol.of(everyone, reported, record)
    protocol.write(out, budget_episodes)
    runs = [run for heat in heats for run in heat.runs]
    with progress("updates", _updates(heats)) as advance:
        failures = run_heats(heats, jobs=jobs, advance=advance)
    notes = [f"failed: {label}: {reason}" for label, reason in failures.items()]
    done, left_out = read_runs(run.folder for run in runs if run.is_done)
    notes += left_out
    for note in notes:
        say(note)
    if done:
        print_report(
            done, out, protocol=protocol, reference=reference, notes=notes, as_json=as_json
        )
    elif as_json:
        print_json({"notes": notes, "envs": []})
    if failures:
        raise typer.Exit(1)


def _tuned(
    compared: Sequence[ComparedAlgo],
    tried: Tries,
    planned: Callable[..., list[Heat]],
    *,
    seeds: Sequence[int],
    out: Path,
    jobs: int,
) -> Tuning:
    """Return the algorithms with the settings that did best on seeds of their own."""
    from turngym.api.tuning import candidates, tune
    from turngym.reports.runs import TUNING_FOLDER

    found = candidates(compared, tried)
    everyone = [one for some in found.values() for one in some]
    heats = planned(everyone, seeds=seeds, out=out / TUNING_FOLDER)
    with progress("updates to tune", _updates(heats)) as advance:
        return tune(compared, found, heats, jobs=jobs, advance=advance)


def _updates(heats: Sequence[Heat]) -> int:
    return sum(run.config.run.steps for heat in heats for run in heat.runs)


def chosen_among(option: str, text: str, names: Sequence[str]) -> list[str]:
    """Return the names in ``text``, ``a,b``, which was given with ``option``.

    Raises:
        UnknownNameError: A name is not among ``names``.
    """
    chosen = [name for name in text.split(",") if name]
    for name in chosen:
        require_known(option, name, names)
    return chosen


def _first_seed(asked: int | None, tuning: int) -> int:
    """Return the first seed that is reported; those below ``tuning`` choose settings."""
    if asked is not None and asked < tuning:
        raise ConfigError(
            f"--first-seed {asked}: the seeds below {tuning} choose the settings, and what they "
            f"report would be too good; wanted {tuning} or more"
        )
    return tuning if asked is None else asked


_NEXT_SETTING = re.compile(r"\s+(?=[\w.]+=)")


def _tries(parts: Sequence[str], names: Sequence[str]) -> dict[str, list[tuple[str, ...]]]:
    """Return the settings of ``--try``, ``"NAME:key=value key=value"`` each, by algorithm."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for part in parts:
        name, colon, text = part.partition(":")
        settings = tuple(_NEXT_SETTING.split(text.strip()))
        if not colon or not all("=" in setting for setting in settings):
            raise ConfigError(f"--try {part!r}: wanted NAME:key.path=value, with '*' for all names")
        for one in (
            names if name == "*" else chosen_among(f"algorithm in --try {part!r},", name, names)
        ):
            found.setdefault(one, []).append(settings)
    return found


def compared_algos(algos: str, own: Sequence[str]) -> list[ComparedAlgo]:
    """Return the algorithms of ``--algos``, ``"grpo,mine=mine.toml"``, with their ``--set``.

    Raises:
        ConfigError: An algorithm is there twice or has no name; a setting has no algorithm.
    """
    from turngym.trainers.runs.comparison import ComparedAlgo

    chosen: dict[str, str] = {}
    for part in filter(None, algos.split(",")):
        alias, equals, algo = part.partition("=")
        name, algo = (alias, algo) if equals else (Path(part).stem, part)
        if not name or not algo:
            raise ConfigError(f"--algos {part!r}: wanted PRESET, FILE.toml or NAME=PRESET")
        if name in chosen:
            raise ConfigError(f"--algos: {name!r} is there twice; NAME=PRESET gives another name")
        chosen[name] = algo
    if not chosen:
        raise ConfigError("--algos: wanted at least one")
    settings: dict[str, list[str]] = {name: [] for name in chosen}
    for part in own:
        name, colon, setting = part.partition(":")
        if not colon or "=" not in setting:
            raise ConfigError(f"--set {part!r}: wanted NAME:key.path=value")
        require_known(f"algorithm in --set {part!r},", name, settings)
        settings[name].append(setting)
    return [
        ComparedAlgo(name=name, algo=algo, settings=tuple(settings[name]))
        for name, algo in chosen.items()
    ]
