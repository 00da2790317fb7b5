"""The damage drill: every file of a run is cut off, changed, removed and swapped with a stranger's.

Each command that reads the run must then end with the same results, or with one line that names
the file. A sample by default; ``PART=damage`` (TURNGYM_DAMAGE=full) tries all and prints counts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import TINY_RUN
from helpers.train_process import stop_at
from turngym.cli.main import main
from turngym.config import load_config
from turngym.rollouts.evaluation.folder import EvalFolder
from turngym.rollouts.scheduler.audit import audit
from turngym.trainers.loop import train
from turngym.trainers.runs.checkpoints import find_model
from turngym.trainers.settings.train import TrainConfig

FULL = os.environ.get("TURNGYM_DAMAGE") == "full"
POINTS, SAMPLE = 20, 12
OVERLAP = """
[rollout]
mode = "overlap"
groups_per_step = 2
group_size = 2
concurrency = 8
max_new_tokens = 8
"""

Damage = Callable[[Path], None]


class Stops:
    """Raises after one update, after which nothing more is written."""

    name = ""

    def phase(self, name: str, total: int | None) -> None:
        self.name = name

    def advance(self, done: int, metrics: Mapping[str, float]) -> None:
        if (self.name, done) == ("reinforcement", 1):
            raise ConnectionAbortedError

    def note(self, text: str) -> None:
        pass


@dataclass(frozen=True)
class Patient:
    """A run folder, the same of a stranger, and the commands that read them."""

    folder: Path
    """Copied here for every case, so that all paths stay the same."""
    whole: Path
    stranger: Path
    commands: Mapping[str, Sequence[str]]
    results: Callable[[str, Path, str], Any]
    """(command, folder, stdout) -> what must not change."""
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def files(self) -> list[str]:
        found = (f for f in sorted(self.whole.rglob("*")) if f.is_file())
        names = [str(f.relative_to(self.whole)) for f in found]
        return [name for name in names if not name.startswith("tensorboard")]

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.whole, self.folder)


def cut(share: float) -> Damage:
    return lambda file: os.truncate(file, int(file.stat().st_size * share))


def flip(share: float, bit: int) -> Damage:
    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[int((len(content) - 1) * share)] ^= 1 << bit
        file.write_bytes(content)

    return change


def damages(patient: Patient, name: str, rng: random.Random) -> Iterator[tuple[str, Damage]]:
    """Yield all that is done to a file."""
    file = patient.whole / name
    yield "removed", Path.unlink
    stranger = patient.stranger / name
    if stranger.is_file() and stranger.read_bytes() != file.read_bytes():
        yield "swapped", lambda path: shutil.copyfile(stranger, path) and None
    if file.stat().st_size == 0:
        return
    for point in range(POINTS):
        yield f"cut at {point}/{POINTS}", cut(point / POINTS)
    for _ in range(POINTS):
        share, bit = rng.random(), rng.randrange(8)
        yield f"bit {bit} flipped at {share:.4f}", flip(share, bit)


def drill(
    patient: Patient,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = random.Random(3)
    wanted = {}
    for command, arguments in patient.commands.items():
        patient.restore()
        assert main(list(arguments)) == 0, capsys.readouterr().err
        wanted[command] = patient.results(command, patient.folder, capsys.readouterr().out)
    cases = [
        (name, *case, command)
        for name in patient.files()
        for case in damages(patient, name, rng)
        for command in patient.commands
    ]
    for name, what, damage, command in cases if FULL else rng.sample(cases, SAMPLE):
        patient.restore()
        damage(patient.folder / name)
        caplog.clear()
        outcome = judge(patient, command, name, wanted[command], capsys, caplog)
        patient.counts[outcome] += 1
        if outcome not in ("same", "same and named", "refused"):
            patient.failures.append(f"{command}: {name} {what}: {outcome}")
    if FULL:
        with capsys.disabled():
            print(f"\n{patient.whole.name}: {dict(patient.counts)}, {len(patient.files())} files")
    assert patient.failures == []


def judge(
    patient: Patient,
    command: str,
    name: str,
    wanted: Any,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> str:
    """Return how a command took the damage."""
    try:
        code = main(list(patient.commands[command]))
    except BaseException as error:  # noqa: BLE001 - a traceback is what the drill looks for
        return f"traceback: {type(error).__name__}: {error}"
    captured = capsys.readouterr()
    said = captured.err + caplog.text
    place = Path(name)
    marks = [place.name.removesuffix("-wal")]
    marks += [part for part in place.parts[:-1] if part[:1].isdigit()]
    is_named = any(mark in said or mark in captured.out for mark in marks)
    if code == 0:
        found = patient.results(command, patient.folder, captured.out)
        if found == wanted:
            return "same and named" if is_named else "same"
        if command in ("view", "report") and is_named:
            return "same and named"  # what is missing was said, the rest is shown
        if command == "audit" and name.endswith("-wal") and found["clean"]:
            return "same"  # a log that ends earlier is what an earlier kill leaves
        return f"silent change: {difference(wanted, found)} {said[-300:]}"
    if command == "audit" and code == 1 and is_named:
        return "refused"  # a clean account says nothing of files
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    if code not in (1, 2) or len(errors) != 1 or not is_named:
        return f"code {code}, unclear: {captured.err[-600:]}"
    return "refused"


def difference(wanted: Any, found: Any) -> str:
    if isinstance(wanted, dict) and isinstance(found, dict):
        keys = [k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k)]
        return str(sorted(map(str, keys)))
    return f"{str(wanted)[:200]} is now {str(found)[:200]}"


def without_clock(content: Any) -> Any:
    """Return JSON values without what a clock decided."""
    if isinstance(content, dict):
        clocks = ("seconds", "time", "credit_share")
        return {k: without_clock(v) for k, v in content.items() if k not in clocks}
    return [without_clock(v) for v in content] if isinstance(content, list) else content


def results_of(command: str, folder: Path, out: str) -> Any:
    if command == "view":
        return (folder.parent / "page.html").read_bytes()
    content = without_clock(json.loads(out)) if out.startswith(("{", "[")) else out
    if command.startswith("train"):
        kept = {"metrics": (folder / "metrics.jsonl").read_bytes()}
        kept["weights"] = (find_model(folder) / "model.safetensors").read_bytes()
        kept["expert"] = (folder / "trajectories" / "expert.jsonl").read_bytes()
        return {"printed": content, **kept}
    if command == "eval":
        kept = {f.name: f.read_bytes() for f in folder.glob("text-*.jsonl")}
        return {"printed": content, **kept}
    return content


def printed(command: str, folder: Path, out: str) -> Any:
    """Return what a run that is done says; it trains nothing and reads no checkpoint."""
    return (
        without_clock(json.loads(out)) if "train" in command else results_of(command, folder, out)
    )


def account_of(command: str, folder: Path, out: str) -> Any:
    """Return what holds of every overlapped run, whose numbers depend on speed."""
    if command != "train":
        return results_of(command, folder, out)
    report = audit(folder)
    return {"updates": json.loads(out)["updates"], "problems": report.problems, **report.steps}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settings")
    (folder / "tiny.toml").write_text(TINY_RUN)
    head, _, tail = TINY_RUN.partition("[rollout]")
    rest = tail[tail.index("[evaluation]") :]
    (folder / "overlap.toml").write_text(f'algo = "decoupled_ppo"\n{head}{OVERLAP}\n{rest}')
    return folder


def trained(settings: Path, name: str, folder: Path, *changes: str, stop: bool = False) -> Path:
    config = load_config(TrainConfig, [settings / name, *changes])
    if not stop:
        train(config, folder)
        return folder
    with pytest.raises(ConnectionAbortedError):
        train(config, folder, progress=Stops())
    with (folder / "timings.jsonl").open("a") as file:
        file.write('{"phase": "tra')  # a killed process was writing
    return folder


def training_patient(folder: Path, settings: Path, name: str, whole: Path, other: Path) -> Patient:
    run, page = str(folder / "run"), str(folder / "page.html")
    commands = {
        "train": ["train", str(settings / name), "--out", run, "--json"],
        "train --resume": ["train", "--resume", "--out", run, "--json"],
        "view": ["view", run, "--html", page],
        "eval run:": ["eval", "text/maze", "--agent", f"run:{run}", "--episodes", "2", "--json"],
    }
    return Patient(folder / "run", whole, other, commands, results_of)


def test_a_finished_training_run(
    settings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = trained(settings, "tiny.toml", tmp_path / "finished")
    other = trained(settings, "tiny.toml", tmp_path / "other", "run.seed=1")
    patient = training_patient(tmp_path, settings, "tiny.toml", whole, other)
    report = ["report", str(patient.folder), "--out", str(tmp_path / "report"), "--json"]
    commands = {**patient.commands, "report": report}
    drill(Patient(patient.folder, whole, other, commands, printed), capsys, caplog)


def test_a_training_run_that_was_killed(
    settings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = trained(settings, "tiny.toml", tmp_path / "killed", stop=True)
    other = trained(settings, "tiny.toml", tmp_path / "other", "run.seed=1", stop=True)
    drill(training_patient(tmp_path, settings, "tiny.toml", whole, other), capsys, caplog)


def test_an_overlapped_run_that_was_killed(
    settings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sources = [str(settings / "overlap.toml")]
    whole, other = tmp_path / "overlapped", tmp_path / "other"
    if FULL:  # a log of writes ahead is there only when the process was really killed
        for folder, changes in ((whole, []), (other, ["run.seed=1"])):
            stop_at(folder, [*sources, *changes], line="reinforcement 1", number=signal.SIGKILL)
    else:
        trained(settings, "overlap.toml", whole, stop=True)
        trained(settings, "overlap.toml", other, "run.seed=1", stop=True)
    patient = training_patient(tmp_path, settings, "overlap.toml", whole, other)
    commands = {
        "train": patient.commands["train"],
        "audit": ["audit", str(patient.folder), "--json"],
    }
    drill(Patient(patient.folder, whole, other, commands, account_of), capsys, caplog)


def evaluated(folder: Path, page: Path, *options: str) -> dict[str, list[str]]:
    play = ["eval", "text/maze", "--agent", "random", "--episodes", "6", "--seeds", "2", *options]
    return {
        "eval": [*play, "--out", str(folder), "--json"],
        "report": ["report", str(folder), "--out", str(page.parent / "report"), "--json"],
        "view": ["view", str(folder), "--html", str(page)],
    }


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_evaluation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    is_killed: bool,
) -> None:
    whole, other = tmp_path / "evaluation", tmp_path / "other"
    page = tmp_path / "page.html"
    with monkeypatch.context() as patch:
        if is_killed:
            patch.setattr(EvalFolder, "add", stops_after(7, EvalFolder.add))
        for folder, options in ((whole, []), (other, ["--seed", "1"])):
            assert main(evaluated(folder, page, *options)["eval"]) == (1 if is_killed else 0)
    capsys.readouterr()
    commands = evaluated(tmp_path / "run", page)
    drill(Patient(tmp_path / "run", whole, other, commands, results_of), capsys, caplog)


def stops_after(count: int, add: Callable[..., None]) -> Callable[..., None]:
    """Return ``EvalFolder.add`` for a process that ends after some episodes of each folder."""

    def stopping(self: EvalFolder, *args: Any) -> None:
        if len(self.rows) >= count:
            raise ConnectionAbortedError("killed")
        add(self, *args)

    return stopping


def test_a_packed_turn_that_is_damaged_stops_the_resumption_and_is_named(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no digest says so: the ledger was written to by another program."""
    run = trained(settings, "overlap.toml", tmp_path / "run", stop=True)
    (run / "digests.json").unlink()
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
        db.execute("UPDATE turns SET packed = zeroblob(9)")
    capsys.readouterr()
    assert main(["train", str(settings / "overlap.toml"), "--out", str(run)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: {run}/ledger.sqlite: group ")
    assert "the packed turn 0 is damaged" in line
